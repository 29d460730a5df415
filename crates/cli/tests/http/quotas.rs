//! Quotas: what one tenant may have and start at most, whatever others do.

use serde_json::{Value, json};

use crate::kit::served::{Reply, Served};

const FLOW: &str = "flow: greet\naccepts: { go: {} }\nsteps:\n  wait: { worker: depot, subscribes: [go] }\n";
const OUTER: &str =
    "flow: outer\nsteps:\n  inner: { start: { flow: greet }, retry: { attempts: 100, delay: 100ms } }\n";

fn start(served: &Served, tenant: &str, flow: &str, body: &Value) -> Reply {
    let headers = [("flowline-tenant", tenant), ("content-type", "application/json")];
    served.send("POST", &format!("/v1/flows/{flow}/runs"), &headers, &body.to_string())
}

fn register(served: &Served, tenant: &str, definition: &str) {
    let headers = [("flowline-tenant", tenant), ("content-type", "application/yaml")];
    assert_eq!(served.send("POST", "/v1/flows", &headers, definition).status, 201);
}

#[test]
fn a_tenant_over_its_quota_of_runs_starts_no_more_and_others_do() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flowline.toml"), "[quotas]\nruns = 3\n[quotas.acme]\nruns = 5\n")
        .unwrap();
    let served = Served::start(folder.path(), &[]);
    for tenant in ["default", "other", "acme"] {
        register(&served, tenant, FLOW);
    }
    let first = start(&served, "default", "greet", &json!({ "idempotencyKey": "first" })).json();
    for _ in 0..2 {
        assert_eq!(start(&served, "default", "greet", &json!({})).status, 201);
    }
    let refused = start(&served, "default", "greet", &json!({}));
    assert_eq!((refused.status, refused.code().as_str()), (429, "quota-exceeded"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(start(&served, "other", "greet", &json!({})).status, 201);
    assert!((0..5).all(|_| start(&served, "acme", "greet", &json!({})).status == 201));
    assert_eq!(start(&served, "acme", "greet", &json!({})).code(), "quota-exceeded");
    let metrics = served.get("/metrics").body;
    let counted = metrics.lines().find(|line| line.starts_with("flowline_quota_refused_total{")).unwrap();
    assert!(counted.ends_with(" 2"), "{counted}");
    // A start that is repeated gets the run it had, and what has ended makes room.
    let again = start(&served, "default", "greet", &json!({ "idempotencyKey": "first" }));
    assert_eq!((again.status, &again.json()["runId"]), (200, &first["runId"]));
    let cancelled = format!("/v1/runs/{}/cancel", first["runId"].as_str().unwrap());
    assert_eq!(served.post(&cancelled, &json!({})).status, 200);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while start(&served, "default", "greet", &json!({})).status != 201 {
        assert!(std::time::Instant::now() < until, "there is room");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn a_step_that_starts_a_run_over_the_quota_fails_with_its_code_and_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--quota", "runs=2"]);
    register(&served, "default", FLOW);
    register(&served, "default", OUTER);
    let held = start(&served, "default", "greet", &json!({})).json();
    let outer = start(&served, "default", "outer", &json!({})).json();
    let events = format!("/v1/runs/{}/events", outer["runId"].as_str().unwrap());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !served.get(&events).body.contains("quota_exceeded") {
        assert!(std::time::Instant::now() < until, "{}", served.get(&events).body);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(
        served.post(&format!("/v1/runs/{}/cancel", held["runId"].as_str().unwrap()), &json!({})).status,
        200
    );
    while served.get("/v1/runs?flow=greet&status=waiting").json()["items"].as_array().unwrap().is_empty() {
        assert!(std::time::Instant::now() < until, "{}", served.get(&events).body);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn a_tenant_over_its_quota_of_starts_is_told_when_to_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--quota", "starts=1"]);
    register(&served, "default", FLOW);
    let replies: Vec<Reply> = (0..20).map(|_| start(&served, "default", "greet", &json!({}))).collect();
    assert_eq!(replies[0].status, 201);
    let refused: Vec<&Reply> = replies.iter().filter(|reply| reply.status == 429).collect();
    assert!(refused.len() > 5, "{}", refused.len());
    assert!(
        refused
            .iter()
            .all(|reply| reply.code() == "quota-exceeded" && reply.header("retry-after") == Some("1"))
    );
}
