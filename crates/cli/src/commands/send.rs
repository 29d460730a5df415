//! `flowline send`: an event from outside, into a run or into that of a business key.

use std::time::Duration;

use flowline::core::decide::Sender;
use flowline::core::json::{object, string};
use flowline::core::time::format_duration;
use flowline::core::{Json, RunKey};
use flowline::store::ReceiptStatus;
use flowline::{Engine, EngineError, SendRequest};
use flowline_api::events::{ReceiptView, SentView};
use flowline_api::runs::RunResult;
use flowline_server::api::{LONGEST_WAIT, part};
use flowline_server::receipts::{read_receipt, sent_view};
use tokio::time::Instant;

use super::Context;
use super::start::parse_json;
use crate::failure::{Exit, Failure, Outcome};
use crate::open::Access;
use crate::output;
use crate::target::{Server, Target};

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

/// Where an event goes.
enum To {
    Run(RunKey),
    Key { flow: String, key: String, input: Json },
}

/// An event as the flags say it.
struct Event {
    to: To,
    name: String,
    payload: Json,
    sender: Sender,
    key: Option<String>,
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    let wait = args.wait;
    let event = Event::read(context, args)?;
    let sent = match context.target()? {
        Target::Store => {
            let engine = context.operator(Access::Existing).await?;
            let sent = deliver(&engine, event, wait).await;
            engine.stop().await;
            sent?
        }
        Target::Server(server) => ask(&server, event, wait).await?,
    };
    tell(context, &sent)?;
    let failed = |receipt: &ReceiptView| receipt.status == ReceiptStatus::Failed;
    Ok(if sent.receipt.as_ref().is_some_and(failed) { Exit::Found } else { Exit::Fine })
}

impl Event {
    fn read(context: &Context, args: Args) -> Result<Event, Failure> {
        let usage = |text: &str, help: &str| Err(Failure::usage(text).help(help));
        let mut words = args.words.into_iter();
        let (to, name) = match (args.flow, args.business_key, words.next(), words.next()) {
            (Some(flow), Some(key), Some(name), None) => {
                (To::Key { flow, key, input: parse_json(context, "--input", &args.input)? }, name)
            }
            (None, None, Some(run), Some(name)) => (To::Run(context.run_key(&run)?), name),
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
        Ok(Event { to, name, payload, sender, key: args.key })
    }

    fn request(self, engine: &Engine) -> SendRequest {
        let request = match self.to {
            To::Run(run) => engine.event(&run, &self.name, self.payload),
            To::Key { flow, key, input } => engine.event_for(&flow, &key, input, (&self.name, self.payload)),
        };
        let request = request.sender(self.sender);
        match self.key {
            Some(key) => request.key(key),
            None => request,
        }
    }
}

async fn deliver(engine: &Engine, event: Event, wait: Option<Duration>) -> Result<SentView, EngineError> {
    let request = event.request(engine);
    let Some(wait) = wait else { return Ok(sent_view(request.send().await?, None)) };
    let run = request.run().clone();
    let (mut sent, receipt) = request.wait(wait).await?;
    let receipt = match receipt {
        Some(receipt) => Some(read_receipt(engine.store(), engine.plans(), receipt).await?),
        None => None,
    };
    sent.status = engine.row(&run).await?.status;
    Ok(sent_view(sent, receipt))
}

async fn ask(server: &Server, event: Event, wait: Option<Duration>) -> Result<SentView, Failure> {
    let roles = Json::of(&event.sender.roles).map_err(|error| Failure::input(error.to_string()))?;
    let (name, user) = (string(&event.name), event.sender.user.as_deref().map(string));
    let key = event.key.as_deref().map(string);
    let (path, opens) = match &event.to {
        To::Run(run) => (format!("/v1/runs/{}/events", run.run), None),
        To::Key { flow, key, input } => {
            (format!("/v1/flows/{}/events", part(flow)), Some((string(key), input)))
        }
    };
    let body = object([
        ("key", opens.as_ref().map(|(key, _)| key)),
        ("input", opens.as_ref().map(|(_, input)| *input)),
        ("name", Some(&name)),
        ("payload", Some(&event.payload)),
        ("userId", user.as_ref()),
        ("roles", Some(&roles).filter(|_| !event.sender.roles.is_empty())),
        ("idempotencyKey", key.as_ref()),
    ]);
    let mut sent: SentView = server.post(&path, &body).await?;
    if let Some(wait) = wait {
        wait_at(server, &mut sent, wait).await?;
    }
    Ok(sent)
}

/// Asks for the receipt until the machine is done with the event. A flow keeps none.
async fn wait_at(server: &Server, sent: &mut SentView, wait: Duration) -> Result<(), Failure> {
    let until = Instant::now() + wait;
    let path = format!("/v1/runs/{}/receipts/{}", sent.run_id, part(&sent.event_id));
    loop {
        let left = until.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
        let left = Duration::from_millis(left.as_millis() as u64);
        let found = server.find::<ReceiptView>(&path, &[("wait", Some(format_duration(left)))]).await;
        sent.receipt = match found {
            Ok(receipt) => Some(receipt),
            Err(failure) if failure.code == "no-such-receipt" => None,
            Err(failure) => return Err(failure),
        };
        let done = sent.receipt.as_ref().is_none_or(ReceiptView::is_done);
        if done || Instant::now() >= until {
            let ended: RunResult = server.get(&format!("/v1/runs/{}/result", sent.run_id)).await?;
            sent.status = ended.status;
            return Ok(());
        }
    }
}

fn tell(context: &Context, sent: &SentView) -> Result<(), Failure> {
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
