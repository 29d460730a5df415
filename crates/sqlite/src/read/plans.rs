//! The reads that must stay flat however much is stored: shown by SQLite's own plan, not by the time they take.

use flowline_core::{RunId, Tenant};
use flowline_store::{DocumentQuery, Order, ReceiptQuery, RunQuery};
use rusqlite::Connection;

use super::Reader;
use super::documents;
use super::events::LOG_FROM;
use super::receipts;
use super::runs::{FIRST_FROM, page_sql};
use crate::schema;
use crate::write::retain::{DUE, RETAINS};
use crate::write::statements::Statements;

fn empty() -> Connection {
    let conn = Connection::open_in_memory().unwrap();
    schema::migrate(&conn, 0).unwrap();
    conn.execute_batch(
        "insert into tenants (name) values ('default'); insert into flows (tenant, name) values (1, 'f')",
    )
    .unwrap();
    conn
}

/// The plan in one line per part.
fn plan(conn: &Connection, sql: &str) -> String {
    let mut statement = conn.prepare(&format!("explain query plan {sql}")).unwrap();
    let parts = statement.raw_query().mapped(|row| row.get::<_, String>(3)).collect::<Result<Vec<_>, _>>();
    parts.unwrap().join("\n")
}

#[track_caller]
fn assert_flat(plan: &str, begins_with: &str) {
    assert!(plan.contains(begins_with), "{plan}");
    assert!(!plan.contains("USE TEMP B-TREE"), "sorts: {plan}");
    let scanned = plan.lines().find(|line| line.starts_with("SCAN"));
    assert_eq!(scanned, None, "{plan}");
}

#[test]
fn a_page_of_a_log_begins_by_key_wherever_it_lies() {
    let conn = empty();
    assert_flat(&plan(&conn, LOG_FROM), "SEARCH log USING INDEX log_by_run (run=? AND first_seq>?)");
}

#[test]
fn a_page_of_runs_is_read_in_the_order_of_an_index() {
    let conn = empty();
    let all = RunQuery::of(Tenant::default());
    for (query, index) in [
        (all.clone(), "INDEX progress_by_status (flow=? AND status=? AND rowid>? AND rowid<?)"),
        (
            RunQuery { flow: Some("f".to_owned()), state: Some("s".to_owned()), ..all.clone() },
            "INDEX progress_by_state (flow=? AND machine_state=? AND status=? AND rowid>? AND rowid<?)",
        ),
        (
            RunQuery { label: Some(("a".to_owned(), "b".to_owned())), ..all },
            "PRIMARY KEY (tenant=? AND key=? AND value=? AND run>? AND run<?)",
        ),
    ] {
        assert_flat(&plan(&conn, &page_sql(&query)), index);
    }
}

/// A tenant with so many runs, a second apart, half of them completed; the last ones are running.
fn filled(runs: i64) -> Connection {
    let conn = empty();
    let numbers = format!(
        "from (with recursive n(value) as (select 1 union all select value + 1 from n where value < {runs}) select value from n)"
    );
    let fill = "insert into definitions (tenant, flow, hash, body, created_at, latest) values (1, 1, 'h', '{}', 0, 1);
        insert into runs (id, tenant, flow, definition, run_id, created_at, step_count, input_digest)
            select value, 1, 1, 1, 'r' || value, value * 1000, 1, '' from numbers;
        insert into progress (run, tenant, flow, status, version, seq, ms, completed_steps, failed_steps, retries, state)
            select value, 1, 1, iif(value % 2, 3, 0), 1, 1, 0, 0, 0, 0, x'' from numbers;";
    conn.execute_batch(&fill.replace("from numbers", &numbers)).unwrap();
    conn
}

/// The steps that SQLite takes for a page of runs and its total.
fn steps(conn: &Connection, query: &RunQuery) -> (usize, i32) {
    let format = std::sync::atomic::AtomicU32::new(schema::FORMAT);
    let page = Reader { conn, format: &format }.runs(query).unwrap();
    let total = format!("select count(*) from ({})", page_sql(query));
    let taken = [page_sql(query), total]
        .map(|sql| conn.prepare_cached(&sql).unwrap().get_status(rusqlite::StatementStatus::VmStep));
    (page.items.len(), taken.iter().sum())
}

#[test]
fn a_page_of_runs_by_time_costs_what_it_holds_however_many_runs_there_are() {
    let runs = 20_000;
    let at = |n: i64| Some(flowline_core::Time::from_millis(n * 1000));
    let all = RunQuery { limit: 5, ..RunQuery::of(Tenant::default()) };
    for status in [None, Some(flowline_core::Status::Running), Some(flowline_core::Status::Failed)] {
        let all = RunQuery { status, ..all.clone() };
        for (query, found) in [
            (RunQuery { since: at(runs - 3), ..all.clone() }, 4),
            (RunQuery { until: at(4), ..all.clone() }, 3),
            (RunQuery { since: at(runs / 2), until: at(runs / 2 + 4), ..all.clone() }, 4),
            (RunQuery { since: at(runs + 1), ..all.clone() }, 0),
            (RunQuery { until: at(1), ..all.clone() }, 0),
        ] {
            let (items, steps) = steps(&filled(runs), &query);
            let expected = match status {
                None => found,
                Some(flowline_core::Status::Running) => found / 2,
                _ => 0,
            };
            assert!(items == expected || items == expected + 1 && status.is_some(), "{items}: {query:?}");
            assert!(steps < 1_000, "{steps} steps: {query:?}");
        }
    }
    assert_flat(&plan(&empty(), FIRST_FROM), "SEARCH runs USING INTEGER PRIMARY KEY (rowid>?)");
}

#[test]
fn retention_costs_what_is_due_however_many_ended_runs_are_kept() {
    let runs = 20_000;
    let conn = filled(runs);
    // All but three are kept for a year, by three definitions that say so differently.
    let keep = "update progress set status = 3, completed_at = run * 1000;
        update progress set retain = '-/3153600000' || (run % 3) where run not in (5, 9, 17)";
    conn.execute_batch(keep).unwrap();
    let mut retains = conn.prepare(RETAINS).unwrap();
    let found: Vec<String> = retains.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(found, ["-/31536000000", "-/31536000001", "-/31536000002"]);
    let taken = retains.get_status(rusqlite::StatementStatus::VmStep);
    assert!(taken < 1_000, "{taken} steps to find what there is");
    let now = runs * 1000;
    for (retain, end, ids) in [
        (None, now, vec![5, 9, 17]),
        (Some("-/31536000000"), now - 31_536_000_000, vec![]),
        (Some("-/31536000001"), 4_000, vec![1, 4]),
    ] {
        let mut due = conn.prepare(DUE).unwrap();
        let found = due.query_map(rusqlite::params![retain, 0, end, 3, 10], |row| row.get::<_, i64>(1));
        assert_eq!(found.unwrap().map(Result::unwrap).collect::<Vec<_>>(), ids);
        let taken = due.get_status(rusqlite::StatementStatus::VmStep);
        assert!(taken < 200, "{taken} steps: {retain:?}");
    }
    let index = "SEARCH progress USING INDEX progress_ended (retain=? AND events_trimmed=? AND completed_at";
    assert_flat(&plan(&conn, DUE), index);
}

#[test]
fn a_page_of_documents_begins_by_key_wherever_it_lies() {
    let conn = empty();
    for (order, key) in [(Order::Ascending, "id>?"), (Order::Descending, "id<?")] {
        let query = DocumentQuery { id: None, order, after: Some("a".to_owned()), limit: 10 };
        let key = format!("SEARCH documents USING PRIMARY KEY (collection=? AND {key})");
        assert_flat(&plan(&conn, &documents::page_sql(&query)), &key);
        let first = documents::page_sql(&DocumentQuery { after: None, ..query });
        assert_flat(&plan(&conn, &first), "SEARCH documents USING PRIMARY KEY (collection=?)");
    }
}

#[test]
fn a_page_of_receipts_is_read_in_the_order_of_an_index() {
    let conn = empty();
    for (worker, index) in [
        (None, "INDEX receipts_by_status (tenant=? AND status=? AND (received_at,run,number)<(?,?,?))"),
        (
            Some("w".to_owned()),
            "INDEX receipts_by_worker (tenant=? AND worker=? AND status=? AND (received_at,run,number)<(?,?,?))",
        ),
    ] {
        let query = ReceiptQuery { worker, ..ReceiptQuery::of(Tenant::default()) };
        assert_flat(&plan(&conn, &receipts::page_sql(&query)), index);
    }
    let query = ReceiptQuery { run: Some(RunId::new("r").unwrap()), ..ReceiptQuery::of(Tenant::default()) };
    assert_flat(&plan(&conn, &receipts::page_sql(&query)), "USING PRIMARY KEY (run=? AND number<?)");
    let query = ReceiptQuery { event_id: Some("e".to_owned()), ..query };
    let by_event = "INDEX receipts_by_event (event_id=? AND run=? AND number<?)";
    assert_flat(&plan(&conn, &receipts::page_sql(&query)), by_event);
}

#[test]
fn a_claim_finds_its_job_by_index() {
    let conn = empty();
    let sql = Statements::prepare(&conn).unwrap();
    for statement in [&sql.first_due, &sql.next_due] {
        let text = statement.expanded_sql().unwrap();
        let index = "USING COVERING INDEX jobs_ready (lane=? AND priority=? AND due";
        assert_flat(&plan(&conn, &text), index);
    }
}
