//! Jobs: waiting or leased units of work of a run. A step attempt, a retry, a delayed start and a timer are all one
//! structure; what differs is when a job is due and who takes it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::definition::Priority;
use flowline_core::{RunKey, Status, Tenant, Time};

pub use flowline_core::row::{JobKey, JobRow, JobState, Lane};

/// Proof of a lease, made by the caller from randomness. Who does not know it can commit nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u128);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tokens must not leak into logs whole.
        write!(f, "Token({:08x}…)", (self.0 >> 96) as u32)
    }
}

/// What lanes need whose jobs are done by processes elsewhere. Such a lease is the worker's, not that of the engine which
/// claimed it: it outlives the engine.
pub const REMOTE: &str = "remote";

/// A job to be added by a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    pub key: JobKey,
    /// The step's name, or the timer's, for people and for claims.
    pub name: Arc<str>,
    pub attempt: u32,
    pub lane: Lane,
    pub priority: Priority,
    /// Not before this moment of the store's clock.
    pub due: Time,
    /// Not claimable until the run is resumed.
    pub held: bool,
    /// Lease it to the committing instance right away, unless its queue is paused, it is held or not yet due.
    pub handoff: Option<Handoff>,
}

/// A lease asked for in the commit that adds the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handoff {
    pub token: Token,
    pub ttl: Duration,
    pub worker: Arc<str>,
}

/// What an instance would take.
#[derive(Debug, Clone)]
pub struct Claim {
    /// One tenant only, or any.
    pub tenant: Option<Tenant>,
    /// What the caller can run: the `need`s of lanes.
    pub needs: Vec<Arc<str>>,
    /// Free slots of queues by name; a queue with no entry has `free_elsewhere`.
    pub free: Vec<(Arc<str>, usize)>,
    pub free_elsewhere: usize,
    /// One per job that may be leased: their number is the limit.
    pub tokens: Vec<Token>,
    pub ttl: Duration,
    pub worker: Arc<str>,
}

impl Claim {
    pub fn free_in(&self, queue: &str) -> usize {
        self.free.iter().find(|(name, _)| &**name == queue).map_or(self.free_elsewhere, |(_, free)| *free)
    }
}

/// What a claim got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    pub jobs: Vec<LeasedJob>,
    /// When the next job of a served lane becomes due, where that lies ahead. Held jobs, paused queues and queues
    /// without a free slot do not count.
    pub next_due: Option<Time>,
    pub now: Time,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasedJob {
    pub run: RunKey,
    pub key: JobKey,
    pub name: Arc<str>,
    pub attempt: u32,
    pub lane: Lane,
    /// Since when it could have been claimed.
    pub due: Time,
    pub token: Token,
    pub expires: Time,
}

/// What the holder of a lease or a lock does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// It ends at now plus this.
    Extend(Duration),
    /// It ends now.
    Release,
}

/// A lease that its holder extends or releases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extend {
    pub run: RunKey,
    pub key: JobKey,
    pub token: Token,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    Held,
    Gone(Gone),
}

impl Extended {
    /// What becomes of a lease that isn't held, by the status of its run, if that is there.
    pub fn gone(run: Option<Status>) -> Extended {
        Extended::Gone(if run.is_some_and(Status::is_terminal) { Gone::RunEnded } else { Gone::Lost })
    }
}

/// Why a lease is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gone {
    /// The run is there and has ended: cancelled, failed, or completed by hand.
    RunEnded,
    /// Anything else: the lease ran out and the attempt was given up, it was released, or its job is leased to another.
    Lost,
}

/// What a sweep found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    pub expired: Vec<ExpiredLease>,
    pub timers: Vec<DueTimer>,
    pub now: Time,
    /// When the next timer that lies ahead and isn't held will be due.
    pub next_timer: Option<Time>,
    /// When the next lease not yet expired will run out, unless its holder extends it.
    pub next_lease: Option<Time>,
}

impl Swept {
    /// When a sweep would find something next.
    pub fn next(&self) -> Option<Time> {
        self.next_timer.into_iter().chain(self.next_lease).min()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredLease {
    pub run: RunKey,
    pub key: JobKey,
    pub name: Arc<str>,
    pub attempt: u32,
    pub token: Token,
    pub worker: Arc<str>,
    /// Lines of the attempt that are in the log. At 0 even `step.started` is missing.
    pub lines: u32,
    /// Given back, not lost.
    pub released: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueTimer {
    pub run: RunKey,
    pub key: JobKey,
    pub attempt: u32,
    /// Since when it could have fired.
    pub due: Time,
}
