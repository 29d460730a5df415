//! `flowline work`: claims and runs what is due, until a signal or until there is nothing left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowline::Engine;
use flowline::core::Event;
use flowline::core::event::EventType;
use flowline::meters::Meters;
use flowline::store::job::REMOTE;
use flowline::store::{FeedFilter, Store};
use serde_json::json;

use super::run::wanted_workers;
use super::{CommandContext, WorkFlags};
use crate::failure::{CliError, Exit, Outcome};
use crate::open::shown;
use crate::output;
use crate::progress::{Names, Progress};
use crate::settings::UnattendedSettings;
use crate::signals::Signals;
use crate::trouble;

/// How long the events of the last commits are waited for.
const LAST_EVENTS: Duration = Duration::from_millis(500);
/// How far away a job may be due for an idle worker to wait for it, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Of the step column; steps of any flow come by.
const WIDTH: usize = 16;

/// Run the steps of started and interrupted runs
///
/// Keeps working until it gets a signal. With --until-idle it stops once nothing is ready or running, no dead instance holds a job
/// and no job or timer is due soon. The exit code doesn't depend on how runs end; check that with `flowline runs`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline work --until-idle\n  flowline work --slots 8 --queue reports=1 --env API_TOKEN"
)]
pub struct Args {
    /// Stop when there's nothing left to do
    #[arg(long)]
    until_idle: bool,
    /// With --until-idle: still wait for jobs and timers that are due within this time [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = flowline_server::filter::duration)]
    patience: Option<Duration>,
    #[command(flatten)]
    unattended: UnattendedSettings,
    #[command(flatten)]
    pub work: WorkFlags,
}

/// What was seen.
#[derive(Debug, Default)]
struct Tally {
    runs: BTreeMap<&'static str, u64>,
    steps: BTreeMap<&'static str, u64>,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let mut signals = Signals::listen().map_err(|error| CliError::environment(error.to_string()))?;
    let Some(store) = context.await_store(&mut signals).await? else { return Ok(Exit::Interrupted) };
    let engine = context.worker(store.clone(), &args.work.env).await?;
    let tenant = Some(context.settings.tenant.value.clone());
    // Work begins with the engine: events committed before this are not shown.
    let from_now = FeedFilter { tenant: tenant.clone(), from_now: true, ..FeedFilter::default() };
    let cursor = store.feed(from_now, "", 1).await?.cursor;
    if !args.until_idle {
        output::note(&format!("working on {}; stop with Ctrl-C", shown(&context.settings.store.value)));
    }
    let mut progress = Progress::new(Names::RunAndStep, WIDTH);
    let mut tally = Tally::default();
    let filter = FeedFilter { tenant, ..FeedFilter::default() };
    let mut events = engine.subscribe(filter, &cursor);
    let idle = idle(&engine, &args);
    tokio::pin!(idle);
    let mut trouble = engine.trouble();
    let exit = loop {
        tokio::select! {
            event = events.next() => tally.note(&event?, &mut progress),
            () = trouble::tell(&mut trouble) => {}
            () = &mut idle => break Exit::Fine,
            () = signals.next() => {
                progress.finish();
                signals.stop(&engine).await;
                // A worker that runs for ever is meant to be stopped like this.
                break if args.until_idle { Exit::Interrupted } else { Exit::Fine };
            }
        }
    };
    engine.stop().await;
    while let Ok(event) = tokio::time::timeout(LAST_EVENTS, events.next()).await {
        tally.note(&event?, &mut progress);
    }
    progress.finish();
    tally.report(context, engine.meters())?;
    if exit == Exit::Fine && args.until_idle {
        tell_of_workers(context, &*store).await?;
    }
    Ok(exit)
}

/// Says where jobs wait that only remote workers run.
async fn tell_of_workers(context: &CommandContext, store: &dyn Store) -> Result<(), CliError> {
    let rows = store.queues(&context.settings.tenant.value).await?;
    let waiting = || rows.iter().filter(|row| *row.need == *REMOTE && row.ready > 0 && !row.paused);
    let queues: BTreeSet<&str> = waiting().map(|row| &*row.queue).collect();
    if !queues.is_empty() {
        let jobs = waiting().map(|row| row.ready).sum();
        let wait = if jobs == 1 { "waits" } else { "wait" };
        output::note(&format!(
            "{} {wait} for {}",
            output::count(jobs, "job"),
            wanted_workers(context, &queues)
        ));
    }
    Ok(())
}

async fn idle(engine: &Engine, args: &Args) {
    if !args.until_idle {
        std::future::pending::<()>().await;
    }
    engine.until_idle(args.patience.unwrap_or(PATIENCE)).await;
}

impl Tally {
    fn note(&mut self, event: &Event, progress: &mut Progress) {
        progress.event(event);
        let (counts, word) = match event.kind {
            EventType::FlowCompleted => (&mut self.runs, "completed"),
            EventType::FlowFailed => (&mut self.runs, "failed"),
            EventType::FlowCancelled => (&mut self.runs, "cancelled"),
            EventType::StepCompleted => (&mut self.steps, "completed"),
            EventType::StepFailed => (&mut self.steps, "failed"),
            EventType::StepRetry => (&mut self.steps, "retried"),
            _ => return,
        };
        *counts.entry(word).or_default() += 1;
    }

    fn report(&self, context: &CommandContext, meters: &Meters) -> Result<(), CliError> {
        let of = |counts: &BTreeMap<&'static str, u64>, word| counts.get(word).copied().unwrap_or(0);
        if context.json {
            let counts = |counts, words: [&'static str; 3]| {
                json!(words.map(|word| (word, of(counts, word))).into_iter().collect::<BTreeMap<_, _>>())
            };
            let runs = counts(&self.runs, ["completed", "failed", "cancelled"]);
            let steps = counts(&self.steps, ["completed", "failed", "retried"]);
            let of_this = |meter: &AtomicU64| meter.load(Ordering::Relaxed);
            let (commits, conflicts) = (of_this(&meters.commits), of_this(&meters.conflicts));
            let answer = json!({ "runs": runs, "steps": steps, "commits": commits, "conflicts": conflicts });
            return output::json(&answer);
        }
        output::note(&format!(
            "{} completed, {} failed, {} cancelled; {} completed",
            output::count(of(&self.runs, "completed"), "run"),
            of(&self.runs, "failed"),
            of(&self.runs, "cancelled"),
            output::count(of(&self.steps, "completed"), "step")
        ));
        Ok(())
    }
}
