//! `flowline reconcile`: reports what the log contradicts, and mends it on command.

use flowline::Plans;
use flowline::reconcile::{Mode, reconcile};

use super::CommandContext;
use crate::failure::{Exit, Outcome};
use crate::open::StoreAccess;
use crate::output;

/// Find what doesn't match the event logs, and fix it with --repair
///
/// The log is the source of truth: --repair rewrites rows and counters from it, and adds missing jobs and terminal events.
/// Damage in a log itself is only reported.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline reconcile\n  flowline reconcile --repair")]
pub struct Args {
    /// Fix what can be fixed
    #[arg(long)]
    repair: bool,
    /// Check all tenants, not only one
    #[arg(long)]
    all_tenants: bool,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let (mode, access) = match args.repair {
        true => (Mode::Repair, StoreAccess::Existing),
        false => (Mode::Report, StoreAccess::Reader),
    };
    let store = context.open(access).await?;
    let only = (!args.all_tenants).then_some(&context.settings.tenant.value);
    let done = reconcile(&*store, &Plans::default(), only, mode).await?;
    let left = done.findings.iter().filter(|finding| !finding.repaired).count();
    if context.json {
        output::json(&done)?;
    } else {
        for finding in &done.findings {
            let violation = &finding.violation;
            let run = violation.run_id.as_ref().map_or(String::new(), |run| format!("run {run}: "));
            let what = if finding.repaired { "repaired" } else { "found   " };
            output::line(&format!("{what} {run}{}", output::clean(&violation.message)))?;
        }
        let runs = output::count(done.runs, "run");
        let repaired = done.findings.len() - left;
        output::line(&format!("{runs}: {} found, {repaired} repaired", done.findings.len()))?;
        if left > 0 && mode == Mode::Report {
            output::note("help: take a backup, then fix this with `flowline reconcile --repair`");
        }
    }
    Ok(if left == 0 { Exit::Fine } else { Exit::Found })
}
