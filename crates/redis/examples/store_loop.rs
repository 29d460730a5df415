//! How fast the bare store is: step-commits of many runs in flight.
//!
//! Each step-commit is what a busy engine writes: three events, one of them with a payload that can be addressed, the new
//! state, the finished lease gone, the next step leased right away.
//!
//!     cargo run --release -p flowline-redis --example store_loop [URL] [SECONDS] [RUNS-IN-FLIGHT]

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use flowline_core::definition::Priority;
use flowline_core::event::Slot;
use flowline_core::{EventType, Json, NewEvent, RunId, RunKey, Status, Tenant, Time};
use flowline_redis::{IfMissing, RedisStore};
use flowline_store::{
    Base, Catalog, Commit, Handoff, Index, JobKey, Lane, LeaseUse, NewJob, NewRun, Others, RunStore,
    StoredDefinition, Token,
};

const STEPS: u32 = 10;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let seconds = args.next().map_or(Ok(3), |text| text.parse())?;
    let in_flight = args.next().map_or(Ok(256), |text| text.parse::<usize>())?;

    let store =
        RedisStore::open(&format!("{url}?prefix=store-loop-{}", uuid::Uuid::now_v7()), IfMissing::Make)
            .await?;
    store.put_definition(definition()).await?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let began = Instant::now();
    let loops: Vec<_> = (0..in_flight).map(|n| tokio::spawn(run_on(store.clone(), n, until))).collect();
    let (mut steps, mut starts) = (0, 0);
    for each in loops {
        let (some_steps, some_starts) = each.await??;
        steps += some_steps;
        starts += some_starts;
    }
    let rate = steps as f64 / began.elapsed().as_secs_f64();
    println!("steps/s, {in_flight} runs in flight   {rate:>10.0}   ({starts} runs of {STEPS} steps started)");
    Ok(())
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One run after the other until time is up.
async fn run_on(store: Arc<RedisStore>, n: usize, until: Instant) -> Result<(u64, u64), Failure> {
    let (mut steps, mut starts) = (0, 0);
    while Instant::now() < until {
        let run = RunKey::new(
            Tenant::default(),
            RunId::new(&format!("0192f0c1-7aaa-7bbb-8ccc-{n:06}{starts:06}"))?,
        );
        commit(&store, start(&run)).await?;
        starts += 1;
        for step in 0..STEPS {
            commit(&store, finish(&run, step)).await?;
            steps += 1;
        }
    }
    Ok((steps, starts))
}

async fn commit(store: &RedisStore, commit: Commit) -> Result<(), Failure> {
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
    };
    Commit {
        run: run.clone(),
        base: Base::New(new),
        leases: Vec::new(),
        events: vec![NewEvent::run(EventType::FlowStart, Some(INPUT.clone())).at(Slot::Input)],
        state: vec![0; 24],
        index: index(Status::Running),
        others: Others::Leave,
        add: vec![job(0)],
        clear_state: false,
    }
}

/// Step `n` is done, the next one begins.
fn finish(run: &RunKey, n: u32) -> Commit {
    let name = step_name(n);
    let last = n + 1 == STEPS;
    let mut events = vec![
        NewEvent::step(EventType::StepStarted, &name, 1, Some(STARTED.clone())),
        NewEvent::step(EventType::StepCompleted, &name, 1, Some(COMPLETED.clone())),
        NewEvent::step(EventType::Emit, &name, 1, Some(EMITTED.clone())).at(Slot::Emit(n)),
    ];
    if last {
        events.push(NewEvent::run(EventType::FlowCompleted, Some(ENDED.clone())));
    }
    Commit {
        base: Base::Version(u64::from(n) + 1),
        leases: vec![LeaseUse::Finish { key: JobKey::Step(n), attempt: 1, token: token(n) }],
        events,
        index: index(if last { Status::Completed } else { Status::Running }),
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

fn index(status: Status) -> Index {
    Index { status, completed_steps: 0, failed_steps: 0, retries: 0, failure: None }
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
