//! Key-value state over HTTP.

use serde_json::{Value, json};

use crate::http::access::token;
use crate::http::contract::Contract;
use crate::kit::served::{Reply, Served};

/// Every route, held against the schema that it declares.
pub fn routes(api: &Contract) {
    let json = [("content-type", "application/json")];
    let path = "/v1/state/orders/order-1";
    assert_eq!(api.get(path).status, 404);
    api.send("PUT", path, &json, r#"{"value": [1], "ttl": "1h"}"#);
    for path in [path, "/v1/state/orders", "/v1/state"] {
        assert_eq!(api.get(path).status, 200, "{path}");
    }
    assert_eq!(api.send("DELETE", path, &[], "").status, 200);
    assert_eq!(api.send("PUT", "/v1/state/a%20b/k", &json, r#"{"value": 1}"#).status, 400);
}

const FLOW: &str = "flow: greet\nsteps:\n  wait: { worker: depot }\n";

fn as_(served: &Served, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {token}");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    served.send(method, path, &[("authorization", &bearer), ("content-type", "application/json")], &body)
}

#[test]
fn state_is_written_read_listed_and_deleted_in_any_scope() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    served.register(FLOW);
    let send = |method: &str, path: &str, body: Value| {
        served.send(method, path, &[("content-type", "application/json")], &body.to_string())
    };
    for scope in ["tenant", "flow:greet", "orders"] {
        let path = format!("/v1/state/{scope}/a%2Fb%20c");
        assert_eq!(served.get(&path).code(), "no-such-key");
        let set = send("PUT", &path, json!({ "value": { "n": 1 } }));
        assert_eq!(set.json(), json!({ "scope": scope, "key": "a/b c", "changed": true }), "{}", set.body);
        assert_eq!(served.get(&path).json(), json!({ "scope": scope, "key": "a/b c", "value": { "n": 1 } }));
        let timed = send("PUT", &format!("/v1/state/{scope}/timed"), json!({ "value": null, "ttl": "1h" }));
        assert_eq!(timed.status, 200, "{}", timed.body);
        let first = served.get(&format!("/v1/state/{scope}?limit=1")).json();
        assert_eq!((&first["items"][0]["key"], &first["next"]), (&json!("a/b c"), &json!("a/b c")));
        let rest = served.get(&format!("/v1/state/{scope}?limit=1&cursor=a%2Fb%20c")).json();
        assert_eq!((&rest["items"][0]["key"], &rest["next"]), (&json!("timed"), &Value::Null));
        assert!(rest["items"][0]["expiresAt"].is_string(), "{rest}");
        assert_eq!(send("DELETE", &path, Value::Null).json()["changed"], true);
        assert_eq!(send("DELETE", &path, Value::Null).json()["changed"], false);
    }
    assert_eq!(
        served.get("/v1/state").json()["items"],
        json!([{ "scope": "tenant" }, { "scope": "orders" }])
    );
    for (path, body, code) in [
        ("/v1/state/flow:none/k", json!({ "value": 1 }), "no-such-flow"),
        ("/v1/state/run:none/k", json!({ "value": 1 }), "no-such-run"),
        ("/v1/state/flow/k", json!({ "value": 1 }), "bad-parameter"),
        ("/v1/state/a%20b/k", json!({ "value": 1 }), "bad-parameter"),
        ("/v1/state/orders/k", json!({}), "bad-body"),
        ("/v1/state/orders/k", json!({ "value": 1, "ttl": "soon" }), "bad-body"),
        ("/v1/state/orders/k", json!({ "value": "x".repeat(1 << 20) }), "too-large"),
    ] {
        let reply = send("PUT", path, body);
        assert_eq!(reply.code(), code, "{path}: {}", reply.body);
    }
    let long = format!("/v1/state/orders/{}", "k".repeat(257));
    assert_eq!(send("PUT", &long, json!({ "value": 1 })).code(), "invalid");
}

#[test]
fn state_is_of_its_tenant_and_of_the_flows_that_a_token_is_bound_to_and_changes_are_audited() {
    let folder = tempfile::tempdir().unwrap();
    let ours = token(folder.path(), "ours", &["--scope", "admin"]);
    let theirs = token(folder.path(), "theirs", &["--scope", "admin"]);
    let reader = token(folder.path(), "ours", &["--scope", "read"]);
    let bound =
        token(folder.path(), "ours", &["--scope", "read", "--scope", "operate", "--bind-flow", "greet"]);
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    for name in ["greet", "other"] {
        let definition = json!({ "flow": name, "steps": { "wait": { "worker": "depot" } } });
        assert_eq!(as_(&served, &ours, "POST", "/v1/flows", &definition).status, 201);
    }
    let write = json!({ "value": "secret" });
    for scope in ["tenant", "orders", "flow:greet", "flow:other"] {
        assert_eq!(as_(&served, &ours, "PUT", &format!("/v1/state/{scope}/k"), &write).status, 200);
        let elsewhere = as_(&served, &theirs, "GET", &format!("/v1/state/{scope}/k"), &Value::Null);
        assert_eq!(elsewhere.status, 404, "{}", elsewhere.body);
        assert_eq!(as_(&served, &reader, "PUT", &format!("/v1/state/{scope}/k"), &write).code(), "forbidden");
        assert_eq!(as_(&served, &reader, "GET", &format!("/v1/state/{scope}/k"), &Value::Null).status, 200);
    }
    assert_eq!(as_(&served, &theirs, "GET", "/v1/state", &Value::Null).json()["items"], json!([]));
    for (scope, status) in [("flow:greet", 200), ("flow:other", 404), ("tenant", 403), ("orders", 403)] {
        for (method, body) in [("GET", &Value::Null), ("PUT", &write)] {
            let reply = as_(&served, &bound, method, &format!("/v1/state/{scope}/k"), body);
            assert_eq!(reply.status, status, "{method} {scope}: {}", reply.body);
        }
    }
    let run = as_(&served, &ours, "POST", "/v1/flows/greet/runs", &json!({})).json();
    let of_run = format!("/v1/runs/{}/state?scope=", run["runId"].as_str().unwrap());
    for (scope, status) in [("run", 200), ("flow", 200), ("tenant", 403), ("orders", 403)] {
        let reply = as_(&served, &bound, "GET", &format!("{of_run}{scope}"), &Value::Null);
        assert_eq!(reply.status, status, "{scope}: {}", reply.body);
    }
    let audit = as_(&served, &ours, "GET", "/v1/audit?limit=100", &Value::Null).json();
    let lines = audit["items"].as_array().unwrap();
    let wrote = |path: &str, status: u64| {
        lines.iter().any(|line| line["method"] == "PUT" && line["path"] == path && line["status"] == status)
    };
    assert!(wrote("/v1/state/orders/k", 200) && wrote("/v1/state/orders/k", 403), "{audit}");
}
