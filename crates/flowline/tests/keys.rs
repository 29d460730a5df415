//! Idempotency keys: the engine's own and its users' never meet, and those of one flow are nothing to another.

use std::sync::Arc;
use std::time::Duration;

use flowline::core::definition::{Format, read};
use flowline::core::ids::digest;
use flowline::core::limits::Limits;
use flowline::core::{Json, RunId, RunKey, Status};

use flowline::store::clock::Clock;
use flowline::store::memory::MemoryStore;
use flowline::store::{Catalog, NewDocument};
use flowline::{Config, Engine, EngineError, RetryFrom};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);
const CHILD: &str = "flow: child\naccepts: { go: }\nsteps:\n  a: { subscribes: [], start: { flow: leaf } }\n";
const LEAF: &str = "flow: leaf\naccepts: { go: }\nsteps:\n  a: { subscribes: [go], start: { flow: none } }\n";
const PARENT: &str = "flow: parent\nsteps:\n  call: { start: { flow: child, input: \"${input}\" } }\n";
const DOOR: &str = "machine: door\nevents: { knock: }\nstates:\n  shut: { on: { knock: shut } }\n";
const GATE: &str = "machine: gate\nevents: { knock: }\nstates:\n  shut: { on: { knock: shut } }\n";
const CALLER: &str = "flow: caller\nsteps:\n  call: { send: { machine: door, key: k1, event: knock } }\n";

async fn engine() -> (Engine, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new(Clock::system()));
    // Runs that wait for others are left waiting.
    let config = Config { drain: Duration::from_millis(10), ..Config::default() };
    let engine = Engine::on(store.clone()).config(config).start().await.unwrap();
    for text in [CHILD, LEAF, PARENT, DOOR, GATE, CALLER] {
        let definition = read("flow.yaml", text, Format::Yaml).expect("the definition is sound").definition;
        engine.register(definition, None).await.unwrap();
    }
    (engine, store)
}

fn of(value: Value) -> Json {
    Json::from(value)
}

async fn ended(engine: &Engine, run: &RunKey) -> Status {
    tokio::time::timeout(SOON, engine.wait(run)).await.expect("the run ends soon").unwrap().status
}

/// The key under which the step `call` of a run starts or sends, as anybody can compute it.
fn step_key(run: &RunId) -> String {
    format!("step:{}", digest(format!("{run}__call").as_bytes()))
}

#[tokio::test]
async fn a_user_cannot_take_the_place_of_a_run_that_the_engine_will_start() {
    let (engine, _) = engine().await;
    let parent = RunId::from_key(engine.tenant(), "parent", "p");
    let squat = engine.run_named("child", of(json!("mine"))).await.unwrap();
    let squat = squat.idempotency_key(step_key(&parent)).label("parent", parent.as_str()).await.unwrap();
    let run =
        engine.run_named("parent", of(json!("theirs"))).await.unwrap().idempotency_key("p").await.unwrap();
    assert_eq!(run.id(), &parent);
    // The child waits; one with another input would have been a conflict at once.
    let child = RunId::from_key(engine.tenant(), "child", &step_key(&parent));
    let child = engine.key(&child);
    tokio::time::timeout(SOON, async {
        while engine.row(&child).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the step starts its own child");
    assert_ne!(squat.id(), &child.run);
    let row = engine.row(&child).await.unwrap();
    assert_eq!(row.labels["parent"], parent.as_str());
    engine.stop().await;
}

#[tokio::test]
async fn a_user_cannot_take_the_place_of_a_retry() {
    let (engine, _) = engine().await;
    let failed = engine.run_named("parent", of(json!(1))).await.unwrap().await.unwrap();
    engine.cancel(failed.key(), None).await.unwrap();
    assert_eq!(ended(&engine, failed.key()).await, Status::Cancelled);
    for kind in ["redrive", "retry"] {
        let key = format!("{kind}:{}", failed.id());
        let squat =
            engine.run_named("parent", of(json!(2))).await.unwrap().idempotency_key(&key).await.unwrap();
        let again =
            engine.again(failed.key(), RetryFrom::Failure).await.unwrap().own_key(&key).await.unwrap();
        assert_ne!(squat.id(), again.id());
        assert_eq!(engine.row(again.key()).await.unwrap().retry_of.as_ref(), Some(failed.id()));
        // Each is found again under its key, by whoever used it.
        let repeated = engine.run_named("parent", of(json!(2))).await.unwrap().idempotency_key(&key);
        assert_eq!(repeated.await.unwrap().id(), squat.id());
        let repeated = engine.run_named("parent", of(json!(3))).await.unwrap().idempotency_key(&key);
        assert!(matches!(repeated.await, Err(EngineError::KeyConflict { .. })));
        let repeated = engine.again(failed.key(), RetryFrom::Failure).await.unwrap().own_key(&key);
        assert_eq!(repeated.await.unwrap().id(), again.id());
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_run_that_a_user_started_before_keys_were_told_apart_is_found_again() {
    let (engine, _) = engine().await;
    // What an older build made of a user's key.
    let old = engine.run_named("leaf", of(json!(1))).await.unwrap().own_key("retry:order-1").await.unwrap();
    let again = engine.run_named("leaf", of(json!(1))).await.unwrap().idempotency_key("retry:order-1").await;
    assert_eq!(again.unwrap().id(), old.id());
    let other = engine.run_named("leaf", of(json!(2))).await.unwrap().idempotency_key("retry:order-1").await;
    assert!(matches!(other, Err(EngineError::KeyConflict { .. })));
    let door = engine.run_named("door", of(json!(null))).await.unwrap().own_key("step:1").await.unwrap();
    let sent =
        engine.event_for("door", "step:1", Json::null(), ("knock", Json::nothing())).send().await.unwrap();
    assert_eq!(&sent.run_id, door.id());
    engine.stop().await;
}

#[tokio::test]
async fn a_user_cannot_use_up_the_key_of_an_event_that_a_step_will_send() {
    let (engine, _) = engine().await;
    let door = engine.run_named("door", Json::null()).await.unwrap().idempotency_key("k1").await.unwrap();
    let gate = engine.run_named("gate", Json::null()).await.unwrap().await.unwrap();
    let caller = RunId::from_key(engine.tenant(), "caller", "c");
    for run in [door.key(), gate.key()] {
        engine.event(run, "knock", Json::nothing()).key(step_key(&caller)).send().await.unwrap();
    }
    let run = engine.run_named("caller", Json::null()).await.unwrap().idempotency_key("c").await.unwrap();
    assert_eq!(run.id(), &caller);
    assert_eq!(ended(&engine, run.key()).await, Status::Completed);
    assert_eq!(knocks(&engine, door.key()).await, 2, "the user's and the step's");
    engine.stop().await;
}

/// Events that a machine has taken in.
async fn knocks(engine: &Engine, run: &RunKey) -> usize {
    use flowline::store::ReceiptQuery;
    let query = ReceiptQuery { run: Some(run.run.clone()), ..ReceiptQuery::of(run.tenant.clone()) };
    engine.store().receipts(query).await.unwrap().items.len()
}

#[tokio::test]
async fn event_keys_of_two_flows_do_not_meet() {
    let (engine, store) = engine().await;
    let start = async |machine: &str| engine.run_named(machine, Json::null()).await.unwrap().await.unwrap();
    let (door, other_door, gate) = (start("door").await, start("door").await, start("gate").await);
    let knock = async |run: &RunKey, key: &str| {
        engine.event(run, "knock", Json::nothing()).key(key).send().await.map(|sent| sent.changed)
    };
    assert!(knock(door.key(), "e1").await.unwrap());
    assert!(!knock(door.key(), "e1").await.unwrap());
    assert!(knock(gate.key(), "e1").await.unwrap(), "another flow's key is another key");
    let refused = knock(other_door.key(), "e1").await;
    assert!(
        matches!(&refused, Err(EngineError::KeyConflict { run, .. }) if run == door.id().as_str()),
        "{refused:?}"
    );

    // A reservation of an older build, which counted within the tenant, binds the flow of its run and no other.
    let reserved = json!({ "runId": door.id(), "eventId": "k-old", "digest": "another content" });
    let collection = format!("event-keys/{}", engine.tenant());
    let kept = NewDocument::new(&collection, &digest(b"e2"), of(reserved), None).if_absent();
    store.put_document(kept).await.unwrap();
    assert!(matches!(knock(door.key(), "e2").await, Err(EngineError::KeyConflict { .. })));
    assert!(matches!(knock(other_door.key(), "e2").await, Err(EngineError::KeyConflict { .. })));
    assert!(knock(gate.key(), "e2").await.unwrap());
    engine.stop().await;
}

#[tokio::test]
async fn a_start_that_was_taken_is_the_same_run_after_the_limit_or_the_schema_would_refuse_it() {
    let (before, store) = engine().await;
    let input = || of(json!({ "text": "x".repeat(10_000) }));
    let start = async |engine: &Engine, key: &str, input| {
        engine.run_named("leaf", input).await?.idempotency_key(key).await.map(|run| run.id().clone())
    };
    let run = start(&before, "k", input()).await.unwrap();
    before.stop().await;
    let limits = Limits::of_payload(5_000);
    let config = Config { limits, drain: Duration::from_millis(10), ..Config::default() };
    let after = Engine::on(store).config(config).start().await.unwrap();
    assert_eq!(start(&after, "k", input()).await.unwrap(), run);
    let other = start(&after, "k", of(json!(1))).await.unwrap_err();
    assert!(matches!(other, EngineError::KeyConflict { .. }), "{other}");
    let refused = |error: EngineError| error.to_string();
    assert!(refused(start(&after, "new", input()).await.unwrap_err()).contains("max-payload"));

    let stricter = LEAF.replace("accepts", "input: { type: integer }\naccepts");
    let stricter = read("leaf.yaml", &stricter, Format::Yaml).unwrap().definition;
    after.register(stricter, None).await.unwrap();
    assert_eq!(start(&after, "k", input()).await.unwrap(), run);
    assert!(refused(start(&after, "new", of(json!("text"))).await.unwrap_err()).contains("integer"));
    let made = start(&after, "new", of(json!(7))).await.unwrap();
    assert_eq!(start(&after, "new", of(json!(7))).await.unwrap(), made, "a refusal doesn't use up its key");
    after.stop().await;
}
