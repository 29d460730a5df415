//! The binary on a Redis store: several processes, one URL, nothing else to set.
//!
//! Needs the server that `cargo xtask test` starts and names in `FLOWLINE_TEST_REDIS_URL`.

use std::process::Command;

use crate::doctor::server::Server;
use crate::kit::place::Here;
use serde_json::{Value, json};

fn url(name: &str) -> String {
    let server = std::env::var("FLOWLINE_TEST_REDIS_URL").expect(
        "FLOWLINE_TEST_REDIS_URL is not set; run the tests with `cargo xtask test`, or start servers with \
         `cargo xtask services start`",
    );
    format!("{server}?prefix=cli-{name}-{}", std::process::id())
}

/// Runs the binary; gives its exit code and what it said in JSON.
fn flowline(url: &str, args: &[&str]) -> (Option<i32>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_flowline"))
        .current_dir(folder.path())
        .args(args)
        .args(["--store", url, "--json"])
        .output()
        .expect("the binary runs");
    let said = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code(), said)
}

#[test]
fn instances_that_share_a_store_lose_nothing_and_double_nothing() {
    let url = url("instances");
    let args = ["bench", "--runs", "60", "--in-flight", "12", "--instances", "3", "--payload", "10"];
    let (code, answer) = flowline(&url, &args);
    assert_eq!(code, Some(0), "{answer}");
    assert_eq!(
        (&answer["runs"], &answer["steps"], &answer["instances"]),
        (&60.into(), &240.into(), &3.into())
    );
    let (code, verdict) = flowline(&url, &["verify"]);
    assert_eq!(code, Some(0), "{verdict}");
    let (_, listed) = flowline(&url, &["runs", "--status", "completed", "--limit", "5"]);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(5), "{listed}");
}

#[test]
fn several_instances_need_a_server() {
    let (code, _) = flowline("sqlite:x.db", &["bench", "--runs", "2", "--instances", "2"]);
    assert_eq!(code, Some(3));
}

#[test]
fn doctor_looks_at_a_server_that_has_no_store_yet() {
    let (code, said) = flowline(&url("doctor"), &["doctor"]);
    assert_eq!((code, &said["ok"]), (Some(0), &Value::Bool(true)), "{said}");
    let (code, said) = flowline("redis://127.0.0.1:1", &["doctor"]);
    assert_eq!((code, &said["ok"]), (Some(1), &Value::Bool(false)), "{said}");
}

#[test]
fn who_reads_a_store_that_is_not_there_is_told_so() {
    let (code, said) = flowline(&url("none"), &["runs"]);
    assert_eq!((code, &said["error"]["code"]), (Some(3), &"store-missing".into()), "{said}");
}

#[test]
fn runs_that_no_list_has_are_found_by_verify_and_put_back_by_a_repair() {
    let server = Server::start(&[]);
    let (here, store) = (Here::new(), server.url());
    let run = here.start(&["approve.yaml", "--store", &store]);
    let ask = |exit, words: &[&str]| here.json(exit, &[words, &["--store", &store]].concat());
    assert_eq!(ask(0, &["verify"])["violations"], json!([]));
    let damage =
        "for _, key in ipairs(redis.call('KEYS', '{flowline:0}:by:*')) do redis.call('DEL', key) end";
    server.ask(&["EVAL", damage, "0"]);
    assert_eq!(ask(0, &["runs"])["items"], json!([]));
    let found = ask(1, &["verify"]);
    assert_eq!(
        (&found["runs"], found["violations"].as_array().map(Vec::len)),
        (&1.into(), Some(1)),
        "{found}"
    );
    let message = found["violations"][0]["message"].as_str().unwrap();
    assert!(message.contains("counter") && message.contains("approve"), "{message}");
    assert_eq!(ask(0, &["reconcile", "--repair"])["findings"][0]["repaired"], true);
    assert_eq!(ask(0, &["runs"])["items"][0]["runId"], json!(run));
    assert_eq!(ask(0, &["verify"])["violations"], json!([]));
}
