//! `flowline serve`: the API, and an instance that works.

use std::net::SocketAddr;

use super::{Context, WorkFlags};
use crate::failure::{Exit, Failure, Outcome};
use crate::http::{self, App, Shared, listen};
use crate::open::shown;
use crate::output;
use crate::signals::Signals;

/// Connections that one instance takes at once.
const CONNECTIONS: usize = 10_000;

/// Serve the HTTP API and run steps
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline serve --store postgres://flowline@db/flowline --listen 127.0.0.1:7400"
)]
pub struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
    /// Where this server is reached from outside, for callbacks of http steps [default: the address it listens on]
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    #[command(flatten)]
    pub work: WorkFlags,
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    let mut signals = Signals::listen().map_err(|error| Failure::environment(error.to_string()))?;
    let listener = listen::bind(args.listen).await.map_err(|error| {
        Failure::environment(format!("cannot listen on {}: {error}", args.listen))
            .help("another server may run there; name another address with --listen")
    })?;
    let address = listener.local_addr().map_err(|error| Failure::environment(error.to_string()))?;
    let callbacks = args.public_url.unwrap_or_else(|| format!("http://{address}"));
    let (engine, _) = context.worker(&args.work.env, Some(callbacks)).await?;
    let app = App::new(Shared { engine: engine.clone(), tenant: context.settings.tenant.value.clone() });
    output::note(&format!("serving {} on http://{address}", shown(&context.settings.store.value)));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let drain = engine.config().drain;
    let served = tokio::spawn(listen::serve(
        listener,
        http::router(app),
        CONNECTIONS,
        async {
            let _ = stopped.await;
        },
        drain,
    ));
    signals.next().await;
    let _ = stop.send(());
    signals.stop(&engine).await;
    let _ = served.await;
    Ok(Exit::Fine)
}
