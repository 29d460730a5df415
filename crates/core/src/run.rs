//! What a run is: the fold of its events. There is one fold, [`RunState::apply`]: `decide` applies each event that it
//! makes, `verify` applies each event that it reads, and both must come to the same bytes.
//!
//! The state is dense by step and event index. It holds no payload, no sequence number and no time, so its size grows
//! with the definition and never with the data.

use serde::Deserialize;

use crate::definition::{OnFailure, Priority};
use crate::event::{Event, EventType, Slot};
use crate::json::Json;
use crate::machine::{MachineState, Turn};
use crate::plan::{Bits, Plan};

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
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// An event, reduced to what changes the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    Start {
        delayed: bool,
        priority: Priority,
    },
    /// A delayed attempt was claimed.
    Started {
        step: u32,
    },
    Completed {
        step: u32,
        attempt: u32,
    },
    Retry {
        step: u32,
        attempt: u32,
        delayed: bool,
        cause: Cause,
    },
    Failed {
        step: u32,
        attempt: u32,
        cause: Cause,
    },
    Skipped {
        step: u32,
    },
    Emit {
        event: u32,
    },
    Paused,
    Resumed,
    Ended(Ended),
    /// A machine took an event in.
    Received {
        number: u32,
        event: u32,
    },
    /// An event that the run which this one repeats was done with.
    Inherited {
        number: u32,
    },
    /// A machine that repeats another run was put where that one stood.
    Stood {
        state: u32,
        transition: u32,
    },
    /// A machine turned an event down when its turn came.
    Rejected {
        number: u32,
    },
    /// A machine made a transition: of several that the turn could lead to, this choice.
    Moved {
        by: Turn,
        choice: u32,
        /// It wrote the context.
        context: bool,
    },
    TimerSet {
        timer: u32,
    },
    TimerFired {
        timer: u32,
    },
    TimerCancelled {
        timer: u32,
    },
    /// Changes nothing (a log line).
    Note,
}

/// Which budget a failed attempt is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The attempt failed by itself: the retry budget.
    Try,
    /// Its lease was lost: the cap on lost leases.
    Lost,
    /// Its holder gave it back: neither.
    Released,
}

/// The code of a `step.retry` or `step.failed` whose attempt was lost with its lease.
pub const LEASE_LOST: &str = "lease_lost";
/// The code of a `step.retry` whose attempt was given back by a stopping instance.
pub const RELEASED: &str = "released";

impl Cause {
    /// What `data.cause` of a `step.retry` or `step.failed` says. Not the code: a step may report any code.
    pub fn as_str(self) -> Option<&'static str> {
        match self {
            Cause::Try => None,
            Cause::Lost => Some(LEASE_LOST),
            Cause::Released => Some(RELEASED),
        }
    }

    pub fn parse(cause: Option<&str>) -> Cause {
        match cause {
            Some(LEASE_LOST) => Cause::Lost,
            Some(RELEASED) => Cause::Released,
            _ => Cause::Try,
        }
    }
}

/// An event that does not fit the definition that its run is pinned to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} ({kind}): {problem}")]
pub struct FoldError {
    pub seq: u64,
    pub kind: EventType,
    pub problem: String,
}

impl RunState {
    /// A run before its first event.
    pub fn new(plan: &Plan) -> RunState {
        RunState {
            started: false,
            ended: None,
            paused: false,
            stopping: false,
            failed: None,
            priority: Priority::Normal,
            retries: 0,
            emitted: Bits::new(plan.events.len()),
            chosen: Some(plan.choosers.iter().map(|&step| Bits::new(plan.step(step).inputs.len())).collect()),
            steps: vec![StepState::default(); plan.steps.len()],
            machine: MachineState::new(plan),
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

    /// Whether the run ended while the step was queued or delayed: nobody will run it any more.
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

    /// Notes which events a step is triggered with, where that may not be all that it lists.
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

impl Fact {
    /// Reads what a persisted event did to its run.
    pub fn of(plan: &Plan, event: &Event) -> Result<Fact, FoldError> {
        let fail = |problem: String| FoldError { seq: event.seq, kind: event.kind, problem };
        let step = || {
            let name = event.step_name.as_deref().ok_or_else(|| fail("has no step".to_owned()))?;
            plan.step_index(name)
                .ok_or_else(|| fail(format!("names step {name:?}, which isn't in the definition")))
        };
        let attempt = event.attempt.unwrap_or(0);
        let data = Data::read(event.data.as_ref());
        let timer = || {
            let timers = plan.machine.as_ref().map_or(0, |machine| machine.timers.len());
            let known = data.timer.filter(|&timer| (timer as usize) < timers);
            known.ok_or_else(|| fail("names a timer that isn't in the definition".to_owned()))
        };
        let received = |name: Option<&str>| {
            let name = name.ok_or_else(|| fail("has no name".to_owned()))?;
            plan.event_index(name).ok_or_else(|| fail(format!("{name:?} isn't in the definition")))
        };
        Ok(match event.kind {
            EventType::FlowStart => Fact::Start {
                delayed: data.start_at.is_some(),
                priority: data.priority.as_deref().and_then(Priority::parse).unwrap_or_default(),
            },
            EventType::StepStarted => Fact::Started { step: step()? },
            EventType::StepCompleted => Fact::Completed { step: step()?, attempt },
            EventType::StepRetry => Fact::Retry {
                step: step()?,
                attempt,
                delayed: data.delay_ms.unwrap_or(0) > 0,
                cause: Cause::parse(data.cause.as_deref()),
            },
            EventType::StepFailed => {
                Fact::Failed { step: step()?, attempt, cause: Cause::parse(data.cause.as_deref()) }
            }
            EventType::StepSkipped => Fact::Skipped { step: step()? },
            EventType::Emit => {
                let name = data.name.ok_or_else(|| fail("has no name".to_owned()))?;
                let event = plan.event_index(&name);
                Fact::Emit { event: event.ok_or_else(|| fail(format!("{name:?} isn't in the definition")))? }
            }
            EventType::FlowPaused => Fact::Paused,
            EventType::FlowResumed => Fact::Resumed,
            EventType::FlowCompleted => Fact::Ended(Ended::Completed),
            EventType::FlowFailed => Fact::Ended(Ended::Failed),
            EventType::FlowCancelled => Fact::Ended(Ended::Cancelled),
            EventType::EventReceived if data.inherited => {
                Fact::Inherited { number: data.number.unwrap_or(0) }
            }
            EventType::EventReceived => {
                Fact::Received { number: data.number.unwrap_or(0), event: received(data.name.as_deref())? }
            }
            EventType::EventRejected => Fact::Rejected { number: data.number.unwrap_or(0) },
            EventType::StateChanged if data.inherited => {
                let named =
                    |name: &str| plan.machine.as_ref()?.states.iter().position(|state| &*state.name == name);
                let state = data.to.as_deref().and_then(named);
                let state =
                    state.ok_or_else(|| fail("names a state that isn't in the definition".to_owned()))?;
                Fact::Stood { state: state as u32, transition: data.transition.unwrap_or(0) }
            }
            EventType::StateChanged => Fact::Moved {
                by: match (&data.event, data.number, data.timer, &data.action) {
                    (Some(event), Some(number), ..) => Turn::Event { number, event: received(Some(event))? },
                    (_, _, Some(_), _) => Turn::Timer(timer()?),
                    (.., Some(action)) => Turn::Error(
                        plan.step_index(action)
                            .ok_or_else(|| fail(format!("there is no action {action:?}")))?,
                    ),
                    _ => Turn::Start,
                },
                choice: data.choice.unwrap_or(0),
                context: data.context.is_some(),
            },
            EventType::TimerSet => Fact::TimerSet { timer: timer()? },
            EventType::TimerFired => Fact::TimerFired { timer: timer()? },
            EventType::TimerCancelled => Fact::TimerCancelled { timer: timer()? },
            _ => Fact::Note,
        })
    }

    /// Where the payload of the event behind this fact is found again. `state` is that before the fact.
    pub fn slot(self, plan: &Plan, state: &RunState) -> Option<Slot> {
        match self {
            Fact::Start { .. } => Some(Slot::Input),
            Fact::Completed { step, .. } if plan.step(step).keeps_result => {
                Some(Slot::Result(state.address(step)))
            }
            Fact::Failed { step, .. } => Some(Slot::Error(state.address(step))),
            Fact::Emit { event } => Some(Slot::Emit(event)),
            Fact::Received { number, .. } => Some(Slot::Received(number)),
            Fact::Stood { transition, .. } => Some(Slot::Context(transition)),
            Fact::Moved { context: true, .. } => Some(Slot::Context(state.of_machine().transition + 1)),
            _ => None,
        }
    }
}

/// The members of an event's `data` that the fold reads.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Data {
    name: Option<String>,
    cause: Option<String>,
    delay_ms: Option<u64>,
    start_at: Option<Json>,
    priority: Option<String>,
    number: Option<u32>,
    event: Option<String>,
    timer: Option<u32>,
    action: Option<String>,
    choice: Option<u32>,
    context: Option<Json>,
    to: Option<String>,
    transition: Option<u32>,
    inherited: bool,
}

impl Data {
    fn read(data: Option<&Json>) -> Data {
        data.and_then(|data| data.to().ok()).unwrap_or_default()
    }
}
