//! Decisions, definitions and templates that take long are done where they hold up nobody.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use flowline::core::definition::{Format, read};
use flowline::core::{Json, Status, Tenant};
use flowline::store::Store;
use flowline::store::clock::Clock;
use flowline::store::memory::MemoryStore;
use flowline::{Engine, EngineError, StartRequest};
use serde_json::json;

/// Within budget, and far from quick.
const LONG: &str = "input.l.all(a, input.l.all(b, input.l.all(c, input.l.all(d, a + b + c + d >= 0))))";

fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Clock::system()))
}

async fn engine(store: Arc<dyn Store>) -> Engine {
    Engine::on(store).start().await.unwrap()
}

async fn register(engine: &Engine, yaml: &str) {
    let read = read("flow.yaml", yaml, Format::Yaml).unwrap_or_else(|wrong| panic!("{wrong}"));
    engine.register(read.definition, None).await.unwrap();
}

async fn start(engine: &Engine, flow: &str, items: usize) -> Result<StartRequest, EngineError> {
    engine.run_named(flow, Json::from(json!({ "l": (0..items).collect::<Vec<_>>() }))).await
}

/// Occupies the threads for costly work until the sender is dropped.
async fn occupy(engine: &Engine) -> Sender<()> {
    let (open, gate) = channel();
    let gate: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(gate));
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    for _ in 0..processors {
        let (engine, gate) = (engine.clone(), gate.clone());
        let wait = move || gate.lock().unwrap().recv().unwrap_or_default();
        tokio::spawn(async move { engine.aside().run(&Tenant::default(), wait).await });
    }
    tokio::task::yield_now().await;
    open
}

fn waits(name: &str, condition: &str) -> String {
    format!(
        "flow: {name}\naccepts: {{ go: }}\nsteps:\n  a: {{ subscribes: [go], worker: q }}\n  b: {{ worker: q, if: '{condition}' }}\n"
    )
}

#[tokio::test]
async fn a_costly_decision_holds_up_nobody_and_counts_when_it_is_made() {
    let engine = engine(store()).await;
    register(&engine, &waits("slow", LONG)).await;
    register(&engine, &waits("quick", "input.l.size() > 1")).await;
    let gate = occupy(&engine).await;
    let slow = start(&engine, "slow", 12).await.unwrap();
    let slow = tokio::spawn(async move { slow.await });
    // Everyone else goes on.
    for _ in 0..10 {
        let run = start(&engine, "quick", 3).await.unwrap().await.unwrap();
        assert_eq!(engine.row(run.key()).await.unwrap().status, Status::Running);
    }
    assert!(!slow.is_finished());
    drop(gate);
    let run = slow.await.unwrap().unwrap();
    assert_eq!(engine.row(run.key()).await.unwrap().status, Status::Running);
    // What came meanwhile is decided on what it came to.
    engine.send(run.key(), "go", Json::from(json!(1))).await.unwrap();
    assert_eq!(engine.cancel(run.key(), None).await.unwrap().status, Status::Cancelled);
    engine.stop().await;
}

#[tokio::test]
async fn a_plan_of_a_stored_definition_is_compiled_where_it_holds_up_nobody() {
    let store = store();
    let first = engine(store.clone()).await;
    register(&first, &waits("other", "true")).await;
    first.stop().await;
    let second = engine(store).await;
    register(&second, &waits("quick", "true")).await;
    let gate = occupy(&second).await;
    let other = {
        let second = second.clone();
        tokio::spawn(async move { start(&second, "other", 1).await.unwrap().await })
    };
    start(&second, "quick", 1).await.unwrap().await.unwrap();
    assert!(!other.is_finished());
    drop(gate);
    other.await.unwrap().unwrap();
    second.stop().await;
}
