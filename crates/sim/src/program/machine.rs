//! Random machines: a few states with everything a definition can have, and what their expressions mean.
//!
//! Every state is reachable, and timers lead only to later states, so every machine stops without external events.
//! Expressions are made from [`Guard`]s and [`Term`]s, so that the model can evaluate them without a parser.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use flowline_core::Plan;
use flowline_core::definition::{
    Definition, Ends, Machine, Missed, OnFailure, Priority, Runner, StateDefinition, StepDefinition,
    TimerDefinition, Transition, When,
};
use serde_json::json;

use super::flow::{FUNCTION, QUEUES, Version, retry};
use super::{one_in, percent, pick};

pub(super) const EVENTS: [&str; 4] = ["go", "back", "note", "stop"];
pub(super) const ROLES: [&str; 2] = ["clerk", "boss"];
/// Members of the context that hold numbers.
const KEYS: [&str; 2] = ["a", "b"];

/// What the expressions of a machine mean. Transitions stand where they stand in the definition.
#[derive(Debug, Clone, Default)]
pub struct Made {
    /// What the context begins with; the input itself where there is none.
    pub context: Vec<(String, Term)>,
    pub on: BTreeMap<(usize, String), Vec<MadeTransition>>,
    /// By number among the timers of all states, in order.
    pub after: Vec<(Option<Term>, MadeTransition)>,
    /// The `if` of each action.
    pub actions: Vec<Option<Guard>>,
}

#[derive(Debug, Clone, Default)]
pub struct MadeTransition {
    pub guard: Option<Guard>,
    pub set: Vec<(String, Term)>,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// A member of the context is more than this.
    ContextOver(String, i64),
    /// `n` of the event's payload is more than this.
    PayloadOver(i64),
    InputOver(i64),
    /// The sender has this role.
    Role(String),
    /// Reads what is not there: an error.
    Broken,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    Number(i64),
    /// A member of the input.
    Input(String),
    /// `n` of the event's payload.
    Payload,
    /// A member of the context and this much.
    Plus(String, i64),
    User,
    Null,
}

impl Guard {
    fn text(&self) -> String {
        match self {
            Guard::ContextOver(key, n) => format!("context.{key} > {n}"),
            Guard::PayloadOver(n) => format!("payload.n > {n}"),
            Guard::InputOver(n) => format!("input.n > {n}"),
            Guard::Role(role) => format!("\"{role}\" in roles"),
            Guard::Broken => "context.missing > 0".to_owned(),
        }
    }
}

impl Term {
    fn text(&self) -> String {
        match self {
            Term::Number(n) => n.to_string(),
            Term::Input(key) => format!("input.{key}"),
            Term::Payload => "payload.n".to_owned(),
            Term::Plus(key, n) => format!("context.{key} + {n}"),
            Term::User => "user".to_owned(),
            Term::Null => "null".to_owned(),
        }
    }
}

/// One definition, sometimes two of the same machine.
pub(super) fn versions(rng: &mut Rng) -> Vec<Version> {
    let mut versions = vec![version(rng)];
    if one_in(rng, 8) {
        versions.push(version(rng));
    }
    versions
}

fn version(rng: &mut Rng) -> Version {
    let states = rng.usize(1..=5);
    let finals = rng.usize(1..=2);
    let mut maker = Maker {
        definition: Definition::new("random"),
        machine: Machine::default(),
        made: Made::default(),
        open: states,
        states: states + finals,
        actions: rng.usize(1..=5),
        rng,
    };
    maker.whole();
    (0..maker.actions).for_each(|at| maker.action(at));
    (0..maker.states).for_each(|at| maker.state(at));
    maker.reach_all();
    let Maker { mut definition, machine, made, .. } = maker;
    definition.machine = Some(machine);
    match Plan::build(definition) {
        Ok(plan) => Version { plan: Arc::new(plan), conditions: Vec::new(), machine: Some(Arc::new(made)) },
        Err(error) => unreachable!("a random machine can be planned: {error}"),
    }
}

struct Maker<'a> {
    rng: &'a mut Rng,
    definition: Definition,
    machine: Machine,
    made: Made,
    /// How many states are not final; they come first.
    open: usize,
    states: usize,
    actions: usize,
}

fn name(state: usize) -> String {
    format!("s{state}")
}

impl Maker<'_> {
    fn whole(&mut self) {
        let rng = &mut *self.rng;
        if one_in(rng, 12) {
            self.definition.timeout = Some(Duration::from_secs(rng.u64(2..=60)));
        }
        if one_in(rng, 10) {
            self.definition.input = Some(json!({ "type": "object", "required": ["n"] }));
        }
        for event in EVENTS.iter().take(rng.usize(2..=4)) {
            let schema = one_in(rng, 12).then(|| json!({ "type": "object", "required": ["n"] }));
            self.definition.accepts.insert((*event).to_owned(), schema);
        }
        if one_in(rng, 8) {
            self.definition.output = Some("context".to_owned());
        }
        self.machine.initial = name(0);
        if !one_in(rng, 3) {
            let mut context =
                vec![("a".to_owned(), Term::Input("n".to_owned())), ("b".to_owned(), Term::Number(1))];
            context.extend(one_in(rng, 2).then(|| ("due".to_owned(), Term::Input("due".to_owned()))));
            self.machine.context = texts(&context);
            self.made.context = context;
        }
    }

    fn action(&mut self, at: usize) {
        let mut action = StepDefinition::new(&format!("a{at}"), Runner::Function(FUNCTION.to_owned()));
        let rng = &mut *self.rng;
        action.after = (0..at).filter(|_| one_in(rng, 3)).map(|before| format!("a{before}")).collect();
        action.retry = retry(rng);
        if one_in(rng, 5) {
            action.timeout = Some(Duration::from_millis(rng.u64(500..=10_000)));
        }
        match rng.u32(0..4) {
            0 | 1 => action.on_failure = OnFailure::Continue,
            2 => action.on_error = Some(name(rng.usize(0..self.states))),
            _ => {}
        }
        if one_in(rng, 5) {
            action.priority = Some(pick(rng, &Priority::ALL));
        }
        if one_in(rng, 4) {
            action.queue = pick(rng, &QUEUES).to_owned();
        }
        let moves = action.on_error.is_some();
        let guard = one_in(self.rng, 5).then(|| match moves {
            // One that cannot be worked out would have the machine go in circles for ever.
            true => Guard::Role(pick(self.rng, &ROLES).to_owned()),
            false => self.guard(true),
        });
        action.condition = guard.as_ref().map(Guard::text);
        self.made.actions.push(guard);
        self.definition.steps.push(action);
    }

    fn state(&mut self, at: usize) {
        let mut state =
            StateDefinition { name: name(at), entry: self.some_actions(3), ..StateDefinition::default() };
        if at >= self.open {
            state.ends = if at > self.open { Ends::Failed } else { Ends::Completed };
            return self.machine.states.push(state);
        }
        state.exit = self.some_actions(4);
        let events: Vec<String> = self.definition.accepts.keys().cloned().collect();
        for event in events {
            if percent(self.rng, 60) {
                let count = pick(self.rng, &[1, 1, 1, 2, 3]);
                (0..count).for_each(|_| self.transition(&mut state, at, &event, None));
            }
        }
        for _ in 0..pick(self.rng, &[0, 0, 0, 1, 1, 2]) {
            self.timer(&mut state, at);
        }
        if state.on.is_empty() && state.after.is_empty() {
            self.transition(&mut state, at, EVENTS[0], None);
        } else if state.on.is_empty() && state.after.iter().all(|timer| timer.then.to.is_none()) {
            // Timers that stay lead nowhere. Without a draw, which would change all that comes after it.
            let on = Transition { to: Some(name(at + 1)), ..Transition::default() };
            state.on.insert(EVENTS[0].to_owned(), vec![on]);
            self.made.on.insert((at, EVENTS[0].to_owned()), vec![MadeTransition::default()]);
        }
        self.machine.states.push(state);
    }

    /// Adds what a state does on an event, where another was decided on or wherever it leads.
    fn transition(&mut self, state: &mut StateDefinition, at: usize, event: &str, to: Option<usize>) {
        let to = to.or_else(|| (!one_in(self.rng, 4)).then(|| self.rng.usize(0..self.states)));
        let guard = percent(self.rng, 35).then(|| self.guard(true));
        let set = self.changes(true);
        let mut roles: Vec<String> = Vec::new();
        if percent(self.rng, 30) {
            roles = ROLES.iter().filter(|_| self.rng.bool()).map(|role| (*role).to_owned()).collect();
        }
        let transition = Transition {
            to: to.map(name),
            condition: guard.as_ref().map(Guard::text),
            roles,
            set: texts(&set),
            actions: self.some_actions(2),
        };
        state.on.entry(event.to_owned()).or_default().push(transition);
        self.made.on.entry((at, event.to_owned())).or_default().push(MadeTransition { guard, set });
    }

    /// Adds a timer, which leads to a later state or stays.
    fn timer(&mut self, state: &mut StateDefinition, at: usize) {
        let to = (!one_in(self.rng, 4)).then(|| name(self.rng.usize(at + 1..self.states)));
        let guard = percent(self.rng, 20).then(|| {
            loop {
                match self.guard(false) {
                    Guard::PayloadOver(_) | Guard::Role(_) => {}
                    guard => break guard,
                }
            }
        });
        let mut set = self.changes(false);
        if to.is_none() && set.is_empty() {
            set.push(("b".to_owned(), Term::Number(7)));
        }
        let (when, at) = match self.rng.u32(0..5) {
            0 => (When::At("context.due + 0".to_owned()), Some(Term::Plus("due".to_owned(), 0))),
            _ => (When::In(Duration::from_millis(pick(self.rng, &[200, 2_000, 15_000, 40_000]))), None),
        };
        state.after.push(TimerDefinition {
            when,
            missed: pick(self.rng, &[Missed::Fire, Missed::Fire, Missed::Skip, Missed::Restart]),
            then: Transition {
                to,
                condition: guard.as_ref().map(Guard::text),
                roles: Vec::new(),
                set: texts(&set),
                actions: self.some_actions(3),
            },
        });
        self.made.after.push((at, MadeTransition { guard, set }));
    }

    /// A way into every state that has none yet, from a state before it.
    fn reach_all(&mut self) {
        for target in 1..self.states {
            let leads = |state: &StateDefinition| {
                state.on.values().flatten().any(|way| way.to.as_deref() == Some(&*name(target)))
            };
            if self.machine.states.iter().take(target).any(leads) {
                continue;
            }
            let from = self.rng.usize(0..target.min(self.open));
            let event = pick(self.rng, &self.definition.accepts.keys().cloned().collect::<Vec<_>>());
            let mut state = std::mem::take(&mut self.machine.states[from]);
            self.transition(&mut state, from, &event, Some(target));
            self.machine.states[from] = state;
        }
    }

    fn some_actions(&mut self, one_of: u32) -> Vec<String> {
        let chosen: BTreeSet<usize> = match one_in(self.rng, one_of) {
            true => (0..self.rng.usize(1..=3)).map(|_| self.rng.usize(0..self.actions)).collect(),
            false => BTreeSet::new(),
        };
        let mut chosen: Vec<String> = chosen.into_iter().map(|action| format!("a{action}")).collect();
        self.rng.shuffle(&mut chosen);
        chosen
    }

    fn guard(&mut self, breaks: bool) -> Guard {
        let n = self.rng.i64(0..4);
        match self.rng.u32(0..10) {
            0 if breaks => Guard::Broken,
            1 | 2 if breaks => Guard::PayloadOver(n),
            3 => Guard::InputOver(n),
            4 => Guard::Role(pick(self.rng, &ROLES).to_owned()),
            _ => Guard::ContextOver(pick(self.rng, &KEYS).to_owned(), n),
        }
    }

    fn changes(&mut self, of_event: bool) -> Vec<(String, Term)> {
        let mut set = Vec::new();
        if percent(self.rng, 50) {
            let key = pick(self.rng, &KEYS).to_owned();
            let term = match self.rng.u32(0..8) {
                0 | 1 if of_event => Term::Payload,
                2 => Term::Number(self.rng.i64(0..4)),
                3 if one_in(self.rng, 4) => Term::Null,
                _ => Term::Plus(key.clone(), 1),
            };
            set.push((key, term));
        }
        if of_event && one_in(self.rng, 6) {
            set.push(("by".to_owned(), Term::User));
        }
        if one_in(self.rng, 10) {
            set.push(("due".to_owned(), Term::Plus("due".to_owned(), 5_000)));
        }
        set
    }
}

fn texts(terms: &[(String, Term)]) -> BTreeMap<String, String> {
    terms.iter().map(|(key, term)| (key.clone(), term.text())).collect()
}
