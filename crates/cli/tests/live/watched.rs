//! A flow whose runs do what a test asks and nothing else: pausing and resuming one gives two events, any event from outside
//! another with as large a payload as wanted, and completing it by hand its last.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::live::http::{get, post};

pub const FLOW: &str = "watched";
/// Names of events that a run takes, `e0` and so on.
pub const EVENTS: usize = 40;

/// Registers the flow, and another that is like it.
pub async fn learn(server: SocketAddr) {
    for flow in [FLOW, "other"] {
        let accepts: serde_json::Map<String, Value> =
            (0..EVENTS).map(|n| (format!("e{n}"), json!({}))).collect();
        let any: Vec<String> = (0..EVENTS).map(|n| format!("e{n}")).collect();
        let steps = json!({
            "never": { "worker": "nobody" },
            "after": { "worker": "nobody", "subscribes": { "any": any } },
        });
        let definition = json!({ "flow": flow, "accepts": accepts, "steps": steps });
        let answer = post(server, "/v1/flows", &definition).await;
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
    }
}

pub async fn start(server: SocketAddr, flow: &str) -> String {
    let answer = post(server, &format!("/v1/flows/{flow}/runs"), &json!({})).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["runId"].as_str().unwrap().to_owned()
}

pub async fn act(server: SocketAddr, run: &str, act: &str) {
    let answer = post(server, &format!("/v1/runs/{run}/{act}"), &json!({})).await;
    assert_eq!(answer.status, 200, "{act}: {answer:?}");
}

/// Two events each.
pub async fn pause_and_resume(server: SocketAddr, run: &str, times: usize) {
    for _ in 0..times {
        act(server, run, "pause").await;
        act(server, run, "resume").await;
    }
}

pub async fn send(server: SocketAddr, run: &str, number: usize, payload: &Value) {
    let event = json!({ "name": format!("e{number}"), "payload": payload });
    let answer = post(server, &format!("/v1/runs/{run}/events"), &event).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// The log of a run, whole.
pub async fn log(server: SocketAddr, run: &str) -> Vec<Value> {
    let mut log = Vec::new();
    loop {
        let path = format!("/v1/runs/{run}/events?limit=500&after={}", log.len());
        let page = get(server, &path, &[]).await.json();
        log.extend(page["items"].as_array().unwrap().iter().cloned());
        if page["hasMore"] == json!(false) {
            return log;
        }
    }
}
