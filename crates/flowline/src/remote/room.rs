//! The waiting room: where workers wait until there may be work.
//!
//! Workers of one tenant that serve the same queues wait in one line, and only the first in line looks into the store,
//! so long lines cost no more than short ones. It looks when the store has changed, when a known job is due, and every
//! second in case a hint was lost. After looks that find nothing, it pauses longer, up to [`PAUSE`], so that unrelated
//! changes don't cause claims.
//!
//! There's no background task: the first in line does the looking, and leaves its place to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowline_core::Tenant;
use flowline_store::Store;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::locked;

/// The longest pause after a look that found nothing.
const PAUSE: Duration = Duration::from_millis(25);
/// The shortest, doubled with each such look.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// How often the first of a line looks without a reason.
const SAFETY: Duration = Duration::from_secs(1);
/// Lines that are kept before empty ones are removed.
const LINES: usize = 256;

/// What the workers in a line have in common: the tenant, and the queues in order.
type Place = (Tenant, Arc<[Arc<str>]>);

#[derive(Debug)]
pub(crate) struct WaitingRoom {
    lines: Mutex<HashMap<Place, Arc<tokio::sync::Mutex<Line>>>>,
    closed: watch::Sender<bool>,
}

/// What the first of a line knows, and hands on to the next.
#[derive(Debug)]
struct Line {
    changed: watch::Receiver<u64>,
    /// Whether there may be work.
    hopeful: bool,
    last: Instant,
    /// When a job will be due.
    due: Option<Instant>,
    /// Looks in a row that found nothing.
    vain: u32,
}

/// What a look found.
pub(super) struct WorkFound<T> {
    pub(super) found: Vec<T>,
    /// How long until a job is due, if one is known.
    pub(super) due_in: Option<Duration>,
}

impl Default for WaitingRoom {
    fn default() -> WaitingRoom {
        WaitingRoom { lines: Mutex::default(), closed: watch::channel(false).0 }
    }
}

impl WaitingRoom {
    /// Sends everyone away.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Looks, in turn with the others in line, until something is found or the time is up.
    pub(super) async fn wait<T, E, F>(
        &self,
        store: &dyn Store,
        place: Place,
        deadline: Instant,
        look: impl Fn() -> F,
    ) -> Result<Vec<T>, E>
    where
        F: Future<Output = Result<WorkFound<T>, E>>,
    {
        let in_line = async {
            let line = self.line(store, place);
            let Ok(mut line) = timeout_at(deadline, line.lock()).await else { return Ok(Vec::new()) };
            while line.hope(deadline).await {
                line.last = Instant::now();
                line.changed.mark_unchanged();
                // Hope stays if this caller leaves meanwhile.
                let looked = look().await;
                match looked {
                    // There may be more, for the next.
                    Ok(WorkFound { found, .. }) if !found.is_empty() => {
                        line.vain = 0;
                        return Ok(found);
                    }
                    Ok(WorkFound { due_in, .. }) => line.in_vain(due_in),
                    Err(error) => {
                        line.in_vain(None);
                        return Err(error);
                    }
                }
            }
            Ok(Vec::new())
        };
        let mut closed = self.closed.subscribe();
        tokio::select! {
            found = in_line => found,
            _ = closed.wait_for(|closed| *closed) => Ok(Vec::new()),
        }
    }

    /// Somebody in this line got work without looking: it's no place where looks are in vain.
    pub(super) fn found(&self, place: &Place) {
        let line = locked(&self.lines).get(place).cloned();
        if let Some(Ok(mut line)) = line.as_ref().map(|line| line.try_lock()) {
            line.vain = 0;
        }
    }

    fn line(&self, store: &dyn Store, place: Place) -> Arc<tokio::sync::Mutex<Line>> {
        let mut lines = locked(&self.lines);
        if lines.len() >= LINES {
            lines.retain(|_, line| Arc::strong_count(line) > 1);
        }
        let new = || {
            let line =
                Line { changed: store.watch(), hopeful: true, last: Instant::now(), due: None, vain: 0 };
            Arc::new(tokio::sync::Mutex::new(line))
        };
        lines.entry(place).or_insert_with(new).clone()
    }
}

impl Line {
    /// Waits until it is time to look. False if the time is up.
    async fn hope(&mut self, deadline: Instant) -> bool {
        if !self.hopeful {
            let safety = self.last + SAFETY;
            let next = self.due.map_or(safety, |due| due.min(safety)).min(deadline);
            let heard = tokio::select! {
                changed = self.changed.changed() => changed.is_ok(),
                () = sleep_until(next) => false,
            };
            if !heard {
                // A store that is gone has no more to say: what is left is to look now and then.
                sleep_until(next).await;
                return next < deadline;
            }
            // Kept even if this caller leaves during the pause.
            self.hopeful = true;
        }
        let pause = self.last + self.pause();
        sleep_until(pause.min(deadline)).await;
        pause < deadline
    }

    fn pause(&self) -> Duration {
        match self.vain {
            0 => Duration::ZERO,
            vain => FIRST_PAUSE.saturating_mul(1 << (vain - 1).min(16)).min(PAUSE),
        }
    }

    fn in_vain(&mut self, due_in: Option<Duration>) {
        self.hopeful = false;
        self.vain += 1;
        self.due = due_in.map(|due| Instant::now() + due);
    }
}
