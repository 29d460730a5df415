//! `flowline token`: make, list, rotate and revoke API tokens.

use clap::Subcommand;
use flowline_api::access::{MadeToken, NewToken, RotateToken, TokenList, TokenScope};
use serde_json::json;

use super::CommandContext;
use crate::failure::{CliError, Exit, Outcome};
use crate::output;

/// Create, list, rotate and revoke API tokens
///
/// A token belongs to one tenant: the one in --tenant, or with --server, the tenant of the token you use there. Its secret is
/// printed once; the store keeps only a hash.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline token create --subject ci --scope start --scope read --expires 90d"
)]
pub struct Args {
    #[command(subcommand)]
    command: Change,
}

#[derive(Debug, Subcommand)]
enum Change {
    /// Create a token and print its secret
    #[command(
        after_help = "Example:\n  flowline token create --subject depot --scope work --bind-queue depot"
    )]
    Create(Create),
    /// List valid tokens, without their secrets
    #[command(after_help = "Example:\n  flowline token list --json")]
    List,
    /// Replace a token with one that allows the same, and print the new secret
    ///
    /// The old secret stays valid for --overlap, so that clients can change over. If it has leaked, revoke it instead.
    #[command(after_help = "Example:\n  flowline token rotate 0f3a9c2d4b5e6f70 --overlap 24h")]
    Rotate(Rotate),
    /// Revoke a token
    #[command(after_help = "Example:\n  flowline token revoke 0f3a9c2d4b5e6f70")]
    Revoke { id: String },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Who the token is for
    #[arg(long, value_name = "NAME")]
    subject: String,
    /// What it allows: read, start, work, operate, on_behalf or admin; repeatable
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_parser = scope)]
    scopes: Vec<TokenScope>,
    /// Role of the subject; repeatable
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Limit it to this flow; repeatable
    #[arg(long = "bind-flow", value_name = "FLOW")]
    flows: Vec<String>,
    /// Limit it to this queue; repeatable
    #[arg(long = "bind-queue", value_name = "QUEUE")]
    queues: Vec<String>,
    /// Expire after this time [default: never]
    #[arg(long, value_name = "DURATION")]
    expires: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Rotate {
    id: String,
    /// How long the old secret stays valid [default: 1h]
    #[arg(long, value_name = "DURATION")]
    overlap: Option<String>,
    /// Expire the new token after this time [default: as long as the old one lasted]
    #[arg(long, value_name = "DURATION")]
    expires: Option<String>,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    match args.command {
        Change::Create(create) => make(context, create).await,
        Change::List => list(context).await,
        Change::Rotate(Rotate { id, overlap, expires }) => {
            rotate(context, &id, RotateToken { overlap, expires }).await
        }
        Change::Revoke { id } => revoke(context, &id).await,
    }
}

async fn make(context: &CommandContext, create: Create) -> Outcome {
    let some = |names: Vec<String>| (!names.is_empty()).then_some(names);
    let new = NewToken {
        subject: create.subject,
        scopes: create.scopes,
        roles: create.roles,
        flows: some(create.flows),
        queues: some(create.queues),
        expires: create.expires,
    };
    flowline_server::token::check(&new).map_err(|(field, wrong)| {
        let flag = if field == "expires" { field } else { field.trim_end_matches('s') };
        CliError::usage(format!("--{flag}: {wrong}"))
    })?;
    show(context, context.operator()?.create_token(new).await?)
}

async fn rotate(context: &CommandContext, id: &str, rotate: RotateToken) -> Outcome {
    flowline_server::token::check_rotation(&rotate)
        .map_err(|(field, wrong)| CliError::usage(format!("--{field}: {wrong}")))?;
    show(context, context.operator()?.rotate_token(id, rotate).await?)
}

/// Shows a new token, this once.
fn show(context: &CommandContext, made: MadeToken) -> Outcome {
    if context.json {
        output::json(&made)?;
    } else {
        let MadeToken { row, token } = made;
        output::line(&token)?;
        output::note(&format!(
            "token {} for {} in tenant {}; it won't be shown again",
            row.id, row.subject, row.tenant
        ));
    }
    Ok(Exit::Fine)
}

async fn list(context: &CommandContext) -> Outcome {
    let items = context.operator()?.tokens().await?;
    if context.json {
        output::json(&TokenList { items })?;
    } else if items.is_empty() {
        output::note("there are no tokens; create one with `flowline token create`");
    } else {
        let words =
            |names: &Option<Vec<String>>| names.as_ref().map_or("all".to_owned(), |names| names.join(" "));
        let cells = items.iter().map(|row| {
            let scopes: Vec<&str> = row.scopes.iter().map(|scope| scope.as_str()).collect();
            vec![
                row.id.clone(),
                output::clip(&row.subject, 40),
                scopes.join(" "),
                words(&row.flows),
                words(&row.queues),
                output::date(row.created_at),
                row.expires_at.map_or(String::new(), output::date),
                row.last_used_at.map_or(String::new(), output::date),
            ]
        });
        output::table(
            &["id", "subject", "scopes", "flows", "queues", "created", "expires", "last used"],
            cells.collect(),
        )?;
    }
    Ok(Exit::Fine)
}

async fn revoke(context: &CommandContext, id: &str) -> Outcome {
    context.operator()?.revoke_token(id).await?;
    context.answer(&json!({ "id": id, "revoked": true }), || output::line(&format!("token {id} is revoked")))
}

fn scope(text: &str) -> Result<TokenScope, String> {
    TokenScope::parse(text).ok_or_else(|| "use read, start, work, operate, on_behalf or admin".to_owned())
}
