//! Random flows: mostly small, sometimes long or wide, with everything a definition can have.
//!
//! A step waits only for external events and for what earlier steps emit, so there are no cycles and every flow is valid.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use flowline_core::Plan;
use flowline_core::definition::{
    Backoff, Cleanup, Definition, OnFailure, Priority, Retry, Runner, StepDefinition, Subscribes,
};
use serde_json::json;

use super::act::CODES;
use super::machine::Made;
use super::{one_in, percent, pick};

/// The need of every step of a random flow.
pub(crate) const FUNCTION: &str = "work";
const OUTSIDE: [&str; 2] = ["x0", "x1"];
pub(super) const QUEUES: [&str; 3] = ["default", "mail", "reports"];

/// One definition of a program's flow.
#[derive(Debug, Clone)]
pub struct Version {
    pub plan: Arc<Plan>,
    /// What the `if` of each step means, by step.
    pub conditions: Vec<Option<Condition>>,
    /// Of a machine: what its expressions mean.
    pub machine: Option<Arc<Made>>,
}

impl Version {
    /// What the model knows of the flow: what it says, not how the engine indexed it.
    pub fn definition(&self) -> &Definition {
        &self.plan.definition
    }
}

/// A condition in a form that needs no expression language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// `n` of the input is more than this.
    InputOver(i64),
    InputIs(i64),
    /// Reads what is not there: an error, which fails the step.
    Broken,
    /// `n` of an event is more than this. An error while the event has not come.
    EventOver(String, i64),
    /// Settled before the run starts.
    Given(bool),
    /// Only the expression itself says.
    Unknown,
}

impl Condition {
    fn text(&self) -> String {
        match self {
            Condition::InputOver(n) => format!("input.n > {n}"),
            Condition::InputIs(n) => format!("input.n == {n}"),
            Condition::Broken => "input.missing > 0".to_owned(),
            Condition::EventOver(event, n) => format!("events[\"{event}\"].n > {n}"),
            Condition::Given(holds) => holds.to_string(),
            Condition::Unknown => String::new(),
        }
    }
}

/// One definition, sometimes two of the same flow.
pub(super) fn versions(rng: &mut Rng) -> Vec<Version> {
    let mut versions = vec![version(rng)];
    if one_in(rng, 6) {
        versions.push(version(rng));
    }
    versions
}

fn version(rng: &mut Rng) -> Version {
    let (count, shape) = match rng.u32(0..40) {
        0 => (rng.usize(12..30), Shape::Long),
        1 => (rng.usize(12..40), Shape::Wide),
        _ => (rng.usize(1..=8), Shape::Any),
    };
    let mut maker =
        Maker { rng, definition: Definition::new("random"), conditions: Vec::new(), heard: BTreeSet::new() };
    maker.flow();
    for at in 0..count {
        maker.step(at, shape);
    }
    let Maker { definition, conditions, .. } = maker;
    match Plan::build(definition) {
        Ok(plan) => Version { plan: Arc::new(plan), conditions, machine: None },
        Err(error) => unreachable!("a random flow can be planned: {error}"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Any,
    /// Each step waits for the one before.
    Long,
    /// Most steps start together, the last joins them.
    Wide,
}

struct Maker<'a> {
    rng: &'a mut Rng,
    definition: Definition,
    conditions: Vec<Option<Condition>>,
    /// Events that some step waits for: no later step may publish them.
    heard: BTreeSet<String>,
}

impl Maker<'_> {
    fn flow(&mut self) {
        let rng = &mut *self.rng;
        self.definition.fail_fast = one_in(rng, 7);
        if one_in(rng, 12) {
            self.definition.timeout = Some(Duration::from_secs(rng.u64(2..=60)));
        }
        if one_in(rng, 10) {
            self.definition.state = Cleanup::OnComplete;
        }
        if one_in(rng, 10) {
            self.definition.input = Some(json!({ "type": "object", "required": ["n"] }));
        }
        if one_in(rng, 4) {
            for event in OUTSIDE.iter().take(rng.usize(1..=2)) {
                self.definition.accepts.insert((*event).to_owned(), None);
            }
        }
    }

    fn step(&mut self, at: usize, shape: Shape) {
        let mut step = StepDefinition::new(&format!("s{at}"), Runner::Function(FUNCTION.to_owned()));
        step.subscribes = self.subscribes(at, shape);
        let condition = self.condition(&step);
        step.condition = condition.as_ref().map(Condition::text);
        self.conditions.push(condition);
        self.emits(at, &mut step);
        step.retry = retry(self.rng);
        if one_in(self.rng, 5) {
            step.timeout = Some(Duration::from_millis(self.rng.u64(500..=10_000)));
        }
        if one_in(self.rng, 3) {
            step.on_failure = OnFailure::Continue;
        }
        if one_in(self.rng, 5) {
            step.priority = Some(pick(self.rng, &Priority::ALL));
        }
        if one_in(self.rng, 4) {
            step.queue = pick(self.rng, &QUEUES).to_owned();
        }
        for leaf in step.subscribes.iter().flat_map(Subscribes::leaves) {
            if let Subscribes::Event(event) = leaf {
                self.heard.insert(event.clone());
            }
        }
        self.definition.steps.push(step);
    }

    fn subscribes(&mut self, at: usize, shape: Shape) -> Option<Subscribes> {
        let sources = self.sources();
        match shape {
            Shape::Long if at > 0 => return Some(self.after(at - 1)),
            Shape::Wide if self.rng.u32(0..5) > 0 => return None,
            _ => {}
        }
        let entry = at == 0 && !one_in(self.rng, 3);
        if entry || sources.is_empty() || one_in(self.rng, 6) {
            return None;
        }
        let parts = self.parts(&sources, 1);
        Some(match parts.len() {
            1 if one_in(self.rng, 2) => parts.into_iter().next().unwrap_or(Subscribes::All(Vec::new())),
            _ => Subscribes::All(parts),
        })
    }

    fn parts(&mut self, sources: &[Subscribes], depth: usize) -> Vec<Subscribes> {
        let count = pick(self.rng, &[1, 1, 1, 2, 2, 2, 3, 4]);
        let part = |maker: &mut Self| {
            if depth < 3 && one_in(maker.rng, 4) {
                let parts = maker.parts(sources, depth + 1);
                return if one_in(maker.rng, 4) { Subscribes::All(parts) } else { Subscribes::Any(parts) };
            }
            // The latest are the likeliest, so that flows get deep.
            let back = maker.rng.usize(0..sources.len()).min(maker.rng.usize(0..sources.len()));
            sources[sources.len() - 1 - back].clone()
        };
        (0..count).map(|_| part(self)).collect()
    }

    /// Everything that a next step could wait for.
    fn sources(&self) -> Vec<Subscribes> {
        let mut sources: Vec<Subscribes> =
            self.definition.accepts.keys().map(|event| Subscribes::Event(event.clone())).collect();
        for step in &self.definition.steps {
            sources.push(Subscribes::Step(step.name.clone()));
            sources.extend(step.published().map(|event| Subscribes::Event(event.to_owned())));
        }
        sources
    }

    /// What follows a step: one of its events, or its completion.
    fn after(&mut self, at: usize) -> Subscribes {
        let step = &self.definition.steps[at];
        match step.published().next() {
            Some(event) if self.rng.u32(0..5) > 0 => Subscribes::Event(event.to_owned()),
            _ => Subscribes::Step(step.name.clone()),
        }
    }

    fn condition(&mut self, step: &StepDefinition) -> Option<Condition> {
        if !one_in(self.rng, 5) {
            return None;
        }
        let n = self.rng.i64(0..3);
        let events: Vec<&String> = step
            .subscribes
            .iter()
            .flat_map(Subscribes::leaves)
            .filter_map(|leaf| if let Subscribes::Event(event) = leaf { Some(event) } else { None })
            .collect();
        Some(match self.rng.u32(0..8) {
            0 => Condition::Broken,
            1 | 2 => Condition::InputIs(n),
            3 | 4 if !events.is_empty() => Condition::EventOver(pick(self.rng, &events).clone(), n),
            _ => Condition::InputOver(n),
        })
    }

    fn emits(&mut self, at: usize, step: &mut StepDefinition) {
        let schema = json!({ "type": "object", "required": ["n"] });
        for which in ["a", "b"] {
            if percent(self.rng, 55) {
                let schema = one_in(self.rng, 8).then(|| schema.clone());
                step.emits.insert(format!("e{at}{which}"), schema);
            }
        }
        if one_in(self.rng, 4) {
            step.returns = Some(format!("e{at}r"));
        }
        // Sometimes what an earlier step publishes too, as long as nobody waits for it yet.
        let free: Vec<String> = self
            .definition
            .steps
            .iter()
            .flat_map(StepDefinition::published)
            .filter(|event| !self.heard.contains(*event))
            .map(str::to_owned)
            .collect();
        let waited = step.subscribes.iter().flat_map(Subscribes::leaves);
        let waited: Vec<Subscribes> = waited.cloned().collect();
        if !free.is_empty() && one_in(self.rng, 6) {
            let event = pick(self.rng, &free);
            if !waited.contains(&Subscribes::Event(event.clone())) {
                step.emits.insert(event, None);
            }
        }
    }
}

pub(super) fn retry(rng: &mut Rng) -> Retry {
    let mut retry = Retry::default();
    if rng.u32(0..5) < 3 {
        return retry;
    }
    retry.attempts = rng.u32(2..=4);
    retry.backoff = pick(rng, &[Backoff::Fixed, Backoff::Linear, Backoff::Exponential]);
    retry.delay = Duration::from_millis(rng.u64(50..=2_000));
    retry.max_delay = retry.delay * rng.u32(1..=4);
    retry.jitter = rng.bool();
    match rng.u32(0..4) {
        0 => retry.only = vec![pick(rng, &CODES).to_owned()],
        1 => retry.except = vec![pick(rng, &CODES).to_owned()],
        _ => {}
    }
    retry
}
