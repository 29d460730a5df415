//! `flowline runs`: the runs of a store, newest first.

use flowline::core::{Status, Tenant, Time};
use flowline::store::query::WantTotal;
use flowline::store::{RunQuery, RunRow};
use flowline_api::runs::RunList;
use flowline_server::view::run_list;
use serde_json::{Map, Value};

use super::Context;
use super::start::label;
use crate::failure::{Exit, Failure, Outcome};
use crate::open::Access;
use crate::output;
use crate::target::{Server, Target};

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
    pub flow: Option<String>,
    /// Only runs with this status: running, waiting, paused, completed, failed or cancelled
    #[arg(long, value_name = "STATUS", value_parser = status)]
    pub status: Option<Status>,
    /// Only runs with this label
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    label: Option<(String, String)>,
    /// Only runs created at or after TIME: a timestamp (2026-01-31T12:00:00Z) or an age (24h)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only runs created before TIME: a timestamp or an age
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

impl FilterFlags {
    /// Whether it leaves any run out.
    pub fn narrows(&self) -> bool {
        self.flow.is_some()
            || self.status.is_some()
            || self.label.is_some()
            || self.since.is_some()
            || self.until.is_some()
    }

    pub fn query(&self, tenant: Tenant, now: Time) -> Result<RunQuery, Failure> {
        Ok(RunQuery {
            flow: self.flow.clone(),
            status: self.status,
            label: self.label.clone(),
            since: self.since.as_deref().map(|text| moment("--since", text, now)).transpose()?,
            until: self.until.as_deref().map(|text| moment("--until", text, now)).transpose()?,
            ..RunQuery::of(tenant)
        })
    }

    /// As parameters of the API. Times are checked here, so that a mistake is told by the flag's name.
    fn parameters(&self) -> Result<[(&'static str, Option<String>); 5], Failure> {
        self.query(Tenant::default(), Time::default())?;
        let label = self.label.as_ref().map(|(name, value)| format!("{name}={value}"));
        Ok([
            ("flow", self.flow.clone()),
            ("status", self.status.map(|status| status.to_string())),
            ("label", label),
            ("since", self.since.clone()),
            ("until", self.until.clone()),
        ])
    }

    /// As the body of a bulk request has it.
    pub fn to_json(&self) -> Result<Value, Failure> {
        let given = self.parameters()?.into_iter().filter_map(|(name, value)| Some((name, value?)));
        Ok(given.map(|(name, value)| (name.to_owned(), Value::from(value))).collect::<Map<_, _>>().into())
    }
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    let page = match context.target()? {
        Target::Store => read(context, args).await?,
        Target::Server(server) => ask(&server, args).await?,
    };
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

async fn read(context: &Context, args: Args) -> Result<RunList, Failure> {
    let store = context.open(Access::Reader).await?;
    let mut query = RunQuery {
        state: args.state,
        cursor: args.cursor,
        limit: usize::from(args.limit),
        ..args.filter.query(context.settings.tenant.value.clone(), store.now().await?)?
    };
    let first = run_list(store.runs(query.clone()).await?);
    pages(first, args.all, async |cursor| {
        query.cursor = Some(cursor);
        query.total = WantTotal::No;
        Ok(run_list(store.runs(query.clone()).await?))
    })
    .await
}

async fn ask(server: &Server, args: Args) -> Result<RunList, Failure> {
    let filter = args.filter.parameters()?;
    let page = async |cursor: Option<String>, total: Option<&str>| {
        let others = [
            ("state", args.state.clone()),
            ("limit", Some(args.limit.to_string())),
            ("cursor", cursor),
            ("total", total.map(str::to_owned)),
        ];
        let parameters: Vec<(&str, Option<String>)> = filter.iter().cloned().chain(others).collect();
        server.find("/v1/runs", &parameters).await
    };
    let first = page(args.cursor.clone(), None).await?;
    pages(first, args.all, async |cursor| page(Some(cursor), Some("false")).await).await
}

/// The first page, and where all are asked for the others on it too.
async fn pages(
    mut first: RunList,
    all: bool,
    mut next: impl AsyncFnMut(String) -> Result<RunList, Failure>,
) -> Result<RunList, Failure> {
    while all && let Some(cursor) = first.next.take() {
        let page = next(cursor).await?;
        first.items.extend(page.items);
        (first.next, first.has_more) = (page.next, page.has_more);
    }
    Ok(first)
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

/// A time as it is, or a duration before now.
fn moment(flag: &str, text: &str, now: Time) -> Result<Time, Failure> {
    flowline_server::filter::moment(text, now).ok_or_else(|| {
        Failure::usage(format!("{flag} {text:?} is neither a timestamp nor an age"))
            .help("write a timestamp such as 2026-01-31T12:00:00Z, or an age such as 24h")
    })
}

fn status(text: &str) -> Result<Status, String> {
    Status::parse(text)
        .ok_or_else(|| "use running, waiting, paused, completed, failed or cancelled".to_owned())
}
