//! `flowline flows`: the flows of a store.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline::core::Status;
use flowline::store::StoredDefinition;
use serde_json::{Value, json};

use super::Context;
use crate::failure::{Exit, Outcome};
use crate::open::Access;
use crate::output;

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

type Counts = BTreeMap<Arc<str>, Vec<(Status, u64)>>;

pub async fn run(context: &Context, args: Args) -> Outcome {
    let store = context.open(Access::Reader).await?;
    let tenant = &context.settings.tenant.value;
    let mut definitions = store.definitions(tenant).await?;
    definitions.retain(|definition| args.versions || definition.latest);
    let mut counts = Counts::new();
    for counter in store.counters().await?.into_iter().filter(|counter| counter.tenant == *tenant) {
        counts.entry(counter.flow_name).or_default().push((counter.status, counter.count));
    }
    if context.json {
        let items: Vec<Value> = definitions.iter().map(|definition| row(definition, &counts)).collect();
        output::json(&json!({ "items": items }))?;
        return Ok(Exit::Fine);
    }
    if definitions.is_empty() {
        output::note("there are no flows yet; `flowline run FILE` or `flowline start FILE` brings one in");
        return Ok(Exit::Fine);
    }
    let cells = |definition: &StoredDefinition| {
        vec![
            definition.flow.to_string(),
            definition.hash.chars().take(HASH).collect(),
            if definition.latest { "latest" } else { "" }.to_owned(),
            output::date(definition.created_at),
            words(counts.get(&definition.flow)),
        ]
    };
    let rows = definitions.iter().map(cells).collect();
    output::table(&["flow", "hash", "version", "created", "runs of the flow"], rows)?;
    Ok(Exit::Fine)
}

fn row(definition: &StoredDefinition, counts: &Counts) -> Value {
    let mut row = json!(definition);
    let runs = counts.get(&definition.flow).into_iter().flatten();
    row["runs"] = runs
        .map(|(status, count)| (status.to_string(), json!(count)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    row
}

fn words(counts: Option<&Vec<(Status, u64)>>) -> String {
    let counts = counts.into_iter().flatten().filter(|(_, count)| *count > 0);
    let words: Vec<String> = counts.map(|(status, count)| format!("{count} {status}")).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
