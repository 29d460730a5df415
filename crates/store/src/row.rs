//! Rows as a store keeps them and as people read them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::definition::Retain;
use flowline_core::{NewEvent, RunId, RunKey, Status, Tenant, Time};
use serde::{Deserialize, Serialize};

use crate::commit::Index;
use crate::job::NewJob;

/// The index row of a run. Its JSON is a contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRow {
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    pub tenant: Tenant,
    /// Hash of the pinned definition.
    pub definition: Arc<str>,
    pub status: Status,
    /// The state that a machine is in; `None` for a flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<str>>,
    /// Date of `flow.start`.
    pub created_at: Time,
    /// Date of the first `step.started`.
    pub started_at: Option<Time>,
    /// Date of the terminal event.
    pub completed_at: Option<Time>,
    /// From `created_at` to `completed_at`, in milliseconds.
    pub duration: Option<u64>,
    pub step_count: u32,
    pub completed_steps: u32,
    pub failed_steps: u32,
    pub retries: u32,
    pub failure: Option<Failure>,
    pub labels: BTreeMap<String, String>,
    pub idempotency_key: Option<String>,
    pub retry_of: Option<RunId>,
    /// How long the definition keeps the run and its events, where it says so; the engine's policy decides the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain: Option<Retain>,
    pub version: u64,
    /// Number of the last event.
    pub events: u64,
    pub events_trimmed: bool,
    #[serde(skip)]
    pub input_digest: String,
}

impl RunRow {
    pub fn key(&self) -> RunKey {
        RunKey::new(self.tenant.clone(), self.run_id.clone())
    }
}

/// Why a run failed, or will fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Arc<str>>,
}

/// What `load` gives: enough to decide on.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub row: RunRow,
    /// The encoded run state.
    pub state: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredDefinition {
    pub tenant: Tenant,
    pub flow: Arc<str>,
    pub hash: Arc<str>,
    /// Canonical JSON.
    #[serde(skip)]
    pub body: String,
    /// The folder that the definition came from; its commands run there.
    pub origin: Option<String>,
    /// Set by the store.
    pub created_at: Time,
    /// Set by the store.
    pub latest: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    Paused,
    Open,
}

/// Depths of one lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueRow {
    pub queue: Arc<str>,
    /// Empty for a paused queue that holds no job.
    pub need: Arc<str>,
    /// Due and unleased.
    pub ready: u64,
    pub delayed: u64,
    pub held: u64,
    pub leased: u64,
    /// The due time of the oldest ready job.
    pub oldest: Option<Time>,
    pub paused: bool,
}

impl QueueRow {
    /// A paused queue that holds no job.
    pub fn paused(queue: Arc<str>) -> QueueRow {
        QueueRow {
            queue,
            need: "".into(),
            ready: 0,
            delayed: 0,
            held: 0,
            leased: 0,
            oldest: None,
            paused: true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counter {
    pub tenant: Tenant,
    pub flow_name: Arc<str>,
    pub status: Status,
    /// The state that machines are in; `None` for flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<str>>,
    pub count: u64,
}

/// How long an engine keeps ended runs, counted from their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Then the events go and the row is marked `eventsTrimmed`.
    pub events: Duration,
    /// Then the row goes too, with all else that is the run's.
    pub runs: Duration,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention { events: Duration::from_secs(7 * 86_400), runs: Duration::from_secs(30 * 86_400) }
    }
}

impl Retention {
    /// What holds for the runs of a definition that says this. What it leaves out is as the engine keeps it; no event
    /// outlives its run.
    pub fn of(self, own: Option<Retain>) -> Retention {
        let own = own.unwrap_or_default();
        let runs = own.runs.unwrap_or(self.runs);
        Retention { events: own.events.unwrap_or(self.events).min(runs), runs }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Retained {
    /// Runs whose events were removed.
    pub trimmed: u64,
    /// Runs removed altogether.
    pub removed: u64,
}

/// A mend of what the log contradicts.
#[derive(Debug, Clone)]
pub enum Repair {
    /// The run's row and state, recomputed from its log; here `index.failure` replaces what is there, `None` too.
    Row {
        run: RunKey,
        version: u64,
        state: Vec<u8>,
        index: Index,
        created_at: Time,
        started_at: Option<Time>,
        completed_at: Option<Time>,
        events: u64,
        /// How many events the row had when it was looked at. Where lines of an attempt were added since, without a new
        /// version, the repair is a `Conflict`.
        seen: u64,
    },
    /// Events that are missing at the end of the log (a terminal event), with the row and state after them.
    Events { run: RunKey, version: u64, events: Vec<NewEvent>, state: Vec<u8>, index: Index },
    /// Jobs that the state asks for and that are missing; others that should not be there go. Hand-offs are
    /// not granted. A key to be added that is there already and not removed is a `StaleLease`.
    Jobs { run: RunKey, version: u64, add: Vec<NewJob>, remove: Vec<crate::job::JobKey> },
    /// Count a tenant's runs again.
    Counters { tenant: Tenant },
}

/// What a store says of itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// `sqlite`, `memory` …
    pub kind: &'static str,
    /// Server or library version.
    pub version: String,
    /// Layout format.
    pub format: u32,
    pub bytes: Option<u64>,
    /// What an acknowledged commit survives, in words.
    pub durability: String,
    /// Why engines cannot write here, in words with a remedy. `None` where they can, as far as can be told.
    pub unwritable: Option<String>,
    /// What is wrong, in words with a remedy. Empty when all is well.
    pub problems: Vec<String>,
}
