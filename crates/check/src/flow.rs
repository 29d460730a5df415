//! A definition with everything numbered: which step waits for what, in the simplest form that is fast enough.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use flowline_core::Definition;
use flowline_core::definition::{
    Cleanup, Machine, OnFailure, StateDefinition, StepDefinition, Subscribes, TimerDefinition, read_stored,
};
use flowline_core::ids::digest;

/// A definition with its steps and events by number. A step's number is its place in the definition.
#[derive(Debug)]
pub struct FlowMap {
    pub definition: Definition,
    /// SHA-256 of the stored text.
    pub hash: String,
    pub(crate) steps: BTreeMap<String, usize>,
    pub(crate) events: BTreeMap<String, usize>,
    /// By event: the steps whose subscription mentions it.
    pub(crate) listeners: Vec<Vec<usize>>,
    /// By step: the steps whose subscription mentions it as `step:NAME`.
    pub(crate) followers: Vec<Vec<usize>>,
    /// By step: what it may emit.
    pub(crate) published: Vec<BTreeSet<usize>>,
    pub(crate) accepted: BTreeSet<usize>,
    wants: Vec<Option<Want>>,
    /// Of a machine.
    pub(crate) states: Option<StateNumbers>,
}

/// The states and timers of a machine by number.
#[derive(Debug)]
pub(crate) struct StateNumbers {
    pub(crate) names: BTreeMap<String, usize>,
    /// By state: its timers among those of all states, in the order of the file.
    pub(crate) timers: Vec<Range<usize>>,
}

#[derive(Debug)]
enum Want {
    Event(usize),
    Step(usize),
    All(Vec<Want>),
    Any(Vec<Want>),
    /// It names something that isn't in the definition.
    Never,
}

impl FlowMap {
    /// Reads a definition as it is stored.
    pub fn read(name: &str, body: &str) -> Result<FlowMap, String> {
        let definition = read_stored(name, body).map_err(|error| error.to_string())?;
        Ok(FlowMap { hash: digest(body.as_bytes()), ..FlowMap::new(definition) })
    }

    pub fn new(definition: Definition) -> FlowMap {
        let mut names: BTreeSet<&str> = definition.accepts.keys().map(String::as_str).collect();
        names.extend(definition.steps.iter().flat_map(StepDefinition::published));
        let events: BTreeMap<String, usize> =
            names.into_iter().enumerate().map(|(at, name)| (name.to_owned(), at)).collect();
        let steps: BTreeMap<String, usize> =
            definition.steps.iter().enumerate().map(|(at, step)| (step.name.clone(), at)).collect();
        let (mut listeners, mut followers) = (vec![Vec::new(); events.len()], vec![Vec::new(); steps.len()]);
        for (at, step) in definition.steps.iter().enumerate() {
            for leaf in step.subscribes.iter().flat_map(Subscribes::leaves) {
                let list = match leaf {
                    Subscribes::Event(name) => events.get(name).map(|event| &mut listeners[*event]),
                    Subscribes::Step(name) => steps.get(name).map(|step| &mut followers[*step]),
                    _ => None,
                };
                if let Some(list) = list.filter(|list| list.last() != Some(&at)) {
                    list.push(at);
                }
            }
        }
        let want =
            |step: &StepDefinition| step.subscribes.as_ref().map(|want| Want::of(want, &steps, &events));
        FlowMap {
            wants: definition.steps.iter().map(want).collect(),
            published: definition
                .steps
                .iter()
                .map(|step| step.published().filter_map(|name| events.get(name).copied()).collect())
                .collect(),
            accepted: definition.accepts.keys().filter_map(|name| events.get(name).copied()).collect(),
            hash: definition.hash(),
            states: definition.machine.as_ref().map(StateNumbers::of),
            steps,
            events,
            listeners,
            followers,
            definition,
        }
    }

    pub(crate) fn name(&self, step: usize) -> &str {
        self.definition.steps.get(step).map_or("?", |step| &step.name)
    }

    pub(crate) fn is_entry(&self, step: usize) -> bool {
        self.wants[step].is_none() && self.states.is_none()
    }

    /// A state of the machine.
    pub(crate) fn state(&self, state: usize) -> Option<&StateDefinition> {
        self.definition.machine.as_ref()?.states.get(state)
    }

    pub(crate) fn state_named(&self, name: &str) -> Option<usize> {
        self.states.as_ref()?.names.get(name).copied()
    }

    /// A timer of the machine, with the number of its state.
    pub(crate) fn timer(&self, timer: usize) -> Option<(usize, &TimerDefinition)> {
        let ranges = &self.states.as_ref()?.timers;
        let state = ranges.iter().position(|range| range.contains(&timer))?;
        Some((state, self.state(state)?.after.get(timer - ranges[state].start)?))
    }

    /// The timers of a state.
    pub(crate) fn timers_of(&self, state: usize) -> Range<usize> {
        self.states.as_ref().and_then(|states| states.timers.get(state).cloned()).unwrap_or(0..0)
    }

    /// Actions by number. Names that aren't in the definition are left out.
    pub(crate) fn actions<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = usize> + 'a {
        names.iter().filter_map(|name| self.steps.get(name).copied())
    }

    /// How long a value of key-value state lives if the write has no time to live.
    pub(crate) fn time_to_live(&self) -> Option<Duration> {
        match self.definition.state {
            Cleanup::Ttl(ttl) => Some(ttl),
            _ => None,
        }
    }

    /// Whether a run's key-value state is removed when the run ends.
    pub(crate) fn clears_state(&self) -> bool {
        self.definition.state == Cleanup::OnComplete
    }

    pub(crate) fn goes_on_after_failure(&self, step: usize) -> bool {
        self.definition.steps[step].on_failure == OnFailure::Continue
    }

    /// Whether what a step waits for is satisfied, given which events and steps are.
    pub(crate) fn holds(
        &self,
        step: usize,
        event: &dyn Fn(usize) -> bool,
        done: &dyn Fn(usize) -> bool,
    ) -> bool {
        self.wants[step].as_ref().is_none_or(|want| want.holds(event, done))
    }
}

impl StateNumbers {
    fn of(machine: &Machine) -> StateNumbers {
        let mut timers = Vec::with_capacity(machine.states.len());
        let mut next = 0;
        for state in &machine.states {
            timers.push(next..next + state.after.len());
            next += state.after.len();
        }
        let names = machine.states.iter().enumerate().map(|(at, state)| (state.name.clone(), at));
        StateNumbers { names: names.collect(), timers }
    }
}

impl Want {
    fn of(
        subscribes: &Subscribes,
        steps: &BTreeMap<String, usize>,
        events: &BTreeMap<String, usize>,
    ) -> Want {
        let all = |parts: &[Subscribes]| parts.iter().map(|part| Want::of(part, steps, events)).collect();
        match subscribes {
            Subscribes::Event(name) => events.get(name).map_or(Want::Never, |event| Want::Event(*event)),
            Subscribes::Step(name) => steps.get(name).map_or(Want::Never, |step| Want::Step(*step)),
            Subscribes::All(parts) => Want::All(all(parts)),
            Subscribes::Any(parts) => Want::Any(all(parts)),
        }
    }

    fn holds(&self, event: &dyn Fn(usize) -> bool, done: &dyn Fn(usize) -> bool) -> bool {
        match self {
            Want::Event(at) => event(*at),
            Want::Step(at) => done(*at),
            Want::All(parts) => parts.iter().all(|part| part.holds(event, done)),
            Want::Any(parts) => parts.iter().any(|part| part.holds(event, done)),
            Want::Never => false,
        }
    }
}
