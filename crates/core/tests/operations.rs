//! What clients, operators and timers do to a run: start, cancel, pause, time out, finish, repeat.

use std::time::Duration;

use crate::scenario::{Came, EPOCH, Scenario, json, start_of};
use flowline_core::decide::{DecideInput, Finish, Refusal, Start};
use flowline_core::limits::{self, Limits};
use flowline_core::run::{Phase, Status};
use flowline_core::{EventType, RunId};

const CHAIN: &str = "
steps:
  a: {function: f, returns: ea}
  b: {function: f, subscribes: [ea], returns: eb, retry: {attempts: 3, jitter: false}}
  c: {function: f, subscribes: [eb]}
";

#[test]
fn a_start_applied_twice_starts_once() {
    let mut run = Scenario::started(CHAIN, "{}");
    assert_eq!(run.start("{}"), Came::Applied);
    run.done("a", "1", &[]);
    assert_eq!(run.start("{}"), Came::Applied);
    assert_eq!(run.kinds().iter().filter(|kind| **kind == "flow.start").count(), 1);
}

#[test]
fn an_input_that_breaks_its_schema_is_refused() {
    let mut run = Scenario::of("input: {type: object, required: [total]}\nsteps:\n  a: {function: f}\n");
    let came = run.start("{}");
    assert!(matches!(&came, Came::Refused(Refusal::Schema { what, .. }) if what == "the input"), "{came:?}");
    assert!(run.log.is_empty() && run.jobs.is_empty());
    assert!(matches!(run.start(r#"{"total":1}"#), Came::Decided(_)));
}

#[test]
fn an_input_or_event_over_its_limit_is_refused_with_the_limit_named() {
    let big = format!("\"{}\"", "x".repeat(Limits::default().payload));
    let mut run = Scenario::of(
        "accepts: {go: null}\nsteps:\n  a: {function: f}\n  b: {function: f, subscribes: [go]}\n",
    );
    let refused = |came: Came| match came {
        Came::Refused(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(run.start(&big)),
        "the input is 1048578 bytes; the limit is 1048576 (setting max-payload)"
    );
    run.start("{}");
    assert_eq!(
        refused(run.send("go", &big)),
        "event \"go\" is 1048578 bytes; the limit is 1048576 (setting max-payload)"
    );
    let finish = Finish::Completed { result: json(&big) };
    assert_eq!(
        refused(run.finish(finish)),
        "the result is 1048578 bytes; the limit is 1048576 (setting max-payload)"
    );
}

#[test]
fn nothing_but_a_start_begins_a_run() {
    for input in [
        DecideInput::Cancel { reason: None },
        DecideInput::Pause,
        DecideInput::Revisit,
        DecideInput::TimedOut,
    ] {
        let mut run = Scenario::of(CHAIN);
        assert!(matches!(run.apply(input.clone()), Came::Refused(_)), "{input:?}");
    }
}

#[test]
fn a_delayed_start_waits_until_it_is_claimed() {
    let mut run = Scenario::of(&format!("timeout: 1m\n{CHAIN}"));
    let at = EPOCH + Duration::from_secs(60);
    run.start_with(Start { at: Some(at), ..start_of("{}") });
    assert_eq!((run.status(), run.jobs[&0].due), (Status::Waiting, at));
    assert_eq!(run.timer.as_ref().unwrap().due, at + Duration::from_secs(60), "time counts from the start");
    run.claim("a");
    assert_eq!(run.status(), Status::Running);
    run.done("a", "1", &[]);
    assert_run!(run);
}

#[test]
fn a_start_in_the_past_is_not_delayed() {
    let mut run = Scenario::of(CHAIN);
    run.start_with(Start { at: Some(EPOCH), ..start_of("{}") });
    assert_eq!(run.status(), Status::Running);
    assert!(run.data(EventType::FlowStart).get("startAt").is_none());
}

#[test]
fn cancel_ends_a_run_in_the_middle_of_a_step() {
    let mut run = Scenario::started(CHAIN, "{}");
    run.done("a", "1", &[]);
    run.claim("b");
    run.apply(DecideInput::Cancel { reason: Some("changed my mind".to_owned()) });
    assert_eq!((run.status(), run.jobs.len()), (Status::Cancelled, 0));
    assert_eq!(run.done_at("b", 1, "1", &[]), Came::Refused(Refusal::Ended(Status::Cancelled)));
    assert_eq!(run.cancel(), Came::Applied);
    assert_run!(run);
}

#[test]
fn every_late_report_to_a_cancelled_run_changes_nothing() {
    let mut run = Scenario::started(CHAIN, "{}");
    run.cancel();
    let before = run.log.clone();
    run.done_at("a", 1, "1", &[]);
    run.apply(DecideInput::Failed { step: 0, attempt: 1, failure: crate::scenario::failure("x") });
    run.apply(DecideInput::LeaseLost { step: 0, attempt: 1, released: false });
    run.apply(DecideInput::EmitNow { step: 0, attempt: 1, name: "ea".to_owned(), payload: json("1") });
    run.apply(DecideInput::Started { step: 0, attempt: 1, data: json("{}") });
    run.apply(DecideInput::TimedOut);
    run.pause();
    run.resume();
    run.apply(DecideInput::Revisit);
    run.finish(Finish::Failed { error: "x".to_owned() });
    assert_eq!(run.log, before);
    assert_run!(run);
}

#[test]
fn a_run_cancelled_while_fail_fast_waits_stays_ended() {
    let mut run =
        Scenario::started("fail_fast: true\nsteps:\n  a: {function: f}\n  b: {function: f}\n", "{}");
    run.claim("b");
    run.fail("a", "x");
    run.cancel();
    assert_eq!(run.apply(DecideInput::Revisit), Came::Applied);
}

#[test]
fn a_pause_holds_new_jobs_until_the_run_is_resumed() {
    let mut run = Scenario::started(CHAIN, "{}");
    run.claim("a");
    run.pause();
    assert_eq!(run.status(), Status::Paused);
    assert_eq!(run.pause(), Came::Applied);
    run.done("a", "1", &[]);
    assert!(run.jobs[&1].held);
    assert_eq!(run.status(), Status::Paused);
    run.resume();
    assert_eq!(run.resume(), Came::Applied);
    assert!(!run.jobs[&1].held);
    assert_eq!(run.status(), Status::Running);
    assert_run!(run);
}

#[test]
fn a_paused_run_ends_when_its_last_step_reports() {
    let mut run = Scenario::started("steps:\n  a: {function: f}\n", "{}");
    run.claim("a");
    run.pause();
    run.done("a", "1", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(run.resume(), Came::Refused(Refusal::Ended(Status::Completed)));
}

#[test]
fn a_run_out_of_time_fails_whatever_it_does() {
    let mut run = Scenario::started(&format!("timeout: 1h\n{CHAIN}"), "{}");
    run.done("a", "1", &[]);
    run.time_out();
    assert_eq!((run.status(), run.jobs.len()), (Status::Failed, 0));
    let failed = run.data(EventType::FlowFailed);
    assert_eq!(
        (failed["code"].as_str(), failed["error"].as_str()),
        (Some("timeout"), Some("the run timed out after 1h"))
    );
    assert_eq!(run.apply(DecideInput::TimedOut), Came::Applied);
    assert_run!(run);
}

#[test]
fn the_time_out_of_a_run_goes_with_it() {
    let mut run = Scenario::started("timeout: 1h\nsteps:\n  a: {function: f}\n", "{}");
    assert!(run.timer.is_some());
    run.done("a", "1", &[]);
    assert_eq!((run.status(), run.timer.clone()), (Status::Completed, None));
    assert_eq!(run.apply(DecideInput::TimedOut), Came::Applied);
}

#[test]
fn an_operator_completes_a_run_with_a_result() {
    let mut run = Scenario::started(CHAIN, "{}");
    run.finish(Finish::Completed { result: json(r#"{"ok":1}"#) });
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(run.data(EventType::FlowCompleted)["by"], "operator");
    assert_run!(run);
}

#[test]
fn an_operator_fails_a_run_with_a_reason() {
    let mut run = Scenario::started(CHAIN, "{}");
    run.finish(Finish::Failed { error: "stuck".to_owned() });
    assert_eq!(run.status(), Status::Failed);
    let again = run.finish(Finish::Failed { error: "stuck".to_owned() });
    assert_eq!(again, Came::Refused(Refusal::Ended(Status::Failed)));
    assert_run!(run);
}

#[test]
fn what_an_operator_says_is_cut_to_its_limit() {
    let long = "é".repeat(limits::ERROR_BYTES);
    let mut run = Scenario::started(CHAIN, "{}");
    run.finish(Finish::Failed { error: long.clone() });
    assert!(run.data(EventType::FlowFailed)["error"].as_str().unwrap().len() <= limits::ERROR_BYTES);
    let mut run = Scenario::started(CHAIN, "{}");
    run.apply(DecideInput::Cancel { reason: Some(long) });
    assert!(run.data(EventType::FlowCancelled)["reason"].as_str().unwrap().len() <= limits::ERROR_BYTES);
}

#[test]
fn looking_again_at_a_healthy_run_changes_nothing() {
    let mut run = Scenario::started(CHAIN, "{}");
    assert_eq!(run.apply(DecideInput::Revisit), Came::Applied);
    run.done("a", "1", &[]);
    assert_eq!(run.apply(DecideInput::Revisit), Came::Applied);
}

/// A run that repeats `of` with what it had finished.
fn repeat(of: &Scenario) -> Scenario {
    let mut run = Scenario::planned(of.plan.clone());
    let retry_of = Some(RunId::new("run-0").unwrap());
    run.start_with(Start { retry_of, inherited: of.inheritance(), ..start_of("{}") });
    run
}

#[test]
fn a_repeated_run_does_only_what_was_left() {
    let mut first = Scenario::started(CHAIN, "{}");
    first.done("a", "1", &[]);
    first.fail("b", "x");
    first.done("b", "2", &[]);
    first.fail("c", "x");
    assert_eq!(first.status(), Status::Failed);
    let mut run = repeat(&first);
    assert_eq!(run.steps(Phase::Completed), ["a", "b"]);
    assert_eq!(run.live(), ["c"]);
    run.done("c", "3", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_run!(run);
}

#[test]
fn a_repeated_run_joins_what_it_inherits_with_what_is_left() {
    let flow = "
steps:
  a: {function: f, returns: ea}
  b: {function: f, returns: eb}
  c: {function: f, subscribes: [ea, eb], if: 'events.ea == 1 && events.eb == 2'}
";
    let mut first = Scenario::started(flow, "{}");
    first.done("a", "1", &[]);
    first.fail("b", "x");
    let mut run = repeat(&first);
    assert_eq!(run.live(), ["b"]);
    run.done("b", "2", &[]);
    assert_eq!(run.live(), ["c"]);
    run.done("c", "3", &[]);
    assert_run!(run);
}

#[test]
fn a_repeated_run_with_nothing_left_ends_at_once() {
    let mut first = Scenario::started(CHAIN, "{}");
    first.done("a", "1", &[]);
    first.done("b", "2", &[]);
    first.done("c", "3", &[]);
    let run = repeat(&first);
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(run.data(EventType::FlowCompleted)["result"], serde_json::json!({"c": 3}));
}

#[test]
fn events_carry_contiguous_numbers_and_the_id_of_their_attempt() {
    let mut run = Scenario::started(CHAIN, "{}");
    run.done("a", "1", &[]);
    run.wait(5);
    run.fail("b", "x");
    run.done("b", "2", &[]);
    run.done("c", "3", &[]);
    for (at, event) in run.log.iter().enumerate() {
        assert_eq!((event.seq, event.v), (at as u64 + 1, 1));
        assert_eq!(event.id, format!("{}-{}", event.ts.millis(), event.seq));
        let attempted = event.step_name.as_ref().zip(event.attempt);
        assert_eq!(event.step_id, attempted.map(|(step, n)| format!("run-1__{step}__attempt-{n}")));
    }
    let shown: Vec<String> = run.log.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    assert_shown!(shown.join("\n"));
}
