//! `flowline send`: an event from outside, into a run or into that of a business key.

use std::time::Duration;

use flowline::core::Json;
use flowline::core::decide::Sender;
use flowline::store::ReceiptStatus;
use flowline_api::events::{ReceiptView, SentView};

use super::CommandContext;
use super::start::parse_json;
use crate::failure::{CliError, Exit, Outcome};
use crate::operator::{EventTarget, ExternalEvent};
use crate::output;

/// Send an event to a run
///
/// A flow accepts the events that it lists under `accepts`, each once. A machine puts events into its inbox and handles them
/// in order; --wait waits for that, and exits with 1 if the event was rejected or one of its actions failed. With --flow and
/// --business-key, the event goes to the run with that key, which is started if it doesn't exist.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "flowline send [OPTIONS] RUN EVENT\n       flowline send [OPTIONS] --flow FLOW --business-key KEY EVENT",
    after_help = "Example:\n  flowline send RUN approve --payload '{\"note\": \"fine\"}' --user ada --role manager --wait 30s\n  \
                  flowline send --flow expense --business-key 2026-117 --input '{\"amount\": 90}' submit"
)]
pub struct Args {
    /// The run and the event's name; with --flow, only the event's name
    #[arg(value_name = "RUN|EVENT", required = true, num_args = 1..=2)]
    words: Vec<String>,
    /// The event's payload [default: none]
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Send it as this user, which guards and actions can see. If the server requires tokens, needs scope on_behalf
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Role of the sender; repeatable. If the server requires tokens, it must be one of the token's roles
    #[arg(long = "role", value_name = "ROLE")]
    roles: Vec<String>,
    /// Idempotency key: an event sent again with the same key is accepted only once
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Wait until a machine has handled it, for up to this long (30s if you give no duration)
    #[arg(long, value_name = "DURATION", value_parser = flowline_server::filter::duration, num_args = 0..=1, default_missing_value = "30s")]
    wait: Option<Duration>,
    /// Send it to a run of this flow or machine, found by --business-key
    #[arg(long, value_name = "FLOW", requires = "business_key")]
    flow: Option<String>,
    /// Business key of the run
    #[arg(long, value_name = "KEY", requires = "flow")]
    business_key: Option<String>,
    /// Input for the run, if it has to be started
    #[arg(long, value_name = "JSON", requires = "flow", default_value = "null")]
    input: String,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let wait = args.wait;
    let sent = context.operator()?.send(read(context, args)?, wait).await?;
    tell(context, &sent)?;
    let failed = |receipt: &ReceiptView| receipt.status == ReceiptStatus::Failed;
    Ok(if sent.receipt.as_ref().is_some_and(failed) { Exit::Found } else { Exit::Fine })
}

/// The event that the flags name.
fn read(context: &CommandContext, args: Args) -> Result<ExternalEvent, CliError> {
    let usage = |text: &str, help: &str| Err(CliError::usage(text).help(help));
    let mut words = args.words.into_iter();
    let (to, name) = match (args.flow, args.business_key, words.next(), words.next()) {
        (Some(flow), Some(key), Some(name), None) => {
            (EventTarget::Key { flow, key, input: parse_json(context, "--input", &args.input)? }, name)
        }
        (None, None, Some(run), Some(name)) => (EventTarget::Run(context.run_key(&run)?), name),
        (Some(_), ..) => {
            return usage(
                "--flow finds the run by its business key, so RUN can't be given too",
                "drop RUN: `flowline send --flow FLOW --business-key KEY EVENT`",
            );
        }
        _ => {
            return usage(
                "the event's name is missing",
                "write `flowline send RUN EVENT`, or name the run with --flow and --business-key",
            );
        }
    };
    let payload = match &args.payload {
        Some(payload) => parse_json(context, "--payload", payload)?,
        None => Json::nothing(),
    };
    let sender = Sender { user: args.user, roles: args.roles, sent_by: None };
    Ok(ExternalEvent { to, name, payload, sender, key: args.key })
}

fn tell(context: &CommandContext, sent: &SentView) -> Result<(), CliError> {
    if context.json {
        return output::json(sent);
    }
    let done = match (&sent.receipt, sent.changed) {
        (Some(receipt), _) => format!("{} {}", receipt.name, receipt.said()),
        (None, true) => "accepted".to_owned(),
        (None, false) => "already accepted; nothing changed".to_owned(),
    };
    let line = format!("run {}: {} (now {})", sent.run_id, output::clean(&done), output::status(sent.status));
    Ok(output::line(&line)?)
}
