//! `flowline state`: key-value state from outside of runs.

use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use flowline::core::Json;
use flowline::core::json::{object, string};
use flowline::core::time::format_duration;
use flowline::store::Store;
use flowline::{StateHandle, StateOwner, StateQuery};
use flowline_api::state::{StateChanged, StateEntry, StateList};
use flowline_server::api::{part, read_scopes, state_entry, state_list};
use serde_json::json;

use super::Context;
use super::start::parse_json;
use crate::failure::{Exit, Failure, Outcome};
use crate::open::Access;
use crate::output;
use crate::target::{Server, Target};

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

pub async fn run(context: &Context, args: Args) -> Outcome {
    match args.command {
        Act::Get { scope, key } => get(context, &owner(&scope)?, &key).await,
        Act::Set { scope, key, value, ttl } => {
            set(context, &owner(&scope)?, &key, parse_json(context, "VALUE", &value)?, ttl).await
        }
        Act::List { scope: None, .. } => scopes(context).await,
        Act::List { scope: Some(scope), limit, cursor, all } => {
            let query = StateQuery { after: cursor, limit: usize::from(limit) };
            list(context, &owner(&scope)?, query, all).await
        }
        Act::Delete { scope, key } => delete(context, &owner(&scope)?, &key).await,
    }
}

fn owner(scope: &str) -> Result<StateOwner, Failure> {
    StateOwner::parse(scope).map_err(|error| {
        Failure::usage(error).help("a scope is tenant, flow:FLOW, run:RUN, or any name of your own")
    })
}

/// The state of the store that the settings name.
async fn opened(context: &Context, owner: &StateOwner, access: Access) -> Result<StateHandle, Failure> {
    let tenant = context.settings.tenant.value.clone();
    let store: Arc<dyn Store> = context.open(access).await?;
    if let StateOwner::Run(run) = owner {
        let key = flowline::core::RunKey::new(tenant.clone(), run.clone());
        if store.load(&[key]).await?.iter().all(Option::is_none) {
            return Err(Failure::no_such_run(run.as_str()));
        }
    }
    if let StateOwner::Flow(flow) = owner
        && store.latest(&tenant, flow).await?.is_none()
    {
        return Err(Failure::refusal("no-such-flow", format!("there is no flow {flow:?}")));
    }
    Ok(StateHandle::new(store, tenant, owner.clone(), context.limits()))
}

fn path(owner: &StateOwner, key: &str) -> Result<String, Failure> {
    flowline::state::check_key(key).map_err(Failure::usage)?;
    Ok(format!("/v1/state/{}/{}", part(&owner.to_string()), part(key)))
}

async fn get(context: &Context, owner: &StateOwner, key: &str) -> Outcome {
    let found = match context.target()? {
        Target::Store => {
            let found = opened(context, owner, Access::Reader).await?.find(key).await?;
            found.map(|found| state_entry(owner, found))
        }
        Target::Server(server) => match server.get::<StateEntry>(&path(owner, key)?).await {
            Ok(found) => Some(found),
            Err(failure) if failure.code == "no-such-key" => None,
            Err(failure) => return Err(failure),
        },
    };
    let Some(found) = found else {
        return Err(Failure::new(Exit::Found, "no-such-key", format!("scope {owner} has no key {key:?}"))
            .help(format!("`flowline state list {owner}` lists its keys")));
    };
    if context.json {
        output::json(&found)?;
    } else {
        output::line(found.value.get())?;
    }
    Ok(Exit::Fine)
}

async fn set(
    context: &Context,
    owner: &StateOwner,
    key: &str,
    value: Json,
    ttl: Option<Duration>,
) -> Outcome {
    match context.target()? {
        Target::Store => {
            let state = opened(context, owner, Access::Existing).await?;
            match ttl {
                Some(ttl) => state.set_for(key, &value, ttl).await?,
                None => state.set(key, &value).await?,
            }
        }
        Target::Server(server) => {
            let ttl = ttl.map(|ttl| string(&format_duration(ttl)));
            let body = object([("value", Some(&value)), ("ttl", ttl.as_ref())]);
            let _: StateChanged = server.put(&path(owner, key)?, &body).await?;
        }
    }
    tell(context, owner, key, true, "is set")
}

async fn delete(context: &Context, owner: &StateOwner, key: &str) -> Outcome {
    let changed = match context.target()? {
        Target::Store => opened(context, owner, Access::Existing).await?.delete(key).await?,
        Target::Server(server) => server.remove::<StateChanged>(&path(owner, key)?).await?.changed,
    };
    tell(context, owner, key, changed, if changed { "is deleted" } else { "was not set" })
}

fn tell(context: &Context, owner: &StateOwner, key: &str, changed: bool, done: &str) -> Outcome {
    if context.json {
        output::json(&json!({ "scope": owner.to_string(), "key": key, "changed": changed }))?;
    } else {
        output::line(&format!("{} of {owner} {done}", output::clean(key)))?;
    }
    Ok(Exit::Fine)
}

async fn scopes(context: &Context) -> Outcome {
    let found = match context.target()? {
        Target::Store => {
            let store = context.open(Access::Reader).await?;
            read_scopes(&*store, &context.settings.tenant.value).await?
        }
        Target::Server(server) => server.get("/v1/state").await?,
    };
    if context.json {
        output::json(&found)?;
    } else if found.items.is_empty() {
        output::note("no scopes found; flow:FLOW and run:RUN scopes aren't listed");
    } else {
        output::table(&["scope"], found.items.into_iter().map(|found| vec![found.scope]).collect())?;
    }
    Ok(Exit::Fine)
}

async fn list(context: &Context, owner: &StateOwner, query: StateQuery, all: bool) -> Outcome {
    let page = match context.target()? {
        Target::Store => {
            let state = opened(context, owner, Access::Reader).await?;
            pages(all, query, async |query| Ok(state_list(owner, state.list(query).await?))).await?
        }
        Target::Server(server) => pages(all, query, async |query| ask(&server, owner, query).await).await?,
    };
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

async fn pages(
    all: bool,
    mut query: StateQuery,
    page: impl AsyncFn(StateQuery) -> Result<StateList, Failure>,
) -> Result<StateList, Failure> {
    let mut first = page(query.clone()).await?;
    while all && let Some(next) = first.next.take() {
        query.after = Some(next);
        let later = page(query.clone()).await?;
        first.items.extend(later.items);
        first.next = later.next;
    }
    Ok(first)
}

async fn ask(server: &Server, owner: &StateOwner, query: StateQuery) -> Result<StateList, Failure> {
    let parameters = [("limit", Some(query.limit.to_string())), ("cursor", query.after)];
    server.find(&format!("/v1/state/{}", part(&owner.to_string())), &parameters).await
}

fn cells(entry: &StateEntry) -> Vec<String> {
    let expires = entry.expires_at.map_or(String::new(), output::date);
    vec![output::clip(&entry.key, 64), output::clip(entry.value.get(), 80), expires]
}
