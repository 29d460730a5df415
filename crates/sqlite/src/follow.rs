//! Noticing what another process commits, for readers without an engine of their own.

use std::path::PathBuf;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tokio::sync::watch;

use crate::file;

/// How often the file is asked whether it changed, while somebody watches.
const EVERY: Duration = Duration::from_millis(50);

/// Polls `data_version` on a thread that starts with the first watcher and ends with this.
#[derive(Debug)]
pub(crate) struct Follower {
    path: PathBuf,
    changed: watch::Sender<u64>,
    polling: Mutex<Option<Polling>>,
}

#[derive(Debug)]
struct Polling {
    stop: mpsc::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Follower {
    pub(crate) fn new(path: PathBuf) -> Follower {
        Follower { path, changed: watch::channel(0).0, polling: Mutex::new(None) }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        let receiver = self.changed.subscribe();
        if let Ok(mut polling) = self.polling.lock()
            && polling.is_none()
        {
            *polling = self.start();
        }
        receiver
    }

    /// `None` where no thread is to be had: watchers then learn nothing, and reading is the truth anyway.
    fn start(&self) -> Option<Polling> {
        let (stop, stopped) = mpsc::channel();
        let (path, changed) = (self.path.clone(), self.changed.clone());
        let body = move || poll(&path, &changed, &stopped);
        let thread = thread::Builder::new().name("flowline-follow".to_owned()).spawn(body).ok()?;
        Some(Polling { stop, thread })
    }
}

fn poll(path: &std::path::Path, changed: &watch::Sender<u64>, stopped: &mpsc::Receiver<()>) {
    let Ok(conn) = file::open_reader(path) else { return };
    let mut seen: Option<i64> = None;
    while stopped.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
        if changed.receiver_count() == 0 {
            continue;
        }
        // A read that fails now is made again in a moment.
        let Ok(version) = conn.query_row("pragma data_version", [], |row| row.get(0)) else { continue };
        if seen.replace(version).is_some_and(|before| before != version) {
            changed.send_modify(|count| *count += 1);
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let polling = self.polling.get_mut().ok().and_then(Option::take);
        if let Some(Polling { stop, thread }) = polling {
            drop(stop);
            // Its end needs no word: it holds nothing that others wait for.
            let _ = thread.join();
        }
    }
}
