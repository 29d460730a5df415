//! The command line: what can be asked, and how an answer ends. Each subcommand has a file of its own.

mod act;
mod bench;
mod completions;
mod config;
mod delete;
mod doctor;
mod events;
mod explain;
mod flows;
mod graph;
mod locks;
mod queues;
mod receipts;
mod reconcile;
mod relocate;
mod retain;
mod run;
mod runs;
mod schema;
mod send;
mod serve;
mod show;
mod simulate;
mod start;
mod state;
mod stats;
mod token;
mod validate;
mod verify;
mod work;
mod worker;

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use flowline::core::limits::Limits;
use flowline::core::{RunId, RunKey};
use flowline::runner::http::Secrets;
use flowline::store::Store;
use flowline::{Config, Engine, HttpConfig, instance_name};
use flowline_client::Client;
use serde::Serialize;

use crate::failure::{CliError, Exit, Outcome};
use crate::open::{self, StoreAccess};
use crate::operator::{Operator, ServerOperator, StoreOperator};
use crate::output;
use crate::settings::{GlobalSettings, SettingSource, Settings, WorkSettings};
use crate::signals::Signals;

/// Run durable workflows: flows (steps wired by events) and state machines.
#[derive(Debug, Parser)]
#[command(
    name = "flowline",
    version,
    propagate_version = true,
    max_term_width = 110,
    after_help = "Example:\n  flowline run order.yaml --input '{\"total\": 19}'\n\n\
                  Exit codes: 0 success, 1 the run failed or a check found a problem,\n\
                  2 bad usage, definition or input, 3 store, server or environment problem, 130 interrupted."
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Args)]
pub struct Global {
    #[command(flatten)]
    settings: GlobalSettings,
    /// Print JSON to stdout, and nothing else
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
    /// Settings file [default: flowline.toml, if it exists]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Work(work::Args),
    Serve(serve::Args),
    Dev(serve::Dev),
    Worker(worker::Args),
    Start(start::Args),
    Send(send::Args),
    Cancel(act::Cancel),
    Pause(act::PauseArgs),
    Resume(act::Resume),
    Complete(act::Complete),
    Fail(act::FailArgs),
    Retry(act::RetryArgs),
    Delete(delete::Args),
    Flows(flows::Args),
    Runs(runs::Args),
    Show(show::Args),
    Events(events::Args),
    Receipts(receipts::Args),
    Stats(stats::Args),
    Explain(explain::Args),
    Verify(verify::Args),
    Reconcile(reconcile::Args),
    Queues(queues::Args),
    Locks(locks::Args),
    State(state::Args),
    Validate(validate::Args),
    Graph(graph::Args),
    Schema(schema::Args),
    Simulate(simulate::Args),
    Retain(retain::Args),
    Move(relocate::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
    Token(token::Args),
    Config(config::Args),
    Completions(completions::Args),
}

/// How an instance works; the flags of commands that run steps.
#[derive(Debug, Clone, Default, Args)]
pub struct WorkFlags {
    #[command(flatten)]
    settings: WorkSettings,
    /// Pass this environment variable to commands; repeatable
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
}

/// What every command knows.
#[derive(Debug)]
pub struct CommandContext {
    pub settings: Settings,
    pub json: bool,
}

impl CommandContext {
    pub async fn open(&self, access: StoreAccess) -> Result<Arc<dyn Store>, CliError> {
        open::open(&self.settings.store.value, access).await
    }

    /// Does things where the runs are: at the server of the settings, or in their store.
    pub fn operator(&self) -> Result<Box<dyn Operator + '_>, CliError> {
        match self.settings.server() {
            Some(server) => Ok(Box::new(ServerOperator::new(self.client(server)?))),
            None => Ok(Box::new(StoreOperator::new(&self.settings))),
        }
    }

    /// A client of a server, for the token's tenant, or without a token for the one that is named.
    pub fn client(&self, server: &str) -> Result<Client, CliError> {
        let (token, tenant) = (&self.settings.token, &self.settings.tenant);
        let client = Client::new(server)?;
        Ok(match &token.value {
            Some(_) if tenant.source == SettingSource::Flag => {
                return Err(CliError::usage(
                    "--tenant can't be combined with a token, which already belongs to one tenant",
                )
                .help("drop --tenant, or use a token of that tenant"));
            }
            Some(token) => client.token(token)?,
            None if tenant.source == SettingSource::Default => client,
            None => client.tenant(tenant.value.as_str())?,
        })
    }

    /// The limits of what this command takes from its user. A server judges by its own.
    pub fn limits(&self) -> Limits {
        match self.settings.server() {
            Some(_) => Limits::MOST,
            None => self.settings.limits(),
        }
    }

    /// Ends a command with its answer: as JSON, or as `people` prints it.
    pub fn answer<E>(&self, answer: &impl Serialize, people: impl FnOnce() -> Result<(), E>) -> Outcome
    where
        CliError: From<E>,
    {
        if self.json {
            output::json(answer)?
        } else {
            people()?
        };
        Ok(Exit::Fine)
    }

    /// Who runs the steps of a run that was started.
    pub fn who_works(&self, what: &str) -> String {
        match self.settings.server() {
            Some(_) => format!("the server and its workers run {what}"),
            None => format!("`flowline work` runs {what}"),
        }
    }

    /// The address of a run as the user typed it.
    pub fn run_key(&self, id: &str) -> Result<RunKey, CliError> {
        let run = RunId::new(id).map_err(|error| CliError::refusal("no-such-run", error.to_string()))?;
        Ok(RunKey::new(self.settings.tenant.value.clone(), run))
    }

    /// The store of a process that runs for long: where it is away, that is waited for. `None` where a signal ended the wait.
    pub async fn await_store(&self, signals: &mut Signals) -> Result<Option<Arc<dyn Store>>, CliError> {
        let settings = &self.settings;
        tokio::select! {
            opened = open::wait(&settings.store.value, StoreAccess::Engine, settings.store_patience.value) => {
                opened.map(Some)
            }
            () = signals.next() => Ok(None),
        }
    }

    /// An engine that runs steps.
    pub async fn worker(&self, store: Arc<dyn Store>, env: &[String]) -> Result<Engine, CliError> {
        let tenant = self.settings.tenant.value.clone();
        let config = Config { tenant: Some(tenant.clone()), ..self.work_config() };
        let http = HttpConfig { allow: self.settings.http_allow.value.clone(), ..http_config() };
        let engine = Engine::on(store).config(config).runner("command", Arc::new(commands(env)));
        Ok(engine.http(http).tenant(tenant).start().await?)
    }

    /// How an instance works.
    fn work_config(&self) -> Config {
        let settings = &self.settings;
        Config {
            slots: settings.slots.value,
            queues: settings.queues.value.clone(),
            lease: settings.lease.value,
            drain: settings.drain.value,
            retention: Some(settings.retention()),
            instance: instance_name(settings.instance_name.value.as_deref()),
            reconcile: settings.reconciling(),
            limits: settings.limits(),
            quotas: settings.quotas.value.clone(),
            ..Config::default()
        }
    }
}

/// Runs steps that are commands, which get these variables of the environment.
fn commands(env: &[String]) -> flowline::runner::command::Command {
    let mut commands = flowline::runner::command::Command::default();
    commands.pass_env.extend_from_slice(env);
    commands
}

/// Runs steps that are requests, with the secrets of this process.
fn http_config() -> HttpConfig {
    let secrets = Secrets::from_env();
    for variable in secrets.hostless() {
        output::note(&format!("warning: {variable} names no host, so it signs nothing; {NAME_HOST}"));
    }
    HttpConfig { secrets, ..HttpConfig::default() }
}

/// What to do about a secret that names no host.
const NAME_HOST: &str = "add host=HOST for each host that it may sign requests to, or host=* for any";

/// What this binary's engines can run.
pub const NEEDS: [&str; 4] = ["command", "http", "start", "send"];

pub fn main() -> ExitCode {
    let parsed = Cli::command().try_get_matches();
    let (matches, cli) =
        match parsed.and_then(|matches| Cli::from_arg_matches(&matches).map(|cli| (matches, cli))) {
            Ok(parsed) => parsed,
            Err(error) => return misused(&error),
        };
    let json = cli.global.json;
    let exit = match settle(&matches, cli) {
        Ok(exit) => exit,
        Err(failure) => tell(&failure, json),
    };
    ExitCode::from(exit as u8)
}

fn settle(matches: &ArgMatches, cli: Cli) -> Outcome {
    let settings = Settings::read(matches, cli.global.config.as_deref())?;
    output::set_color(settings.color.value);
    cli.command.check_reach(&settings)?;
    dispatch(&CommandContext { settings, json: cli.global.json }, cli.command)
}

impl Command {
    /// Refuses to go to a server with what only a store can do, rather than to do it elsewhere.
    fn check_reach(&self, settings: &Settings) -> Result<(), CliError> {
        let refuse = |what: &str, help: &str| Err(CliError::usage(what).help(help));
        let flag = settings.server.source == SettingSource::Flag;
        match self {
            Command::Run(_)
            | Command::Work(_)
            | Command::Reconcile(_)
            | Command::Retain(_)
            | Command::Doctor(_)
                if settings.server().is_some() =>
            {
                refuse(
                    "this command needs direct access to the store and doesn't work with --server",
                    "name the store with --store. To run steps next to a server, use `flowline worker`",
                )
            }
            Command::Serve(_) | Command::Dev(_) | Command::Bench(_) if flag => refuse(
                "this command doesn't work with --server",
                "drop --server, and name the store with --store",
            ),
            Command::Move(_) if flag => {
                refuse("move works on stores, not servers", "drop --server: --from and --to name the stores")
            }
            _ => Ok(()),
        }
    }
}

fn dispatch(context: &CommandContext, command: Command) -> Outcome {
    match command {
        Command::Run(args) => work_on(run::run(context, args)),
        Command::Work(args) => work_on(work::run(context, args)),
        Command::Serve(args) => work_on(serve::serve(context, args)),
        Command::Dev(args) => work_on(serve::dev(context, args)),
        Command::Worker(args) => work_on(worker::run(context, args)),
        Command::Start(args) => ask(start::run(context, args)),
        Command::Send(args) => ask(send::run(context, args)),
        Command::Cancel(args) => ask(act::cancel(context, args)),
        Command::Pause(args) => ask(act::pause(context, args)),
        Command::Resume(args) => ask(act::resume(context, args)),
        Command::Complete(args) => ask(act::complete(context, args)),
        Command::Fail(args) => ask(act::fail(context, args)),
        Command::Retry(args) => ask(act::retry(context, args)),
        Command::Delete(args) => ask(delete::run(context, args)),
        Command::Flows(args) => ask(flows::run(context, args)),
        Command::Runs(args) => ask(runs::run(context, args)),
        Command::Show(args) => ask(show::run(context, args)),
        Command::Events(args) => ask(events::run(context, args)),
        Command::Receipts(args) => ask(receipts::run(context, args)),
        Command::Stats(args) => ask(stats::run(context, args)),
        Command::Explain(args) => ask(explain::run(context, args)),
        Command::Verify(args) => ask(verify::run(context, args)),
        Command::Reconcile(args) => ask(reconcile::run(context, args)),
        Command::Queues(args) => ask(queues::run(context, args)),
        Command::Locks(args) => ask(locks::run(context, args)),
        Command::State(args) => ask(state::run(context, args)),
        Command::Validate(args) => validate::run(context, args),
        Command::Graph(args) => graph::run(context, args),
        Command::Schema(_) => schema::run(),
        Command::Simulate(args) => simulate::run(context, args),
        Command::Retain(_) => ask(retain::run(context)),
        Command::Move(args) => work_on(relocate::run(context, args)),
        Command::Doctor(_) => ask(doctor::run(context)),
        Command::Bench(args) => work_on(bench::run(context, args)),
        Command::Token(args) => ask(token::run(context, args)),
        Command::Config(_) => config::run(context),
        Command::Completions(args) => completions::run(args, Cli::command()),
    }
}

/// Runs a command that asks the store a few things: no threads beside this one.
fn ask(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(no_runtime)?.block_on(command)
}

/// Runs a command that runs steps.
fn work_on(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(no_runtime)?.block_on(command)
}

fn no_runtime(error: std::io::Error) -> CliError {
    CliError::environment(format!("can't start threads: {error}"))
}

/// Says what went wrong: to people on stderr, with `--json` to machines on stdout too.
fn tell(failure: &CliError, json: bool) -> Exit {
    if failure.quiet {
        return failure.exit;
    }
    if let Some(diagnostics) = &failure.diagnostics {
        output::drawing(&diagnostics.render(output::stderr_has_color()));
    }
    output::fault(&failure.message, failure.help.as_deref());
    if json {
        let _ = output::json(&failure.to_json());
    }
    failure.exit
}

/// A command line that clap refused, or a request for help or the version.
fn misused(error: &clap::Error) -> ExitCode {
    // A reader that went away is no fault.
    let _ = error.print();
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let failure = CliError::usage(message).help("`flowline --help` lists the commands");
        let _ = output::json(&failure.to_json());
    }
    ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { Exit::Fine as u8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_say_what_every_command_does_with_a_server() {
        let page = include_str!("../../../../docs/cli.md");
        let section = page.split("\n## ").find(|section| section.starts_with("At a server\n")).unwrap();
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        for command in Cli::command().get_subcommands().map(|command| command.get_name().to_owned()) {
            let listed = rows.iter().any(|row| row.contains(&format!("`{command}`")));
            assert!(listed, "docs/cli.md#at-a-server lacks {command}; does check_reach know it?");
        }
    }
}
