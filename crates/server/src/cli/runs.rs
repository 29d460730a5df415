//! `flowline runs`: the runs of a store, newest first.

use flowline::core::{Status, Time};
use flowline::store::query::WantTotal;
use flowline::store::{RunQuery, RunRow, Store, Total};
use serde_json::{Value, json};

use super::Context;
use super::start::label;
use crate::failure::{Exit, Failure, Outcome};
use crate::open::Access;
use crate::output;

/// List runs, newest first
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline runs --flow fulfil-order --status failed --since 24h")]
pub struct Args {
    /// Only runs of this flow
    #[arg(long, value_name = "FLOW")]
    flow: Option<String>,
    /// running, waiting, paused, completed, failed or cancelled
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<Status>,
    /// Only runs with this label
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Option<(String, String)>,
    /// Created at or after: a time, or so long ago
    #[arg(long, value_name = "TIME|DURATION")]
    since: Option<String>,
    /// Created before: a time, or so long ago
    #[arg(long, value_name = "TIME|DURATION")]
    until: Option<String>,
    /// Runs on a page, up to 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Where the page before ended (its `next`)
    #[arg(long, value_name = "CURSOR", conflicts_with = "all")]
    cursor: Option<String>,
    /// All pages
    #[arg(long)]
    all: bool,
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    let store = context.open(Access::Reader).await?;
    let now = store.now().await?;
    let mut query = RunQuery {
        flow: args.flow,
        status: args.status,
        label: args.label,
        since: args.since.as_deref().map(|text| moment("--since", text, now)).transpose()?,
        until: args.until.as_deref().map(|text| moment("--until", text, now)).transpose()?,
        cursor: args.cursor,
        limit: usize::from(args.limit),
        ..RunQuery::of(context.settings.tenant.value.clone())
    };
    let (items, total, next) = read(&*store, &mut query, args.all).await?;
    if context.json {
        let mut answer = json!({ "items": items, "hasMore": next.is_some(), "next": next });
        match total {
            Some(Total::Exact(n)) => answer["total"] = json!(n),
            Some(Total::AtLeast(n)) => answer["totalAtLeast"] = json!(n),
            None => answer["total"] = Value::Null,
        }
        output::json(&answer)?;
        return Ok(Exit::Fine);
    }
    if items.is_empty() {
        output::note("there are no such runs");
        return Ok(Exit::Fine);
    }
    let shown = items.len();
    output::table(
        &["run", "flow", "status", "created", "duration", "steps", "labels"],
        items.iter().map(cells).collect(),
    )?;
    let of = match total {
        Some(Total::Exact(n)) => format!(" of {n}"),
        Some(Total::AtLeast(n)) => format!(" of at least {n}"),
        None => String::new(),
    };
    let more = next.map_or(String::new(), |next| format!("; more with --cursor {next} or --all"));
    output::note(&format!("{shown}{of}{more}"));
    Ok(Exit::Fine)
}

async fn read(
    store: &dyn Store,
    query: &mut RunQuery,
    all: bool,
) -> Result<(Vec<RunRow>, Option<Total>, Option<String>), Failure> {
    let first = store.runs(query.clone()).await?;
    let (mut items, total, mut next) = (first.items, first.total, first.next);
    query.total = WantTotal::No;
    while all && next.is_some() {
        query.cursor = next;
        let page = store.runs(query.clone()).await?;
        items.extend(page.items);
        next = page.next;
    }
    Ok((items, total, next))
}

fn cells(row: &RunRow) -> Vec<String> {
    let labels: Vec<String> = row.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    vec![
        row.run_id.to_string(),
        row.flow_name.to_string(),
        row.status.to_string(),
        output::date(row.created_at),
        row.duration.map_or(String::new(), output::millis),
        format!("{}/{}", row.completed_steps, row.step_count),
        output::clip(&labels.join(" "), 60),
    ]
}

/// A time as it is, or a duration before now.
fn moment(flag: &str, text: &str, now: Time) -> Result<Time, Failure> {
    crate::http::request::moment(text, now).ok_or_else(|| {
        Failure::usage(format!("{flag} {text:?} is neither a time nor a duration"))
            .help("write 2026-01-31T12:00:00Z, or 24h for a day ago")
    })
}

fn status(text: &str) -> Result<Status, String> {
    Status::parse(text)
        .ok_or_else(|| "it is none of running, waiting, paused, completed, failed, cancelled".to_owned())
}
