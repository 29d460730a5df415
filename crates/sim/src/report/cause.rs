//! Why something happened or did not, traced through one run's log.

use std::collections::BTreeSet;

use flowline_core::definition::{Definition, OnFailure, StepDefinition, Subscribes};
use flowline_core::{Event, EventType};
use serde::Serialize;

use super::leaf_name;
use crate::model::{Observed, StepFate, holds};

/// Where something that did not happen comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Root {
    /// The step that it comes from; for [`How::NeverSent`] the event.
    pub of: String,
    #[serde(flatten)]
    pub how: How,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum How {
    /// The step failed for good.
    Failed,
    /// Its condition did not hold.
    Skipped,
    /// It completed without this event.
    Silent { event: String },
    /// Another step's failure stopped it (`fail_fast`).
    Stopped,
    /// The event from outside was never sent.
    NeverSent,
    /// Neither failed nor skipped: the run ended first.
    CutOff,
}

/// Whether a leaf of a subscription came to pass.
pub(super) fn came(flow: &Definition, observed: &Observed, leaf: &Subscribes) -> bool {
    holds(leaf, &|event| observed.emitted.contains(event), &|step| done(flow, observed, step))
}

fn done(flow: &Definition, observed: &Observed, name: &str) -> bool {
    let goes_on = flow.step(name).is_some_and(|step| step.on_failure == OnFailure::Continue);
    let fate = observed.fate(name);
    fate == StepFate::Completed || fate == StepFate::Failed && goes_on
}

/// The parts of a subscription that did not come, and where that comes from.
pub(super) fn missing(
    flow: &Definition,
    observed: &Observed,
    log: &[Event],
    subscribes: &Subscribes,
) -> (Vec<String>, BTreeSet<Root>) {
    let mut search = Search { flow, observed, seen: BTreeSet::new(), roots: BTreeSet::new() };
    let mut leaves = Vec::new();
    unmet(flow, observed, subscribes, &mut leaves);
    leaves.iter().for_each(|leaf| search.leaf(leaf));
    let mut roots = search.roots;
    // A failure that ends in a stop is the whole story.
    if let Some((step, _)) = fatal_step(flow, observed, log).filter(|_| flow.fail_fast) {
        roots = BTreeSet::from([Root { of: step, how: How::Failed }]);
    }
    (leaves.into_iter().map(leaf_name).collect(), roots)
}

/// The leaves that keep a subscription from being satisfied.
fn unmet<'s>(flow: &Definition, observed: &Observed, want: &'s Subscribes, out: &mut Vec<&'s Subscribes>) {
    if came(flow, observed, want) {
        return;
    }
    match want {
        Subscribes::Event(_) | Subscribes::Step(_) => out.push(want),
        Subscribes::All(parts) | Subscribes::Any(parts) => {
            parts.iter().for_each(|part| unmet(flow, observed, part, out));
        }
    }
}

struct Search<'a> {
    flow: &'a Definition,
    observed: &'a Observed,
    seen: BTreeSet<String>,
    roots: BTreeSet<Root>,
}

impl Search<'_> {
    fn leaf(&mut self, leaf: &Subscribes) {
        // Steps still to be asked, each with the event that was expected of it.
        let mut open: Vec<(String, Option<String>)> = Vec::new();
        self.sources(leaf, &mut open);
        while let Some((step, event)) = open.pop() {
            if !self.seen.insert(step.clone()) {
                continue;
            }
            let how = match self.observed.fate(&step) {
                StepFate::Failed => How::Failed,
                StepFate::Unwanted => How::Skipped,
                StepFate::Completed => match event {
                    Some(event) => How::Silent { event },
                    None => continue,
                },
                StepFate::Stopped => How::Stopped,
                StepFate::Open if self.observed.touched.contains(&step) => How::CutOff,
                StepFate::Untriggered | StepFate::Open => {
                    let flow = self.flow;
                    let mut leaves = Vec::new();
                    if let Some(want) = flow.step(&step).and_then(|step| step.subscribes.as_ref()) {
                        unmet(flow, self.observed, want, &mut leaves);
                    }
                    leaves.iter().for_each(|leaf| self.sources(leaf, &mut open));
                    continue;
                }
            };
            self.roots.insert(Root { of: step, how });
        }
    }

    /// Who could have made a leaf come to pass.
    fn sources(&mut self, leaf: &Subscribes, open: &mut Vec<(String, Option<String>)>) {
        match leaf {
            Subscribes::Event(event) if self.flow.accepts.contains_key(event) => {
                self.roots.insert(Root { of: event.clone(), how: How::NeverSent });
            }
            Subscribes::Event(event) => {
                let emitters = self.flow.steps.iter().filter(|step| step.published().any(|e| e == event));
                open.extend(emitters.map(|step| (step.name.clone(), Some(event.clone()))));
            }
            Subscribes::Step(step) => open.push((step.clone(), None)),
            Subscribes::All(_) | Subscribes::Any(_) => {}
        }
    }
}

/// Steps that only events from outside could still trigger, with those events.
pub(super) fn awaited(flow: &Definition, observed: &Observed) -> Vec<(String, Vec<String>)> {
    let idle = |step: &&StepDefinition| !observed.touched.contains(&step.name);
    let mut found = Vec::new();
    for step in flow.steps.iter().filter(idle) {
        let Some(want) = &step.subscribes else { continue };
        let sent = |event: &str| observed.emitted.contains(event) || flow.accepts.contains_key(event);
        if holds(want, &sent, &|name| done(flow, observed, name)) {
            let mut leaves = Vec::new();
            unmet(flow, observed, want, &mut leaves);
            let events = leaves.iter().map(|leaf| leaf_name(leaf)).filter(|e| flow.accepts.contains_key(e));
            let events: BTreeSet<String> = events.collect();
            found.push((step.name.clone(), events.into_iter().collect()));
        }
    }
    found
}

/// The first step whose failure fails the run, and its code.
pub(super) fn fatal_step(
    flow: &Definition,
    observed: &Observed,
    log: &[Event],
) -> Option<(String, Option<String>)> {
    let failed = log.iter().find(|event| {
        let step = event.step_name.as_deref().and_then(|name| flow.step(name));
        event.kind == EventType::StepFailed && step.is_some_and(|step| step.on_failure == OnFailure::Fail)
    })?;
    let code = text(failed, "code");
    observed.cut.is_none().then(|| (failed.step_name.as_deref().unwrap_or_default().to_owned(), code))
}

/// What led to the failure of a step: for each step on the way the last thing that it waited for, back to the start.
pub(super) fn path_to(flow: &Definition, log: &[Event], step: &str, code: Option<&str>) -> Vec<String> {
    let tries = log.iter().filter(|event| {
        matches!(event.kind, EventType::StepRetry | EventType::StepFailed)
            && event.step_name.as_deref() == Some(step)
    });
    let tries = match tries.count() {
        0 | 1 => None,
        n => Some(format!("{n} tries")),
    };
    let detail: Vec<String> = code.map(str::to_owned).into_iter().chain(tries).collect();
    let detail = if detail.is_empty() { String::new() } else { format!(" ({})", detail.join(", ")) };
    let mut path = vec![format!("{step} fails{detail}")];
    let mut at = step.to_owned();
    // A step waits only for earlier ones, so this ends; the bound is for logs that are not what they should be.
    for _ in 0..=flow.steps.len() {
        let Some(before) = trigger(flow, log, &at) else { break };
        match before {
            Trigger::Event(event, Some(emitter)) => {
                path.extend([event, emitter.clone()]);
                at = emitter;
            }
            Trigger::Event(event, None) => {
                path.push(format!("{event} from outside"));
                break;
            }
            Trigger::Step(name) => {
                path.push(name.clone());
                at = name;
            }
        }
    }
    path.push("start".to_owned());
    path.reverse();
    path
}

enum Trigger {
    /// With the step that emitted it.
    Event(String, Option<String>),
    Step(String),
}

/// The last thing that came before a step was triggered, of those that it waits for.
fn trigger(flow: &Definition, log: &[Event], step: &str) -> Option<Trigger> {
    let want = flow.step(step)?.subscribes.as_ref()?;
    let leaves = want.leaves();
    let first = log.iter().position(|event| event.step_name.as_deref() == Some(step))?;
    log[..first].iter().rev().find_map(|event| {
        let by = event.step_name.as_deref();
        match event.kind {
            EventType::Emit => {
                let name = text(event, "name")?;
                let waited = leaves.contains(&&Subscribes::Event(name.clone()));
                waited.then(|| Trigger::Event(name, by.map(str::to_owned)))
            }
            EventType::StepCompleted | EventType::StepFailed => {
                let name = by?.to_owned();
                leaves.contains(&&Subscribes::Step(name.clone())).then_some(Trigger::Step(name))
            }
            _ => None,
        }
    })
}

fn text(event: &Event, key: &str) -> Option<String> {
    let data = event.data.as_ref()?.value();
    data.get(key)?.as_str().map(str::to_owned)
}
