//! `flowline verify`: folds every log again and compares.

use super::CommandContext;
use crate::failure::{Exit, Outcome};
use crate::output;

/// Check every run in the store against its event log
///
/// Recomputes runs, counters and jobs from the logs and compares them with the store. Changes nothing. Exits with 1 if
/// something doesn't match; `flowline reconcile --repair` fixes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline verify --json")]
pub struct Args {
    /// Check all tenants, not only one
    #[arg(long)]
    all_tenants: bool,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let report = context.operator()?.verify(args.all_tenants).await?;
    if context.json {
        output::json(&report)?;
    } else {
        for violation in &report.violations {
            let run = violation.run_id.as_ref().map_or(String::new(), |run| format!("run {run}: "));
            output::line(&format!("{} {run}{}", violation.invariant, output::clean(&violation.message)))?;
        }
        let [runs, events] = [output::count(report.runs, "run"), output::count(report.events, "event")];
        let found = output::count(report.violations.len() as u64, "violation");
        output::line(&format!("{runs}, {events}: {found}"))?;
    }
    Ok(if report.violations.is_empty() { Exit::Fine } else { Exit::Found })
}
