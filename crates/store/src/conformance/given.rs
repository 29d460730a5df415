//! Plain values to begin with. Cases change what they are about with struct update syntax.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::definition::Priority;
use flowline_core::{EventType, Json, NewEvent, RunId, RunKey, Status, Tenant, Time};

use crate::{
    Append, AppendLine, Base, Claim, Commit, Extend, Handoff, Index, JobKey, Lane, LeaseUse, LeasedJob,
    NewJob, NewRun, Others, StateChange, StateEdit, StateScope, StoredDefinition, Token,
};

pub const FLOW: &str = "fulfil";
pub const HASH: &str = "hash-1";
/// Leases that do not run out within a case.
pub const TTL: Duration = Duration::from_secs(60);
/// Leases that do.
pub const SHORT: Duration = Duration::from_millis(300);
/// Beyond [`SHORT`].
pub const LATER: Duration = Duration::from_millis(400);

/// Text that a store might trip over: NUL, quotes, braces, separators, right-to-left, an emoji, SQL and glob signs.
pub const STRANGE: &[&str] = &[
    "nul \0 inside",
    "quote \" and ' and `",
    "{}{tag}:../%2e",
    "rtl \u{202e} and \u{1f600} and é and e\u{301}",
    "back\\slash \n\r\t",
    "'; drop table runs; --",
    "% _ * ? [a]",
    " spaces ",
];

pub fn tenant(name: &str) -> Tenant {
    Tenant::new(name).expect("a good tenant name")
}

/// A run of the tenant `default`.
pub fn run(id: &str) -> RunKey {
    run_of(&Tenant::default(), id)
}

pub fn run_of(tenant: &Tenant, id: &str) -> RunKey {
    RunKey::new(tenant.clone(), RunId::new(id).expect("a good run id"))
}

pub fn definition(tenant: &Tenant, flow: &str, hash: &str) -> StoredDefinition {
    StoredDefinition {
        tenant: tenant.clone(),
        flow: flow.into(),
        hash: hash.into(),
        body: format!("{{\"flow\":\"{flow}\",\"of\":\"{hash}\"}}"),
        origin: None,
        created_at: Time::from_millis(0),
        latest: false,
    }
}

pub fn json(value: serde_json::Value) -> Json {
    Json::from(value)
}

pub fn new_run() -> NewRun {
    NewRun {
        flow: FLOW.into(),
        definition: HASH.into(),
        step_count: 3,
        labels: BTreeMap::new(),
        input_digest: "digest".into(),
        idempotency_key: None,
        retry_of: None,
        retain: None,
    }
}

pub fn index(status: Status) -> Index {
    Index { status, state: None, completed_steps: 0, failed_steps: 0, retries: 0, failure: None }
}

/// The commit that starts a run: one `flow.start`, no jobs.
pub fn start(run: &RunKey) -> Commit {
    Commit {
        run: run.clone(),
        base: Base::New(new_run()),
        leases: Vec::new(),
        events: vec![NewEvent::run(EventType::FlowStart, Some(json(serde_json::json!({"input": 1}))))],
        state: b"state 1".to_vec(),
        index: index(Status::Running),
        others: Others::Leave,
        add: Vec::new(),
        receipts: Vec::new(),
        clear_state: false,
    }
}

/// A commit on top of a version that changes nothing by itself: no events, no jobs.
pub fn next(run: &RunKey, version: u64) -> Commit {
    Commit {
        base: Base::Version(version),
        events: Vec::new(),
        state: format!("state {}", version + 1).into_bytes(),
        ..start(run)
    }
}

/// The commit that ends a run well: its terminal event, and nothing left behind.
pub fn end(run: &RunKey, version: u64) -> Commit {
    Commit {
        events: vec![NewEvent::run(EventType::FlowCompleted, None)],
        index: index(Status::Completed),
        others: Others::Drop,
        ..next(run, version)
    }
}

pub fn lane(queue: &str, need: &str) -> Lane {
    Lane { queue: queue.into(), need: need.into() }
}

/// First attempt of a step, due at once, in the lane (`default`, `command`), named `step-N`.
pub fn step(n: u32) -> NewJob {
    NewJob {
        key: JobKey::Step(n),
        name: format!("step-{n}").into(),
        attempt: 1,
        lane: lane("default", "command"),
        priority: Priority::Normal,
        due: Time::from_millis(0),
        held: false,
        handoff: None,
    }
}

pub fn timer(n: u32, due: Time) -> NewJob {
    NewJob { key: JobKey::Timer(n), name: format!("timer-{n}").into(), due, ..step(0) }
}

pub fn handoff(token: u128) -> Option<Handoff> {
    Some(Handoff { token: Token(token), ttl: TTL, worker: "me".into() })
}

/// Takes from any tenant and queue what needs `command`.
pub fn claim(tokens: &[u128]) -> Claim {
    Claim {
        tenant: None,
        needs: vec!["command".into()],
        free: Vec::new(),
        free_elsewhere: 1_000,
        tokens: tokens.iter().map(|n| Token(*n)).collect(),
        ttl: TTL,
        worker: "me".into(),
    }
}

pub fn finish(job: &LeasedJob) -> LeaseUse {
    LeaseUse::Finish { key: job.key, attempt: job.attempt, token: job.token }
}

pub fn expired(job: &LeasedJob, lines: u32) -> LeaseUse {
    LeaseUse::Expired { key: job.key, attempt: job.attempt, token: job.token, lines }
}

pub fn keep(job: &LeasedJob, lines: u32) -> LeaseUse {
    LeaseUse::Keep { key: job.key, attempt: job.attempt, token: job.token, lines }
}

pub fn hold(job: &LeasedJob) -> Extend {
    Extend { run: job.run.clone(), key: job.key, token: job.token }
}

pub fn append(job: &LeasedJob, from_line: u32, lines: Vec<AppendLine>) -> Append {
    Append { run: job.run.clone(), key: job.key, attempt: job.attempt, token: job.token, from_line, lines }
}

pub fn of_step(kind: EventType, data: Option<Json>) -> NewEvent {
    NewEvent::step(kind, &Arc::from("step-0"), 1, data)
}

pub fn line(kind: EventType) -> AppendLine {
    AppendLine { event: of_step(kind, None), state: None }
}

pub fn log_line(message: &str) -> AppendLine {
    let data = json(serde_json::json!({"level": "log", "message": message}));
    AppendLine { event: of_step(EventType::Log, Some(data)), state: None }
}

/// A line that sets a value, or deletes it.
pub fn state_line(scope: StateScope, key: &str, value: Option<Json>, ttl: Option<Duration>) -> AppendLine {
    let change = StateChange { scope, edit: StateEdit::new(key, value, ttl) };
    AppendLine { event: of_step(EventType::State, None), state: Some(change) }
}

pub fn log_events(count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| of_step(EventType::Log, Some(json(n.into())))).collect()
}
