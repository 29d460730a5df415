//! The engine on real stores, through its public API.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowline::core::definition::{Format, read};
use flowline::core::event::EventType;
use flowline::core::{Json, Status, Time};
use flowline::store::clock::Clock;
use flowline::store::memory::MemoryStore;
use flowline::store::{EventQuery, FeedFilter, StoreError};
use flowline::{Engine, EngineError, Flow, OnFailure, Retry, StateQuery, StateScope, Step, StepError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use crate::kit::{diamond, kinds, memory, pass};

#[derive(Debug, Serialize, Deserialize)]
struct Placed {
    cents: u32,
}

flowline::event!(Placed = "order.placed");

#[tokio::test]
async fn a_diamond_runs_every_step_once_and_joins() {
    let flow = diamond();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!({"n": 1})).await.unwrap();
    let outcome = run.wait().await.unwrap();
    assert_eq!(outcome.status, Status::Completed);
    let result = outcome.result.unwrap().value();
    assert_eq!(result, json!({"d": {"b.done": {"left": {"n": 1}}, "c.done": {"right": {"n": 1}}}}));
    let kinds = kinds(&engine, run.key()).await;
    assert_eq!(kinds.iter().filter(|(kind, _)| *kind == EventType::StepCompleted).count(), 4);
    assert_eq!(kinds.iter().filter(|(kind, _)| *kind == EventType::StepStarted).count(), 4);
    assert_eq!(kinds.last().unwrap().0, EventType::FlowCompleted);
    engine.stop().await;
}

/// A flow whose step says that it runs, then waits for a permit.
fn waiting(name: &str, began: &Arc<Notify>, permits: &Arc<Semaphore>) -> Flow {
    let (began, permits) = (began.clone(), permits.clone());
    let wait = move |_: Step, _: Value| {
        let (began, permits) = (began.clone(), permits.clone());
        async move {
            began.notify_one();
            permits.acquire().await.unwrap().forget();
            Ok(json!("done"))
        }
    };
    Flow::new(name).step("wait", wait).build().unwrap()
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_dropped_engine_stops_and_lets_go_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flowline.db");
    let (began, permits) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let child = waiting("child", &began, &permits);
    // A step of the engine that waits for another of its runs must not keep it alive.
    let text = "flow: parent\nsteps:\n  call: { start: { flow: child } }\n";
    let parent = read("parent.yaml", text, Format::Yaml).unwrap().definition;
    let open = || Engine::open(&file).flow(&child).definition(parent.clone(), None);
    let engine = open().start().await.unwrap();
    let other = engine.acting_for(engine.tenant().clone());
    let run = engine.run_named("parent", Json::null()).await.unwrap().await.unwrap().key().clone();
    began.notified().await;
    drop(engine);
    let mut watch = other.store().watch();
    assert!(
        matches!(open().start().await, Err(EngineError::Store(StoreError::InUse(_)))),
        "a handle is left"
    );
    drop(other);
    let ended = async { while watch.changed().await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the store is closed");
    let engine = open().start().await.unwrap();
    permits.add_permits(1);
    assert_eq!(engine.wait(&run).await.unwrap().status, Status::Completed);
    let page = engine.store().events(&run, EventQuery::default()).await.unwrap();
    let retry = page.events.iter().find(|event| event.kind == EventType::StepRetry).unwrap();
    assert_eq!(retry.data.as_ref().unwrap().value()["code"], "released", "given back, not lost");
    engine.stop().await;
}

#[test]
fn an_option_that_no_step_can_have_is_an_error_of_build() {
    let refused = |flow: Result<Flow, EngineError>, texts: &[&str]| {
        let error = flow.unwrap_err().to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    };
    let early = Flow::new("early").retry(Retry::default()).step("a", pass).build();
    refused(early, &["\"early\"", "`.retry()`", "before the first step"]);
    let early = Flow::new("early").queue("mail").timeout(Duration::from_secs(1)).step("a", pass).build();
    refused(early, &["`.queue()`"]);
    let both = || {
        Flow::new("both")
            .input::<Placed>()
            .accepts_named("paid")
            .step("ship", |_: Step, placed: Placed| async move { Ok(json!(placed.cents)) })
    };
    both().build().unwrap();
    refused(both().subscribes(["paid"]).build(), &["step \"ship\"", "order.placed", "`.subscribes()`"]);
    refused(both().subscribes_any(["paid"]).build(), &["`.subscribes_any()`"]);
    both().step("bill", pass).subscribes(["paid"]).build().unwrap();
}

#[tokio::test]
async fn a_flaky_step_is_retried_until_it_succeeds() {
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let flow = Flow::new("flaky")
        .step("try", move |_: Step, _: Value| {
            let n = counted.fetch_add(1, Ordering::SeqCst);
            async move { if n < 2 { Err(StepError::new("not yet")) } else { Ok(json!(n)) } }
        })
        .retry(Retry { attempts: 3, delay: Duration::from_millis(5), ..Retry::default() })
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(null)).await.unwrap();
    assert_eq!(run.wait().await.unwrap().status, Status::Completed);
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    let row = engine.row(run.key()).await.unwrap();
    assert_eq!((row.retries, row.completed_steps, row.failed_steps), (2, 1, 0));
    engine.stop().await;
}

#[tokio::test]
async fn a_step_over_its_time_fails_with_code_timeout() {
    let flow = Flow::new("slow")
        .step("sleep", |_: Step, _: Value| async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok(json!(null))
        })
        .timeout(Duration::from_millis(30))
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(null)).await.unwrap();
    let outcome = run.wait().await.unwrap();
    assert_eq!(outcome.status, Status::Failed);
    assert_eq!(outcome.error.as_deref(), Some("the attempt took longer than 30ms"));
    engine.stop().await;
}

#[tokio::test]
async fn cancel_stops_the_running_attempt() {
    let dropped = Arc::new(AtomicU32::new(0));
    struct Guard(Arc<AtomicU32>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (started, mut wait) = tokio::sync::mpsc::unbounded_channel();
    let seen = dropped.clone();
    let flow = Flow::new("long")
        .step("sleep", move |_: Step, _: Value| {
            let (guard, started) = (Guard(seen.clone()), started.clone());
            async move {
                let _guard = guard;
                started.send(()).unwrap();
                tokio::time::sleep(Duration::from_secs(60)).await;
                Ok(json!(null))
            }
        })
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(null)).await.unwrap();
    wait.recv().await.unwrap();
    assert!(engine.cancel(run.key(), Some("enough".into())).await.unwrap().changed);
    assert_eq!(run.wait().await.unwrap().status, Status::Cancelled);
    engine.stop().await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    let kinds = kinds(&engine, run.key()).await;
    assert_eq!(kinds.last().unwrap().0, EventType::FlowCancelled);
}

#[tokio::test]
async fn one_key_makes_one_run_and_another_input_is_refused() {
    let flow = diamond();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let first = engine.run(&flow, json!(1)).idempotency_key("k").await.unwrap();
    let again = engine.run(&flow, json!(1)).idempotency_key("k").await.unwrap();
    assert_eq!(first.id(), again.id());
    assert!(again.existed() && !first.existed());
    first.wait().await.unwrap();
    assert!(engine.run(&flow, json!(1)).idempotency_key("k").await.unwrap().existed());
    let error = engine.run(&flow, json!(2)).idempotency_key("k").await.unwrap_err();
    assert!(error.to_string().contains("with another input"), "{error}");
    engine.stop().await;
}

#[tokio::test]
async fn a_run_waits_for_an_event_from_outside() {
    let flow = Flow::new("approve")
        .accepts_named("approved")
        .step("ask", pass)
        .returns("asked")
        .step("go", pass)
        .subscribes(["asked", "approved"])
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(1)).await.unwrap();
    engine.until_idle(Duration::ZERO).await;
    assert_eq!(engine.row(run.key()).await.unwrap().status, Status::Waiting);
    let payload = flowline::core::Json::parse("{\"by\":\"me\"}").unwrap();
    assert!(engine.send(run.key(), "approved", payload.clone()).await.unwrap().changed);
    let outcome = run.wait().await.unwrap();
    assert_eq!(outcome.result.unwrap().value(), json!({"go": {"asked": 1, "approved": {"by": "me"}}}));
    assert!(!engine.send(run.key(), "approved", payload.clone()).await.unwrap().changed);
    assert!(engine.send(run.key(), "other", payload).await.is_err());
    engine.stop().await;
}

#[tokio::test]
async fn emit_now_triggers_at_once_and_is_kept_when_the_attempt_fails() {
    let flow = Flow::new("early")
        .step("a", |step: Step, _: Value| async move {
            step.emit_now("early", json!(step.attempt())).await?;
            Err::<Value, _>(StepError::fatal("after all"))
        })
        .emits(["early"])
        .on_failure(OnFailure::Continue)
        .step("b", pass)
        .subscribes(["early"])
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(1)).await.unwrap();
    let outcome = run.wait().await.unwrap();
    assert_eq!(outcome.status, Status::Completed);
    assert_eq!(outcome.result.unwrap().value(), json!({"b": {"early": 1}}));
    engine.stop().await;
}

#[tokio::test]
async fn state_is_written_at_once_and_read_by_later_steps() {
    let flow = Flow::new("kept")
        .step("a", |step: Step, _: Value| async move {
            step.set(StateScope::Run, "count", 41).await?;
            Ok(json!(null))
        })
        .returns("a.done")
        .step("b", |step: Step, _: Value| async move {
            let count: Option<u32> = step.get(StateScope::Run, "count").await?;
            Ok(json!(count.map(|n| n + 1)))
        })
        .subscribes(["a.done"])
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(1)).await.unwrap();
    assert_eq!(run.wait().await.unwrap().result.unwrap().value(), json!({"b": 42}));
    engine.stop().await;
}

#[tokio::test]
async fn state_of_a_named_scope_is_shared_with_the_world_outside_and_ends_with_its_time() {
    let flow = Flow::new("kept")
        .step("a", |step: Step, _: Value| async move {
            let status: Option<String> = step.get("orders", "order-1").await?;
            step.set_for("orders", "order-2", "new", Duration::from_secs(60)).await?;
            step.set_for("orders", "order-3", "gone soon", Duration::from_millis(20)).await?;
            Ok(json!(status))
        })
        .build()
        .unwrap();
    let clock = Clock::manual(Time::from_millis(1_000_000));
    let engine = Engine::on(Arc::new(MemoryStore::new(clock.clone()))).flow(&flow).start().await.unwrap();
    let orders = engine.state("orders").unwrap();
    orders.set("order-1", "paid").await.unwrap();
    let run = engine.run(&flow, json!(1)).await.unwrap();
    assert_eq!(run.wait().await.unwrap().result.unwrap().value(), json!({"a": "paid"}));
    clock.advance(Duration::from_millis(20));
    assert_eq!(orders.get::<String>("order-3").await.unwrap(), None);
    let page = orders.list(StateQuery::first(10)).await.unwrap();
    let keys: Vec<(&str, Option<Time>)> =
        page.values.iter().map(|value| (value.key.as_str(), value.expires)).collect();
    assert_eq!(keys, [("order-1", None), ("order-2", Some(Time::from_millis(1_060_000)))]);
    assert!(orders.delete("order-1").await.unwrap());
    assert!(!orders.delete("order-1").await.unwrap());
    let page = engine.store().events(run.key(), EventQuery::default()).await.unwrap();
    let logged = page.events.iter().filter(|event| event.kind == EventType::State);
    let logged: Vec<Value> = logged.map(|event| event.data.as_ref().unwrap().value()).collect();
    assert_eq!(logged[0], json!({"operation": "get", "scope": "orders", "key": "order-1"}));
    let set =
        json!({"operation": "set", "scope": "orders", "key": "order-2", "value": "new", "ttlMs": 60_000});
    assert_eq!(logged[1], set);
    engine.stop().await;
}

#[tokio::test]
async fn the_state_of_a_run_is_read_from_outside_and_never_written() {
    let flow = Flow::new("kept")
        .step("a", |step: Step, _: Value| async move {
            step.set("run", "k", 1).await?;
            Ok(json!(null))
        })
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(1)).await.unwrap();
    run.wait().await.unwrap();
    let state = engine.state(&format!("run:{}", run.id())).unwrap();
    assert_eq!(state.get::<u32>("k").await.unwrap(), Some(1));
    for refused in [state.set("k", 2).await.err(), state.delete("k").await.err()] {
        assert!(refused.unwrap().to_string().contains("only the steps of run"));
    }
    let unknown = engine.state("flow:unknown").unwrap().set("k", 1).await;
    assert!(matches!(unknown, Err(EngineError::NoSuchFlow(_))), "{unknown:?}");
    assert!(matches!(engine.state("flow"), Err(EngineError::Invalid(_))));
    let kept = engine.state("tenant").unwrap();
    for key in ["", "nul \0", &"x".repeat(257)] {
        assert!(matches!(kept.set(key, 1).await, Err(EngineError::Invalid(_))), "{key:?}");
    }
    engine.stop().await;
}

#[tokio::test]
async fn pause_lets_running_steps_finish_and_holds_the_rest() {
    let (started, mut wait) = tokio::sync::mpsc::unbounded_channel();
    let gate = Arc::new(tokio::sync::Notify::new());
    let open = gate.clone();
    let flow = Flow::new("paused")
        .step("a", move |_: Step, _: Value| {
            let (started, gate) = (started.clone(), gate.clone());
            async move {
                started.send(()).unwrap();
                gate.notified().await;
                Ok(json!(1))
            }
        })
        .returns("a.done")
        .step("b", pass)
        .subscribes(["a.done"])
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(1)).await.unwrap();
    wait.recv().await.unwrap();
    engine.pause(run.key()).await.unwrap();
    open.notify_one();
    engine.until_idle(Duration::ZERO).await;
    let row = engine.row(run.key()).await.unwrap();
    assert_eq!((row.status, row.completed_steps), (Status::Paused, 1));
    engine.resume(run.key()).await.unwrap();
    assert_eq!(run.wait().await.unwrap().status, Status::Completed);
    engine.stop().await;
}

#[tokio::test]
async fn retry_makes_a_new_run_that_inherits_what_was_completed() {
    let broken = Arc::new(AtomicU32::new(1));
    let (switch, calls) = (broken.clone(), Arc::new(AtomicU32::new(0)));
    let counted = calls.clone();
    let flow = Flow::new("again")
        .step("a", move |_: Step, input: Value| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok(input) }
        })
        .returns("a.done")
        .step("b", move |_: Step, input: Value| {
            let broken = switch.load(Ordering::SeqCst) == 1;
            async move { if broken { Err(StepError::fatal("no")) } else { Ok(input) } }
        })
        .subscribes(["a.done"])
        .build()
        .unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(7)).await.unwrap();
    assert_eq!(run.wait().await.unwrap().status, Status::Failed);
    broken.store(0, Ordering::SeqCst);
    let again = engine.retry(run.key(), None).await.unwrap();
    assert_ne!(again.id(), run.id());
    let outcome = again.wait().await.unwrap();
    assert_eq!(outcome.result.unwrap().value(), json!({"b": {"a.done": 7}}));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(engine.row(again.key()).await.unwrap().retry_of.as_ref(), Some(run.id()));
    let whole = engine.retry(run.key(), Some("a")).await.unwrap();
    whole.wait().await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    engine.stop().await;
}

#[tokio::test]
async fn a_thousand_runs_over_few_slots_all_complete() {
    let flow = diamond();
    let engine = Engine::on(memory()).slots(8).flow(&flow).start().await.unwrap();
    let mut runs = Vec::new();
    for n in 0..1000 {
        runs.push(engine.run(&flow, json!(n)).await.unwrap());
    }
    for run in &runs {
        assert_eq!(run.wait().await.unwrap().status, Status::Completed);
    }
    let mut feed =
        engine.subscribe(FeedFilter { kinds: vec![EventType::FlowCompleted], ..FeedFilter::default() }, "");
    for _ in 0..1000 {
        feed.next().await.unwrap();
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_delayed_start_waits_and_does_not_start_early() {
    let flow = diamond();
    let store = memory();
    let engine = Engine::on(store.clone()).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(1)).delay(Duration::from_millis(80)).await.unwrap();
    assert_eq!(engine.row(run.key()).await.unwrap().status, Status::Waiting);
    assert_eq!(run.wait().await.unwrap().status, Status::Completed);
    let page = engine.store().events(run.key(), EventQuery::default()).await.unwrap();
    let start = page.events[0].data.as_ref().unwrap().value();
    let due = Time::parse(start["startAt"].as_str().unwrap()).unwrap();
    assert!(due > page.events[0].ts);
    assert!(
        page.events[1].kind == EventType::StepStarted && page.events[1].ts >= due,
        "{:?}",
        page.events[1]
    );
    engine.stop().await;
}

/// Writing state takes longer than the pause after which lines are flushed: both must get done.
#[tokio::test]
async fn a_step_that_writes_while_its_lines_are_flushed_goes_on() {
    let flow = Flow::new("busy")
        .step("write", |step: Step, _: Value| async move {
            for n in 0..300 {
                step.log(flowline::Level::Info, n);
                step.set(StateScope::Run, "n", n).await?;
                step.emit_now("early", n).await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(json!(null))
        })
        .emits(["early"])
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(folder.path().join("f.db")).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, json!(null)).await.unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(60), run.wait()).await.unwrap().unwrap();
    assert_eq!(outcome.status, Status::Completed);
    engine.stop().await;
}
