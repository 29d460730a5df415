//! `flowline queues`: how deep each queue is; stops and opens queues.

use clap::Subcommand;
use flowline::core::ids::check_name;
use flowline::store::QueueRow;
use flowline::store::row::Pause;
use flowline_api::queues::QueueList;
use serde_json::json;

use super::CommandContext;
use crate::failure::{CliError, Exit, Outcome};
use crate::output;

/// Show queues and their jobs, or pause and resume one
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline queues\n  flowline queues pause reports")]
pub struct Args {
    #[command(subcommand)]
    command: Option<Change>,
}

#[derive(Debug, Subcommand)]
enum Change {
    /// Stop claiming jobs from a queue; running ones finish
    #[command(after_help = "Example:\n  flowline queues pause reports")]
    Pause { queue: String },
    /// Claim jobs from a paused queue again
    #[command(after_help = "Example:\n  flowline queues resume reports")]
    Resume { queue: String },
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    match args.command {
        None => list(context).await,
        Some(Change::Pause { queue }) => change(context, &queue, Pause::Paused).await,
        Some(Change::Resume { queue }) => change(context, &queue, Pause::Open).await,
    }
}

async fn list(context: &CommandContext) -> Outcome {
    let items = context.operator()?.queues().await?;
    if context.json {
        output::json(&QueueList { items })?;
    } else if items.is_empty() {
        output::note("all queues are empty, and none is paused");
    } else {
        let head = ["queue", "needs", "ready", "delayed", "held", "leased", "oldest", "paused"];
        output::table(&head, items.iter().map(cells).collect())?;
    }
    Ok(Exit::Fine)
}

fn cells(row: &QueueRow) -> Vec<String> {
    let [ready, delayed, held, leased] =
        [row.ready, row.delayed, row.held, row.leased].map(|n| n.to_string());
    let paused = if row.paused { "paused" } else { "" };
    let oldest = row.oldest.map_or(String::new(), output::date);
    vec![row.queue.to_string(), row.need.to_string(), ready, delayed, held, leased, oldest, paused.to_owned()]
}

async fn change(context: &CommandContext, queue: &str, pause: Pause) -> Outcome {
    check_name("queue", queue).map_err(|error| CliError::usage(error.to_string()))?;
    let paused = pause == Pause::Paused;
    context.operator()?.pause_queue(queue, pause).await?;
    context.answer(&json!({ "queue": queue, "paused": paused }), || {
        output::line(&format!("queue {queue} is {}", if paused { "paused" } else { "active" }))
    })
}
