//! What a running step can do: find out what it is, emit, log and keep state.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::budget::Budget;
use flowline_core::call::Call;
use flowline_core::decide::{AttemptFailure, Retryable};
use flowline_core::error::with_causes;
use flowline_core::plan::PlanStep;
use flowline_core::request::{Given, RenderError};
use flowline_core::{Json, RunId, Tenant};
use flowline_store::StateScope;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::attempt::live::LiveAttempt;
use crate::lock::NamedLock;

/// One attempt of a step, as its code sees it. Cheap to clone.
///
/// ```
/// use flowline::{Level, Step, StepError};
///
/// async fn charge(step: Step, order: serde_json::Value) -> Result<String, StepError> {
///     step.log(Level::Info, format!("attempt {}", step.attempt()));
///     let tries: u32 = step.get("run", "tries").await?.unwrap_or(0);
///     step.set("run", "tries", tries + 1).await?; // stays written if the attempt fails
///     step.emit("order.charging", &order)?; // published when the attempt completes
///     Ok(step.idempotency_key()) // pass this on to whatever must not do its work twice
/// }
/// ```
#[derive(Clone)]
pub struct Step {
    pub(crate) live: Arc<LiveAttempt>,
}

impl Step {
    pub fn run_id(&self) -> &RunId {
        &self.live.attempt.run.run
    }

    pub fn tenant(&self) -> &Tenant {
        &self.live.attempt.run.tenant
    }

    pub fn flow(&self) -> &str {
        &self.live.attempt.plan.flow
    }

    pub fn name(&self) -> &str {
        self.live.attempt.name()
    }

    /// 1 for the first try.
    pub fn attempt(&self) -> u32 {
        self.live.attempt.number
    }

    pub fn step_id(&self) -> String {
        self.live.attempt.step_id()
    }

    /// The same for every attempt of this step in this run (of an action: in this transition): pass it to whatever must
    /// not do its work twice.
    pub fn idempotency_key(&self) -> String {
        self.live.attempt.idempotency_key()
    }

    /// What the templates of its definition read.
    pub(crate) fn given<'a>(&self, input: &'a Json) -> Given<'a> {
        let (run, tenant) = (self.run_id().as_str(), self.tenant().as_str());
        Given {
            input,
            run: json!({ "id": run, "flow": self.flow(), "tenant": tenant }),
            step: json!({
                "name": self.name(), "attempt": self.attempt(), "idempotencyKey": self.idempotency_key(),
            }),
            limits: self.live.limits,
        }
    }

    /// What a step that calls the engine asks of it.
    pub(crate) async fn call(&self, input: &Json) -> Result<Call, StepError> {
        let call = |planned: &PlanStep, given: &Given<'_>, budget: &Budget| {
            planned.call.as_ref().map(|call| call.render(given, budget))
        };
        let missing = || StepError::fatal("the step has no `start` or `send`").code("template");
        self.rendered(input, call).await.ok_or_else(missing)?.map_err(unrendered)
    }

    /// Renders templates of the step: here if that's quick, else where it holds up nobody.
    pub(crate) async fn rendered<T: Send + 'static>(
        &self,
        input: &Json,
        render: fn(&PlanStep, &Given<'_>, &Budget) -> T,
    ) -> T {
        {
            let quick = Budget::quick();
            let rendered = render(self.live.attempt.planned(), &self.given(input), &quick);
            if !quick.is_spent() {
                return rendered;
            }
        }
        let (step, input) = (self.clone(), input.clone());
        let work = move || render(step.live.attempt.planned(), &step.given(&input), &Budget::default());
        self.live.aside.run(self.tenant(), work).await
    }

    /// W3C Trace Context of this attempt, to pass on to other services.
    pub fn traceparent(&self) -> String {
        self.live.attempt.traceparent()
    }

    /// Publishes an event with the completion of this attempt. A failed attempt publishes nothing.
    pub fn emit(&self, name: &str, payload: impl Serialize) -> Result<(), StepError> {
        self.emit_json(name, self.payload_of(&format!("emit {name:?}"), &payload)?)
    }

    /// Like [`Step::emit`], with a payload that's already JSON, or with none: [`Json::nothing`].
    pub fn emit_json(&self, name: &str, payload: Json) -> Result<(), StepError> {
        self.live.emit(name, self.within(&format!("emit {name:?}"), payload)?);
        Ok(())
    }

    /// Publishes an event immediately, in its own commit. It stays published if the attempt fails, and repeating it in
    /// a later attempt does nothing.
    pub async fn emit_now(&self, name: &str, payload: impl Serialize) -> Result<(), StepError> {
        self.emit_json_now(name, self.payload_of(&format!("emit {name:?}"), &payload)?).await
    }

    /// Like [`Step::emit_now`], with a payload that's already JSON, or with none: [`Json::nothing`].
    pub async fn emit_json_now(&self, name: &str, payload: Json) -> Result<(), StepError> {
        self.live.emit_now(name, self.within(&format!("emit {name:?}"), payload)?).await
    }

    /// Adds a line to the run's log.
    pub fn log(&self, level: Level, message: impl fmt::Display) {
        self.live.log(level, &message.to_string(), None);
    }

    /// Adds a line with further fields to the run's log.
    pub fn log_with(
        &self,
        level: Level,
        message: impl fmt::Display,
        fields: serde_json::Map<String, serde_json::Value>,
    ) {
        self.live.log(level, &message.to_string(), Some(fields));
    }

    /// Reads key-value state: `step.get("orders", "order-123")`. `None` if the key isn't set or has expired. A scope
    /// is `run`, `flow`, `tenant`, or any other name, which all flows of the tenant share.
    pub async fn get<T: DeserializeOwned>(
        &self,
        scope: impl Into<StateScope>,
        key: &str,
    ) -> Result<Option<T>, StepError> {
        match self.live.get(scope.into(), key).await? {
            Some(json) => Ok(Some(json.to()?)),
            None => Ok(None),
        }
    }

    /// Writes key-value state at once. It stays written if the attempt fails.
    pub async fn set(
        &self,
        scope: impl Into<StateScope>,
        key: &str,
        value: impl Serialize,
    ) -> Result<(), StepError> {
        let value = self.payload_of(&format!("state {key:?}"), &value)?;
        self.live.set(scope.into(), key, Some(value), None).await
    }

    /// Like [`Step::set`]; the value is gone after `ttl`.
    pub async fn set_for(
        &self,
        scope: impl Into<StateScope>,
        key: &str,
        value: impl Serialize,
        ttl: Duration,
    ) -> Result<(), StepError> {
        let value = self.payload_of(&format!("state {key:?}"), &value)?;
        self.live.set(scope.into(), key, Some(value), Some(ttl)).await
    }

    pub async fn delete(&self, scope: impl Into<StateScope>, key: &str) -> Result<(), StepError> {
        self.live.set(scope.into(), key, None, None).await
    }

    /// The tenant's lock of this name, owned by this attempt. Its guard releases it when the attempt ends.
    pub fn lock(&self, name: impl Into<String>) -> NamedLock {
        NamedLock::new(self.live.store(), self.tenant().clone(), name).owner(self.step_id())
    }

    fn payload_of(&self, what: &str, value: &impl Serialize) -> Result<Json, StepError> {
        let json =
            Json::of(value).map_err(|error| StepError::fatal(error.to_string()).code("invalid_payload"));
        self.within(what, json?)
    }

    fn within(&self, what: &str, json: Json) -> Result<Json, StepError> {
        let json = json.within(what, self.live.limits.payload());
        json.map_err(|error| StepError::fatal(error.to_string()).code("invalid_payload"))
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({})", self.step_id())
    }
}

/// The idempotency key of a step in a run, or of an action in a transition of a run.
pub fn idempotency_key(run: &RunId, step: &str, transition: Option<u32>) -> String {
    match transition {
        Some(transition) => format!("{run}__{step}__{transition}"),
        None => format!("{run}__{step}"),
    }
}

/// The level of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Debug, Level::Info, Level::Warn, Level::Error];

    pub fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }

    pub fn parse(text: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

/// Why an attempt failed. Made by `?` from any error, which is then retried as the step's policy says; or by
/// [`StepError::fatal`], which is not retried.
///
/// ```
/// use std::time::Duration;
/// use flowline::StepError;
///
/// let busy = StepError::new("the bank is busy").code("busy").retry_after(Duration::from_secs(5));
/// let hopeless = StepError::fatal("no such account");
/// ```
#[derive(Debug)]
pub struct StepError(pub(crate) AttemptFailure);

impl StepError {
    /// An error that the step's policy may retry.
    pub fn new(error: impl fmt::Display) -> StepError {
        let error = error.to_string();
        StepError(AttemptFailure { error, code: None, stack: None, retry: Retryable::ByPolicy })
    }

    /// An error that no retry can help.
    pub fn fatal(error: impl fmt::Display) -> StepError {
        let mut failed = StepError::new(error);
        failed.0.retry = Retryable::Never;
        failed
    }

    /// Asks for the next try after this long, within the step's policy.
    pub fn retry_after(mut self, delay: Duration) -> StepError {
        self.0.retry = Retryable::After(delay);
        self
    }

    /// Names the kind of error, for `only` and `except` of the retry policy.
    pub fn code(mut self, code: &str) -> StepError {
        self.0.code = Some(code.to_owned());
        self
    }

    /// The text, the code, and whether to retry.
    pub fn failure(&self) -> &AttemptFailure {
        &self.0
    }

    pub fn stack(mut self, stack: String) -> StepError {
        self.0.stack = Some(stack);
        self
    }
}

impl<E: std::error::Error> From<E> for StepError {
    fn from(error: E) -> StepError {
        StepError::new(with_causes(&error))
    }
}

/// A template that can't be rendered won't be the next time either.
pub(crate) fn unrendered(error: RenderError) -> StepError {
    let code = error.code.unwrap_or("template");
    StepError::fatal(error).code(code)
}
