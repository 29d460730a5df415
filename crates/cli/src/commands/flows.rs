//! `flowline flows`: the flows of a store, and which definition new runs use.

use std::collections::BTreeMap;

use clap::Subcommand;
use flowline::core::Status;
use flowline_api::flows::{DefinitionKind, FlowChanged, FlowList, FlowView};
use flowline_server::view::Versions;

use super::CommandContext;
use crate::failure::{Exit, Outcome};
use crate::output;

/// Characters of a hash that tell definitions apart for people.
const HASH: usize = 12;

/// List flows, roll back to a version, or retire a flow
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline flows --versions\n  flowline flows activate fulfil-order 3f2a91c04d7e"
)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// List every registered version, not only the latest of each flow
    #[arg(long)]
    versions: bool,
    #[command(subcommand)]
    command: Option<Change>,
}

#[derive(Debug, Subcommand)]
enum Change {
    /// Choose the version that new runs use
    ///
    /// Runs that have started keep their version. Also brings back a retired flow.
    #[command(after_help = "Example:\n  flowline flows activate fulfil-order 3f2a91c04d7e")]
    Activate {
        flow: String,
        /// The version's hash or its first characters, as in `flowline flows --versions`
        hash: String,
    },
    /// Stop starting new runs of a flow; existing runs continue
    ///
    /// To bring it back, register the flow again or activate a version.
    #[command(after_help = "Example:\n  flowline flows retire fulfil-order")]
    Retire { flow: String },
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    match &args.command {
        None => list(context, args).await,
        Some(Change::Activate { flow, hash }) => activate(context, flow, hash).await,
        Some(Change::Retire { flow }) => retire(context, flow).await,
    }
}

async fn activate(context: &CommandContext, flow: &str, hash: &str) -> Outcome {
    let changed = context.operator()?.activate(flow, hash).await?;
    let hash = changed.hash.as_deref().unwrap_or_default();
    tell(context, &changed, &format!("new runs of {flow} use {hash}"))
}

async fn retire(context: &CommandContext, flow: &str) -> Outcome {
    let changed = context.operator()?.retire(flow).await?;
    tell(context, &changed, &format!("flow {flow} is retired: existing runs continue, and no new ones start"))
}

fn tell(context: &CommandContext, changed: &FlowChanged, text: &str) -> Outcome {
    context.answer(changed, || output::line(text))
}

async fn list(context: &CommandContext, args: Args) -> Outcome {
    let versions = if args.versions { Versions::All } else { Versions::Latest };
    let items = context.operator()?.flows(versions).await?;
    if context.json {
        output::json(&FlowList { items })?;
        return Ok(Exit::Fine);
    }
    if items.is_empty() {
        output::note(
            "there are no flows yet; register one with `flowline run FILE` or `flowline start FILE`",
        );
        return Ok(Exit::Fine);
    }
    let cells = |item: &FlowView| {
        let definition = &item.definition;
        vec![
            definition.flow.to_string(),
            item.kind.map_or("", DefinitionKind::as_str).to_owned(),
            definition.hash.chars().take(HASH).collect(),
            if item.retired == Some(true) {
                "retired"
            } else if definition.latest {
                "latest"
            } else {
                ""
            }
            .to_owned(),
            output::date(definition.created_at),
            item.runs.as_ref().map_or(String::new(), words),
        ]
    };
    let rows = items.iter().map(cells).collect();
    output::table(&["flow", "kind", "hash", "version", "created", "runs of the flow"], rows)?;
    for item in &items {
        for unserved in &item.not_run_here {
            output::note(&format!("warning: {}: {unserved}", item.definition.flow));
        }
    }
    Ok(Exit::Fine)
}

fn words(counts: &BTreeMap<Status, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let words: Vec<String> = counts.map(|(status, count)| format!("{count} {status}")).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
