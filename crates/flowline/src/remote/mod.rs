//! Remote workers: attempts of steps with `worker: QUEUE`, leased to processes elsewhere.
//!
//! Nothing about such an attempt is kept in this process. Its lease is in the store under the worker's name, and the
//! rest is in the reference that the worker got (`lease`). So any instance accepts any report, and an instance that dies
//! loses nothing. The store checks the lease's token with every report, so a late one writes nothing.
//!
//! A claim only leases for [`ACKNOWLEDGE`]. The worker's first report (a heartbeat, line, emit or outcome) writes
//! `step.started`, line 0 of the attempt's record, and a heartbeat extends the lease to its full length. So an
//! assignment that never arrived is available again soon. Since nothing had started, recovery counts a lease without
//! lines as given back, not as lost. A worker should report before it starts, because one that dies without a report
//! looks the same.
//!
//! An attempt's timeout counts from its claim. The worker is told the deadline and should fail the attempt itself. A
//! heartbeat after the deadline fails it with `timeout`, and leases aren't extended much beyond it (`report`), so a
//! silent worker loses its attempt. A result that arrives late, before anyone noticed, still counts: the first committed
//! outcome wins.
//!
//! Waiting for work is in `room`, hand-offs by a commit in `seats`, claims in `claim`, reports in `report`.

mod claim;
pub(crate) mod lease;
mod report;
mod room;
mod seats;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use flowline_api::work::{Assignment, Beat};
use flowline_core::{Json, Plan, RunKey};
pub use flowline_store::job::REMOTE;
use flowline_store::{StateScope, Token};

use crate::attempt::volume::LogVolume;
use crate::engine::{Engine, EngineError};
use crate::slots::Tokens;
use crate::step::{Level, StepError};

pub(crate) use seats::Seats;

/// How long a worker has for its first word about an assignment.
pub const ACKNOWLEDGE: Duration = Duration::from_secs(5);
/// The longest that a claim waits for work.
pub const LONGEST_WAIT: Duration = Duration::from_secs(25);
/// The most jobs that one claim gets.
pub const CLAIM: usize = 100;
/// Tries of a step up to which an assignment that nobody acknowledged counts as given back. Beyond, something takes it and
/// dies without a word, again and again: that is a lost lease.
pub(crate) const UNACKNOWLEDGED: u32 = 50;
/// Runs whose plans, and attempts whose first lines, are cached; beyond that, all are dropped and read again.
const KEPT: usize = 50_000;

/// What a worker would take.
#[derive(Debug, Clone)]
pub struct WorkRequest {
    /// The worker's own name.
    pub worker: String,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// At most so many jobs, up to [`CLAIM`].
    pub limit: usize,
    /// How long to wait for the first one, up to [`LONGEST_WAIT`].
    pub wait: Duration,
    /// Whether to load the key-value state of each job's run.
    pub with_state: bool,
}

/// A line of a running attempt.
#[derive(Debug, Clone)]
pub enum Said {
    Log {
        level: Level,
        message: String,
        fields: serde_json::Map<String, serde_json::Value>,
    },
    /// Without a `ttl`, a value lives as long as the definition says.
    Set {
        scope: StateScope,
        key: String,
        value: Json,
        ttl: Option<Duration>,
    },
    Delete {
        scope: StateScope,
        key: String,
    },
    /// Read after the lines before it are written; answered by [`Appended::found`].
    Get {
        scope: StateScope,
        key: String,
    },
}

/// The outcome of appended lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Appended {
    /// How many lines of the attempt are in the log now.
    pub lines: u32,
    /// What each [`Said::Get`] found, in order.
    pub found: Vec<Option<Json>>,
}

/// How an attempt ended.
#[derive(Debug)]
pub struct AttemptEnding {
    pub lease: String,
    /// The result, or why it failed.
    pub outcome: Result<Json, StepError>,
    /// Published with the result.
    pub emits: Vec<(String, Json)>,
}

/// Work for remote workers of one tenant. Cheap to make; see [`Engine::remote`].
#[derive(Debug, Clone)]
pub struct Remote {
    engine: Engine,
    /// Only attempts of these queues, where it is bound to some.
    queues: Option<Arc<[String]>>,
}

impl Remote {
    /// The same for a worker that may work on these queues only: leases of others are nothing to it.
    pub fn bound_to(self, queues: impl Into<Arc<[String]>>) -> Remote {
        Remote { queues: Some(queues.into()), ..self }
    }
}

/// The worker that a reference was given to, as the reference says. Believe it only after a report under it was taken.
pub fn worker_of(lease: &str) -> Option<Arc<str>> {
    lease::Lease::worker(lease)
}

impl Engine {
    /// Work for remote workers of this handle's tenant: what a server offers over its wire.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use flowline::core::Json;
    /// use flowline::remote::{AttemptEnding, WorkRequest};
    ///
    /// let remote = engine.remote();
    /// let request = WorkRequest {
    ///     worker: "depot-1".to_owned(),
    ///     queues: vec!["depot".to_owned()],
    ///     limit: 10,
    ///     wait: Duration::from_secs(20),
    ///     with_state: false,
    /// };
    /// for job in remote.claim(request).await? {
    ///     remote.heartbeat(std::slice::from_ref(&job.lease)).await?; // the first word: it has begun
    ///     let outcome = Ok(Json::of(&format!("packed {}", job.step_id))?);
    ///     remote.complete(vec![AttemptEnding { lease: job.lease, outcome, emits: Vec::new() }]).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn remote(&self) -> Remote {
        Remote { engine: self.clone(), queues: None }
    }
}

/// The plan of a run, and the label that names its trace.
type Planned = (Arc<Plan>, Option<Arc<str>>);

/// What an instance caches for its workers. All of it can be dropped at any time.
#[derive(Debug)]
pub(crate) struct Mind {
    pub(crate) room: room::WaitingRoom,
    pub(crate) seats: Seats,
    tokens: Mutex<Tokens>,
    /// A run is pinned to its plan and its trace for life.
    plans: Mutex<HashMap<RunKey, Planned>>,
    /// Attempts whose first line is known to be in the log.
    begun: Mutex<HashSet<Token>>,
    /// What attempts have logged.
    logged: Mutex<HashMap<Token, LogVolume>>,
}

impl Default for Mind {
    fn default() -> Mind {
        Mind {
            room: room::WaitingRoom::default(),
            seats: Seats::default(),
            tokens: Mutex::new(Tokens::random()),
            plans: Mutex::default(),
            begun: Mutex::default(),
            logged: Mutex::default(),
        }
    }
}

impl Mind {
    fn plan(&self, run: &RunKey) -> Option<Planned> {
        locked(&self.plans).get(run).cloned()
    }

    fn keep_plan(&self, run: &RunKey, planned: Planned) {
        let mut plans = locked(&self.plans);
        if plans.len() >= KEPT {
            plans.clear();
        }
        plans.insert(run.clone(), planned);
    }

    /// What an attempt has logged, to be counted on.
    fn logged<T>(&self, token: Token, count: impl FnOnce(&mut LogVolume) -> T) -> T {
        let mut logged = locked(&self.logged);
        if logged.len() >= KEPT && !logged.contains_key(&token) {
            logged.clear();
        }
        count(logged.entry(token).or_default())
    }

    fn has_begun(&self, token: Token) -> bool {
        locked(&self.begun).contains(&token)
    }

    /// The attempt has ended.
    fn forget(&self, token: Token) {
        locked(&self.begun).remove(&token);
        locked(&self.logged).remove(&token);
    }

    fn keep_begun(&self, token: Token) {
        let mut begun = locked(&self.begun);
        if begun.len() >= KEPT {
            begun.clear();
        }
        begun.insert(token);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A report about an attempt that its worker no longer holds.
fn stale(why: &str) -> EngineError {
    EngineError::StaleLease(why.to_owned())
}
