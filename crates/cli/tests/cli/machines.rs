//! Machines on the command line: events sent and waited for, what became of them, and where a machine stands.

use crate::kit::place::Here;
use serde_json::json;

pub const EXPENSE: &str = r#"
machine: expense
events: { submit: , approve: { type: object }, reject: , edit: }
context: { amount: "input.amount" }
states:
  draft:
    on:
      submit: { to: review, if: "context.amount > 0", actions: [notify] }
      edit: { set: { amount: "payload.amount" } }
  review:
    on:
      approve: { to: approved, role: [manager], set: { by: "user" } }
      reject: { to: draft, role: [manager, director] }
    after: { in: 48h, to: escalated }
  escalated: { on: { approve: { to: approved, role: director } } }
  approved: { final: true }
actions:
  notify: { command: [sh, -c, "echo told"] }
"#;

fn here() -> Here {
    let here = Here::new();
    here.write("expense.yaml", EXPENSE);
    here
}

#[test]
fn an_event_is_sent_worked_on_and_told_of() {
    let here = here();
    let run = here.start(&["expense.yaml", "--input", r#"{"amount": 5}"#]);
    let run = run.as_str();
    let sent = here.json(0, &["send", run, "submit", "--user", "ada"]);
    assert_eq!((&sent["changed"], &sent["status"]), (&json!(true), &json!("running")), "{sent}");
    let waiting = here.json(0, &["send", run, "reject", "--role", "director", "--wait", "10ms"]);
    assert_eq!(waiting["receipt"]["status"], "pending", "nobody works on the action before it: {waiting}");
    let told = here.flowline(&["explain", run]).out;
    for text in [
        "in review; accepts approve (manager), reject (manager, director)",
        "timer at",
        ", to escalated",
        "1 in the inbox",
        "action notify queued",
    ] {
        assert!(told.contains(text), "{text:?} is missing: {told}");
    }
    let shown = here.flowline(&["show", run]).out;
    for text in [
        "state",
        "review",
        r#"{"amount":5}"#,
        "submit is being handled, running notify",
        "1 waiting",
        ", to escalated",
    ] {
        assert!(shown.contains(text), "{text:?} is missing: {shown}");
    }
    let processing = here.json(0, &["receipts", "--status", "processing"]);
    assert_eq!(processing["items"][0]["userId"], "ada", "{processing}");
    let worked = here.flowline(&["work", "--until-idle"]);
    for text in ["state review → draft on reject", "timer cancelled"] {
        assert!(worked.err.contains(text), "{text:?} is missing: {}", worked.err);
    }
    let receipts = here.json(0, &["receipts", "--run", run]);
    let states: Vec<_> =
        receipts["items"].as_array().unwrap().iter().map(|item| &item["result"]["currentState"]).collect();
    assert_eq!(states, ["draft", "review"], "the newest first");
    let log = here.flowline(&["events", run]).out;
    for text in [
        "event.received submit by ada",
        "state.changed  draft → review on submit",
        "timer.cancelled of review, because the run left that state",
    ] {
        assert!(log.contains(text), "{text:?} is missing: {log}");
    }
    assert_eq!(here.json(0, &["runs", "--flow", "expense", "--state", "draft"])["total"], 1);
    assert_eq!(here.json(0, &["runs", "--flow", "expense", "--state", "review"])["total"], 0);
    here.flowline(&["runs", "--state", "draft"]).refused(2, &["--flow"]);
    assert!(here.flowline(&["runs"]).out.contains("waiting in draft"));
    assert_eq!(here.json(0, &["stats"])["flows"]["expense"]["byState"], json!({ "draft": 1 }));
    assert!(here.flowline(&["flows"]).out.contains("machine"));
    assert!(here.flowline(&["graph", "expense.yaml"]).out.contains("review"));
    assert_eq!(here.json(0, &["verify"])["violations"], json!([]));
}

#[test]
fn an_event_that_is_turned_down_or_whose_action_fails_ends_with_1_for_whoever_waits() {
    let here = here();
    let run = here.start(&["expense.yaml", "--input", r#"{"amount": 0}"#]);
    let early =
        here.json(1, &["send", &run, "approve", "--payload", "{}", "--role", "manager", "--wait", "10s"]);
    assert_eq!(
        (&early["receipt"]["code"], &early["receipt"]["accepts"]),
        (&json!("wrong_state"), &json!(["edit", "submit"]))
    );
    let said = here.flowline(&["send", &run, "submit", "--wait", "10s"]);
    assert_eq!(said.exit, 1);
    assert!(said.out.contains("submit rejected: no condition"), "{said:?}");
    let edit = ["send", &run, "edit", "--payload", r#"{"amount": 2}"#, "--key", "k1", "--wait", "10s"];
    let said = here.flowline(&edit);
    assert!(said.exit == 0 && said.out.contains("edit completed: draft → draft"), "{said:?}");
    assert_eq!(here.json(0, &edit)["changed"], false, "one key, one event");
    assert_eq!(
        here.json(2, &["send", &run, "edit", "--payload", r#"{"amount": 3}"#, "--key", "k1"])["error"]["code"],
        "key-conflict"
    );
    for (words, code) in [
        (&["aprove"][..], "not-accepted"),
        (&["approve", "--payload", "{}"], "role"),
        (&["approve", "--payload", "1", "--role", "manager"], "schema"),
    ] {
        let refused = here.json(2, &[&["send", &run], words].concat());
        assert_eq!(refused["error"]["code"], code, "{refused}");
    }
    here.json(0, &["cancel", &run]);
    assert_eq!(here.json(2, &["send", &run, "submit"])["error"]["code"], "run-ended");
}

#[test]
fn a_run_is_started_by_its_first_event() {
    let here = here();
    here.start(&["expense.yaml", "--input", r#"{"amount": 9}"#]);
    let to = ["send", "--flow", "expense", "--business-key", "2026-117", "--input", r#"{"amount": 90}"#];
    let send = |words: &[&str]| here.json(0, &[&to[..], words].concat());
    let first = send(&["edit", "--payload", r#"{"amount": 91}"#]);
    let second = send(&["submit"]);
    assert_eq!(first["runId"], second["runId"]);
    let run = first["runId"].as_str().unwrap();
    let shown = here.json(0, &["show", run]);
    assert_eq!((&shown["state"], &shown["context"]), (&json!("review"), &json!({ "amount": 91 })));
    here.flowline(&["send", "--flow", "expense", "submit"]).refused(2, &["--business-key"]);
    here.flowline(&["send", run]).refused(2, &["the event's name is missing"]);
    here.flowline(&[&to[..], &[run, "submit"]].concat()).refused(2, &["drop RUN"]);
}

#[test]
fn a_machine_that_waits_for_events_is_left_waiting() {
    let here = here();
    let said = here.flowline(&["run", "expense.yaml", "--input", r#"{"amount": 1}"#]);
    assert_eq!(said.exit, 0, "{said:?}");
    for text in ["→ draft", "is waiting in draft for edit, submit; continue with `flowline send"] {
        assert!(said.err.contains(text), "{text:?} is missing: {said:?}");
    }
    let run = here.json(0, &["runs"])["items"][0]["runId"].as_str().unwrap().to_owned();
    let told = here.flowline(&["explain", &run]).out;
    assert!(told.ends_with("in draft; accepts edit, submit\n"), "no table of no actions: {told}");
    here.write(
        "vault.yaml",
        "machine: vault\nevents: [open]\nstates: {shut: {on: {open: {to: shut, role: owner}}}}\n",
    );
    let said = here.flowline(&["run", "vault.yaml"]);
    assert!(said.err.contains(" open --role owner --payload JSON`"), "{said:?}");
}
