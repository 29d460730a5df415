//! Threads of their own for connections that begin by reading: lists, logs, streams. They neither queue behind the requests
//! of those who start runs and work, nor behind the engine, so that a flood of starts keeps nobody from seeing it.

use std::io;

use flowline::store::reading;
use tokio::runtime::{Builder, Handle, Runtime};

/// More than a store lets read in place, so that some are left to answer what is quick.
const THREADS: usize = 4;

/// The threads. They end with this, so it is kept until nothing that began on them is needed any more: a connection to a
/// store, too, lives where it was first asked for.
#[derive(Debug)]
pub struct Reading {
    /// The way to them.
    pub handle: Handle,
    threads: Option<Runtime>,
}

impl Reading {
    pub fn start() -> io::Result<Reading> {
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(THREADS).thread_name("flowline-reads").on_thread_start(reading::wait_here);
        let threads = threads.enable_all().build()?;
        Ok(Reading { handle: threads.handle().clone(), threads: Some(threads) })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // Waiting for them is not for a task of another runtime.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}
