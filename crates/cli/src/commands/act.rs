//! What is done to one run from outside: cancel, pause, resume, complete, fail, retry.

use flowline::core::decide::Finish;
use flowline::core::json::{object, string};
use flowline::core::{Input, Json, RunKey};
use flowline::operate::Applied;
use flowline::{EngineError, RetryFrom};
use flowline_api::runs::Retried;
use serde_json::json;

use super::Context;
use super::start::parse_json;
use crate::failure::{Exit, Failure, Outcome};
use crate::open::Access;
use crate::output;
use crate::target::Target;

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
pub struct Pause {
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
pub struct Fail {
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
pub struct Retry {
    /// The run's id
    run: String,
    /// Also repeat this step and every step after it (flows only)
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// Start over with the same input
    #[arg(long, conflicts_with = "from")]
    from_start: bool,
}

/// One input, as an engine takes it and as the API does.
struct Act {
    input: Input,
    /// The last part of the route.
    route: &'static str,
    body: Json,
    /// What it does, for people.
    done: &'static str,
}

pub async fn cancel(context: &Context, args: Cancel) -> Outcome {
    let body = object([("reason", args.reason.as_deref().map(string).as_ref())]);
    let input = Input::Cancel { reason: args.reason };
    apply(context, &args.run, Act { input, route: "cancel", body, done: "cancelled" }).await
}

pub async fn pause(context: &Context, args: Pause) -> Outcome {
    let act = Act { input: Input::Pause, route: "pause", body: object([]), done: "paused" };
    apply(context, &args.run, act).await
}

pub async fn resume(context: &Context, args: Resume) -> Outcome {
    let act = Act { input: Input::Resume, route: "resume", body: object([]), done: "resumed" };
    apply(context, &args.run, act).await
}

pub async fn complete(context: &Context, args: Complete) -> Outcome {
    let result: Json = parse_json(context, "--result", &args.result)?;
    let body = object([("result", Some(&result))]);
    let input = Input::Finish(Finish::Completed { result });
    apply(context, &args.run, Act { input, route: "complete", body, done: "completed" }).await
}

pub async fn fail(context: &Context, args: Fail) -> Outcome {
    let body = object([("error", Some(&string(&args.error)))]);
    let input = Input::Finish(Finish::Failed { error: args.error });
    apply(context, &args.run, Act { input, route: "fail", body, done: "failed" }).await
}

pub async fn retry(context: &Context, args: Retry) -> Outcome {
    let run = context.run_key(&args.run)?;
    let retried = match context.target()? {
        Target::Store => {
            let from = if args.from_start { RetryFrom::Start } else { args.from.as_deref().into() };
            retry_here(context, &run, from).await?
        }
        Target::Server(server) => {
            let from_start = args.from_start.then(|| Json::from(true));
            let from = args.from.as_deref().map(string);
            let body = object([("from", from.as_ref()), ("fromStart", from_start.as_ref())]);
            server.post(&format!("/v1/runs/{}/retry", run.run), &body).await?
        }
    };
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

async fn retry_here(context: &Context, run: &RunKey, from: RetryFrom<'_>) -> Result<Retried, Failure> {
    let engine = context.operator(Access::Existing).await?;
    let retried = async {
        let handle = engine.again(run, from).await?.await?;
        let row = engine.row(handle.key()).await?;
        Ok::<_, EngineError>(Retried::of(&row, &run.run))
    };
    let retried = retried.await;
    engine.stop().await;
    Ok(retried?)
}

/// Carries one input into a run and says what it did.
async fn apply(context: &Context, id: &str, act: Act) -> Outcome {
    let run = context.run_key(id)?;
    let Applied { changed, status } = match context.target()? {
        Target::Store => {
            let engine = context.operator(Access::Existing).await?;
            let applied = engine.input(&run, act.input).await;
            engine.stop().await;
            applied?
        }
        Target::Server(server) => {
            server.post(&format!("/v1/runs/{}/{}", run.run, act.route), &act.body).await?
        }
    };
    if context.json {
        output::json(&json!({ "runId": run.run, "changed": changed, "status": status }))?;
    } else {
        let done = act.done;
        let done = if changed { done.to_owned() } else { format!("already {done}; nothing changed") };
        output::line(&format!("run {}: {done} (now {})", run.run, output::status(status)))?;
    }
    Ok(Exit::Fine)
}
