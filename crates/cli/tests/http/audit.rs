//! The audit log and what was done agree, one to one, whatever becomes of the connections (I21).

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::served::Served;

const FLOW: &str = "flow: wait\naccepts: { go: }\nsteps:\n  a: { subscribes: [go], worker: depot }\n";
/// Requests of a kind. Some arrive before their sender is gone, some do not.
const EACH: usize = 12;

/// Sends a request and hangs up without waiting for an answer.
fn hang_up(served: &Served, method: &str, path: &str, kind: &str, body: &str) {
    let mut stream = TcpStream::connect(served.address).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: {kind}\r\n", served.address);
    stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
}

/// All entries of the log, once every act in it is done.
fn entries(served: &Served) -> Vec<Value> {
    let until = Instant::now() + Duration::from_secs(30);
    let mut before = 0;
    loop {
        let log = served.get("/v1/audit?limit=1000").json()["items"].as_array().unwrap().clone();
        let done = log.iter().all(|entry| entry["status"] != 0);
        if done && log.len() == before {
            return log;
        }
        assert!(Instant::now() < until, "an act is not done: {log:?}");
        before = log.len();
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn count(log: &[Value], path: impl Fn(&str) -> bool, status: u64) -> usize {
    let is = |entry: &&Value| path(entry["path"].as_str().unwrap()) && entry["status"] == status;
    log.iter().filter(is).count()
}

#[test]
fn what_was_done_and_the_audit_log_agree_whoever_hung_up() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let yaml =
        |text: &str| served.send("POST", "/v1/flows", &[("content-type", "application/yaml")], text).status;
    assert_eq!(yaml(FLOW), 201);
    let start = || {
        served.post("/v1/flows/wait/runs", &json!({ "input": 1 })).json()["runId"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let json = "application/json";
    let runs: Vec<Vec<String>> = (0..5).map(|_| (0..EACH).map(|_| start()).collect()).collect();
    let (cancelled, paused, failed, deleted, bulk) = (&runs[0], &runs[1], &runs[2], &runs[3], &runs[4]);
    for run in deleted {
        assert_eq!(served.post(&format!("/v1/runs/{run}/cancel"), &json!({})).status, 200);
    }
    let asked = json!({ "action": "cancel", "filter": { "flow": "wait", "since": "2001-01-01T00:00:00Z", "label": ["never=true"] } });
    for at in 0..EACH {
        hang_up(
            &served,
            "POST",
            &format!("/v1/runs/{}/cancel", cancelled[at]),
            json,
            r#"{"reason": "why not"}"#,
        );
        hang_up(&served, "POST", &format!("/v1/runs/{}/pause", paused[at]), json, "{}");
        hang_up(
            &served,
            "POST",
            &format!("/v1/runs/{}/fail", failed[at]),
            json,
            r#"{"error": "a secret error"}"#,
        );
        hang_up(&served, "DELETE", &format!("/v1/runs/{}", deleted[at]), json, "");
        hang_up(
            &served,
            "POST",
            "/v1/tokens",
            json,
            &json!({ "subject": format!("s{at}"), "scopes": ["read"] }).to_string(),
        );
        hang_up(
            &served,
            "POST",
            "/v1/flows",
            "application/yaml",
            &FLOW.replace("wait", &format!("flow-{at}")),
        );
        hang_up(&served, "PUT", &format!("/v1/state/orders/k{at}"), json, r#"{"value": "a secret value"}"#);
        hang_up(&served, "POST", &format!("/v1/queues/q{at}/pause"), json, "{}");
        hang_up(&served, "POST", &format!("/v1/locks/l{at}"), json, r#"{"owner": "me"}"#);
    }
    hang_up(&served, "POST", "/v1/runs/bulk", json, &asked.to_string());
    let log = entries(&served);

    let status = |run: &String| served.get(&format!("/v1/runs/{run}")).json()["status"].clone();
    let ended = |runs: &[String], as_: &str| runs.iter().filter(|run| status(run) == as_).count();
    let act = |name: &'static str| move |path: &str| path.starts_with("/v1/runs/") && path.ends_with(name);
    let before = EACH;
    assert_eq!(count(&log, act("/cancel"), 200), before + ended(cancelled, "cancelled"));
    assert_eq!(count(&log, act("/pause"), 200), ended(paused, "paused"));
    assert_eq!(count(&log, act("/fail"), 200), ended(failed, "failed"));
    let gone = deleted.iter().filter(|run| served.get(&format!("/v1/runs/{run}")).status == 404).count();
    assert_eq!(count(&log, |path| deleted.iter().any(|run| path == format!("/v1/runs/{run}")), 204), gone);
    assert!(bulk.iter().all(|run| status(run) != "cancelled"), "the filter fits none");
    let items = |path: &str| served.get(path).json()["items"].as_array().unwrap().len();
    assert_eq!(count(&log, |path| path == "/v1/tokens", 201), items("/v1/tokens"));
    assert_eq!(count(&log, |path| path == "/v1/flows", 201), items("/v1/flows"));
    assert_eq!(count(&log, |path| path.starts_with("/v1/state/"), 200), items("/v1/state/orders"));
    assert_eq!(count(&log, |path| path.starts_with("/v1/locks/"), 200), items("/v1/locks"));
    let paused = served.get("/v1/queues").json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|queue| queue["paused"] == true)
        .count();
    assert_eq!(count(&log, |path| path.starts_with("/v1/queues/"), 200), paused);

    // Who, from where, what: but no payload.
    for entry in &log {
        assert_eq!(entry["address"], "127.0.0.1", "{entry}");
        assert!(entry["route"].as_str().unwrap().starts_with("/v1/"), "{entry}");
    }
    assert!(!json!(log).to_string().contains("a secret"));
    let of = |path: &str| log.iter().find(|entry| entry["path"] == path);
    if let Some(entry) = of("/v1/runs/bulk") {
        assert_eq!(entry["asked"], asked, "{entry}");
    }
    if let Some(entry) = of(&format!("/v1/runs/{}/cancel", cancelled[0])) {
        assert_eq!(
            (&entry["asked"], &entry["route"]),
            (&json!({ "reason": "why not" }), &json!("/v1/runs/{run}/cancel"))
        );
    }
}

#[test]
fn an_entry_names_the_token_and_what_was_asked() {
    let folder = tempfile::tempdir().unwrap();
    let admin = crate::http::access::token(folder.path(), "default", &["--scope", "admin"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let authorization = format!("Bearer {admin}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    let asked = json!({ "subject": "ci", "scopes": ["read"], "flows": ["a"] });
    assert_eq!(served.send("POST", "/v1/tokens", &headers, &asked.to_string()).status, 201);
    let id = served.send("GET", "/v1/tokens", &headers, "").json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|token| token["subject"] == "tester")
        .unwrap()["id"]
        .clone();
    let log = served.send("GET", "/v1/audit", &headers, "").json();
    let entry = &log["items"][0];
    assert_eq!(
        (&entry["tokenId"], &entry["subject"], &entry["asked"]),
        (&id, &json!("tester"), &asked),
        "{entry}"
    );
}
