//! The event: one flat, versioned record, the same in every store, in the API and in its streams.
//!
//! `decide` makes [`NewEvent`]s; the store numbers and dates them when it commits, which makes them [`Event`]s. A
//! persisted event is never changed, and its JSON shape is pinned by the fixtures under `tests/golden/`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{RunId, Tenant, step_id};
use crate::json::Json;
use crate::status::Status;
use crate::time::Time;
use crate::words;

/// The version that this build writes in an event's `v`.
pub const EVENT_VERSION: u32 = 1;

words! {
    /// What happened. The names are stable; their order isn't.
    #[non_exhaustive]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum EventType {
        FlowStart = "flow.start",
        FlowCompleted = "flow.completed",
        FlowFailed = "flow.failed",
        FlowCancelled = "flow.cancelled",
        FlowPaused = "flow.paused",
        FlowResumed = "flow.resumed",
        StepStarted = "step.started",
        StepCompleted = "step.completed",
        /// A try that will be repeated.
        StepRetry = "step.retry",
        /// Out of attempts.
        StepFailed = "step.failed",
        StepSkipped = "step.skipped",
        Emit = "emit",
        Log = "log",
        State = "state",
        #[cfg_attr(feature = "schema", schemars(skip))]
        AwaitRegistered = "await.registered",
        #[cfg_attr(feature = "schema", schemars(skip))]
        AwaitResolved = "await.resolved",
        #[cfg_attr(feature = "schema", schemars(skip))]
        AwaitTimeout = "await.timeout",
        EventReceived = "event.received",
        EventRejected = "event.rejected",
        StateChanged = "state.changed",
        TimerSet = "timer.set",
        TimerFired = "timer.fired",
        TimerCancelled = "timer.cancelled",
    }
}

impl EventType {
    /// Nothing follows one of these in a run's log.
    pub fn is_terminal(self) -> bool {
        self.ended_as().is_some()
    }

    /// Those that logs hold; `await.*` is reserved.
    pub fn written() -> impl Iterator<Item = EventType> {
        EventType::ALL.into_iter().filter(|kind| !kind.as_str().starts_with("await."))
    }

    /// The status of a run that this event ends.
    pub fn ended_as(self) -> Option<Status> {
        match self {
            EventType::FlowCompleted => Some(Status::Completed),
            EventType::FlowFailed => Some(Status::Failed),
            EventType::FlowCancelled => Some(Status::Cancelled),
            _ => None,
        }
    }
}

/// Which attempt of which step an event belongs to. Attempt 0 is none: a step that was skipped before it was tried.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptOf {
    pub step: Arc<str>,
    pub attempt: u32,
}

/// Where a payload can be found again within its run. Numbers, so that a store can index them; their meaning is fixed
/// by the definition that the run is pinned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadSlot {
    /// The run's input (`flow.start`).
    Input,
    /// The emit with this event index.
    Emit(u32),
    /// The result of this step (`step.completed`).
    Result(u32),
    /// Why this step failed (`step.failed`).
    Error(u32),
    /// The context that this transition of a machine wrote (`state.changed`); they count from 1.
    Context(u32),
    /// The event that a machine took in as this one (`event.received`), with all that was said of it; they count from 1.
    Received(u32),
}

impl PayloadSlot {
    pub fn number(self) -> u32 {
        match self {
            PayloadSlot::Input => 0,
            PayloadSlot::Emit(n) => n << 2 | 1,
            PayloadSlot::Result(n) => n << 2 | 2,
            PayloadSlot::Error(n) => n << 2 | 3,
            PayloadSlot::Context(n) => n << 3,
            PayloadSlot::Received(n) => n << 3 | 4,
        }
    }

    pub fn from_number(number: u32) -> PayloadSlot {
        match number & 3 {
            0 if number == 0 => PayloadSlot::Input,
            0 if number & 4 == 0 => PayloadSlot::Context(number >> 3),
            0 => PayloadSlot::Received(number >> 3),
            1 => PayloadSlot::Emit(number >> 2),
            2 => PayloadSlot::Result(number >> 2),
            _ => PayloadSlot::Error(number >> 2),
        }
    }

    /// Takes the payload out of the `data` of the event that this slot points at.
    pub fn open(self, data: &Json) -> Json {
        #[derive(Deserialize)]
        struct Data {
            input: Option<Json>,
            #[serde(default, deserialize_with = "crate::json::present")]
            payload: Option<Json>,
            result: Option<Json>,
            error: Option<Json>,
            context: Option<Json>,
        }
        if let PayloadSlot::Received(_) = self {
            return data.clone();
        }
        let Ok(found) = data.to::<Data>() else { return Json::null() };
        match self {
            PayloadSlot::Input => found.input,
            PayloadSlot::Emit(_) => found.payload,
            PayloadSlot::Result(_) => found.result,
            PayloadSlot::Error(_) => found.error,
            PayloadSlot::Context(_) => found.context,
            PayloadSlot::Received(_) => None,
        }
        .unwrap_or_else(|| if let PayloadSlot::Emit(_) = self { Json::nothing() } else { Json::null() })
    }
}

/// An event before the store has numbered and dated it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    pub kind: EventType,
    pub of: Option<AttemptOf>,
    pub data: Option<Json>,
    /// Set where the payload must be found again by address.
    pub slot: Option<PayloadSlot>,
}

impl NewEvent {
    pub fn run(kind: EventType, data: Option<Json>) -> NewEvent {
        NewEvent { kind, of: None, data, slot: None }
    }

    pub fn step(kind: EventType, step: &Arc<str>, attempt: u32, data: Option<Json>) -> NewEvent {
        NewEvent { kind, of: Some(AttemptOf { step: step.clone(), attempt }), data, slot: None }
    }

    pub fn at(mut self, slot: PayloadSlot) -> NewEvent {
        self.slot = Some(slot);
        self
    }

    /// When its run began, where the first event to say so is this one, written at `ts`: a first attempt began when it says,
    /// which can be before it is written, and a machine begins as it enters its first state.
    pub fn begins(&self, ts: Time) -> Option<Time> {
        match self.kind {
            EventType::StepStarted => Some(began(self.data.as_ref()).unwrap_or(ts)),
            EventType::StateChanged => Some(ts),
            _ => None,
        }
    }

    /// A terminal event as it is written at `ts`: its run took from `created` until then. Only the store knows both;
    /// `decide` could only guess.
    pub fn lasting(mut self, created: Time, ts: Time) -> NewEvent {
        let text = self.data.as_ref().filter(|_| self.kind.is_terminal()).map_or("", |data| data.get());
        if let Some((before, _)) = split_duration(text) {
            let ms = ts.since(created).as_millis();
            self.data = Some(Json::composed(format!("{before}{ms}}}")));
        }
        self
    }
}

/// The `data` of a terminal event up to its duration, which is the last of its members, and the duration.
pub fn split_duration(data: &str) -> Option<(&str, &str)> {
    const KEY: &str = "\"duration\":";
    let number = data.strip_suffix('}')?;
    let digits = number.trim_end_matches(|c: char| c.is_ascii_digit());
    let (before, number) = number.split_at(digits.len());
    let before = before.trim_end_matches(' ');
    (before.ends_with(KEY) && !number.is_empty()).then_some((before, number))
}

/// What the `data` of a `step.started` says of when its attempt began.
fn began(data: Option<&Json>) -> Option<Time> {
    #[derive(Deserialize)]
    struct Data {
        at: Time,
    }
    Some(data?.to::<Data>().ok()?.at)
}

/// One thing that happened to a run. The fields and their names are a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// `<ms>-<seq>`, the cursor within the run.
    pub id: String,
    /// 1, 2, 3 … without gaps.
    pub seq: u64,
    pub ts: Time,
    #[serde(rename = "type")]
    pub kind: EventType,
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    pub tenant: Tenant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_name: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Depends on the type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Json>,
    pub v: u32,
}

impl Event {
    /// Puts a stored row back together. `ms` is the event's time by the store's clock.
    pub fn stored(run: &RunId, flow: &Arc<str>, tenant: &Tenant, seq: u64, ms: i64, new: NewEvent) -> Event {
        let attempted = new.of.as_ref().filter(|of| of.attempt > 0);
        Event {
            id: event_id(ms, seq),
            seq,
            ts: Time::from_millis(ms),
            kind: new.kind,
            run_id: run.clone(),
            flow_name: flow.clone(),
            tenant: tenant.clone(),
            step_id: attempted.map(|of| step_id(run, &of.step, of.attempt)),
            attempt: attempted.map(|of| of.attempt),
            step_name: new.of.map(|of| of.step),
            data: new.data,
            v: EVENT_VERSION,
        }
    }
}

impl Event {
    /// When the attempt of a `step.started` began: the line itself is dated when it was written, which can be later.
    pub fn began(&self) -> Time {
        self.says_began().unwrap_or(self.ts)
    }

    /// The same as the line says it, which those of older builds do not.
    pub fn says_began(&self) -> Option<Time> {
        began(self.data.as_ref())
    }
}

pub fn event_id(ms: i64, seq: u64) -> String {
    format!("{ms}-{seq}")
}

/// The sequence number inside an event id; `None` where the text is not one.
pub fn seq_of_id(id: &str) -> Option<u64> {
    let (ms, seq) = id.split_once('-')?;
    ms.parse::<i64>().ok()?;
    seq.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_survive_their_numbers() {
        for slot in [
            PayloadSlot::Input,
            PayloadSlot::Emit(0),
            PayloadSlot::Emit(9_999),
            PayloadSlot::Result(3),
            PayloadSlot::Error(70_000),
            PayloadSlot::Context(1),
            PayloadSlot::Received(1),
            PayloadSlot::Received(9_999),
        ] {
            assert_eq!(PayloadSlot::from_number(slot.number()), slot);
        }
    }

    #[test]
    fn every_type_has_one_text() {
        for kind in EventType::ALL {
            assert_eq!(EventType::parse(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
    }
}
