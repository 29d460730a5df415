//! Remote workers, through the engine's own API: leases, fences, and what becomes of workers that vanish.

mod reports;

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use flowline::core::definition::{Format, read};
use flowline::core::event::EventType;
use flowline::core::{Json, RunKey, Status, Tenant};
use flowline::remote::{ACKNOWLEDGE, Assignment, AttemptEnding, Beat, Said, WorkRequest};
use flowline::store::clock::Clock;
use flowline::store::memory::MemoryStore;
use flowline::store::row::Pause;
use flowline::store::{EventQuery, JobState};
use flowline::{Config, Engine, EngineError, Level, StepError};
use serde_json::{Value, json};

use crate::kit::standing;

const FLOW: &str = "
flow: parcel
steps:
  pack:
    worker: depot
    returns: parcel.packed
    emits: [label.printed]
    retry: { attempts: 2, delay: 0ms }
  send: { worker: depot, subscribes: [parcel.packed] }
  mark: { worker: office, subscribes: [label.printed] }
";

struct Place {
    store: Arc<MemoryStore>,
    engine: Engine,
    ticking: tokio::task::JoinHandle<()>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}

/// A clock that goes on by itself and can be turned forward besides.
async fn tick(clock: Clock) {
    let mut last = std::time::Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let passed = last.elapsed().as_millis() as u64;
        clock.advance(Duration::from_millis(passed));
        last += Duration::from_millis(passed);
    }
}

impl Place {
    async fn new() -> Place {
        Place::with(FLOW).await
    }

    async fn with(flow: &str) -> Place {
        let store = standing();
        let ticking = tokio::spawn(tick(store.clock().clone()));
        let engine = instance(&store, flow).await;
        Place { store, engine, ticking }
    }

    async fn start(&self) -> RunKey {
        self.start_with(Duration::ZERO).await
    }

    async fn start_with(&self, delay: Duration) -> RunKey {
        let input = Json::from(json!({"to": "north"}));
        let request = self.engine.run_named("parcel", input).await.unwrap();
        request.delay(delay).await.unwrap().key().clone()
    }

    async fn claim(&self, worker: &str) -> Vec<Assignment> {
        self.engine.remote().claim(asks(worker, &["depot"])).await.unwrap()
    }

    async fn claim_one(&self, worker: &str) -> Assignment {
        let mut jobs = self.claim(worker).await;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    async fn beat(&self, job: &Assignment) -> Beat {
        self.engine.remote().heartbeat(std::slice::from_ref(&job.lease)).await.unwrap()[0]
    }

    async fn complete(&self, job: &Assignment, result: Value) -> Result<bool, EngineError> {
        complete_on(&self.engine, job, result).await
    }

    async fn log(&self, run: &RunKey) -> Vec<(EventType, u32, Value)> {
        let page = self.engine.store().events(run, EventQuery::default()).await.unwrap();
        let data = |data: Option<Json>| data.map_or(Value::Null, |data| data.value());
        page.events.into_iter().map(|e| (e.kind, e.attempt.unwrap_or(0), data(e.data))).collect()
    }

    async fn count(&self, run: &RunKey, kind: EventType) -> usize {
        self.log(run).await.iter().filter(|(found, ..)| *found == kind).count()
    }

    /// Lets the store's clock pass a lease, and the engine find out.
    async fn outlive(&self, lease: Duration) {
        self.store.clock().advance(lease + Duration::from_millis(1));
    }
}

async fn instance(store: &Arc<MemoryStore>, flow: &str) -> Engine {
    let config = Config { sweep: Duration::from_millis(5), ..Config::default() };
    let definition = read("parcel.yaml", flow, Format::Yaml).unwrap().definition;
    let engine = Engine::on(store.clone()).config(config).definition(definition, None);
    engine.start().await.unwrap()
}

fn asks(worker: &str, queues: &[&str]) -> WorkRequest {
    WorkRequest {
        worker: worker.to_owned(),
        queues: queues.iter().map(|queue| (*queue).to_owned()).collect(),
        limit: 10,
        wait: Duration::from_secs(20),
        with_state: false,
    }
}

async fn complete_on(engine: &Engine, job: &Assignment, result: Value) -> Result<bool, EngineError> {
    let ending =
        AttemptEnding { lease: job.lease.clone(), outcome: Ok(Json::from(result)), emits: Vec::new() };
    let mut answers = engine.remote().complete(vec![ending]).await;
    answers.remove(0).map(|reported| reported.changed)
}

fn is_stale<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::StaleLease(_)))
}

#[tokio::test]
async fn a_waiting_worker_is_given_work_and_takes_a_run_to_its_end() {
    let place = Place::new().await;
    let (run, pack) = tokio::join!(place.start(), place.claim_one("w1"));
    assert_eq!((&*pack.step_name, pack.attempt, &pack.run_id), ("pack", 1, &run.run));
    assert_eq!(pack.input.value(), json!({"to": "north"}));
    assert_eq!(pack.idempotency_key, format!("{}__pack", run.run));
    assert!(place.complete(&pack, json!({"weight": 3})).await.unwrap());
    let send = place.claim_one("w2").await;
    assert_eq!(send.input.value(), json!({"parcel.packed": {"weight": 3}}));
    assert!(place.complete(&send, json!(null)).await.unwrap());
    assert_eq!(place.engine.wait(&run).await.unwrap().status, Status::Completed);
    let started =
        place.log(&run).await.into_iter().find(|(kind, ..)| *kind == EventType::StepStarted).unwrap();
    assert_eq!(started.2["worker"], "w1");
    assert_eq!(started.2["instance"], &*place.engine.config().instance);
    place.engine.stop().await;
}

#[tokio::test]
async fn a_completion_that_is_repeated_changes_nothing() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    let before = place.log(&run).await;
    assert!(!place.complete(&pack, json!(1)).await.unwrap());
    assert_eq!(place.log(&run).await, before);
    place.engine.stop().await;
}

#[tokio::test]
async fn what_comes_after_the_lease_was_lost_is_refused_and_changes_nothing() {
    let place = Place::new().await;
    let run = place.start().await;
    let paused = place.claim_one("w1").await;
    assert_eq!(place.beat(&paused).await, Beat::Held);
    place.outlive(Config::default().lease).await;
    let taken = place.claim_one("w2").await;
    assert_eq!(taken.attempt, 2);
    let before = place.log(&run).await;
    let remote = place.engine.remote();
    let line =
        || vec![Said::Log { level: Level::Info, message: "late".to_owned(), fields: Default::default() }];
    assert!(is_stale(place.complete(&paused, json!("late")).await));
    assert!(is_stale(remote.append(&paused.lease, 0, line()).await));
    assert!(is_stale(remote.emit(&paused.lease, "label.printed", Json::null()).await));
    assert_eq!(place.beat(&paused).await, Beat::Lost);
    remote.release(std::slice::from_ref(&paused.lease)).await.unwrap();
    assert_eq!(place.log(&run).await, before);
    assert!(place.complete(&taken, json!(2)).await.unwrap());
    assert!(is_stale(place.complete(&paused, json!("later still")).await));
    place.engine.stop().await;
}

#[tokio::test]
async fn a_changed_reference_is_refused() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    let forged =
        |change: fn(String) -> String| Assignment { lease: change(pack.lease.clone()), ..pack.clone() };
    let before = place.log(&run).await;
    for forged in [
        forged(|_| "nonsense".to_owned()),
        forged(|lease| lease.chars().rev().collect()),
        // Within the token.
        forged(|lease| lease[..70].to_owned() + &lease[74..78] + &lease[74..]),
    ] {
        assert!(is_stale(place.complete(&forged, json!(1)).await), "{}", forged.lease);
        assert_eq!(place.beat(&forged).await, Beat::Lost);
    }
    assert_eq!(place.log(&run).await, before);
    place.engine.stop().await;
}

#[tokio::test]
async fn an_assignment_that_nobody_acknowledges_comes_back_soon_and_is_not_lost() {
    let place = Place::new().await;
    let run = place.start().await;
    for attempt in 1..=8 {
        // More often than a step may lose its lease.
        assert_eq!(place.claim_one("deaf").await.attempt, attempt);
        place.outlive(ACKNOWLEDGE).await;
    }
    let pack = place.claim_one("w1").await;
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    let log = place.log(&run).await;
    let retries: Vec<_> = log.iter().filter(|(kind, ..)| *kind == EventType::StepRetry).collect();
    assert_eq!(retries.len(), 8);
    assert!(retries.iter().all(|(.., data)| data["cause"] == "released"), "{retries:?}");
    assert_eq!(place.count(&run, EventType::StepStarted).await, 1, "the others never started");
    place.engine.stop().await;
}

#[tokio::test]
async fn a_worker_that_acknowledged_and_died_has_lost_its_lease() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    assert_eq!(place.beat(&pack).await, Beat::Held);
    place.outlive(ACKNOWLEDGE).await;
    assert_eq!(place.beat(&pack).await, Beat::Held, "it has the full lease now");
    place.outlive(Config::default().lease).await;
    assert_eq!(place.claim_one("w2").await.attempt, 2);
    let log = place.log(&run).await;
    let retry = log.iter().find(|(kind, ..)| *kind == EventType::StepRetry).unwrap();
    assert_eq!(retry.2["code"], "lease_lost");
    place.engine.stop().await;
}

#[tokio::test]
async fn a_worker_that_gives_back_leaves_the_next_attempt_to_others_at_once() {
    let place = Place::new().await;
    place.start().await;
    let pack = place.claim_one("w1").await;
    place.beat(&pack).await;
    place.engine.remote().release(std::slice::from_ref(&pack.lease)).await.unwrap();
    assert_eq!(place.claim_one("w2").await.attempt, 2);
    assert_eq!(place.beat(&pack).await, Beat::Lost);
    place.engine.stop().await;
}

#[tokio::test]
async fn lines_that_are_sent_again_are_written_once() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    let remote = place.engine.remote();
    let log = |message: &str| Said::Log {
        level: Level::Info,
        message: message.to_owned(),
        fields: Default::default(),
    };
    let set =
        || Said::Set { scope: "run".into(), key: "k".to_owned(), value: Json::from(json!(1)), ttl: None };
    assert_eq!(remote.append(&pack.lease, 0, vec![log("a"), set()]).await.unwrap().lines, 2);
    assert_eq!(remote.append(&pack.lease, 0, vec![log("a"), set()]).await.unwrap().lines, 2);
    assert_eq!(remote.append(&pack.lease, 1, vec![set(), log("b")]).await.unwrap().lines, 3);
    assert!(is_stale(remote.append(&pack.lease, 9, vec![log("c")]).await), "lines before it are missing");
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    let kinds: Vec<EventType> = place.log(&run).await.into_iter().map(|(kind, ..)| kind).take(6).collect();
    use EventType::*;
    assert_eq!(kinds, [FlowStart, StepStarted, Log, State, Log, Emit]);
    place.engine.stop().await;
}

#[tokio::test]
async fn a_worker_reads_state_of_every_scope_in_the_order_of_its_lines() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    let remote = place.engine.remote();
    place.engine.state("orders").unwrap().set("k", json!("outside")).await.unwrap();
    let get = |scope: &str| Said::Get { scope: scope.into(), key: "k".to_owned() };
    let set = |scope: &str| Said::Set {
        scope: scope.into(),
        key: "k".to_owned(),
        value: Json::from(json!(scope)),
        ttl: None,
    };
    let lines = || vec![get("orders"), set("run"), get("run"), get("flow"), set("tenant"), get("tenant")];
    let expected = [Some(json!("outside")), Some(json!("run")), None, Some(json!("tenant"))];
    // Sent again they are answered again, and logged once.
    for _ in 0..2 {
        let appended = remote.append(&pack.lease, 0, lines()).await.unwrap();
        let found: Vec<_> = appended.found.iter().map(|found| found.as_ref().map(Json::value)).collect();
        assert_eq!((appended.lines, found), (6, expected.to_vec()));
    }
    let logged = place.log(&run).await.into_iter().filter(|(kind, ..)| *kind == EventType::State).count();
    assert_eq!(logged, 6);
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    assert!(
        is_stale(remote.append(&pack.lease, 6, vec![get("run")]).await),
        "a worker without a lease reads nothing"
    );
    place.engine.stop().await;
}

#[tokio::test]
async fn an_emit_in_the_middle_of_an_attempt_sets_off_what_waits_for_it_once() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    let remote = place.engine.remote();
    assert!(remote.emit(&pack.lease, "label.printed", Json::from(json!(7))).await.unwrap().changed);
    assert!(!remote.emit(&pack.lease, "label.printed", Json::from(json!(8))).await.unwrap().changed);
    let mark = remote.claim(asks("clerk", &["office"])).await.unwrap().remove(0);
    assert_eq!(mark.input.value(), json!({"label.printed": 7}));
    let undeclared = remote.emit(&pack.lease, "nobody.knows", Json::null()).await;
    assert!(matches!(undeclared, Err(EngineError::Refused(_))), "{undeclared:?}");
    assert_eq!(place.count(&run, EventType::StepStarted).await, 1);
    place.engine.stop().await;
}

#[tokio::test]
async fn a_failure_is_retried_as_the_step_says() {
    let place = Place::new().await;
    let run = place.start().await;
    for attempt in 1..=2 {
        let pack = place.claim_one("w1").await;
        assert_eq!(pack.attempt, attempt);
        let outcome = Err(StepError::new("no tape").code("tape"));
        let ending = AttemptEnding { lease: pack.lease, outcome, emits: Vec::new() };
        assert!(place.engine.remote().complete(vec![ending]).await.remove(0).unwrap().changed);
    }
    assert_eq!(place.engine.wait(&run).await.unwrap().status, Status::Failed);
    place.engine.stop().await;
}

#[tokio::test]
async fn a_heartbeat_beyond_the_deadline_fails_the_attempt() {
    let flow = FLOW.replace("worker: depot\n", "worker: depot\n    timeout: 40s\n");
    let place = Place::with(&flow).await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    assert_eq!(pack.timeout_ms, Some(40_000));
    let deadline = pack.deadline.unwrap();
    assert_eq!(place.beat(&pack).await, Beat::Held);
    place.store.clock().advance(Duration::from_secs(25));
    assert_eq!(place.beat(&pack).await, Beat::Held);
    let jobs = place.engine.store().jobs(&run).await.unwrap();
    let leased = jobs.iter().find(|job| job.state == JobState::Leased).unwrap();
    let beyond = leased.expires.unwrap().since(deadline);
    assert!((10..14).contains(&beyond.as_secs()), "one heartbeat beyond the deadline, no more: {beyond:?}");
    place.store.clock().advance(Duration::from_secs(15));
    assert_eq!(place.beat(&pack).await, Beat::TimedOut);
    let log = place.log(&run).await;
    assert_eq!(log.iter().find(|(kind, ..)| *kind == EventType::StepRetry).unwrap().2["code"], "timeout");
    assert!(is_stale(place.complete(&pack, json!("late")).await));
    place.engine.stop().await;
}

#[tokio::test]
async fn a_worker_hears_of_the_end_of_its_run() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    place.beat(&pack).await;
    place.engine.cancel(&run, None).await.unwrap();
    assert_eq!(place.beat(&pack).await, Beat::Cancelled);
    place.engine.stop().await;
}

#[tokio::test]
async fn the_wait_of_a_delayed_run_is_over_with_the_first_word_of_its_worker() {
    let place = Place::new().await;
    let run = place.start_with(Duration::from_secs(60)).await;
    assert_eq!(place.engine.row(&run).await.unwrap().status, Status::Waiting);
    let claim = place.claim_one("w1");
    let late = async { place.store.clock().advance(Duration::from_secs(61)) };
    let (pack, ()) = tokio::join!(claim, late);
    assert_eq!(place.engine.row(&run).await.unwrap().status, Status::Waiting, "not a word yet");
    assert_eq!(place.beat(&pack).await, Beat::Held);
    assert_eq!(place.engine.row(&run).await.unwrap().status, Status::Running);
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    assert_eq!(place.count(&run, EventType::StepStarted).await, 1);
    place.engine.stop().await;
}

#[tokio::test]
async fn any_instance_takes_the_reports_of_any_worker() {
    let place = Place::new().await;
    let other = instance(&place.store, FLOW).await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    place.engine.stop().await;
    let beats = other.remote().heartbeat(std::slice::from_ref(&pack.lease)).await.unwrap();
    assert_eq!(beats, [Beat::Held]);
    assert!(complete_on(&other, &pack, json!(1)).await.unwrap());
    let send = other.remote().claim(asks("w1", &["depot"])).await.unwrap().remove(0);
    assert!(complete_on(&other, &send, json!(2)).await.unwrap());
    assert_eq!(other.wait(&run).await.unwrap().status, Status::Completed);
    other.stop().await;
}

#[tokio::test]
async fn a_worker_that_stopped_waiting_takes_nothing() {
    let place = Place::new().await;
    for _ in 0..20 {
        let remote = place.engine.remote();
        let gone = tokio::spawn(async move { remote.claim(asks("gone", &["depot"])).await });
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
    }
    let run = place.start().await;
    assert_eq!(place.claim_one("w1").await.attempt, 1);
    assert_eq!(place.count(&run, EventType::StepRetry).await, 0);
    place.engine.stop().await;
}

async fn leased_to(place: &Place, run: &RunKey) -> Option<String> {
    let jobs = place.engine.store().jobs(run).await.unwrap();
    jobs.into_iter()
        .find(|job| job.state == JobState::Leased)
        .and_then(|job| job.worker)
        .map(|w| w.to_string())
}

/// Asks for work until there is nothing left to do but to wait.
async fn wait_in_line(place: &Place, claim: &mut std::pin::Pin<Box<impl Future<Output = Vec<Assignment>>>>) {
    for _ in 0..20 {
        let pending = std::future::poll_fn(|cx| Poll::Ready(claim.as_mut().poll(cx).is_pending())).await;
        assert!(pending);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The store's clock goes in steps here: what is due now by the engine's reckoning must be due by the store's.
    place.store.clock().advance(Duration::from_millis(50));
}

#[tokio::test]
async fn a_commit_leases_its_job_to_a_worker_that_waits() {
    let place = Place::new().await;
    let mut claim = Box::pin(place.claim("w1"));
    wait_in_line(&place, &mut claim).await;
    let run = place.start().await;
    // Nobody has looked since.
    let holder = format!("w1@{}", place.engine.config().instance);
    assert_eq!(leased_to(&place, &run).await, Some(holder));
    let pack = claim.await.remove(0);
    assert_eq!((&pack.run_id, pack.attempt), (&run.run, 1));
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    assert_eq!(place.count(&run, EventType::StepRetry).await, 0);
    place.engine.stop().await;
}

#[tokio::test]
async fn a_job_that_was_leased_to_a_worker_that_is_gone_is_for_others_at_once() {
    let place = Place::new().await;
    let mut claim = Box::pin(place.claim("gone"));
    wait_in_line(&place, &mut claim).await;
    let run = place.start().await;
    assert!(leased_to(&place, &run).await.is_some());
    let before = place.engine.store().now().await.unwrap();
    drop(claim);
    assert_eq!(place.claim_one("w2").await.attempt, 2);
    let passed = place.engine.store().now().await.unwrap().since(before);
    assert!(passed < ACKNOWLEDGE, "it did not have to run out: {passed:?}");
    let log = place.log(&run).await;
    let retries: Vec<_> = log.iter().filter(|(kind, ..)| *kind == EventType::StepRetry).collect();
    assert!(retries.iter().all(|(.., data)| data["cause"] == "released"), "{retries:?}");
    place.engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_goes_back_because_two_ways_led_to_the_same_worker() {
    const RUNS: usize = 100;
    let place = Place::with("flow: parcel\nsteps:\n  pack: { worker: depot }\n").await;
    let done = Arc::new(tokio::sync::Semaphore::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for at in 0..8 {
        let (engine, done) = (place.engine.clone(), done.clone());
        workers.spawn(async move {
            loop {
                let request = WorkRequest { limit: 1, ..asks(&format!("w{at}"), &["depot"]) };
                for job in engine.remote().claim(request).await.unwrap() {
                    assert!(complete_on(&engine, &job, json!(1)).await.unwrap());
                    done.add_permits(1);
                }
            }
        });
    }
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(place.start().await);
    }
    let _all = done.acquire_many(RUNS as u32).await.unwrap();
    for run in runs {
        assert_eq!(place.count(&run, EventType::StepRetry).await, 0);
    }
    place.engine.stop().await;
}

#[tokio::test]
async fn a_paused_queue_hands_nothing_over() {
    let place = Place::new().await;
    place.engine.store().pause_queue(&Tenant::default(), "depot", Pause::Paused).await.unwrap();
    let mut claim = Box::pin(place.claim("w1"));
    wait_in_line(&place, &mut claim).await;
    let run = place.start().await;
    assert_eq!(leased_to(&place, &run).await, None);
    wait_in_line(&place, &mut claim).await;
    place.engine.store().pause_queue(&Tenant::default(), "depot", Pause::Open).await.unwrap();
    assert_eq!(claim.await.remove(0).attempt, 1);
    place.engine.stop().await;
}

#[tokio::test]
async fn every_worker_in_line_gets_its_share() {
    let place = Place::new().await;
    let mut waiting = tokio::task::JoinSet::new();
    for at in 0..8 {
        let remote = place.engine.remote();
        let request = WorkRequest { limit: 1, ..asks(&format!("w{at}"), &["depot"]) };
        waiting.spawn(async move { remote.claim(request).await.unwrap().len() });
    }
    for _ in 0..8 {
        place.start().await;
    }
    assert_eq!(waiting.join_all().await, vec![1; 8]);
    place.engine.stop().await;
}

#[tokio::test]
async fn whoever_waits_is_sent_away_when_the_instance_stops() {
    let place = Place::new().await;
    let remote = place.engine.remote();
    let waiting = tokio::spawn(async move { remote.claim(asks("w1", &["depot"])).await });
    tokio::task::yield_now().await;
    place.engine.stop().await;
    assert!(waiting.await.unwrap().unwrap().is_empty());
}

#[tokio::test]
async fn a_worker_of_another_tenant_sees_nothing() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    let config = Config { sweep: Duration::from_millis(5), ..Config::default() };
    let stranger = Engine::on(place.store.clone()).tenant(Tenant::new("other").unwrap()).config(config);
    let stranger = stranger.start().await.unwrap();
    assert!(is_stale(complete_on(&stranger, &pack, json!("mine")).await));
    let nothing = WorkRequest { wait: Duration::ZERO, ..asks("w2", &["depot"]) };
    assert!(stranger.remote().claim(nothing).await.unwrap().is_empty());
    assert_eq!(place.count(&run, EventType::StepCompleted).await, 0);
    stranger.stop().await;
    place.engine.stop().await;
}

#[tokio::test]
async fn names_and_queues_are_checked() {
    let place = Place::new().await;
    let remote = place.engine.remote();
    for bad in [asks("w@1", &["depot"]), asks("w1", &[]), asks("w1", &["../depot"]), asks("", &["depot"])] {
        assert!(matches!(remote.claim(bad.clone()).await, Err(EngineError::Invalid(_))), "{bad:?}");
    }
    place.engine.stop().await;
}

#[tokio::test]
async fn state_of_the_run_comes_with_a_job_where_it_is_asked_for() {
    let place = Place::new().await;
    place.start().await;
    let pack = place.claim_one("w1").await;
    let set = Said::Set {
        scope: flowline::StateScope::Run,
        key: "courier".to_owned(),
        value: Json::from(json!("north")),
        ttl: None,
    };
    place.engine.remote().append(&pack.lease, 0, vec![set]).await.unwrap();
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    let with_state = WorkRequest { with_state: true, ..asks("w1", &["depot"]) };
    let send = place.engine.remote().claim(with_state).await.unwrap().remove(0);
    assert_eq!(send.state.unwrap()["courier"].value(), json!("north"));
    place.engine.stop().await;
}
