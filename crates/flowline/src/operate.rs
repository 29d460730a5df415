//! What clients do with runs: start, wait, send, cancel, pause, resume, finish by hand, retry.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flowline_core::decide::Finish;
use flowline_core::definition::Priority;
use flowline_core::{Input, Json, Plan, RunId, RunKey, Status};
use flowline_store::{EventQuery, RunRow};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::drive::host::{Caller, Mail};
use crate::drive::{Ended, Message};
use crate::engine::{Engine, EngineError};
use crate::flow::Flow;
use crate::ledger::Outcome;
use crate::opening::{Opening, RetryFrom, offer, opened, refused, row};
use crate::registry;

pub use crate::opening::check_start;

/// How often a run that this engine does not work on is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A run to be started. Await it.
#[derive(Debug)]
pub struct StartRequest {
    engine: Engine,
    opening: Result<Opening, EngineError>,
}

/// A run that was started.
#[derive(Debug)]
pub struct RunHandle {
    engine: Engine,
    key: RunKey,
    /// As the commit that started it left it; none where the run was there already.
    status: Option<Status>,
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
    /// Retention has removed the run's log, and the result with it.
    pub trimmed: bool,
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
        self.status.is_none()
    }

    /// The status that the start left the run with; `None` where it was there already.
    pub fn started_as(&self) -> Option<Status> {
        self.status
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
    pub fn idempotency_key(self, key: impl Into<String>) -> StartRequest {
        self.with(|opening| opening.key = Some(key.into()))
    }

    pub fn label(self, name: impl Into<String>, value: impl Into<String>) -> StartRequest {
        self.with(|opening| drop(opening.labels.insert(name.into(), value.into())))
    }

    /// Starts the first steps no sooner than this from now.
    pub fn delay(self, delay: Duration) -> StartRequest {
        self.with(|opening| opening.delay = delay)
    }

    pub fn priority(self, priority: Priority) -> StartRequest {
        self.with(|opening| opening.priority = priority)
    }

    /// What would run.
    pub(crate) fn plan(&self) -> Result<&Plan, EngineError> {
        match &self.opening {
            Ok(opening) => Ok(&opening.plan),
            Err(error) => Err(EngineError::Invalid(error.to_string())),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Opening)) -> StartRequest {
        if let Ok(opening) = &mut self.opening {
            change(opening);
        }
        self
    }

    async fn send(self) -> Result<RunHandle, EngineError> {
        let opening = self.opening?;
        check_start(opening.key.as_deref(), &opening.labels)?;
        let shared = &self.engine.shared;
        let tenant = self.engine.tenant().clone();
        let run = match opening.named_run(&tenant) {
            Some(run) => run,
            None => RunId::new(&uuid::Uuid::now_v7().to_string())
                .map_err(|e| EngineError::Invalid(e.to_string()))?,
        };
        let key = RunKey::new(tenant, run);
        let at = opening.at(&*shared.store).await?;
        let digest = opening.digest();
        let (reply, answer) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let message = opening.message(key.clone(), at, digest.clone(), reply);
        shared.inbox.send(Mail::Start(key.clone(), message, tell)).map_err(|_| EngineError::Stopped)?;
        let outcome = answer.await.map_err(|_| EngineError::Stopped)?;
        let status = match &outcome {
            Outcome::Committed { status } => Some(*status),
            _ => None,
        };
        let existed = opened(&*shared.store, &key, &digest, outcome).await?;
        // A run that was there may have ended before anybody listened.
        let ended = Mutex::new((!existed).then_some(told));
        Ok(RunHandle { engine: self.engine, key, status, ended })
    }
}

impl IntoFuture for StartRequest {
    type Output = Result<RunHandle, EngineError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// Whether an input changed its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// False where the run had taken the same input before.
    pub changed: bool,
    pub status: Status,
}

impl Engine {
    /// Starts a run of a flow that was registered with this engine.
    pub fn run(&self, flow: &Flow, input: impl Serialize) -> StartRequest {
        let plan = self.shared.plans.cached(flow.hash());
        let plan = plan.ok_or_else(|| EngineError::NoSuchFlow(flow.name().to_owned()));
        let input = Json::of(&input).map_err(|error| EngineError::Invalid(format!("the input: {error}")));
        self.request(plan.and_then(|plan| Ok(Opening::of(plan, input?))))
    }

    /// Starts a run of a plan.
    pub fn run_plan(&self, plan: Arc<Plan>, input: Json) -> StartRequest {
        self.request(Ok(Opening::of(plan, input)))
    }

    /// Starts a run of the latest definition of a flow.
    pub async fn run_named(&self, flow: &str, input: Json) -> Result<StartRequest, EngineError> {
        let hash = registry::latest(self.store(), self.tenant(), flow).await?.hash;
        let plan = self.shared.plans.get(&*self.shared.store, self.tenant(), &hash).await?;
        Ok(self.request(Ok(Opening::of(plan, input))))
    }

    fn request(&self, opening: Result<Opening, EngineError>) -> StartRequest {
        StartRequest { engine: self.clone(), opening }
    }

    pub fn key(&self, run: &RunId) -> RunKey {
        RunKey::new(self.tenant().clone(), run.clone())
    }

    /// The index row of a run.
    pub async fn row(&self, run: &RunKey) -> Result<RunRow, EngineError> {
        row(&*self.shared.store, run).await
    }

    /// Removes a run that has ended, with its events, state and receipts, whatever retention would keep. Its idempotency key
    /// is free again.
    pub async fn delete(&self, run: &RunKey) -> Result<(), EngineError> {
        if !self.row(run).await?.status.is_terminal() {
            return Err(EngineError::NotEnded(run.run.to_string()));
        }
        match self.store().delete_runs(std::slice::from_ref(run)).await?[..] {
            [true] => Ok(()),
            _ => Err(EngineError::NoSuchRun(run.run.to_string())),
        }
    }

    /// Waits for the end of a run, whoever works on it.
    pub async fn wait(&self, run: &RunKey) -> Result<RunOutcome, EngineError> {
        let (tell, told) = oneshot::channel();
        self.shared.inbox.send(Mail::Await(run.clone(), tell)).map_err(|_| EngineError::Stopped)?;
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
                    let Ended { status, data, .. } = ended.map_err(|_| EngineError::Stopped)?;
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
        let found = outcome(row.status, last.and_then(|event| event.data).as_ref());
        Ok(RunOutcome { trimmed: row.events_trimmed, ..found })
    }

    /// Carries an input into a run.
    pub async fn input(&self, run: &RunKey, input: Input) -> Result<Applied, EngineError> {
        self.carry(run, |reply| offer(run, input, reply)).await
    }

    pub(crate) async fn carry(
        &self,
        run: &RunKey,
        message: impl FnOnce(Caller) -> Message<Caller>,
    ) -> Result<Applied, EngineError> {
        let (reply, answer) = oneshot::channel();
        let mail = Mail::Message(message(reply));
        self.shared.inbox.send(mail).map_err(|_| EngineError::Stopped)?;
        match answer.await.map_err(|_| EngineError::Stopped)? {
            Outcome::Committed { status } => Ok(Applied { changed: true, status }),
            Outcome::Applied { status } => Ok(Applied { changed: false, status }),
            other => Err(refused(other, run)),
        }
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

    /// Repeats an ended run as a new one. A flow keeps the steps that it had completed and their emits; with `from`, that step
    /// and everything after it are done again too. A machine goes back to where it stood before the event that failed, and
    /// applies that event again.
    pub async fn retry(&self, run: &RunKey, from: Option<&str>) -> Result<RunHandle, EngineError> {
        self.again(run, from.into()).await?.await
    }

    /// Repeats an ended run as a new one from its beginning, with the same input.
    pub async fn retry_from_start(&self, run: &RunKey) -> Result<RunHandle, EngineError> {
        self.again(run, RetryFrom::Start).await?.await
    }

    /// As [`Engine::retry`], to be started by awaiting it: with a key of its own it happens once.
    pub async fn again(&self, run: &RunKey, from: RetryFrom<'_>) -> Result<StartRequest, EngineError> {
        let opening = Opening::again(&*self.shared.store, &self.shared.plans, run, from).await?;
        Ok(self.request(Ok(opening)))
    }
}

fn outcome(status: Status, data: Option<&Json>) -> RunOutcome {
    #[derive(serde::Deserialize, Default)]
    struct Data {
        result: Option<Json>,
        error: Option<String>,
    }
    let Data { result, error } = data.and_then(|data| data.to().ok()).unwrap_or_default();
    RunOutcome { status, result, error, trimmed: false }
}
