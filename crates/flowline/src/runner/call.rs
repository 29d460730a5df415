//! Steps that the engine runs itself: starting a run and waiting for it, and sending an event to a run.
//!
//! The run or event gets its key from the step, so the attempt after a lost one finds what was already started. A step
//! that waits for its run only takes up a slot of its queue.

use std::sync::{Arc, OnceLock, Weak};

use flowline_core::call::{Addressee, Call};
use flowline_core::ids::digest;
use flowline_core::{Json, RunId, Status, json};

use super::{Runner, StepFuture};
use crate::engine::{Engine, EngineError, Shared};
use crate::start::PARENT;
use crate::step::{Step, StepError};

/// Runs `start` and `send` steps, once it knows its engine.
#[derive(Default)]
pub(crate) struct Calls {
    engine: OnceLock<Weak<Shared>>,
}

impl Calls {
    pub fn connect(&self, engine: &Arc<Shared>) {
        let _ = self.engine.set(Arc::downgrade(engine));
    }

    fn engine(&self, step: &Step) -> Result<Engine, StepError> {
        let shared = self.engine.get().and_then(Weak::upgrade);
        let shared = shared.ok_or_else(|| StepError::new("the engine has stopped"))?;
        Ok(Engine::of(shared, step.tenant().clone()))
    }
}

impl Runner for Calls {
    fn run(&self, step: Step, input: Json) -> StepFuture {
        let engine = self.engine(&step);
        Box::pin(async move {
            let (engine, call) = (engine?, step.call(&input).await?);
            allowed(&engine, &step, &call).await?;
            match call {
                Call::Start { flow, input } => start(&engine, &step, &flow, input).await,
                Call::Send { to, event, payload } => send(&engine, &step, to, &event, payload).await,
            }
        })
    }
}

/// Refuses a call that the author of the definition was not allowed to make. Whether there's a run that it may not reach
/// doesn't show.
async fn allowed(engine: &Engine, step: &Step, call: &Call) -> Result<(), StepError> {
    let author = engine.author_of(&step.live.attempt.plan.hash).await;
    let author = author.map_err(|error| failed(error.into()))?;
    if author.is_unbound() {
        return Ok(());
    }
    let (what, reached) = match call {
        Call::Start { flow, .. } => (format!("flow {flow:?}"), author.allows_flow(flow)),
        Call::Send { to: Addressee::Machine { machine, .. }, .. } => {
            (format!("machine {machine:?}"), author.allows_flow(machine))
        }
        Call::Send { to: Addressee::Run(run), .. } => {
            let row = match RunId::new(run) {
                Ok(id) => engine.row(&engine.key(&id)).await,
                Err(_) => Err(EngineError::NoSuchRun(run.clone())),
            };
            let reached = match row {
                Ok(row) => author.allows_flow(&row.flow_name),
                Err(EngineError::NoSuchRun(_)) => false,
                Err(error) => return Err(failed(error)),
            };
            (format!("a run {run}"), reached)
        }
    };
    if reached {
        return Ok(());
    }
    let text = format!(
        "step {:?} can't reach {what}: this definition was registered with a token that's bound to other flows; register it with one that's bound to that flow too, or isn't bound",
        step.name()
    );
    Err(StepError::fatal(text).code("beyond_binding"))
}

async fn start(engine: &Engine, step: &Step, flow: &str, input: Json) -> Result<Json, StepError> {
    let request = engine.run_named(flow, input).await.map_err(failed)?;
    let run = request.own_key(key_of(step)).label(PARENT, step.run_id().as_str());
    let run = run.await.map_err(failed)?;
    let outcome = run.wait().await.map_err(failed)?;
    match outcome.status {
        Status::Completed if outcome.trimmed => {
            let why = "completed, but retention has removed its result; keep its events for longer than this step may wait";
            Err(StepError::fatal(format!("run {} of {flow:?} {why}", run.id())).code("result_gone"))
        }
        Status::Completed => Ok(outcome.result.unwrap_or_else(Json::null)),
        status => {
            let why = outcome.error.map(|error| format!(": {error}")).unwrap_or_default();
            Err(StepError::fatal(format!("run {} of {flow:?} {status}{why}", run.id())).code("run_failed"))
        }
    }
}

async fn send(
    engine: &Engine,
    step: &Step,
    to: Addressee,
    event: &str,
    payload: Json,
) -> Result<Json, StepError> {
    let request = match to {
        Addressee::Run(run) => {
            let run = RunId::new(&run).map_err(|error| StepError::fatal(error).code("no_such_run"))?;
            engine.event(&engine.key(&run), event, payload)
        }
        Addressee::Machine { machine, key, input } => {
            engine.event_for(&machine, &key, input, (event, payload))
        }
    };
    let sent =
        request.own_key(key_of(step)).user(format!("run:{}", step.run_id())).send().await.map_err(failed)?;
    let run = json::string(sent.run_id.as_str());
    Ok(json::object([("runId", Some(&run)), ("eventId", Some(&json::string(&sent.event_id)))]))
}

/// The name of what a step starts or sends. A key is short, names of runs and steps need not be.
fn key_of(step: &Step) -> String {
    format!("step:{}", digest(step.idempotency_key().as_bytes()))
}

/// What a store that is away cannot answer may work later; the rest will not.
fn failed(error: EngineError) -> StepError {
    match error {
        EngineError::Store(error) if error.is_transient() => StepError::new(error),
        EngineError::Stopped => StepError::new("the engine has stopped"),
        EngineError::Quota { .. } => StepError::new(error).code("quota_exceeded"),
        EngineError::NoSuchRun(_) => StepError::fatal(error).code("no_such_run"),
        EngineError::NoSuchFlow(_) => StepError::fatal(error).code("no_such_flow"),
        EngineError::Retired(_) => StepError::fatal(error).code("flow_retired"),
        error => StepError::fatal(error).code("refused"),
    }
}
