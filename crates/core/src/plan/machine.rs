//! A machine, indexed: states, transitions and timers by number, expressions compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::Plan;
use crate::decide::ReceivedEvent;
use crate::definition::{Ends, Machine, Missed, Transition, When};
use crate::event::PayloadSlot;
use crate::expr::Expr;
use crate::json::{self, Json};
use crate::machine::{Current, Turn};
use crate::run::{Phase, RunState};

#[derive(Debug)]
pub struct PlanMachine {
    pub initial: u32,
    /// The initial context; empty if it's the input itself.
    pub context: Vec<(String, Expr)>,
    pub states: Vec<PlanState>,
    /// The timers of all states.
    pub timers: Vec<PlanTimer>,
    /// Who may send an event at all, by event that some state answers: anyone, or those who have one of these roles.
    senders: BTreeMap<u32, Option<BTreeSet<String>>>,
    /// Some expression of a transition, a timer or an action reads the run's input.
    pub reads_input: bool,
}

#[derive(Debug)]
pub struct PlanState {
    pub name: Arc<str>,
    pub ends: Ends,
    pub entry: Vec<u32>,
    pub exit: Vec<u32>,
    pub on: BTreeMap<u32, Vec<PlanTransition>>,
    /// Its timers among all.
    pub timers: Range<u32>,
}

#[derive(Debug)]
pub struct PlanTransition {
    pub to: Option<u32>,
    pub condition: Option<Expr>,
    pub roles: Vec<String>,
    pub set: Vec<(String, Expr)>,
    pub actions: Vec<u32>,
}

#[derive(Debug)]
pub struct PlanTimer {
    pub state: u32,
    pub when: PlanWhen,
    pub missed: Missed,
    pub then: PlanTransition,
}

#[derive(Debug)]
pub enum PlanWhen {
    In(Duration),
    At(Expr),
}

/// The numbers that names stand for.
pub(super) struct Numbers<'a> {
    pub events: &'a BTreeMap<&'a str, u32>,
    pub actions: &'a BTreeMap<&'a str, u32>,
}

/// A place in the definition, and what is wrong there.
type Problem = (String, String);

impl PlanMachine {
    pub(super) fn build(machine: &Machine, numbers: &Numbers) -> Result<PlanMachine, Problem> {
        let names: BTreeMap<&str, u32> =
            machine.states.iter().enumerate().map(|(at, state)| (state.name.as_str(), at as u32)).collect();
        let build = Build { states: &names, numbers };
        let mut planned = PlanMachine {
            initial: build.state(&machine.initial).map_err(|problem| ("initial".to_owned(), problem))?,
            context: build
                .expressions(&machine.context)
                .map_err(|problem| ("context".to_owned(), problem))?,
            states: Vec::with_capacity(machine.states.len()),
            timers: Vec::new(),
            senders: BTreeMap::new(),
            reads_input: false,
        };
        for (at, state) in machine.states.iter().enumerate() {
            let fail = |problem: String| (format!("states.{}", state.name), problem);
            let first = planned.timers.len() as u32;
            for timer in &state.after {
                let when = match &timer.when {
                    When::In(delay) => PlanWhen::In(*delay),
                    When::At(text) => PlanWhen::At(expression(text).map_err(fail)?),
                };
                let then = build.transition(&timer.then).map_err(fail)?;
                planned.timers.push(PlanTimer { state: at as u32, when, missed: timer.missed, then });
            }
            let mut on = BTreeMap::new();
            for (event, transitions) in &state.on {
                let event = *numbers
                    .events
                    .get(event.as_str())
                    .ok_or_else(|| fail(format!("event {event:?} isn't declared")))?;
                let transitions: Result<Vec<_>, _> =
                    transitions.iter().map(|transition| build.transition(transition)).collect();
                on.insert(event, transitions.map_err(fail)?);
            }
            planned.states.push(PlanState {
                name: state.name.as_str().into(),
                ends: state.ends,
                entry: build.actions(&state.entry).map_err(fail)?,
                exit: build.actions(&state.exit).map_err(fail)?,
                on,
                timers: first..planned.timers.len() as u32,
            });
        }
        planned.link();
        Ok(planned)
    }

    /// Fills in what follows from all states together.
    fn link(&mut self) {
        for (&event, transition) in self
            .states
            .iter()
            .flat_map(|state| &state.on)
            .flat_map(|(e, all)| all.iter().map(move |t| (e, t)))
        {
            let senders = self.senders.entry(event).or_insert_with(|| Some(BTreeSet::new()));
            match senders {
                Some(roles) if !transition.roles.is_empty() => roles.extend(transition.roles.iter().cloned()),
                _ => *senders = None,
            }
        }
        let of_events = self.states.iter().flat_map(|state| state.on.values().flatten());
        let of_timers = self.timers.iter().map(|timer| &timer.then);
        let at_input =
            self.timers.iter().any(|timer| matches!(&timer.when, PlanWhen::At(expr) if expr.reads().input));
        self.reads_input = at_input
            || of_events.chain(of_timers).any(|transition| {
                let set = transition.set.iter().map(|(_, expr)| expr);
                set.chain(&transition.condition).any(|expr| expr.reads().input)
            });
    }

    pub fn state(&self, state: u32) -> &PlanState {
        &self.states[state as usize]
    }

    pub fn timer(&self, timer: u32) -> &PlanTimer {
        &self.timers[timer as usize]
    }

    /// Whether some state answers this event.
    pub fn answers(&self, event: u32) -> bool {
        self.senders.contains_key(&event)
    }

    /// Whether a sender with these roles could ever be heard with this event; otherwise the roles that could.
    pub fn may_send(&self, event: u32, roles: &[String]) -> Result<(), Vec<String>> {
        match self.senders.get(&event) {
            Some(Some(allowed)) if !roles.iter().any(|role| allowed.contains(role)) => {
                Err(allowed.iter().cloned().collect())
            }
            _ => Ok(()),
        }
    }
}

impl Plan {
    /// The state that a machine's run is in; none before its first one, and none of a flow.
    pub fn state_name(&self, state: &RunState) -> Option<Arc<str>> {
        let machine = state.machine.as_ref().filter(|machine| machine.transition > 0)?;
        Some(self.machine.as_ref()?.state(machine.state).name.clone())
    }

    /// What people call a timer: the state that it belongs to.
    pub fn timer_name(&self, timer: u32) -> Arc<str> {
        match &self.machine {
            Some(machine) => machine.state(machine.timer(timer).state).name.clone(),
            None => "timer".into(),
        }
    }
}

impl PlanTransition {
    /// Whether one of these roles may take it.
    pub fn allows(&self, roles: &[String]) -> bool {
        self.roles.is_empty() || self.roles.iter().any(|role| roles.contains(role))
    }
}

/// What an action is given: the event, the states before and after, the context, and what the actions before it returned.
/// Gives the addresses that are missing from `payloads` otherwise.
pub(super) fn action_input(
    plan: &Plan,
    action: u32,
    state: &RunState,
    payloads: &BTreeMap<PayloadSlot, Json>,
) -> Result<Json, Vec<PayloadSlot>> {
    let (Some(machine), Some(planned)) = (&state.machine, &plan.machine) else { return Ok(Json::null()) };
    let nobody = Current { by: Turn::Start, from: None, asked: Vec::new() };
    let current = machine.current.as_ref().unwrap_or(&nobody);
    let event = match current.by {
        Turn::Event { number, .. } => Some(PayloadSlot::Received(number)),
        _ => None,
    };
    let context = (machine.context > 0).then_some(PayloadSlot::Context(machine.context));
    let kept = plan.step(action).after.iter().filter(|&&before| {
        plan.step(before).keeps_result
            && state.step(before).phase == Phase::Completed
            && current.asked.iter().any(|asked| asked.action == before)
    });
    let results: Vec<(&str, PayloadSlot)> =
        kept.map(|&before| (&*plan.step(before).name, PayloadSlot::Result(state.address(before)))).collect();
    let slots = event.into_iter().chain(context).chain(results.iter().map(|(_, slot)| *slot));
    let missing: Vec<PayloadSlot> = slots.filter(|slot| !payloads.contains_key(slot)).collect();
    if !missing.is_empty() {
        return Err(missing);
    }
    let received = event.and_then(|slot| payloads.get(&slot)?.to::<ReceivedEvent>().ok());
    let name = |state: u32| json::string(&planned.state(state).name);
    let empty = json::object([]);
    let results = json::object(results.iter().map(|(name, slot)| (*name, payloads.get(slot))));
    Ok(json::object([
        ("state", Some(&name(machine.state))),
        ("previousState", current.from.map(name).as_ref()),
        ("transition", Some(&json::number(machine.transition.into()))),
        ("event", received.as_ref().map(|received| json::string(&received.name)).as_ref()),
        ("eventId", received.as_ref().map(|received| json::string(&received.event_id)).as_ref()),
        ("payload", received.as_ref().map(|received| &received.payload)),
        (
            "userId",
            received.as_ref().and_then(|received| received.user_id.as_deref()).map(json::string).as_ref(),
        ),
        ("context", Some(context.and_then(|slot| payloads.get(&slot)).unwrap_or(&empty))),
        ("results", Some(&results).filter(|results| results.get() != "{}")),
    ]))
}

struct Build<'a> {
    states: &'a BTreeMap<&'a str, u32>,
    numbers: &'a Numbers<'a>,
}

impl Build<'_> {
    fn state(&self, name: &str) -> Result<u32, String> {
        self.states.get(name).copied().ok_or_else(|| format!("there is no state {name:?}"))
    }

    fn actions(&self, names: &[String]) -> Result<Vec<u32>, String> {
        let action = |name: &String| {
            self.numbers
                .actions
                .get(name.as_str())
                .copied()
                .ok_or_else(|| format!("there is no action {name:?}"))
        };
        names.iter().map(action).collect()
    }

    fn expressions(&self, texts: &BTreeMap<String, String>) -> Result<Vec<(String, Expr)>, String> {
        texts.iter().map(|(key, text)| Ok((key.clone(), expression(text)?))).collect()
    }

    fn transition(&self, transition: &Transition) -> Result<PlanTransition, String> {
        Ok(PlanTransition {
            to: transition.to.as_deref().map(|to| self.state(to)).transpose()?,
            condition: transition.condition.as_deref().map(expression).transpose()?,
            roles: transition.roles.clone(),
            set: self.expressions(&transition.set)?,
            actions: self.actions(&transition.actions)?,
        })
    }
}

fn expression(text: &str) -> Result<Expr, String> {
    Expr::parse(text).map_err(|problem| format!("{text:?}: {problem}"))
}
