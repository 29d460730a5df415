//! Queues, their dead letters, and remote workers.

use std::sync::Arc;

use flowline_types::row::{QueueRow, RunRow};
use flowline_types::{RunId, Time};
use serde::{Deserialize, Serialize};

use crate::problem::ProblemDetails;

/// Queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueList {
    pub items: Vec<QueueRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueChanged {
    pub queue: String,
    pub paused: bool,
}

/// Failed runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeadLetters {
    pub items: Vec<RunRow>,
    pub has_more: bool,
    /// `cursor` of the next page.
    pub next: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Redrive {
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub limit: Option<usize>,
    /// Only list the runs.
    #[serde(default, deserialize_with = "crate::or_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<bool>"))]
    pub dry_run: bool,
    /// `next` of the previous response.
    pub cursor: Option<String>,
}

/// The outcome for each run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Redriven {
    pub items: Vec<RedrivenRun>,
    pub dry_run: bool,
    pub has_more: bool,
    /// `cursor` of the next page.
    pub next: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RedrivenRun {
    /// The failed run.
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ProblemDetails>,
}

/// Remote workers by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkerPage"))]
pub struct WorkerList {
    pub items: Vec<WorkerRow>,
    pub has_more: bool,
    /// `cursor` of the next page.
    pub next: Option<String>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerRow {
    /// Its name.
    pub worker: String,
    /// Queues that it serves.
    pub queues: Vec<String>,
    /// When it was last seen, to within 15 s.
    pub last_seen: Time,
    /// Instance that it talked to.
    pub instance: String,
    /// Subject of its token.
    pub subject: String,
}
