//! What is done to one run from outside: send, cancel, pause, resume, complete, fail, retry.

use flowline::core::decide::Finish;
use flowline::core::{Json, RunKey};
use flowline::operate::Applied;
use flowline::{Engine, EngineError};
use serde_json::json;

use super::Context;
use super::start::parse_json;
use crate::failure::{Exit, Outcome};
use crate::open::Access;
use crate::output;

/// Send an event from outside into a run
///
/// The flow must list it under `accepts`. An event that was sent before is not sent again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline send RUN approval.given --payload '{\"by\": \"ada\"}'")]
pub struct Send {
    run: String,
    event: String,
    /// What comes with the event
    #[arg(long, value_name = "JSON", default_value = "null")]
    payload: String,
}

/// Cancel a run
///
/// What waits is dropped, what runs is stopped at its next heartbeat and can commit nothing more.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline cancel RUN --reason 'ordered twice'")]
pub struct Cancel {
    run: String,
    /// Why, for whoever reads the log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Hold what waits in a run; what runs goes on to its end
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline pause RUN")]
pub struct Pause {
    run: String,
}

/// Let a paused run go on
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline resume RUN")]
pub struct Resume {
    run: String,
}

/// End a run by hand as completed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline complete RUN --result '{\"shipped\": true}'")]
pub struct Complete {
    run: String,
    /// The run's result
    #[arg(long, value_name = "JSON", default_value = "null")]
    result: String,
}

/// End a run by hand as failed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline fail RUN --error 'the depot burnt down'")]
pub struct Fail {
    run: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    error: String,
}

/// Repeat an ended run as a new one, keeping the steps that it had completed
///
/// Prints the id of the new run; `flowline work` runs its steps.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline retry RUN --from ship")]
pub struct Retry {
    run: String,
    /// Do this step and everything after it again too
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
}

pub async fn send(context: &Context, args: Send) -> Outcome {
    let payload = parse_json("--payload", &args.payload)?;
    apply(context, &args.run, "taken", async |engine, run| engine.send(run, &args.event, payload).await).await
}

pub async fn cancel(context: &Context, args: Cancel) -> Outcome {
    apply(context, &args.run, "cancelled", async |engine, run| engine.cancel(run, args.reason).await).await
}

pub async fn pause(context: &Context, args: Pause) -> Outcome {
    apply(context, &args.run, "paused", async |engine, run| engine.pause(run).await).await
}

pub async fn resume(context: &Context, args: Resume) -> Outcome {
    apply(context, &args.run, "resumed", async |engine, run| engine.resume(run).await).await
}

pub async fn complete(context: &Context, args: Complete) -> Outcome {
    let result: Json = parse_json("--result", &args.result)?;
    let finish = Finish::Completed { result };
    apply(context, &args.run, "completed", async |engine, run| engine.finish(run, finish).await).await
}

pub async fn fail(context: &Context, args: Fail) -> Outcome {
    let finish = Finish::Failed { error: args.error };
    apply(context, &args.run, "failed", async |engine, run| engine.finish(run, finish).await).await
}

pub async fn retry(context: &Context, args: Retry) -> Outcome {
    let run = context.run_key(&args.run)?;
    let engine = context.operator(Access::Existing).await?;
    let retried = async {
        let handle = engine.retry(&run, args.from.as_deref()).await?;
        let row = engine.row(handle.key()).await?;
        Ok::<_, EngineError>(row)
    };
    let retried = retried.await;
    engine.stop().await;
    let row = retried?;
    if context.json {
        output::json(
            &json!({ "runId": row.run_id, "retryOf": run.run, "changed": true, "status": row.status }),
        )?;
    } else {
        output::line(row.run_id.as_str())?;
        output::note(&format!(
            "run {} repeats {}, {} kept; `flowline work` runs the rest",
            row.run_id,
            run.run,
            output::count(u64::from(row.completed_steps), "step")
        ));
    }
    Ok(Exit::Fine)
}

/// Carries one input into a run and says what it did.
async fn apply<F>(context: &Context, id: &str, done: &str, act: F) -> Outcome
where
    F: AsyncFnOnce(&Engine, &RunKey) -> Result<Applied, EngineError>,
{
    let run = context.run_key(id)?;
    let engine = context.operator(Access::Existing).await?;
    let applied = act(&engine, &run).await;
    engine.stop().await;
    let Applied { changed, status } = applied?;
    if context.json {
        output::json(&json!({ "runId": run.run, "changed": changed, "status": status }))?;
    } else {
        let done = if changed { done.to_owned() } else { format!("{done} before; nothing changed") };
        output::line(&format!("run {}: {done} (now {})", run.run, output::status(status)))?;
    }
    Ok(Exit::Fine)
}
