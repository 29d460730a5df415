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

/// Lines such as `step.completed a` or `emit a a.done`; `emit - x` comes from outside.
pub(crate) fn log(lines: &[&str]) -> Vec<Event> {
    let run = RunId::new("run-1").unwrap();
    let mut events = Vec::new();
    for (at, line) in lines.iter().enumerate() {
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

fn judge(steps: &str, doomed: Option<&str>, lines: &[&str]) -> Result<(), String> {
    let text = format!("flow: f\naccepts: [x]\nsteps:{steps}");
    let read = read("f.yaml", &text, Format::Yaml).unwrap_or_else(|wrong| panic!("{}", wrong.render(false)));
    let program = SimProgram::calm(read.definition, doomed, Json::null());
    compare(&program, 0, ObservedRun { log: &log(lines), receipts: &[], parent: None, at_rest: true })
}

#[track_caller]
fn wrong(judged: Result<(), String>, says: &str) {
    let problem = judged.expect_err("the model should object");
    assert!(problem.contains(says), "{problem}");
}

const TO_THE_JOIN: [&str; 9] = [
    "flow.start",
    "step.started a",
    "emit a a.done",
    "step.completed a",
    "step.started b",
    "step.started c",
    "emit b b.done",
    "step.completed b",
    "emit c c.done",
];

fn with<'a>(begin: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [begin, rest].concat()
}

#[test]
fn a_diamond_that_runs_through_is_right() {
    let rest = ["step.completed c", "step.started d", "step.completed d", "flow.completed"];
    assert_eq!(judge(DIAMOND, None, &with(&TO_THE_JOIN, &rest)), Ok(()));
}

#[test]
fn a_join_that_fires_on_its_first_event_is_wrong() {
    let lines = with(&TO_THE_JOIN[..8], &["step.started d"]);
    wrong(judge(DIAMOND, None, &lines), "too early");
}

#[test]
fn a_join_that_is_forgotten_is_wrong() {
    let rest = ["step.completed c", "step.skipped d not_triggered", "flow.completed"];
    wrong(judge(DIAMOND, None, &with(&TO_THE_JOIN, &rest)), "though all it waits for is there");
}

#[test]
fn a_run_that_hangs_is_wrong_and_one_that_ends_twice_too() {
    let skipped = ["step.completed c", "step.started d", "step.completed d"];
    wrong(judge(DIAMOND, None, &with(&TO_THE_JOIN, &skipped)), "hangs");
    let twice = with(
        &TO_THE_JOIN,
        &["step.completed c", "step.started d", "step.completed d", "flow.completed", "flow.failed"],
    );
    wrong(judge(DIAMOND, None, &twice), "follows the end");
}

const WITHOUT_B: [&str; 8] = [
    "flow.start",
    "step.started a",
    "emit a a.done",
    "step.completed a",
    "step.started b",
    "step.started c",
    "emit c c.done",
    "step.completed c",
];

#[test]
fn a_failed_branch_fails_the_run_and_leaves_its_join() {
    let rest = ["step.failed b", "step.skipped d not_triggered"];
    assert_eq!(judge(DIAMOND, Some("b"), &with(&with(&WITHOUT_B, &rest), &["flow.failed"])), Ok(()));
    wrong(
        judge(DIAMOND, Some("b"), &with(&with(&WITHOUT_B, &rest), &["flow.completed"])),
        "completed, though",
    );
}

#[test]
fn a_step_that_should_fail_may_not_complete() {
    let rest = ["step.completed c", "step.started d", "step.completed d", "flow.completed"];
    wrong(judge(DIAMOND, Some("b"), &with(&TO_THE_JOIN, &rest)), "\"b\" is Completed");
}

#[test]
fn a_lost_lease_is_no_try_until_it_is_one_too_many() {
    let again = with(&["flow.start", "step.started a", "step.retry a lease_lost"], &TO_THE_JOIN[1..]);
    let rest = ["step.completed c", "step.started d", "step.completed d", "flow.completed"];
    assert_eq!(judge(DIAMOND, None, &with(&again, &rest)), Ok(()));
    let lost = ["flow.start", "step.started a", "step.failed a lease_lost"];
    let skipped =
        ["step.skipped b not_triggered", "step.skipped c not_triggered", "step.skipped d not_triggered"];
    assert_eq!(judge(DIAMOND, None, &with(&with(&lost, &skipped), &["flow.failed"])), Ok(()));
    let failed = ["flow.start", "step.started a", "step.failed a E1"];
    wrong(judge(DIAMOND, None, &with(&with(&failed, &skipped), &["flow.failed"])), "\"a\" is Failed");
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
    let lines = [
        "flow.start",
        "step.skipped b condition",
        "step.started a",
        "step.failed a",
        "step.started c",
        "step.completed c",
    ];
    assert_eq!(judge(FOLLOWING, Some("a"), &lines), Ok(()), "it waits for x");
    let early = with(&lines, &["step.skipped d not_triggered", "flow.completed"]);
    wrong(judge(FOLLOWING, Some("a"), &early), "could still be triggered");
    let late = with(&lines, &["emit - x", "step.started d", "step.completed d", "flow.completed"]);
    assert_eq!(judge(FOLLOWING, Some("a"), &late), Ok(()));
}

#[test]
fn nobody_may_end_a_run_unasked_and_unknown_events_are_noticed() {
    wrong(judge(DIAMOND, None, &["flow.start", "flow.cancelled"]), "nobody asked");
    wrong(judge(DIAMOND, None, &["flow.start", "emit - y"]), "does not accept");
    wrong(judge(DIAMOND, None, &["flow.start", "emit - x", "emit - x"]), "emitted before");
}
