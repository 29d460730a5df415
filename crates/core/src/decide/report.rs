//! Reports that come again: what the log says of an attempt that is over.
//!
//! The run state remembers only the last attempt of each step, and of that only how it ended. Whether a report of an older
//! attempt was recorded, and whether it said the same, is in the log alone, for as long as the log is kept. Reading it
//! costs a question to the store, which only a report that can change nothing asks.

use serde::Deserialize;

use super::attempt::clip;
use super::draft::Draft;
use super::{AttemptLog, Failure, Halt, Missing, Refusal};
use crate::event::{AttemptOf, EventType};
use crate::json::Json;

/// The code of an attempt whose time was up.
const TIMEOUT: &str = "timeout";

/// What an attempt says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report<'a> {
    Done(&'a Json),
    Failed(&'a Failure),
    Emit(&'a str, &'a Json),
}

/// What is compared of the `data` of an event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data {
    result: Option<Json>,
    error: String,
    code: Option<String>,
    cause: Option<String>,
    inherited: bool,
    name: String,
    payload: Option<Json>,
}

impl Draft<'_> {
    /// The attempt must be the current one of a live step. Of one that is over the log says whether it made this very
    /// report, which was applied then; another report is refused.
    pub(super) fn reported(&self, step: u32, attempt: u32, report: Report<'_>) -> Result<(), Halt> {
        let Err(stale) = self.current(step, attempt) else { return Ok(()) };
        let name = self.plan.step(step).name.clone();
        let of = AttemptOf { step: name.clone(), attempt };
        Err(match &self.known.attempt {
            Some((known, AttemptLog::Kept(events))) if *known == of => match report.find(events) {
                Found::Same => Halt::Applied,
                Found::Nothing => stale,
                Found::Other(recorded) => Refusal::OtherOutcome { step: name, attempt, recorded }.into(),
            },
            // The state has how the last attempt ended, but not what it said: another report must not pass for that one.
            Some((known, AttemptLog::Trimmed)) if *known == of => {
                Refusal::ReportsTrimmed { step: name, attempt }.into()
            }
            _ => Halt::Missing(Missing::Attempt(of)),
        })
    }
}

/// What the log has of a report.
enum Found {
    Same,
    Nothing,
    /// Another report of the attempt; in words.
    Other(String),
}

impl Report<'_> {
    fn find(&self, events: &[(EventType, Json)]) -> Found {
        let (emits, outcomes): (Vec<_>, Vec<_>) =
            events.iter().partition(|(kind, _)| *kind == EventType::Emit);
        let read = |data: &Json| data.to::<Data>().unwrap_or_default();
        if let Report::Emit(name, payload) = self {
            let same = |data: Data| data.name == *name && is_same(data.payload.as_ref(), payload);
            return match emits.iter().any(|(_, data)| same(read(data))) {
                true => Found::Same,
                false => Found::Nothing,
            };
        }
        let Some((kind, data)) = outcomes.first() else { return Found::Nothing };
        let data = read(data);
        let same = match (self, kind) {
            // The step was done in the run that this one repeats; nobody could report it here.
            (_, EventType::StepCompleted) if data.inherited => return Found::Nothing,
            (Report::Done(result), EventType::StepCompleted) => is_same(data.result.as_ref(), result),
            (_, EventType::StepCompleted) => false,
            // The attempt did not end by a report: its lease was lost or given back.
            _ if data.cause.is_some() => return Found::Nothing,
            (Report::Failed(failure), _) => data.error == clip(&failure.error) && data.code == failure.code,
            _ => false,
        };
        match kind {
            _ if same => Found::Same,
            EventType::StepCompleted => Found::Other("completed".to_owned()),
            // The clock has ended it, not a report.
            _ if data.code.as_deref() == Some(TIMEOUT) => Found::Nothing,
            _ => Found::Other(format!("failed ({})", data.error)),
        }
    }
}

/// Whether two payloads say the same, whatever their white space and the order of their keys. One that is not there is null.
fn is_same(recorded: Option<&Json>, reported: &Json) -> bool {
    match recorded {
        Some(recorded) => recorded == reported || recorded.value() == reported.value(),
        // An older build recorded null for an event without a payload.
        None => reported.value().is_null(),
    }
}
