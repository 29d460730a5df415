//! What clients do with runs: start, wait, send, cancel, pause, resume, finish by hand, retry.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flowline_core::decide::{Finish, Inherited, Start};
use flowline_core::definition::Priority;
use flowline_core::event::EventType;
use flowline_core::ids::{check_name, digest};
use flowline_core::{Event, Input, Json, Plan, RunId, RunKey, Status, limits};
use flowline_store::{EventQuery, NewRun, RunRow};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::drive::{Ended, Message, Reply};
use crate::engine::{Engine, EngineError};
use crate::flow::Flow;
use crate::ledger::{Entry, Outcome};

/// How often a run that this engine does not work on is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A run to be started. Await it.
#[derive(Debug)]
pub struct StartRequest {
    engine: Engine,
    plan: Result<Arc<Plan>, String>,
    input: Result<Json, String>,
    key: Option<String>,
    labels: BTreeMap<String, String>,
    delay: Duration,
    priority: Priority,
    retry_of: Option<RunId>,
    inherited: Vec<Inherited>,
    received: Vec<(String, Json)>,
}

/// A run that was started.
#[derive(Debug)]
pub struct RunHandle {
    engine: Engine,
    key: RunKey,
    existed: bool,
    /// Told when this engine ends the run. Taken by the first to wait.
    ended: Mutex<Option<oneshot::Receiver<Ended>>>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct RunOutcome {
    pub status: Status,
    /// Of a completed run.
    pub result: Option<Json>,
    /// Of a failed run.
    pub error: Option<String>,
}

impl RunHandle {
    pub fn id(&self) -> &RunId {
        &self.key.run
    }

    pub fn key(&self) -> &RunKey {
        &self.key
    }

    /// Whether the idempotency key named a run that was there already.
    pub fn existed(&self) -> bool {
        self.existed
    }

    /// Waits for the end of the run.
    pub async fn wait(&self) -> Result<RunOutcome, EngineError> {
        let told = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        match told {
            Some(told) => self.engine.wait_for(&self.key, told).await,
            None => self.engine.wait(&self.key).await,
        }
    }
}

impl StartRequest {
    /// One key makes one run: started again with the same input it gives the same run, with another it is refused.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> StartRequest {
        self.key = Some(key.into());
        self
    }

    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> StartRequest {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Starts the first steps no sooner than this from now.
    pub fn delay(mut self, delay: Duration) -> StartRequest {
        self.delay = delay;
        self
    }

    pub fn priority(mut self, priority: Priority) -> StartRequest {
        self.priority = priority;
        self
    }

    async fn send(self) -> Result<RunHandle, EngineError> {
        check_start(self.key.as_deref(), &self.labels)?;
        let plan = self.plan.map_err(EngineError::NoSuchFlow)?;
        let input = self.input.map_err(EngineError::Invalid)?;
        let shared = &self.engine.shared;
        let tenant = shared.tenant.clone();
        let run = match &self.key {
            Some(key) => RunId::from_key(&tenant, &plan.flow, key),
            None => RunId::new(&uuid::Uuid::now_v7().to_string())
                .map_err(|e| EngineError::Invalid(e.to_string()))?,
        };
        let at = match self.delay {
            Duration::ZERO => None,
            delay => Some(shared.store.now().await? + delay),
        };
        let new = NewRun {
            flow: plan.flow.clone(),
            definition: plan.hash.clone(),
            step_count: plan.steps.len() as u32,
            labels: self.labels,
            // Only a key makes a second start of the same run, so only then is there anything to compare.
            input_digest: self.key.as_ref().map_or_else(String::new, |_| input_digest(&input)),
            idempotency_key: self.key.clone(),
            retry_of: self.retry_of.clone(),
        };
        let wanted = new.input_digest.clone();
        let start = Start {
            input,
            at,
            priority: self.priority,
            retry_of: self.retry_of,
            inherited: self.inherited,
            received: self.received,
        };
        let key = RunKey::new(tenant, run);
        let (reply, answer) = oneshot::channel();
        let entry = Entry {
            input: Input::Start(start),
            lines: Vec::new(),
            lease: None,
            reply: Reply::Outcome(reply),
        };
        let (tell, told) = oneshot::channel();
        let message = Message::Start(key.clone(), plan, Box::new(new), entry, tell);
        shared.inbox.send(message).map_err(|_| EngineError::Stopped)?;
        let existed = match answer.await.map_err(|_| EngineError::Stopped)? {
            Outcome::Committed { .. } => false,
            Outcome::Exists | Outcome::Applied { .. } => true,
            other => return Err(refused(other, &key)),
        };
        if existed {
            let row = self.engine.row(&key).await?;
            if row.input_digest != wanted {
                let key = self.key.unwrap_or_default();
                return Err(EngineError::KeyConflict { key, run: row.run_id.to_string() });
            }
        }
        // A run that was there may have ended before anybody listened.
        let ended = Mutex::new((!existed).then_some(told));
        Ok(RunHandle { engine: self.engine, key, existed, ended })
    }
}

/// Whether a run could be started with this idempotency key and these labels.
pub fn check_start(key: Option<&str>, labels: &BTreeMap<String, String>) -> Result<(), EngineError> {
    let invalid = |text: String| Err(EngineError::Invalid(text));
    if let Some(key) = key
        && (key.is_empty() || key.len() > limits::KEY_BYTES)
    {
        return invalid(format!(
            "an idempotency key has 1 to {} bytes; this one has {}",
            limits::KEY_BYTES,
            key.len()
        ));
    }
    if labels.len() > limits::LABELS {
        return invalid(format!("a run takes up to {} labels; these are {}", limits::LABELS, labels.len()));
    }
    for (name, value) in labels {
        check_name("label", name).map_err(|error| EngineError::Invalid(error.to_string()))?;
        if value.len() > limits::LABEL_BYTES || value.contains('\0') {
            return invalid(format!(
                "label {name:?}: a value has up to {} bytes and no NUL",
                limits::LABEL_BYTES
            ));
        }
    }
    Ok(())
}

impl IntoFuture for StartRequest {
    type Output = Result<RunHandle, EngineError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// The same for inputs that are the same JSON, whatever their white space and the order of their keys.
fn input_digest(input: &Json) -> String {
    let mut value = input.value();
    // They are sorted, unless another crate of the program asks serde_json to keep their order.
    value.sort_all_objects();
    digest(value.to_string().as_bytes())
}

/// What became of an input, when it was not written.
fn refused(outcome: Outcome, run: &RunKey) -> EngineError {
    match outcome {
        Outcome::Refused(refusal) => EngineError::Refused(refusal),
        Outcome::NotFound => EngineError::NoSuchRun(run.run.to_string()),
        Outcome::Failed(error) => EngineError::Store(error),
        other => EngineError::Invalid(format!("the run could not take the input: {other:?}")),
    }
}

/// Whether an input changed its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// False where the run had taken the same input before.
    pub changed: bool,
    pub status: Status,
}

impl Engine {
    /// Starts a run of a flow that was registered with this engine.
    pub fn run(&self, flow: &Flow, input: impl Serialize) -> StartRequest {
        let plan = self.shared.plans.cached(flow.hash()).ok_or_else(|| flow.name().to_owned());
        self.request(plan, Json::of(&input).map_err(|error| format!("the input: {error}")))
    }

    /// Starts a run of a plan.
    pub fn run_plan(&self, plan: Arc<Plan>, input: Json) -> StartRequest {
        self.request(Ok(plan), Ok(input))
    }

    /// Starts a run of the latest definition of a flow.
    pub async fn run_named(&self, flow: &str, input: Json) -> Result<StartRequest, EngineError> {
        let stored = self.shared.store.latest(&self.shared.tenant, flow).await?;
        let hash = stored.ok_or_else(|| EngineError::NoSuchFlow(flow.to_owned()))?.hash;
        let plan = self.shared.plans.get(&*self.shared.store, &self.shared.tenant, &hash).await?;
        Ok(self.request(Ok(plan), Ok(input)))
    }

    fn request(&self, plan: Result<Arc<Plan>, String>, input: Result<Json, String>) -> StartRequest {
        StartRequest {
            engine: self.clone(),
            plan,
            input,
            key: None,
            labels: BTreeMap::new(),
            delay: Duration::ZERO,
            priority: Priority::Normal,
            retry_of: None,
            inherited: Vec::new(),
            received: Vec::new(),
        }
    }

    pub fn key(&self, run: &RunId) -> RunKey {
        RunKey::new(self.shared.tenant.clone(), run.clone())
    }

    /// The index row of a run.
    pub async fn row(&self, run: &RunKey) -> Result<RunRow, EngineError> {
        let found = self.shared.store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten();
        found.map(|snapshot| snapshot.row).ok_or_else(|| EngineError::NoSuchRun(run.run.to_string()))
    }

    /// Waits for the end of a run, whoever works on it.
    pub async fn wait(&self, run: &RunKey) -> Result<RunOutcome, EngineError> {
        let (tell, told) = oneshot::channel();
        self.shared.inbox.send(Message::Await(run.clone(), tell)).map_err(|_| EngineError::Stopped)?;
        let row = self.row(run).await?;
        if row.status.is_terminal() {
            return self.outcome(run, &row).await;
        }
        self.wait_for(run, told).await
    }

    async fn wait_for(
        &self,
        run: &RunKey,
        mut told: oneshot::Receiver<Ended>,
    ) -> Result<RunOutcome, EngineError> {
        loop {
            tokio::select! {
                ended = &mut told => {
                    let Ended { status, data } = ended.map_err(|_| EngineError::Stopped)?;
                    return Ok(outcome(status, data.as_ref()));
                }
                () = tokio::time::sleep(LOOK) => {}
            }
            let row = self.row(run).await?;
            if row.status.is_terminal() {
                return self.outcome(run, &row).await;
            }
        }
    }

    /// How an ended run ended.
    pub async fn outcome(&self, run: &RunKey, row: &RunRow) -> Result<RunOutcome, EngineError> {
        let query = EventQuery { after: row.events.saturating_sub(1), ..EventQuery::default() };
        let last = self.shared.store.events(run, query).await?.events.pop();
        Ok(outcome(row.status, last.and_then(|event| event.data).as_ref()))
    }

    /// Carries an input into a run.
    pub async fn input(&self, run: &RunKey, input: Input) -> Result<Applied, EngineError> {
        let (reply, answer) = oneshot::channel();
        let entry = Entry { input, lines: Vec::new(), lease: None, reply: Reply::Outcome(reply) };
        self.shared.inbox.send(Message::Offer(run.clone(), entry)).map_err(|_| EngineError::Stopped)?;
        match answer.await.map_err(|_| EngineError::Stopped)? {
            Outcome::Committed { status } => Ok(Applied { changed: true, status }),
            Outcome::Applied { status } => Ok(Applied { changed: false, status }),
            other => Err(refused(other, run)),
        }
    }

    /// Sends an event from outside into a run.
    pub async fn send(&self, run: &RunKey, event: &str, payload: Json) -> Result<Applied, EngineError> {
        let event_id = Some(uuid::Uuid::now_v7().to_string());
        self.input(run, Input::External { name: event.to_owned(), payload, event_id }).await
    }

    pub async fn cancel(&self, run: &RunKey, reason: Option<String>) -> Result<Applied, EngineError> {
        self.input(run, Input::Cancel { reason }).await
    }

    /// Holds what waits; what runs goes on to its end.
    pub async fn pause(&self, run: &RunKey) -> Result<Applied, EngineError> {
        self.input(run, Input::Pause).await
    }

    pub async fn resume(&self, run: &RunKey) -> Result<Applied, EngineError> {
        self.input(run, Input::Resume).await
    }

    /// Ends a run by hand.
    pub async fn finish(&self, run: &RunKey, finish: Finish) -> Result<Applied, EngineError> {
        self.input(run, Input::Finish(finish)).await
    }

    /// Repeats an ended run as a new one, with the steps that it had completed and their emits. With `from`, that step
    /// and everything after it are done again too.
    pub async fn retry(&self, run: &RunKey, from: Option<&str>) -> Result<RunHandle, EngineError> {
        let row = self.row(run).await?;
        if !row.status.is_terminal() {
            let text = format!(
                "run {} is {}; only an ended run can be retried (cancel it first)",
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
        let plan = self.shared.plans.get(&*self.shared.store, &row.tenant, &row.definition).await?;
        let History { input, mut inherited, received } = self.history(run).await?;
        if let Some(from) = from {
            let step = plan.step_index(from);
            let step = step
                .ok_or_else(|| EngineError::Invalid(format!("flow {:?} has no step {from:?}", plan.flow)))?;
            let again = downstream(&plan, step);
            inherited.retain(|done| plan.step_index(&done.step).is_none_or(|done| !again.contains(&done)));
        }
        let mut request = self.request(Ok(plan), Ok(input));
        request.labels = row.labels;
        request.retry_of = Some(row.run_id);
        request.inherited = inherited;
        request.received = received;
        request.await
    }

    /// What a run was given and what it had done.
    async fn history(&self, run: &RunKey) -> Result<History, EngineError> {
        let mut history = History { input: Json::null(), inherited: Vec::new(), received: Vec::new() };
        let mut emits: BTreeMap<Arc<str>, Vec<(String, Json)>> = BTreeMap::new();
        let kinds = vec![EventType::FlowStart, EventType::Emit, EventType::StepCompleted];
        let mut query = EventQuery { kinds, ..EventQuery::default() };
        loop {
            let page = self.shared.store.events(run, query.clone()).await?;
            for event in &page.events {
                let data = event.data.clone().unwrap_or_else(Json::null);
                match (event.kind, &event.step_name) {
                    (EventType::FlowStart, _) => {
                        history.input = flowline_core::event::Slot::Input.open(&data)
                    }
                    (EventType::Emit, None) => history.received.push(emit_of(&data)),
                    (EventType::Emit, Some(step)) => {
                        emits.entry(step.clone()).or_default().push(emit_of(&data))
                    }
                    (EventType::StepCompleted, Some(step)) => history.inherited.push(Inherited {
                        step: step.clone(),
                        attempt: event.attempt.unwrap_or(1),
                        result: flowline_core::event::Slot::Result(0).open(&data),
                        emits: emits.remove(step).unwrap_or_default(),
                    }),
                    _ => {}
                }
            }
            match page.events.last() {
                Some(Event { seq, .. }) if page.more => query.after = *seq,
                _ => return Ok(history),
            }
        }
    }
}

struct History {
    input: Json,
    /// Completed steps in order, with what each emitted.
    inherited: Vec<Inherited>,
    /// Events from outside.
    received: Vec<(String, Json)>,
}

fn emit_of(data: &Json) -> (String, Json) {
    #[derive(serde::Deserialize)]
    struct Emit {
        name: String,
        payload: Json,
    }
    data.to::<Emit>().map_or_else(|_| (String::new(), Json::null()), |emit| (emit.name, emit.payload))
}

/// A step and every step that could follow from it.
fn downstream(plan: &Plan, from: u32) -> Vec<u32> {
    let mut found = vec![from];
    let mut at = 0;
    while at < found.len() {
        let step = plan.step(found[at]);
        let listeners = step.emits.keys().flat_map(|&event| &plan.events[event as usize].listeners);
        let next: Vec<u32> = step.followers.iter().chain(listeners).copied().collect();
        found.extend(
            next.into_iter().filter(|step| !found.contains(step)).collect::<std::collections::BTreeSet<_>>(),
        );
        at += 1;
    }
    found
}

fn outcome(status: Status, data: Option<&Json>) -> RunOutcome {
    #[derive(serde::Deserialize, Default)]
    struct Data {
        result: Option<Json>,
        error: Option<String>,
    }
    let Data { result, error } = data.and_then(|data| data.to().ok()).unwrap_or_default();
    RunOutcome { status, result, error }
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
