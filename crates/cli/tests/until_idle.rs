//! `flowline work --until-idle` leaves when there is nothing left to do, and not before: what a dead process holds and
//! timers that are due soon count.
//!
//! Needs the servers that `cargo xtask test` starts.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::kit::place::Here;
use serde_json::{Value, json};

fn on_server(variable: &str, place: &str) -> String {
    let url = std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set; run the tests with `cargo xtask test`, or start servers with `cargo xtask services start`"
        )
    });
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}{place}=until_idle_{}", std::process::id())
}

/// Runs the four steps of the example, kills the process while both branches are at work, and lets `work` finish.
fn is_finished_after_a_kill(store: &str) {
    let here = Here::new();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/parallel-branches.yaml");
    let mut run = here.command(&["run", example.to_str().unwrap(), "--input", r#"{"orderId": "A-7"}"#]);
    run.args(["--store", store, "--lease", "4s"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let started = |line: &str| line.starts_with("parallelA") && line.contains("started");
    assert!(lines.any(|line| started(&line)), "the branches never started");
    child.kill().unwrap();
    child.wait().unwrap();

    let listed = here.json(0, &["runs", "--store", store]);
    assert_eq!((&listed["total"], &listed["items"][0]["status"]), (&1.into(), &"running".into()), "{listed}");
    let id = listed["items"][0]["runId"].as_str().unwrap();
    let done = here.json(0, &["work", "--until-idle", "--patience", "0s", "--store", store]);
    assert_eq!(done["runs"]["completed"], 1, "{done}");
    let shown = here.json(0, &["show", id, "--store", store]);
    let result = json!({ "orderId": "A-7", "payment": "paid", "inventory": "reserved", "completed": true });
    assert_eq!((&shown["status"], &shown["result"]), (&"completed".into(), &result), "{shown}");
    let attempts = |step: &Value| (step["name"].clone(), step["attempts"].clone());
    let attempts: Vec<_> = shown["steps"].as_array().unwrap().iter().map(attempts).collect();
    assert!(attempts.contains(&("start".into(), 1.into())), "a finished step ran again: {attempts:?}");
    assert!(attempts.contains(&("parallelA".into(), 2.into())), "{attempts:?}");
    assert_eq!(here.json(0, &["verify", "--store", store])["violations"], json!([]));
}

#[test]
fn four_steps_on_sqlite_are_finished_after_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    is_finished_after_a_kill(&format!("sqlite:{}", folder.path().join("flowline.db").display()));
}

#[test]
fn four_steps_on_redis_are_finished_after_kill_9() {
    is_finished_after_a_kill(&on_server("FLOWLINE_TEST_REDIS_URL", "prefix"));
}

#[test]
fn four_steps_on_a_redis_cluster_are_finished_after_kill_9() {
    is_finished_after_a_kill(&on_server("FLOWLINE_TEST_REDIS_CLUSTER_URL", "prefix"));
}

#[test]
fn four_steps_on_postgres_are_finished_after_kill_9() {
    is_finished_after_a_kill(&on_server("FLOWLINE_TEST_POSTGRES_URL", "schema"));
}

#[test]
fn a_timer_a_retry_and_a_delayed_start_within_the_patience_are_waited_for() {
    let here = Here::new();
    here.write(
        "timed.yaml",
        "machine: timed\nstates:\n  waiting: { after: { in: 2s, to: over } }\n  over: { final: true }\n",
    );
    let retried = "flow: retried\nsteps:\n  a: { command: [sh, -c, 'test $FLOWLINE_ATTEMPT = 2'], retry: { attempts: 2, delay: 2s, jitter: false } }\n";
    here.write("retried.yaml", retried);
    for (file, flags) in [
        ("timed.yaml", &[][..]),
        ("retried.yaml", &[]),
        ("order.yaml", &["--input", "{\"total\":1}", "--delay", "2s"]),
    ] {
        let run = here.start(&[&[file], flags].concat());
        here.json(0, &["work", "--until-idle"]);
        assert_eq!(here.json(0, &["show", &run])["status"], "completed", "{file}");
    }
    let later = here.start(&["timed.yaml"]);
    here.json(0, &["work", "--until-idle", "--patience", "1ms"]);
    assert_eq!(here.json(0, &["show", &later])["status"], "waiting");
}
