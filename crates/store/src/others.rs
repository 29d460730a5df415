//! Whether other processes write to the same store just now, as far as their wake-ups tell. A hint for who gathers writes: while
//! others write too, they fill the server's time in between, and fewer, larger batches of each cost it less.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Who was heard of within this time writes just now: whoever writes without a pause is heard of every few milliseconds.
pub const BUSY: Duration = Duration::from_millis(50);

/// When another process was last heard of.
#[derive(Debug)]
pub struct OtherProcesses {
    began: Instant,
    /// Microseconds after that; 0 for never.
    heard: AtomicU64,
}

impl OtherProcesses {
    pub fn new() -> Arc<OtherProcesses> {
        Arc::new(OtherProcesses { began: Instant::now(), heard: AtomicU64::new(0) })
    }

    pub fn hear(&self) {
        self.heard.store(self.began.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// Whether one was heard of a moment ago.
    pub fn write(&self) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        heard > 0 && self.began.elapsed() < Duration::from_micros(heard) + BUSY
    }
}
