//! `flowline retain`: removes ended runs that are over their time.

use flowline::retain::retain_all;

use super::CommandContext;
use crate::failure::{Exit, Outcome};
use crate::open::StoreAccess;
use crate::output;

/// Delete ended runs whose retention time has passed
///
/// Times count from the end of each run: first its events are deleted, later the run itself. Runs that haven't ended are
/// never touched. A definition's own `retain` takes precedence. A running engine does this automatically.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline retain --events 7d --runs 30d")]
pub struct Args {
    // The flags of settings under names of their own, so they have the settings' ids.
    /// Keep events this long [default: the setting keep-events, 7d]
    #[arg(id = "setting keep_events", long = "events", value_name = "DURATION")]
    events: Option<String>,
    /// Keep runs this long [default: the setting keep-runs, 30d]
    #[arg(id = "setting keep_runs", long = "runs", value_name = "DURATION")]
    runs: Option<String>,
}

pub async fn run(context: &CommandContext) -> Outcome {
    let store = context.open(StoreAccess::Existing).await?;
    let done = retain_all(&*store, context.settings.retention()).await?;
    if context.json {
        output::json(&done)?;
    } else {
        let [trimmed, removed] = [done.trimmed, done.removed].map(|n| output::count(n, "run"));
        output::line(&format!("events of {trimmed} removed, {removed} removed completely"))?;
    }
    Ok(Exit::Fine)
}
