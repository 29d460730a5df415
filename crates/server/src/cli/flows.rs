//! `flowline flows`: the flows of a store.

use std::collections::BTreeMap;

use flowline::core::Status;

use super::Context;
use crate::failure::{Exit, Outcome};
use crate::open::Access;
use crate::output;
use crate::target::{Items, Target};
use crate::view::{FlowView, Versions};

/// Characters of a hash that tell definitions apart for people.
const HASH: usize = 12;

/// List the flows in the store with their runs by status
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline flows --versions")]
pub struct Args {
    /// Every definition ever stored, not only the latest of each flow
    #[arg(long)]
    versions: bool,
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    let versions = if args.versions { Versions::All } else { Versions::Latest };
    let items = match context.target()? {
        Target::Store => {
            let store = context.open(Access::Reader).await?;
            FlowView::list(&*store, &context.settings.tenant.value, versions).await?
        }
        Target::Server(server) => {
            let all = args.versions.then(|| "true".to_owned());
            server.find::<Items<FlowView>>("/v1/flows", &[("versions", all)]).await?.items
        }
    };
    if context.json {
        output::json(&Items { items })?;
        return Ok(Exit::Fine);
    }
    if items.is_empty() {
        output::note("there are no flows yet; `flowline run FILE` or `flowline start FILE` brings one in");
        return Ok(Exit::Fine);
    }
    let cells = |item: &FlowView| {
        let definition = &item.definition;
        vec![
            definition.flow.to_string(),
            item.kind.as_str().to_owned(),
            definition.hash.chars().take(HASH).collect(),
            if definition.latest { "latest" } else { "" }.to_owned(),
            output::date(definition.created_at),
            words(&item.runs),
        ]
    };
    let rows = items.iter().map(cells).collect();
    output::table(&["flow", "kind", "hash", "version", "created", "runs of the flow"], rows)?;
    Ok(Exit::Fine)
}

fn words(counts: &BTreeMap<Status, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let words: Vec<String> = counts.map(|(status, count)| format!("{count} {status}")).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
