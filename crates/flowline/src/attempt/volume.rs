//! How much attempts may log: so much each (`max-log`), and so much all those of a run together (`max-run-log`).
//!
//! A program that prints without end would otherwise fill the store for everyone. What's logged is counted in memory, by
//! each instance for itself and from its start; the limits protect the disk, so being generous by a restart is fine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flowline_core::limits::{Limit, Limits, format_bytes};
use flowline_core::{RunKey, Tenant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Runs whose volume is remembered at least: a run is forgotten only after so many others have logged since.
const REMEMBERED: usize = 4_096;

/// Large writes of a tenant's log lines at the same time. More would keep the store from writing for others.
const WRITERS: usize = 1;

/// What the runs of an instance have logged, and who is writing.
#[derive(Debug, Default)]
pub struct LogTally {
    runs: Mutex<Generations>,
    writers: Mutex<HashMap<Tenant, Arc<Semaphore>>>,
}

/// Two maps, so that forgetting costs nothing: the older one goes when the younger one is full.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<RunKey, usize>,
    old: HashMap<RunKey, usize>,
}

impl LogTally {
    /// Waits until it's the turn of a tenant's attempt to write many lines, and keeps it until the turn is dropped.
    pub async fn turn(&self, tenant: &Tenant) -> Option<OwnedSemaphorePermit> {
        let writers = {
            let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
            let of_tenant = writers.entry(tenant.clone());
            of_tenant.or_insert_with(|| Arc::new(Semaphore::new(WRITERS))).clone()
        };
        writers.acquire_owned().await.ok()
    }

    /// Counts bytes of a run, unless that would be more than `most`.
    fn count(&self, run: &RunKey, bytes: usize, most: usize) -> bool {
        let mut guard = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old } = &mut *guard;
        if young.len() >= REMEMBERED && !young.contains_key(run) {
            *old = std::mem::take(young);
        }
        let before = old.remove(run).unwrap_or(0);
        let logged = young.entry(run.clone()).or_insert(before);
        let fits = logged.saturating_add(bytes) <= most;
        if fits {
            *logged += bytes;
        }
        fits
    }
}

/// What one attempt has logged.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogVolume {
    bytes: usize,
    cut: bool,
}

/// Whether a line goes into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRoom {
    Fits,
    /// The first that doesn't: the log is cut here, because of this limit.
    Cut(Limit),
    /// The log was cut before.
    Over,
}

impl LogVolume {
    /// Whether no more lines fit.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Counts bytes that the attempt wants to log. After the first that don't fit, no more do.
    pub fn ask(&mut self, tally: &LogTally, run: &RunKey, bytes: usize, limits: &Limits) -> LogRoom {
        if self.cut {
            return LogRoom::Over;
        }
        match self.try_add(tally, run, bytes, limits) {
            Ok(()) => LogRoom::Fits,
            Err(limit) => {
                self.cut = true;
                LogRoom::Cut(limit)
            }
        }
    }

    /// Counts bytes, or names the limit that they would exceed.
    pub fn try_add(
        &mut self,
        tally: &LogTally,
        run: &RunKey,
        bytes: usize,
        limits: &Limits,
    ) -> Result<(), Limit> {
        if self.bytes.saturating_add(bytes) > limits.log {
            return Err(limits.log());
        }
        if !tally.count(run, bytes, limits.run_log) {
            return Err(limits.run_log());
        }
        self.bytes += bytes;
        Ok(())
    }
}

/// The line that stands where a log was cut.
pub fn cut_here(limit: Limit) -> String {
    let whose = if limit.setting == "max-log" { "this attempt" } else { "this run" };
    let bytes = format_bytes(limit.bytes);
    format!(
        "the log is truncated here: {whose} has logged {bytes}, the limit (setting {}); later lines are discarded",
        limit.setting
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: usize) -> RunKey {
        RunKey::new(Tenant::default(), flowline_core::RunId::new(&format!("r{id}")).expect("an id"))
    }

    #[test]
    fn an_attempt_and_a_run_have_a_limit_each_and_are_cut_once() {
        let limits = Limits { log: 100, run_log: 150, ..Limits::default() };
        let (tally, one) = (LogTally::default(), run(1));
        let mut first = LogVolume::default();
        assert_eq!(first.ask(&tally, &one, 100, &limits), LogRoom::Fits);
        assert_eq!(first.ask(&tally, &one, 1, &limits), LogRoom::Cut(limits.log()));
        assert_eq!(first.ask(&tally, &one, 1, &limits), LogRoom::Over);
        let mut second = LogVolume::default();
        assert_eq!(second.ask(&tally, &one, 50, &limits), LogRoom::Fits);
        assert_eq!(second.ask(&tally, &one, 1, &limits), LogRoom::Cut(limits.run_log()));
        assert_eq!(LogVolume::default().ask(&tally, &run(2), 100, &limits), LogRoom::Fits);
    }

    #[test]
    fn a_run_is_not_forgotten_among_a_few_others() {
        let limits = Limits { log: 100, run_log: 100, ..Limits::default() };
        let tally = LogTally::default();
        assert_eq!(LogVolume::default().ask(&tally, &run(0), 100, &limits), LogRoom::Fits);
        for other in 1..REMEMBERED {
            assert_eq!(LogVolume::default().ask(&tally, &run(other), 1, &limits), LogRoom::Fits);
        }
        assert!(matches!(LogVolume::default().ask(&tally, &run(0), 1, &limits), LogRoom::Cut(_)));
        let known = || {
            let runs = tally.runs.lock().expect("no panic");
            runs.young.len() + runs.old.len()
        };
        for other in 0..10 * REMEMBERED {
            LogVolume::default().ask(&tally, &run(other), 1, &limits);
        }
        assert!(known() <= 2 * REMEMBERED, "{}", known());
    }
}
