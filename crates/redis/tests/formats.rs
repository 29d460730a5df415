//! A store of the format before is read as it is, and brought up to date by an engine; any other is refused.

#[allow(dead_code)]
#[path = "place/server.rs"]
mod server;

use std::time::Duration;

use flowline_core::{EventType, NewEvent, Tenant};
use flowline_redis::{IfMissing, RedisStore};
use flowline_store::conformance::{Fixture, given};
use flowline_store::row::Retention;
use flowline_store::{Commit, StateEdit, StateOwner, StateQuery, StateSpace};
use server::Server;

/// Makes the store of one run what format 3 had of it: an entry for each event, leases by job, and
/// no order among the keys of key-value state.
const BEFORE: &str = r"
local log, leases = '{flowline:0}:log:default/r', '{flowline:0}:leases'
local entries = redis.call('XRANGE', log, '-', '+')
redis.call('DEL', log)
for _, entry in ipairs(entries) do
  redis.call('XADD', log, entry[1], 'event', string.match(entry[2][2], '^%d+ (.*)\n$'))
end
redis.call('ZADD', leases, redis.call('ZSCORE', leases, 'default/r'), '0:default/r')
redis.call('ZREM', leases, 'default/r')
redis.call('DEL', '{flowline:0}:keys:scope:default/orders', '{flowline:0}:keys:run:default/r')
redis.call('HSET', '{flowline:0}:meta', 'format', '3')
return #entries";

async fn open(server: &Server, missing: IfMissing) -> Fixture {
    Fixture::waiting(RedisStore::open(&server.url(), missing).await.expect("the store opens"))
}

#[tokio::test]
async fn a_store_of_the_format_before_is_read_as_it_is_and_brought_up_to_date_by_an_engine() {
    let server = Server::start(&[]);
    let format = || server.ask(&["HGET", "{flowline:0}:meta", "format"]).trim().to_owned();
    let f = open(&server, IfMissing::Make).await;
    let (run, job) = f.leased_for("r", given::SHORT).await;
    let orders = StateOwner::Named("orders".into());
    for key in ["b", "a", "c"] {
        let value = Some(given::json(key.into()));
        f.store
            .change_state(&StateSpace::new(&run.tenant, orders.clone()), StateEdit::new(key, value, None))
            .await
            .expect("is set");
    }
    let listed = async |f: &Fixture, query: StateQuery| -> Vec<String> {
        let page = f.store.states(&StateSpace::new(&run.tenant, orders.clone()), query).await.expect("lists");
        page.values.into_iter().map(|value| value.key).collect()
    };
    let log = format!("{:?}", f.log(&run).await);
    assert_eq!(server.ask(&["EVAL", BEFORE, "0"]).trim(), "1");
    drop(f);

    let reader = open(&server, IfMissing::Refuse).await;
    assert_eq!(reader.store.check().await.expect("checks").format, 3);
    assert_eq!(format!("{:?}", reader.log(&run).await), log);
    assert_eq!(listed(&reader, StateQuery::first(9)).await, ["a", "b", "c"]);
    assert_eq!(
        listed(&reader, StateQuery { after: Some("a".to_owned()), ..StateQuery::first(1) }).await,
        ["b"]
    );
    assert_eq!(format(), "3", "who reads changes nothing");

    let f = open(&server, IfMissing::Make).await;
    assert_eq!(format(), "5");
    let keys = ["ZRANGE", "{flowline:0}:keys:scope:default/orders", "0", "-1"];
    assert_eq!(server.ask(&keys).split_whitespace().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(listed(&f, StateQuery::first(9)).await, ["a", "b", "c"]);
    f.pass(given::LATER).await;
    let swept = f.store.sweep(10).await.expect("sweeps");
    assert_eq!(swept.expired.iter().map(|lease| lease.token).collect::<Vec<_>>(), [job.token]);
    assert_eq!(server.ask(&["ZRANGE", "{flowline:0}:leases", "0", "-1"]).trim(), "default/r");
    let events = vec![NewEvent::run(EventType::Log, None), NewEvent::run(EventType::Log, None)];
    f.commit(Commit { leases: vec![given::finish(&job)], events, ..given::next(&run, 1) }).await;
    let numbers: Vec<u64> = reader.log(&run).await.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(server.ask(&["XLEN", "{flowline:0}:log:default/r"]).trim(), "2");
    assert_eq!(server.ask(&["EXISTS", "{flowline:0}:leases"]).trim(), "0");
}

#[tokio::test]
async fn a_run_that_was_trimmed_in_the_format_before_has_no_digests_and_others_get_them() {
    let server = Server::start(&[]);
    let soon = Retention { events: Duration::ZERO, runs: Duration::from_secs(86_400) };
    let ended = async |f: &Fixture, id: &str| {
        let run = f.started(id, vec![]).await;
        f.commit(given::end(&run, 1)).await;
        assert_eq!(f.store.retain(soon, 10).await.expect("retains").trimmed, 1);
        run
    };
    let f = open(&server, IfMissing::Make).await;
    let before = ended(&f, "before").await;
    drop(f);
    server.ask(&["DEL", "{flowline:0}:reports:default/before"]);
    server.ask(&["HSET", "{flowline:0}:meta", "format", "4"]);

    let f = open(&server, IfMissing::Make).await;
    assert_eq!(f.store.check().await.expect("checks").format, 5);
    let after = ended(&f, "after").await;
    assert_eq!(f.store.reports(&before).await.expect("answers"), None, "nobody knows any more");
    assert!(f.store.reports(&after).await.expect("answers").is_some());
}

#[tokio::test]
async fn a_store_of_another_format_is_refused() {
    let server = Server::start(&[]);
    drop(open(&server, IfMissing::Make).await);
    for other in ["2", "6", "x"] {
        server.ask(&["HSET", "{flowline:0}:meta", "format", other]);
        for missing in [IfMissing::Make, IfMissing::Expect, IfMissing::Refuse, IfMissing::Ignore] {
            let error = RedisStore::open(&server.url(), missing).await.expect_err("is refused");
            assert!(error.to_string().contains(&format!("format {other}")), "{missing:?}: {error}");
        }
    }
}

#[tokio::test]
async fn a_page_of_key_values_reads_no_other_keys() {
    let server = Server::start(&[]);
    let f = open(&server, IfMissing::Make).await;
    let orders = StateOwner::Named("orders".into());
    for n in 0..300 {
        let value = Some(given::json(n.into()));
        f.store
            .change_state(
                &StateSpace::new(&Tenant::default(), orders.clone()),
                StateEdit::new(&format!("k{n:03}"), value, None),
            )
            .await
            .expect("sets");
    }
    server.ask(&["CONFIG", "RESETSTAT"]);
    let query = StateQuery { after: Some("k149".to_owned()), ..StateQuery::first(10) };
    let page =
        f.store.states(&StateSpace::new(&Tenant::default(), orders.clone()), query).await.expect("lists");
    let keys: Vec<_> = page.values.into_iter().map(|value| value.key).collect();
    assert_eq!(keys, (150..160).map(|n| format!("k{n}")).collect::<Vec<_>>());
    let stats = server.ask(&["INFO", "commandstats"]);
    let calls = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        line.map_or("0", |line| line.split(['=', ',']).nth(1).unwrap()).to_owned()
    };
    assert_eq!(
        (calls("hkeys"), calls("hgetall"), calls("hget")),
        ("0".into(), "0".into(), "11".into()),
        "{stats}"
    );
}
