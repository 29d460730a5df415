//! `flowline serve` and `flowline dev`: the API, and an instance that works.

use std::path::PathBuf;
use std::sync::Arc;

use flowline::store::Store;
use flowline::{Config, Engine};
use tokio::net::TcpListener;

use super::{Context, WorkFlags};
use crate::failure::{Exit, Failure, Outcome};
use crate::flows_dir;
use crate::http::access::{Door, Remembered};
use crate::http::metrics::Watched;
use crate::http::{self, App, Shared, listen};
use crate::log::{self, Habit};
use crate::open::{Access, shown};
use crate::otlp::Export;
use crate::output;
use crate::settings::Auth;
use crate::signals::Signals;
use crate::token;

/// Connections that one instance takes at once.
const CONNECTIONS: usize = 10_000;

/// Serve the HTTP API and run steps
///
/// On this machine's own addresses it asks for no tokens, unless told to. On any other it does, and refuses to start before
/// there is one. Steps that are commands of this machine run only with --allow-commands.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline serve --store postgres://flowline@db/flowline --listen 0.0.0.0:7400"
)]
pub struct Args {
    #[command(flatten)]
    pub serve: ServeFlags,
    /// Run steps that are commands of this machine
    #[arg(long)]
    allow_commands: bool,
}

/// Serve on this machine while working on flows
///
/// As `serve`, with commands allowed and a folder of definitions that are registered again whenever a file changes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline dev --flows examples")]
pub struct Dev {
    #[command(flatten)]
    pub serve: ServeFlags,
}

#[derive(Debug, Clone, clap::Args)]
pub struct ServeFlags {
    /// Where to listen [env: FLOWLINE_LISTEN] [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Whether tokens are asked for: auto, none or tokens [env: FLOWLINE_AUTH] [default: auto]
    #[arg(long, value_name = "HOW")]
    pub auth: Option<String>,
    /// After how long without progress a run counts as stuck in the metrics [env: FLOWLINE_STUCK_AFTER] [default: 15m]
    #[arg(long, value_name = "DURATION")]
    pub stuck_after: Option<String>,
    /// What is logged: error, warn, info, debug or trace, or levels by part (info,flowline::drive=debug) [env: FLOWLINE_LOG] [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// How it is logged: pretty or json; pretty on a terminal and in `dev` where it is left out [env: FLOWLINE_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Send spans to this OpenTelemetry collector, by OTLP over HTTP (http://127.0.0.1:4318) [env: FLOWLINE_OTLP_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// A folder with definitions to register [env: FLOWLINE_FLOWS]
    #[arg(long, value_name = "DIR")]
    pub flows: Option<PathBuf>,
    #[command(flatten)]
    pub work: WorkFlags,
}

/// What differs between serving and developing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Serve { commands: bool },
    Dev,
}

pub async fn serve(context: &Context, args: Args) -> Outcome {
    run(context, args.serve, Mode::Serve { commands: args.allow_commands }).await
}

pub async fn dev(context: &Context, args: Dev) -> Outcome {
    run(context, args.serve, Mode::Dev).await
}

async fn run(context: &Context, flags: ServeFlags, mode: Mode) -> Outcome {
    let habit = if mode == Mode::Dev { Habit::ForPeople } else { Habit::ByTerminal };
    log::start(&context.settings.log.value, context.settings.log_format.value, habit);
    let mut signals = Signals::listen().map_err(|error| Failure::environment(error.to_string()))?;
    let wanted = context.settings.listen.value;
    let listener = TcpListener::bind(wanted).await.map_err(|error| {
        Failure::environment(format!("cannot listen on {wanted}: {error}"))
            .help("another server may run there; name another address with --listen")
    })?;
    let address = listener.local_addr().map_err(|error| Failure::environment(error.to_string()))?;
    let store = context.open(Access::Engine).await?;
    let door = door(context, &*store, address.ip().is_loopback()).await?;
    let config = Config { tenant: None, ..context.work_config() };
    let instance = config.instance.clone();
    let export = context.settings.otlp_endpoint.value.clone().map(|to| Export::start(to, &instance));
    let (export, sender) = export.unzip();
    let engine = engine(context, store, config, &flags.work.env, (mode, export.as_ref())).await?;
    let folder = context.settings.flows.value.clone();
    if let Some(folder) = &folder {
        let number = flows_dir::register(&engine, folder).await?;
        output::note(&format!("{} from {}", output::count(number as u64, "flow"), folder.display()));
    }
    let watched = Watched::new(context.settings.stuck_after.value, export);
    let app = App::new(Shared { engine: engine.clone(), door, watched });
    output::note(&format!("serving {} on http://{address}", shown(&context.settings.store.value)));
    if mode == Mode::Dev {
        output::note(&format!("  API   http://{address}/docs\n  live  http://{address}/v1/stream"));
    }
    tracing::info!(instanceId = &*instance, version = env!("CARGO_PKG_VERSION"), "instance started");
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let until = async {
        let _ = stopped.await;
    };
    let drain = engine.config().drain;
    let served = tokio::spawn(listen::serve(listener, http::router(app), CONNECTIONS, until, drain));
    tokio::select! {
        () = signals.next() => {}
        () = follow(&engine, folder, mode) => {}
    }
    let _ = stop.send(());
    signals.stop(&engine).await;
    let _ = served.await;
    if let Some(sender) = sender {
        sender.stop().await;
    }
    tracing::info!(instanceId = &*instance, "instance stopped");
    Ok(Exit::Fine)
}

async fn follow(engine: &Engine, folder: Option<PathBuf>, mode: Mode) {
    match folder {
        Some(folder) if mode == Mode::Dev => flows_dir::follow(engine, &folder).await,
        _ => std::future::pending().await,
    }
}

/// Whom to let in. A server that others can reach asks for tokens, and there must be one.
async fn door(context: &Context, store: &dyn Store, loopback: bool) -> Result<Door, Failure> {
    let open = match context.settings.auth.value {
        Auth::None => true,
        Auth::Tokens => false,
        Auth::Auto => loopback,
    };
    if open {
        if !loopback {
            output::note("warning: no tokens are asked for, and others can reach this address");
        }
        return Ok(Door::Open { tenant: context.settings.tenant.value.clone(), loopback });
    }
    if token::list(store, None).await?.is_empty() {
        return Err(Failure::new(Exit::Usage, "no-token", "tokens are asked for, and there is none yet").help(
            "`flowline token create --subject me --scope admin` makes one; --auth none lets anybody in, and \
             --listen 127.0.0.1:7400 only this machine",
        ));
    }
    Ok(Door::Tokens(Remembered::default()))
}

/// The engine of a server: it serves every tenant.
async fn engine(
    context: &Context,
    store: Arc<dyn Store>,
    config: Config,
    env: &[String],
    (mode, export): (Mode, Option<&Export>),
) -> Result<Engine, Failure> {
    let mut engine = Engine::on(store).config(config);
    if let Some(export) = export {
        engine = engine.spans(export.spans.clone());
    }
    if mode != (Mode::Serve { commands: false }) {
        engine = engine.runner("command", Arc::new(super::commands(env)));
    }
    Ok(engine.tenant(context.settings.tenant.value.clone()).start().await?)
}
