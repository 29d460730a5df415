//! What a run is: the fold of its events. There is one fold, [`RunState::apply`]: `decide` applies each event that it
//! makes, `verify` applies each event that it reads, and both must come to the same bytes.
//!
//! The state is dense by step and event index. It holds no payload, no sequence number and no time, so its size grows
//! with the definition and never with the data.

mod fact;

use crate::definition::{OnFailure, Priority};
use crate::event::Event;
use crate::machine::MachineState;
use crate::plan::{Bits, Plan};

pub use fact::{Cause, Fact, FoldError, LEASE_LOST, RELEASED};
pub use flowline_types::Status;

/// Where a step stands. What moves it on: an `Idle` step is triggered by what it subscribes to, a `Delayed` one by
/// being claimed when it is due, a `Queued` one by the outcome of its attempt. The rest are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    #[default]
    Idle,
    /// Its job waits for a time: a delayed start or a retry.
    Delayed,
    /// Its job is ready or leased.
    Queued,
    Completed,
    Failed,
    Skipped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepState {
    pub phase: Phase,
    /// The current or last attempt; 0 before the step was triggered.
    pub attempt: u32,
    /// Attempts that failed and count against the retry budget.
    pub tries: u32,
    /// Attempts that were lost with their lease.
    pub lost: u32,
}

impl StepState {
    /// Whether a job of this step exists.
    pub fn is_live(self) -> bool {
        matches!(self.phase, Phase::Delayed | Phase::Queued)
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Completed,
    Failed,
    Cancelled,
}

/// The fold of a run's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunState {
    pub started: bool,
    pub ended: Option<Ended>,
    pub paused: bool,
    /// `fail_fast` has struck: nothing is triggered any more.
    pub stopping: bool,
    /// The first step that failed under `on_failure: fail`: the run will end failed.
    pub failed: Option<u32>,
    pub priority: Priority,
    /// `step.retry` events.
    pub retries: u32,
    pub emitted: Bits,
    /// By [`Plan::choosers`]: the events that were there when the step was triggered, by their place in its inputs. `None`
    /// for a run that an older build began: that build looked at what was emitted whenever an attempt was claimed.
    pub chosen: Option<Vec<Bits>>,
    /// Of a machine: its actions. Their attempts count on from transition to transition, so that one is never mistaken for
    /// another.
    pub steps: Vec<StepState>,
    pub machine: Option<Box<MachineState>>,
}

impl RunState {
    /// A run before its first event.
    pub fn new(plan: &Plan) -> RunState {
        RunState {
            emitted: Bits::new(plan.events.len()),
            chosen: Some(plan.choosers.iter().map(|&step| Bits::new(plan.step(step).inputs.len())).collect()),
            steps: vec![StepState::default(); plan.steps.len()],
            machine: MachineState::new(plan),
            ..RunState::default()
        }
    }

    /// Folds a whole log.
    pub fn fold<'a>(plan: &Plan, events: impl IntoIterator<Item = &'a Event>) -> Result<RunState, FoldError> {
        let mut state = RunState::new(plan);
        for event in events {
            state.apply(plan, Fact::of(plan, event)?);
        }
        Ok(state)
    }

    pub fn step(&self, step: u32) -> StepState {
        self.steps[step as usize]
    }

    /// Where what this step leaves behind is kept: an action leaves it anew in every transition.
    pub fn address(&self, step: u32) -> u32 {
        match &self.machine {
            Some(machine) => machine.transition * self.steps.len() as u32 + step,
            None => step,
        }
    }

    /// Whether the run ended while the step was queued or delayed, so that it will never run.
    pub fn is_dropped(&self, step: u32) -> bool {
        self.ended.is_some() && self.step(step).is_live()
    }

    pub fn status(&self) -> Status {
        match self.ended {
            Some(Ended::Completed) => Status::Completed,
            Some(Ended::Failed) => Status::Failed,
            Some(Ended::Cancelled) => Status::Cancelled,
            None if self.paused => Status::Paused,
            None if self.steps.iter().any(|step| step.phase == Phase::Queued) => Status::Running,
            None => Status::Waiting,
        }
    }

    /// Steps that have a job.
    pub fn live(&self) -> impl Iterator<Item = u32> {
        self.steps.iter().enumerate().filter(|(_, step)| step.is_live()).map(|(at, _)| at as u32)
    }

    /// Steps in this phase; of a machine, how often an action came to it.
    pub fn count(&self, phase: Phase) -> u32 {
        match (&self.machine, phase) {
            (Some(machine), Phase::Completed) => return machine.completed,
            (Some(machine), Phase::Failed) => return machine.failed,
            _ => {}
        }
        self.steps.iter().filter(|step| step.phase == phase).count() as u32
    }

    /// Moves the state past one event. Returns the steps that the event triggered: they are `Queued` now (or `Delayed`,
    /// at a delayed start), and what made them so precedes them in the log.
    pub fn apply(&mut self, plan: &Plan, fact: Fact) -> Vec<u32> {
        match fact {
            Fact::Start { delayed, priority } => {
                self.started = true;
                self.priority = priority;
                let phase = if delayed { Phase::Delayed } else { Phase::Queued };
                for &step in &plan.entries {
                    self.steps[step as usize] = StepState { phase, attempt: 1, ..StepState::default() };
                }
                return plan.entries.clone();
            }
            Fact::Started { step } => {
                let step = &mut self.steps[step as usize];
                if step.phase == Phase::Delayed {
                    step.phase = Phase::Queued;
                }
            }
            Fact::Completed { step, attempt } => {
                let state = &mut self.steps[step as usize];
                (state.phase, state.attempt) = (Phase::Completed, attempt);
                if self.machine.is_some() {
                    return self.action_over(plan, step, Phase::Completed);
                }
                return self.trigger(plan, &plan.step(step).followers);
            }
            Fact::Retry { step, attempt, delayed, cause } => {
                self.charge(step, cause);
                let step = &mut self.steps[step as usize];
                step.phase = if delayed { Phase::Delayed } else { Phase::Queued };
                step.attempt = attempt + 1;
                self.retries += 1;
            }
            Fact::Failed { step, attempt, cause } => {
                self.charge(step, cause);
                let state = &mut self.steps[step as usize];
                (state.phase, state.attempt) = (Phase::Failed, attempt);
                let goes_on = plan.step_definition(step).on_failure == OnFailure::Continue;
                if self.machine.is_some() {
                    if !goes_on && plan.step(step).on_error.is_none() {
                        self.failed.get_or_insert(step);
                    }
                    return self.action_over(plan, step, Phase::Failed);
                }
                if goes_on {
                    return self.trigger(plan, &plan.step(step).followers);
                }
                self.failed.get_or_insert(step);
                self.stopping |= plan.definition.fail_fast;
            }
            Fact::Skipped { step } if self.machine.is_some() => {
                self.steps[step as usize].phase = Phase::Skipped;
                return self.action_over(plan, step, Phase::Skipped);
            }
            Fact::Skipped { step } => {
                self.steps[step as usize] = StepState { phase: Phase::Skipped, ..StepState::default() }
            }
            Fact::Emit { event } => {
                if !self.emitted.contains(event) {
                    self.emitted.insert(event);
                    return self.trigger(plan, &plan.events[event as usize].listeners);
                }
            }
            Fact::Paused => self.paused = true,
            Fact::Resumed => self.paused = false,
            Fact::Ended(ended) => self.ended = Some(ended),
            Fact::Note => {}
            Fact::Received { .. }
            | Fact::Inherited { .. }
            | Fact::Stood { .. }
            | Fact::Rejected { .. }
            | Fact::Moved { .. }
            | Fact::TimerSet { .. }
            | Fact::TimerFired { .. }
            | Fact::TimerCancelled { .. } => return self.apply_machine(plan, fact),
        }
        Vec::new()
    }

    fn charge(&mut self, step: u32, cause: Cause) {
        let step = &mut self.steps[step as usize];
        match cause {
            Cause::Try => step.tries += 1,
            Cause::Lost => step.lost += 1,
            Cause::Released => {}
        }
    }

    fn trigger(&mut self, plan: &Plan, candidates: &[u32]) -> Vec<u32> {
        let mut triggered = Vec::new();
        if self.stopping {
            return triggered;
        }
        for &step in candidates {
            if self.step(step).phase == Phase::Idle && plan.satisfied(step, self) {
                self.steps[step as usize] =
                    StepState { phase: Phase::Queued, attempt: 1, ..StepState::default() };
                self.fix_input(plan, step);
                triggered.push(step);
            }
        }
        triggered
    }

    /// Notes which events a step is triggered with, if that may not be all it lists.
    fn fix_input(&mut self, plan: &Plan, step: u32) {
        let planned = plan.step(step);
        let (Some(chosen), Some(at)) = (&mut self.chosen, planned.chooser) else { return };
        for (place, &event) in planned.inputs.iter().enumerate() {
            if self.emitted.contains(event) {
                chosen[at as usize].insert(place as u32);
            }
        }
    }

    /// The events in the input of a step that was triggered. They are those that came before its trigger in the log, so
    /// every attempt gets the same ones.
    pub fn given<'a>(&'a self, plan: &'a Plan, step: u32) -> impl Iterator<Item = u32> + 'a {
        let planned = plan.step(step);
        let fixed = self.chosen.as_ref().zip(planned.chooser);
        let fixed = fixed.map(|(chosen, at)| &chosen[at as usize]);
        let there = move |(place, event): &(usize, &u32)| match fixed {
            Some(fixed) => fixed.contains(*place as u32),
            None => self.emitted.contains(**event),
        };
        planned.inputs.iter().enumerate().filter(there).map(|(_, &event)| event)
    }
}
