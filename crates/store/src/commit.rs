//! The one write that matters. Which guards it has and what it does to jobs is told in [`crate::rule`].

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::decide::Start;
use flowline_core::definition::Retain;
use flowline_core::{NewEvent, Plan, RunId, RunKey, Status, Time};

use crate::error::StoreError;
use crate::job::{JobKey, NewJob, Token};
use crate::receipt::ReceiptChange;
use crate::row::{Failure, RunRow};
use crate::state::{StateEdit, StateScope};

/// One run's next version: everything in it lands, or nothing.
#[derive(Debug, Clone)]
pub struct Commit {
    pub run: RunKey,
    pub base: Base,
    /// Jobs that this commit takes away or relies on. Each is checked inside the commit.
    pub leases: Vec<LeaseUse>,
    pub events: Vec<NewEvent>,
    /// The encoded run state after the events.
    pub state: Vec<u8>,
    pub index: Index,
    /// What happens to the jobs of the run that `leases` does not name. Applied before `add`.
    pub others: Others,
    pub add: Vec<NewJob>,
    /// What becomes of events that the run took in.
    pub receipts: Vec<ReceiptChange>,
    /// Remove the run's own key-value state.
    pub clear_state: bool,
}

impl Commit {
    /// A commit that only writes a row: no events, no jobs.
    pub fn new(run: RunKey, base: Base, index: Index) -> Commit {
        Commit {
            run,
            base,
            leases: Vec::new(),
            events: Vec::new(),
            state: Vec::new(),
            index,
            others: Others::Leave,
            add: Vec::new(),
            receipts: Vec::new(),
            clear_state: false,
        }
    }
}

/// What the commit was decided on.
#[derive(Debug, Clone)]
pub enum Base {
    /// The run must not exist.
    New(NewRun),
    /// The run must be at this version.
    Version(u64),
}

/// What is written once, at the start of a run.
#[derive(Debug, Clone)]
pub struct NewRun {
    pub flow: Arc<str>,
    /// Hash of the definition that the run is pinned to. It must have been stored before.
    pub definition: Arc<str>,
    pub step_count: u32,
    pub labels: BTreeMap<String, String>,
    /// Digest of the input, to tell a repeated start from another one under the same idempotency key; empty without one.
    pub input_digest: String,
    pub idempotency_key: Option<String>,
    pub retry_of: Option<RunId>,
    /// How long the definition keeps its ended runs, where it says so.
    pub retain: Option<Retain>,
}

impl NewRun {
    /// What a start writes of a run of this plan.
    pub fn of(plan: &Plan, start: &Start) -> NewRun {
        NewRun {
            flow: plan.flow.clone(),
            definition: plan.hash.clone(),
            step_count: plan.steps.len() as u32,
            labels: start.labels.clone(),
            input_digest: start.input_digest.clone(),
            idempotency_key: start.idempotency_key.clone(),
            retry_of: start.retry_of.clone(),
            retain: plan.definition.retain,
        }
    }

    /// What was written of a run that is there.
    pub fn of_row(row: &RunRow) -> NewRun {
        NewRun {
            flow: row.flow_name.clone(),
            definition: row.definition.clone(),
            step_count: row.step_count,
            labels: row.labels.clone(),
            input_digest: row.input_digest.clone(),
            idempotency_key: row.idempotency_key.clone(),
            retry_of: row.retry_of.clone(),
            retain: row.retain,
        }
    }
}

/// The part of the index row that changes from commit to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub status: Status,
    /// The state that a machine is in; `None` for a flow.
    pub state: Option<Arc<str>>,
    pub completed_steps: u32,
    pub failed_steps: u32,
    pub retries: u32,
    /// Set once; `None` keeps what is there.
    pub failure: Option<Failure>,
}

impl Index {
    /// That of a run in which nothing has happened yet.
    pub fn of(status: Status) -> Index {
        Index { status, state: None, completed_steps: 0, failed_steps: 0, retries: 0, failure: None }
    }
}

/// How a commit uses a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseUse {
    /// The attempt is over. Its lease must carry this token; it is removed.
    Finish { key: JobKey, attempt: u32, token: Token },
    /// The attempt is over, and all of its record is in this commit. Its lease must carry this token and have no lines in
    /// the log; it is removed.
    Whole { key: JobKey, attempt: u32, token: Token },
    /// The attempt goes on. Its lease must carry this token; it stays, with `lines` more lines in the log.
    Keep { key: JobKey, attempt: u32, token: Token, lines: u32 },
    /// The lease must carry this token, have expired by the store's clock, and have `lines` lines in the log: what is
    /// written for the attempt was decided on those. It is removed.
    Expired { key: JobKey, attempt: u32, token: Token, lines: u32 },
    /// The job must wait, unleased and due by the store's clock; it is removed (a timer that fires).
    Due { key: JobKey, attempt: u32 },
    /// The job must wait or be held, unleased; it is removed (`fail_fast` drops what is queued).
    Unleased { key: JobKey, attempt: u32 },
}

impl LeaseUse {
    pub fn key(&self) -> JobKey {
        match self {
            LeaseUse::Finish { key, .. }
            | LeaseUse::Whole { key, .. }
            | LeaseUse::Keep { key, .. }
            | LeaseUse::Expired { key, .. }
            | LeaseUse::Due { key, .. }
            | LeaseUse::Unleased { key, .. } => *key,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Others {
    #[default]
    Leave,
    /// The run has ended: no job and no lease is left.
    Drop,
    /// Waiting jobs are held; leased ones run on.
    Hold,
    /// Held jobs wait again.
    Release,
}

/// A commit that landed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    pub version: u64,
    /// The number of its first event; the others follow without a gap.
    pub first_seq: u64,
    /// The date of its events.
    pub ts: Time,
    /// The keys of added jobs whose hand-off was granted. The others wait.
    pub granted: Vec<JobKey>,
}

/// Why one commit was refused. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    #[error("the run is at version {found:?}, not {expected}")]
    Conflict { expected: u64, found: Option<u64> },
    #[error("the run exists")]
    Exists,
    /// A job or lease is not as the commit needs it.
    #[error("job {0:?} isn't in the state that the commit requires")]
    StaleLease(JobKey),
    #[error("definition {0} isn't in the store")]
    UnknownDefinition(Arc<str>),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Lines of a running attempt.
#[derive(Debug, Clone)]
pub struct Append {
    pub run: RunKey,
    pub key: JobKey,
    pub attempt: u32,
    pub token: Token,
    /// How many lines of the attempt the caller knows to be in the log before these.
    pub from_line: u32,
    pub lines: Vec<AppendLine>,
}

/// One line: an event, and the change of key-value state that it records, if any.
#[derive(Debug, Clone)]
pub struct AppendLine {
    pub event: NewEvent,
    pub state: Option<StateChange>,
}

#[derive(Debug, Clone)]
pub struct StateChange {
    pub scope: StateScope,
    pub edit: StateEdit,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    #[error("the lease of {0:?} isn't held")]
    StaleLease(JobKey),
}
