//! `flowline events`: the log of a run, also while it grows.

use flowline::core::event::{EventType, seq_of_id};
use flowline::core::{Event, Json};
use flowline::store::EventQuery;
use flowline_server::view::EventData;

use super::CommandContext;
use crate::failure::{CliError, Exit, Outcome};
use crate::happened;
use crate::output::{self, BOLD, DIM, RESET};

/// Characters of a payload on a line for people; --json has it whole.
const TEXT: usize = 160;

/// Show a run's event log
///
/// Prints one line per event, or one JSON object per line with --json. Works while engines are running.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline events RUN --type step.failed --type step.retry\n  \
                        flowline events RUN --follow --json")]
pub struct Args {
    /// The run's id
    run: String,
    /// Only events of this type; repeatable
    #[arg(long = "type", value_name = "TYPE", value_parser = kind)]
    kinds: Vec<EventType>,
    /// Only events of this step
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Only events of this attempt
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Only events after this one: an event id or its number
    #[arg(long, value_name = "ID", value_parser = after)]
    after: Option<u64>,
    /// Keep printing new events until the run ends
    #[arg(long)]
    follow: bool,
    /// Show at most this many events
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let run = context.run_key(&args.run)?;
    let query = EventQuery {
        after: args.after.unwrap_or(0),
        kinds: args.kinds,
        step: args.step,
        attempt: args.attempt,
        ..EventQuery::default()
    };
    let mut log = context.operator()?.log(run, query).await?;
    if log.is_trimmed() {
        output::note("the events of this run were removed by retention");
    }
    let mut left = args.limit.unwrap_or(u64::MAX);
    // Whether the run had ended before the log was last read to its end.
    let mut ended = !args.follow;
    while left > 0 {
        match log.ready().await? {
            Some(event) => {
                show(context, &event)?;
                left -= 1;
            }
            None if ended => break,
            None => ended = log.wait().await?,
        }
    }
    Ok(Exit::Fine)
}

fn show(context: &CommandContext, event: &Event) -> Result<(), CliError> {
    if context.json {
        return output::json(event);
    }
    let time = event.ts.to_string();
    let of = match (&event.step_name, event.attempt) {
        (Some(step), Some(attempt)) if attempt > 1 => format!(" {step} #{attempt}"),
        (Some(step), _) => format!(" {step}"),
        (None, _) => String::new(),
    };
    let text = said(event);
    let line =
        format!("{DIM}{time} {:>4}{RESET} {BOLD}{:<14}{RESET}{of}{text}", event.seq, event.kind.as_str());
    Ok(output::line(line.trim_end())?)
}

/// What an event says, in words.
fn said(event: &Event) -> String {
    let data = EventData::of(event);
    let payload = |json: Option<Json>| match json {
        Some(json) if !json.is_null() => format!(" {}", output::clip(json.get(), TEXT)),
        _ => String::new(),
    };
    let text =
        |text: Option<String>| text.map_or(String::new(), |text| format!(": {}", output::clip(&text, TEXT)));
    match event.kind {
        EventType::FlowStart => payload(data.input),
        EventType::FlowCompleted | EventType::StepCompleted => payload(data.result),
        EventType::FlowFailed | EventType::StepFailed => text(data.error),
        EventType::StepRetry => {
            format!(" retry in {}{}", output::millis(data.delay_ms.unwrap_or(0)), text(data.error))
        }
        EventType::FlowCancelled | EventType::StepSkipped => text(data.reason),
        EventType::Emit => {
            format!(" {}{}", output::clean(&data.name.unwrap_or_default()), payload(data.payload))
        }
        EventType::Log => format!(" [{}]{}", data.level.unwrap_or_default(), text(data.message)),
        EventType::State => {
            let of = |text: Option<String>| output::clip(&text.unwrap_or_default(), TEXT);
            format!(" {} {} {}", of(data.operation), of(data.scope), of(data.key))
        }
        _ => happened::words(event).map_or(String::new(), |words| format!(" {words}")),
    }
}

fn kind(text: &str) -> Result<EventType, String> {
    EventType::parse(text).ok_or_else(|| {
        let all: Vec<&str> = EventType::written().map(EventType::as_str).collect();
        format!("the types are {}", all.join(", "))
    })
}

/// An event's id, or only its number.
fn after(text: &str) -> Result<u64, String> {
    seq_of_id(text)
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "write an event id (1761754554834-7) or its number (7)".to_owned())
}
