//! What a log says of its run, read without the fold.

use std::collections::{BTreeMap, BTreeSet};

use flowline_core::definition::Definition;
use flowline_core::{Event, EventType, Status};
use serde_json::Value;

use super::StepFate;

/// A run that was ended from outside before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Cancelled,
    CompletedByHand,
    FailedByHand,
    /// Its own time-out.
    OutOfTime,
}

/// What a log says, step by step.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    pub input: Value,
    /// Only steps that have ended, with the number of the event that says so.
    fates: BTreeMap<String, (StepFate, u64)>,
    /// The first event of each step.
    firsts: BTreeMap<String, u64>,
    emits: BTreeMap<String, u64>,
    /// Steps with any event at all.
    pub touched: BTreeSet<String>,
    pub emitted: BTreeSet<String>,
    /// Of those, what came from outside.
    pub received: BTreeSet<String>,
    /// Steps taken over from the run that this one repeats, with their emits.
    pub inherited: BTreeMap<String, BTreeSet<String>>,
    /// The codes of each step's failed tries, in order; an attempt lost with its lease is no try.
    pub tries: BTreeMap<String, Vec<Option<String>>>,
    /// Steps that failed for good because of their lease.
    pub lost: BTreeSet<String>,
    pub cut: Option<Cut>,
    pub status: Option<Status>,
    pub paused: bool,
}

impl Observed {
    pub fn of(flow: &Definition, log: &[Event]) -> Result<Observed, String> {
        let mut observed = Observed::default();
        let mut emits: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for event in log {
            if observed.status.is_some() {
                return Err(format!("event {} ({}) comes after the end of the run", event.seq, event.kind));
            }
            let data = event.data.as_ref().map(|data| data.value()).unwrap_or_default();
            let step = event.step_name.as_deref().unwrap_or_default();
            if event.step_name.is_some() {
                if flow.step(step).is_none() {
                    return Err(format!(
                        "event {} names step {step:?}, which the flow doesn't have",
                        event.seq
                    ));
                }
                observed.touched.insert(step.to_owned());
                observed.firsts.entry(step.to_owned()).or_insert(event.seq);
            }
            if event.kind == EventType::Emit {
                let name = text(&data, "name").unwrap_or_default();
                if !observed.emitted.insert(name.clone()) {
                    return Err(format!("event {}: {name:?} was already emitted", event.seq));
                }
                observed.emits.insert(name.clone(), event.seq);
                match event.step_name.is_some() {
                    true => drop(emits.entry(step.to_owned()).or_default().insert(name)),
                    false => drop(observed.received.insert(name)),
                }
                continue;
            }
            observed.note(event, step, &data, &mut emits)?;
        }
        Ok(observed)
    }

    pub fn fate(&self, step: &str) -> StepFate {
        self.fates.get(step).map_or(StepFate::Open, |(fate, _)| *fate)
    }

    /// The number of the event that ended a step.
    pub(super) fn ended_at(&self, step: &str) -> Option<u64> {
        self.fates.get(step).map(|(_, at)| *at)
    }

    /// The number of a step's first event.
    pub(super) fn first(&self, step: &str) -> Option<u64> {
        self.firsts.get(step).copied()
    }

    pub(super) fn emitted_at(&self, event: &str) -> Option<u64> {
        self.emits.get(event).copied()
    }

    pub fn ended(&self) -> bool {
        self.status.is_some()
    }

    pub fn completed(&self) -> impl Iterator<Item = &String> {
        self.fates.iter().filter(|(_, (fate, _))| *fate == StepFate::Completed).map(|(step, _)| step)
    }

    fn note(
        &mut self,
        event: &Event,
        step: &str,
        data: &Value,
        emits: &mut BTreeMap<String, BTreeSet<String>>,
    ) -> Result<(), String> {
        let fate = match event.kind {
            EventType::FlowStart => {
                self.input = data.get("input").cloned().unwrap_or_default();
                return Ok(());
            }
            EventType::FlowPaused | EventType::FlowResumed => {
                self.paused = event.kind == EventType::FlowPaused;
                return Ok(());
            }
            EventType::FlowCompleted | EventType::FlowFailed | EventType::FlowCancelled => {
                self.end(event.kind, data);
                return Ok(());
            }
            EventType::StepRetry => {
                if data.get("cause").is_none() {
                    self.tries.entry(step.to_owned()).or_default().push(text(data, "code"));
                }
                return Ok(());
            }
            EventType::StepCompleted => {
                if data.get("inherited") == Some(&Value::Bool(true)) {
                    self.inherited.insert(step.to_owned(), emits.remove(step).unwrap_or_default());
                }
                StepFate::Completed
            }
            EventType::StepFailed => {
                match data.get("cause") {
                    None => self.tries.entry(step.to_owned()).or_default().push(text(data, "code")),
                    Some(_) => drop(self.lost.insert(step.to_owned())),
                }
                StepFate::Failed
            }
            EventType::StepSkipped => match text(data, "reason").as_deref() {
                Some("condition") => StepFate::Unwanted,
                Some("fail_fast") => StepFate::Stopped,
                Some("not_triggered") => StepFate::Untriggered,
                other => return Err(format!("step {step:?} was skipped because of {other:?}")),
            },
            _ => return Ok(()),
        };
        match self.fates.insert(step.to_owned(), (fate, event.seq)) {
            Some((before, _)) => {
                Err(format!("event {}: step {step:?} ended twice; it was {before:?} first", event.seq))
            }
            None => Ok(()),
        }
    }

    fn end(&mut self, kind: EventType, data: &Value) {
        let by_hand = text(data, "by").is_some();
        (self.status, self.cut) = match kind {
            EventType::FlowCancelled => (Some(Status::Cancelled), Some(Cut::Cancelled)),
            EventType::FlowCompleted => (Some(Status::Completed), by_hand.then_some(Cut::CompletedByHand)),
            _ if by_hand => (Some(Status::Failed), Some(Cut::FailedByHand)),
            _ if text(data, "code").as_deref() == Some("timeout") => {
                (Some(Status::Failed), Some(Cut::OutOfTime))
            }
            _ => (Some(Status::Failed), None),
        };
    }
}

fn text(data: &Value, key: &str) -> Option<String> {
    data.get(key).and_then(Value::as_str).map(str::to_owned)
}
