//! What goes over the wire between a worker and a server, as docs/worker-protocol.md describes it. Requests refuse fields
//! that they do not know, so that a slip is noticed; answers may grow.

use std::collections::BTreeMap;

use flowline_core::{Json, RunId, Status, Tenant, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How long a claim waits for work where it does not say.
pub const WAIT_MS: u64 = 20_000;

/// `POST /v1/work/claim`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRequest {
    /// The worker's own name.
    pub worker: String,
    pub queues: Vec<String>,
    /// At most so many jobs.
    #[serde(default = "one")]
    pub limit: u32,
    /// How long to wait for the first, in milliseconds.
    #[serde(default = "wait_ms")]
    pub wait_ms: u64,
    /// Whether jobs come with the key-value state of their runs.
    #[serde(default)]
    pub with_state: bool,
}

fn one() -> u32 {
    1
}

fn wait_ms() -> u64 {
    WAIT_MS
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimAnswer {
    pub jobs: Vec<Assignment>,
    pub times: Times,
}

/// How long leases last, as the server says with every answer about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Times {
    /// How long a lease lasts after a heartbeat.
    pub lease_ms: u64,
    /// How often to send one.
    pub heartbeat_ms: u64,
    /// Within this time of a claim the first one must have come.
    pub acknowledge_ms: u64,
}

/// An attempt that was given to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignment {
    /// By which the worker names it in all that it reports.
    pub lease: String,
    pub run_id: RunId,
    pub flow_name: String,
    pub tenant: Tenant,
    pub step_name: String,
    pub step_id: String,
    pub attempt: u32,
    pub idempotency_key: String,
    pub queue: String,
    /// The lease ends then, unless it is acknowledged.
    pub expires: Time,
    /// The attempt fails then with `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// From the claim to the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<BTreeMap<String, Json>>,
    /// Whether the state was too large to come along.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub state_omitted: bool,
    pub traceparent: String,
    pub input: Json,
}

/// `POST /v1/work/heartbeat`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeartbeatRequest {
    pub leases: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatAnswer {
    /// In the order of the request.
    pub leases: Vec<LeaseState>,
    pub times: Times,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseState {
    pub lease: String,
    pub state: Beat,
}

/// What became of an attempt that a worker believes to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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

/// `POST /v1/work/complete`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompleteRequest {
    pub outcomes: Vec<Outcome>,
    /// Asks for the next jobs in the same answer. Those that are there: it does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimRequest>,
}

/// How an attempt ended: one of `complete` and `fail`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Outcome {
    pub lease: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<Completed>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail: Option<Failed>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Completed {
    #[serde(default = "Json::null")]
    pub result: Json,
    /// Published with the completion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub emits: Vec<Emit>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Emit {
    pub name: String,
    #[serde(default = "Json::nothing", skip_serializing_if = "Json::is_nothing")]
    pub payload: Json,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Failed {
    pub error: String,
    /// The kind of error, for `only` and `except` of the step's retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    #[serde(default)]
    pub retry: Retry,
    /// The next try after this long, in milliseconds, within the step's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
}

/// What a failed attempt says of trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Retry {
    /// As the step's policy says.
    #[default]
    Policy,
    Never,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompleteAnswer {
    /// In the order of the request.
    pub results: Vec<Reported>,
    /// What was claimed along with it.
    pub jobs: Vec<Assignment>,
    pub times: Times,
}

/// What became of an outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reported {
    /// As the answer would have for this outcome alone: 200, 409 for a lease that is gone, 503 where it may be repeated.
    pub status: u16,
    /// Of 200: false where the outcome was in the log already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<bool>,
    /// Of 200: where the run is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_status: Option<Status>,
    /// Of anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// `POST /v1/work/append`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppendRequest {
    pub lease: String,
    /// How many lines of this attempt the worker knows to be in the log: those sent again are skipped.
    #[serde(default)]
    pub from_line: u32,
    pub lines: Vec<Line>,
}

/// One of `log` and `state`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Line {
    /// `level`, `message`, and whatever else is to be kept with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
}

/// One of `set`, `delete` and `get`, each with a key.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct State {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub get: Option<String>,
    /// Of `set`; `null` is a value.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub value: Option<Json>,
    /// `run`, `flow`, `tenant` or any other name; `run` where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Of `set`: the value is gone after this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// What a `get` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// The key.
    pub get: String,
    pub scope: String,
    /// Not there where the key is not set.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub value: Option<Json>,
}

/// `null` is a value.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppendAnswer {
    /// How many lines of this attempt are in the log now.
    pub lines: u32,
    /// What each `get` among the lines found, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<Found>,
}

/// `POST /v1/work/emit`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EmitRequest {
    pub lease: String,
    pub name: String,
    #[serde(default = "Json::nothing", skip_serializing_if = "Json::is_nothing")]
    pub payload: Json,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EmitAnswer {
    /// False where the event was published already.
    pub applied: bool,
    pub run_status: Status,
}

/// `POST /v1/work/release`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRequest {
    pub leases: Vec<String>,
}

/// What a server says of a request that it refused, as RFC 9457 writes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    pub title: String,
    pub detail: String,
    pub code: String,
}

/// `POST /v1/locks/{name}`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AcquireLockRequest {
    /// Who asks, as others are told; the token's subject where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Proves later that the lock is the asker's: 32 hexadecimal digits. The server makes one where it is left out; with
    /// one's own, the request can be repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock_token: Option<String>,
}

/// A lock that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcquireLockAnswer {
    #[serde(flatten)]
    pub lock: HeldLock,
    pub lock_token: String,
}

/// A lock that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldLock {
    pub name: String,
    pub owner: String,
    /// Higher than that of every earlier holder.
    pub fence: u64,
    pub since: Time,
    pub until: Time,
    pub remaining_ms: u64,
}

/// `POST /v1/locks/{name}/extend`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExtendLockRequest {
    pub lock_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtendLockAnswer {
    pub name: String,
    pub until: Time,
    pub remaining_ms: u64,
}

/// `POST /v1/locks/{name}/release`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseLockRequest {
    pub lock_token: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseLockAnswer {
    pub name: String,
    /// False where the lock was not this token's any more.
    pub released: bool,
}

/// `GET /v1/locks`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockList {
    pub items: Vec<HeldLock>,
}
