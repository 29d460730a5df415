//! The file itself: who may open it, what survives, what is refused.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::event::PayloadSlot;
use flowline_core::{EventType, NewEvent, RunKey, Status, Tenant, Time};
use flowline_sqlite::{OpenMode, Options, SqliteStore};
use flowline_store::conformance::given;
use flowline_store::row::{Pause, Retention};
use flowline_store::{
    Catalog, Clock, Commit, Counter, DocumentQuery, EventQuery, FeedFilter, Index, Lane, LeaseUse,
    NewDocument, NewJob, Opened, ReceiptChange, ReceiptQuery, ReceiptStatus, RunQuery, RunStore, StateOwner,
    StateQuery, StateScope, StateSpace, StoreError, Total, Transfer,
};

const START: Time = Time::from_millis(1_800_000_000_000);

fn engine(path: &Path) -> Arc<SqliteStore> {
    engine_at(path, Clock::manual(START))
}

fn engine_at(path: &Path, clock: Clock) -> Arc<SqliteStore> {
    SqliteStore::open(path, Options { clock, ..Options::default() }).expect("the engine opens")
}

fn client(path: &Path) -> Result<Arc<SqliteStore>, StoreError> {
    SqliteStore::open(path, Options { mode: OpenMode::Client, ..Options::default() })
}

async fn started(store: &SqliteStore, id: &str, add: Vec<NewJob>) -> RunKey {
    let run = given::run(id);
    store.put_definition(given::definition(&run.tenant, given::FLOW, given::HASH)).await.unwrap();
    commit(store, Commit { add, ..given::start(&run) }).await;
    run
}

async fn commit(store: &SqliteStore, commit: Commit) {
    store.commit(vec![commit]).await.unwrap().remove(0).unwrap();
}

async fn version(store: &SqliteStore, run: &RunKey) -> Option<u64> {
    store.load(std::slice::from_ref(run)).await.unwrap().remove(0).map(|found| found.row.version)
}

/// A copy of the file as a crash at this moment would leave it.
fn crash(path: &Path, to: &Path) {
    for suffix in ["", "-wal"] {
        let from = format!("{}{suffix}", path.display());
        if Path::new(&from).exists() {
            fs::copy(from, format!("{}{suffix}", to.display())).unwrap();
        }
    }
}

#[tokio::test]
async fn reopening_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/flowline.db");
    let store = engine(&path);
    let jobs =
        vec![given::step(0), NewJob { handoff: given::handoff(7), ..given::step(1) }, given::timer(0, START)];
    let run = started(&store, "r", jobs).await;
    let job = store.claim(given::claim(&[1])).await.unwrap().jobs.remove(0);
    let line = given::state_line(StateScope::Flow, "k", Some(given::json(1.into())), None);
    store
        .append(vec![given::append(&job, 0, vec![given::line(EventType::StepStarted), line])])
        .await
        .unwrap();
    store.pause_queue(&run.tenant, "default", Pause::Paused).await.unwrap();

    let before = whole(&store, &run).await;
    drop(store);
    let store = engine(&path);
    assert_eq!(whole(&store, &run).await, before);
    assert!(store.claim(given::claim(&[9])).await.unwrap().jobs.is_empty(), "the queue is still paused");
    commit(&store, given::next(&run, 1)).await;
}

/// All that can be read of a run, as text. The expiry of leases is left out: opening changes it.
async fn whole(store: &SqliteStore, run: &RunKey) -> String {
    let mut jobs = store.jobs(run).await.unwrap();
    jobs.iter_mut().for_each(|job| job.expires = None);
    format!(
        "{:?}\n{:?}\n{jobs:?}\n{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        store.load(std::slice::from_ref(run)).await.unwrap(),
        store.events(run, EventQuery::default()).await.unwrap(),
        store
            .states(&StateSpace::new(&run.tenant, StateOwner::Flow(given::FLOW.into())), StateQuery::first(9))
            .await
            .unwrap(),
        store.counters().await.unwrap(),
        store.queues(&run.tenant).await.unwrap(),
        store.definitions(&run.tenant).await.unwrap(),
        store.feed(FeedFilter::default(), "", 100).await.unwrap(),
    )
}

#[tokio::test]
async fn opening_ends_the_leases_of_the_dead_engine_at_once_as_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    let run = started(&store, "r", vec![NewJob { handoff: given::handoff(7), ..given::step(0) }]).await;
    assert!(store.sweep(10).await.unwrap().expired.is_empty());
    drop(store);

    let store = engine(&path);
    let swept = store.sweep(10).await.unwrap();
    assert_eq!(swept.expired.len(), 1);
    assert!(!swept.expired[0].released, "lost, not given back");
    let (key, token) = (swept.expired[0].key, swept.expired[0].token);
    let lost = LeaseUse::Expired { key, attempt: 1, token, lines: 0 };
    commit(&store, Commit { leases: vec![lost], ..given::next(&run, 1) }).await;
    assert!(store.jobs(&run).await.unwrap().is_empty());
}

#[tokio::test]
async fn opening_leaves_the_leases_of_remote_workers_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    let step = given::step(0);
    let lane = Lane { need: flowline_store::job::REMOTE.into(), ..step.lane.clone() };
    let run = started(&store, "r", vec![NewJob { lane, handoff: given::handoff(7), ..step }]).await;
    let held = store.jobs(&run).await.unwrap();
    drop(store);

    let store = engine(&path);
    assert!(store.sweep(10).await.unwrap().expired.is_empty());
    assert_eq!(store.jobs(&run).await.unwrap(), held);
}

#[tokio::test]
async fn a_crash_keeps_what_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("f.db"), folder.path().join("copy.db"));
    let store = engine(&path);
    let run = started(&store, "r", vec![]).await;
    for version in 1..20 {
        commit(&store, Commit { events: given::log_events(2), ..given::next(&run, version) }).await;
    }
    crash(&path, &copy);
    let found = engine(&copy);
    assert_eq!(version(&found, &run).await, Some(20));
    assert_eq!(whole(&found, &run).await, whole(&store, &run).await);
}

#[tokio::test]
async fn a_torn_log_gives_a_committed_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    let run = started(&store, "r", vec![]).await;
    for version in 1..10 {
        commit(&store, Commit { events: given::log_events(2), ..given::next(&run, version) }).await;
    }
    let mut found_versions = Vec::new();
    for cut in [1, 100, 5_000, 20_000, 60_000] {
        let copy = folder.path().join(format!("cut-{cut}.db"));
        crash(&path, &copy);
        let wal = fs::OpenOptions::new().write(true).open(format!("{}-wal", copy.display())).unwrap();
        let bytes = wal.metadata().unwrap().len();
        wal.set_len(bytes.saturating_sub(cut)).unwrap();
        let found = engine(&copy);
        let version = version(&found, &run).await.unwrap_or(0);
        if version > 0 {
            let log = found.events(&run, EventQuery::default()).await.unwrap().events;
            assert_eq!(log.len() as u64, 1 + 2 * (version - 1), "the log and the row are of one moment");
            assert!(log.iter().zip(1..).all(|(event, seq)| event.seq == seq));
        }
        assert!(found.check().await.unwrap().problems.is_empty());
        found_versions.push(version);
    }
    assert!(found_versions.is_sorted_by(|a, b| a >= b) && found_versions[0] == 9, "{found_versions:?}");
}

#[tokio::test]
async fn a_second_engine_is_refused_and_told_who_holds_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let first = engine(&path);
    let error = SqliteStore::open(&path, Options::default()).expect_err("the file is in use");
    let StoreError::InUse(text) = error else { panic!("{error:?}") };
    assert!(text.contains(&std::process::id().to_string()) && text.contains("stop it first"), "{text}");
    drop(first);
    engine(&path);
}

#[tokio::test]
async fn what_is_not_a_store_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (noise, other, newer) =
        ["noise.db", "other.db", "newer.db"].map(|name| folder.path().join(name)).into();
    fs::write(&noise, b"these are not the bytes you are looking for".repeat(100)).unwrap();
    let conn = rusqlite::Connection::open(&other).unwrap();
    conn.execute_batch("create table cells (name, value); insert into cells values ('format', 1)").unwrap();
    drop(conn);
    drop(engine(&newer));
    let conn = rusqlite::Connection::open(&newer).unwrap();
    conn.execute_batch("update cells set value = 99 where name = 'format'").unwrap();
    drop(conn);

    for path in [noise, other, newer] {
        let before = fs::read(&path).unwrap();
        for mode in [OpenMode::Engine, OpenMode::Client] {
            let error =
                SqliteStore::open(&path, Options { mode, ..Options::default() }).expect_err("refused");
            let StoreError::Incompatible(text) = error else { panic!("{error:?}") };
            assert!(text.contains("another file"), "{text}");
        }
        assert!(fs::read(&path).unwrap() == before, "{} was touched", path.display());
    }
}

#[tokio::test]
async fn a_client_reads_along_and_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let missing = client(&path).expect_err("there is no file");
    assert!(missing.to_string().contains("doesn't exist"), "{missing}");
    assert!(!path.exists());

    let store = engine(&path);
    let run = started(&store, "r", vec![]).await;
    let reader = client(&path).unwrap();
    assert_eq!(version(&reader, &run).await, Some(1));
    let mut watch = reader.watch();
    // The first look at the file only notes where it stands.
    tokio::time::sleep(Duration::from_millis(120)).await;
    commit(&store, given::next(&run, 1)).await;
    tokio::time::timeout(Duration::from_secs(5), watch.changed()).await.expect("noticed").unwrap();
    assert_eq!(version(&reader, &run).await, Some(2));
    let error = reader.commit(vec![given::next(&run, 2)]).await.expect_err("a client cannot write");
    assert!(matches!(&error, StoreError::Invalid(text) if text.contains("reading only")), "{error:?}");

    drop(store);
    let alone = client(&path).unwrap();
    assert_eq!(version(&alone, &run).await, Some(2));
}

/// Takes away what the seventh format brought.
const WITHOUT_REPORTS: &str = "drop table reports; update cells set value = 6 where name = 'format';";

/// Takes away what the sixth format brought.
const WITHOUT_CREATION: &str = "delete from cells where name = 'created_slack';
    drop index progress_ended; alter table progress drop column retain;
    create index progress_ended on progress (events_trimmed, completed_at) where completed_at is not null;
    update cells set value = 5 where name = 'format';";

/// Takes away what the fifth format brought.
const WITHOUT_PLACES: &str = "
    insert into slots (run, slot, n) select log.run, number << 3 | 4, log.n + receipts.seq - first_seq
        from receipts join log on log.run = receipts.run and receipts.seq between first_seq and first_seq + count - 1;
    insert into slots (run, slot, n) select log.run, (event.value ->> '$.data.transition') << 3, log.n + event.key
        from log join json_each(log.events) as event where event.value ->> 'type' = 'state.changed';
    alter table receipts drop column seq;
    alter table progress drop column context_seq;
    update cells set value = 4 where name = 'format';";

/// Takes away what the fourth format brought.
const WITHOUT_MACHINES: &str = "
    drop view v_runs; drop view v_receipts; drop table receipts; drop index progress_by_state;
    alter table progress drop column machine_state;
    create table counters_before (
        flow integer not null, status integer not null, n integer not null,
        primary key (flow, status)) without rowid;
    insert into counters_before select flow, status, n from counters;
    drop table counters;
    alter table counters_before rename to counters;
    create view v_runs as select 1 as placeholder;
    update cells set value = 3 where name = 'format';";

#[tokio::test]
async fn a_file_of_a_format_before_is_read_as_it_is_and_brought_up_to_date_by_an_engine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    let run = started(&store, "r", vec![]).await;
    drop(store);
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(WITHOUT_REPORTS).unwrap();
    conn.execute_batch(WITHOUT_CREATION).unwrap();
    conn.execute_batch(WITHOUT_PLACES).unwrap();
    conn.execute_batch(WITHOUT_MACHINES).unwrap();
    conn.execute_batch("drop table documents; update cells set value = 2 where name = 'format'").unwrap();
    drop(conn);

    let reader = client(&path).unwrap();
    let counted = |counters: Vec<Counter>| counters.into_iter().map(|of| (of.status, of.state, of.count));
    let running = vec![(Status::Running, None, 1)];
    assert_eq!(counted(reader.counters().await.unwrap()).collect::<Vec<_>>(), running);
    let all = RunQuery::of(run.tenant.clone());
    let listed = reader.runs(all.clone()).await.unwrap();
    assert_eq!((listed.items.len(), listed.total), (1, Some(Total::Exact(1))));
    let flow = Some(given::FLOW.to_owned());
    let of_state = RunQuery { flow, state: Some("review".to_owned()), ..all };
    assert_eq!(reader.runs(of_state.clone()).await.unwrap().total, Some(Total::Exact(0)));
    let receipts = || ReceiptQuery::of(run.tenant.clone());
    assert_eq!(reader.receipts(receipts()).await.unwrap().items, []);
    assert_eq!(reader.receipt(&run, "e").await.unwrap(), None);
    assert_eq!(reader.document("tokens", "t").await.unwrap(), None);
    assert_eq!(reader.documents("tokens", DocumentQuery::default()).await.unwrap().items, []);
    assert_eq!(reader.collections().await.unwrap(), Vec::<String>::new());
    assert_eq!(reader.check().await.unwrap().format, 2);

    let store = engine(&path);
    assert_eq!(store.check().await.unwrap().format, 7);
    assert_eq!(version(&store, &run).await, Some(1));
    assert_eq!(counted(store.counters().await.unwrap()).collect::<Vec<_>>(), running);
    let index = Index { state: Some("review".into()), ..given::index(Status::Running) };
    let event = Opened { event_id: "e".into(), name: "approve".into(), sender: None };
    let (opened, status) = (Some(event), ReceiptStatus::Pending);
    let receipt = ReceiptChange { number: 0, opened, status, worker: None, outcome: None };
    commit(&store, Commit { index, receipts: vec![receipt], ..given::next(&run, 1) }).await;
    assert_eq!(reader.runs(of_state).await.unwrap().items.len(), 1, "a reader notices");
    assert_eq!(reader.receipts(receipts()).await.unwrap().items.len(), 1, "and receipts too");
    store.put_document(NewDocument::new("tokens", "t", given::json("x".into()), None)).await.unwrap();
    assert!(reader.document("tokens", "t").await.unwrap().is_some(), "a reader notices");
}

#[tokio::test]
async fn events_and_contexts_of_machines_are_found_in_a_file_of_the_format_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let data = |text: &str| Some(given::json(serde_json::from_str(text).unwrap()));
    let receive = |number: u32| {
        let event = Opened { event_id: format!("e{number}").into(), name: "add".into(), sender: None };
        let (opened, status) = (Some(event), ReceiptStatus::Completed);
        let receipt = ReceiptChange { number, opened, status, worker: None, outcome: None };
        let received = data(&format!(r#"{{"number":{number}}}"#));
        let moved = data(&format!(r#"{{"transition":{number},"context":{{"n":{number}}}}}"#));
        let events = vec![
            NewEvent::run(EventType::EventReceived, received).at(PayloadSlot::Received(number)),
            NewEvent::run(EventType::StateChanged, moved).at(PayloadSlot::Context(number)),
        ];
        (events, vec![receipt])
    };
    let store = engine(&path);
    let run = started(&store, "r", vec![]).await;
    for number in [1, 2] {
        let (events, receipts) = receive(number);
        commit(&store, Commit { events, receipts, ..given::next(&run, number.into()) }).await;
    }
    drop(store);
    let slots = |path: &Path| -> i64 {
        let conn = rusqlite::Connection::open(path).unwrap();
        conn.query_row("select count(*) from slots", [], |row| row.get(0)).unwrap()
    };
    let before = slots(&path);
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(WITHOUT_REPORTS).unwrap();
    conn.execute_batch(WITHOUT_CREATION).unwrap();
    conn.execute_batch(WITHOUT_PLACES).unwrap();
    drop(conn);
    assert_eq!(slots(&path), before + 4, "the events and contexts of the format before have slots");

    let asked = [
        PayloadSlot::Received(1),
        PayloadSlot::Received(2),
        PayloadSlot::Context(1),
        PayloadSlot::Context(2),
    ];
    let found =
        async |store: &SqliteStore, asked: &[PayloadSlot]| store.payloads_of(&run, asked).await.unwrap();
    let reader = client(&path).unwrap();
    let there = found(&reader, &asked).await;
    assert!(there.iter().all(Option::is_some), "{there:?}");
    assert_eq!(found(&reader, &[PayloadSlot::Received(3), PayloadSlot::Context(3)]).await, [None, None]);

    let store = engine(&path);
    let (events, receipts) = receive(3);
    commit(&store, Commit { events, receipts, ..given::next(&run, 3) }).await;
    assert_eq!(found(&store, &asked).await, there);
    assert_eq!(
        found(&store, &[PayloadSlot::Received(3), PayloadSlot::Context(3)]).await,
        [data(r#"{"number":3}"#), data(r#"{"transition":3,"context":{"n":3}}"#)]
    );
    assert_eq!(slots(&path), before + 4, "and what is new has none");
    assert!(store.receipt(&run, "e1").await.unwrap().is_some());
}

#[tokio::test]
async fn retention_frees_the_space_of_a_long_run_and_never_gives_its_numbers_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let clock = Clock::manual(START);
    let store = engine_at(&path, clock.clone());
    let run = started(&store, "long", vec![]).await;
    for version in 1..=7 {
        commit(&store, Commit { events: given::log_events(1_000), ..given::next(&run, version) }).await;
    }
    commit(&store, given::end(&run, 8)).await;
    let cursor =
        store.feed(FeedFilter { from_now: true, ..FeedFilter::default() }, "", 10).await.unwrap().cursor;
    clock.advance(Duration::from_secs(40 * 86_400));
    let done = store.retain(Retention::default(), 10).await.unwrap();
    assert_eq!((done.removed, done.trimmed), (1, 0));
    assert_eq!(version(&store, &run).await, None);
    assert_eq!(store.runs(RunQuery::of(run.tenant.clone())).await.unwrap().items.len(), 0);
    drop(store);

    let conn = rusqlite::Connection::open(&path).unwrap();
    for table in ["log", "slots", "purges", "runs", "progress", "jobs", "leases", "labels", "receipts"] {
        let rows: i64 =
            conn.query_row(&format!("select count(*) from {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    drop(conn);
    let store = engine_at(&path, clock);
    let again = started(&store, "again", vec![]).await;
    let page = store.feed(FeedFilter::default(), &cursor, 10).await.unwrap();
    assert_eq!(page.events.iter().map(|event| &event.run_id).collect::<Vec<_>>(), [&again.run]);
}

#[tokio::test]
async fn people_can_read_the_views() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    let jobs = vec![given::step(0), NewJob { handoff: given::handoff(7), ..given::step(1) }];
    started(&store, "r", jobs).await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    let text = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(
        text("select run_id || ' ' || status || ' ' || created_at from v_runs"),
        "r running 2027-01-15T08:00:00.000Z"
    );
    assert_eq!(text("select type || ' ' || data from v_events"), "flow.start {\"input\":1}");
    assert_eq!(text("select name || ' ' || priority || ' ' || state from v_jobs"), "step-0 normal waiting");
    assert_eq!(text("select name || ' ' || worker from v_leases"), "step-1 me");
    for status in Status::ALL {
        let shown = text("select sql from sqlite_schema where name = 'v_runs'");
        assert!(shown.contains(&format!("'{status}'")), "{status} is not shown");
    }
}

#[tokio::test]
async fn claims_are_found_by_index_behind_a_crowd_of_delayed_and_held_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    let later = START + Duration::from_secs(3_600);
    let crowd = (0..2_000).map(|n| match n % 2 {
        0 => NewJob { due: later, ..given::step(n) },
        _ => NewJob { held: true, ..given::step(n) },
    });
    started(&store, "crowd", crowd.collect()).await;
    started(&store, "ready", vec![given::step(0)]).await;
    let claimed = store.claim(given::claim(&[1, 2])).await.unwrap();
    assert_eq!(claimed.jobs.iter().map(|job| job.run.run.as_str()).collect::<Vec<_>>(), ["ready"]);
    assert_eq!(claimed.next_due, Some(later));
}

#[tokio::test]
async fn ended_runs_of_a_file_of_the_format_before_are_kept_as_the_policy_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    let run = started(&store, "r", vec![]).await;
    commit(&store, given::end(&run, 1)).await;
    drop(store);
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(WITHOUT_REPORTS).unwrap();
    conn.execute_batch(WITHOUT_CREATION).unwrap();
    drop(conn);
    let load = async |store: &SqliteStore| {
        store.load(std::slice::from_ref(&run)).await.unwrap().remove(0).map(|found| found.row.retain)
    };
    assert_eq!(load(&client(&path).unwrap()).await, Some(None), "read as it is");
    let store = engine(&path);
    assert_eq!(load(&store).await, Some(None), "brought up to date");
    let day = Duration::from_secs(86_400);
    assert_eq!(store.retain(Retention { events: day, runs: day }, 10).await.unwrap().removed, 0);
    let soon = Retention { events: Duration::ZERO, runs: Duration::ZERO };
    assert_eq!(store.retain(soon, 10).await.unwrap().removed, 1);
}

#[tokio::test]
async fn in_a_file_of_the_format_before_runs_are_found_by_time_whatever_its_clock_did() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let store = engine(&path);
    for n in 0..20 {
        started(&store, &format!("r{n}"), vec![]).await;
    }
    drop(store);
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch(WITHOUT_REPORTS).unwrap();
    conn.execute_batch(WITHOUT_CREATION).unwrap();
    // The clock was an hour ahead for a while.
    conn.execute_batch("update runs set created_at = id * 1000 + iif(id between 5 and 9, 3600000, 0)")
        .unwrap();
    drop(conn);
    let ahead = RunQuery { since: Some(Time::from_millis(3_600_000)), ..RunQuery::of(Tenant::default()) };
    let before = RunQuery { until: Some(Time::from_millis(12_000)), ..RunQuery::of(Tenant::default()) };
    let count = async |store: &SqliteStore| {
        let [ahead, before] = [store.runs(ahead.clone()).await, store.runs(before.clone()).await];
        (ahead.unwrap().items.len(), before.unwrap().items.len())
    };
    assert_eq!(count(&client(&path).unwrap()).await, (5, 6), "read as it is");
    assert_eq!(count(&engine(&path)).await, (5, 6), "brought up to date");
}

#[tokio::test]
async fn a_run_that_was_trimmed_by_the_format_before_has_no_digests_and_others_get_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.db");
    let clock = Clock::manual(START);
    let ended = async |store: &SqliteStore, id: &str| {
        let run = started(store, id, vec![]).await;
        let done = NewEvent::step(EventType::StepCompleted, &"a".into(), 1, Some(given::json(1.into())));
        commit(store, Commit { events: vec![done], ..given::next(&run, 1) }).await;
        commit(store, given::end(&run, 2)).await;
        run
    };
    let trim = async |store: &SqliteStore| {
        clock.advance(Duration::from_secs(60));
        let policy = Retention { events: Duration::from_secs(1), runs: Duration::from_secs(86_400) };
        store.retain(policy, 10).await.unwrap().trimmed
    };
    let store = engine_at(&path, clock.clone());
    let before = ended(&store, "before").await;
    assert_eq!(trim(&store).await, 1);
    let after = ended(&store, "after").await;
    drop(store);
    rusqlite::Connection::open(&path).unwrap().execute_batch(WITHOUT_REPORTS).unwrap();
    let reader = client(&path).unwrap();
    assert_eq!(reader.check().await.unwrap().format, 6);
    assert_eq!(reader.reports(&before).await.unwrap(), None);

    let store = engine_at(&path, clock.clone());
    assert_eq!((reader.check().await.unwrap().format, trim(&store).await), (7, 1));
    assert_eq!(reader.reports(&before).await.unwrap(), None, "nobody knows any more");
    assert!(reader.reports(&after).await.unwrap().is_some());
}

#[cfg(unix)]
#[tokio::test]
async fn a_lock_is_not_written_through_a_link_nor_over_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, victim) = (folder.path().join("f.db"), folder.path().join("victim"));
    let lock = folder.path().join("f.db.lock");
    for text in ["precious", "", "12 34\nprecious"] {
        fs::write(&victim, text).unwrap();
        std::os::unix::fs::symlink(&victim, &lock).unwrap();
        let refused = SqliteStore::open(&path, Options::default()).unwrap_err();
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), text);
        fs::remove_file(&lock).unwrap();
    }
    // Nor through a link to nowhere, which would make a file there.
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &lock).unwrap();
    SqliteStore::open(&path, Options::default()).unwrap_err();
    assert!(!folder.path().join("nowhere").exists());
    fs::remove_file(&lock).unwrap();

    fs::hard_link(&victim, &lock).unwrap();
    let refused = SqliteStore::open(&path, Options::default()).unwrap_err();
    assert!(refused.to_string().contains("isn't a lock file"), "{refused}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "12 34\nprecious");
    fs::remove_file(&lock).unwrap();

    // What an engine left behind, whole or cut off by a crash, is no obstacle.
    for left in ["4711 1800000000000\n", "4711 18", ""] {
        fs::write(&lock, left).unwrap();
        drop(SqliteStore::open(&path, Options::default()).unwrap());
    }
}
