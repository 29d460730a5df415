//! What many of the tests begin with.

use std::sync::Arc;

use flowline::core::event::EventType;
use flowline::core::{RunKey, Time};
use flowline::store::EventQuery;
use flowline::store::clock::Clock;
use flowline::store::memory::MemoryStore;
use flowline::{Engine, Flow, Step, StepError};
use serde_json::Value;

/// A store whose clock is that of the machine.
pub fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Clock::system()))
}

/// A store whose clock stands until it is turned.
pub fn standing() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Clock::manual(Time::from_millis(1_000_000))))
}

/// A step whose result is its input.
pub async fn pass(_: Step, input: Value) -> Result<Value, StepError> {
    Ok(input)
}

/// The log of a run: what happened, and to which step.
pub async fn kinds(engine: &Engine, run: &RunKey) -> Vec<(EventType, Option<String>)> {
    let page = engine.store().events(run, EventQuery::default()).await.unwrap();
    page.events.iter().map(|e| (e.kind, e.step_name.as_deref().map(str::to_owned))).collect()
}

/// Four steps: the last waits for both of those in the middle.
pub fn diamond() -> Flow {
    Flow::new("diamond")
        .step("a", |step: Step, input: Value| async move {
            step.emit("left", &input)?;
            step.emit("right", &input)?;
            Ok(input)
        })
        .emits(["left", "right"])
        .step("b", pass)
        .subscribes(["left"])
        .returns("b.done")
        .step("c", pass)
        .subscribes(["right"])
        .returns("c.done")
        .step("d", pass)
        .subscribes(["b.done", "c.done"])
        .build()
        .unwrap()
}
