//! Facts: events reduced to what changes a run, as `decide` makes them and as they are read back from the log.

use serde::Deserialize;

use super::{Ended, RunState};
use crate::definition::Priority;
use crate::event::{Event, EventType, PayloadSlot};
use crate::json::Json;
use crate::machine::Turn;
use crate::plan::Plan;

/// An event, reduced to what changes the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The run started.
    Start { delayed: bool, priority: Priority },
    /// A delayed attempt was claimed.
    Started { step: u32 },
    /// A step completed.
    Completed { step: u32, attempt: u32 },
    /// An attempt failed and the step gets another one.
    Retry { step: u32, attempt: u32, delayed: bool, cause: Cause },
    /// A step is out of attempts.
    Failed { step: u32, attempt: u32, cause: Cause },
    /// A step was skipped.
    Skipped { step: u32 },
    /// An event was emitted.
    Emit { event: u32 },
    /// The run was paused.
    Paused,
    /// The run was resumed.
    Resumed,
    /// The run ended.
    Ended(Ended),
    /// A machine accepted an event.
    Received { number: u32, event: u32 },
    /// An event that the retried run had finished.
    Inherited { number: u32 },
    /// A retry put the machine into the state that the retried run was in.
    Stood { state: u32, transition: u32 },
    /// A machine rejected an event when its turn came.
    Rejected { number: u32 },
    /// A machine made a transition: this choice among those of the turn. `context` if it wrote the context.
    Moved { by: Turn, choice: u32, context: bool },
    /// A timer was set.
    TimerSet { timer: u32 },
    /// A timer fired.
    TimerFired { timer: u32 },
    /// A timer was cancelled.
    TimerCancelled { timer: u32 },
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
    pub fn slot(self, plan: &Plan, state: &RunState) -> Option<PayloadSlot> {
        match self {
            Fact::Start { .. } => Some(PayloadSlot::Input),
            Fact::Completed { step, .. } if plan.step(step).keeps_result => {
                Some(PayloadSlot::Result(state.address(step)))
            }
            Fact::Failed { step, .. } => Some(PayloadSlot::Error(state.address(step))),
            Fact::Emit { event } => Some(PayloadSlot::Emit(event)),
            Fact::Received { number, .. } => Some(PayloadSlot::Received(number)),
            Fact::Stood { transition, .. } => Some(PayloadSlot::Context(transition)),
            Fact::Moved { context: true, .. } => {
                Some(PayloadSlot::Context(state.of_machine().transition + 1))
            }
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
