//! Figures over runs and steps, and the health of an instance.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_types::{Status, Time};
use serde::{Deserialize, Serialize};

/// Statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stats {
    pub total: Summary,
    pub flows: BTreeMap<Arc<str>, FlowSummary>,
    pub buckets: Vec<Bucket>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, StepSummary>,
    /// Whether the step figures cover the newest runs only.
    pub steps_sampled: bool,
}

/// Runs by status, and how long the ended ones took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    pub runs: u64,
    pub by_status: BTreeMap<Status, u64>,
    /// Completed runs as a share of completed and failed ones.
    pub success_rate: Option<f64>,
    pub duration_ms: Percentiles,
    pub retries: u64,
}

/// The same figures for one flow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowSummary {
    #[serde(flatten)]
    pub summary: Summary,
    /// Runs of a machine by state.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_state: BTreeMap<Arc<str>, u64>,
}

/// The same figures for one time bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bucket {
    pub start: Time,
    #[serde(flatten)]
    pub summary: Summary,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepSummary {
    pub completed: u64,
    pub failed: u64,
    pub retried: u64,
    pub duration_ms: Percentiles,
}

/// In milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Percentiles {
    pub p50: Option<u64>,
    pub p95: Option<u64>,
    pub p99: Option<u64>,
}

impl Percentiles {
    /// Nearest-rank percentiles of a sample.
    pub fn of(sample: &mut [u64]) -> Percentiles {
        sample.sort_unstable();
        let at = |percent: usize| {
            let rank = (sample.len() * percent).div_ceil(100).max(1);
            sample.get(rank - 1).copied()
        };
        Percentiles { p50: at(50), p95: at(95), p99: at(99) }
    }
}

/// Health of this instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Health"))]
pub struct InstanceHealth {
    /// `ok`.
    pub status: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}
