//! `flowline retain`: removes ended runs that are over their time.

use std::time::Duration;

use flowline::retain::retain_all;
use flowline::store::row::Retention;

use super::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::open::Access;
use crate::output;
use crate::settings;

/// Remove ended runs that are over their time
///
/// Counted from the end of each run: first its events go, then the run itself. Runs that have not ended are never
/// touched. A working engine does this by itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline retain --events 7d --runs 30d")]
pub struct Args {
    /// Keep events this long
    #[arg(long, value_name = "DURATION", value_parser = settings::duration, default_value = "7d")]
    events: Duration,
    /// Keep runs this long
    #[arg(long, value_name = "DURATION", value_parser = settings::duration, default_value = "30d")]
    runs: Duration,
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    if args.events > args.runs {
        return Err(Failure::usage("--events is longer than --runs; the events of a run go with it")
            .help("give --runs at least the time of --events"));
    }
    let store = context.open(Access::Existing).await?;
    let done = retain_all(&*store, Retention { events: args.events, runs: args.runs }).await?;
    if context.json {
        output::json(&done)?;
    } else {
        let [trimmed, removed] = [done.trimmed, done.removed].map(|n| output::count(n, "run"));
        output::line(&format!("events of {trimmed} and {removed} altogether removed"))?;
    }
    Ok(Exit::Fine)
}
