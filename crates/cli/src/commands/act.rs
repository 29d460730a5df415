//! What is done to one run from outside: cancel, pause, resume, complete, fail, retry.

use flowline::{Applied, RetryFrom};
use flowline_api::runs::Retried;
use serde_json::json;

use super::CommandContext;
use super::start::parse_json;
use crate::failure::{Exit, Outcome};
use crate::operator::Steering;
use crate::output;

/// Cancel a run
///
/// Drops queued steps. Running steps are told to stop at their next heartbeat, and can't write anything more.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline cancel RUN --reason 'ordered twice'")]
pub struct Cancel {
    /// The run's id
    run: String,
    /// Reason to record in the run's log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Pause a run: running steps finish, but no more start
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline pause RUN")]
pub struct PauseArgs {
    /// The run's id
    run: String,
}

/// Resume a paused run
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline resume RUN")]
pub struct Resume {
    /// The run's id
    run: String,
}

/// End a run as completed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline complete RUN --result '{\"shipped\": true}'")]
pub struct Complete {
    /// The run's id
    run: String,
    /// The run's result
    #[arg(long, value_name = "JSON", default_value = "null")]
    result: String,
}

/// End a run as failed
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline fail RUN --error 'supplier went out of business'")]
pub struct FailArgs {
    /// The run's id
    run: String,
    /// Error to record
    #[arg(long, value_name = "TEXT")]
    error: String,
}

/// Retry an ended run from where it failed, as a new run
///
/// A flow keeps its completed steps. A machine returns to where it was before the event that failed, with its context,
/// receipts and timers, and handles that event again. Prints the new run's id. The steps run in `flowline work`, or with
/// --server on the server.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline retry RUN --from ship\n  flowline retry RUN --from-start")]
pub struct RetryArgs {
    /// The run's id
    run: String,
    /// Also repeat this step and every step after it (flows only)
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// Start over with the same input
    #[arg(long, conflicts_with = "from")]
    from_start: bool,
}

pub async fn cancel(context: &CommandContext, args: Cancel) -> Outcome {
    steer(context, &args.run, Steering::Cancel { reason: args.reason }, "cancelled").await
}

pub async fn pause(context: &CommandContext, args: PauseArgs) -> Outcome {
    steer(context, &args.run, Steering::Pause, "paused").await
}

pub async fn resume(context: &CommandContext, args: Resume) -> Outcome {
    steer(context, &args.run, Steering::Resume, "resumed").await
}

pub async fn complete(context: &CommandContext, args: Complete) -> Outcome {
    let result = parse_json(context, "--result", &args.result)?;
    steer(context, &args.run, Steering::Complete { result }, "completed").await
}

pub async fn fail(context: &CommandContext, args: FailArgs) -> Outcome {
    steer(context, &args.run, Steering::Fail { error: args.error }, "failed").await
}

pub async fn retry(context: &CommandContext, args: RetryArgs) -> Outcome {
    let run = context.run_key(&args.run)?;
    let from = if args.from_start { RetryFrom::Start } else { args.from.as_deref().into() };
    let retried = context.operator()?.retry(&run, from).await?;
    let Retried { run_id, retry_of, status, state, completed_steps } = &retried;
    if context.json {
        output::json(&json!({ "runId": run_id, "retryOf": retry_of, "changed": true, "status": status }))?;
    } else {
        output::line(run_id.as_str())?;
        let kept = match state {
            Some(state) => format!("in state {state}"),
            None => format!("{} kept", output::count(u64::from(*completed_steps), "step")),
        };
        output::note(&format!("run {run_id} retries {retry_of}, {kept}; {}", context.who_works("the rest")));
    }
    Ok(Exit::Fine)
}

/// Does it to a run and says what it did.
async fn steer(context: &CommandContext, id: &str, steering: Steering, done: &str) -> Outcome {
    let run = context.run_key(id)?;
    let Applied { changed, status } = context.operator()?.steer(&run, steering).await?;
    if context.json {
        output::json(&json!({ "runId": run.run, "changed": changed, "status": status }))?;
    } else {
        let done = if changed { done.to_owned() } else { format!("already {done}; nothing changed") };
        output::line(&format!("run {}: {done} (now {})", run.run, output::status(status)))?;
    }
    Ok(Exit::Fine)
}
