//! What must become of a run, said by a model that is too simple to be wrong in the engine's ways.
//!
//! The model knows the definition, what each try does and what the log says that nobody could foresee: which events came
//! from outside, which attempts ran out of time or lost their lease too often, whether somebody ended the run. From
//! that it derives, by going over all steps again and again until nothing changes, which steps run and how they and the
//! run end. Where that depends on who is first (`any` with a condition on events, `fail_fast`) it gives every outcome
//! that is allowed. It shares no code with `decide` or the fold (`cargo xtask tidy` sees to that), keeps no state between questions and is slow.

mod machine;
mod observe;
mod predict;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;

use flowline_core::definition::{Definition, OnFailure, StepDefinition, Subscribes};
use flowline_core::{Event, Status};
use flowline_store::Receipt;

use crate::program::{ClientOp, SimProgram};

pub use observe::{Cut, Observed};
pub use predict::{Prediction, predict};

/// How a step ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepFate {
    Completed,
    Failed,
    /// Skipped because its condition did not hold.
    Unwanted,
    /// Skipped because nothing triggered it.
    Untriggered,
    /// Skipped because another failed under `fail_fast`.
    Stopped,
    /// It has not ended, and will not if the run has.
    Open,
}

/// A run as it is to be compared.
#[derive(Debug, Clone, Copy)]
pub struct ObservedRun<'a> {
    /// Everything that happened to it.
    pub log: &'a [Event],
    /// What became of the events that a machine took in.
    pub receipts: &'a [Receipt],
    /// The log of the run that it repeats, where it repeats one.
    pub parent: Option<&'a [Event]>,
    /// Nothing is under way any more: a run that has not ended waits for somebody.
    pub at_rest: bool,
}

/// Whether a run went as its program says. `run` is its number in the script. The error says what differs, in words.
pub fn compare(program: &SimProgram, run: usize, seen: ObservedRun<'_>) -> Result<(), String> {
    let Some(version) = program.version(run) else { return Err(format!("no start makes run {run}")) };
    if version.machine.is_some() {
        return machine::compare(program, run, seen);
    }
    let flow = version.definition();
    let observed = Observed::of(flow, seen.log)?;
    check_start(program, run, &observed, seen.parent)?;
    check_cut(program, run, flow, &observed)?;
    check_order(flow, &observed)?;
    check_end(flow, &observed, seen.at_rest)?;
    let prediction = predict(program, run, &observed);
    prediction.check(flow, &observed)
}

/// Whether what a step waits for has happened.
pub(crate) fn holds(want: &Subscribes, event: &dyn Fn(&str) -> bool, done: &dyn Fn(&str) -> bool) -> bool {
    match want {
        Subscribes::Event(name) => event(name),
        Subscribes::Step(name) => done(name),
        Subscribes::All(parts) => parts.iter().all(|part| holds(part, event, done)),
        Subscribes::Any(parts) => parts.iter().any(|part| holds(part, event, done)),
    }
}

fn satisfied(step: &StepDefinition, event: &dyn Fn(&str) -> bool, done: &dyn Fn(&str) -> bool) -> bool {
    step.subscribes.as_ref().is_none_or(|want| holds(want, event, done))
}

/// `step:NAME` holds once that step has completed, or has failed and the run goes on.
fn counts_as_done(flow: &Definition, observed: &Observed, name: &str) -> bool {
    let goes_on = flow.step(name).is_some_and(|step| step.on_failure == OnFailure::Continue);
    match observed.fate(name) {
        StepFate::Completed => true,
        StepFate::Failed => goes_on,
        _ => false,
    }
}

/// The run began with an input that one of its starts gave and the schema takes, or as what it repeats had left it.
fn check_start(
    program: &SimProgram,
    run: usize,
    observed: &Observed,
    parent: Option<&[Event]>,
) -> Result<(), String> {
    let mut starts = program.script.starts_of(run).peekable();
    if starts.peek().is_some() && !starts.any(|start| start.input.value() == observed.input) {
        return Err(format!("the run has the input {}, which no start gave it", observed.input));
    }
    let Some(version) = program.version(run) else { return Ok(()) };
    let flow = version.definition();
    if flow.input.is_some() && observed.input.get("n").is_none() {
        return Err(format!("the input {} doesn't match its schema", observed.input));
    }
    let Some(parent) = parent else { return Ok(()) };
    let before = Observed::of(flow, parent)?;
    let from = program.script.ops.iter().find_map(|timed| match &timed.op {
        ClientOp::Retry { into, from, .. } if *into == run => from.clone(),
        _ => None,
    });
    let again = from.map(|from| downstream(flow, &from)).unwrap_or_default();
    let kept: BTreeSet<&String> = before.completed().filter(|step| !again.contains(*step)).collect();
    let inherited: BTreeSet<&String> = observed.inherited.keys().collect();
    if kept != inherited {
        return Err(format!("it should inherit {kept:?}, but inherits {inherited:?}"));
    }
    match before.received.difference(&observed.received).next() {
        Some(event) => Err(format!("it lacks event {event:?}, which the retried run had received")),
        None => Ok(()),
    }
}

/// A step and all that could come of it.
fn downstream(flow: &Definition, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::from([from.to_owned()]);
    loop {
        let before = found.len();
        for step in &flow.steps {
            let follows = step.subscribes.iter().flat_map(Subscribes::leaves).any(|leaf| match leaf {
                Subscribes::Step(name) => found.contains(name),
                Subscribes::Event(event) => {
                    let emits =
                        |name: &String| flow.step(name).is_some_and(|s| s.published().any(|e| e == event));
                    found.iter().any(emits)
                }
                _ => false,
            });
            if follows {
                found.insert(step.name.clone());
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Only what the script holds may cut a run short, or a time-out where the flow has one.
fn check_cut(program: &SimProgram, run: usize, flow: &Definition, observed: &Observed) -> Result<(), String> {
    observed.cut.map_or(Ok(()), |cut| check_cut_of(program, run, flow, cut))?;
    match observed.received.iter().find(|event| !flow.accepts.contains_key(*event)) {
        Some(event) => Err(format!("the run accepted the event {event:?}, which its flow doesn't list")),
        None => Ok(()),
    }
}

/// Whether somebody asked for an end before the run was done.
fn check_cut_of(program: &SimProgram, run: usize, flow: &Definition, cut: Cut) -> Result<(), String> {
    let asked = |wanted: &dyn Fn(&ClientOp) -> bool| program.script.ops.iter().any(|timed| wanted(&timed.op));
    let allowed = match cut {
        Cut::Cancelled => asked(&|op| matches!(op, ClientOp::Cancel { run: of } if *of == run)),
        Cut::CompletedByHand => asked(&|op| matches!(op, ClientOp::Complete { run: of, .. } if *of == run)),
        Cut::FailedByHand => asked(&|op| matches!(op, ClientOp::Fail { run: of, .. } if *of == run)),
        // Whether it was too early is for the checker, which knows the clocks.
        Cut::OutOfTime => flow.timeout.is_some(),
    };
    match allowed {
        true => Ok(()),
        false => Err(format!("the run ended ({cut:?}), but nobody requested that")),
    }
}

/// Every step that shows in the log had what it waits for before that.
fn check_order(flow: &Definition, observed: &Observed) -> Result<(), String> {
    for step in &flow.steps {
        let untriggered = matches!(observed.fate(&step.name), StepFate::Untriggered | StepFate::Stopped);
        let Some(first) = observed.first(&step.name) else { continue };
        // A queued step that `fail_fast` took away never began.
        if observed.inherited.contains_key(&step.name)
            || untriggered && observed.ended_at(&step.name) == Some(first)
        {
            continue;
        }
        let emitted = |event: &str| observed.emitted_at(event).is_some_and(|at| at < first);
        let done = |name: &str| {
            counts_as_done(flow, observed, name) && observed.ended_at(name).is_some_and(|at| at < first)
        };
        if !satisfied(step, &emitted, &done) {
            return Err(format!("step {:?} appears in event {first}, which is too early", step.name));
        }
    }
    Ok(())
}

/// Nothing that could have been triggered was forgotten, and the run ended if and only if nothing could come any more.
fn check_end(flow: &Definition, observed: &Observed, at_rest: bool) -> Result<(), String> {
    let fails = |step: &&StepDefinition| {
        observed.fate(&step.name) == StepFate::Failed && step.on_failure == OnFailure::Fail
    };
    let failing = flow.steps.iter().find(fails);
    let stopping = flow.fail_fast && failing.is_some();
    if observed.cut.is_some() || (!observed.ended() && (!at_rest || observed.paused)) {
        return Ok(());
    }
    let mut awaited = None;
    for step in &flow.steps {
        let fate = observed.fate(&step.name);
        let idle = fate == StepFate::Untriggered
            || (fate == StepFate::Open && !observed.touched.contains(&step.name));
        if fate == StepFate::Open && !idle {
            return Err(format!("step {:?} was started but never ended", step.name));
        }
        if fate == StepFate::Stopped && !stopping {
            return Err(format!("step {:?} was skipped by fail_fast, but nothing failed", step.name));
        }
        if !idle || stopping {
            continue;
        }
        let done = |name: &str| counts_as_done(flow, observed, name);
        if satisfied(step, &|event| observed.emitted.contains(event), &done) {
            return Err(format!(
                "step {:?} was never triggered, although everything it waits for has happened",
                step.name
            ));
        }
        let outside = |event: &str| observed.emitted.contains(event) || flow.accepts.contains_key(event);
        if satisfied(step, &outside, &done) {
            awaited.get_or_insert(&step.name);
        }
    }
    match (observed.status, awaited) {
        (None, None) => Err("the run hangs: nothing more can happen, but it hasn't ended".to_owned()),
        (Some(_), Some(step)) => {
            Err(format!("the run ended, although step {step:?} could still be triggered"))
        }
        (Some(Status::Completed), None) if failing.is_some() => {
            Err(format!("the run completed, although step {:?} failed", failing.map(|step| &step.name)))
        }
        (Some(Status::Failed), None) if failing.is_none() => {
            Err("the run failed, but no step did".to_owned())
        }
        _ => Ok(()),
    }
}
