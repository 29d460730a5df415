//! Starts runs. Only [`StartRequest::send`] depends on a runtime.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flowline_core::decide::Start;
use flowline_core::definition::Priority;
use flowline_core::ids::{check_name, digest, is_own_key};
use flowline_core::{Json, Plan, RunId, RunKey, Tenant, limits};
use flowline_store::{RunRow, Store};
use serde::Serialize;
use tokio::sync::oneshot;

use crate::drive::DriverMessage;
use crate::drive::host::InputCaller;
use crate::engine::{Engine, EngineError};
use crate::flow::Flow;
use crate::ledger::InputOutcome;
use crate::operate::{RunHandle, refused, row};
use crate::registry;

/// The label of a run that a step started: the run of that step.
pub(crate) const PARENT: &str = "parent";

/// A run to start. Await it.
#[derive(Debug)]
pub struct StartRequest {
    engine: Engine,
    start: Result<(Arc<Plan>, Start), EngineError>,
    delay: Duration,
    /// The step that a retry begins at; empty for the beginning. Retries under one key must agree on it.
    from: Option<String>,
    whose: KeyOwner,
}

/// Who chose an idempotency key. The keys of both may be the same text and still stand for different things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum KeyOwner {
    #[default]
    User,
    Engine,
}

impl StartRequest {
    /// Starts one run per key: the same key and input give the same run, another input is refused.
    pub fn idempotency_key(self, key: impl Into<String>) -> StartRequest {
        let whose = KeyOwner::User;
        StartRequest { whose, ..self.with(|start| start.idempotency_key = Some(key.into())) }
    }

    /// A key that no user's can be taken for: `redrive:RUN`, `retry:RUN`, `step:…`. Users don't choose any part of it.
    #[doc(hidden)]
    pub fn own_key(self, key: impl Into<String>) -> StartRequest {
        StartRequest { whose: KeyOwner::Engine, ..self.idempotency_key(key) }
    }

    pub fn label(self, name: impl Into<String>, value: impl Into<String>) -> StartRequest {
        self.with(|start| drop(start.labels.insert(name.into(), value.into())))
    }

    /// Starts the first steps no sooner than this from now.
    pub fn delay(self, delay: Duration) -> StartRequest {
        StartRequest { delay, ..self }
    }

    pub fn priority(self, priority: Priority) -> StartRequest {
        self.with(|start| start.priority = priority)
    }

    /// What would run.
    pub(crate) fn plan(&self) -> Result<&Arc<Plan>, EngineError> {
        match &self.start {
            Ok((plan, _)) => Ok(plan),
            Err(error) => Err(EngineError::Invalid(error.to_string())),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Start)) -> StartRequest {
        if let Ok((_, start)) = &mut self.start {
            change(start);
        }
        self
    }

    async fn send(self) -> Result<RunHandle, EngineError> {
        let (plan, mut start) = self.start?;
        check_start(start.idempotency_key.as_deref(), &start.labels)?;
        let shared = &self.engine.shared;
        let tenant = self.engine.tenant().clone();
        let run = match &start.idempotency_key {
            Some(key) => {
                start.input_digest = start_digest(&start.input, self.from.as_deref());
                match self.whose {
                    KeyOwner::Engine => RunId::from_key(&tenant, &plan.flow, key),
                    KeyOwner::User => user_run(&*shared.store, &tenant, &plan.flow, key).await?,
                }
            }
            None => RunId::new(&uuid::Uuid::now_v7().to_string())
                .map_err(|e| EngineError::Invalid(e.to_string()))?,
        };
        let mut admitted = match shared.quota_use.admit(&*shared.store, &tenant).await {
            Ok(admitted) => admitted,
            Err(refused) => {
                // A start that is repeated gets its run, whatever else there is by now.
                let known = RunKey::new(tenant.clone(), run.clone());
                if start.idempotency_key.is_none() || row(&*shared.store, &known).await.is_err() {
                    if matches!(refused, EngineError::Quota { .. }) {
                        shared.meters.over_quota.fetch_add(1, Ordering::Relaxed);
                    }
                    return Err(refused);
                }
                None
            }
        };
        if !self.delay.is_zero() {
            start.at = Some(shared.store.now().await? + self.delay);
        }
        let key = RunKey::new(tenant, run);
        let digest = start.input_digest.clone();
        let (reply, answer) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let caller = InputCaller::starting(key.clone(), reply, tell);
        let message = DriverMessage::start(key.clone(), plan, start, caller);
        shared.mail(message)?;
        // From here on it may start a run, whether or not anyone waits for the outcome.
        if let Some(admitted) = &mut admitted {
            admitted.started = true;
        }
        let outcome = answer.await.map_err(|_| EngineError::Stopped)?;
        if let Some(admitted) = &mut admitted {
            admitted.started = matches!(outcome, InputOutcome::Committed { .. });
        }
        drop(admitted);
        let status = match &outcome {
            InputOutcome::Committed { status } => Some(*status),
            _ => None,
        };
        let existed = opened(&*shared.store, &key, &digest, outcome).await?;
        // A run that was there may have ended before anybody listened.
        Ok(RunHandle::new(self.engine, key, status, (!existed).then_some(told)))
    }
}

impl IntoFuture for StartRequest {
    type Output = Result<RunHandle, EngineError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl Engine {
    /// Starts a run of a flow that was registered with this engine.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine, flow: flowline::Flow) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let run = engine
    ///     .run(&flow, serde_json::json!({ "cents": 1900 }))
    ///     .idempotency_key("order-42") // started again with the same input, it's the same run
    ///     .label("customer", "c-7")
    ///     .delay(Duration::from_secs(60))
    ///     .await?;
    /// println!("{} started", run.id());
    /// # Ok(())
    /// # }
    /// ```
    pub fn run(&self, flow: &Flow, input: impl Serialize) -> StartRequest {
        let plan = self.shared.plans.cached(flow.hash());
        let plan = plan.ok_or_else(|| EngineError::NoSuchFlow(flow.name().to_owned()));
        let input = Json::of(&input).map_err(|error| EngineError::Invalid(format!("the input: {error}")));
        self.request(plan.and_then(|plan| Ok((plan, Start::new(input?)))), None)
    }

    /// Starts a run of a plan.
    pub fn run_plan(&self, plan: Arc<Plan>, input: Json) -> StartRequest {
        self.request(Ok((plan, Start::new(input))), None)
    }

    /// Starts a run of the latest definition of a flow.
    pub async fn run_named(&self, flow: &str, input: Json) -> Result<StartRequest, EngineError> {
        let hash = registry::latest(self.store(), self.tenant(), flow).await?.hash;
        let plan = self.shared.plans.get(&*self.shared.store, self.tenant(), &hash).await?;
        Ok(self.run_plan(plan, input))
    }

    pub(crate) fn request(
        &self,
        start: Result<(Arc<Plan>, Start), EngineError>,
        from: Option<String>,
    ) -> StartRequest {
        StartRequest { engine: self.clone(), start, delay: Duration::ZERO, from, whose: KeyOwner::default() }
    }
}

/// The run that a user's key names. A run from before users' keys had a namespace of their own keeps its id; no such run is
/// made any more, so that looking for it first leaves nothing to chance.
pub(crate) async fn user_run(
    store: &dyn Store,
    tenant: &Tenant,
    flow: &str,
    key: &str,
) -> Result<RunId, EngineError> {
    if is_own_key(key) {
        let before = RunKey::new(tenant.clone(), RunId::from_key(tenant, flow, key));
        let found = store.load(std::slice::from_ref(&before)).await?.into_iter().next().flatten();
        if found.is_some_and(|found| !is_engines(&found.row, key)) {
            return Ok(before.run);
        }
    }
    Ok(RunId::from_user_key(tenant, flow, key))
}

/// Whether the engine itself started a run under this key.
fn is_engines(row: &RunRow, key: &str) -> bool {
    match key.split_once(':') {
        Some(("step", of)) => of.len() == 64 && row.labels.contains_key(PARENT),
        Some((_, of)) => row.retry_of.as_ref().is_some_and(|run| run.as_str() == of),
        None => false,
    }
}

/// Whether the run of a start existed already. `digest` is that of the start's input.
pub async fn opened(
    store: &dyn Store,
    run: &RunKey,
    digest: &str,
    outcome: InputOutcome,
) -> Result<bool, EngineError> {
    match outcome {
        InputOutcome::Committed { .. } => Ok(false),
        InputOutcome::Exists | InputOutcome::Applied { .. } => {
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

/// What tells a start from another one under the same key: the input, and the step that a retry begins at.
fn start_digest(input: &Json, from: Option<&str>) -> String {
    let input = input_digest(input);
    match from {
        None => input,
        Some(from) => digest(format!("{input}\0{from}").as_bytes()),
    }
}

/// The same for inputs that are the same JSON, whatever their white space and the order of their keys.
pub fn input_digest(input: &Json) -> String {
    let mut value = input.value();
    // They are sorted, unless another crate of the program asks serde_json to keep their order.
    value.sort_all_objects();
    digest(value.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_name_the_labels_that_the_engine_sets() {
        let page = include_str!("../../../docs/file-format.md");
        let row = page.lines().find(|line| line.starts_with("| labels of a run |"));
        let row = row.expect("a limit of labels is in the docs");
        for label in [PARENT, crate::trace::LABEL] {
            assert!(row.contains(&format!("`{label}`")), "{label}: {row}");
        }
        let limits = format!("{}, each value up to {} bytes", limits::LABELS, limits::LABEL_BYTES);
        assert!(row.contains(&limits), "{row}");
    }

    #[test]
    fn inputs_are_compared_as_json_not_as_text() {
        let of = |text: &str| input_digest(&Json::parse(text).unwrap());
        assert_eq!(of(r#"{"a": 1, "b": [2, {"d": 3, "c": 4}]}"#), of(r#"{"b":[2,{"c":4,"d":3}],"a":1}"#));
        assert_eq!(of(r#""\u00e9""#), of(r#""é""#));
        assert_ne!(of(r#"{"a":1}"#), of(r#"{"a":"1"}"#));
        assert_ne!(of("[1,2]"), of("[2,1]"));
    }
}
