//! The protocol of remote workers, as docs/worker-protocol.md describes it: claim, heartbeat, append, emit, complete,
//! release.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_types::json::present;
use flowline_types::{Json, RunId, Status, Tenant, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How long a claim waits for work by default.
pub const WAIT_MS: u64 = 20_000;
/// Leases that one request may name.
pub const LEASES: usize = 1_000;
/// Outcomes that one request may report.
pub const OUTCOMES: usize = 100;
/// Lines that one request may add.
pub const LINES: usize = 1_000;
/// Lines among them that may read state: each is answered with a value, which can be large.
pub const GETS: usize = 16;

/// What a worker can run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkClaim"))]
pub struct ClaimRequest {
    /// Name of the worker.
    pub worker: String,
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub queues: Vec<String>,
    /// Maximum number of jobs, up to 100; 1 by default.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(max = u32::MAX)))]
    pub limit: u32,
    /// How long to wait for the first job, in milliseconds, up to 25000; 20000 by default.
    #[serde(default = "wait_ms")]
    pub wait_ms: u64,
    /// Whether to include the key-value state of the runs.
    #[serde(default)]
    pub with_state: bool,
}

fn one() -> u32 {
    1
}

fn wait_ms() -> u64 {
    WAIT_MS
}

/// Jobs for a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkClaimed"))]
pub struct ClaimAnswer {
    pub jobs: Vec<Assignment>,
    pub times: Times,
}

/// How long leases last, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Times {
    /// After a heartbeat.
    pub lease_ms: u64,
    /// How often to send one.
    pub heartbeat_ms: u64,
    /// After a claim, until the first heartbeat.
    pub acknowledge_ms: u64,
}

/// An attempt for a worker to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Assignment {
    /// Identifies the attempt in everything that the worker reports.
    pub lease: String,
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    pub tenant: Tenant,
    pub step_name: Arc<str>,
    pub step_id: String,
    /// 1, 2, 3 …
    pub attempt: u32,
    /// The same for every attempt of this step in this run.
    pub idempotency_key: String,
    pub queue: Arc<str>,
    /// When the lease expires unless it's acknowledged.
    pub expires: Time,
    /// When the attempt fails with `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Time from the claim to the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Key-value state of the run, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BTreeMap<String, Json>>,
    /// Whether the state was left out because it's too large.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub state_omitted: bool,
    /// W3C Trace Context.
    pub traceparent: String,
    /// Input of the step.
    pub input: Json,
}

/// Leases of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkHeartbeat"))]
pub struct HeartbeatRequest {
    #[cfg_attr(feature = "schema", schemars(length(max = LEASES)))]
    pub leases: Vec<String>,
}

/// State of the leases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkBeaten"))]
pub struct HeartbeatAnswer {
    /// In the order of the request.
    pub leases: Vec<LeaseState>,
    pub times: Times,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaseState {
    /// Lease, as the claim returned it.
    pub lease: String,
    pub state: Beat,
}

/// Whether the worker still holds the attempt and, if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Beat {
    /// It goes on.
    Held,
    /// The run has ended: stop.
    Cancelled,
    /// The lease is gone: stop.
    Lost,
    /// The attempt's time was up, and it has failed: stop.
    TimedOut,
}

/// Outcomes of attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkComplete"))]
pub struct CompleteRequest {
    #[cfg_attr(feature = "schema", schemars(length(max = OUTCOMES)))]
    pub outcomes: Vec<AttemptOutcome>,
    /// Also claims the next jobs, without waiting for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimRequest>,
}

/// How an attempt ended: one of `complete` and `fail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AttemptOutcome {
    /// Lease, as the claim returned it.
    pub lease: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<Completed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail: Option<FailedAttempt>,
}

/// It succeeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Completed {
    #[serde(default = "Json::null")]
    pub result: Json,
    /// Events to emit with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emits: Vec<Emit>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Emit {
    pub name: String,
    #[serde(default = "Json::nothing", skip_serializing_if = "Json::is_nothing")]
    pub payload: Json,
}

/// It failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Failed"))]
pub struct FailedAttempt {
    pub error: String,
    /// Error code, for `only` and `except` of the step's retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// `policy` by default.
    #[serde(default)]
    pub retry: RetryAdvice,
    /// Delay before the next attempt, within the step's retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
}

/// Whether a failed attempt may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Retry"))]
pub enum RetryAdvice {
    /// As the step's policy says.
    #[default]
    Policy,
    Never,
}

/// Results of the outcomes, and the next jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkCompleted"))]
pub struct CompleteAnswer {
    /// In the order of the request.
    pub results: Vec<ReportResult>,
    /// Jobs claimed by the same request.
    pub jobs: Vec<Assignment>,
    pub times: Times,
}

/// Result for one outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Reported"))]
pub struct ReportResult {
    /// HTTP status that this outcome alone would get.
    #[cfg_attr(feature = "schema", schemars(with = "i32"))]
    pub status: u16,
    /// With 200: false if it was already in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<bool>,
    /// With 200: the status of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_status: Option<Status>,
    /// With any other status: the problem code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Lines of an attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkAppend"))]
pub struct AppendRequest {
    /// Lease, as the claim returned it.
    pub lease: String,
    /// How many lines of this attempt the worker knows to be in the log; 0 by default.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(max = u32::MAX)))]
    pub from_line: u32,
    #[cfg_attr(feature = "schema", schemars(length(max = LINES)))]
    pub lines: Vec<AttemptLine>,
}

/// One of `log` and `state`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Line"))]
pub struct AttemptLine {
    /// `level`, `message`, and any other fields to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateLine>,
}

/// One of `set`, `delete` and `get`, on key-value state.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateLine {
    /// Key to write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// Key to delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete: Option<String>,
    /// Key to read; up to 16 per request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub get: Option<String>,
    /// Value for `set`; null by default.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub value: Option<Json>,
    /// `run`, `flow`, `tenant` or any other name; `run` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// For `set`: delete the value after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub ttl_ms: Option<u64>,
}

/// What a `get` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Found"))]
pub struct FoundValue {
    /// The key.
    pub get: String,
    pub scope: String,
    /// Absent if the key isn't set.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub value: Option<Json>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkAppended"))]
pub struct AppendAnswer {
    /// Number of the attempt's lines in the log.
    pub lines: u32,
    /// What each `get` found, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<FoundValue>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkEmit"))]
pub struct EmitRequest {
    /// Lease, as the claim returned it.
    pub lease: String,
    pub name: String,
    #[serde(default = "Json::nothing", skip_serializing_if = "Json::is_nothing")]
    pub payload: Json,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "WorkEmitted"))]
pub struct EmitAnswer {
    /// False if it was already emitted.
    pub applied: bool,
    pub run_status: Status,
}

/// `POST /v1/work/release` takes the same.
pub type ReleaseRequest = HeartbeatRequest;
