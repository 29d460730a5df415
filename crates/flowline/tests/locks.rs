//! Named locks through the public API: from an engine and from its steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowline::core::{Status, Tenant};
use flowline::{Engine, Flow, LockError, Step, StepError};
use serde_json::{Value, json};

use crate::kit::memory;

#[tokio::test]
async fn a_lock_has_one_holder_among_the_engines_of_a_store_and_each_tenant_its_own() {
    let store = memory();
    let one = Engine::on(store.clone()).start().await.unwrap();
    let other = Engine::on(store).start().await.unwrap();
    let held = one.lock("nightly").owner("me").try_acquire().await.unwrap();
    let refused = other.lock("nightly").try_acquire().await.unwrap_err();
    assert!(matches!(&refused, LockError::Held { owner, .. } if owner == "me"), "{refused}");
    assert!(refused.to_string().starts_with("lock \"nightly\" is held by me until 20"), "{refused}");
    let elsewhere = other.acting_for(Tenant::new("elsewhere").unwrap());
    let theirs = elsewhere.lock("nightly").try_acquire().await.unwrap();
    assert_eq!(elsewhere.locks().await.unwrap().len(), 1);
    assert_eq!(one.locks().await.unwrap()[0].owner, "me");
    assert!(held.release().await.unwrap());
    let next = other.lock("nightly").try_acquire().await.unwrap();
    assert!(next.fence() > theirs.fence());
    assert_eq!(one.locks().await.unwrap()[0].owner, &*other.config().instance, "an engine by default");
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_lock_that_makes_no_sense_is_refused_with_the_rule() {
    let engine = Engine::on(memory()).start().await.unwrap();
    for name in ["", "a b", "flowline/retain"] {
        let error = engine.lock(name).try_acquire().await.unwrap_err();
        assert!(error.to_string().contains("names are letters, digits"), "{name:?}: {error}");
    }
    for ttl in [Duration::ZERO, Duration::from_millis(999), Duration::from_secs(86_401)] {
        let error = engine.lock("x").ttl(ttl).try_acquire().await.unwrap_err();
        assert!(error.to_string().contains("1 s to 24 h"), "{error}");
    }
    assert!(engine.lock("x").owner("").try_acquire().await.is_err());
    engine.stop().await;
}

#[tokio::test]
async fn steps_that_share_a_lock_take_turns_and_leave_it_free() {
    const RUNS: u32 = 5;
    let [arrived, inside, most] = [(); 3].map(|()| Arc::new(AtomicU32::new(0)));
    let (came, counted, top) = (arrived.clone(), inside.clone(), most.clone());
    let press = move |step: Step, _: Value| {
        let (arrived, inside, most) = (came.clone(), counted.clone(), top.clone());
        async move {
            arrived.fetch_add(1, Ordering::SeqCst);
            let lock = step.lock("press").acquire().await?;
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Nobody leaves before all have asked.
            while arrived.load(Ordering::SeqCst) < RUNS {
                tokio::task::yield_now().await;
            }
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            // Dropped, not released.
            Ok::<_, StepError>(json!(lock.fence()))
        }
    };
    let flow = Flow::new("print").step("press", press).build().unwrap();
    let engine = Engine::on(memory()).flow(&flow).start().await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(engine.run(&flow, json!({})).await.unwrap());
    }
    let mut fences = std::collections::BTreeSet::new();
    for run in runs {
        let outcome = run.wait().await.unwrap();
        assert_eq!(outcome.status, Status::Completed, "{outcome:?}");
        fences.insert(outcome.result.unwrap().get().to_owned());
    }
    assert_eq!((most.load(Ordering::SeqCst), fences.len()), (1, RUNS as usize));
    engine.lock("press").acquire_within(Duration::from_secs(30)).await.expect("the last one gave it back");
    engine.stop().await;
}
