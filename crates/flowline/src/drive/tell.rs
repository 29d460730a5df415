//! What a driver logs: each line has the run, flow and instance, and no payload.
//!
//! Logging has no effect on the driver, and the simulator has no subscriber. Lines about every step are at `debug` level
//! and cost one comparison if that's off.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flowline_core::{RunKey, Status};
use flowline_store::{CommitError, Committed, ExpiredLease, Token};
use tracing::{Level, debug, enabled, warn};

use super::Driver;
use crate::attempt::Attempt;
use crate::ledger::{Heard, RunEnd};
use crate::meters::count;
use crate::trace::Span;

impl<R> Driver<R> {
    /// Counts and logs the outcome of a commit, before the ledger gets it.
    pub(super) fn tell_commit(&self, run: &RunKey, result: &Result<Committed, CommitError>) {
        match result {
            Ok(_) => count(&self.meters.commits),
            Err(CommitError::Conflict { .. }) => count(&self.meters.conflicts),
            Err(_) => {}
        }
        if !enabled!(Level::DEBUG) {
            return;
        }
        let (flow, instance) = (self.flow_of(run), &*self.config.instance);
        match result {
            Ok(committed) => {
                debug!(runId = %run.run, flowName = %flow, instanceId = instance, version = committed.version, "committed");
                for step in self.ledger.triggered(run) {
                    debug!(runId = %run.run, flowName = %flow, instanceId = instance, stepName = %step, "triggered");
                }
            }
            Err(error) => {
                let what = match error {
                    CommitError::Conflict { .. } => "conflict",
                    _ => "commit refused",
                };
                debug!(runId = %run.run, flowName = %flow, instanceId = instance, why = %error, "{what}");
            }
        }
    }

    pub(super) fn count_heard(&self, heard: Heard) {
        let Heard { received, applied, rejected } = heard;
        let meters = &self.meters;
        for (meter, count) in
            [(&meters.received, received), (&meters.applied, applied), (&meters.rejected, rejected)]
        {
            meter.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(super) fn tell_ended(&self, run: &RunKey, ended: &RunEnd) {
        let meter = match ended.status {
            Status::Failed => &self.meters.ended.failed,
            Status::Cancelled => &self.meters.ended.cancelled,
            _ => &self.meters.ended.completed,
        };
        count(meter);
        if let Some(spans) = &self.meters.spans {
            let times = (ended.created_at, ended.ended_at);
            spans.put(Span::run(run, ended.trace.as_deref(), &ended.flow, times, ended.status));
        }
        let (run, flow, instance, status) =
            (&run.run, &*ended.flow, &*self.config.instance, ended.status.as_str());
        debug!(runId = %run, flowName = flow, instanceId = instance, status, "run ended");
    }

    /// An attempt that runs here has lost its lease.
    pub(super) fn tell_lost(&self, attempt: &Attempt) {
        self.meters.lost.fetch_add(1, Ordering::Relaxed);
        let Attempt { run, plan, .. } = attempt;
        warn!(runId = %run.run, flowName = %plan.flow, instanceId = &*self.config.instance, queue = &**attempt.queue(), "lease lost; stopping the attempt");
    }

    /// The lease of some worker has run out. Told once the flow of its run is known, which the input that follows from it
    /// asks for anyway.
    pub(super) fn note_expired(&mut self, lease: &ExpiredLease) {
        if lease.released {
            return;
        }
        self.meters.expired.fetch_add(1, Ordering::Relaxed);
        match self.ledger.flow(&lease.run) {
            Some(flow) => self.tell_expired(lease, &flow),
            None => drop(self.untold.insert(lease.token, lease.clone())),
        }
    }

    /// A run was read, or could not be: leases of it that ran out are told of, or found again by the next sweep.
    pub(super) fn tell_untold(&mut self, run: &RunKey, flow: Option<&str>) {
        if self.untold.is_empty() {
            return;
        }
        let (told, untold) =
            std::mem::take(&mut self.untold).into_iter().partition(|(_, lease)| lease.run == *run);
        self.untold = untold;
        let told: std::collections::BTreeMap<Token, ExpiredLease> = told;
        if let Some(flow) = flow {
            told.values().for_each(|lease| self.tell_expired(lease, flow));
        }
    }

    fn tell_expired(&self, lease: &ExpiredLease, flow: &str) {
        warn!(runId = %lease.run.run, flowName = %flow, instanceId = &*self.config.instance, stepName = &*lease.name, attempt = lease.attempt, worker = &*lease.worker, "lease expired");
    }

    /// Empty if the run isn't cached.
    fn flow_of(&self, run: &RunKey) -> Arc<str> {
        self.ledger.flow(run).unwrap_or_else(|| "".into())
    }
}
