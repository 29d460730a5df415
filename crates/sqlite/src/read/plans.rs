//! The reads that must stay flat however much is stored: shown by SQLite's own plan, not by the time they take.

use flowline_core::{EventType, Status, Tenant};
use flowline_store::{EventQuery, RunQuery};
use rusqlite::Connection;

use super::Reader;
use crate::schema::{self, Kinds};
use crate::write::statements::Statements;

fn empty() -> (Connection, Kinds) {
    let conn = Connection::open_in_memory().unwrap();
    schema::migrate(&conn, 0).unwrap();
    conn.execute_batch(
        "insert into tenants (name) values ('default'); insert into flows (tenant, name) values (1, 'f')",
    )
    .unwrap();
    let kinds = Kinds::load(&conn).unwrap();
    (conn, kinds)
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
    let (conn, kinds) = empty();
    let reader = Reader { conn: &conn, kinds: &kinds };
    for query in [EventQuery::default(), EventQuery { kinds: vec![EventType::Log], ..EventQuery::default() }]
    {
        assert_flat(
            &plan(&conn, &reader.events_sql(&query)),
            "SEARCH logs USING PRIMARY KEY (run=? AND first_seq>?)",
        );
    }
}

#[test]
fn a_page_of_runs_is_read_in_the_order_of_an_index() {
    let (conn, kinds) = empty();
    let reader = Reader { conn: &conn, kinds: &kinds };
    let (flow, status) = (Some("f".to_owned()), Some(Status::Failed));
    let all = RunQuery::of(Tenant::default());
    for (query, index) in [
        (all.clone(), "runs_by_tenant (tenant=? AND rowid<?)"),
        (RunQuery { status, ..all.clone() }, "runs_by_status (tenant=? AND status=? AND rowid<?)"),
        (RunQuery { flow: flow.clone(), ..all.clone() }, "runs_by_flow (flow=? AND rowid<?)"),
        (RunQuery { flow, status, ..all.clone() }, "runs_by_flow_status (flow=? AND status=? AND rowid<?)"),
        (
            RunQuery { label: Some(("a".to_owned(), "b".to_owned())), ..all },
            "PRIMARY KEY (tenant=? AND key=? AND value=? AND run<?)",
        ),
    ] {
        let page = reader.filter(&query).unwrap().unwrap().page();
        assert_flat(&plan(&conn, &page), index);
    }
}

#[test]
fn a_claim_finds_its_job_by_index() {
    let (conn, _) = empty();
    let sql = Statements::prepare(&conn).unwrap();
    for statement in [&sql.first_due, &sql.next_due] {
        let text = statement.expanded_sql().unwrap();
        let index = "USING COVERING INDEX jobs_ready (lane=? AND priority=? AND due";
        assert_flat(&plan(&conn, &text), index);
    }
}
