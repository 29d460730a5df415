//! Lists of runs are read from the index that was made for them, however the runs are spread over statuses and flows.

#[allow(dead_code)]
mod place;

use std::time::Duration;

use flowline_core::{Status, Tenant};
use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::{RunQuery, RunStore};

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
