//! Limits of payloads: what a raised one lets through, and what a lowered one leaves alone.

use crate::scenario::{Came, EPOCH, Scenario, json, start_of};
use flowline_core::decide::{Finish, Refusal, Start};
use flowline_core::limits::Limits;
use flowline_core::receipt::ReceiptStatus;
use flowline_core::run::{Phase, Status};
use flowline_core::{EventType, RunId};

const FLOW: &str = "
accepts: {go: null}
steps:
  a: {function: f, returns: ea, emits: [eb, ec]}
  b: {function: f, subscribes: [ea]}
  c: {function: f, subscribes: [go]}
";

const MACHINE: &str = "
machine: note
events: {write: , close: }
context: {text: input.text, edits: '0'}
states:
  open:
    on:
      write: {set: {text: payload.text, edits: 'context.edits + 1'}}
      close: {to: closed, set: {edits: '0'}}
  closed: {final: true}
";

fn large() -> Limits {
    Limits { context: 4 << 20, ..Limits::of_payload(4 << 20) }
}

fn text(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes))
}

fn note(bytes: usize) -> String {
    format!("{{\"text\":{}}}", text(bytes))
}

fn refused(came: Came) -> String {
    match came {
        Came::Refused(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_raised_limit_takes_larger_payloads_in_every_place() {
    let big = text(2 << 20);
    let mut run = Scenario::of(FLOW);
    run.limits = large();
    assert!(matches!(run.start(&big), Came::Decided(_)));
    assert!(matches!(run.emit_now("a", "eb", &big), Came::Decided(_)));
    run.done("a", &big, &[("ec", &big)]);
    assert_eq!(run.phase("a"), Phase::Completed);
    assert!(matches!(run.send("go", &big), Came::Decided(_)));
    assert!(matches!(run.finish(Finish::Completed { result: json(&big) }), Came::Decided(_)));
}

#[test]
fn a_raised_limit_takes_larger_events_and_contexts_of_machines() {
    let mut run = Scenario::of(MACHINE);
    assert!(refused(run.start(&note(100 << 10))).ends_with("the limit is 65536 (setting max-context)"));
    run.limits = large();
    assert!(matches!(run.start(&note(100 << 10)), Came::Decided(_)));
    run.event("e1", "write", &note(2 << 20), &[]);
    assert_eq!(run.receipts[&1].status, ReceiptStatus::Completed);
}

#[test]
fn a_lowered_limit_refuses_what_is_new_and_names_the_setting() {
    let mut run = Scenario::of(FLOW);
    run.limits = Limits::of_payload(4096);
    let (big, limit) = (text(4095), "is 4097 bytes; the limit is 4096 (setting max-payload)");
    assert_eq!(refused(run.start(&big)), format!("the input {limit}"));
    run.start("{}");
    assert_eq!(refused(run.send("go", &big)), format!("event \"go\" {limit}"));
    assert_eq!(refused(run.emit_now("a", "eb", &big)), format!("emit \"eb\" {limit}"));
    run.done("a", &big, &[]);
    assert_eq!(run.data(EventType::StepFailed)["error"], format!("the result {limit}"));
}

#[test]
fn a_run_ends_with_the_payloads_it_has_after_the_limit_was_lowered() {
    let big = text(2 << 20);
    let mut run = Scenario::of(FLOW);
    run.limits = large();
    run.start(&big);
    run.send("go", &big);
    run.done("a", &big, &[]);
    run.limits = Limits::default();
    assert_eq!(run.input("b").get().len(), big.len() + 7, "what it holds is read as before");
    run.done("b", "1", &[]);
    run.done("c", "1", &[]);
    assert_eq!(run.status(), Status::Completed);

    let mut again = Scenario::of(FLOW);
    let retry_of = Some(RunId::new("run-0").unwrap());
    let start = Start { retry_of, inherited: run.inheritance(), ..start_of(&big) };
    assert!(matches!(again.start_with(start), Came::Decided(_)), "its input is not new");
}

#[test]
fn results_that_are_over_a_lowered_limit_together_fail_the_run_and_name_the_setting() {
    let mut run = Scenario::of("steps:\n  a: {function: f}\n  b: {function: f}\n");
    run.start("{}");
    run.done("a", &text(9 << 10), &[]);
    run.limits = Limits { join: 12 << 10, ..Limits::of_payload(4096) };
    run.done("b", &text(4000), &[]);
    assert_eq!(run.status(), Status::Failed);
    let error = run.data(EventType::FlowFailed)["error"].to_string();
    assert!(error.contains("the limit is 12288 (setting max-join)"), "{error}");
}

#[test]
fn a_report_that_was_taken_stays_taken_after_the_limit_was_lowered() {
    let big = text(2 << 20);
    let mut run = Scenario::of(FLOW);
    run.limits = large();
    run.start("{}");
    run.emit_now("a", "eb", &big);
    run.limits = Limits::default();
    assert_eq!(run.emit_now("a", "eb", &big), Came::Applied);
    run.limits = large();
    run.done_at("a", 1, &big, &[]);
    run.limits = Limits::default();
    assert_eq!(run.done_at("a", 1, &big, &[]), Came::Applied);
    let other = run.done_at("a", 1, &text(3 << 20), &[]);
    assert!(matches!(other, Came::Refused(Refusal::OtherOutcome { .. })), "{other:?}");
    run.send("go", "1");
    run.done("b", "1", &[]);
    run.done("c", "1", &[]);
    assert_eq!(run.done_at("a", 1, &big, &[]), Came::Applied, "also once the run has ended");
}

#[test]
fn a_machine_still_moves_with_a_context_over_a_lowered_limit_and_may_not_let_it_grow() {
    let mut run = Scenario::of(MACHINE);
    run.limits = large();
    run.start(&note(1 << 20));
    run.limits = Limits::default();
    run.event("e1", "write", &note(1 << 19), &[]);
    assert_eq!(run.receipts[&1].status, ReceiptStatus::Completed, "it shrinks");
    run.event("e2", "write", &note(600 << 10), &[]);
    assert_eq!(run.receipts[&2].status, ReceiptStatus::Failed, "it would grow");
    let reason = run.data(EventType::EventRejected)["reason"].to_string();
    assert!(reason.contains("(setting max-context)"), "{reason}");
    run.event("e3", "close", "null", &[]);
    assert_eq!((run.at().as_str(), run.status()), ("closed", Status::Completed));
}

#[test]
fn a_machine_that_was_started_for_later_begins_after_the_limit_was_lowered() {
    let mut run = Scenario::of(MACHINE);
    run.limits = large();
    let at = Some(EPOCH + std::time::Duration::from_secs(60));
    run.start_with(Start { at, ..start_of(&note(1 << 20)) });
    run.limits = Limits::default();
    assert!(matches!(run.timer_due(std::time::Duration::ZERO), Came::Decided(_)));
    assert_eq!(run.at(), "open");
}
