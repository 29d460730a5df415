//! Rows as a store keeps them and as people read them.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::definition::Retain;
use flowline_core::event::PayloadSlot;
use flowline_core::{NewEvent, RunKey, Status, Tenant, Time};
use serde::Serialize;

use crate::commit::Index;
use crate::job::NewJob;

pub use flowline_core::row::{Failure, QueueRow, RunRow, StoredDefinition};

/// What `load` gives: enough to decide on.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub row: RunRow,
    /// The encoded run state.
    pub state: Vec<u8>,
}

/// Addresses of payloads in a run.
pub type PayloadsAt = (RunKey, Vec<PayloadSlot>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    Paused,
    Open,
}

/// What runs are counted by: tenant, flow, status and, for machines, state.
pub type CounterKey = (Tenant, Arc<str>, Status, Option<Arc<str>>);

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
