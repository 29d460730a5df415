//! `flowline serve` and `flowline dev`: the API, and an instance that works.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use flowline::runner::http::Allow;
use flowline::store::Store;
use flowline::{Config, Engine, EngineBuilder, HttpConfig};
use flowline_api::access::{NewToken, TokenScope};
use flowline_server::otlp::Export;
use flowline_server::serve::{self, Door, Principal, Remembered, ServerConfig, Serving};
use flowline_server::token;

use super::{CommandContext, WorkFlags, no_runtime};
use crate::failure::{CliError, Exit, Outcome};
use crate::flows_dir::FlowFolder;
use crate::log::{self, Habit};
use crate::open::shown;
use crate::output;
use crate::settings::{Auth, ServeSettings, SettingSource, UnattendedSettings};
use crate::signals::Signals;

/// Serve the HTTP API and run steps
///
/// On a loopback address it doesn't require API tokens, unless you set --auth. On any other address it does; at its very first
/// start it creates one and prints it. `command` steps run only with --allow-commands.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline serve --store postgres://flowline@db/flowline --listen 0.0.0.0:7400"
)]
pub struct Args {
    #[command(flatten)]
    pub serve: ServeFlags,
    /// Run `command` steps on this machine
    #[arg(long)]
    allow_commands: bool,
}

/// Run a local server for developing flows
///
/// Like `serve`, with `command` steps allowed. With --flows, it registers definitions again whenever a file changes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline dev --flows examples")]
pub struct Dev {
    #[command(flatten)]
    pub serve: ServeFlags,
    /// Open the console in a browser
    #[arg(long)]
    open: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub struct ServeFlags {
    #[command(flatten)]
    settings: ServeSettings,
    #[command(flatten)]
    unattended: UnattendedSettings,
    #[command(flatten)]
    pub work: WorkFlags,
}

/// What differs between serving and developing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Serve { commands: bool },
    Dev { open: bool },
}

pub async fn serve(context: &CommandContext, args: Args) -> Outcome {
    run(context, args.serve, Mode::Serve { commands: args.allow_commands }).await
}

pub async fn dev(context: &CommandContext, args: Dev) -> Outcome {
    run(context, args.serve, Mode::Dev { open: args.open }).await
}

async fn run(context: &CommandContext, flags: ServeFlags, mode: Mode) -> Outcome {
    let settings = &context.settings;
    let habit = if matches!(mode, Mode::Dev { .. }) { Habit::ForPeople } else { Habit::ByTerminal };
    log::start(&settings.log.value, settings.log_format.value, habit);
    let mut signals = Signals::listen().map_err(|error| CliError::environment(error.to_string()))?;
    let tls = match (&settings.tls_cert.value, &settings.tls_key.value) {
        (Some(cert), Some(key)) => Some(serve::acceptor(cert, key).map_err(CliError::usage)?),
        (None, None) => None,
        _ => return Err(CliError::usage("TLS needs both --tls-cert and --tls-key")),
    };
    allow_files();
    let listener = serve::bind(settings.listen.value).map_err(|error| {
        CliError::environment(format!("can't listen on {}: {error}", settings.listen.value))
            .help("another server may be running there; choose another address with --listen")
    })?;
    let address = listener.local_addr().map_err(|error| CliError::environment(error.to_string()))?;
    let Some(store) = context.await_store(&mut signals).await? else { return Ok(Exit::Interrupted) };
    let door = door(context, &*store, address.ip().is_loopback()).await?;
    let config = Config { tenant: None, ..context.work_config() };
    let instance = config.instance.clone();
    let headers = &settings.otlp_headers.value;
    let export = settings.otlp_endpoint.value.clone().map(|to| Export::start(to, headers, &instance));
    let export = export.transpose().map_err(|error| CliError::usage(error.to_string()))?;
    let (export, sender) = export.unzip();
    let mut builder = Engine::on(store.clone()).config(config);
    if let Some(export) = &export {
        builder = builder.spans(export.spans.clone());
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    let here = format!("{scheme}://{address}");
    let engine = engine(context, builder, &flags.work.env, mode, &here).await?;
    let flows = match &settings.flows.value {
        Some(folder) => {
            let flows = match FlowFolder::register(&engine, folder).await {
                Ok(flows) => flows,
                Err(failure) => {
                    engine.stop_within(Duration::ZERO).await;
                    return Err(failure);
                }
            };
            output::note(&format!("{} from {}", output::count(flows.len() as u64, "flow"), folder.display()));
            Some(flows)
        }
        None => None,
    };
    let config = ServerConfig {
        door,
        origins: settings.cors_origins.value.clone(),
        stuck_after: settings.stuck_after.value,
        export,
        tls,
        max_connections: settings.max_connections.value,
        drain: engine.config().drain,
    };
    output::note(&format!("serving {} on {here}", shown(&settings.store.value)));
    let console = format!("{here}/ui/");
    if matches!(mode, Mode::Dev { .. }) {
        output::note(&format!("  console  {console}\n  API      {here}/docs\n  live     {here}/v1/stream"));
    }
    tracing::info!(instanceId = &*instance, version = env!("CARGO_PKG_VERSION"), "instance started");
    let serving = Serving::start(engine.clone(), store, listener, config).map_err(no_runtime)?;
    if mode == (Mode::Dev { open: true }) {
        open_in_browser(&console);
    }
    tokio::select! {
        () = signals.next() => {}
        () = follow(&engine, flows, mode) => {}
    }
    let closing = serving.close();
    signals.stop(&engine).await;
    closing.ended().await;
    if let Some(sender) = sender {
        sender.stop().await;
    }
    tracing::info!(instanceId = &*instance, "instance stopped");
    Ok(Exit::Fine)
}

/// Asks the desktop for its browser. A machine without one is told the address, which is printed anyway.
fn open_in_browser(url: &str) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let started = std::process::Command::new(program)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match started {
        // Waited for on a thread of its own, so that no dead process is left behind.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => output::note(&format!("can't open a browser with {program}: {error}")),
    }
}

async fn follow(engine: &Engine, flows: Option<FlowFolder>, mode: Mode) {
    match flows {
        Some(flows) if matches!(mode, Mode::Dev { .. }) => flows.follow(engine).await,
        _ => std::future::pending().await,
    }
}

/// Whom to let in. A server that others can reach asks for tokens, and there must be one: a new store gets its first here.
async fn door(context: &CommandContext, store: &dyn Store, loopback: bool) -> Result<Door, CliError> {
    let open = match context.settings.auth.value {
        Auth::None => true,
        Auth::Tokens => false,
        Auth::Auto => loopback,
    };
    if open {
        if !loopback {
            output::note("warning: no API token is required, and other machines can reach this address");
        }
        let anyone = Principal::anyone(context.settings.tenant.value.clone());
        return Ok(Door::Open { anyone, loopback });
    }
    let new =
        NewToken { subject: "admin".to_owned(), scopes: vec![TokenScope::Admin], ..NewToken::default() };
    if let Some(first) = token::first(store, &context.settings.tenant.value, new).await? {
        let what = "created the first API token, with scope admin; it won't be shown again";
        output::notice(&format!("{what}: {}", first.token));
    } else if !token::any(store).await? {
        return Err(CliError::new(Exit::Usage, "no-token", "this server requires API tokens, and there are none any more").help(
            "create one with `flowline token create --subject me --scope admin`. Or listen on 127.0.0.1:7400 to serve \
             this machine only, or let anyone in with --auth none",
        ));
    }
    Ok(Door::Tokens(Remembered::new(context.settings.max_wrong_tokens.value)))
}

/// The engine of a server: it serves every tenant.
async fn engine(
    context: &CommandContext,
    engine: EngineBuilder,
    env: &[String],
    mode: Mode,
    here: &str,
) -> Result<Engine, CliError> {
    let settings = &context.settings;
    let allow = match (&settings.http_allow.source, mode) {
        // The flows of others should not reach what this machine can.
        (SettingSource::Default, Mode::Serve { .. }) => Allow::default(),
        _ => settings.http_allow.value.clone(),
    };
    let callbacks = settings.public_url.value.clone().unwrap_or_else(|| here.to_owned());
    let http = HttpConfig { allow, callbacks: Some(callbacks), ..super::http_config() };
    let mut engine = engine.http(http);
    if mode != (Mode::Serve { commands: false }) {
        engine = engine.runner("command", Arc::new(super::commands(env)));
    }
    Ok(engine.tenant(context.settings.tenant.value.clone()).start().await?)
}

/// Every connection is an open file, and systems start processes with a low limit for the sake of old programs: takes as
/// many as it may. Where that is refused, connections beyond the limit wait.
fn allow_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
