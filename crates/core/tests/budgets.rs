//! What a definition may cost: an expression that takes too much ends its step, its event or its run, and is never tried
//! again.

use std::time::Duration;

use crate::scenario::{Came, Scenario};
use flowline_core::EventType;
use flowline_core::decide::Refusal;
use flowline_core::run::{Phase, Status};

/// Four loops in each other: 55 items are past every budget.
const NESTED: &str = "L.all(a, L.all(b, L.all(c, L.all(d, a + b + c + d >= 0))))";

fn nested(list: &str) -> String {
    NESTED.replace('L', list)
}

fn items(count: usize) -> String {
    format!(r#"{{"l": {:?}}}"#, (0..count).collect::<Vec<_>>())
}

#[test]
fn a_condition_that_is_too_costly_fails_its_step_and_the_run() {
    let steps = format!(
        "steps:\n  a: {{function: f}}\n  b: {{function: f, subscribes: ['step:a'], if: '{}', retry: {{attempts: 5}}}}",
        nested("input.l")
    );
    let mut run = Scenario::started(&steps, &items(55));
    run.done("a", "null", &[]);
    assert_eq!((run.phase("b"), run.status()), (Phase::Failed, Status::Failed));
    let failed = run.data(EventType::StepFailed);
    assert_eq!(failed["code"], "too_costly");
    let error = failed["error"].as_str().unwrap();
    assert!(error.starts_with("`if` of step \"b\": too costly: it takes more than 1000000 steps"), "{error}");
    assert_eq!(run.data(EventType::FlowFailed)["step"], "b");

    let mut small = Scenario::started(&steps, &items(5));
    small.done("a", "null", &[]);
    assert_eq!(small.live(), ["b"]);
}

#[test]
fn an_output_that_is_too_costly_ends_the_run_as_failed() {
    let flow = format!("output: '{}'\nsteps:\n  a: {{function: f}}", nested("input.l"));
    let mut run = Scenario::started(&flow, &items(55));
    run.done("a", "null", &[]);
    assert_eq!(run.status(), Status::Failed);
    let failed = run.data(EventType::FlowFailed);
    assert_eq!(failed["code"], "too_costly");
    assert!(failed["error"].as_str().unwrap().starts_with("`output`: too costly: "), "{failed}");
}

#[test]
fn a_string_that_grows_in_an_output_ends_the_run_as_failed() {
    let flow = format!("output: '{}'\nsteps:\n  a: {{function: f}}", vec!["input.s"; 200].join("+"));
    let input = format!(r#"{{"s": "{}"}}"#, "x".repeat(1 << 19));
    let mut run = Scenario::started(&flow, &input);
    run.done("a", "null", &[]);
    assert_eq!(run.data(EventType::FlowFailed)["code"], "too_costly");
}

/// The guards of a decision have a budget together, however many there are and however little each one takes.
#[test]
fn many_guards_that_are_each_within_budget_are_too_costly_together() {
    // About 0.7 million steps each.
    let guard = nested("input.l");
    let mut flow = "steps:\n  first: {function: f}\n".to_owned();
    for step in 0..900 {
        flow.push_str(&format!(
            "  s{step}: {{function: f, subscribes: ['step:first'], if: '{guard}', on_failure: continue}}\n"
        ));
    }
    let mut run = Scenario::started(&flow, &items(16));
    run.done("first", "null", &[]);
    let (live, failed) = (run.live().len(), run.steps(Phase::Failed).len());
    assert!((1..100).contains(&live) && live + failed == 900, "{live} {failed}");
    assert_eq!(run.data(EventType::StepFailed)["code"], "too_costly");
}

fn machine(on: &str, rest: &str) -> String {
    format!(
        "machine: m\nevents: {{go: {{}}, stop: {{}}}}\ninitial: a\ncontext: {{l: input.l}}\nstates:\n  a: {{{on}}}\n  b: {{final: true}}\n{rest}"
    )
}

#[test]
fn a_guard_that_is_too_costly_rejects_the_event_and_leaves_the_machine_where_it_is() {
    let yaml = machine(&format!("on: {{go: {{to: b, if: '{}'}}, stop: b}}", nested("context.l")), "");
    let mut run = Scenario::started(&yaml, &items(55));
    run.event("e1", "go", "null", &[]);
    assert_eq!(run.data(EventType::EventRejected)["code"], "too_costly");
    assert_eq!((run.at().as_str(), run.status()), ("a", Status::Waiting));
    run.event("e2", "stop", "null", &[]);
    assert_eq!(run.status(), Status::Completed);
}

#[test]
fn a_timer_whose_guard_is_too_costly_ends_the_run_as_failed() {
    let after = format!("after: {{in: 1s, to: b, if: '{}'}}", nested("context.l"));
    let mut run = Scenario::started(&machine(&after, ""), &items(55));
    run.timer_due(Duration::ZERO);
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(run.data(EventType::FlowFailed)["code"], "too_costly");
    assert!(run.timers.is_empty() && run.live().is_empty());
}

#[test]
fn a_start_whose_context_is_too_costly_is_refused() {
    let yaml = machine("on: {stop: b}", "").replace("l: input.l", &format!("l: '{}'", nested("input.l")));
    let came = Scenario::of(&yaml).start(&items(55));
    assert!(matches!(came, Came::Refused(Refusal::TooCostly { .. })), "{came:?}");
}

/// Two alternatives that lead to two alternatives each, 21 levels deep.
fn doubling() -> String {
    doubling_to(21)
}

fn doubling_to(depth: usize) -> String {
    let level =
        |at: usize| format!("d{at}: {{anyOf: [{{$ref: '#/$defs/d{0}'}}, {{$ref: '#/$defs/d{0}'}}]}}", at + 1);
    let levels: Vec<String> = (0..depth).map(level).collect();
    format!("{{$defs: {{{}, d{depth}: {{type: string}}}}, $ref: '#/$defs/d0'}}", levels.join(", "))
}

/// The checks of a decision have a budget together, however many there are and however little each one takes.
#[test]
fn many_checks_that_are_each_within_budget_are_too_costly_together() {
    let schema = doubling_to(15);
    let names: Vec<String> = (0..40).map(|at| format!("e{at}")).collect();
    let emits: Vec<String> = names.iter().map(|name| format!("{name}: {schema}")).collect();
    let flow =
        format!("steps:\n  a: {{function: f, emits: {{{}}}, retry: {{attempts: 5}}}}", emits.join(", "));
    let all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), r#""x""#)).collect();
    let mut run = Scenario::started(&flow, "null");
    run.done("a", "null", &all);
    assert_eq!((run.phase("a"), run.status()), (Phase::Failed, Status::Failed));
    let failed = run.data(EventType::StepFailed);
    assert_eq!(failed["code"], "too_costly");
    assert!(failed["error"].as_str().unwrap().contains("together"), "{failed}");

    let mut few = Scenario::started(&flow, "null");
    few.done("a", "null", &all[..2]);
    assert_eq!(few.phase("a"), Phase::Completed);
}

#[test]
fn an_input_that_is_too_costly_to_check_is_refused() {
    let flow = format!("input: {}\nsteps:\n  a: {{function: f}}", doubling());
    let came = Scenario::of(&flow).start("1");
    assert!(matches!(&came, Came::Refused(Refusal::TooCostly { .. })), "{came:?}");
}

#[test]
fn an_emit_that_is_too_costly_to_check_fails_its_step_for_good() {
    let schema = doubling();
    let flow =
        format!("steps:\n  a: {{function: f, returns: ea, emits: {{ea: {schema}}}, retry: {{attempts: 5}}}}");
    let mut run = Scenario::started(&flow, "null");
    run.done("a", "1", &[]);
    assert_eq!((run.phase("a"), run.status()), (Phase::Failed, Status::Failed));
    assert_eq!(run.data(EventType::StepFailed)["code"], "too_costly");
}
