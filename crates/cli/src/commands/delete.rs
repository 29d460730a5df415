//! `flowline delete`: removes runs that have ended, one or all that a filter lets through.

use flowline::core::{RunKey, Status};
use flowline_server::filter::RunFilter;
use serde_json::json;

use super::CommandContext;
use super::runs::FilterFlags;
use crate::failure::{CliError, Exit, Outcome};
use crate::operator::{DeletedRun, RunsPage};
use crate::output;

/// Delete runs that have ended
///
/// Deletes each run with its events, state and receipts, even if retention would keep it, and frees its idempotency key. A
/// run that hasn't ended can't be deleted, and filters skip it: cancel it first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline delete RUN\n  flowline delete --flow import --status failed --until 7d --dry-run"
)]
pub struct Args {
    /// Run to delete
    #[arg(conflicts_with_all = ["flow", "status", "label", "since", "until", "all", "dry_run"])]
    run: Option<String>,
    #[command(flatten)]
    filter: FilterFlags,
    /// Delete every run that has ended
    #[arg(long)]
    all: bool,
    /// Only show which runs would be deleted
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    if let Some(run) = &args.run {
        return one(context, &context.run_key(run)?).await;
    }
    let filter = args.filter.filter(None);
    if filter.is_empty() && !args.all {
        return Err(CliError::usage("no runs were selected").help(
            "name a run, or filters such as --flow and --status, or --all for every run that has ended",
        ));
    }
    many(context, filter, args.dry_run).await
}

async fn one(context: &CommandContext, run: &RunKey) -> Outcome {
    context.operator()?.delete(run).await?;
    context.answer(&json!({ "runId": run.run, "deleted": true }), || {
        output::line(&format!("run {} is deleted", run.run))
    })
}

async fn many(context: &CommandContext, filter: RunFilter, dry_run: bool) -> Outcome {
    let status = filter.status.as_deref().and_then(Status::parse);
    if status.is_some_and(|status| !status.is_terminal()) {
        return Err(CliError::usage("only runs that have ended can be deleted")
            .help("--status takes completed, failed or cancelled here; `flowline cancel RUN` ends a run"));
    }
    let operator = context.operator()?;
    let mut page = RunsPage { filter, without_total: true, ..RunsPage::default() };
    let mut items = Vec::new();
    loop {
        let deleted = operator.delete_page(&page, dry_run).await?;
        items.extend(deleted.items);
        page.cursor = deleted.next;
        if page.cursor.is_none() {
            break;
        }
    }
    if context.json {
        output::json(
            &json!({ "deleted": if dry_run { 0 } else { items.len() }, "dryRun": dry_run, "items": items }),
        )?;
        return Ok(Exit::Fine);
    }
    let count = output::count(items.len() as u64, "run");
    if dry_run {
        for DeletedRun { run_id, flow_name, status } in &items {
            output::line(&format!("{run_id}  {flow_name}  {status}"))?;
        }
        output::note(&format!("{count} would be deleted"));
    } else {
        output::line(&format!("{count} deleted"))?;
    }
    Ok(Exit::Fine)
}
