//! A store kept busy: what a bare store can do, without an engine. Each store's example `store_loop` prints it.
//!
//! Each step-commit is what a busy engine writes: three events, one of them with a payload that can be addressed, the new
//! state, the finished lease gone, the next step leased right away.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use flowline_core::definition::Priority;
use flowline_core::event::PayloadSlot;
use flowline_core::{EventType, Json, NewEvent, RunId, RunKey, Status, Tenant, Time};

use crate::{
    Base, Commit, Handoff, Index, JobKey, Lane, LeaseUse, NewJob, NewRun, Others, Store, StoredDefinition,
    Token,
};

const STEPS: u32 = 10;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What came of it.
#[derive(Debug)]
pub struct BusyRate {
    pub in_flight: usize,
    pub steps: u64,
    pub runs: u64,
    pub per_second: f64,
}

impl std::fmt::Display for BusyRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BusyRate { in_flight, runs, per_second, .. } = self;
        write!(
            f,
            "steps/s, {in_flight} runs in flight  {per_second:>10.0}   ({runs} runs of {STEPS} steps started)"
        )
    }
}

/// Keeps `in_flight` runs going for this long.
pub async fn keep_busy(
    store: Arc<dyn Store>,
    in_flight: usize,
    time: Duration,
) -> Result<BusyRate, BoxError> {
    store.put_definition(definition()).await?;
    let began = Instant::now();
    let loops: Vec<_> =
        (0..in_flight).map(|n| tokio::spawn(run_on(store.clone(), n, began + time))).collect();
    let (mut steps, mut runs) = (0, 0);
    for each in loops {
        let (some_steps, some_runs) = each.await??;
        steps += some_steps;
        runs += some_runs;
    }
    Ok(BusyRate { in_flight, steps, runs, per_second: steps as f64 / began.elapsed().as_secs_f64() })
}

/// One run after the other until time is up.
async fn run_on(store: Arc<dyn Store>, n: usize, until: Instant) -> Result<(u64, u64), BoxError> {
    // Runs of an earlier loop in the same store have other names.
    let salt = std::process::id();
    let (mut steps, mut starts) = (0, 0);
    while Instant::now() < until {
        let name = format!("0192f0c1-7aaa-{salt:08}-{n:06}{starts:06}");
        let run = RunKey::new(Tenant::default(), RunId::new(&name)?);
        commit(&*store, start(&run)).await?;
        starts += 1;
        for step in 0..STEPS {
            commit(&*store, finish(&run, step)).await?;
            steps += 1;
        }
    }
    Ok((steps, starts))
}

async fn commit(store: &dyn Store, commit: Commit) -> Result<(), BoxError> {
    for answer in store.commit(vec![commit]).await? {
        answer?;
    }
    Ok(())
}

fn start(run: &RunKey) -> Commit {
    let new = NewRun {
        flow: "bench".into(),
        definition: "hash".into(),
        step_count: STEPS,
        labels: Default::default(),
        input_digest: "4355a46b19d348dc2f57c046f8ef63d4538ebb936000f3c9ee954a27460dd865".into(),
        idempotency_key: None,
        retry_of: None,
        retain: None,
    };
    Commit {
        events: vec![NewEvent::run(EventType::FlowStart, Some(INPUT.clone())).at(PayloadSlot::Input)],
        state: vec![0; 24],
        add: vec![job(0)],
        ..Commit::new(run.clone(), Base::New(new), Index::of(Status::Running))
    }
}

/// Step `n` is done, the next one begins.
fn finish(run: &RunKey, n: u32) -> Commit {
    let name = step_name(n);
    let last = n + 1 == STEPS;
    let mut events = vec![
        NewEvent::step(EventType::StepStarted, &name, 1, Some(STARTED.clone())),
        NewEvent::step(EventType::StepCompleted, &name, 1, Some(COMPLETED.clone())),
        NewEvent::step(EventType::Emit, &name, 1, Some(EMITTED.clone())).at(PayloadSlot::Emit(n)),
    ];
    if last {
        events.push(NewEvent::run(EventType::FlowCompleted, Some(ENDED.clone())));
    }
    Commit {
        base: Base::Version(u64::from(n) + 1),
        leases: vec![LeaseUse::Finish { key: JobKey::Step(n), attempt: 1, token: token(n) }],
        events,
        index: Index::of(if last { Status::Completed } else { Status::Running }),
        others: if last { Others::Drop } else { Others::Leave },
        add: if last { Vec::new() } else { vec![job(n + 1)] },
        ..start(run)
    }
}

fn job(n: u32) -> NewJob {
    NewJob {
        key: JobKey::Step(n),
        name: step_name(n),
        attempt: 1,
        lane: Lane { queue: "default".into(), need: "function:bench".into() },
        priority: Priority::Normal,
        due: Time::from_millis(0),
        held: false,
        handoff: Some(Handoff { token: token(n), ttl: Duration::from_secs(30), worker: "bench".into() }),
    }
}

fn step_name(n: u32) -> Arc<str> {
    format!("step-{n}").into()
}

fn token(n: u32) -> Token {
    Token(u128::from(n) + 1)
}

/// Payloads reach a store parsed and shared; parsing them is not what is measured.
static INPUT: LazyLock<Json> = LazyLock::new(|| json(r#"{"input":{"order":42}}"#));
static STARTED: LazyLock<Json> = LazyLock::new(|| json(r#"{"worker":"bench","instance":"a"}"#));
static COMPLETED: LazyLock<Json> = LazyLock::new(|| json(r#"{"result":null}"#));
static EMITTED: LazyLock<Json> =
    LazyLock::new(|| json(r#"{"name":"done","payload":{"cents":1900,"ok":true}}"#));
static ENDED: LazyLock<Json> = LazyLock::new(|| json(r#"{"result":{},"duration":5,"stepCount":10}"#));

fn json(text: &str) -> Json {
    Json::parse(text).expect("the texts above are JSON")
}

fn definition() -> StoredDefinition {
    StoredDefinition {
        tenant: Tenant::default(),
        flow: "bench".into(),
        hash: "hash".into(),
        body: "{}".to_owned(),
        origin: None,
        created_at: Time::from_millis(0),
        latest: false,
    }
}
