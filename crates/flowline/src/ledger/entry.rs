//! An input for a run, and its outcome.

use std::sync::Arc;

use flowline_core::decide::{Refusal, Start};
use flowline_core::{DecideInput, NewEvent, Plan, Status};
use flowline_store::{LeaseUse, StoreError};

/// An input on its way into a run. `R` is whatever the caller wants back with the outcome.
#[derive(Debug)]
pub struct InputEntry<R> {
    pub input: DecideInput,
    /// Lines of the attempt that are not in the log yet; written before the input's own events.
    pub lines: Vec<NewEvent>,
    /// The job that the input comes from, as the commit must find it.
    pub lease: Option<LeaseUse>,
    /// The plan of the run that a start makes.
    pub(super) plan: Option<Arc<Plan>>,
    pub reply: R,
    /// Whether a commit with it may have landed, its answer being lost.
    pub(super) unsure: bool,
    /// Whether the id of its event is new and no commit with it was tried, so that no run can have it.
    pub(super) fresh: bool,
}

impl<R> InputEntry<R> {
    pub fn new(input: DecideInput, lines: Vec<NewEvent>, lease: Option<LeaseUse>, reply: R) -> InputEntry<R> {
        InputEntry { input, lines, lease, plan: None, reply, unsure: false, fresh: false }
    }

    /// The first input of a run that should not exist yet.
    pub fn start(plan: Arc<Plan>, start: Start, reply: R) -> InputEntry<R> {
        let input = DecideInput::Start(Box::new(start));
        InputEntry { plan: Some(plan), ..InputEntry::new(input, Vec::new(), None, reply) }
    }

    pub(super) fn as_start(&self) -> Option<(&Arc<Plan>, &Start)> {
        match (&self.plan, &self.input) {
            (Some(plan), DecideInput::Start(start)) => Some((plan, start)),
            _ => None,
        }
    }

    /// Says that the id of its event is new.
    pub fn with_fresh_id(mut self) -> InputEntry<R> {
        self.fresh = true;
        self
    }

    /// Gives the outcome of an attempt its first line to take along, unless some line of the attempt turns out to be in the
    /// log. It's the only line: a caller that knows of later ones knows that the first is written.
    pub fn with_first_line(mut self, first: NewEvent) -> InputEntry<R> {
        if let Some(LeaseUse::Finish { key, attempt, token }) = self.lease {
            self.lease = Some(LeaseUse::Whole { key, attempt, token });
            self.lines = vec![first];
        }
        self
    }

    /// Takes that line away again. False if there was none.
    pub(super) fn drop_first_line(&mut self) -> bool {
        let Some(LeaseUse::Whole { key, attempt, token }) = self.lease else { return false };
        self.lease = Some(LeaseUse::Finish { key, attempt, token });
        self.lines.clear();
        true
    }

    /// Its outcome if it's refused: for an attempt that has ended, that its lease is gone.
    pub(super) fn refused(&self, refusal: Refusal) -> InputOutcome {
        let of_attempt = matches!(
            self.lease,
            Some(LeaseUse::Finish { .. } | LeaseUse::Whole { .. } | LeaseUse::Keep { .. })
        );
        let over = matches!(
            refusal,
            Refusal::Ended(_) | Refusal::StaleAttempt { .. } | Refusal::ReportsTrimmed { .. }
        );
        if of_attempt && over {
            InputOutcome::StaleLease(Some(refusal))
        } else {
            InputOutcome::Refused(refusal)
        }
    }
}

/// The outcome of an input.
#[derive(Debug)]
pub enum InputOutcome {
    /// Written.
    Committed {
        status: Status,
    },
    /// It had been applied before.
    Applied {
        status: Status,
    },
    Refused(Refusal),
    /// The lease that it relied on is gone; with the run's reason, if it was asked.
    StaleLease(Option<Refusal>),
    /// A start whose run exists.
    Exists,
    /// There is no such run.
    NotFound,
    Failed(StoreError),
}
