//! The threads that serve requests. Routes that read have separate ones, so that a flood of starts doesn't slow down lists;
//! a route says which it is ([`RouteEffect`]).
//!
//! A whole connection moves to the threads that its request needs, and stays there until another request needs the others. So
//! a client that only reads or only writes moves at most once, and its requests never wait for a thread of the other kind.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::runtime::{Builder, Handle, Runtime};

use super::route::RouteEffect;

/// More than a store lets block on reads, so that some are left for quick requests.
const READERS: usize = 4;

/// The threads. Dropping this ends those for readers, so keep it for as long as anything that started on them is in use: a
/// connection to a store lives on the threads that opened it, too.
#[derive(Debug)]
pub struct Threads {
    ways: Ways,
    readers: Option<Runtime>,
}

impl Threads {
    /// Starts the threads for readers. The calling runtime serves writes.
    pub fn start() -> io::Result<Threads> {
        let mut readers = Builder::new_multi_thread();
        let readers = readers.worker_threads(READERS).thread_name("flowline-reads").enable_all().build()?;
        let ways = Ways { reads: readers.handle().clone(), writes: Handle::current() };
        Ok(Threads { ways, readers: Some(readers) })
    }

    pub fn ways(&self) -> Ways {
        self.ways.clone()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A task of another runtime can't wait for them.
        if let Some(readers) = self.readers.take() {
            readers.shutdown_background();
        }
    }
}

/// Spawns on both kinds of threads.
#[derive(Debug, Clone)]
pub struct Ways {
    reads: Handle,
    writes: Handle,
}

impl Ways {
    /// Serves a connection, always on the threads that its request needs.
    pub fn serve(self, mut connection: Pin<Box<dyn Future<Output = ()> + Send>>, seat: Arc<Whereabouts>) {
        let wanted = seat.wanted();
        let threads = if wanted == RouteEffect::Reads { &self.reads } else { &self.writes };
        threads.clone().spawn(async move {
            seat.reads_here.store(wanted == RouteEffect::Reads, Ordering::Relaxed);
            let moves = poll_fn(|context| match connection.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending if seat.wanted() != wanted => Poll::Ready(true),
                Poll::Pending => Poll::Pending,
            });
            if moves.await {
                self.serve(connection, seat);
            }
        });
    }
}

/// Which threads serve a connection, and which its request needs. A new one starts with those that write.
#[derive(Debug, Default)]
pub struct Whereabouts {
    reads_here: AtomicBool,
    wants_to_read: AtomicBool,
}

impl Whereabouts {
    pub fn here(&self) -> RouteEffect {
        effect(&self.reads_here)
    }

    fn wanted(&self) -> RouteEffect {
        effect(&self.wants_to_read)
    }

    /// Waits until the connection has moved to the threads for this.
    pub async fn take(&self, wanted: RouteEffect) {
        self.wants_to_read.store(wanted == RouteEffect::Reads, Ordering::Relaxed);
        // No need to wake anyone: the task that moves a connection polls it.
        poll_fn(|_| if self.here() == wanted { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

fn effect(reads: &AtomicBool) -> RouteEffect {
    if reads.load(Ordering::Relaxed) { RouteEffect::Reads } else { RouteEffect::Writes }
}
