//! `flowline worker`: takes jobs of `worker: QUEUE` steps from a server and runs a program for each.

use std::time::Duration;

use flowline::core::Json;
use flowline::core::decide::Retryable;
use flowline::core::definition::Stdin;
use flowline::core::json;
use flowline::core::limits::Limits;
use flowline::runner::command::{About, Listener, StepProgram};
use flowline::{Level, StateScope, StepError};
use flowline_api::work::RetryAdvice;
use flowline_client::{Job, JobError, Worker};
use serde_json::{Map, Value};

use super::CommandContext;
use crate::failure::{CliError, Exit, Outcome};
use crate::open::shown;
use crate::output;
use crate::signals::Signals;

/// Get jobs from a server and run a program for each
///
/// Runs the steps that say `worker: QUEUE`. The program gets one JSON object on stdin and writes messages to stdout, as in
/// a `command` step (see docs/command-protocol.md). The worker connects to the server, never the other way round. If the
/// server requires tokens, use one with scope `work`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline worker --server http://127.0.0.1:7400 --queue depot --slots 4 -- ./pack.py --fast"
)]
pub struct Args {
    /// Queue to get jobs from; repeatable
    #[arg(long = "queue", value_name = "QUEUE", required = true)]
    queues: Vec<String>,
    /// Programs to run at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    slots: u16,
    /// Name of this worker in leases and events [default: generated]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Pass this environment variable to the program; repeatable
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
    /// Whether stdin stays open after the input, so that the program can read replies to `state` messages with `get`
    #[arg(long, value_name = "open|closed", value_parser = ["open", "closed"], default_value = "closed", hide_possible_values = true)]
    stdin: String,
    /// How long running programs get to finish after a signal
    #[arg(long, value_name = "DURATION", value_parser = flowline_server::filter::duration, default_value = "10s")]
    drain: Duration,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let mut signals = Signals::listen().map_err(|error| CliError::environment(error.to_string()))?;
    let Some(server) = &context.settings.server.value else {
        return Err(CliError::usage("a worker needs a server to get jobs from")
            .help("name it with --server http://HOST:PORT or FLOWLINE_SERVER"));
    };
    let client = context.client(server)?;
    let (command, env) = (args.command.clone(), args.env.clone());
    let stdin = Stdin::parse(&args.stdin).unwrap_or_default();
    let mut worker = Worker::new(client)
        .slots(args.slots.into())
        .drain(args.drain)
        .with_state()
        .handler(move |job| attempt(job, command.clone(), env.clone(), stdin))
        .until(async move {
            signals.next().await;
            output::note("stopping: waiting for running programs; a second signal stops at once");
            tokio::spawn(async move {
                signals.next().await;
                std::process::exit(Exit::Interrupted as i32);
            });
        });
    if let Some(name) = &args.name {
        worker = worker.name(name);
    }
    for queue in &args.queues {
        worker = worker.queue(queue);
    }
    output::note(&format!("working on {} of {}; stop with Ctrl-C", args.queues.join(", "), shown(server)));
    worker.run().await?;
    Ok(Exit::Fine)
}

async fn attempt(job: Job, command: Vec<String>, env: Vec<String>, stdin: Stdin) -> Result<Json, JobError> {
    let given = job.assignment();
    let about = About {
        run_id: given.run_id.to_string(),
        flow: given.flow_name.to_string(),
        tenant: given.tenant.to_string(),
        step: given.step_name.to_string(),
        step_id: given.step_id.clone(),
        attempt: given.attempt,
        idempotency_key: given.idempotency_key.clone(),
        traceparent: given.traceparent.clone(),
    };
    let state = (!given.state_omitted).then(|| {
        let values = given.state.iter().flatten();
        json::object(values.map(|(key, value)| (key.as_str(), Some(value))))
    });
    // The server knows its own limit, and refuses what is over it.
    let payload = Limits::MOST.payload();
    let program = StepProgram { argv: &command, folder: None, pass_env: &env, stdin, payload };
    program.run(&about, state.as_ref(), job.input(), &Ear(&job)).await.map_err(|error| to_job(&error))
}

/// Passes on to the server what a program says.
struct Ear<'a>(&'a Job);

impl Listener for Ear<'_> {
    async fn log(&self, level: Level, message: &str, fields: Map<String, Value>) -> Result<(), StepError> {
        let mut line = fields;
        line.insert("level".to_owned(), level.as_str().into());
        line.insert("message".to_owned(), message.into());
        self.0.log_with(line).await;
        Ok(())
    }

    fn emit(&self, name: &str, payload: Json) -> Result<(), StepError> {
        self.0.emit_json(name, payload);
        Ok(())
    }

    async fn emit_now(&self, name: &str, payload: Json) -> Result<(), StepError> {
        self.0.emit_json_now(name, payload).await.map_err(|failure| to_step(&failure))
    }

    async fn state(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Json>,
        ttl: Option<Duration>,
    ) -> Result<(), StepError> {
        let changed = match (value, ttl) {
            (Some(value), Some(ttl)) => self.0.set_for(scope.as_str(), key, &value, ttl).await,
            (Some(value), None) => self.0.set(scope.as_str(), key, &value).await,
            (None, _) => self.0.delete(scope.as_str(), key).await,
        };
        changed.map_err(|failure| to_step(&failure))
    }

    async fn get(&self, scope: StateScope, key: &str) -> Result<Option<Json>, StepError> {
        self.0.get(scope.as_str(), key).await.map_err(|failure| to_step(&failure))
    }
}

fn to_step(failure: &JobError) -> StepError {
    let failed = failure.failed();
    let error = match failed.retry {
        RetryAdvice::Never => StepError::fatal(&failed.error),
        RetryAdvice::Policy => StepError::new(&failed.error),
    };
    match &failed.code {
        Some(code) => error.code(code),
        None => error,
    }
}

fn to_job(error: &StepError) -> JobError {
    let failed = error.failure();
    let mut failure = JobError::new(&failed.error);
    failure = match failed.retry {
        Retryable::ByPolicy => failure,
        Retryable::Never => failure.never(),
        Retryable::After(delay) => failure.retry_after(delay),
    };
    match &failed.code {
        Some(code) => failure.code(code),
        None => failure,
    }
}
