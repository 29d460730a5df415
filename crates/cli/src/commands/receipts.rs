//! `flowline receipts`: what became of the events that machines took in.

use flowline::store::{ReceiptQuery, ReceiptStatus};
use flowline_api::events::ReceiptView;

use super::CommandContext;
use crate::failure::{Exit, Outcome};
use crate::output;

/// List receipts: what happened to the events sent to machines, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline receipts --status failed\n  flowline receipts --run RUN --json")]
pub struct Args {
    /// Only receipts of this run
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Only receipts with this status: pending, processing, completed or failed
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<ReceiptStatus>,
    /// Only receipts that this instance wrote; with --status processing, those whose actions it's running
    #[arg(long, value_name = "INSTANCE")]
    worker: Option<String>,
    /// Receipts per page, up to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Continue after an earlier page: the cursor it ended with
    #[arg(long, value_name = "CURSOR", conflicts_with = "all")]
    cursor: Option<String>,
    /// Fetch all pages
    #[arg(long)]
    all: bool,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let mut query = ReceiptQuery {
        run: args.run.as_deref().map(|run| context.run_key(run)).transpose()?.map(|run| run.run),
        status: args.status,
        worker: args.worker,
        after: args.cursor,
        limit: usize::from(args.limit),
        ..ReceiptQuery::of(context.settings.tenant.value.clone())
    };
    let operator = context.operator()?;
    let mut page = operator.receipts(query.clone()).await?;
    while args.all
        && let Some(cursor) = page.next.take()
    {
        query.after = Some(cursor);
        page.extend(operator.receipts(query.clone()).await?);
    }
    if context.json {
        output::json(&page)?;
        return Ok(Exit::Fine);
    }
    if page.items.is_empty() {
        output::note("no receipts found");
        return Ok(Exit::Fine);
    }
    let head = ["event", "run", "name", "status", "received", "worker", "tries", "outcome"];
    output::table(&head, page.items.iter().map(cells).collect())?;
    let more = page.next.map_or(String::new(), |next| format!("; more with --cursor {next} or --all"));
    output::note(&format!("{}{more}", output::count(page.items.len() as u64, "receipt")));
    Ok(Exit::Fine)
}

fn cells(receipt: &ReceiptView) -> Vec<String> {
    vec![
        output::clip(&receipt.event_id, 36),
        receipt.run_id.to_string(),
        receipt.name.to_string(),
        receipt.status.as_str().to_owned(),
        output::date(receipt.received_at),
        receipt.worker.as_deref().map_or(String::new(), |worker| output::clip(worker, 40)),
        receipt.tries.map_or(String::new(), |tries| tries.to_string()),
        output::clip(&receipt.said(), 80),
    ]
}

fn status(text: &str) -> Result<ReceiptStatus, String> {
    ReceiptStatus::parse(text).ok_or_else(|| "use pending, processing, completed or failed".to_owned())
}
