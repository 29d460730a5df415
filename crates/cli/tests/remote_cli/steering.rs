//! Runs that begin anew, are deleted or are sent events without a payload, and versions of flows, at a server as on a store.

use serde_json::{Value, json};

use crate::kit::place::{ORDER, Said};
use crate::remote_cli::twins::Twins;

fn steps(shown: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let steps = shown["steps"].as_array().unwrap().iter();
    steps.map(|step| (text(&step["name"]), text(&step["status"]))).collect()
}

fn named(steps: &[(&str, &str)]) -> Vec<(String, String)> {
    steps.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn a_run_is_retried_from_its_start_with_its_input_and_nothing_that_it_had_done() {
    let mut twins = Twins::new();
    twins.again("whole", &["retry", "{order}"]);
    let inherited = steps(&twins.same(0, &["show", "{whole}"]));
    assert_eq!(
        inherited,
        named(&[("charge", "completed"), ("ship", "completed")]),
        "what a retry takes over"
    );

    twins.again("anew", &["retry", "{order}", "--from-start"]);
    let shown = twins.same(0, &["show", "{anew}"]);
    assert_eq!(steps(&shown), named(&[("charge", "queued"), ("ship", "pending")]), "{shown}");
    assert_eq!(shown["retryOf"], json!(twins.runs["order"][1]));
    let started = twins.same(0, &["events", "{anew}", "--type", "flow.start"]);
    assert_eq!(started["data"]["input"], json!({ "total": 1 }), "{started}");
    for words in [
        &["retry", "{anew}", "--from-start"][..],
        &["retry", "{order}", "--from-start", "--from", "ship"],
        &["retry", "nope", "--from-start"],
    ] {
        for said in twins.say(words) {
            assert_eq!(said.exit, 2, "{words:?}: {said:?}");
        }
    }
    let done = twins.own.json(0, &["work", "--until-idle"]);
    assert_eq!(done["runs"]["completed"], 1, "{done}");
    let shown = twins.own.json(0, &["show", &twins.runs["anew"][0]]);
    assert_eq!((&shown["status"], &shown["result"]), (&json!("completed"), &json!({ "ok": true })));
}

#[test]
fn a_machine_is_retried_from_its_start() {
    let mut twins = Twins::new();
    let machine = "
machine: door
events: { open: }
context: { turns: '0' }
states:
  shut: { on: { open: { to: jammed, set: { turns: 'context.turns + 1' } } } }
  jammed: { final: failed }
";
    twins.write("door.yaml", machine);
    twins.start("door", &["door.yaml"]);
    assert_eq!(twins.same(0, &["send", "{door}", "open", "--wait", "10s"])["status"], "failed");
    assert_eq!(twins.same(2, &["retry", "{door}"])["error"]["code"], "invalid");
    twins.again("anew", &["retry", "{door}", "--from-start"]);
    let shown = twins.same(0, &["show", "{anew}"]);
    assert_eq!((&shown["state"], &shown["status"]), (&json!("shut"), &json!("waiting")), "{shown}");
    assert_eq!(shown["context"], json!({ "turns": 0 }), "{shown}");
}

#[test]
fn runs_are_deleted_at_a_server_as_on_a_store() {
    let mut twins = Twins::new();
    twins.start("approve", &["approve.yaml"]);
    assert_eq!(twins.same(2, &["delete", "{approve}"])["error"]["code"], "input");
    twins.alike(2, &["delete", "{approve}"]);
    twins.same(0, &["delete", "{order}"]);
    for words in [&["delete", "{order}"][..], &["show", "{order}"], &["events", "{order}"]] {
        assert_eq!(twins.same(2, words)["error"]["code"], "no-such-run");
    }
    twins.same(2, &["delete"]);
    twins.same(2, &["delete", "--status", "waiting"]);
    let ids = |answer: &Value| answer["items"].as_array().unwrap().len();
    let dry = twins.same(0, &["delete", "--flow", "doomed", "--dry-run"]);
    assert_eq!((ids(&dry), &dry["deleted"]), (1, &json!(0)));
    twins.alike(0, &["delete", "--flow", "doomed", "--dry-run"]);
    twins.same(0, &["show", "{doomed}"]);
    assert_eq!(twins.same(0, &["delete", "--flow", "doomed"])["deleted"], 1);
    assert_eq!(twins.same(2, &["show", "{doomed}"])["error"]["code"], "no-such-run");
    assert_eq!(ids(&twins.same(0, &["delete", "--all", "--dry-run"])), 0);
    assert_eq!(twins.same(0, &["delete", "--all"])["deleted"], 0, "what waits is passed over");
    assert_eq!(twins.same(0, &["runs"])["total"], 1);
    twins.same(0, &["cancel", "{approve}"]);
    twins.alike(0, &["delete", "{approve}"]);
    assert_eq!(twins.same(0, &["verify"])["violations"], json!([]));
}

#[test]
fn versions_are_activated_and_flows_retired_at_a_server_as_on_a_store() {
    let mut twins = Twins::new();
    let input = ["--input", r#"{"total": 1}"#];
    let version = |twins: &mut Twins, flow: &str| {
        twins.start("new", &[&[flow], &input[..]].concat());
        twins.same(0, &["show", "{new}"])["definition"].as_str().unwrap().to_owned()
    };
    let first = version(&mut twins, "order.yaml");
    twins.write("order.yaml", &format!("{ORDER}\ndescription: another\n"));
    let second = version(&mut twins, "order.yaml");
    assert_ne!(first, second);

    let activated = twins.same(0, &["flows", "activate", "order", &first[..12]]);
    assert_eq!(activated, json!({ "flow": "order", "hash": first, "retired": false }));
    assert_eq!(version(&mut twins, "order"), first);
    twins.alike(0, &["flows", "activate", "order", &second]);
    assert_eq!(version(&mut twins, "order"), second);
    for words in [["order", "000000000000"], ["order", "nonsense"], ["none", &first]] {
        twins.same(2, &[&["flows", "activate"], &words[..]].concat());
        twins.alike(2, &[&["flows", "activate"], &words[..]].concat());
    }

    twins.same(0, &["flows", "retire", "order"]);
    twins.alike(0, &["flows", "retire", "order"]);
    twins.same(2, &["flows", "retire", "none"]);
    let refused = twins.same(2, &[&["start", "order"], &input[..]].concat());
    assert_eq!(refused["error"]["code"], "flow-retired");
    twins.same(0, &["flows", "--versions"]);
    twins.alike(0, &["flows"]);
    twins.same(0, &["flows", "activate", "order", &first]);
    assert_eq!(version(&mut twins, "order"), first);
}

#[test]
fn an_event_without_a_payload_leaves_no_key_in_the_input() {
    let mut twins = Twins::new();
    let flow = r#"
flow: bell
accepts: { rung: null, told: null }
steps:
  hear: { subscribes: [rung, told], command: [sh, -c, 'read -r step; echo "{\"result\": $step}"'] }
"#;
    twins.write("bell.yaml", flow);
    twins.start("bell", &["bell.yaml"]);
    assert_eq!(twins.same(0, &["send", "{bell}", "rung"])["changed"], true);
    assert_eq!(twins.same(0, &["send", "{bell}", "rung"])["changed"], false);
    twins.same(0, &["send", "{bell}", "told", "--payload", "null"]);
    twins.same(0, &["events", "{bell}", "--type", "emit"]);
    let emits: Vec<Value> = twins
        .say(&["events", "{bell}", "--type", "emit", "--json"])
        .iter()
        .flat_map(|Said { out, .. }| out.lines())
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].clone())
        .collect();
    assert_eq!(emits.len(), 4, "two on each side: {emits:?}");
    for data in &emits {
        let payload = (data["name"] == "told").then_some(Value::Null);
        assert_eq!(data.get("payload"), payload.as_ref(), "{data}");
    }
    twins.own.json(0, &["work", "--until-idle"]);
    let shown = twins.own.json(0, &["show", &twins.runs["bell"][0]]);
    assert_eq!(shown["result"]["hear"]["input"], json!({ "told": null }), "{shown}");
    // One that takes an object is not sent without.
    twins.start("approve", &["approve.yaml"]);
    twins.alike(2, &["send", "{approve}", "approval.given"]);
}
