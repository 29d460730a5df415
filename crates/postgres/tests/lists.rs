//! Lists of runs and of key-values, and the runs that retention looks for, are read from the index that was made for them,
//! however the runs are spread over statuses and flows.

#[allow(dead_code)]
mod place;

use std::time::Duration;

use flowline_core::{Status, Tenant, Time};
use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::row::{Retained, Retention};
use flowline_store::{Catalog, RunQuery, RunStore, StateOwner, StateQuery, StateSpace, Total};

/// A young store in which all has gone well: nearly every run has completed, and statistics say so.
const FILL: &str = "
    insert into flow_runs (id, created_at, completed_at, version, seq, ms, step_count, completed_steps, failed_steps, retries,
        tenant, run_id, flow_name, status, definition, state, input_digest)
    select n, n, n, 1, 1, n, 1, 1, 0, 0, 't', 'run-' || n, 'flow', 'completed', 'hash', '', ''
    from generate_series(1, 20000) n";

#[tokio::test]
async fn runs_of_a_rare_status_are_not_looked_for_among_all_others() {
    let (url, schema) = place::fresh();
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let client = place::connect(&schema.url).await;
    client.batch_execute(&format!("set search_path to {}; {FILL}", schema.name)).await.expect("fills");
    client
        .batch_execute("analyze flow_runs; update flow_runs set status = 'failed' where id = 7")
        .await
        .expect("is done");
    let tenant = Tenant::new("t").expect("a name");
    let (failed, flow) = (Some(Status::Failed), Some("flow".to_owned()));
    for query in [
        RunQuery { status: failed, ..RunQuery::of(tenant.clone()) },
        RunQuery { status: failed, flow, ..RunQuery::of(tenant) },
    ] {
        let page = store.runs(query).await.expect("lists");
        assert_eq!(page.items.iter().map(|row| row.run_id.as_str()).collect::<Vec<_>>(), ["run-7"]);
    }
    // What a connection has read is counted when it ends, at the latest.
    drop(store);
    let sql = "select indexrelname, idx_scan, idx_tup_read from pg_stat_user_indexes
        where schemaname = current_schema() and relname = 'flow_runs'";
    let mut scans = Vec::new();
    for _ in 0..1_000 {
        let rows = client.query(sql, &[]).await.expect("answers");
        scans =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect::<Vec<(String, i64, i64)>>();
        let is_used = |name: &str| scans.iter().any(|(index, scans, _)| index == name && *scans > 0);
        if is_used("flow_runs_by_status") && is_used("flow_runs_by_flow_status") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let most = scans.iter().map(|(_, _, read)| *read).max();
    assert!(most.is_some_and(|read| (1..100).contains(&read)), "{scans:?}");
}

#[tokio::test]
async fn runs_of_a_stretch_of_time_are_not_looked_for_among_all_others() {
    const TEN_MINUTES: i64 = 600_000;
    let (url, schema) = place::fresh();
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let client = place::connect(&schema.url).await;
    let apart = FILL.replace("select n, n, n,", "select n, n * 600000::bigint, n,");
    client.batch_execute(&format!("set search_path to {}; {apart}", schema.name)).await.expect("fills");
    client.batch_execute("analyze flow_runs").await.expect("is done");
    let at = |n: i64| Some(Time::from_millis(n * TEN_MINUTES));
    let all = RunQuery { limit: 5, ..RunQuery::of(Tenant::new("t").expect("a name")) };
    let completed = RunQuery { status: Some(Status::Completed), ..all.clone() };
    let mut asked = 0;
    for all in [all, completed.clone(), RunQuery { flow: Some("flow".to_owned()), ..completed }] {
        for (since, until, ids) in [
            (at(19_999), None, &[20_000, 19_999][..]),
            (None, at(3), &[2, 1]),
            (at(10_000), at(10_002), &[10_001, 10_000]),
            (at(20_001), None, &[]),
        ] {
            let page = store.runs(RunQuery { since, until, ..all.clone() }).await.expect("lists");
            let expected: Vec<String> = ids.iter().map(|n| format!("run-{n}")).collect();
            assert_eq!(page.items.iter().map(|row| row.run_id.to_string()).collect::<Vec<_>>(), expected);
            assert_eq!(page.total, Some(Total::Exact(ids.len() as u64)));
            asked += 1;
        }
    }
    drop(store);
    let sql = "select coalesce(sum(idx_tup_read), 0)::bigint, coalesce(sum(idx_scan), 0)::bigint from pg_stat_user_indexes
        where schemaname = current_schema() and relname = 'flow_runs'";
    let mut read = (0, 0);
    // What a connection has read is counted when it ends, at the latest.
    for _ in 0..1_000 {
        let row = client.query_one(sql, &[]).await.expect("answers");
        read = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        if read.1 >= asked * 15 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(read.1 >= asked * 15 && read.0 < asked * 200, "{read:?} for {asked} lists");
}

#[tokio::test]
async fn a_page_of_key_values_is_not_looked_for_among_all_keys_of_its_scope() {
    let (url, schema) = place::fresh();
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let client = place::connect(&schema.url).await;
    let fill = "insert into state select 't', 3, 'orders', 'k' || lpad(n::text, 5, '0'), 'null', null
        from generate_series(0, 19999) n";
    client.batch_execute(&format!("set search_path to {}; {fill}", schema.name)).await.expect("fills");
    client.batch_execute("analyze state").await.expect("is done");
    let (tenant, orders) = (Tenant::new("t").expect("a name"), StateOwner::Named("orders".into()));
    for (after, first) in [(None, "k00000"), (Some("k09999"), "k10000")] {
        let query = StateQuery { after: after.map(str::to_owned), ..StateQuery::first(10) };
        let page = store.states(&StateSpace::new(&tenant, orders.clone()), query).await.expect("lists");
        assert_eq!((page.values[0].key.as_str(), page.values.len(), page.more), (first, 10, true));
    }
    drop(store);
    let sql =
        "select i.idx_scan, idx_tup_read, seq_tup_read from pg_stat_user_indexes i join pg_stat_user_tables t
        using (relid) where i.schemaname = current_schema() and indexrelname = 'state_pkey'";
    let mut read = (0, 0, 0);
    for _ in 0..1_000 {
        let row = client.query_one(sql, &[]).await.expect("answers");
        read = (row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2));
        if read.0 >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!((20..100).contains(&read.1) && read.2 == 0, "{read:?}");
}

#[tokio::test]
async fn runs_that_are_due_are_not_looked_for_among_those_that_their_definition_keeps() {
    let (url, schema) = place::fresh();
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    let client = place::connect(&schema.url).await;
    // A hundred years, by three definitions that say so differently; the policy below lets the others go.
    let kept = "case when n not in (7, 70, 700) then '-/315360000000' || n % 3 else '' end";
    let fill = FILL
        .replace("input_digest)", "input_digest, retain)")
        .replace("'', ''\n", &format!("'', '', {kept}\n"));
    client.batch_execute(&format!("set search_path to {}; {fill}", schema.name)).await.expect("fills");
    client.batch_execute("analyze flow_runs").await.expect("is done");
    let policy = Retention { events: Duration::from_secs(36_500 * 86_400), runs: Duration::from_secs(1) };
    for (trimmed, removed) in [(0, 3), (0, 0)] {
        assert_eq!(store.retain(policy, 10).await.expect("retains"), Retained { trimmed, removed });
    }
    drop(store);
    let sql = "select idx_scan, idx_tup_read from pg_stat_user_indexes
        where schemaname = current_schema() and indexrelname = 'flow_runs_ended'";
    let mut read = (0, 0);
    // What a connection has read is counted when it ends, at the latest.
    for _ in 0..1_000 {
        let row = client.query_one(sql, &[]).await.expect("answers");
        read = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        if read.0 >= 10 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(read.0 >= 10 && read.1 < 100, "{read:?}");
}
