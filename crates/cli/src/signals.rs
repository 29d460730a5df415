//! SIGINT, SIGTERM and SIGHUP as one stream: the first asks for a graceful stop, the second ends at once.

use std::io;
use std::time::Duration;

use flowline::Engine;

use crate::output;

/// How long an engine told to end at once gets to give back what it holds.
const LAST_MOMENT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Signals {
    #[cfg(unix)]
    streams: [tokio::signal::unix::Signal; 3],
}

impl Signals {
    /// Takes the signals over from here on.
    pub fn listen() -> io::Result<Signals> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
            let [interrupt, terminate, hangup] = kinds.map(signal);
            Ok(Signals { streams: [interrupt?, terminate?, hangup?] })
        }
        #[cfg(not(unix))]
        Ok(Signals {})
    }

    pub async fn next(&mut self) {
        #[cfg(unix)]
        {
            let [interrupt, terminate, hangup] = &mut self.streams;
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        }
        #[cfg(not(unix))]
        let _ = tokio::signal::ctrl_c().await;
    }

    /// Stops an engine: running steps may finish for the drain time, unless another signal comes.
    pub async fn stop(&mut self, engine: &Engine) {
        let drain = engine.config().drain;
        output::note(&format!(
            "stopping: running steps have {} to finish; a second signal stops at once",
            output::duration(drain)
        ));
        tokio::select! {
            () = engine.stop_within(drain) => {}
            () = self.next() => {
                // The engine's own stop is under way; this only shortens it.
                let _ = tokio::time::timeout(LAST_MOMENT, engine.stop_within(Duration::ZERO)).await;
                // What still runs dies with the runtime, and its leases with the process.
            }
        }
    }
}
