//! `flowline state`, in a store.

use serde_json::json;

use crate::kit::place::Here;

#[test]
fn state_is_set_read_listed_and_deleted_by_hand() {
    let here = Here::new();
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    assert_eq!(here.json(1, &["state", "get", "orders", "o-1"])["error"]["code"], "no-such-key");
    let set = here.json(0, &["state", "set", "orders", "o-1", r#"{"paid": true}"#]);
    assert_eq!(set, json!({ "scope": "orders", "key": "o-1", "changed": true }));
    here.json(0, &["state", "set", "orders", "o-2", "2", "--ttl", "1h"]);
    assert_eq!(here.flowline(&["state", "get", "orders", "o-1"]).out, "{\"paid\": true}\n");
    assert_eq!(here.json(0, &["state", "get", "orders", "o-2"])["value"], 2);
    assert_eq!(here.json(0, &["state", "list"])["items"], json!([{ "scope": "orders" }]));
    let first = here.json(0, &["state", "list", "orders", "--limit", "1"]);
    assert_eq!((&first["items"][0]["key"], &first["next"]), (&json!("o-1"), &json!("o-1")));
    let rest = here.json(0, &["state", "list", "orders", "--limit", "1", "--cursor", "o-1"]);
    assert!(rest["items"][0]["expiresAt"].is_string(), "{rest}");
    let all = here.json(0, &["state", "list", "orders", "--limit", "1", "--all"]);
    assert_eq!((all["items"].as_array().unwrap().len(), &all["next"]), (2, &json!(null)));
    here.json(0, &["state", "set", "flow:order", "last", "7"]);
    assert_eq!(here.json(0, &["state", "get", "flow:order", "last"])["scope"], "flow:order");
    assert_eq!(here.json(0, &["state", "delete", "orders", "o-1"])["changed"], true);
    assert_eq!(here.json(0, &["state", "delete", "orders", "o-1"])["changed"], false);
}

#[test]
fn state_that_cannot_be_is_refused_with_the_remedy() {
    let here = Here::new();
    let run = here.start(&["slow.yaml"]);
    here.flowline(&["state", "get", "flow", "k"]).refused(2, &["flow:FLOW"]);
    here.flowline(&["state", "set", "orders", "k", "not json"]).refused(2, &["JSON"]);
    here.flowline(&["state", "set", &format!("run:{run}"), "k", "1"]).refused(2, &["only the steps of run"]);
    here.flowline(&["state", "list", "run:none"]).refused(2, &["flowline runs"]);
    here.flowline(&["state", "list", "flow:none"]).refused(2, &["flowline flows"]);
}
