//! How machines answer events: turns, transitions, guards, roles, context, timers, actions, and how a run ends.

use std::time::Duration;

use crate::scenario::{Came, EPOCH, Scenario, start_of};
use flowline_core::decide::{Decided, Known, Moment, Refusal, Sender, decide};
use flowline_core::definition::{Format, read, read_stored};
use flowline_core::event::PayloadSlot;
use flowline_core::receipt::ReceiptStatus;
use flowline_core::run::Status;
use flowline_core::{DecideInput, EventType, RunId, limits};
use serde_json::json;

const EXPENSE: &str = r#"
machine: expense
events: {submit: , approve: {type: object, properties: {note: {type: string}}}, reject: , edit: }
context: {amount: "input.amount", edits: "0"}
states:
  draft:
    on:
      edit: {set: {amount: "payload.amount", edits: "context.edits + 1"}}
      submit: {to: review, if: "context.amount > 0", actions: [notify]}
  review:
    entry: [assign]
    exit: [unassign]
    on:
      approve:
        - {to: approved, role: [manager], if: "context.amount < 1000", set: {by: user}}
        - {to: approved, role: director, set: {by: user}}
      reject: {to: draft, role: [manager, director]}
    after: {in: 48h, to: escalated, actions: [remind]}
  escalated: {on: {approve: {to: approved, role: director}}}
  approved: {final: true}
actions:
  assign: {function: f, after: [notify]}
  unassign: {function: f}
  notify: {function: f}
  remind: {function: f}
"#;

fn expense(amount: u32) -> Scenario {
    Scenario::started(EXPENSE, &format!("{{\"amount\":{amount}}}"))
}

fn status(run: &Scenario, number: u32) -> ReceiptStatus {
    run.receipts[&number].status
}

fn outcome(run: &Scenario, number: u32) -> serde_json::Value {
    run.receipts[&number].outcome.as_ref().expect("an outcome").value()
}

#[test]
fn an_approval_goes_its_way() {
    let mut run = expense(500);
    assert_eq!((run.at().as_str(), run.status()), ("draft", Status::Waiting));
    run.event("e1", "submit", "null", &[]);
    assert_eq!(run.live(), ["notify"], "the transition's own action goes before those of the entry");
    run.done("notify", r#"{"sent":1}"#, &[]);
    assert_eq!(run.live(), ["assign"]);
    run.done("assign", "null", &[]);
    assert_eq!(status(&run, 1), ReceiptStatus::Completed);
    assert_eq!(
        outcome(&run, 1),
        json!({"previousState": "draft", "currentState": "review", "actionsExecuted": ["notify", "assign"], "tries": 1})
    );
    run.event("e2", "approve", r#"{"note":"fine"}"#, &["manager"]);
    run.done("unassign", "null", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(run.data(EventType::FlowCompleted)["result"], json!({"amount": 500, "edits": 0, "by": "u1"}));
    assert_run!(run);
}

#[test]
fn events_wait_for_the_actions_of_those_before_them_and_keep_their_order() {
    let mut run = expense(500);
    run.event("e1", "submit", "null", &[]);
    run.event("e2", "reject", "null", &["manager"]);
    run.event("e3", "edit", r#"{"amount":7}"#, &[]);
    assert_eq!(
        (status(&run, 1), status(&run, 2), status(&run, 3)),
        (ReceiptStatus::Processing, ReceiptStatus::Pending, ReceiptStatus::Pending)
    );
    run.done("notify", "null", &[]);
    run.done("assign", "null", &[]);
    assert_eq!(run.live(), ["unassign"], "the rejection has its turn now");
    assert_eq!(status(&run, 3), ReceiptStatus::Pending);
    run.done("unassign", "null", &[]);
    assert_eq!(status(&run, 3), ReceiptStatus::Completed, "an edit asks for no action");
    assert_eq!(run.at(), "draft");
}

#[test]
fn a_repeated_event_is_taken_once() {
    let mut run = expense(5);
    run.event("e1", "edit", r#"{"amount":6}"#, &[]);
    assert_eq!(run.event("e1", "edit", r#"{"amount":6}"#, &[]), Came::Applied);
    assert_eq!(run.state.machine.as_ref().unwrap().received, 1);
}

#[test]
fn what_could_never_be_accepted_is_refused_at_once() {
    let mut run = expense(5);
    assert!(matches!(run.event("e1", "aprove", "null", &[]), Came::Refused(Refusal::NotAccepted { .. })));
    let unheard = "machine: m\nevents: [go, hush]\nstates: {a: {on: {go: a}}}\n";
    let Came::Refused(refusal) = Scenario::started(unheard, "{}").event("e1", "hush", "null", &[]) else {
        panic!("no state answers it")
    };
    assert_eq!(refusal.to_string(), r#""m" doesn't accept event "hush"; it accepts go"#);
    let Came::Refused(refusal) = run.event("e2", "approve", "{}", &["clerk"]) else { panic!("not refused") };
    assert_eq!(refusal.to_string(), r#"event "approve" requires the role director or manager"#);
    assert!(matches!(
        run.event("e3", "approve", r#"{"note":1}"#, &["manager"]),
        Came::Refused(Refusal::Schema { .. })
    ));
    assert!(run.receipts.is_empty(), "nothing was taken in");
    run.cancel();
    assert!(matches!(
        run.event("e4", "submit", "null", &[]),
        Came::Refused(Refusal::Ended(Status::Cancelled))
    ));
}

#[test]
fn what_does_not_fit_when_its_turn_comes_is_recorded_as_rejected() {
    let mut run = expense(0);
    run.event("e1", "approve", "{}", &["manager"]);
    assert_eq!(status(&run, 1), ReceiptStatus::Failed);
    assert_eq!(outcome(&run, 1)["code"], "wrong_state");
    assert_eq!(outcome(&run, 1)["accepts"], json!(["edit", "submit"]));
    run.event("e2", "submit", "null", &[]);
    assert_eq!(outcome(&run, 2)["code"], "guard");
    run.event("e3", "edit", "{}", &[]);
    assert_eq!(outcome(&run, 3)["code"], "expression", "the payload has no amount");
    run.event("e4", "edit", r#"{"amount":5000}"#, &[]);
    run.event("e5", "submit", "null", &[]);
    run.done("notify", "null", &[]);
    run.done("assign", "null", &[]);
    run.event("e6", "approve", "{}", &["manager"]);
    assert_eq!(outcome(&run, 6)["code"], "guard", "a manager approves less than 1000");
    run.event("e7", "approve", "{}", &["director"]);
    run.done("unassign", "null", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_run!(run);
}

#[test]
fn a_timer_fires_once_and_goes_with_its_state() {
    let mut run = expense(5);
    run.event("e1", "submit", "null", &[]);
    let late = run.timers.clone();
    run.done("notify", "null", &[]);
    run.done("assign", "null", &[]);
    run.event("e2", "reject", "null", &["manager"]);
    assert!(run.timers.is_empty(), "it went in the commit that left the state");
    let (&timer, job) = late.first_key_value().unwrap();
    let stale = DecideInput::TimerDue { timer, number: job.attempt, due: job.due };
    assert_eq!(run.apply(stale), Came::Applied, "one that was left does nothing");
    run.done("unassign", "null", &[]);
    run.event("e3", "submit", "null", &[]);
    run.done("notify", "null", &[]);
    run.timer_due(Duration::ZERO);
    assert_eq!(run.at(), "review", "it takes its turn after the actions");
    run.done("assign", "null", &[]);
    assert_eq!(run.live(), ["unassign"]);
    run.done("unassign", "null", &[]);
    run.done("remind", "null", &[]);
    assert_eq!(run.at(), "escalated");
    assert_run!(run);
}

const TIMERS: &str = r#"
machine: timers
events: [go, stop]
context: {due: "input.due"}
initial: a
states:
  a: {on: {go: b}, after: {at: "context.due", to: late, missed: skip}}
  b: {on: {go: c, stop: end}, after: {in: 10s, to: late, missed: restart}}
  c: {on: {stop: end}, after: [{in: 10s, if: "false", to: late}, {in: 20s, to: late}]}
  late: {on: {stop: end}}
  end: {final: failed}
"#;

#[test]
fn a_missed_timer_follows_its_policy() {
    let due = r#"{"due":"2026-01-01T00:01:00Z"}"#;
    let mut run = Scenario::started(TIMERS, due);
    run.timer_due(Duration::from_secs(59));
    assert_eq!(run.at(), "late", "under a minute is on time");

    let mut run = Scenario::started(TIMERS, due);
    run.timer_due(Duration::from_secs(61));
    assert_eq!((run.at().as_str(), run.timers.len()), ("a", 0), "skipped");
    run.event("e1", "go", "null", &[]);
    run.timer_due(Duration::from_secs(61));
    assert_eq!((run.at().as_str(), run.timers.len()), ("b", 1), "counts again");
    run.event("e2", "go", "null", &[]);
    run.timer_due(Duration::ZERO);
    assert_eq!((run.at().as_str(), run.timers.len()), ("c", 1), "its condition does not hold");
    run.timer_due(Duration::from_secs(9_999));
    assert_eq!(run.at(), "late", "it fires, late");
    run.event("e3", "stop", "null", &[]);
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(run.data(EventType::FlowFailed)["error"], r#"the machine ended in state "end""#);
}

const ORDER: &str = r#"
machine: order
events: [pay, cancel, note]
states:
  new:
    on:
      pay: {to: paid, actions: [charge, mail, book]}
      note: {actions: [log]}
    after: {in: 1h, to: expired}
  paid: {final: true}
  expired: {final: failed}
  broken: {on: {cancel: expired, pay: {to: paid, actions: [charge]}}}
actions:
  charge: {function: f, on_error: broken, retry: {attempts: 2, delay: 1s}}
  mail: {function: f, on_failure: continue}
  book: {function: f, after: [charge, mail]}
  log: {function: f, if: "payload.loud"}
"#;

#[test]
fn a_failing_action_follows_its_policy() {
    let mut run = Scenario::started(ORDER, "{}");
    run.event("e1", "pay", "null", &[]);
    assert_eq!(run.live(), ["charge", "mail"]);
    run.fail("charge", "declined");
    run.fail("mail", "smtp");
    assert_eq!(run.live(), ["charge"], "it is tried again");
    run.event("e2", "pay", "null", &[]);
    run.fail("charge", "declined");
    assert_eq!(run.live(), ["charge"], "moved, and the next event has its turn");
    assert_eq!(status(&run, 1), ReceiptStatus::Failed);
    assert_eq!(outcome(&run, 1)["error"], "broke with declined");
    assert_eq!(outcome(&run, 1)["tries"], 2);
    run.done("charge", "null", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_run!(run);
}

#[test]
fn an_action_under_fail_fails_the_run_once_the_others_are_done() {
    let mut run = Scenario::started(ORDER, "{}");
    run.event("e1", "note", r#"{"loud":true}"#, &[]);
    run.event("e2", "note", r#"{"loud":false}"#, &[]);
    run.event("e3", "pay", "null", &[]);
    run.fail("log", "x");
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(outcome(&run, 3)["code"], "ended");
    assert_eq!(run.data(EventType::FlowFailed)["step"], "log");
}

#[test]
fn a_condition_skips_its_action_and_those_after_it_go_on() {
    let mut run = Scenario::started(ORDER, "{}");
    run.event("e1", "note", r#"{"loud":false}"#, &[]);
    assert_eq!(status(&run, 1), ReceiptStatus::Completed);
    run.event("e2", "pay", "null", &[]);
    run.done("charge", r#"{"id":4}"#, &[]);
    run.done("mail", "null", &[]);
    let payloads = Default::default();
    let missing = run.plan.input_of(run.index("book"), &run.state, &payloads).unwrap_err();
    assert_eq!(missing.len(), 4, "the event, the context and two results");
    run.done("book", "null", &[]);
    assert_eq!(run.status(), Status::Completed);
}

#[test]
fn a_paused_machine_takes_events_in_and_gives_no_turn() {
    let mut run = expense(5);
    run.apply(flowline_core::DecideInput::Pause);
    run.event("e1", "edit", r#"{"amount":1}"#, &[]);
    run.event("e2", "edit", r#"{"amount":2}"#, &[]);
    assert_eq!((status(&run, 1), run.status()), (ReceiptStatus::Pending, Status::Paused));
    run.apply(flowline_core::DecideInput::Resume);
    assert_eq!((status(&run, 1), status(&run, 2)), (ReceiptStatus::Completed, ReceiptStatus::Completed));
    run.event("e3", "submit", "null", &[]);
    run.cancel();
    assert_eq!(outcome(&run, 3)["code"], "ended");
}

#[test]
fn a_delayed_machine_begins_in_its_time() {
    let mut run = Scenario::of(EXPENSE);
    let start = flowline_core::decide::Start {
        at: Some(run.now + Duration::from_secs(60)),
        ..start_of(r#"{"amount":1}"#)
    };
    run.start_with(start);
    assert_eq!((run.at().as_str(), run.status()), ("", Status::Waiting));
    run.event("e1", "edit", r#"{"amount":3}"#, &[]);
    assert_eq!(status(&run, 1), ReceiptStatus::Pending);
    run.timer_due(Duration::ZERO);
    assert_eq!((run.at().as_str(), status(&run, 1)), ("draft", ReceiptStatus::Completed));
}

#[test]
fn a_start_that_the_context_cannot_be_made_of_is_refused() {
    let mut run = Scenario::of(EXPENSE);
    let Came::Refused(refusal) = run.start("{}") else { panic!("not refused") };
    assert!(refusal.to_string().starts_with("`context.amount`: "), "{refusal}");
}

#[test]
fn a_delayed_start_that_could_never_begin_is_refused_at_once() {
    let mut run = Scenario::of(EXPENSE);
    let at = Some(run.now + Duration::from_secs(60));
    let came = run.start_with(flowline_core::decide::Start { at, ..start_of("{}") });
    assert!(matches!(came, Came::Refused(Refusal::Expression { .. })));
}

/// Its `after` names an action of a later group, as definitions that were registered before that was an error can.
const CROSSED: &str = r#"{
  "machine": "crossed",
  "events": ["pay"],
  "states": {
    "cart": {"on": {"pay": {"to": "paid", "actions": ["mail"]}}},
    "paid": {"entry": ["charge", "ship"], "on": {"pay": "cart"}}
  },
  "actions": {
    "mail": {"function": "f", "after": ["charge"]},
    "charge": {"function": "f"},
    "ship": {"function": "f", "after": ["charge", "mail"]}
  }
}"#;

#[test]
fn after_orders_actions_within_their_group_alone_and_none_is_dropped() {
    assert!(read("crossed.json", CROSSED, Format::Json).is_err(), "it cannot be registered any more");
    let mut run = Scenario::new(read_stored("crossed.json", CROSSED).unwrap());
    run.start("{}");
    run.event("e1", "pay", "null", &[]);
    for action in ["mail", "charge", "ship"] {
        assert_eq!(run.live(), [action]);
        run.done(action, "null", &[]);
    }
    assert_eq!(status(&run, 1), ReceiptStatus::Completed);
    assert_eq!(outcome(&run, 1)["actionsExecuted"], json!(["mail", "charge", "ship"]));
    assert!(run.log.iter().all(|event| event.kind != EventType::StepSkipped));
}

const CIRCLE: &str = r#"
machine: circle
events: [go]
states:
  a: {on: {go: b}}
  b: {entry: [work], on: {go: a}}
actions:
  work: {function: f, if: "context.missing", on_error: b}
"#;

#[test]
fn a_machine_that_goes_from_failure_to_failure_ends() {
    let mut run = Scenario::started(CIRCLE, "{}");
    run.event("e1", "go", "null", &[]);
    assert_eq!(run.status(), Status::Failed);
    let error = run.data(EventType::FlowFailed)["error"].clone();
    assert_eq!(error, r#"action "work" and the state in its `on_error` lead to each other"#);
}

#[test]
fn the_number_of_transitions_is_limited_whatever_brings_them_about() {
    let text = "machine: m
events: [go]
states: {a: {entry: [work], on: {go: a}, after: {in: 1s, to: a}}}
actions: {work: {function: f, on_error: a}}";
    // What comes of an input in a run that has made as many as it may.
    let decided = |run: &Scenario, input: DecideInput| {
        let mut state = run.state.clone();
        state.machine.as_mut().unwrap().transition = limits::TRANSITIONS;
        let known = Known {
            payloads: [(PayloadSlot::Context(1), json!({}).into())].into(),
            receipts: [("e1".to_owned(), false)].into(),
            ..Known::default()
        };
        let id = RunId::new("run-1").unwrap();
        match decide(
            &run.plan,
            &state,
            &input,
            &known,
            Moment { run: &id, created_at: EPOCH, now: run.now, limits: run.limits },
        ) {
            Decided::Decision(decision) => *decision,
            other => panic!("{other:?}"),
        }
    };
    let mut run = Scenario::started(text, "{}");
    let (step, attempt) = (0, run.claim("work"));
    let failed =
        decided(&run, DecideInput::Failed { step, attempt, failure: crate::scenario::failure("no") });
    assert_eq!(failed.state.status(), Status::Failed, "by a failure it ends");
    assert!(failed.failure.unwrap().0.contains("which is the limit"));
    run.done("work", "null", &[]);
    let (timer, job) = run.timers.first_key_value().unwrap();
    let fired = decided(&run, DecideInput::TimerDue { timer: *timer, number: job.attempt, due: job.due });
    assert_eq!(fired.state.status(), Status::Failed, "by a timer too");
    let event = DecideInput::External {
        name: "go".to_owned(),
        payload: json!(null).into(),
        event_id: Some("e1".to_owned()),
        sender: Sender::default(),
    };
    let turned_down = decided(&run, event);
    assert_eq!(turned_down.state.status(), Status::Waiting, "an event is turned down");
    assert_eq!(turned_down.receipts[0].status, ReceiptStatus::Failed);
}

#[test]
fn a_full_inbox_refuses_more() {
    let mut run = expense(5);
    run.event("e1", "submit", "null", &[]);
    for n in 0..limits::INBOX {
        run.event(&format!("n{n}"), "edit", r#"{"amount":1}"#, &[]);
    }
    assert_eq!(run.event("last", "edit", "{}", &[]), Came::Refused(Refusal::InboxFull));
    run.done("notify", "null", &[]);
    run.done("assign", "null", &[]);
    assert!(run.receipts.values().all(|receipt| receipt.status != ReceiptStatus::Pending));
}

#[test]
fn a_lost_action_is_tried_again_under_the_next_attempt() {
    let mut run = expense(5);
    run.event("e1", "submit", "null", &[]);
    run.lose("notify");
    assert_eq!(run.live(), ["notify"]);
    run.done("notify", "null", &[]);
    run.done("assign", "null", &[]);
    assert_eq!(outcome(&run, 1)["tries"], 2);
    assert_eq!(
        run.done_at("notify", 1, "null", &[]),
        Came::Refused(Refusal::StaleAttempt { step: "notify".into(), attempt: 1 })
    );
}

#[test]
fn the_report_of_an_action_is_known_after_a_later_transition_asked_for_it_again() {
    let text = "machine: bell\nevents: {press: }\nstates:\n  silent: {on: {press: {actions: [ring]}}}\nactions: {ring: {function: f}}\n";
    let mut run = Scenario::started(text, "{}");
    run.event("e1", "press", "null", &[]);
    let first = run.claim("ring");
    run.done("ring", "\"ding\"", &[]);
    run.event("e2", "press", "null", &[]);
    assert_eq!(run.done_at("ring", first, "\"ding\"", &[]), Came::Applied);
    run.done("ring", "\"dong\"", &[]);
    assert_eq!(run.done_at("ring", first, "\"ding\"", &[]), Came::Applied);
    let other = run.done_at("ring", first, "\"dong\"", &[]);
    assert!(matches!(other, Came::Refused(Refusal::OtherOutcome { .. })), "{other:?}");
}
