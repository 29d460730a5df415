//! Reports that come again: what is recorded of an attempt that is over.
//!
//! The run state remembers only the last attempt of each step, and of that only how it ended. Whether a report of an attempt
//! was recorded, and whether it said the same, is in the log and, once that is trimmed, in the digests that are left of it
//! ([`ReportDigests`]). Reading them costs a question to the store, which only a report that can change nothing asks.

use super::attempt::clip;
use super::draft::Draft;
use super::{AttemptFailure, AttemptLog, Halt, Missing, Refusal};
use crate::event::{AttemptOf, EventType};
use crate::json::Json;
use crate::report::{Recorded, ReportDigest, ReportDigests};

/// What an attempt says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report<'a> {
    Done(&'a Json),
    Failed(&'a AttemptFailure),
    Emit(&'a str, &'a Json),
}

impl Draft<'_> {
    /// The attempt must be the current one of a live step. Of one that is over it's known whether it made this very
    /// report, which was applied then; another report is refused.
    pub(super) fn reported(&self, step: u32, attempt: u32, report: Report<'_>) -> Result<(), Halt> {
        let Err(stale) = self.current(step, attempt) else { return Ok(()) };
        let name = self.plan.step(step).name.clone();
        let of = AttemptOf { step: name.clone(), attempt };
        let Some((_, log)) = self.known.attempt.as_ref().filter(|(known, _)| *known == of) else {
            return Err(Halt::Missing(Missing::Attempt(of)));
        };
        let Some(recorded) = log.reports(&of) else {
            return Err(Refusal::ReportsTrimmed { step: name, attempt }.into());
        };
        Err(match report.find(&recorded) {
            Found::Same => Halt::Applied,
            Found::Nothing => stale,
            Found::Other => Refusal::OtherOutcome { step: name, attempt, recorded: log.outcome() }.into(),
        })
    }
}

/// What is recorded of a report.
enum Found {
    Same,
    Nothing,
    /// Another report of the attempt.
    Other,
}

impl Report<'_> {
    fn find(&self, recorded: &[ReportDigest]) -> Found {
        let digest = match self {
            Report::Done(result) => ReportDigest::completed(Some(result)),
            Report::Failed(failure) => ReportDigest::failed(clip(&failure.error), failure.code.as_deref()),
            Report::Emit(name, payload) => ReportDigest::emitted(name, Some(payload)),
        };
        let over = recorded.iter().find(|digest| !digest.is_emit());
        match (self, over) {
            _ if recorded.contains(&digest) => Found::Same,
            (Report::Emit(..), _) => Found::Nothing,
            (_, Some(ReportDigest::Completed(_) | ReportDigest::Failed(_))) => Found::Other,
            // It didn't end by a report: the clock has ended it, or its lease was lost.
            _ => Found::Nothing,
        }
    }
}

impl AttemptLog {
    /// `None` if it's no longer known.
    fn reports(&self, of: &AttemptOf) -> Option<Vec<ReportDigest>> {
        match self {
            AttemptLog::Kept(events) => {
                let mut digests = ReportDigests::default();
                events.iter().for_each(|(kind, data)| digests.note(*kind, of, Some(data)));
                Some(digests.attempt(of).to_vec())
            }
            AttemptLog::Trimmed(digests) => Some(digests.clone()),
            AttemptLog::Forgotten => None,
        }
    }

    /// How the attempt was reported to end, in words.
    fn outcome(&self) -> String {
        let failed = match self {
            AttemptLog::Kept(events) => {
                let outcome = events.iter().find(|(kind, _)| *kind != EventType::Emit);
                outcome
                    .filter(|(kind, _)| *kind != EventType::StepCompleted)
                    .map(|(_, data)| format!("failed ({})", data.to::<Recorded>().unwrap_or_default().error))
            }
            AttemptLog::Trimmed(digests) => {
                let failed = digests.iter().any(|digest| matches!(digest, ReportDigest::Failed(_)));
                failed.then(|| "failed".to_owned())
            }
            AttemptLog::Forgotten => None,
        };
        failed.unwrap_or_else(|| "completed".to_owned())
    }
}
