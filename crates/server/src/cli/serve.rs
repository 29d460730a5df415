//! `flowline serve`: the API, and an instance that works.

use super::{Context, WorkFlags};
use crate::failure::{Exit, Failure, Outcome};
use crate::http::listen::{self, Listening};
use crate::http::live::Live;
use crate::http::{self, App, Shared, tls};
use crate::open::shown;
use crate::output;
use crate::settings::Flags;
use crate::signals::Signals;

/// Serve the HTTP API and run steps
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline serve --store postgres://flowline@db/flowline --listen 127.0.0.1:7400"
)]
pub struct Args {
    /// Where to listen [env: FLOWLINE_LISTEN] [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Speak TLS with this certificate and those that lead to it, in PEM [env: FLOWLINE_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// The private key of the certificate, in PEM [env: FLOWLINE_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Connections taken at once; more wait [env: FLOWLINE_MAX_CONNECTIONS] [default: 10000]
    #[arg(long, value_name = "N")]
    max_connections: Option<String>,
    #[command(flatten)]
    pub work: WorkFlags,
}

impl Args {
    pub fn tell(&self, flags: &mut Flags) {
        flags.listen.clone_from(&self.listen);
        flags.tls_cert.clone_from(&self.tls_cert);
        flags.tls_key.clone_from(&self.tls_key);
        flags.max_connections.clone_from(&self.max_connections);
    }
}

pub async fn run(context: &Context, args: Args) -> Outcome {
    let settings = &context.settings;
    let mut signals = Signals::listen().map_err(|error| Failure::environment(error.to_string()))?;
    let tls = match (&settings.tls_cert.value, &settings.tls_key.value) {
        (Some(cert), Some(key)) => Some(tls::acceptor(cert, key).map_err(Failure::usage)?),
        (None, None) => None,
        _ => return Err(Failure::usage("TLS needs both tls-cert and tls-key; one is missing")),
    };
    allow_files();
    let listener = listen::bind(settings.listen.value).map_err(|error| {
        Failure::environment(format!("cannot listen on {}: {error}", settings.listen.value))
            .help("another server may run there; name another address with --listen")
    })?;
    let address = listener.local_addr().map_err(|error| Failure::environment(error.to_string()))?;
    let (engine, store) = context.worker(&args.work.env).await?;
    let live = Live::new(store);
    let tenant = settings.tenant.value.clone();
    let app = App::new(Shared { engine: engine.clone(), tenant, live: live.clone() });
    let scheme = if tls.is_some() { "https" } else { "http" };
    output::note(&format!("serving {} on {scheme}://{address}", shown(&settings.store.value)));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let how = Listening { most: settings.max_connections.value, tls, drain: engine.config().drain };
    let served = tokio::spawn(listen::serve(listener, http::router(app), how, async {
        let _ = stopped.await;
    }));
    signals.next().await;
    live.stop();
    let _ = stop.send(());
    signals.stop(&engine).await;
    let _ = served.await;
    Ok(Exit::Fine)
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
