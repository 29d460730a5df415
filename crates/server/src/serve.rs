//! A server that runs: it takes connections until it is closed, and answers them from an engine.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use flowline::Engine;
use flowline::store::Store;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::http::listen::{self, Listening};
use crate::http::live::LiveStreams;
use crate::http::metrics::Watched;
use crate::http::threads::Threads;
use crate::http::workers::WorkerSightings;
use crate::http::{Api, InstanceParts};
use crate::otlp::Export;

pub use crate::http::access::{Door, Principal, Remembered};
pub use crate::http::cors::Origins;
pub use crate::http::listen::bind;
pub use crate::http::tls::acceptor;

/// What a server is told beside its engine.
pub struct ServerConfig {
    pub door: Door,
    /// Origins whose web pages may use the API.
    pub origins: Origins,
    /// Time without progress after which the metrics count a run as stuck.
    pub stuck_after: Duration,
    pub export: Option<Export>,
    pub tls: Option<TlsAcceptor>,
    /// Connections to accept at once; others wait.
    pub max_connections: usize,
    /// How long requests may take to finish after the server was closed.
    pub drain: Duration,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig").field("door", &self.door).finish_non_exhaustive()
    }
}

/// A server that takes connections.
#[derive(Debug)]
pub struct Serving {
    live: LiveStreams,
    close: oneshot::Sender<()>,
    served: JoinHandle<()>,
    /// Kept until the end: they serve connections.
    _threads: Threads,
}

/// A server that takes no more connections.
#[derive(Debug)]
pub struct Closing {
    served: JoinHandle<()>,
    _threads: Threads,
}

impl Serving {
    /// Serves the engine's runs on a listener. `store` is the one that the engine works on.
    pub fn start(
        engine: Engine,
        store: Arc<dyn Store>,
        listener: TcpListener,
        config: ServerConfig,
    ) -> io::Result<Serving> {
        let threads = Threads::start()?;
        let reads = store.in_place().unwrap_or(store);
        let live = LiveStreams::new(reads.clone());
        let instance = InstanceParts {
            door: config.door,
            origins: config.origins,
            encrypted: config.tls.is_some(),
            live: live.clone(),
            watched: Watched::new(config.stuck_after, config.export),
            workers: WorkerSightings::default(),
        };
        let reads = engine.reading_through(reads);
        let api = Api::of(engine, reads, instance);
        let how = Listening {
            most: config.max_connections,
            tls: config.tls,
            ways: threads.ways(),
            drain: config.drain,
        };
        let (close, closed) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let connections = listen::serve(listener, api.clone(), how, async {
                let _ = closed.await;
            });
            tokio::select! {
                () = connections => {}
                () = api.keep_uses() => {}
            }
            api.finish_uses().await;
        });
        Ok(Serving { live, close, served, _threads: threads })
    }

    /// Takes no more connections and ends every live stream. Requests that are being answered may finish.
    pub fn close(self) -> Closing {
        self.live.stop();
        let _ = self.close.send(());
        Closing { served: self.served, _threads: self._threads }
    }
}

impl Closing {
    /// Waits until the last request is answered, or the drain time is over.
    pub async fn ended(self) {
        let _ = self.served.await;
    }
}
