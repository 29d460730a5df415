//! A checked definition, indexed for `decide`: steps and events by number, expressions and schemas compiled.
//!
//! A plan is built once per definition and shared. Its numbers (a step's index, an event's index) are what the run
//! state is dense by, so they follow from the definition alone and never change for a given hash.

mod build;
mod machine;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::call::CallTemplate;
use crate::definition::{Definition, StepDefinition};
use crate::event::PayloadSlot;
use crate::expr::Expr;
use crate::json::{self, Json};
use crate::request::RequestTemplate;
use crate::run::RunState;
use crate::schema::Schema;

pub use machine::{PlanMachine, PlanState, PlanTimer, PlanTransition, PlanWhen};

/// A definition ready to be decided on.
#[derive(Debug)]
pub struct Plan {
    pub definition: Definition,
    pub hash: Arc<str>,
    pub flow: Arc<str>,
    pub steps: Vec<PlanStep>,
    /// Every event that is emitted or accepted, by name.
    pub events: Vec<PlanEvent>,
    pub input: Option<Schema>,
    pub output: Option<Expr>,
    /// Steps that start with the run.
    pub entries: Vec<u32>,
    /// Steps that can be triggered before all their events have come: an `any` is in their subscription.
    pub choosers: Vec<u32>,
    /// The states of a machine, whose actions are the steps.
    pub machine: Option<PlanMachine>,
    by_name: BTreeMap<Arc<str>, u32>,
}

#[derive(Debug)]
pub struct PlanStep {
    pub name: Arc<str>,
    pub queue: Arc<str>,
    /// What a worker must be able to run.
    pub need: Arc<str>,
    pub condition: Option<Expr>,
    /// What an `http` step sends. Boxed, for most steps have none.
    pub request: Option<Box<RequestTemplate>>,
    /// What a `start` or `send` step asks of the engine.
    pub call: Option<Box<CallTemplate>>,
    /// What this step may emit, with the compiled schema.
    pub emits: BTreeMap<u32, Option<Schema>>,
    pub returns: Option<u32>,
    /// Events that its subscription mentions, in the order of the file: the keys of its input.
    pub inputs: Vec<u32>,
    /// Its place in [`Plan::choosers`].
    pub chooser: Option<u32>,
    /// Steps that wait for this one by `step:NAME`.
    pub followers: Vec<u32>,
    /// Actions that run before this one, if both are triggered.
    pub after: Vec<u32>,
    /// The state that a machine moves to when this action is out of attempts.
    pub on_error: Option<u32>,
    /// Nothing waits for this step or for what it publishes.
    pub leaf: bool,
    /// Its result is read again when the run ends.
    pub keeps_result: bool,
    wants: Wants,
}

#[derive(Debug)]
pub struct PlanEvent {
    pub name: Arc<str>,
    /// Steps whose subscription mentions it.
    pub listeners: Vec<u32>,
    pub emitters: Vec<u32>,
    /// The schema of an external event; `None` if the definition doesn't accept it.
    pub accepted: Option<Option<Schema>>,
}

#[derive(Debug)]
enum Wants {
    /// The start of the run.
    Start,
    /// A transition of a machine.
    Transition,
    /// All of these events and steps. Compared word by word, so that a join of thousands costs little.
    All {
        events: Bits,
        steps: Vec<u32>,
    },
    Nested(Want),
}

#[derive(Debug)]
enum Want {
    Event(u32),
    Step(u32),
    All(Vec<Want>),
    Any(Vec<Want>),
}

/// A set of small numbers, dense.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bits(Vec<u64>);

impl Bits {
    pub fn new(len: usize) -> Bits {
        Bits(vec![0; len.div_ceil(64)])
    }

    pub fn insert(&mut self, n: u32) {
        self.0[n as usize / 64] |= 1 << (n % 64);
    }

    pub fn contains(&self, n: u32) -> bool {
        self.0.get(n as usize / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    fn holds_all(&self, of: &Bits) -> bool {
        of.0.iter().zip(&self.0).all(|(want, have)| have & want == *want)
    }

    /// Its words, low bits first.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

/// Why a definition cannot be planned. A definition that passed `definition::check` always can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("flow {flow:?}, {place}: {problem}")]
pub struct PlanError {
    pub flow: String,
    pub place: String,
    pub problem: String,
}

impl Plan {
    pub fn step(&self, index: u32) -> &PlanStep {
        &self.steps[index as usize]
    }

    /// The part of the definition that a step came from.
    pub fn step_definition(&self, index: u32) -> &StepDefinition {
        &self.definition.steps[index as usize]
    }

    pub fn step_index(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Events are sorted by name.
    pub fn event_index(&self, name: &str) -> Option<u32> {
        self.events.binary_search_by(|event| (*event.name).cmp(name)).ok().map(|at| at as u32)
    }

    /// Whether what a step waits for has happened.
    pub fn satisfied(&self, step: u32, state: &RunState) -> bool {
        match &self.step(step).wants {
            Wants::Start => true,
            Wants::Transition => false,
            Wants::All { events, steps } => {
                state.emitted.holds_all(events) && steps.iter().all(|&s| self.satisfied_by_step(s, state))
            }
            Wants::Nested(want) => {
                self.holds(want, &|e| state.emitted.contains(e), &|s| self.satisfied_by_step(s, state))
            }
        }
    }

    /// Whether a step's subscription could be satisfied if these events and steps came to pass.
    pub fn satisfiable(&self, step: u32, event: &dyn Fn(u32) -> bool, done: &dyn Fn(u32) -> bool) -> bool {
        match &self.step(step).wants {
            Wants::Start => true,
            Wants::Transition => false,
            Wants::All { steps, .. } => {
                self.step(step).inputs.iter().all(|&e| event(e)) && steps.iter().all(|&s| done(s))
            }
            Wants::Nested(want) => self.holds(want, event, done),
        }
    }

    fn holds(&self, want: &Want, event: &dyn Fn(u32) -> bool, done: &dyn Fn(u32) -> bool) -> bool {
        match want {
            Want::Event(e) => event(*e),
            Want::Step(s) => done(*s),
            Want::All(parts) => parts.iter().all(|part| self.holds(part, event, done)),
            Want::Any(parts) => parts.iter().any(|part| self.holds(part, event, done)),
        }
    }

    /// `step:NAME` holds after completion, or after a failure that lets the run continue; never after a skip.
    pub fn satisfied_by_step(&self, step: u32, state: &RunState) -> bool {
        use crate::definition::OnFailure;
        use crate::run::Phase;
        match state.step(step).phase {
            Phase::Completed => true,
            Phase::Failed => self.step_definition(step).on_failure == OnFailure::Continue,
            _ => false,
        }
    }

    /// Puts a step's input together: the run's input as it is, or an object keyed by event name; for an action, what it is
    /// about. Gives the addresses that are missing from `payloads` otherwise.
    pub fn input_of(
        &self,
        step: u32,
        state: &RunState,
        payloads: &BTreeMap<PayloadSlot, Json>,
    ) -> Result<Json, Vec<PayloadSlot>> {
        if self.machine.is_some() {
            return machine::action_input(self, step, state, payloads);
        }
        let slots: Vec<PayloadSlot> = match self.is_entry(step) {
            true => vec![PayloadSlot::Input],
            false => state.given(self, step).map(PayloadSlot::Emit).collect(),
        };
        let missing: Vec<PayloadSlot> =
            slots.iter().copied().filter(|slot| !payloads.contains_key(slot)).collect();
        if !missing.is_empty() {
            return Err(missing);
        }
        if self.is_entry(step) {
            return Ok(payloads[&PayloadSlot::Input].clone());
        }
        Ok(json::object(slots.iter().filter_map(|slot| match slot {
            PayloadSlot::Emit(event) => Some((&*self.events[*event as usize].name, payloads.get(slot))),
            _ => None,
        })))
    }

    pub fn is_entry(&self, step: u32) -> bool {
        matches!(self.step(step).wants, Wants::Start)
    }
}
