//! A damaged store: `flowline verify` names exactly the invariant that the damage breaks.
//!
//! Needs the servers that `cargo xtask test` starts and names in `FLOWLINE_TEST_…_URL`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::kit::place::Here;
use crate::kit::served::Served;
use flowline::core::{EventType, Json, NewEvent};
use flowline::store::{Append, AppendLine, Claim, StateChange, StateEdit, StateScope, Store, Token};
use flowline_postgres::PostgresStore;
use flowline_redis::RedisStore;
use flowline_sqlite::SqliteStore;
use rusqlite::Connection;
use serde_json::{Value, json};

/// What breaks, and by what. Run 1 has completed, 2 has failed, 3 is half-way: its step `act` waits for a worker.
const DAMAGES: &[(&str, &str)] = &[
    (
        "I1",
        "insert into jobs (run, key, name, attempt, lane, priority, due, held, n)
             select 1, 0, 'charge', 1, lane, priority, due, held, n + 100 from jobs where run = 3",
    ),
    ("I2", "update jobs set attempt = 2 where run = 3"),
    (
        "I4",
        "update log set ms = 1 where run = 3 and first_seq = (select max(first_seq) from log where run = 3)",
    ),
    ("I6", "update progress set retries = 9 where run = 3"),
    ("I6", "update progress set failure_error = 'another' where run = 2"),
    ("I6", "update counters set n = 41 where status = 3"),
    ("I8", "delete from jobs where run = 3"),
    ("I9", "update runs set idempotency_key = 'key' where id = 1"),
    ("I11", "update jobs set held = 1 where run = 3"),
    ("I12", "update progress set state = x'00ff' where run = 3"),
    (
        "I15",
        "insert into jobs (run, key, name, attempt, lane, priority, due, held, n)
             select 3, 1, 'ask', 1, lane, priority, due, held, n + 100 from jobs where run = 3",
    ),
];

fn half_way() -> Here {
    let here = Here::new();
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    here.json(1, &["run", "doomed.yaml"]);
    let run = here.json(0, &["run", "approve.yaml"])["runId"].as_str().unwrap().to_owned();
    here.json(0, &["send", &run, "approval.given", "--payload", "{}"]);
    assert_eq!(here.json(0, &["verify"])["violations"], json!([]));
    here
}

#[test]
fn damage_is_named_by_the_invariant_that_it_breaks() {
    let here = half_way();
    let (store, kept) = (here.path(".flowline/flowline.db"), here.path("kept.db"));
    std::fs::copy(&store, &kept).unwrap();
    for (invariant, sql) in DAMAGES {
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(here.path(&format!(".flowline/flowline.db{suffix}")));
        }
        std::fs::copy(&kept, &store).unwrap();
        let conn = Connection::open(&store).unwrap();
        conn.execute_batch(sql).unwrap();
        assert!(conn.total_changes() > 0, "nothing was damaged: {sql}");
        drop(conn);
        let report = here.json(1, &["verify"]);
        let violations: &Vec<Value> = report["violations"].as_array().unwrap();
        let named: BTreeSet<&str> = violations.iter().map(|v| v["invariant"].as_str().unwrap()).collect();
        assert_eq!(named, BTreeSet::from([*invariant]), "{sql}: {report:#}");
        assert!(
            violations.iter().all(|v| v["tenant"] == "default" && !v["message"].as_str().unwrap().is_empty())
        );
        // What is not damage in a log is mended.
        if !["I4", "I9"].contains(invariant) {
            let repaired = here.json(0, &["reconcile", "--repair"]);
            assert!(!repaired["findings"].as_array().unwrap().is_empty());
            assert_eq!(here.json(0, &["verify"])["violations"], json!([]), "{sql}");
        }
    }
}

/// Serves the store until a metric has left zero; what the server logged.
fn serve_until(here: &Here, mode: &str, metric: &str) -> String {
    let arguments = ["--reconcile", mode, "--reconcile-every", "1s", "--log-format", "json"];
    let served = Served::start(here.folder.path(), &arguments);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let page = served.get("/metrics").body;
        let sample = page.lines().find(|line| line.starts_with(metric)).expect("it is there from the start");
        if sample.rsplit(' ').next() != Some("0") {
            return served.said().join("\n");
        }
        assert!(std::time::Instant::now() < until, "{sample}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn a_server_reports_damage_by_itself_and_mends_it_where_it_is_told_to() {
    let here = half_way();
    let conn = Connection::open(here.path(".flowline/flowline.db")).unwrap();
    conn.execute_batch("delete from jobs where run = 3; update progress set retries = 9 where run = 1")
        .unwrap();
    drop(conn);
    let logged = serve_until(&here, "report", "flowline_reconcile_found_total");
    let lines: Vec<Value> = logged.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found = |line: &&Value| line["message"].as_str().unwrap().starts_with("reconciliation found: ");
    let findings: Vec<&Value> = lines.iter().filter(found).collect();
    assert!(findings.len() >= 2 && findings.iter().all(|line| line["repaired"] == false), "{logged}");
    assert!(findings.iter().all(|line| line["runId"].is_string() && line["tenant"] == "default"), "{logged}");
    assert!(logged.contains("reconciliation left problems: `flowline reconcile` lists them"), "{logged}");
    here.json(1, &["verify"]);
    serve_until(&here, "repair", "flowline_reconcile_repaired_total");
    assert_eq!(here.json(0, &["verify"])["violations"], json!([]));
    for wrong in [["--reconcile", "maybe"], ["--reconcile-every", "10ms"]] {
        here.flowline(&[&["work", "--until-idle"][..], &wrong].concat()).refused(2, &["reconcile"]);
    }
}

/// A store of each kind. None of them exists yet.
fn stores(here: &Here) -> [String; 4] {
    let server = |variable: &str| std::env::var(variable).expect("`cargo xtask services start` names it");
    let id = std::process::id();
    [
        format!("sqlite:{}", here.path("state.db").display()),
        format!("{}?prefix=verified-{id}", server("FLOWLINE_TEST_REDIS_URL")),
        format!("{}?prefix=verified-{id}", server("FLOWLINE_TEST_REDIS_CLUSTER_URL")),
        format!("{}?schema=verified_{id}", server("FLOWLINE_TEST_POSTGRES_URL")),
    ]
}

async fn open(store: &str) -> Arc<dyn Store> {
    match store.split_once(':') {
        Some(("postgres", _)) => {
            PostgresStore::open(store, flowline_postgres::IfMissing::Make).await.unwrap()
        }
        Some(("sqlite", path)) => {
            SqliteStore::open(Path::new(path), flowline_sqlite::Options::default()).unwrap()
        }
        _ => RedisStore::open(store, flowline_redis::IfMissing::Make).await.unwrap(),
    }
}

/// The line that records a value, with the value that is kept.
fn set(step: &Arc<str>, key: &str, logged: u32, kept: Option<u32>) -> AppendLine {
    let data = json!({"operation": "set", "scope": "run", "key": key, "value": logged});
    let json = |value: Value| Json::from(value);
    let edit = StateEdit::new(key, kept.map(|kept| json(kept.into())), None);
    let change = StateChange { scope: StateScope::Run, edit };
    AppendLine { event: NewEvent::step(EventType::State, step, 1, Some(json(data))), state: Some(change) }
}

#[tokio::test]
async fn key_values_that_differ_from_the_log_are_named_on_every_store() {
    let here = Here::new();
    for store in stores(&here) {
        here.start(&["approve.yaml", "--store", &store]);
        let opened = open(&store).await;
        let claim = Claim {
            tenant: None,
            needs: vec!["command".into()],
            free: Vec::new(),
            free_elsewhere: 1,
            tokens: vec![Token(1)],
            ttl: Duration::from_secs(600),
            worker: "me".into(),
        };
        let job = opened.claim(claim).await.unwrap().jobs.remove(0);
        let append = async |from_line: u32, lines: Vec<AppendLine>| {
            let (run, key, attempt, token) = (job.run.clone(), job.key, job.attempt, job.token);
            let append = Append { run, key, attempt, token, from_line, lines };
            opened.append(vec![append]).await.unwrap().remove(0).unwrap();
        };
        let step: Arc<str> = "ask".into();
        let started = NewEvent::step(EventType::StepStarted, &step, 1, Some(Json::from(json!({}))));
        let started = AppendLine { event: started, state: None };
        append(0, vec![started, set(&step, "a", 1, Some(1)), set(&step, "a", 2, Some(2))]).await;
        let verify = |exit| here.json(exit, &["verify", "--store", &store])["violations"].clone();
        assert_eq!(verify(0), json!([]), "{store}");
        append(3, vec![set(&step, "a", 3, Some(4)), set(&step, "b", 1, None)]).await;
        let found = verify(1);
        let said =
            |v: &Value| format!("{} {}", v["invariant"].as_str().unwrap(), v["message"].as_str().unwrap());
        let found: Vec<String> = found.as_array().unwrap().iter().map(said).collect();
        let expected = [
            r#"I6 state "a" isn't what the log set it to"#,
            r#"I6 state "b" is set according to the log, but is missing"#,
        ];
        assert_eq!(found, expected, "{store}");
    }
}
