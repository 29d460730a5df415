//! Counters and durations of an instance: atomics that can be read at any time.
//!
//! The driver has no clock, so it only observes durations it's given; its host measures the rest. Values of different
//! meters can be from slightly different moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::trace::Spans;

/// Upper bounds of the buckets of a [`Histogram`] in microseconds: 100 µs to 5 min, about 2.5 times apart.
pub const BOUNDS: [u64; 20] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
];

/// What an instance has done since it started.
#[derive(Debug, Default)]
pub struct Meters {
    pub commits: AtomicU64,
    /// Commits that lost a race and were retried.
    pub conflicts: AtomicU64,
    /// Batches that the commits went in.
    pub batches: AtomicU64,
    pub claims: AtomicU64,
    /// Inputs that changed nothing, because they had been applied before.
    pub repeated: AtomicU64,
    /// Starts whose run existed already.
    pub existed: AtomicU64,
    /// Inputs that relied on a lease that was gone.
    pub stale: AtomicU64,
    /// Starts refused because their tenant was over a quota.
    pub over_quota: AtomicU64,
    /// Expired leases of any instance that this one found, without those that were given back.
    pub expired: AtomicU64,
    /// Attempts that ran here and lost their lease.
    pub lost: AtomicU64,
    /// Events that machines received, applied and rejected, as written by this instance.
    pub received: AtomicU64,
    pub applied: AtomicU64,
    pub rejected: AtomicU64,
    /// Runs that this instance wrote the end of.
    pub ended: EndedMeters,
    /// From a batch of commits sent to the store until its answer.
    pub commit: Histogram,
    /// Deciding what a batch of commits says.
    pub decide: Histogram,
    /// From the moment that a job was due until it was leased.
    pub queue_wait: Histogram,
    /// Attempts that ran here and completed.
    pub completed: Histogram,
    /// Attempts that ran here and failed, retried or not.
    pub failed: Histogram,
    /// What this instance found when it was its turn to reconcile.
    pub reconciled: ReconcileMeters,
    /// Where the spans of what ends here go, if anywhere.
    pub spans: Option<Arc<Spans>>,
}

/// Passes of reconciliation over the store.
#[derive(Debug, Default)]
pub struct ReconcileMeters {
    pub passes: AtomicU64,
    /// Runs that were looked at.
    pub runs: AtomicU64,
    pub found: AtomicU64,
    pub repaired: AtomicU64,
}

/// Ends of runs, by status.
#[derive(Debug, Default)]
pub struct EndedMeters {
    pub completed: AtomicU64,
    pub failed: AtomicU64,
    pub cancelled: AtomicU64,
}

/// Adds one.
pub fn count(meter: &AtomicU64) {
    meter.fetch_add(1, Ordering::Relaxed);
}

/// How often something took how long. An observation is two additions.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One per bound and one for what is beyond; not cumulative.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    /// In microseconds.
    sum: AtomicU64,
}

impl Histogram {
    pub fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        count(&self.buckets[BOUNDS.partition_point(|bound| *bound < micros)]);
        self.sum.fetch_add(micros, Ordering::Relaxed);
    }

    /// Observations up to each bound, and last of all: never less than the one before.
    pub fn cumulative(&self) -> [u64; BOUNDS.len() + 1] {
        let mut total = 0;
        std::array::from_fn(|at| {
            total += self.buckets[at].load(Ordering::Relaxed);
            total
        })
    }

    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_counts_in_its_bucket_and_all_above() {
        let histogram = Histogram::default();
        for micros in [0, 100, 101, 1_000, 400_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts = histogram.cumulative();
        assert_eq!(counts[..4], [2, 3, 3, 4]);
        assert_eq!(counts[BOUNDS.len() - 1..], [4, 5]);
        assert_eq!(histogram.sum(), Duration::from_micros(400_001_201));
    }

    #[test]
    fn bounds_rise() {
        assert!(BOUNDS.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
