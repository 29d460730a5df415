//! Documents as the tables have them: in a schema of the format before, by index, and gone for good.
//!
//! Needs the server that `cargo xtask test` starts and names in `FLOWLINE_TEST_POSTGRES_URL`.

#[allow(dead_code)]
mod place;

use std::time::Duration;

use flowline_core::Status;
use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::conformance::given;
use flowline_store::row::Retention;
use flowline_store::{Catalog, Commit, Counter, Index, NewDocument, RunStore, StoreError};

/// Takes away what the fifth format brought, and the sixth.
const WITHOUT_TURNS: &str = "drop table reports;
    alter table definitions drop column turn; drop sequence definition_turns;
    drop index flow_runs_ended; alter table flow_runs drop column retain;
    create index flow_runs_ended on flow_runs (events_trimmed, completed_at, id) where completed_at is not null";

/// Takes away what the third format brought, and the fourth.
const WITHOUT_MACHINES: &str = "
    drop sequence job_rewinds; drop index flow_runs_ended;
    create index flow_runs_ended on flow_runs (completed_at, id) where completed_at is not null;
    alter table flow_runs set (fillfactor = 60);
    drop view v_runs; drop view v_receipts; drop table receipts; drop table state_counters; drop table writers;
    drop function unbroken;
    alter table flow_runs drop column machine_state;
    create view v_runs as
        select tenant, run_id, flow_name, status, to_timestamp(created_at / 1000.0) as created_at,
            to_timestamp(started_at / 1000.0) as started_at, to_timestamp(completed_at / 1000.0) as completed_at,
            step_count, completed_steps, failed_steps, retries, failure_error, failure_step,
            array(select data::json ->> 'name' from events e where e.run = r.id and e.type = 'emit' order by seq)
                as emitted_events,
            labels::json, definition, idempotency_key, retry_of, version, seq as events, events_trimmed, id
        from flow_runs r";

/// Puts a schema back to an earlier format, by taking away what came after it.
async fn put_back(schema: &place::Schema, undo: &str, format: u32) -> tokio_postgres::Client {
    let client = place::connect(&schema.url).await;
    let name = &schema.name;
    let back =
        format!("set search_path to {name}; {undo}; update cells set value = {format} where name = 'format'");
    client.batch_execute(&back).await.expect("goes back");
    client
}

#[tokio::test]
async fn runs_of_the_format_before_are_counted_and_go_on() {
    let (url, schema) = place::fresh();
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let run = given::run("r");
    let define = given::definition(&run.tenant, given::FLOW, given::HASH);
    store.put_definition(define).await.expect("is stored");
    let land = async |store: &PostgresStore, commit: Commit| {
        store.commit(vec![commit]).await.expect("answers").remove(0).expect("lands")
    };
    land(&store, given::start(&run)).await;
    drop(store);
    let client = put_back(&schema, &format!("{WITHOUT_TURNS}; {WITHOUT_MACHINES}"), 2).await;

    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let shown = |counters: Vec<Counter>| {
        counters.into_iter().map(|of| (of.status, of.state, of.count)).collect::<Vec<_>>()
    };
    assert_eq!(shown(store.counters().await.expect("counts")), [(Status::Running, None, 1)]);
    let index = Index { state: Some("review".into()), ..given::index(Status::Waiting) };
    land(&store, Commit { index, ..given::next(&run, 1) }).await;
    let counted = shown(store.counters().await.expect("counts"));
    assert_eq!(counted, [(Status::Waiting, Some("review".into()), 1)]);
    let row = client.query_one("select state from v_runs", &[]).await.expect("reads");
    assert_eq!(row.get::<_, &str>(0), "review");
}

#[tokio::test]
async fn a_schema_of_the_format_before_is_brought_up_to_date_by_an_engine_alone() {
    let (url, schema) = place::fresh();
    drop(PostgresStore::open(&url, IfMissing::Make).await.expect("opens"));
    put_back(&schema, &format!("drop table documents; {WITHOUT_TURNS}; {WITHOUT_MACHINES}"), 1).await;

    let error = PostgresStore::open(&url, IfMissing::Refuse).await.expect_err("refused");
    let StoreError::Unavailable(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("format 1") && text.contains("flowline work"), "{text}");
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    assert_eq!(store.check().await.expect("answers").format, 6);
    store
        .put_document(NewDocument::new("tokens", "t", given::json("x".into()), None))
        .await
        .expect("is stored");
    assert!(store.document("tokens", "t").await.expect("answers").is_some());
}

#[tokio::test]
async fn the_newest_definition_of_the_format_before_is_the_latest_until_another_is_made_it() {
    let (url, schema) = place::fresh();
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let tenant = flowline_core::Tenant::default();
    for hash in ["h1", "h2", "h3"] {
        store.put_definition(given::definition(&tenant, "x", hash)).await.expect("is stored");
    }
    drop(store);
    put_back(&schema, WITHOUT_TURNS, 4).await;

    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let latest =
        async || store.latest(&tenant, "x").await.expect("answers").map(|found| found.hash.to_string());
    assert_eq!(latest().await.as_deref(), Some("h3"));
    assert!(store.set_latest(&tenant, "x", Some("h1")).await.expect("answers"));
    assert_eq!(latest().await.as_deref(), Some("h1"));
    store.put_definition(given::definition(&tenant, "x", "h4")).await.expect("is stored");
    assert_eq!(latest().await.as_deref(), Some("h4"));
}

#[tokio::test]
async fn ended_runs_of_the_format_before_are_kept_as_the_policy_says() {
    let (url, schema) = place::fresh();
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let run = given::run("r");
    let define = given::definition(&run.tenant, given::FLOW, given::HASH);
    store.put_definition(define).await.expect("is stored");
    for commit in [given::start(&run), given::end(&run, 1)] {
        store.commit(vec![commit]).await.expect("answers").remove(0).expect("lands");
    }
    drop(store);
    put_back(&schema, WITHOUT_TURNS, 4).await;

    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let found = store.load(std::slice::from_ref(&run)).await.expect("loads").remove(0);
    assert_eq!(found.map(|found| found.row.retain), Some(None));
    assert_eq!(store.retain(Retention::default(), 10).await.expect("retains").removed, 0);
    let soon = Retention { events: Duration::ZERO, runs: Duration::ZERO };
    assert_eq!(store.retain(soon, 10).await.expect("retains").removed, 1);
}

#[tokio::test]
async fn a_run_that_was_trimmed_in_the_format_before_has_no_digests_and_others_get_them() {
    let (url, schema) = place::fresh();
    let soon = Retention { events: Duration::ZERO, runs: Duration::from_secs(86_400) };
    let ended = async |store: &PostgresStore, id: &str| {
        let run = given::run(id);
        let define = given::definition(&run.tenant, given::FLOW, given::HASH);
        store.put_definition(define).await.expect("is stored");
        for commit in [given::start(&run), given::end(&run, 1)] {
            store.commit(vec![commit]).await.expect("answers").remove(0).expect("lands");
        }
        run
    };
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let before = ended(&store, "before").await;
    assert_eq!(store.retain(soon, 10).await.expect("retains").trimmed, 1);
    drop(store);
    put_back(&schema, "drop table reports", 5).await;

    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let after = ended(&store, "after").await;
    assert_eq!(store.retain(soon, 10).await.expect("retains").trimmed, 1);
    assert_eq!(store.reports(&before).await.expect("answers"), None, "nobody knows any more");
    assert!(store.reports(&after).await.expect("answers").is_some());
}

#[tokio::test]
async fn retention_leaves_no_row_of_a_document_past_its_time() {
    let (store, schema) = place::open().await;
    let put = async |id: &str, ttl| {
        store
            .put_document(NewDocument::new("audit", id, given::json("x".into()), ttl))
            .await
            .expect("is stored");
    };
    put("over", Some(Duration::ZERO)).await;
    put("again", Some(Duration::ZERO)).await;
    put("again", None).await;
    store.retain(Retention::default(), 10).await.expect("retains");
    let client = place::connect(&schema.url).await;
    let rows = client.query(&format!("select id from {}.documents", schema.name), &[]).await.expect("reads");
    let left: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["again"]);
}
