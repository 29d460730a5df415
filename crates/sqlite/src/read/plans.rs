//! The reads that must stay flat however much is stored: shown by SQLite's own plan, not by the time they take.

use flowline_core::{RunId, Tenant};
use flowline_store::{DocumentQuery, Order, ReceiptQuery, RunQuery};
use rusqlite::Connection;

use super::documents;
use super::events::LOG_FROM;
use super::receipts;
use super::runs::page_sql;
use crate::schema;
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

#[test]
fn a_page_of_documents_begins_by_key_wherever_it_lies() {
    let conn = empty();
    for (order, key) in [(Order::Ascending, "id>?"), (Order::Descending, "id<?")] {
        let query = DocumentQuery { order, after: Some("a".to_owned()), limit: 10 };
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
