//! `flowline runs`: the runs of a store, newest first.

use flowline::store::RunRow;
use flowline_server::filter::{RunFilter, check};

use super::CommandContext;
use crate::failure::{Exit, Outcome};
use crate::operator::RunsPage;
use crate::output;

/// List runs, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline runs --flow fulfil-order --status failed --since 24h")]
pub struct Args {
    #[command(flatten)]
    filter: FilterFlags,
    /// Only runs of a machine in this state
    #[arg(long, value_name = "STATE", requires = "flow")]
    state: Option<String>,
    /// Runs per page, up to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Continue after an earlier page: the cursor it ended with
    #[arg(long, value_name = "CURSOR", conflicts_with = "all")]
    cursor: Option<String>,
    /// Fetch all pages
    #[arg(long)]
    all: bool,
}

/// Which runs.
#[derive(Debug, Clone, clap::Args)]
pub struct FilterFlags {
    /// Only runs of this flow
    #[arg(long, value_name = "FLOW")]
    flow: Option<String>,
    /// Only runs with this status: running, waiting, paused, completed, failed or cancelled
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<String>,
    /// Only runs with this label
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Option<String>,
    /// Only runs created at or after TIME: a timestamp (2026-01-31T12:00:00Z) or an age (24h)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only runs created before TIME: a timestamp or an age
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl FilterFlags {
    pub fn filter(self, state: Option<String>) -> RunFilter {
        let FilterFlags { flow, status, label, since, until } = self;
        RunFilter { flow, status, state, label, since, until }
    }
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let filter = args.filter.filter(args.state);
    let mut asked = RunsPage { filter, limit: Some(args.limit), cursor: args.cursor, without_total: false };
    let operator = context.operator()?;
    let mut page = operator.runs(&asked).await?;
    while args.all
        && let Some(cursor) = page.next.take()
    {
        (asked.cursor, asked.without_total) = (Some(cursor), true);
        let later = operator.runs(&asked).await?;
        page.items.extend(later.items);
        (page.next, page.has_more) = (later.next, later.has_more);
    }
    if context.json {
        output::json(&page)?;
        return Ok(Exit::Fine);
    }
    if page.items.is_empty() {
        output::note("no runs found");
        return Ok(Exit::Fine);
    }
    output::table(
        &["run", "flow", "status", "created", "duration", "steps", "labels"],
        page.items.iter().map(cells).collect(),
    )?;
    let of = match (page.total, page.total_at_least) {
        (Some(n), _) => format!(" of {n}"),
        (None, Some(n)) => format!(" of at least {n}"),
        (None, None) => String::new(),
    };
    let more = page.next.map_or(String::new(), |next| format!("; more with --cursor {next} or --all"));
    output::note(&format!("{}{of}{more}", page.items.len()));
    Ok(Exit::Fine)
}

fn cells(row: &RunRow) -> Vec<String> {
    let labels: Vec<String> = row.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    vec![
        row.run_id.to_string(),
        row.flow_name.to_string(),
        row.state.as_ref().map_or(row.status.to_string(), |state| format!("{} in {state}", row.status)),
        output::date(row.created_at),
        row.duration.map_or(String::new(), output::millis),
        format!("{}/{}", row.completed_steps, row.step_count),
        output::clip(&labels.join(" "), 60),
    ]
}

fn status(text: &str) -> Result<String, String> {
    checked(text, RunFilter { status: Some(text.to_owned()), ..RunFilter::default() })
}

fn label(text: &str) -> Result<String, String> {
    checked(text, RunFilter { label: Some(text.to_owned()), ..RunFilter::default() })
}

fn checked(text: &str, filter: RunFilter) -> Result<String, String> {
    check(&filter).map(|()| text.to_owned()).map_err(|error| error.problem)
}
