//! `flowline show`: one run, whole.

use std::time::Duration;

use flowline::core::time::format_duration;
use flowline::position::Position;
use flowline::store::{JobRow, JobState, RunRow};
use flowline_api::runs::{RunView, StepView};

use super::CommandContext;
use crate::failure::{CliError, Outcome};
use crate::output::{self, BOLD, RESET};

/// Show a run: status, steps, jobs, emitted events and result
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline show RUN --json")]
pub struct Args {
    /// The run's id
    run: String,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let run = context.run_key(&args.run)?;
    let view = context.operator()?.show(&run).await?;
    context.answer(&view, || print(&view))
}

fn print(view: &RunView) -> Result<(), CliError> {
    let RunView { row, parts, machine } = view;
    let field = |name: &str, value: String| match value.is_empty() {
        true => Ok(()),
        false => output::line(&format!("{BOLD}{name:<12}{RESET}{value}")),
    };
    let date = |time: Option<flowline::core::Time>| time.map_or(String::new(), output::date);
    let labels: Vec<String> = row.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    field("run", row.run_id.to_string())?;
    field("flow", format!("{} ({})", row.flow_name, row.definition.chars().take(12).collect::<String>()))?;
    field("status", output::status(row.status))?;
    field("state", row.state.as_deref().unwrap_or_default().to_owned())?;
    for (name, value) in machine.iter().flat_map(position) {
        field(name, output::clean(&value).into_owned())?;
    }
    field("created", output::date(row.created_at))?;
    field("started", date(row.started_at))?;
    field("ended", date(row.completed_at))?;
    field("duration", row.duration.map_or(String::new(), output::millis))?;
    field("labels", output::clean(&labels.join(" ")).into_owned())?;
    field("key", row.idempotency_key.as_deref().map_or(String::new(), |key| output::clip(key, 256)))?;
    field("retry of", row.retry_of.as_ref().map_or(String::new(), ToString::to_string))?;
    field("emitted", parts.emitted_events.join(", "))?;
    // A machine has said what it accepts.
    let said = row.status.is_terminal() || machine.is_some();
    field("awaits", if said { String::new() } else { parts.awaits.join(", ") })?;
    let trimmed = if row.events_trimmed { " (removed by retention)" } else { "" };
    field("events", format!("{}{trimmed}", row.events))?;
    field("kept", kept(row))?;
    field("error", parts.error.as_deref().map_or(String::new(), |error| output::clip(error, 2000)))?;
    field("result", parts.result.as_ref().map_or(String::new(), |result| output::clip(result.get(), 2000)))?;
    output::line("")?;
    output::table(
        &["step", "status", "attempts", "duration", "error"],
        parts.steps.iter().map(step).collect(),
    )?;
    if !parts.jobs.is_empty() {
        output::line("")?;
        let head = ["job", "state", "attempt", "queue", "needs", "due", "worker", "lease until"];
        output::table(&head, parts.jobs.iter().map(job).collect())?;
    }
    Ok(())
}

/// How long the definition keeps the run, where it says so.
fn kept(row: &RunRow) -> String {
    let part = |what: &str, kept: Duration| match row.completed_at {
        Some(end) => format!("{what} until {}", output::date(end + kept)),
        None => format!("{what} for {} after the end", format_duration(kept)),
    };
    let retain = row.retain.unwrap_or_default();
    let events = retain.events.filter(|_| !row.events_trimmed).map(|kept| part("events", kept));
    let parts: Vec<String> = events.into_iter().chain(retain.runs.map(|kept| part("run", kept))).collect();
    parts.join(", ")
}

/// Where a machine stands, by name of what is said.
fn position(machine: &Position) -> Vec<(&'static str, String)> {
    let list = |texts: Vec<String>| texts.join(", ");
    let inbox = if machine.inbox == 0 { String::new() } else { format!("{} waiting", machine.inbox) };
    vec![
        ("context", output::clip(machine.context.get(), 2000)),
        ("accepts", list(machine.accepts.iter().map(ToString::to_string).collect())),
        ("turn", machine.turn.as_ref().map_or(String::new(), ToString::to_string)),
        ("inbox", inbox),
        ("timers", list(machine.timers.iter().map(ToString::to_string).collect())),
    ]
}

fn step(step: &StepView) -> Vec<String> {
    vec![
        step.name.to_string(),
        step.status.to_string(),
        if step.attempts == 0 { String::new() } else { step.attempts.to_string() },
        step.duration_ms.map_or(String::new(), output::millis),
        step.error.as_deref().map_or(String::new(), |error| output::clip(error, 80)),
    ]
}

fn job(job: &JobRow) -> Vec<String> {
    let state = match job.state {
        JobState::Waiting => "waiting",
        JobState::Held => "held",
        JobState::Leased => "leased",
    };
    vec![
        job.name.to_string(),
        state.to_owned(),
        job.attempt.to_string(),
        job.queue.to_string(),
        job.need.to_string(),
        output::date(job.due),
        job.worker.as_deref().unwrap_or_default().to_owned(),
        job.expires.map_or(String::new(), output::date),
    ]
}
