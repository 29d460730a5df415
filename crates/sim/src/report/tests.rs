//! The report on logs that anybody can read: what is found, and what it is put down to.

use flowline_core::definition::{Format, read};

use super::{How, Root, RunEnding, SimulationReport, Trial, Why};
use crate::model::tests::log;

/// A log, and the attempts that acted on the world.
type Told<'a> = (&'a str, &'a [(&'a str, u32)]);

fn report(steps: &str, logs: &[&str]) -> SimulationReport {
    with_effects(steps, &logs.iter().map(|log| (*log, &[] as &[(&str, u32)])).collect::<Vec<_>>())
}

/// The seeds are 0, 1, 2 …
fn with_effects(steps: &str, trials: &[Told<'_>]) -> SimulationReport {
    let text = format!("flow: f\naccepts: [x]\n{steps}");
    let read = read("f.yaml", &text, Format::Yaml).unwrap_or_else(|wrong| panic!("{}", wrong.render(false)));
    let mut report = SimulationReport::new(read.definition);
    for (seed, (events, effects)) in trials.iter().enumerate() {
        let effects: Vec<(String, u32)> =
            effects.iter().map(|(step, attempt)| ((*step).to_owned(), *attempt)).collect();
        let log = log(events);
        report.add(Trial { seed: seed as u64, log: &log, effects: &effects, guessed: &[], violation: None });
    }
    report
}

fn root(of: &str, how: How) -> Root {
    Root { of: of.to_owned(), how }
}

const JOIN: &str = "steps:
  a: { function: f, emits: [a.done, a.noted] }
  b: { function: f, if: 'input.n > 1', returns: b.done }
  c: { function: f, subscribes: b.done, returns: c.done }
  d: { function: f, subscribes: [a.done, c.done, a.noted] }
";

#[test]
fn a_join_is_put_down_to_the_skip_at_the_root_and_not_to_what_followed() {
    let events = "flow.start; step.skipped b condition; step.started a; emit a a.done; emit a a.noted; \
                  step.completed a; step.skipped c not_triggered; step.skipped d not_triggered; flow.completed";
    let found = report(JOIN, &[events]);
    let joins = found.joins();
    assert_eq!((joins.len(), joins[0].step.as_str(), joins[0].run), (1, "d", RunEnding::Completed));
    assert_eq!(joins[0].missing, ["c.done"]);
    assert_eq!(joins[0].because, [root("b", How::Skipped)]);
    assert_eq!(found.never_run(), ["b", "c", "d"]);
}

#[test]
fn a_step_that_completes_without_its_event_is_named() {
    let events = "flow.start; step.started a; emit a a.done; step.completed a; step.started b; emit b b.done; \
                  step.completed b; step.started c; emit c c.done; step.completed c; step.skipped d not_triggered; \
                  flow.completed";
    let found = report(JOIN, &[events]);
    assert_eq!(found.joins()[0].because, [root("a", How::Silent { event: "a.noted".to_owned() })]);
}

#[test]
fn a_cause_that_contains_a_simpler_one_is_left_out() {
    let both = "flow.start; step.started a; emit a a.done; step.completed a; step.skipped b condition; \
                step.skipped c not_triggered; step.skipped d not_triggered; flow.completed";
    let one = both.replace("emit a a.done", "emit a a.done; emit a a.noted");
    let found = report(JOIN, &[both, &one]);
    let causes: Vec<usize> = found.joins().iter().map(|join| join.because.len()).collect();
    assert_eq!(causes, [1]);
    assert_eq!(found.joins()[0].sight.seed, 1);
}

const CHAIN: &str = "steps:
  a: { function: f, returns: a.done }
  b: { function: f, subscribes: a.done }
  c: { function: f, subscribes: [step:b, x], retry: { attempts: 2 } }
";

const TO_C: &str = "step.started a; emit a a.done; step.completed a; step.started b; step.completed b";

#[test]
fn a_failure_is_traced_back_through_what_triggered_each_step() {
    let rest = "step.started c; step.retry c busy; step.started c; step.failed c busy; flow.failed";
    let outside_last = format!("flow.start; {TO_C}; emit - x; {rest}");
    let outside_first = format!("flow.start; emit - x; {TO_C}; {rest}");
    let found = report(CHAIN, &[&outside_first]);
    let path = ["start", "a", "a.done", "b", "c fails (busy, 2 tries)", "the run fails"];
    assert_eq!(found.failures()[0].path, path);
    let found = report(CHAIN, &[&outside_first, &outside_last]);
    let failure = &found.failures()[0];
    let shortest = ["start", "x from outside", "c fails (busy, 2 tries)", "the run fails"];
    assert_eq!(failure.path, shortest);
    assert_eq!((failure.sight.seeds, failure.sight.seed), (2, 1));
}

#[test]
fn a_run_that_waits_says_for_what() {
    let found = report(CHAIN, &[&format!("flow.start; {TO_C}")]);
    assert_eq!(found.outcomes()[0].status, RunEnding::Waiting);
    assert_eq!((found.waits()[0].step.as_str(), &found.waits()[0].events), ("c", &vec!["x".to_owned()]));
    assert_eq!(found.joins()[0].because, [root("x", How::NeverSent)]);
}

#[test]
fn only_a_step_that_acted_before_counts_as_run_twice() {
    let lost = "flow.start; step.started a; step.retry a lease_lost; step.started a";
    let tried = "flow.start; step.started a; step.retry a busy; step.started a";
    let twice = [("a", 1), ("a", 2)];
    let found = with_effects(CHAIN, &[(lost, &twice), (tried, &twice), (lost, &[("a", 2)])]);
    let why: Vec<(Why, u64)> = found.twice().iter().map(|twice| (twice.why, twice.sight.seed)).collect();
    assert_eq!(why, [(Why::Interrupted, 0), (Why::Retried, 1)]);
}

#[test]
fn a_seed_that_broke_a_promise_says_nothing_about_the_flow() {
    let mut found = report(CHAIN, &[]);
    let log = log(&format!("flow.start; {TO_C}"));
    found.add(Trial { seed: 9, log: &log, effects: &[], guessed: &[], violation: Some("broken") });
    assert_eq!((found.violations()[0].seed, found.outcomes().len()), (9, 0));
}
