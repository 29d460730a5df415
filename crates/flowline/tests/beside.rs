//! Engines next to others on one store: what another did meanwhile, and what it holds.

use std::sync::Arc;
use std::time::Duration;

use flowline::core::event::EventType;
use flowline::core::{RunKey, Status};
use flowline::store::memory::MemoryStore;
use flowline::store::{Catalog, Claim, Extend, Extended, FeedFilter, RunStore, StoreError, Token};
use flowline::{Config, Engine, EngineError, Flow, InstanceRole, Step, StepError};
use serde_json::{Value, json};

use crate::kit::{diamond, kinds, memory, pass};

#[tokio::test]
async fn what_another_instance_did_meanwhile_does_not_make_an_outcome_stale() {
    let flow = Flow::new("to-and-fro")
        .step("a", pass)
        .queue("left")
        .returns("a.done")
        .step("b", pass)
        .queue("right")
        .subscribes(["a.done"])
        .returns("b.done")
        .step("c", pass)
        .queue("left")
        .subscribes(["b.done"])
        .build()
        .unwrap();
    let store = memory();
    let instance = |without| Engine::on(store.clone()).flow(&flow).queue(without, 0).start();
    let (left, right) = (instance("right").await.unwrap(), instance("left").await.unwrap());
    let run = left.run(&flow, 1).await.unwrap();
    // Far less than a lease: what the first instance remembers of the run is older than its second step.
    let ended = tokio::time::timeout(Duration::from_secs(20), run.wait()).await.expect("ends").unwrap();
    assert_eq!(ended.status, Status::Completed);
    let started =
        kinds(&right, run.key()).await.into_iter().filter(|(kind, _)| *kind == EventType::StepStarted);
    assert_eq!(started.count(), 3);
}

#[tokio::test]
async fn what_another_instance_did_meanwhile_is_seen_before_an_input_is_called_applied() {
    let flow =
        Flow::new("asks").step("act", pass).subscribes(["asked"]).accepts_named("asked").build().unwrap();
    let store = memory();
    let instance = || Engine::on(store.clone()).flow(&flow).start();
    let (one, other) = (instance().await.unwrap(), instance().await.unwrap());
    let run = one.run(&flow, 1).await.unwrap();
    assert!(one.pause(run.key()).await.unwrap().changed);
    assert!(other.resume(run.key()).await.unwrap().changed);
    assert!(one.pause(run.key()).await.unwrap().changed, "it goes on since");
    assert_eq!(one.row(run.key()).await.unwrap().status, Status::Paused);
}

#[tokio::test]
async fn a_run_that_was_begun_is_gone_on_with_before_another_is_begun() {
    let done = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let done = done.clone();
        move |_: Step, input: Value| {
            done.lock().unwrap().push(name);
            async move { Ok::<_, StepError>(input) }
        }
    };
    let chain =
        Flow::new("chain").step("a", note("a")).returns("a.done").step("b", note("b")).subscribes(["a.done"]);
    let flow = chain.build().unwrap();
    let store = memory();
    let client = Engine::on(store.clone())
        .flow(&flow)
        .config(Config { role: InstanceRole::Operate, ..Config::default() });
    let client = client.start().await.unwrap();
    for number in 0..5 {
        client.run(&flow, number).await.unwrap();
    }
    let worker = Engine::on(store).flow(&flow).slots(1).start().await.unwrap();
    worker.until_idle(Duration::ZERO).await;
    assert_eq!(*done.lock().unwrap(), ["a", "b"].repeat(5));
}

#[tokio::test]
async fn a_subscription_tells_that_the_store_went_back() {
    let store = memory();
    let before = store.snapshot();
    let flow = diamond();
    let engine = Engine::on(store.clone()).flow(&flow).start().await.unwrap();
    engine.run(&flow, json!({})).await.unwrap().wait().await.unwrap();
    let mut events = engine.subscribe(FeedFilter::default(), "");
    events.next().await.unwrap();
    store.restore(before);
    let error = loop {
        if let Err(error) = events.next().await {
            break error;
        }
    };
    assert!(matches!(error, EngineError::Store(StoreError::WentBack(_))), "{error:?}");
    // Whoever brings a cursor of their own is told that it is none.
    let error = engine.subscribe(FeedFilter::default(), "999999").next().await.unwrap_err();
    assert!(matches!(error, EngineError::Store(StoreError::Invalid(_))), "{error:?}");
    engine.stop().await;
}

/// A run whose only job is leased to somebody who is no engine of this test, for a second.
async fn leased_elsewhere(store: &Arc<MemoryStore>, flow: &Flow) -> (RunKey, Extend) {
    let starter = Config { role: InstanceRole::Operate, ..Config::default() };
    let starter = Engine::on(store.clone()).config(starter).flow(flow).start().await.unwrap();
    let run = starter.run(flow, 1).await.unwrap().key().clone();
    starter.stop().await;
    let claim = Claim {
        tenant: None,
        needs: vec![store.jobs(&run).await.unwrap()[0].need.clone()],
        free: Vec::new(),
        free_elsewhere: 1,
        tokens: vec![Token(7)],
        ttl: Duration::from_secs(1),
        worker: "elsewhere".into(),
    };
    let job = store.claim(claim).await.unwrap().jobs.remove(0);
    (run.clone(), Extend { run, key: job.key, token: job.token })
}

#[tokio::test]
async fn until_idle_waits_until_the_lease_of_a_dead_instance_has_run_out() {
    let (store, flow) = (memory(), diamond());
    let (run, _) = leased_elsewhere(&store, &flow).await;
    let engine = Engine::on(store.clone()).flow(&flow).start().await.unwrap();
    engine.until_idle(Duration::ZERO).await;
    assert_eq!(engine.row(&run).await.unwrap().status, Status::Completed);
}

#[tokio::test]
async fn until_idle_does_not_wait_for_what_a_live_instance_holds() {
    let (store, flow) = (memory(), diamond());
    let (run, lease) = leased_elsewhere(&store, &flow).await;
    let config = Config { lease: Duration::from_secs(1), ..Config::default() };
    let engine = Engine::on(store.clone()).config(config).flow(&flow).start().await.unwrap();
    let idle = engine.until_idle(Duration::from_secs(3600));
    tokio::pin!(idle);
    let mut heartbeat = tokio::time::interval(Duration::from_millis(50));
    for beat in 0.. {
        assert!(beat < 600, "it still waits after 30 s");
        tokio::select! {
            () = &mut idle => break,
            _ = heartbeat.tick() => {
                let held = store.extend(vec![lease.clone()], Duration::from_secs(1)).await.unwrap();
                assert_eq!(held, [Extended::Held]);
            }
        }
    }
    assert_eq!(engine.row(&run).await.unwrap().status, Status::Running);
}
