//! Where the run of a machine stands: its state, its inbox, and whose turn it is. Part of the one fold.
//!
//! Events of a run take turns. A turn begins with the transition that it leads to and is over when none of the actions
//! that the transition asked for is queued or can be any more; only then comes the next in the inbox. The number of a
//! transition names it: its context and the results of its actions.

use std::collections::{BTreeMap, VecDeque};

use crate::definition::OnFailure;
use crate::event::PayloadSlot;
use crate::plan::{Plan, PlanMachine, PlanTransition};
use crate::run::{Fact, Phase, RunState, StepState};

/// The part of a run state that only machines have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MachineState {
    /// By number in the definition.
    pub state: u32,
    /// Transitions so far, the one into the initial state counted; 0 before it.
    pub transition: u32,
    /// The transition that wrote the context last; 0 before any.
    pub context: u32,
    /// Events accepted so far.
    pub received: u32,
    /// Who waits for a turn.
    pub inbox: VecDeque<Turn>,
    /// Whose actions run.
    pub current: Option<Current>,
    /// Timers of the state that have not fired, each with its number.
    pub armed: BTreeMap<u32, u32>,
    /// Timers set so far, which numbers them: one that is set again is another.
    pub set: u32,
    /// The first action of the current transition that failed and names a state for that.
    pub error: Option<u32>,
    /// Actions completed so far, in all transitions.
    pub completed: u32,
    /// Actions out of attempts so far, in all transitions.
    pub failed: u32,
}

/// What brings a transition about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Start,
    /// The event accepted under this number.
    Event {
        number: u32,
        event: u32,
    },
    Timer(u32),
    /// This action failed.
    Error(u32),
}

/// A turn whose actions run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current {
    pub by: Turn,
    /// The state before; none at the start.
    pub from: Option<u32>,
    /// Its actions, each once, group by group.
    pub asked: Vec<Asked>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    pub action: u32,
    pub group: ActionGroup,
}

/// Every action of a group waits for those of the groups before it. `after` orders the actions within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActionGroup {
    Exit,
    Transition,
    Entry,
}

impl MachineState {
    /// Whether what comes may still read this payload: of contexts the last, of events those whose turn is not over.
    pub fn may_read(&self, slot: PayloadSlot) -> bool {
        match slot {
            PayloadSlot::Context(transition) => transition == self.context,
            PayloadSlot::Received(number) => number >= self.first_open(),
            _ => true,
        }
    }

    /// The first event whose turn is not over: turns are in the order in which events came in.
    fn first_open(&self) -> u32 {
        let turns = self.current.iter().map(|current| &current.by).chain(&self.inbox);
        let mut events = turns.filter_map(|turn| match turn {
            Turn::Event { number, .. } => Some(*number),
            _ => None,
        });
        events.next().unwrap_or(self.received + 1)
    }

    pub fn new(plan: &Plan) -> Option<Box<MachineState>> {
        plan.machine.as_ref().map(|_| Box::default())
    }

    /// Takes whose turn it is out of the inbox.
    fn leave_inbox(&mut self, turn: Turn) {
        if let Some(at) = self.inbox.iter().position(|waiting| *waiting == turn) {
            self.inbox.remove(at);
        }
    }
}

/// The transition that a turn leads to, as the plan has it; none where an error or the start moves the machine.
pub(crate) fn transition_of(plan: &Plan, state: u32, by: Turn, choice: u32) -> Option<&PlanTransition> {
    let machine = plan.machine.as_ref()?;
    match by {
        Turn::Event { event, .. } => machine.state(state).on.get(&event)?.get(choice as usize),
        Turn::Timer(timer) => Some(&machine.timers.get(timer as usize)?.then),
        Turn::Start | Turn::Error(_) => None,
    }
}

/// The state that a turn leads to; none where it stays.
fn target_of(plan: &Plan, planned: &PlanMachine, state: u32, by: Turn, choice: u32) -> Option<u32> {
    match by {
        Turn::Start => Some(planned.initial),
        Turn::Error(action) => plan.step(action).on_error,
        _ => transition_of(plan, state, by, choice).and_then(|transition| transition.to),
    }
}

/// The actions that a turn asks for, each once, group by group.
pub(crate) fn asked_for(plan: &Plan, from: u32, by: Turn, choice: u32) -> Vec<Asked> {
    let Some(planned) = &plan.machine else { return Vec::new() };
    let to = target_of(plan, planned, from, by, choice);
    let mut asked = Vec::new();
    let mut ask = |actions: &[u32], group: ActionGroup| {
        for &action in actions {
            if !asked.iter().any(|asked: &Asked| asked.action == action) {
                asked.push(Asked { action, group });
            }
        }
    };
    if to.is_some() && by != Turn::Start {
        ask(&planned.state(from).exit, ActionGroup::Exit);
    }
    if let Some(transition) = transition_of(plan, from, by, choice) {
        ask(&transition.actions, ActionGroup::Transition);
    }
    if let Some(to) = to {
        ask(&planned.state(to).entry, ActionGroup::Entry);
    }
    asked
}

impl RunState {
    /// The part of the state that a machine has.
    pub fn of_machine(&self) -> &MachineState {
        match &self.machine {
            Some(machine) => machine,
            None => unreachable!("asked only of machines"),
        }
    }

    /// The number of the last transition of a machine.
    pub fn transition(&self) -> Option<u32> {
        self.machine.as_ref().map(|machine| machine.transition)
    }

    /// Moves the machine's part past one event. Returns the actions that the event triggered.
    pub(crate) fn apply_machine(&mut self, plan: &Plan, fact: Fact) -> Vec<u32> {
        let Some(machine) = &mut self.machine else { return Vec::new() };
        match fact {
            Fact::Received { number, event } => {
                machine.received = number;
                machine.inbox.push_back(Turn::Event { number, event });
            }
            Fact::Rejected { number } => {
                machine.inbox.retain(|turn| !matches!(turn, Turn::Event { number: n, .. } if *n == number));
            }
            Fact::TimerSet { timer } => {
                machine.set += 1;
                machine.armed.insert(timer, machine.set);
            }
            Fact::TimerFired { timer } => {
                machine.armed.remove(&timer);
                machine.inbox.push_back(Turn::Timer(timer));
            }
            Fact::TimerCancelled { timer } => {
                machine.armed.remove(&timer);
                machine.leave_inbox(Turn::Timer(timer));
            }
            Fact::Inherited { number } => machine.received = number,
            Fact::Stood { state, transition } => {
                (machine.state, machine.transition, machine.context) = (state, transition, transition);
            }
            Fact::Moved { by, choice, context } => return self.moved(plan, by, choice, context),
            _ => {}
        }
        Vec::new()
    }

    fn moved(&mut self, plan: &Plan, by: Turn, choice: u32, context: bool) -> Vec<u32> {
        let (Some(machine), Some(planned)) = (&mut self.machine, &plan.machine) else { return Vec::new() };
        let from = machine.state;
        let to = target_of(plan, planned, from, by, choice);
        let asked = asked_for(plan, from, by, choice);
        machine.leave_inbox(by);
        machine.transition += 1;
        machine.error = None;
        if context {
            machine.context = machine.transition;
        }
        if let Some(to) = to {
            machine.state = to;
        }
        for Asked { action, .. } in &asked {
            let step = &mut self.steps[*action as usize];
            *step = StepState { attempt: step.attempt, ..StepState::default() };
        }
        machine.current = Some(Current { by, from: (by != Turn::Start).then_some(from), asked });
        self.ask_for_actions(plan)
    }

    /// Queues the actions of the current turn that are ready, and ends the turn if none is running.
    pub(crate) fn ask_for_actions(&mut self, plan: &Plan) -> Vec<u32> {
        let Some(current) = self.machine.as_ref().and_then(|machine| machine.current.as_ref()) else {
            return Vec::new();
        };
        let done = |action: u32| match self.step(action).phase {
            Phase::Completed | Phase::Skipped => true,
            Phase::Failed => plan.step_definition(action).on_failure == OnFailure::Continue,
            Phase::Idle | Phase::Delayed | Phase::Queued => false,
        };
        let ready = |asked: &Asked| {
            let before = |other: &Asked| {
                let ordered = other.group == asked.group;
                other.group < asked.group
                    || (ordered && plan.step(asked.action).after.contains(&other.action))
            };
            self.step(asked.action).phase == Phase::Idle
                && current.asked.iter().filter(|other| before(other)).all(|other| done(other.action))
        };
        let triggered: Vec<u32> =
            current.asked.iter().filter(|asked| ready(asked)).map(|asked| asked.action).collect();
        for &action in &triggered {
            let step = &mut self.steps[action as usize];
            (step.phase, step.attempt) = (Phase::Queued, step.attempt + 1);
        }
        if self.live().next().is_none()
            && let Some(machine) = &mut self.machine
        {
            machine.current = None;
        }
        triggered
    }

    /// An action is over, one way or the other.
    pub(crate) fn action_over(&mut self, plan: &Plan, action: u32, phase: Phase) -> Vec<u32> {
        if let Some(machine) = &mut self.machine {
            match phase {
                Phase::Completed => machine.completed += 1,
                Phase::Failed => {
                    machine.failed += 1;
                    if plan.step(action).on_error.is_some() {
                        machine.error.get_or_insert(action);
                    }
                }
                _ => {}
            }
        }
        self.ask_for_actions(plan)
    }
}
