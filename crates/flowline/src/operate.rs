//! Operations on existing runs: wait, cancel, pause, resume, finish by hand, delete.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flowline_core::decide::Finish;
use flowline_core::{DecideInput, Json, RunId, RunKey, Status};
use flowline_store::{EventQuery, RunRow, Snapshot, Store};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::drive::host::{InputCaller, Mail};
use crate::drive::{DriverMessage, RunEnd};
use crate::engine::{Engine, EngineError};
use crate::ledger::InputOutcome;

/// How often a run that this engine does not work on is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A run that was started.
#[derive(Debug)]
pub struct RunHandle {
    engine: Engine,
    key: RunKey,
    /// The status after its start; none if the run existed already.
    status: Option<Status>,
    /// Told when this engine ends the run. Taken by the first to wait.
    ended: Mutex<Option<oneshot::Receiver<RunEnd>>>,
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
    pub(crate) fn new(
        engine: Engine,
        key: RunKey,
        status: Option<Status>,
        ended: Option<oneshot::Receiver<RunEnd>>,
    ) -> RunHandle {
        RunHandle { engine, key, status, ended: Mutex::new(ended) }
    }

    pub fn id(&self) -> &RunId {
        &self.key.run
    }

    pub fn key(&self) -> &RunKey {
        &self.key
    }

    /// Whether the run with this idempotency key existed already.
    pub fn existed(&self) -> bool {
        self.status.is_none()
    }

    /// The status after the start; `None` if the run existed already.
    pub fn started_as(&self) -> Option<Status> {
        self.status
    }

    /// Waits for the end of the run.
    ///
    /// ```no_run
    /// # async fn example(run: flowline::RunHandle) -> Result<(), Box<dyn std::error::Error>> {
    /// use flowline::core::Status;
    ///
    /// let outcome = run.wait().await?;
    /// match outcome.status {
    ///     Status::Completed => println!("{:?}", outcome.result),
    ///     status => println!("{status}: {:?}", outcome.error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(&self) -> Result<RunOutcome, EngineError> {
        let told = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        match told {
            Some(told) => self.engine.wait_for(&self.key, told).await,
            None => self.engine.wait(&self.key).await,
        }
    }
}

/// Whether an input changed its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// False if the input had been applied before.
    pub changed: bool,
    pub status: Status,
}

impl Engine {
    pub fn key(&self, run: &RunId) -> RunKey {
        RunKey::new(self.tenant().clone(), run.clone())
    }

    /// The index row of a run.
    pub async fn row(&self, run: &RunKey) -> Result<RunRow, EngineError> {
        row(self.store(), run).await
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

    /// Waits for the end of a run, whichever engine works on it.
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
        mut told: oneshot::Receiver<RunEnd>,
    ) -> Result<RunOutcome, EngineError> {
        loop {
            tokio::select! {
                ended = &mut told => {
                    let RunEnd { status, data, .. } = ended.map_err(|_| EngineError::Stopped)?;
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
        let last = self.store.events(run, query).await?.events.pop();
        let found = outcome(row.status, last.and_then(|event| event.data).as_ref());
        Ok(RunOutcome { trimmed: row.events_trimmed, ..found })
    }

    /// Carries an input into a run.
    pub async fn input(&self, run: &RunKey, input: DecideInput) -> Result<Applied, EngineError> {
        self.carry(run, |caller| DriverMessage::input(run.clone(), input, caller)).await
    }

    pub(crate) async fn carry(
        &self,
        run: &RunKey,
        message: impl FnOnce(InputCaller) -> DriverMessage<InputCaller>,
    ) -> Result<Applied, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.shared.mail(message(reply.into()))?;
        match answer.await.map_err(|_| EngineError::Stopped)? {
            InputOutcome::Committed { status } => Ok(Applied { changed: true, status }),
            InputOutcome::Applied { status } => Ok(Applied { changed: false, status }),
            other => Err(refused(other, run)),
        }
    }

    /// Ends a run. Queued steps are dropped, running ones are told to stop, and their reports are refused.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine, run: flowline::RunHandle) -> Result<(), Box<dyn std::error::Error>> {
    /// engine.cancel(run.key(), Some("ordered twice".to_owned())).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancel(&self, run: &RunKey, reason: Option<String>) -> Result<Applied, EngineError> {
        self.input(run, DecideInput::Cancel { reason }).await
    }

    /// Pauses a run: queued jobs are held until [`Engine::resume`], and running attempts finish.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine, run: flowline::RunHandle) -> Result<(), Box<dyn std::error::Error>> {
    /// engine.pause(run.key()).await?;
    /// // … look into it …
    /// engine.resume(run.key()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause(&self, run: &RunKey) -> Result<Applied, EngineError> {
        self.input(run, DecideInput::Pause).await
    }

    /// Continues a paused run.
    pub async fn resume(&self, run: &RunKey) -> Result<Applied, EngineError> {
        self.input(run, DecideInput::Resume).await
    }

    /// Ends a run by hand, as completed or as failed.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine, run: flowline::RunHandle) -> Result<(), Box<dyn std::error::Error>> {
    /// use flowline::core::Json;
    /// use flowline::core::decide::Finish;
    ///
    /// let result = Json::of(&"settled on the phone")?;
    /// engine.finish(run.key(), Finish::Completed { result }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn finish(&self, run: &RunKey, finish: Finish) -> Result<Applied, EngineError> {
        self.input(run, DecideInput::Finish(finish)).await
    }
}

/// The error for an input that wasn't applied.
pub fn refused(outcome: InputOutcome, run: &RunKey) -> EngineError {
    match outcome {
        InputOutcome::Refused(refusal) => EngineError::Refused(refusal),
        InputOutcome::NotFound => EngineError::NoSuchRun(run.run.to_string()),
        InputOutcome::Failed(error) => EngineError::Store(error),
        other => EngineError::Invalid(format!("the run couldn't take the input: {other:?}")),
    }
}

/// The index row of a run.
pub async fn row(store: &dyn Store, run: &RunKey) -> Result<RunRow, EngineError> {
    Ok(snapshot(store, run).await?.row)
}

pub(crate) async fn snapshot(store: &dyn Store, run: &RunKey) -> Result<Snapshot, EngineError> {
    let found = store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten();
    found.ok_or_else(|| EngineError::NoSuchRun(run.run.to_string()))
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
