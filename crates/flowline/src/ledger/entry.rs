//! An input on its way into its run, and what becomes of it.

use std::sync::Arc;

use flowline_core::decide::{Refusal, Start};
use flowline_core::{Input, NewEvent, Plan, Status};
use flowline_store::{LeaseUse, StoreError};

/// An input on its way into a run. `R` is whatever the caller wants back with the outcome.
#[derive(Debug)]
pub struct InputEntry<R> {
    pub input: Input,
    /// Lines of the attempt that are not in the log yet; written before the input's own events.
    pub lines: Vec<NewEvent>,
    /// The job that the input comes from, as the commit must find it.
    pub lease: Option<LeaseUse>,
    /// The plan of the run that a start makes.
    pub(super) plan: Option<Arc<Plan>>,
    pub reply: R,
    /// Whether a commit with it may have landed, its answer being lost.
    pub(super) unsure: bool,
    /// Whether the id of its event was made for it and no commit with it was tried, so that no run can have taken it in.
    pub(super) fresh: bool,
}

impl<R> InputEntry<R> {
    pub fn new(input: Input, lines: Vec<NewEvent>, lease: Option<LeaseUse>, reply: R) -> InputEntry<R> {
        InputEntry { input, lines, lease, plan: None, reply, unsure: false, fresh: false }
    }

    /// The first input of a run that should not exist yet.
    pub fn start(plan: Arc<Plan>, start: Start, reply: R) -> InputEntry<R> {
        let input = Input::Start(Box::new(start));
        InputEntry { plan: Some(plan), ..InputEntry::new(input, Vec::new(), None, reply) }
    }

    pub(super) fn as_start(&self) -> Option<(&Arc<Plan>, &Start)> {
        match (&self.plan, &self.input) {
            (Some(plan), Input::Start(start)) => Some((plan, start)),
            _ => None,
        }
    }

    /// Says that the id of its event was made for it.
    pub fn with_fresh_id(mut self) -> InputEntry<R> {
        self.fresh = true;
        self
    }

    /// What it is told where it is refused: to an attempt that is over, that its lease is gone.
    pub(super) fn refused(&self, refusal: Refusal) -> InputOutcome {
        let of_attempt = matches!(self.lease, Some(LeaseUse::Finish { .. } | LeaseUse::Keep { .. }));
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

/// What became of an input.
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
    /// The lease that it relied on is not held any more; with what the run says of the attempt, where it was asked.
    StaleLease(Option<Refusal>),
    /// A start whose run exists.
    Exists,
    /// There is no such run.
    NotFound,
    Failed(StoreError),
}
