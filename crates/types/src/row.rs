//! Rows as stores keep them and as people read them. Fields that stores need for themselves are left out of their JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{RunId, RunKey, Tenant};
use crate::retain::Retain;
use crate::status::{Priority, Status};
use crate::time::Time;

/// A run, as it appears in lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunRow {
    /// Its id.
    pub run_id: RunId,
    /// Its flow.
    pub flow_name: Arc<str>,
    /// Tenant it belongs to.
    pub tenant: Tenant,
    /// Hash of the version that it uses.
    pub definition: Arc<str>,
    pub status: Status,
    /// State of a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<str>>,
    /// When it was started.
    pub created_at: Time,
    /// When its first attempt started, or when a machine entered its first state; createdAt if the run ended before that.
    pub started_at: Option<Time>,
    /// When it ended.
    pub completed_at: Option<Time>,
    /// From createdAt to completedAt, in milliseconds.
    pub duration: Option<u64>,
    /// Steps of its definition.
    pub step_count: u32,
    pub completed_steps: u32,
    pub failed_steps: u32,
    /// Attempts that were retried.
    pub retries: u32,
    pub failure: Option<Failure>,
    pub labels: BTreeMap<String, String>,
    pub idempotency_key: Option<String>,
    /// The run that it retries.
    pub retry_of: Option<RunId>,
    /// The definition's own retention, if it has one. A value that it leaves out follows the settings keep-events and
    /// keep-runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<Retain>,
    /// Number of its commits.
    pub version: u64,
    /// Number of events in its log.
    pub events: u64,
    /// Whether retention has removed its log.
    pub events_trimmed: bool,
    #[serde(skip)]
    pub input_digest: String,
}

impl RunRow {
    pub fn key(&self) -> RunKey {
        RunKey::new(self.tenant.clone(), self.run_id.clone())
    }
}

/// Why it failed, or will fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Arc<str>>,
}

/// A definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoredDefinition {
    /// Tenant it belongs to.
    pub tenant: Tenant,
    /// Name of the flow.
    pub flow: Arc<str>,
    /// Hash of the content.
    pub hash: Arc<str>,
    /// Canonical JSON.
    #[serde(skip)]
    pub body: String,
    /// Directory that its commands run in.
    pub origin: Option<String>,
    /// When it was first registered. Set by the store.
    pub created_at: Time,
    /// Whether new runs use it. Set by the store.
    pub latest: bool,
}

/// Jobs of a queue that need the same kind of worker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueRow {
    pub queue: Arc<str>,
    /// Empty for a paused queue without jobs.
    pub need: Arc<str>,
    /// Due and not leased.
    pub ready: u64,
    pub delayed: u64,
    /// Jobs of paused runs.
    pub held: u64,
    /// Running.
    pub leased: u64,
    /// When the oldest ready job became due.
    pub oldest: Option<Time>,
    pub paused: bool,
}

impl QueueRow {
    /// A paused queue that holds no job.
    pub fn paused(queue: Arc<str>) -> QueueRow {
        QueueRow { queue, paused: true, ..QueueRow::default() }
    }
}

/// Which job of a run. A run has at most one job per key, whatever the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKey {
    /// The step with this index in the run's definition.
    Step(u32),
    /// A timer of the run, by number. Not claimed by workers: a sweep of the store finds it when it is due.
    Timer(u32),
}

impl JobKey {
    /// Steps count up from 0, timers down from -1.
    pub fn number(self) -> i64 {
        match self {
            JobKey::Step(n) => i64::from(n),
            JobKey::Timer(n) => -1 - i64::from(n),
        }
    }

    pub fn from_number(number: i64) -> JobKey {
        if number >= 0 { JobKey::Step(number as u32) } else { JobKey::Timer((-1 - number) as u32) }
    }
}

/// A queued or running job. Fields that aren't in its JSON are for stores only, and are missing when it's read back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Job"))]
pub struct JobRow {
    #[serde(skip, default = "unsaid")]
    pub key: JobKey,
    /// The step.
    pub name: Arc<str>,
    pub attempt: u32,
    pub queue: Arc<str>,
    /// What a worker has to be able to run.
    pub need: Arc<str>,
    #[cfg_attr(feature = "schema", schemars(with = "crate::json::Json"))]
    pub priority: Priority,
    pub due: Time,
    pub state: JobState,
    /// Who holds its lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leased_at: Option<Time>,
    /// When its lease expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    /// Of a leased job; 0 otherwise.
    #[serde(skip)]
    pub lines: u32,
    /// A lease that was given back, not lost.
    #[serde(skip)]
    pub released: bool,
}

impl JobRow {
    pub fn lane(&self) -> Lane {
        Lane { queue: self.queue.clone(), need: self.need.clone() }
    }
}

/// Where a job waits, beside its tenant: the queue, and what a worker must be able to run (`command`, `http`, `remote`,
/// `function:NAME`). An instance never claims what it cannot run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    pub queue: Arc<str>,
    pub need: Arc<str>,
}

fn unsaid() -> JobKey {
    JobKey::Step(u32::MAX)
}

/// A `waiting` job is claimed when it's due. A `held` one waits for its run to be resumed. A `leased` one is being worked
/// on, until its holder reports the outcome or its lease expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum JobState {
    Waiting,
    Held,
    Leased,
}
