//! `flowline run`: starts a run of a file and works until it ends.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flowline::core::time::show_duration;
use flowline::core::{RunKey, Status, Time};
use flowline::store::job::{JobKey, REMOTE};
use flowline::store::{EventQuery, JobRow, JobState, Store};
use flowline::{Engine, Plans, RunHandle};
use flowline_api::runs::RunView;
use flowline_server::view::{read_run, start_request};
use serde_json::json;
use tokio::sync::mpsc;

use super::start::StartFlags;
use super::work::PATIENCE;
use super::{CommandContext, NEEDS, WorkFlags};
use crate::definition;
use crate::failure::{CliError, Exit, Outcome};
use crate::open::{StoreAccess, shown};
use crate::operator::LogTail;
use crate::output::{self, DIM, RESET};
use crate::progress::{Names, Progress};
use crate::signals::Signals;
use crate::trouble;

/// How often a run is asked whether it still moves.
const LOOK: Duration = Duration::from_millis(100);
/// A longer wait for a retry or a delayed start is told.
const LONG: Duration = Duration::from_secs(60);
/// How long the rest of the log is read after the end.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Run a definition file and wait for the result
///
/// Prints the result to stdout and progress to stderr. Every finished step is saved in the store, so you can continue an
/// interrupted run with `flowline work`, or by repeating the command with the same idempotency key. If the run has to wait
/// for an external event, the command leaves it waiting and exits with 0. Steps for remote workers need a server: if the
/// store is one that only a single process can open, the command leaves the run unfinished and exits with 3.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline run order.yaml --input '{\"total\": 19}'\n  \
                        flowline run order.yaml --input-file order.json --idempotency-key order-42 --json")]
pub struct Args {
    /// Definition file: YAML, TOML or JSON
    file: PathBuf,
    #[command(flatten)]
    start: StartFlags,
    #[command(flatten)]
    pub work: WorkFlags,
    /// Don't show progress
    #[arg(long)]
    no_progress: bool,
}

/// Why the command has no more to do.
enum Ending {
    Ended,
    /// Nothing that this process could do would move the run on.
    Stands(String),
    /// Only a worker can, and none can come while this process holds the store.
    NeedsWorker(String),
    Interrupted,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let input = args.start.input(context)?;
    let read = definition::load(&args.file)?;
    let origin = definition::origin(&args.file)?;
    let width = read.definition.steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
    // What would be refused leaves no new store behind.
    let plan = definition::plan(read, &input, context.limits())?;
    let mut signals = Signals::listen().map_err(|error| CliError::environment(error.to_string()))?;
    let mut progress = if args.no_progress { Progress::silent() } else { Progress::new(Names::Step, width) };

    let store = context.open(StoreAccess::Engine).await?;
    let engine = context.worker(store.clone(), &args.work.env).await?;
    let start = args.start.clone().start(plan.flow.to_string(), input.clone());
    let begun = async {
        let plan = engine.register_plan(plan, Some(origin)).await?;
        Ok::<_, CliError>(start_request(engine.run_plan(plan, input), start).await?)
    };
    tokio::pin!(begun);
    let mut trouble = engine.trouble();
    let begun = loop {
        tokio::select! {
            begun = &mut begun => break begun.map_err(Some),
            () = trouble::tell(&mut trouble) => {}
            () = signals.next() => break Err(None),
        }
    };
    let handle = match begun {
        Ok(handle) => handle,
        Err(failure) => {
            engine.stop_within(Duration::ZERO).await;
            return failure.map_or(Ok(Exit::Interrupted), Err);
        }
    };
    if handle.existed() && !args.no_progress {
        output::note(&format!("{DIM}run {} already exists{RESET}", handle.id()));
    }
    let ending = work(context, &engine, &store, &handle, &mut progress, &mut signals).await;
    progress.finish();
    let ending = match ending {
        Ok(Ending::Interrupted) => {
            signals.stop(&engine).await;
            Ending::Interrupted
        }
        other => {
            engine.stop().await;
            other?
        }
    };
    report(context, &*store, handle.key(), ending).await
}

/// Shows what happens until the run ends, stands, or a signal comes.
async fn work(
    context: &CommandContext,
    engine: &Engine,
    store: &Arc<dyn Store>,
    handle: &RunHandle,
    progress: &mut Progress,
    signals: &mut Signals,
) -> Result<Ending, CliError> {
    let mut tail = LogTail::new(store.clone(), handle.key().clone(), EventQuery::default());
    let ended = handle.wait();
    let (tell, mut waits) = mpsc::unbounded_channel();
    let stands = stands(context, store, handle.key(), tell);
    tokio::pin!(ended, stands);
    let mut trouble = engine.trouble();
    let ending = loop {
        tokio::select! {
            outcome = &mut ended => { outcome?; break Ending::Ended; }
            ending = &mut stands => break ending?,
            event = tail.next() => progress.event(&event?),
            Some(wait) = waits.recv() => progress.note(&wait),
            () = trouble::tell(&mut trouble) => {}
            () = signals.next() => return Ok(Ending::Interrupted),
        }
    };
    let rest = async {
        while let Some(event) = tail.ready().await? {
            progress.event(&event);
        }
        Ok::<_, CliError>(())
    };
    let _ = tokio::time::timeout(LAST_EVENTS, rest).await;
    Ok(ending)
}

/// Waits until nothing that this process could do would move the run on, and says why. Long waits on the way there are
/// told.
async fn stands(
    context: &CommandContext,
    store: &Arc<dyn Store>,
    run: &RunKey,
    tell: mpsc::UnboundedSender<String>,
) -> Result<Ending, CliError> {
    let mut told = None;
    let mut told_workers = String::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let found = store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten();
        let Some(status) = found.map(|snapshot| snapshot.row.status) else { continue };
        if status.is_terminal() {
            continue;
        }
        let jobs = store.jobs(run).await?;
        let steps: Vec<&JobRow> = jobs.iter().filter(|job| matches!(job.key, JobKey::Step(_))).collect();
        if steps.iter().any(|job| job.state == JobState::Leased) {
            continue;
        }
        if status == Status::Paused {
            return stand(format!(
                "is paused; continue with `flowline resume {0}`, then `flowline work --until-idle`",
                run.run
            ));
        }
        if steps.iter().any(|job| NEEDS.contains(&&*job.need)) {
            let paused = paused_queues(store, run, &steps).await?;
            match paused {
                Some(queue) => {
                    return stand(format!(
                        "is waiting in the paused queue {queue:?}; continue with `flowline queues resume {queue}`"
                    ));
                }
                None => {
                    let due = steps.iter().map(|job| job.due).min().unwrap_or_default();
                    let left = due.since(store.now().await?);
                    if left > LONG && told.replace(due) != Some(due) {
                        let _ = tell.send(long_wait(run, due, left));
                    }
                    continue;
                }
            }
        }
        if !steps.is_empty() {
            let why = missing_workers(context, &steps);
            // A server can only open a file once this process has let go of it.
            if !store.is_shared() {
                return Ok(Ending::NeedsWorker(why));
            }
            if told_workers != why {
                let _ = tell.send(format!("run {} {why}", run.run));
                told_workers = why;
            }
            continue;
        }
        let view = read_run(&**store, &Plans::default(), run).await?;
        let awaited = view.parts.awaits;
        let Some(event) = awaited.first() else {
            // A machine that only time can move.
            let next = view.machine.iter().flat_map(|machine| &machine.timers).map(|timer| timer.at).min();
            if let Some(due) = next.filter(|due| told.replace(*due) != Some(*due)) {
                let _ = tell.send(long_wait(run, due, due.since(store.now().await?)));
            }
            continue;
        };
        let place = view.row.state.map_or(String::new(), |state| format!(" in {state}"));
        let accepts = view.machine.iter().flat_map(|machine| &machine.accepts);
        let role =
            accepts.filter(|accepted| accepted.event == *event).find_map(|accepted| accepted.roles.first());
        let role = role.map_or(String::new(), |role| format!(" --role {role}"));
        return stand(format!(
            "is waiting{place} for {}; continue with `flowline send {} {event}{role} --payload JSON`, then `flowline work --until-idle`",
            awaited.join(", "),
            run.run
        ));
    }
}

fn stand(why: String) -> Result<Ending, CliError> {
    Ok(Ending::Stands(why))
}

/// Which workers a run waits for, and how to start them.
fn missing_workers(context: &CommandContext, steps: &[&JobRow]) -> String {
    let names: Vec<&str> = steps.iter().map(|job| &*job.name).collect();
    let queues: BTreeSet<&str> =
        steps.iter().filter(|job| *job.need == *REMOTE).map(|job| &*job.queue).collect();
    let word = if names.len() == 1 { "step" } else { "steps" };
    let waits = format!("is waiting at {word} {}", names.join(", "));
    if queues.is_empty() {
        let needs: BTreeSet<&str> = steps.iter().map(|job| &*job.need).collect();
        let needs: Vec<&str> = needs.into_iter().collect();
        return format!("{waits} for a program that runs {}, on the same store", needs.join(", "));
    }
    format!("{waits} for {}", wanted_workers(context, &queues))
}

/// Workers for these queues, and how to start them.
pub(super) fn wanted_workers(context: &CommandContext, queues: &BTreeSet<&str>) -> String {
    let flags: String = queues.iter().map(|queue| format!(" --queue {queue}")).collect();
    let queues: Vec<&str> = queues.iter().copied().collect();
    let store = shown(&context.settings.store.value);
    format!(
        "a worker on queue {}; start a server with `flowline serve --store {store}` and a worker with \
         `flowline worker --server http://127.0.0.1:7400{flags} -- COMMAND`",
        queues.join(", ")
    )
}

fn long_wait(run: &RunKey, due: Time, left: Duration) -> String {
    format!(
        "run {} is waiting: its next step is due at {due}, in {}. Leave this command running, or stop it with Ctrl-C and \
         run `flowline work` by then",
        run.run,
        show_duration(left)
    )
}

/// A paused queue, where every step that this process could run waits in one.
async fn paused_queues(
    store: &Arc<dyn Store>,
    run: &RunKey,
    steps: &[&JobRow],
) -> Result<Option<String>, CliError> {
    let queues = store.queues(&run.tenant).await?;
    let paused = |job: &&&JobRow| queues.iter().any(|row| row.paused && row.queue == job.queue);
    let mine = || steps.iter().filter(|job| NEEDS.contains(&&*job.need));
    Ok(if mine().all(|job| paused(&job)) { mine().next().map(|job| job.queue.to_string()) } else { None })
}

async fn report(context: &CommandContext, store: &dyn Store, run: &RunKey, ending: Ending) -> Outcome {
    let view = read_run(store, &Plans::default(), run).await?;
    let row = &view.row;
    let exit = match (&ending, row.status) {
        (_, Status::Completed) => Exit::Fine,
        (_, Status::Failed | Status::Cancelled) => Exit::Found,
        (Ending::Interrupted, _) => Exit::Interrupted,
        (Ending::NeedsWorker(_), _) => Exit::Store,
        _ => Exit::Fine,
    };
    summary(context, &view, &ending, store.now().await?);
    let written = if context.json {
        output::json(&json!({
            "runId": row.run_id,
            "flowName": row.flow_name,
            "status": row.status,
            "result": view.parts.result,
            "error": view.parts.error,
            "duration": row.duration,
            "steps": view.parts.steps,
            "awaits": view.parts.awaits,
        }))
    } else {
        match &view.parts.result {
            Some(result) if !result.is_null() => pretty(result),
            _ => Ok(()),
        }
    };
    // The exit code tells of the run, also where nobody reads the result.
    match written {
        Err(failure) if !failure.quiet => Err(failure),
        _ => Ok(exit),
    }
}

fn pretty(result: &flowline::core::Json) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(&result.value()).unwrap_or_else(|_| result.to_string());
    Ok(output::line(&text)?)
}

fn summary(context: &CommandContext, view: &RunView, ending: &Ending, now: Time) {
    let row = &view.row;
    let took = row.duration.map_or(String::new(), |ms| format!(" in {}", output::millis(ms)));
    let steps = output::count(u64::from(row.completed_steps), "step");
    let status = output::status(row.status);
    let run = &row.run_id;
    match (row.status, ending) {
        (Status::Completed, _) => output::note(&format!("run {run} {status}{took}, {steps}")),
        (Status::Failed | Status::Cancelled, _) => {
            let why = view
                .parts
                .error
                .as_deref()
                .map_or(String::new(), |error| format!(": {}", output::clean(error)));
            let step = row.failure.as_ref().and_then(|failure| failure.step.as_deref());
            let step = step.map_or(String::new(), |step| format!(" at step {step:?}"));
            output::note(&format!("run {run} {status}{took}{step}{why}"));
            output::note(&format!(
                "help: `flowline events {run}` shows what happened; `flowline retry {run}` continues from where it failed"
            ));
        }
        (_, Ending::Interrupted) => {
            let steps_left = || view.parts.jobs.iter().filter(|job| matches!(job.key, JobKey::Step(_)));
            let soonest = steps_left().map(|job| job.due).min();
            let remote: BTreeSet<&str> =
                steps_left().filter(|job| *job.need == *REMOTE).map(|job| &*job.queue).collect();
            let how = match soonest.map(|due| (due, due.since(now))) {
                // Until idle a worker does not wait that long.
                Some((due, left)) if left > PATIENCE => {
                    format!("`flowline work`; its next step is due at {due}, in {}", show_duration(left))
                }
                _ if !remote.is_empty() && steps_left().all(|job| *job.need == *REMOTE) => {
                    wanted_workers(context, &remote)
                }
                _ => "`flowline work --until-idle`".to_owned(),
            };
            output::note(&format!("run {run} interrupted, {steps} done; continue with {how}"));
        }
        (_, Ending::Stands(why) | Ending::NeedsWorker(why)) => output::note(&format!("run {run} {why}")),
        (_, Ending::Ended) => output::note(&format!("run {run} is {status}")),
    }
}
