//! `flowline delete`: removes runs that have ended, one or all that a filter lets through.

use flowline::Engine;
use flowline::core::{RunKey, Status};
use flowline::store::RunRow;
use flowline::store::query::{MAX_PAGE, WantTotal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Context;
use super::runs::FilterFlags;
use crate::failure::{Exit, Failure, Outcome};
use crate::open::Access;
use crate::output;
use crate::target::{Server, Target};

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

/// A run that was removed, or would be.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    run_id: String,
    flow_name: String,
    status: Status,
}

impl Item {
    fn of(row: &RunRow) -> Item {
        Item { run_id: row.run_id.to_string(), flow_name: row.flow_name.to_string(), status: row.status }
    }
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    match &args.run {
        Some(run) => one(context, &context.run_key(run)?).await,
        None if args.all || args.filter.narrows() => many(context, &args).await,
        None => Err(Failure::usage("no runs to delete were named").help(
            "name a run, or filters such as --flow and --status, or --all for every run that has ended",
        )),
    }
}

async fn one(context: &Context, run: &RunKey) -> Outcome {
    match context.target()? {
        Target::Store => {
            let engine = context.operator(Access::Existing).await?;
            let deleted = engine.delete(run).await;
            engine.stop().await;
            deleted?;
        }
        Target::Server(server) => server.delete(&format!("/v1/runs/{}", run.run)).await?,
    }
    if context.json {
        output::json(&json!({ "runId": run.run, "deleted": true }))?;
    } else {
        output::line(&format!("run {} is deleted", run.run))?;
    }
    Ok(Exit::Fine)
}

async fn many(context: &Context, args: &Args) -> Outcome {
    if args.filter.status.is_some_and(|status| !status.is_terminal()) {
        return Err(Failure::usage("only runs that have ended can be deleted")
            .help("--status takes completed, failed or cancelled here; `flowline cancel RUN` ends a run"));
    }
    let items = match context.target()? {
        Target::Store => {
            let engine = context.operator(Access::Existing).await?;
            let items = delete_here(context, &engine, args).await;
            engine.stop().await;
            items?
        }
        Target::Server(server) => ask(&server, args).await?,
    };
    if context.json {
        output::json(
            &json!({ "deleted": if args.dry_run { 0 } else { items.len() }, "dryRun": args.dry_run, "items": items }),
        )?;
        return Ok(Exit::Fine);
    }
    let count = output::count(items.len() as u64, "run");
    if args.dry_run {
        for Item { run_id, flow_name, status } in &items {
            output::line(&format!("{run_id}  {flow_name}  {status}"))?;
        }
        output::note(&format!("{count} would be deleted"));
    } else {
        output::line(&format!("{count} deleted"))?;
    }
    Ok(Exit::Fine)
}

async fn delete_here(context: &Context, engine: &Engine, args: &Args) -> Result<Vec<Item>, Failure> {
    let store = engine.store();
    let tenant = context.settings.tenant.value.clone();
    let mut query = args.filter.query(tenant, store.now().await?)?;
    (query.limit, query.total) = (MAX_PAGE, WantTotal::No);
    let mut items = Vec::new();
    loop {
        let page = store.runs(query.clone()).await?;
        let ended: Vec<&RunRow> = page.items.iter().filter(|row| row.status.is_terminal()).collect();
        let keys: Vec<RunKey> = ended.iter().map(|row| row.key()).collect();
        let gone = if args.dry_run { vec![true; keys.len()] } else { store.delete_runs(&keys).await? };
        items.extend(ended.iter().zip(gone).filter(|(_, gone)| *gone).map(|(row, _)| Item::of(row)));
        query.cursor = page.next;
        if query.cursor.is_none() {
            return Ok(items);
        }
    }
}

/// A page of what a server did.
#[derive(Debug, Deserialize)]
struct Done {
    items: Vec<Value>,
    next: Option<String>,
}

async fn ask(server: &Server, args: &Args) -> Result<Vec<Item>, Failure> {
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut body =
            json!({ "action": "delete", "filter": args.filter.to_json()?, "dryRun": args.dry_run });
        if let Some(cursor) = cursor {
            body["cursor"] = json!(cursor);
        }
        let done: Done = server.post("/v1/runs/bulk", &body).await?;
        for item in done.items.into_iter().filter(|item| item["error"].is_null()) {
            let item = serde_json::from_value(item)
                .map_err(|error| crate::target::misread("/v1/runs/bulk", &error))?;
            items.push(item);
        }
        cursor = done.next;
        if cursor.is_none() {
            return Ok(items);
        }
    }
}
