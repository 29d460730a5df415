//! `flowline verify`: folds every log again and compares.

use flowline::plans::Plans;
use flowline::verify::{Report, verify};
use serde_json::json;

use super::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::open::Access;
use crate::output;
use crate::target::Target;

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
    let report = match context.target()? {
        Target::Store => {
            let store = context.open(Access::Reader).await?;
            let only = (!args.all_tenants).then_some(&context.settings.tenant.value);
            verify(&*store, &Plans::default(), only).await?
        }
        Target::Server(_) if args.all_tenants => {
            return Err(Failure::usage("a server answers for one tenant")
                .help("leave --all-tenants out, or name the store with --store"));
        }
        Target::Server(server) => server.post::<Report>("/v1/verify", &json!({})).await?,
    };
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
