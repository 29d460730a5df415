//! `flowline start`: starts a run and leaves the work to others.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flowline::core::Json;
use flowline::core::definition::{Format, Priority};
use flowline::core::limits::{Limit, Limits};
use flowline::internal::check_start;
use flowline_api::runs::{RunStart, Started};
use serde_json::json;

use super::CommandContext;
use crate::definition;
use crate::failure::{CliError, Exit, Outcome};
use crate::operator::FlowFile;
use crate::output;

/// Start a run and return at once
///
/// Takes a definition file, which is registered first, or the name of a registered flow. Prints the run's id. The steps run
/// in `flowline work`, or with --server on the server. A server looks for the file's commands in its own working directory,
/// not in the directory of your file.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline start fulfil-order --input '{\"total\": 19}' --idempotency-key order-42"
)]
pub struct Args {
    /// Name of a flow, or a definition file
    #[arg(value_name = "FLOW|FILE")]
    flow: String,
    #[command(flatten)]
    start: StartFlags,
}

/// How a run starts.
#[derive(Debug, Clone, clap::Args)]
pub struct StartFlags {
    /// The run's input [default: null]
    #[arg(long, value_name = "JSON", conflicts_with = "input_file")]
    input: Option<String>,
    /// Read the run's input from this file, or from stdin with -
    #[arg(long, value_name = "FILE")]
    input_file: Option<PathBuf>,
    /// Start one run per key: repeating the command with the same key and input returns the same run
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Label to find the run by; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Priority of the run's jobs: low, normal, high or urgent [default: normal]
    #[arg(long, value_name = "PRIORITY", value_parser = priority)]
    priority: Option<Priority>,
    /// Wait this long before the first steps start
    #[arg(long, value_name = "DURATION", value_parser = flowline_server::filter::duration)]
    delay: Option<Duration>,
}

impl StartFlags {
    /// Reads the input and checks the rest before anything is opened or written.
    pub fn input(&self, context: &CommandContext) -> Result<Json, CliError> {
        check_start(self.idempotency_key.as_deref(), &self.labels.iter().cloned().collect())?;
        match (&self.input, &self.input_file) {
            (Some(text), _) => parse_json(context, "--input", text),
            (None, Some(path)) => {
                parse_json(context, &path.display().to_string(), &read_input(path, context.limits())?)
            }
            (None, None) => Ok(Json::null()),
        }
    }

    pub fn start(self, flow: String, input: Json) -> RunStart {
        RunStart {
            flow: Some(flow),
            input: Some(input),
            idempotency_key: self.idempotency_key,
            labels: self.labels.into_iter().collect(),
            delay: self.delay.unwrap_or_default(),
            priority: self.priority.unwrap_or_default(),
            version: None,
        }
    }
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let input = args.start.input(context)?;
    // What would be refused leaves no new store behind.
    let file = match as_file(&args.flow) {
        Some(path) => {
            let plan = definition::plan(definition::load(path)?, &input, context.limits())?;
            Some(FlowFile { plan, path })
        }
        None => None,
    };
    let flow = file.as_ref().map_or(args.flow.clone(), |file| file.plan.flow.to_string());
    let started = context.operator()?.start(args.start.start(flow.clone(), input), file).await?;
    let Started { run_id: run, existed, status, .. } = started;
    if context.json {
        output::json(&json!({ "runId": run, "flowName": flow, "status": status, "existed": existed }))?;
    } else {
        output::line(run.as_str())?;
        let text = if existed { "already exists" } else { "started" };
        output::note(&format!("run {run} of {flow} {text}; {}", context.who_works("its steps")));
    }
    Ok(Exit::Fine)
}

/// A path where something is there, or where only a definition file is called like that.
fn as_file(text: &str) -> Option<&Path> {
    let path = Path::new(text);
    (text.contains(std::path::MAIN_SEPARATOR) || Format::of_path(text).is_some() || path.is_file())
        .then_some(path)
}

/// Takes JSON from the command line or a file; `from` names the place for the message.
pub fn parse_json(context: &CommandContext, from: &str, text: &str) -> Result<Json, CliError> {
    let json = Json::parse(text.trim()).map_err(|error| {
        CliError::input(format!("{from}: {error}"))
            .help("write JSON, quoted for the shell: '{\"total\": 19}', '\"text\"', 'null'")
    })?;
    json.within(from, context.limits().payload())
        .map_err(|error| CliError::new(Exit::Usage, "limit", error.to_string()))
}

fn read_input(path: &Path, limits: Limits) -> Result<String, CliError> {
    let cannot = |error: std::io::Error| {
        CliError::input(format!("can't read {}: {error}", path.display()))
            .help("--input-file takes a JSON file, or - for stdin")
    };
    // With room for white space.
    let (limit, mut bytes) = (limits.payload(), Vec::new());
    let most = 2 * limit.bytes;
    if path == Path::new("-") {
        std::io::stdin().lock().take(most as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
    } else {
        let file = std::fs::File::open(path);
        file.and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes)).map_err(cannot)?;
    }
    if bytes.len() > most {
        let (path, Limit { bytes, setting }) = (path.display(), limit);
        let text = format!(
            "{path} is larger than {most} bytes; an input can have up to {bytes} (setting {setting})"
        );
        return Err(CliError::new(Exit::Usage, "limit", text));
    }
    String::from_utf8(bytes).map_err(|error| cannot(std::io::Error::other(error)))
}

pub fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write a label as NAME=VALUE (team=billing)")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn priority(text: &str) -> Result<Priority, String> {
    Priority::parse(text).ok_or_else(|| "use low, normal, high or urgent".to_owned())
}
