//! `flowline state`: key-value state from outside of runs.

use std::time::Duration;

use clap::Subcommand;
use flowline::core::Json;
use flowline::{StateOwner, StateQuery};
use flowline_api::state::StateEntry;
use serde_json::json;

use super::CommandContext;
use super::start::parse_json;
use crate::failure::{CliError, Exit, Outcome};
use crate::output;

/// Read and write key-value state
///
/// SCOPE is `tenant`, `flow:FLOW`, `run:RUN`, or any name of your own, such as `orders`, which all flows of the tenant share.
/// You can read a run's state here, but only its steps can write it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline state set orders order-123 '{\"status\": \"paid\"}' --ttl 30d\n  flowline state get orders order-123\n  \
                  flowline state list flow:fulfil-order"
)]
pub struct Args {
    #[command(subcommand)]
    command: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Print a value as JSON; exits with 1 if the key isn't set
    #[command(after_help = "Example:\n  flowline state get orders order-123")]
    Get { scope: String, key: String },
    /// Set a value
    #[command(
        after_help = "Example:\n  flowline state set orders order-123 '{\"status\": \"paid\"}' --ttl 30d"
    )]
    Set {
        scope: String,
        key: String,
        /// Value as JSON
        value: String,
        /// Delete the value after this time
        #[arg(long, value_name = "DURATION", value_parser = flowline_server::filter::duration)]
        ttl: Option<Duration>,
    },
    /// List the keys and values of a scope; without SCOPE, list the scopes
    #[command(after_help = "Example:\n  flowline state list\n  flowline state list orders --limit 100")]
    List {
        scope: Option<String>,
        /// Keys per page, up to 1000
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
        /// Continue after an earlier page: the cursor it ended with
        #[arg(long, value_name = "KEY", requires = "scope", conflicts_with = "all")]
        cursor: Option<String>,
        /// Fetch all pages
        #[arg(long, requires = "scope")]
        all: bool,
    },
    /// Delete a key
    #[command(after_help = "Example:\n  flowline state delete orders order-123")]
    Delete { scope: String, key: String },
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    match args.command {
        Act::Get { scope, key } => get(context, &owner(&scope)?, &key).await,
        Act::Set { scope, key, value, ttl } => {
            set(context, &owner(&scope)?, &key, parse_json(context, "VALUE", &value)?, ttl).await
        }
        Act::List { scope: None, .. } => scopes(context).await,
        Act::List { scope: Some(scope), limit, cursor, all } => {
            let query = StateQuery { after: cursor, ..StateQuery::first(usize::from(limit)) };
            list(context, &owner(&scope)?, query, all).await
        }
        Act::Delete { scope, key } => delete(context, &owner(&scope)?, &key).await,
    }
}

fn owner(scope: &str) -> Result<StateOwner, CliError> {
    StateOwner::parse(scope).map_err(|error| {
        CliError::usage(error).help("a scope is tenant, flow:FLOW, run:RUN, or any name of your own")
    })
}

async fn get(context: &CommandContext, owner: &StateOwner, key: &str) -> Outcome {
    let found = context.operator()?.value(owner, key).await?;
    let Some(found) = found else {
        return Err(CliError::new(Exit::Found, "no-such-key", format!("scope {owner} has no key {key:?}"))
            .help(format!("`flowline state list {owner}` lists its keys")));
    };
    context.answer(&found, || output::line(found.value.get()))
}

async fn set(
    context: &CommandContext,
    owner: &StateOwner,
    key: &str,
    value: Json,
    ttl: Option<Duration>,
) -> Outcome {
    context.operator()?.set_value(owner, key, value, ttl).await?;
    tell(context, owner, key, true, "is set")
}

async fn delete(context: &CommandContext, owner: &StateOwner, key: &str) -> Outcome {
    let changed = context.operator()?.delete_value(owner, key).await?;
    tell(context, owner, key, changed, if changed { "is deleted" } else { "was not set" })
}

fn tell(context: &CommandContext, owner: &StateOwner, key: &str, changed: bool, done: &str) -> Outcome {
    context.answer(&json!({ "scope": owner.to_string(), "key": key, "changed": changed }), || {
        output::line(&format!("{} of {owner} {done}", output::clean(key)))
    })
}

async fn scopes(context: &CommandContext) -> Outcome {
    let found = context.operator()?.scopes().await?;
    if context.json {
        output::json(&found)?;
    } else if found.items.is_empty() {
        output::note("no scopes found; flow:FLOW and run:RUN scopes aren't listed");
    } else {
        output::table(&["scope"], found.items.into_iter().map(|found| vec![found.scope]).collect())?;
    }
    Ok(Exit::Fine)
}

async fn list(context: &CommandContext, owner: &StateOwner, mut query: StateQuery, all: bool) -> Outcome {
    let operator = context.operator()?;
    let mut page = operator.values(owner, query.clone()).await?;
    while all && let Some(next) = page.next.take() {
        query.after = Some(next);
        let later = operator.values(owner, query.clone()).await?;
        page.items.extend(later.items);
        page.next = later.next;
    }
    if context.json {
        output::json(&page)?;
        return Ok(Exit::Fine);
    }
    if page.items.is_empty() {
        output::note(&format!("scope {owner} is empty"));
        return Ok(Exit::Fine);
    }
    output::table(&["key", "value", "expires"], page.items.iter().map(cells).collect())?;
    let next = page.next.as_deref().map(output::clean);
    let more = next.map_or(String::new(), |next| format!("; more with --cursor {next:?} or --all"));
    output::note(&format!("{}{more}", output::count(page.items.len() as u64, "key")));
    Ok(Exit::Fine)
}

fn cells(entry: &StateEntry) -> Vec<String> {
    let expires = entry.expires_at.map_or(String::new(), output::date);
    vec![output::clip(&entry.key, 64), output::clip(entry.value.get(), 80), expires]
}
