//! Retries an ended run as a new run that keeps what the old one had done. Only the start request depends on a runtime.

use std::collections::BTreeSet;
use std::sync::Arc;

use flowline_core::decide::{Inherited, Start};
use flowline_core::event::{EventType, PayloadSlot};
use flowline_core::{Event, Json, Plan, RunKey};
use flowline_store::{EventQuery, Store, StoreError};

use crate::engine::{Engine, EngineError};
use crate::operate::{RunHandle, snapshot};
use crate::plans::Plans;
use crate::standing;
use crate::start::StartRequest;

/// Where a run that is repeated is taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryFrom<'a> {
    /// What failed: a flow does what it had not completed, a machine applies the event that failed again.
    Failure,
    /// This step of a flow, with all that comes after it.
    Step(&'a str),
    /// The beginning, with the same input.
    Start,
}

impl<'a> From<Option<&'a str>> for RetryFrom<'a> {
    fn from(step: Option<&'a str>) -> RetryFrom<'a> {
        step.map_or(RetryFrom::Failure, RetryFrom::Step)
    }
}

impl Engine {
    /// Repeats an ended run as a new one. A flow keeps the steps that it had completed and their emits; with `from`, that step
    /// and everything after it are done again too. A machine goes back to where it stood before the event that failed, and
    /// applies that event again.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine, run: flowline::RunHandle) -> Result<(), Box<dyn std::error::Error>> {
    /// let again = engine.retry(run.key(), None).await?; // or Some("ship"), to do that step again as well
    /// println!("{:?}", again.wait().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn retry(&self, run: &RunKey, from: Option<&str>) -> Result<RunHandle, EngineError> {
        self.again(run, from.into()).await?.await
    }

    /// Repeats an ended run as a new one from its beginning, with the same input.
    pub async fn retry_from_start(&self, run: &RunKey) -> Result<RunHandle, EngineError> {
        self.again(run, RetryFrom::Start).await?.await
    }

    /// Like [`Engine::retry`], as a request to await. Give it a key, and it happens only once.
    pub async fn again(&self, run: &RunKey, from: RetryFrom<'_>) -> Result<StartRequest, EngineError> {
        let start = again(&*self.shared.store, &self.shared.plans, run, from).await?;
        let from = match from {
            RetryFrom::Failure => None,
            RetryFrom::Step(step) => Some(step.to_owned()),
            // No step has an empty name.
            RetryFrom::Start => Some(String::new()),
        };
        Ok(self.request(Ok(start), from))
    }
}

/// An ended run once more, with what it had done before the place that `from` names.
pub async fn again(
    store: &dyn Store,
    plans: &Plans,
    run: &RunKey,
    from: RetryFrom<'_>,
) -> Result<(Arc<Plan>, Start), EngineError> {
    let snapshot = snapshot(store, run).await?;
    let row = snapshot.row.clone();
    if !row.status.is_terminal() {
        let text = format!(
            "run {} is {}; only a run that has ended can be retried (cancel it first)",
            row.run_id, row.status
        );
        return Err(EngineError::Invalid(text));
    }
    if row.events_trimmed {
        let text =
            format!("the events of run {} were removed by retention; start a new run instead", row.run_id);
        return Err(EngineError::Invalid(text));
    }
    let plan = plans.get(store, &row.tenant, &row.definition).await?;
    let mut start = inherit(store, run).await?;
    let machine = plan.machine.is_some();
    if machine || from == RetryFrom::Start {
        start.inherited = Vec::new();
    }
    match from {
        RetryFrom::Failure if machine => {
            start.standing = standing::of_ended(store, &plan, &snapshot).await?;
        }
        RetryFrom::Step(_) if machine => {
            let text = "a machine has no step to retry from: leave it out to handle the failed event again, or retry from the start";
            return Err(EngineError::Invalid(text.to_owned()));
        }
        _ => {}
    }
    if let RetryFrom::Step(from) = from {
        let step = plan.step_index(from);
        let step =
            step.ok_or_else(|| EngineError::Invalid(format!("flow {:?} has no step {from:?}", plan.flow)))?;
        let again = downstream(&plan, step);
        let again = |step: &str| plan.step_index(step).is_some_and(|step| again.contains(&step));
        start.inherited.retain(|inherited| !step_of(inherited).is_some_and(again));
    }
    start.labels = row.labels;
    start.retry_of = Some(row.run_id);
    Ok((plan, start))
}

/// A run's input, and what it had done.
async fn inherit(store: &dyn Store, run: &RunKey) -> Result<Start, StoreError> {
    let mut start = Start::new(Json::null());
    let mut completed: BTreeSet<Arc<str>> = BTreeSet::new();
    let kinds = vec![EventType::FlowStart, EventType::Emit, EventType::StepCompleted];
    let mut query = EventQuery { kinds, ..EventQuery::default() };
    loop {
        let page = store.events(run, query.clone()).await?;
        for event in &page.events {
            let data = event.data.clone().unwrap_or_else(Json::null);
            let attempt = event.attempt.unwrap_or(1);
            match (event.kind, &event.step_name) {
                (EventType::FlowStart, _) => start.input = PayloadSlot::Input.open(&data),
                (EventType::Emit, step) => {
                    let of = step.clone().map(|step| (step, attempt));
                    let (name, payload) = emit_of(&data);
                    start.inherited.push(Inherited::Emit { of, name, payload });
                }
                (EventType::StepCompleted, Some(step)) => {
                    completed.insert(step.clone());
                    let (step, result) = (step.clone(), PayloadSlot::Result(0).open(&data));
                    start.inherited.push(Inherited::Completed { step, attempt, result });
                }
                _ => {}
            }
        }
        match page.events.last() {
            Some(Event { seq, .. }) if page.more => query.after = *seq,
            _ => break,
        }
    }
    // What a step published before it failed is published again when it is done again.
    start.inherited.retain(|inherited| step_of(inherited).is_none_or(|step| completed.contains(step)));
    Ok(start)
}

fn emit_of(data: &Json) -> (String, Json) {
    #[derive(serde::Deserialize)]
    struct Emit {
        name: String,
    }
    let name = data.to::<Emit>().map_or_else(|_| String::new(), |emit| emit.name);
    (name, PayloadSlot::Emit(0).open(data))
}

/// The step that an inherited event is of; none of one from outside.
fn step_of(inherited: &Inherited) -> Option<&str> {
    match inherited {
        Inherited::Emit { of, .. } => of.as_ref().map(|(step, _)| &**step),
        Inherited::Completed { step, .. } => Some(step),
    }
}

/// A step and every step that could follow from it.
fn downstream(plan: &Plan, from: u32) -> Vec<u32> {
    let mut found = vec![from];
    let mut at = 0;
    while at < found.len() {
        let step = plan.step(found[at]);
        let listeners = step.emits.keys().flat_map(|&event| &plan.events[event as usize].listeners);
        let next: Vec<u32> = step.followers.iter().chain(listeners).copied().collect();
        found.extend(next.into_iter().filter(|step| !found.contains(step)).collect::<BTreeSet<_>>());
        at += 1;
    }
    found
}
