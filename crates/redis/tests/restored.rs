//! A run that was moved here lies in the server as if it had been written here.

#[path = "place/dump.rs"]
mod dump;
#[allow(dead_code)]
#[path = "place/server.rs"]
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use dump::dump;
use flowline_core::definition::Retain;
use flowline_core::event::PayloadSlot;
use flowline_core::{EventType, NewEvent, RunKey, Status, Tenant};
use flowline_redis::{IfMissing, RedisStore};
use flowline_store::conformance::{Fixture, given};
use flowline_store::row::{Repair, Retention};
use flowline_store::{
    Base, Catalog, Commit, Failure, Filling, Index, NewJob, NewRun, Opened, ReceiptChange, ReceiptQuery,
    ReceiptStatus, Restored, RestoredEvent, RestoredRun, RunQuery, StateOwner, StateQuery, StateScope,
    StateSpace, Token, Transfer,
};
use server::Server;

/// The token of every lease: a restored one gets it too.
const TOKEN: u128 = 7;

async fn open(server: &Server, prefix: &str) -> (Arc<RedisStore>, Fixture) {
    let url = format!("{}?prefix={prefix}", server.url());
    let store = RedisStore::open(&url, IfMissing::Make).await.expect("the store opens");
    (store.clone(), Fixture::waiting(store))
}

async fn started_with(f: &Fixture, id: &str, retain: Retain) {
    let new = NewRun { retain: Some(retain), ..given::new_run() };
    f.commit(Commit { base: Base::New(new), ..given::start(&given::run(id)) }).await;
}

/// One of each, also of those that their definition says how long to keep: leased, held, waiting, due later, a timer, failed, with labels and state, long, trimmed.
async fn fill(f: &Fixture) {
    let ended = f.started("trimmed", vec![given::step(0)]).await;
    f.commit(given::end(&ended, 1)).await;
    let (soon, late) = (Retain::events(Duration::from_millis(1)), Retain::runs(given::TTL));
    started_with(f, "kept-trimmed", soon).await;
    f.commit(given::end(&given::run("kept-trimmed"), 1)).await;
    f.pass(Duration::from_millis(20)).await;
    let policy = Retention { events: Duration::from_millis(1), runs: given::TTL };
    assert_eq!(f.store.retain(policy, 10).await.expect("retains").trimmed, 2);
    started_with(f, "kept-live", late).await;
    f.pass(Duration::from_millis(1)).await;
    started_with(f, "kept-ended", late).await;
    f.pass(Duration::from_millis(1)).await;
    f.commit(given::end(&given::run("kept-ended"), 1)).await;

    let run = f.started("leased", vec![given::step(0)]).await;
    let job = f.claim(given::claim(&[TOKEN])).await.jobs.remove(0);
    let value = |text: &str| Some(given::json(text.into()));
    let lines = vec![
        given::line(EventType::StepStarted),
        given::state_line(StateScope::Run, "a key", value("x"), Some(given::TTL)),
        given::state_line(StateScope::Flow, "f", value("y"), None),
        given::state_line("orders".into(), "o", value("z"), Some(given::TTL)),
        given::log_line(given::STRANGE[4]),
    ];
    f.append(given::append(&job, 0, lines)).await.expect("appends");
    f.pass(Duration::from_millis(1)).await;
    f.commit(Commit {
        leases: vec![given::keep(&job, 1)],
        events: given::log_events(1),
        ..given::next(&run, 1)
    })
    .await;

    let labels = given::STRANGE.iter().map(|text| ((*text).to_owned(), (*text).to_owned()));
    let new = NewRun {
        labels: labels.collect::<BTreeMap<_, _>>(),
        idempotency_key: Some("key".into()),
        retry_of: Some(run.run),
        ..given::new_run()
    };
    let failed = given::run("failed");
    f.commit(Commit { base: Base::New(new), ..given::start(&failed) }).await;
    let failure = Some(Failure { error: given::STRANGE[0].to_owned(), step: Some("step-0".into()) });
    let index =
        Index { completed_steps: 2, failed_steps: 1, retries: 3, failure, ..given::index(Status::Failed) };
    let events = vec![NewEvent::run(EventType::FlowFailed, None)];
    f.pass(Duration::from_millis(1)).await;
    f.commit(Commit { index, events, state: vec![0, 10, 255, 32], ..given::next(&failed, 1) }).await;

    let due = f.now().await + given::TTL;
    let jobs = vec![
        NewJob { held: true, ..given::step(0) },
        given::step(1),
        NewJob { due, lane: given::lane("a queue", "command"), ..given::step(2) },
    ];
    f.started("waiting", jobs).await;
    f.started("timed", vec![given::timer(1, due)]).await;

    let long = f.started("long", vec![]).await;
    for version in 1..=20 {
        let slots = (2 + (version as u32 - 1) * 7..).map(PayloadSlot::Emit);
        let events =
            given::log_events(7).into_iter().zip(slots).map(|(event, slot)| event.at(slot)).collect();
        // Commits of one date would be one part of the feed over there.
        f.pass(Duration::from_millis(1 + version % 3)).await;
        f.commit(Commit { events, ..given::next(&long, version) }).await;
    }

    let machine = f.started("machine", vec![]).await;
    let changes = |status: ReceiptStatus, opened: bool| {
        let change = |(n, text): (usize, &&str)| ReceiptChange {
            number: n as u32,
            opened: opened.then(|| Opened {
                event_id: Arc::from(*text),
                name: Arc::from(*text),
                sender: (n % 2 == 0).then(|| given::json((*text).into())),
            }),
            status,
            worker: (n % 3 > 0).then(|| Arc::from(if n == 1 { "-" } else { *text })),
            outcome: (n % 2 == 1).then(|| given::json((*text).into())),
        };
        given::STRANGE.iter().enumerate().map(change).collect::<Vec<_>>()
    };
    let at = |state: &str| Index { state: Some(state.into()), ..given::index(Status::Waiting) };
    let receipts = changes(ReceiptStatus::Pending, true);
    f.commit(Commit { index: at("draft"), receipts, ..given::next(&machine, 1) }).await;
    f.pass(Duration::from_millis(2)).await;
    let receipts = changes(ReceiptStatus::Completed, false).split_off(4);
    f.commit(Commit { index: at("in.review"), receipts, ..given::next(&machine, 2) }).await;
}

/// What a payload of the runs above is addressed by.
fn slot(run: &RunKey, seq: u64) -> Option<PayloadSlot> {
    (run.run.as_str() == "long" && seq > 1).then_some(PayloadSlot::Emit(seq as u32))
}

async fn carry(from: &Fixture, to: &RedisStore) {
    let tenant = Tenant::default();
    let mut parts: Vec<Restored> =
        from.store.definitions(&tenant).await.expect("lists").into_iter().map(Restored::Definition).collect();
    let mut owners = vec![StateOwner::Flow(given::FLOW.into()), StateOwner::Named("orders".into())];
    let page = from.store.runs(RunQuery { limit: 100, ..RunQuery::of(tenant.clone()) }).await.expect("lists");
    for row in page.items.into_iter().rev() {
        let run = row.key();
        owners.push(StateOwner::Run(run.run.clone()));
        let snapshot = from.store.load(std::slice::from_ref(&run)).await.expect("loads").remove(0);
        let state = snapshot.expect("is there").state;
        let of_run = ReceiptQuery { run: Some(run.run.clone()), ..ReceiptQuery::of(tenant.clone()) };
        let receipts = from.store.receipts(of_run).await.expect("lists").items;
        let (log, jobs) = (from.log(&run).await, from.jobs(&run).await);
        let last = log.last().map(|event| event.ts).or(row.completed_at).unwrap_or(row.created_at);
        let reports = from.store.reports(&run).await.expect("tells");
        let restored = RestoredRun { row, state, last, jobs, token: Token(TOKEN), reports };
        parts.push(Restored::Run(Box::new(restored)));
        parts.push(Restored::Receipts { run: run.clone(), receipts });
        let events = log.into_iter().map(|event| RestoredEvent { slot: slot(&run, event.seq), event });
        parts.push(Restored::Events { events: events.collect(), run });
    }
    for owner in owners {
        let space = StateSpace::new(&tenant, owner);
        let page = from.store.states(&space, StateQuery::first(1_000)).await;
        let values = page.expect("tells its values").values;
        parts.push(Restored::Values { space, values });
    }
    assert_eq!(to.begin_filling().await, Ok(Filling::Begun));
    to.restore(parts).await.expect("restores");
    to.end_filling().await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_store_holds_byte_for_byte_what_commits_left() {
    let server = Server::start(&[]);
    let (_, from) = open(&server, "from").await;
    fill(&from).await;
    let (to, _) = open(&server, "to").await;
    carry(&from, &to).await;
    let (there, here) = (dump(&server, "from"), dump(&server, "to"));
    assert!(there.contains("marks:default/long"), "{there}");
    // A state that was left is known over there to whoever moved through it, and to nobody here.
    let there = there.replace("default/fulfil/draft | ", "");
    assert!(there.contains("receipts:default/machine"), "{there}");
    for (there, here) in there.split("\n\n").zip(here.split("\n\n")) {
        assert_eq!(here, there);
    }
    assert_eq!(here, there);
}

/// Empties every list of runs, and enters into those that runs are found by one that is not there and one that has ended.
const DAMAGE: &str = r"
local head = '{' .. ARGV[1] .. ':0}:'
for _, kind in ipairs({ 'by:*', 'label:*', 'ended*', 'trimmed*', 'flows', 'states', 'retains' }) do
  for _, key in ipairs(redis.call('KEYS', head .. kind)) do redis.call('DEL', key) end
end
redis.call('ZADD', head .. 'by:default:running', 1, 'nobody', 2, 'failed')
redis.call('ZADD', head .. 'by:default:running:fulfil', 1, 'nobody')
redis.call('ZADD', head .. 'label:default:a=b', 1, 'failed')
redis.call('ZADD', head .. 'ended', 1, 'default/nobody', 1, 'default/long')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_puts_runs_back_into_their_lists_and_takes_out_what_does_not_belong_there() {
    let server = Server::start(&[]);
    let (store, f) = open(&server, "lists").await;
    fill(&f).await;
    let listed = async || {
        let query = RunQuery { limit: 100, ..RunQuery::of(Tenant::default()) };
        f.store.runs(query).await.expect("lists").items
    };
    let before = (dump(&server, "lists"), listed().await);
    server.ask(&["EVAL", DAMAGE, "0", "lists"]);
    assert_ne!(dump(&server, "lists"), before.0);
    let unlisted = async || {
        let found = f.store.unlisted(&Tenant::default()).await.expect("looks");
        found.into_iter().map(|row| row.run_id.to_string()).collect::<BTreeSet<String>>()
    };
    let all = || before.1.iter().map(|row| row.run_id.to_string()).collect();
    assert_eq!(unlisted().await, all(), "those in a list of another status too");
    let repair = |tenant: &str| Repair::Counters { tenant: given::tenant(tenant) };
    store.repair(repair("nobody")).await.expect("mends");
    assert_eq!(listed().await.len(), 1, "the runs of another tenant are left alone");
    store.repair(repair("default")).await.expect("mends");
    assert_eq!(listed().await, before.1);
    assert!(unlisted().await.is_empty());
    // The flow still knows a state that runs have left.
    let there = before.0.replace("default/fulfil/draft | ", "");
    for (there, here) in there.split("\n\n").zip(dump(&server, "lists").split("\n\n")) {
        assert_eq!(here, there);
    }
}
