//! A server that is wrong, full, forgetful, or another than it was.

#[path = "place/server.rs"]
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use flowline_core::RunKey;
use flowline_redis::{IfMissing, RedisStore};
use flowline_store::conformance::{Fixture, given};
use flowline_store::{Catalog, Commit, CommitError, RunStore, StoreError};
use server::Server;

async fn open(server: &Server) -> (Arc<RedisStore>, Fixture) {
    let store = RedisStore::open(&server.url(), IfMissing::Make).await.expect("the store opens");
    (store.clone(), Fixture::waiting(store))
}

/// Asks until the answer is not that the store is away.
async fn commit(store: &RedisStore, commit: &Commit) -> Result<(), StoreError> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match store.commit(vec![commit.clone()]).await {
            Err(StoreError::Unavailable(_)) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            answer => return answer.map(drop),
        }
    }
}

/// That everything but the store's being away is refused, as the store went back in time.
async fn halted(store: &RedisStore, run: &RunKey) {
    let error = commit(store, &given::next(run, 1)).await.expect_err("the commit is refused");
    assert!(matches!(&error, StoreError::WentBack(why) if why.contains("flowline verify")), "{error}");
    assert!(!error.is_transient() && error.nothing_written());
    let asked = [
        store.load(std::slice::from_ref(run)).await.map(drop),
        store.sweep(10).await.map(drop),
        store.claim(given::claim(&[1])).await.map(drop),
        store.check().await.map(drop),
    ];
    for answer in asked {
        assert!(matches!(answer, Err(StoreError::WentBack(_))), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_file_is_noticed_by_who_saw_the_newer_one_and_writes_halt() {
    let mut server = Server::start(&[]);
    let (store, f) = open(&server).await;
    let run = f.started("r", vec![]).await;
    let copy = tempfile::tempdir().expect("a folder");
    server::copy(&server.files(), copy.path());
    let later = f.started("later", vec![]).await;
    server.kill();
    std::fs::remove_dir_all(server.files()).expect("removes");
    server::copy(copy.path(), &server.files());
    server.again();

    halted(&store, &run).await;
    let (fresh, g) = open(&server).await;
    assert_eq!(g.row(&run).await.version, 1, "nothing was written on top");
    assert_eq!(g.try_row(&later).await, None);
    fresh
        .commit(vec![given::next(&run, 1)])
        .await
        .expect("who starts anew accepts what is there")
        .remove(0)
        .expect("lands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_file_is_noticed_however_much_others_have_written_since() {
    let mut server = Server::start(&[]);
    let (store, f) = open(&server).await;
    let run = f.started("r", vec![]).await;
    let (idle, _) = open(&server).await;
    idle.sweep(10).await.expect("sweeps");
    let copy = tempfile::tempdir().expect("a folder");
    server::copy(&server.files(), copy.path());
    f.started("later", vec![]).await;
    idle.sweep(10).await.expect("sweeps, and leaves a mark");
    server.kill();
    std::fs::remove_dir_all(server.files()).expect("removes");
    server::copy(copy.path(), &server.files());
    server.again();
    let (_, g) = open(&server).await;
    for n in 0..20 {
        g.started(&format!("new-{n}"), vec![]).await;
    }
    halted(&store, &run).await;
    halted(&idle, &run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_of_processes_long_gone_go_with_retention() {
    let server = Server::start(&[]);
    let (store, f) = open(&server).await;
    f.started("r", vec![]).await;
    server.ask(&["HSET", "{flowline:0}:meta", "w:gone", "7 1000000000000"]);
    store.retain(flowline_store::row::Retention::default(), 10).await.expect("retains");
    let fields = server.ask(&["HKEYS", "{flowline:0}:meta"]);
    assert!(!fields.contains("w:gone"), "{fields}");
    assert_eq!(fields.matches("w:").count(), 1, "its own stays: {fields}");
    f.started("s", vec![]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_silent_is_reported_within_five_seconds() {
    let server = Server::start(&[]);
    let (store, f) = open(&server).await;
    let run = f.started("r", vec![]).await;
    server.signal("-STOP");
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..12 {
        let (store, run) = (store.clone(), run.clone());
        asked.spawn(async move {
            tokio::time::sleep(Duration::from_millis(n * 20)).await;
            let began = Instant::now();
            let answer = match n % 3 {
                0 => store.commit(vec![given::next(&run, 1)]).await.map(drop),
                1 => store.load(std::slice::from_ref(&run)).await.map(drop),
                _ => store.claim(given::claim(&[1])).await.map(drop),
            };
            (answer, began.elapsed())
        });
    }
    while let Some(done) = asked.join_next().await {
        let (answer, waited) = done.expect("no panic");
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
        assert!(waited < Duration::from_secs(5), "{waited:?}");
    }
    server.signal("-CONT");
    let until = Instant::now() + Duration::from_secs(10);
    while store.load(std::slice::from_ref(&run)).await.is_err() {
        assert!(Instant::now() < until, "it is back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_server_is_not_taken_for_a_new_one() {
    let server = Server::start(&[]);
    let (store, f) = open(&server).await;
    let run = f.started("r", vec![given::step(0)]).await;
    assert_eq!(server.ask(&["flushall"]), "OK");
    // What every engine does each second.
    assert!(matches!(store.sweep(10).await, Err(StoreError::WentBack(_))));
    halted(&store, &run).await;
    assert_eq!(server.ask(&["dbsize"]), "0", "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_that_lost_nothing_goes_on() {
    let mut server = Server::start(&[]);
    let (store, f) = open(&server).await;
    let run = f.started("r", vec![]).await;
    for version in 1..4 {
        server.kill();
        server.again();
        commit(&store, &given::next(&run, version)).await.expect("the store is back");
        assert_eq!(f.row(&run).await.version, version + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_learned_again() {
    let server = Server::start(&[]);
    let (_, f) = open(&server).await;
    let (run, job) = f.leased("r").await;
    assert_eq!(server.ask(&["script", "flush"]), "OK");
    f.commit(Commit { leases: vec![given::finish(&job)], ..given::next(&run, 1) }).await;
    assert_eq!(f.row(&run).await.version, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_a_run_keep_their_order_while_scripts_are_learned_again() {
    let server = Server::start(&[]);
    let (store, f) = open(&server).await;
    let (_, job) = f.leased("r").await;
    for round in 0..100 {
        assert_eq!(server.ask(&["script", "flush"]), "OK");
        let append = |from| given::append(&job, from, vec![given::log_line("a line")]);
        let answers = store.append(vec![append(2 * round), append(2 * round + 1)]).await.expect("answers");
        assert_eq!(answers, [Ok(2 * round + 1), Ok(2 * round + 2)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_whole_commits_and_goes_on_when_there_is_room() {
    let server = Server::start(&[]);
    let (store, f) = open(&server).await;
    let run = f.started("r", vec![]).await;
    let next = Commit { events: given::log_events(3), add: vec![given::step(0)], ..given::next(&run, 1) };
    assert_eq!(server.ask(&["config", "set", "maxmemory", "1"]), "OK");
    let error = store.commit(vec![next.clone()]).await.expect_err("is refused");
    assert!(matches!(&error, StoreError::CannotWrite(why) if why.contains("maxmemory")), "{error}");
    assert_eq!((f.row(&run).await.version, f.log(&run).await.len(), f.jobs(&run).await.len()), (1, 1, 0));
    assert_eq!(server.ask(&["config", "set", "maxmemory", "0"]), "OK");
    f.commit(next).await;
    assert_eq!((f.log(&run).await.len(), f.jobs(&run).await.len()), (4, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_sent_again_after_a_lost_answer_is_a_conflict_and_writes_nothing() {
    let server = Server::start(&[]);
    let (_, f) = open(&server).await;
    let run = f.started("r", vec![]).await;
    let next = Commit { events: given::log_events(2), ..given::next(&run, 1) };
    f.commit(next.clone()).await;
    assert_eq!(f.refused(next).await, CommitError::Conflict { expected: 1, found: Some(2) });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_is_refused_when_opened_and_when_checked() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let error = RedisStore::open(&server.url(), IfMissing::Make).await.expect_err("is refused");
    assert!(matches!(&error, StoreError::Incompatible(why) if why.contains("noeviction")), "{error}");
    assert_eq!(server.ask(&["config", "set", "maxmemory-policy", "noeviction"]), "OK");
    let (store, _) = open(&server).await;
    assert_eq!(store.check().await.expect("checks").problems, Vec::<String>::new());
    assert_eq!(server.ask(&["config", "set", "maxmemory-policy", "volatile-lru"]), "OK");
    let problems = store.check().await.expect("checks").problems;
    assert!(problems.iter().any(|problem| problem.contains("volatile-lru")), "{problems:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_file_is_told_what_it_can_lose() {
    let server = Server::start(&["--appendonly", "no"]);
    let (store, _) = open(&server).await;
    let health = store.check().await.expect("checks");
    assert!(
        health.problems.iter().any(|problem| problem.contains("appendonly yes")),
        "{:?}",
        health.problems
    );
    assert_eq!(server.ask(&["config", "set", "appendonly", "yes"]), "OK");
    assert_eq!(server.ask(&["config", "set", "appendfsync", "everysec"]), "OK");
    let durability = store.check().await.expect("checks").durability;
    assert!(durability.contains("second or two"), "{durability}");
    assert_eq!(server.ask(&["acl", "setuser", "default", "-config"]), "OK");
    let durability = store.check().await.expect("checks").durability;
    assert!(durability.contains("doesn't say how often"), "{durability}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_an_address_is_told_soon_and_clearly() {
    let server = Server::start(&["--requirepass", "secret"]);
    let port = server.port;
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let silent = free.local_addr().expect("an address").port();
    let nobody = {
        std::net::TcpListener::bind(("127.0.0.1", 0))
            .expect("a port")
            .local_addr()
            .expect("an address")
            .port()
    };
    for (url, sign) in [
        (format!("redis://:wrong@127.0.0.1:{port}"), "password"),
        (format!("redis://127.0.0.1:{port}"), "password"),
        (format!("redis://:secret@127.0.0.1:{port}/99"), "database"),
        (format!("redis://127.0.0.1:{nobody}"), "nothing is listening there"),
        (format!("redis://127.0.0.1:{silent}"), "TLS"),
        (format!("rediss://:secret@127.0.0.1:{port}"), "if not, write redis://"),
        ("redis://127.0.0.1:1700x".to_owned(), "an invalid port"),
        (format!("redis+cluster://:secret@127.0.0.1:{port}"), "cluster"),
    ] {
        let began = Instant::now();
        let error = RedisStore::open(&url, IfMissing::Make).await.expect_err("is refused").to_string();
        assert!(error.contains(sign) && !error.contains(":secret"), "{url}: {error}");
        assert!(began.elapsed() < Duration::from_secs(5), "{url} took {:?}", began.elapsed());
    }
    RedisStore::open(&format!("redis://:secret@127.0.0.1:{port}"), IfMissing::Make)
        .await
        .expect("the right one opens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_looks_makes_no_store() {
    let server = Server::start(&[]);
    let error = RedisStore::open(&server.url(), IfMissing::Refuse).await.expect_err("there is none");
    assert!(error.to_string().contains("there is no store under the prefix"), "{error}");
    let looked = RedisStore::open(&server.url(), IfMissing::Ignore).await.expect("looks");
    let health = looked.check().await.expect("checks");
    assert_eq!((health.format, health.unwritable, health.problems), (0, None, Vec::new()));
    assert_eq!(server.ask(&["dbsize"]), "0");
    open(&server).await;
    RedisStore::open(&server.url(), IfMissing::Refuse).await.expect("there is one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_for_readers_alone() {
    let server = Server::start(&[]);
    let (_, f) = open(&server).await;
    let run = f.started("r", vec![]).await;
    let replica = server.replica();
    for writes in [IfMissing::Make, IfMissing::Expect, IfMissing::Receive] {
        let error = RedisStore::open(&replica.url(), writes).await.expect_err("is refused");
        let told = matches!(&error, StoreError::CannotWrite(why)
            if why.contains(&replica.port.to_string()) && why.contains("name the primary"));
        assert!(told, "{error}");
    }
    let reader = RedisStore::open(&replica.url(), IfMissing::Refuse).await.expect("a reader opens it");
    assert_eq!(Fixture::waiting(reader.clone()).row(&run).await.version, 1);
    let health = reader.check().await.expect("checks");
    assert!(health.unwritable.is_some_and(|why| why.contains("name the primary")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_rights_is_told_so() {
    let server = Server::start(&[]);
    let run = open(&server).await.1.started("r", vec![]).await;
    assert_eq!(
        server.ask(&["acl", "setuser", "weak", "on", ">pw", "~*", "&*", "+@all", "-select", "-hset"]),
        "OK"
    );
    let weak = format!("redis://weak:pw@127.0.0.1:{}", server.port);
    let error = RedisStore::open(&format!("{weak}/1"), IfMissing::Make).await.expect_err("no SELECT");
    let StoreError::Incompatible(text) = &error else { panic!("{error}") };
    assert!(
        text.contains("'select'") && text.contains("docs/redis.md") && !text.contains("does not have"),
        "{text}"
    );
    let store = RedisStore::open(&weak, IfMissing::Refuse).await.expect("opens");
    let error = store.commit(vec![given::next(&run, 1)]).await.expect_err("no HSET");
    assert!(matches!(&error, StoreError::CannotWrite(why) if why.contains("docs/redis.md")), "{error}");
}
