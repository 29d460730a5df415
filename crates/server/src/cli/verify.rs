//! `flowline verify`: folds every log again and compares.

use flowline::plans::Plans;
use flowline::verify::verify;

use super::Context;
use crate::failure::{Exit, Outcome};
use crate::open::Access;
use crate::output;

/// Fold every log again and compare it with rows, counters and jobs
///
/// Changes nothing. Ends with exit code 1 where something does not hold; `flowline reconcile --repair` mends it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline verify --json")]
pub struct Args {
    /// Every tenant, not only one
    #[arg(long)]
    all_tenants: bool,
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    let store = context.open(Access::Reader).await?;
    let only = (!args.all_tenants).then_some(&context.settings.tenant.value);
    let report = verify(&*store, &Plans::default(), only).await?;
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
