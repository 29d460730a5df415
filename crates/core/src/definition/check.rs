//! The whole definition, checked before it can run.
//!
//! Works on any [`Definition`], read or built, and only reports: nothing is changed and nothing is compiled for later. A
//! finding carries a [`Place`]; the reader knows where that is in its text. The cost is near linear in the size of the
//! definition.

mod calls;
mod context;
mod expressions;
mod http;
mod joins;
mod machine;
mod network;
mod order;
mod parts;
mod reads;
mod states;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::diagnostic::{Diagnostic, Diagnostics, Severity};
use super::place::Place;
use super::{Definition, StepDefinition, Subscribes, suggest};
use crate::ids::check_name;
use crate::limits;
use network::{Cycle, Network};

/// Suggestions compare with every known name, so only the first findings get one.
const SUGGESTIONS: usize = 20;
/// Steps of a cycle that a message names.
const CYCLE_SHOWN: usize = 8;

/// Something wrong with a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub code: &'static str,
    pub message: String,
    pub place: Place,
    pub help: Option<String>,
}

impl Finding {
    fn error(code: &'static str, place: Place, message: String) -> Finding {
        Finding { severity: Severity::Error, code, message, place, help: None }
    }

    fn warning(code: &'static str, place: Place, message: String) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::error(code, place, message) }
    }

    fn help(self, help: impl Into<String>) -> Finding {
        Finding { help: Some(help.into()), ..self }
    }

    /// The same as people see it, with its span in the file if there is one.
    pub(super) fn diagnostic(self, span: Option<Range<usize>>) -> Diagnostic {
        let Finding { severity, code, message, place, help } = self;
        Diagnostic { severity, code, message, place: place.to_string(), span, help }
    }
}

/// Everything that is wrong, errors and warnings.
pub fn check(definition: &Definition) -> Vec<Finding> {
    let mut findings = check_parts(definition);
    findings.extend(check_graph(definition));
    findings
}

/// What can be said of each part alone: names, expressions, schemas, numbers.
pub(crate) fn check_parts(definition: &Definition) -> Vec<Finding> {
    parts::check(definition)
}

/// What can be said only of the whole: who emits what, cycles, what can never run.
pub(crate) fn check_graph(definition: &Definition) -> Vec<Finding> {
    if let Some(machine) = &definition.machine {
        return machine::check(definition, machine);
    }
    if definition.steps.is_empty() || definition.steps.len() > limits::STEPS {
        return Vec::new();
    }
    let network = Network::of(definition);
    let mut findings = unknown_sources(definition, &network);
    let cycles = network.cycles();
    findings.extend(cycles.iter().map(|cycle| looping(definition, cycle)));
    findings.extend(no_entry(definition));
    let broken = findings.iter().any(|finding| finding.severity == Severity::Error);
    // Whatever hangs on a missing event or a cycle cannot run either; naming the cause is enough.
    if !broken {
        let never: Vec<bool> =
            definition.steps.iter().map(|step| expressions::never_holds(step.condition.as_deref())).collect();
        findings.extend(unreachable_steps(definition, &network, &never));
        findings.extend(joins::check(definition, &network));
        findings.extend(unused_emits(definition, &network));
        findings.extend(too_wide(definition));
        findings.extend(reads::check(definition));
    }
    findings
}

/// What one commit could trigger is limited; the plan refuses more, so it is said here with its place.
fn too_wide(definition: &Definition) -> Vec<Finding> {
    let mut listeners: BTreeMap<String, usize> = BTreeMap::new();
    for step in &definition.steps {
        let names = step.subscribes.iter().flat_map(Subscribes::leaves).map(|leaf| match leaf {
            Subscribes::Step(name) => format!("step:{name}"),
            Subscribes::Event(name) => name.clone(),
            Subscribes::All(_) | Subscribes::Any(_) => String::new(),
        });
        for name in names.collect::<BTreeSet<String>>() {
            *listeners.entry(name).or_default() += 1;
        }
    }
    let heard = |name: &str| listeners.get(name).copied().unwrap_or(0);
    let wide = |place: Place, what: String, count: usize| {
        let limit = limits::TRIGGERS;
        (count > limit).then(|| {
            let message = format!("{what} can trigger {count} steps at once; the limit is {limit}");
            Finding::error("too-wide", place, message)
                .help("add steps in between that each trigger some of them")
        })
    };
    let entries = definition.steps.iter().filter(|step| step.subscribes.is_none()).count();
    let start = wide(Place::root().key("steps"), "the start of a run".to_owned(), entries);
    let accepted = definition.accepts.keys().filter_map(|name| {
        wide(Place::root().key("accepts").key(name), format!("event {name:?}"), heard(name))
    });
    let steps = definition.steps.iter().filter_map(|step| {
        let count = step.published().map(heard).sum::<usize>() + heard(&format!("step:{}", step.name));
        wide(Place::step(&step.name), format!("step {:?}", step.name), count)
    });
    start.into_iter().chain(accepted).chain(steps).collect()
}

impl Definition {
    /// Checks the whole definition. `Ok` holds the warnings, `Err` everything.
    pub fn validate(&self) -> Result<Diagnostics, Diagnostics> {
        let items = check(self).into_iter().map(|finding| finding.diagnostic(None)).collect();
        let diagnostics =
            Diagnostics { file: format!("{} {:?}", self.kind(), self.flow), text: "".into(), items };
        if diagnostics.has_errors() { Err(diagnostics) } else { Ok(diagnostics) }
    }
}

/// Every event and step that a subscription names, with its place.
fn leaves<'a>(subscribes: &'a Subscribes, place: Place, out: &mut Vec<(&'a Subscribes, Place)>) {
    match subscribes {
        Subscribes::Event(_) | Subscribes::Step(_) => out.push((subscribes, place)),
        Subscribes::All(parts) => {
            parts.iter().enumerate().for_each(|(i, part)| leaves(part, place.index(i), out));
        }
        Subscribes::Any(parts) => {
            let place = place.key("any");
            parts.iter().enumerate().for_each(|(i, part)| leaves(part, place.index(i), out));
        }
    }
}

fn subscriptions(step: &StepDefinition) -> Vec<(&Subscribes, Place)> {
    let mut out = Vec::new();
    if let Some(subscribes) = &step.subscribes {
        leaves(subscribes, Place::step(&step.name).key("subscribes"), &mut out);
    }
    out
}

fn unknown_sources(definition: &Definition, network: &Network<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for step in &definition.steps {
        for (leaf, place) in subscriptions(step) {
            let suggest = findings.len() < SUGGESTIONS;
            match leaf {
                // A bad name is a finding already.
                Subscribes::Event(name) | Subscribes::Step(name) if check_name("event", name).is_err() => {}
                Subscribes::Event(event) if !network.is_published(event) => {
                    findings.push(unknown_event(definition, network, step, event, place, suggest));
                }
                Subscribes::Step(name) if !network.is_step(name) => {
                    findings.push(unknown_step(definition, network, step, name, place, suggest));
                }
                _ => {}
            }
        }
    }
    findings
}

fn unknown_event(
    definition: &Definition,
    network: &Network<'_>,
    step: &StepDefinition,
    event: &str,
    place: Place,
    suggest: bool,
) -> Finding {
    let message = format!(
        "step {:?} subscribes to {event:?}, but no step emits it and `accepts` doesn't list it",
        step.name
    );
    let others = || network.published().filter(|other| !step.published().any(|own| own == *other));
    let help = if network.is_step(event) {
        format!("{event:?} is a step; write \"step:{event}\" to wait for it")
    } else if let Some(near) = suggest.then(|| suggest::nearest(event, others())).flatten() {
        format!("did you mean {near:?}?")
    } else if definition.steps.len() == 1 {
        format!("remove `subscribes` to start the step with the run, or list {event:?} under `accepts`")
    } else {
        format!("add {event:?} to the `emits` of a step, or to `accepts` if it's an external event")
    };
    Finding::error("unknown-event", place, message).help(help)
}

fn unknown_step(
    definition: &Definition,
    network: &Network<'_>,
    step: &StepDefinition,
    name: &str,
    place: Place,
    suggest: bool,
) -> Finding {
    let message = format!("step {:?} subscribes to \"step:{name}\", but there's no step {name:?}", step.name);
    let names = || definition.steps.iter().map(|s| s.name.as_str()).filter(|other| *other != step.name);
    let help = if network.is_published(name) {
        format!("{name:?} is an event; write it without \"step:\"")
    } else if let Some(near) = suggest.then(|| suggest::nearest(name, names())).flatten() {
        format!("did you mean \"step:{near}\"?")
    } else {
        "name a step of this flow after \"step:\"".to_owned()
    };
    Finding::error("unknown-step", place, message).help(help)
}

fn looping(definition: &Definition, cycle: &Cycle) -> Finding {
    let name = |step: &usize| definition.steps[*step].name.as_str();
    let first = cycle.steps.first().map(name).unwrap_or_default();
    let place = Place::step(first).key("subscribes");
    if cycle.steps.len() == 1 {
        let message = format!("step {first:?} waits for itself");
        let help = "a step runs at most once per run; subscribe to an event of another step";
        return Finding::error("cycle", place, message).help(help);
    }
    let mut path: Vec<&str> = cycle.steps.iter().take(CYCLE_SHOWN).map(name).collect();
    if cycle.steps.len() > CYCLE_SHOWN {
        path.push("…");
    }
    path.push(first);
    let message = format!("steps wait for each other in a cycle: {}", path.join(" → "));
    Finding::error("cycle", place, message)
        .help(format!("a step runs at most once per run; remove what {first:?} waits for in this cycle"))
}

/// Reports a flow that can never start: no step starts with the run or waits for an external event.
fn no_entry(definition: &Definition) -> Option<Finding> {
    let from_outside = |step: &StepDefinition| {
        subscriptions(step)
            .iter()
            .any(|(leaf, _)| matches!(leaf, Subscribes::Event(e) if definition.accepts.contains_key(e)))
    };
    if definition.steps.iter().any(|step| subscriptions(step).is_empty() || from_outside(step)) {
        return None;
    }
    let message = format!("flow {:?} has no entry step: every step waits for another", definition.flow);
    let help = "remove `subscribes` from the first step, or list the event it waits for under `accepts`";
    Some(Finding::error("no-entry-step", Place::root().key("steps"), message).help(help))
}

fn unreachable_steps(definition: &Definition, network: &Network<'_>, never: &[bool]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let reached = network.reachable(never);
    for (index, step) in definition.steps.iter().enumerate() {
        let place = Place::step(&step.name);
        if never[index] {
            let message = format!("step {:?} never runs: its condition is always false", step.name);
            findings.push(
                Finding::warning("never-runs", place.key("if"), message)
                    .help("read `input` or `events` in the condition, or remove the step"),
            );
        } else if !reached[index] {
            // Without such a cause it waits for an empty list, which is a finding already.
            let Some(cause) = network.dead_source(index, never, &reached) else { continue };
            let cause = &definition.steps[cause].name;
            let message = format!("step {:?} can never run: what it waits for never happens", step.name);
            let help = format!(
                "it depends on step {cause:?}, which never runs; wait for something else, or remove the step"
            );
            findings.push(Finding::error("unreachable-step", place.key("subscribes"), message).help(help));
        }
    }
    findings
}

fn unused_emits(definition: &Definition, network: &Network<'_>) -> Vec<Finding> {
    let read = expressions::events_read(definition);
    let mut first_emitter: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, step) in definition.steps.iter().enumerate() {
        for event in step.emits.keys().filter(|event| step.returns.as_ref() != Some(event)) {
            first_emitter.entry(event).or_insert(index);
        }
    }
    let mut findings = Vec::new();
    for (event, index) in first_emitter {
        if network.is_subscribed(event) || read.contains(event) {
            continue;
        }
        let step = &definition.steps[index].name;
        let place = Place::step(step).key("emits").key(event);
        let message = format!("step {step:?} emits {event:?}, which no step subscribes to");
        findings.push(
            Finding::warning("unused-emit", place, message).help("remove it, or subscribe a step to it"),
        );
    }
    for (event, _) in
        definition.accepts.iter().filter(|(e, _)| !network.is_subscribed(e) && !read.contains(e.as_str()))
    {
        let place = Place::root().key("accepts").key(event);
        let message = format!("the flow accepts {event:?}, which no step subscribes to");
        findings.push(
            Finding::warning("unused-accept", place, message).help("remove it, or subscribe a step to it"),
        );
    }
    findings
}
