//! The model on cases that anybody can check by hand: a flow, a log, and whether they go together.

use std::sync::Arc;

use flowline_core::definition::{Format, read};
use flowline_core::event::NewEvent;
use flowline_core::{Event, EventType, Json, RunId, Tenant};
use serde_json::{Value, json};

use super::{ObservedRun, compare};
use crate::program::SimProgram;

/// A diamond: two branches after one, joined again.
const DIAMOND: &str = "
  a: { function: f, returns: a.done }
  b: { function: f, subscribes: a.done, returns: b.done }
  c: { function: f, subscribes: a.done, returns: c.done }
  d: { function: f, subscribes: [b.done, c.done] }
";

/// Parts such as `step.completed a` or `emit a a.done`, with `;` between them; `emit - x` comes from outside.
pub(crate) fn log(text: &str) -> Vec<Event> {
    let run = RunId::new("run-1").unwrap();
    let mut events = Vec::new();
    for (at, line) in text.split("; ").enumerate().filter(|(_, line)| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        let kind = EventType::parse(words[0]).unwrap_or_else(|| panic!("{line}"));
        let rest = words.get(2).copied();
        let data: Option<Value> = match kind {
            EventType::FlowStart => Some(json!({ "input": null })),
            EventType::Emit => Some(json!({ "name": rest, "payload": null })),
            EventType::StepSkipped => Some(json!({ "reason": rest })),
            EventType::StepFailed | EventType::StepRetry => Some(match rest {
                Some("lease_lost") => json!({ "code": "lease_lost", "cause": "lease_lost" }),
                code => json!({ "code": code }),
            }),
            _ => None,
        };
        let data = data.map(Json::from);
        let new = match words.get(1).filter(|step| **step != "-") {
            Some(step) => NewEvent::step(kind, &Arc::from(*step), 1, data),
            None => NewEvent::run(kind, data),
        };
        let at = at as u64 + 1;
        events.push(Event::stored(&run, &"f".into(), &Tenant::default(), at, at as i64, new));
    }
    events
}

fn judge(steps: &str, doomed: Option<&str>, events: &str) -> Result<(), String> {
    let text = format!("flow: f\naccepts: [x]\nsteps:{steps}");
    let read = read("f.yaml", &text, Format::Yaml).unwrap_or_else(|wrong| panic!("{}", wrong.render(false)));
    let program = SimProgram::calm(read.definition, doomed, Json::null());
    compare(&program, 0, ObservedRun { log: &log(events), receipts: &[], parent: None, at_rest: true })
}

#[track_caller]
fn wrong(judged: Result<(), String>, says: &str) {
    let problem = judged.expect_err("the model should object");
    assert!(problem.contains(says), "{problem}");
}

const BOTH_START: &str =
    "flow.start; step.started a; emit a a.done; step.completed a; step.started b; step.started c";
const B_DONE: &str = "emit b b.done; step.completed b";
const C_DONE: &str = "emit c c.done; step.completed c";
const D_DONE: &str = "step.started d; step.completed d";

#[test]
fn a_diamond_that_runs_through_is_right() {
    let events = format!("{BOTH_START}; {B_DONE}; {C_DONE}; {D_DONE}; flow.completed");
    assert_eq!(judge(DIAMOND, None, &events), Ok(()));
}

#[test]
fn a_join_that_fires_on_its_first_event_is_wrong() {
    wrong(judge(DIAMOND, None, &format!("{BOTH_START}; {B_DONE}; step.started d")), "too early");
}

#[test]
fn a_join_that_is_forgotten_is_wrong() {
    let events = format!("{BOTH_START}; {B_DONE}; {C_DONE}; step.skipped d not_triggered; flow.completed");
    wrong(judge(DIAMOND, None, &events), "although everything it waits for has happened");
}

#[test]
fn a_run_that_hangs_is_wrong_and_one_that_ends_twice_too() {
    let hangs = format!("{BOTH_START}; {B_DONE}; {C_DONE}; {D_DONE}");
    wrong(judge(DIAMOND, None, &hangs), "hangs");
    wrong(judge(DIAMOND, None, &format!("{hangs}; flow.completed; flow.failed")), "comes after the end");
}

#[test]
fn a_failed_branch_fails_the_run_and_leaves_its_join() {
    let events = format!("{BOTH_START}; {C_DONE}; step.failed b; step.skipped d not_triggered");
    assert_eq!(judge(DIAMOND, Some("b"), &format!("{events}; flow.failed")), Ok(()));
    wrong(judge(DIAMOND, Some("b"), &format!("{events}; flow.completed")), "completed, although");
}

#[test]
fn a_step_that_should_fail_may_not_complete() {
    let events = format!("{BOTH_START}; {B_DONE}; {C_DONE}; {D_DONE}; flow.completed");
    wrong(judge(DIAMOND, Some("b"), &events), "\"b\" is Completed");
}

#[test]
fn a_lost_lease_is_no_try_until_it_is_one_too_many() {
    let again =
        BOTH_START.replacen("step.started a", "step.started a; step.retry a lease_lost; step.started a", 1);
    assert_eq!(
        judge(DIAMOND, None, &format!("{again}; {B_DONE}; {C_DONE}; {D_DONE}; flow.completed")),
        Ok(())
    );
    let fails = |code: &str| {
        let skipped = ["b", "c", "d"].map(|step| format!("step.skipped {step} not_triggered")).join("; ");
        format!("flow.start; step.started a; step.failed a {code}; {skipped}; flow.failed")
    };
    assert_eq!(judge(DIAMOND, None, &fails("lease_lost")), Ok(()));
    wrong(judge(DIAMOND, None, &fails("E1")), "\"a\" is Failed");
}

/// `step:NAME` is satisfied by a failure under `on_failure: continue`, and never by a skip.
const FOLLOWING: &str = "
  a: { function: f, on_failure: continue, returns: a.done }
  b: { function: f, if: 'false' , returns: b.done }
  c: { function: f, subscribes: [step:a] }
  d: { function: f, subscribes: [{ any: [b.done, x] }] }
";

#[test]
fn a_failure_under_continue_counts_as_done_and_a_skip_does_not() {
    let events = "flow.start; step.skipped b condition; step.started a; step.failed a; step.started c; step.completed c";
    assert_eq!(judge(FOLLOWING, Some("a"), events), Ok(()), "it waits for x");
    let early = format!("{events}; step.skipped d not_triggered; flow.completed");
    wrong(judge(FOLLOWING, Some("a"), &early), "could still be triggered");
    let late = format!("{events}; emit - x; {D_DONE}; flow.completed");
    assert_eq!(judge(FOLLOWING, Some("a"), &late), Ok(()));
}

#[test]
fn nobody_may_end_a_run_unasked_and_unknown_events_are_noticed() {
    wrong(judge(DIAMOND, None, "flow.start; flow.cancelled"), "nobody requested that");
    wrong(judge(DIAMOND, None, "flow.start; emit - y"), "its flow doesn't list");
    wrong(judge(DIAMOND, None, "flow.start; emit - x; emit - x"), "already emitted");
}
