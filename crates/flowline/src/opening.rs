//! What a run is opened with, and how that becomes a message to a driver. Knows no runtime: it asks a store, and whoever
//! polls it decides where and when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flowline_core::decide::{Inherited, Standing, Start};
use flowline_core::definition::Priority;
use flowline_core::event::{EventType, Slot};
use flowline_core::ids::{check_name, digest};
use flowline_core::{Event, Input, Json, Plan, RunId, RunKey, Tenant, Time, limits};
use flowline_store::{EventQuery, NewRun, RunRow, Snapshot, Store, StoreError};

use crate::drive::{Message, Reply};
use crate::engine::EngineError;
use crate::ledger::{Entry, Outcome};
use crate::plans::Plans;
use crate::standing;

/// A run to be started.
#[derive(Debug, Clone)]
pub struct Opening {
    pub plan: Arc<Plan>,
    pub input: Json,
    pub key: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub delay: Duration,
    pub priority: Priority,
    pub retry_of: Option<RunId>,
    /// The step that is done again with all that comes after it, of a run that repeats another; empty for the beginning.
    pub from: Option<String>,
    /// What the run that this one repeats had received and completed, in the order of its log.
    pub inherited: Vec<Inherited>,
    /// Where it stood, of a machine that is tried again in place.
    pub standing: Option<Box<Standing>>,
}

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

impl Opening {
    pub fn of(plan: Arc<Plan>, input: Json) -> Opening {
        Opening {
            plan,
            input,
            key: None,
            labels: BTreeMap::new(),
            delay: Duration::ZERO,
            priority: Priority::Normal,
            retry_of: None,
            from: None,
            inherited: Vec::new(),
            standing: None,
        }
    }

    /// An ended run once more, with what it had done before the place that `from` names.
    pub async fn again(
        store: &dyn Store,
        plans: &Plans,
        run: &RunKey,
        from: RetryFrom<'_>,
    ) -> Result<Opening, EngineError> {
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
            let text = format!(
                "the events of run {} were removed by retention; start a new run instead",
                row.run_id
            );
            return Err(EngineError::Invalid(text));
        }
        let plan = plans.get(store, &row.tenant, &row.definition).await?;
        let mut opening = Opening::of(plan, Json::null());
        opening.inherit(store, run).await?;
        let machine = opening.plan.machine.is_some();
        if machine || from == RetryFrom::Start {
            opening.inherited = Vec::new();
        }
        match from {
            RetryFrom::Failure if machine => {
                opening.standing = standing::of_ended(store, &opening.plan, &snapshot).await?;
            }
            RetryFrom::Step(_) if machine => {
                let text = "a machine has no step to retry from: leave it out to handle the failed event again, or retry from the start";
                return Err(EngineError::Invalid(text.to_owned()));
            }
            _ => {}
        }
        if let RetryFrom::Step(from) = from {
            let plan = &opening.plan;
            let step = plan.step_index(from);
            let step = step
                .ok_or_else(|| EngineError::Invalid(format!("flow {:?} has no step {from:?}", plan.flow)))?;
            let again = downstream(plan, step);
            let again = |step: &str| plan.step_index(step).is_some_and(|step| again.contains(&step));
            opening.inherited.retain(|inherited| !step_of(inherited).is_some_and(again));
        }
        opening.labels = row.labels;
        opening.retry_of = Some(row.run_id);
        opening.from = match from {
            RetryFrom::Failure => None,
            RetryFrom::Step(step) => Some(step.to_owned()),
            // No step has an empty name.
            RetryFrom::Start => Some(String::new()),
        };
        Ok(opening)
    }

    /// What a run was given and what it had done.
    async fn inherit(&mut self, store: &dyn Store, run: &RunKey) -> Result<(), StoreError> {
        let mut completed: BTreeSet<Arc<str>> = BTreeSet::new();
        let kinds = vec![EventType::FlowStart, EventType::Emit, EventType::StepCompleted];
        let mut query = EventQuery { kinds, ..EventQuery::default() };
        loop {
            let page = store.events(run, query.clone()).await?;
            for event in &page.events {
                let data = event.data.clone().unwrap_or_else(Json::null);
                let attempt = event.attempt.unwrap_or(1);
                match (event.kind, &event.step_name) {
                    (EventType::FlowStart, _) => self.input = Slot::Input.open(&data),
                    (EventType::Emit, step) => {
                        let of = step.clone().map(|step| (step, attempt));
                        let (name, payload) = emit_of(&data);
                        self.inherited.push(Inherited::Emit { of, name, payload });
                    }
                    (EventType::StepCompleted, Some(step)) => {
                        completed.insert(step.clone());
                        let (step, result) = (step.clone(), Slot::Result(0).open(&data));
                        self.inherited.push(Inherited::Completed { step, attempt, result });
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
        self.inherited.retain(|inherited| step_of(inherited).is_none_or(|step| completed.contains(step)));
        Ok(())
    }

    /// The run that it opens where a key names it: one key makes one run.
    pub fn named_run(&self, tenant: &Tenant) -> Option<RunId> {
        self.key.as_ref().map(|key| RunId::from_key(tenant, &self.plan.flow, key))
    }

    /// When its first steps may start, by the store's clock.
    pub async fn at(&self, store: &dyn Store) -> Result<Option<Time>, StoreError> {
        match self.delay {
            Duration::ZERO => Ok(None),
            delay => Ok(Some(store.now().await? + delay)),
        }
    }

    /// What tells a repeated start from another one under the same key. Only a key makes a second start of the same run,
    /// so only then is there anything to compare.
    pub fn digest(&self) -> String {
        let Some(_) = &self.key else { return String::new() };
        let input = input_digest(&self.input);
        match &self.from {
            None => input,
            Some(from) => digest(format!("{input}\0{from}").as_bytes()),
        }
    }

    /// The message that starts it as `run`, with what [`Opening::at`] and [`Opening::digest`] gave.
    pub fn message<R>(self, run: RunKey, at: Option<Time>, digest: String, reply: R) -> Message<R> {
        let new = NewRun {
            flow: self.plan.flow.clone(),
            definition: self.plan.hash.clone(),
            step_count: self.plan.steps.len() as u32,
            input_digest: digest,
            labels: self.labels,
            idempotency_key: self.key,
            retry_of: self.retry_of.clone(),
            retain: self.plan.definition.retain,
        };
        let start = Start {
            input: self.input,
            at,
            priority: self.priority,
            retry_of: self.retry_of,
            inherited: self.inherited,
            standing: self.standing,
        };
        Message::Start(run, self.plan, Box::new(new), entry(Input::Start(start), reply))
    }
}

/// The message that carries an input from outside into a run.
pub fn offer<R>(run: &RunKey, input: Input, reply: R) -> Message<R> {
    Message::Offer(run.clone(), entry(input, reply))
}

/// As [`offer`], of an event whose id was made for it.
pub fn offer_fresh<R>(run: &RunKey, input: Input, reply: R) -> Message<R> {
    Message::Offer(run.clone(), entry(input, reply).with_fresh_id())
}

fn entry<R>(input: Input, reply: R) -> Entry<Reply<R>> {
    Entry::new(input, Vec::new(), None, Reply::Caller(reply))
}

/// What a start came to: whether its run was there already. `digest` is that of the opening.
pub async fn opened(
    store: &dyn Store,
    run: &RunKey,
    digest: &str,
    outcome: Outcome,
) -> Result<bool, EngineError> {
    match outcome {
        Outcome::Committed { .. } => Ok(false),
        Outcome::Exists | Outcome::Applied { .. } => {
            let row = row(store, run).await?;
            if row.input_digest == digest {
                return Ok(true);
            }
            let key = row.idempotency_key.unwrap_or_default();
            Err(EngineError::KeyConflict { key, run: row.run_id.to_string() })
        }
        other => Err(refused(other, run)),
    }
}

/// What became of an input, when it was not written.
pub fn refused(outcome: Outcome, run: &RunKey) -> EngineError {
    match outcome {
        Outcome::Refused(refusal) => EngineError::Refused(refusal),
        Outcome::NotFound => EngineError::NoSuchRun(run.run.to_string()),
        Outcome::Failed(error) => EngineError::Store(error),
        other => EngineError::Invalid(format!("the run couldn't take the input: {other:?}")),
    }
}

/// The index row of a run.
pub async fn row(store: &dyn Store, run: &RunKey) -> Result<RunRow, EngineError> {
    Ok(snapshot(store, run).await?.row)
}

async fn snapshot(store: &dyn Store, run: &RunKey) -> Result<Snapshot, EngineError> {
    let found = store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten();
    found.ok_or_else(|| EngineError::NoSuchRun(run.run.to_string()))
}

/// Whether a run could be started with this idempotency key and these labels.
pub fn check_start(key: Option<&str>, labels: &BTreeMap<String, String>) -> Result<(), EngineError> {
    let invalid = |text: String| Err(EngineError::Invalid(text));
    if let Some(key) = key
        && (key.is_empty() || key.len() > limits::KEY_BYTES)
    {
        return invalid(format!(
            "an idempotency key must have 1 to {} bytes; this one has {}",
            limits::KEY_BYTES,
            key.len()
        ));
    }
    if labels.len() > limits::LABELS {
        return invalid(format!(
            "a run can have up to {} labels; these are {}",
            limits::LABELS,
            labels.len()
        ));
    }
    for (name, value) in labels {
        check_name("label", name).map_err(|error| EngineError::Invalid(error.to_string()))?;
        if value.len() > limits::LABEL_BYTES || value.contains('\0') {
            return invalid(format!(
                "label {name:?}: a value can have up to {} bytes, without NUL",
                limits::LABEL_BYTES
            ));
        }
    }
    Ok(())
}

/// The same for inputs that are the same JSON, whatever their white space and the order of their keys.
fn input_digest(input: &Json) -> String {
    let mut value = input.value();
    // They are sorted, unless another crate of the program asks serde_json to keep their order.
    value.sort_all_objects();
    digest(value.to_string().as_bytes())
}

fn emit_of(data: &Json) -> (String, Json) {
    #[derive(serde::Deserialize)]
    struct Emit {
        name: String,
    }
    let name = data.to::<Emit>().map_or_else(|_| String::new(), |emit| emit.name);
    (name, Slot::Emit(0).open(data))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_compared_as_json_not_as_text() {
        let of = |text: &str| input_digest(&Json::parse(text).unwrap());
        assert_eq!(of(r#"{"a": 1, "b": [2, {"d": 3, "c": 4}]}"#), of(r#"{"b":[2,{"c":4,"d":3}],"a":1}"#));
        assert_eq!(of(r#""\u00e9""#), of(r#""é""#));
        assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":"1"}"#));
        assert_ne!(of("[1,2]"), of("[2,1]"));
    }
}
