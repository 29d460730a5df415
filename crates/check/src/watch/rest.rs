//! Checks between calls: retention, a complete pass at the end, progress.

use std::time::Duration;

use flowline_core::{RunKey, Time};
use flowline_store::row::Retention;

use super::Watch;
use crate::Invariant::{I3, I4, I11};
use crate::counters::miscounted;
use crate::look::{check_jobs, check_pinned, check_receipts, check_row, check_state};
use crate::source::{StoreSnapshot, recount};
use crate::violation::{Subject, Violation};
use crate::walk::Walk;

impl Watch {
    /// Retention trimmed or removed runs. Runs that haven't ended, or not long enough ago, must be unchanged.
    pub fn retained(&mut self, source: &dyn StoreSnapshot, now: Time, policy: Retention) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut gone = Vec::new();
        for (key, run) in &mut self.runs {
            let mut found = self.checker.findings();
            let own = run.flow.definition.retain.unwrap_or_default();
            let runs = own.runs.unwrap_or(policy.runs);
            let events = own.events.unwrap_or(policy.events).min(runs);
            let old = |keep: Duration| run.walk.completed_at.is_some_and(|end| end + keep <= now);
            match source.row(key) {
                None => {
                    gone.push(key.clone());
                    if !old(runs) {
                        found.say(I3, Subject::Row, "the run was removed too early");
                    }
                }
                Some(row) if row.events_trimmed => {
                    // The clock may have been set back since an earlier round.
                    if !run.trimmed && !old(events) {
                        found.log(I4, "the events were removed too early");
                    }
                    run.trimmed = true;
                }
                Some(_) => run.reread(source, key, &mut found),
            }
            violations.extend(found.of_run(key));
        }
        gone.iter().for_each(|key| drop(self.runs.remove(key)));
        violations
    }

    /// Checks everything again, from the first event of every log, and the counters.
    pub fn end(&mut self, source: &dyn StoreSnapshot) -> Vec<Violation> {
        let mut violations = Vec::new();
        for key in self.runs.keys() {
            violations.extend(self.look(source, key));
        }
        for tenant in &self.tenants {
            let counters = source.counters();
            violations.extend(miscounted(self.checker, tenant, &counters, recount(source, tenant)));
            for key in source.runs(tenant).iter().filter(|key| !self.runs.contains_key(key)) {
                let mut found = self.checker.findings();
                found.say(I3, Subject::Row, "the run exists, but no commit created it");
                violations.extend(found.of_run(key));
            }
        }
        violations
    }

    /// Checks one run from scratch.
    fn look(&self, source: &dyn StoreSnapshot, key: &RunKey) -> Vec<Violation> {
        let mut found = self.checker.findings();
        let (Some(run), Some(row)) = (self.runs.get(key), source.row(key)) else {
            found.say(I3, Subject::Row, "the run is gone");
            return found.of_run(key);
        };
        if !run.trimmed {
            run.reread(source, key, &mut found);
            let mut walk = Walk::new(key.clone(), row.flow_name.clone(), &run.flow);
            for event in &source.events(key, 0) {
                walk.event(&run.flow, event, &mut found);
            }
            check_pinned(&row, &run.flow, &mut found);
            check_row(&row, &walk, &run.flow, &mut found);
            check_jobs(&source.jobs(key), &walk, &run.flow, &mut found);
            check_receipts(&source.receipts(key), &walk, &mut found);
            check_state(&source.state(key), &walk, &run.flow, &mut found);
        }
        found.of_run(key)
    }

    /// Since `calm`, there were no faults and there are enough workers, so whatever was due or lost for longer than `bound`
    /// must have moved. Paused runs and queues are exempt.
    pub fn progress(&self, now: Time, calm: Time, bound: Duration) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (key, run) in &self.runs {
            let mut found = self.checker.findings();
            for (job_key, job) in &run.jobs {
                let stopped = job.held || self.paused.contains(&(key.tenant.clone(), job.queue.clone()));
                let since = match &job.lease {
                    Some(lease) => lease.expires,
                    None if stopped => continue,
                    // It may be waiting for a slot while other steps of its run use them.
                    None => job.due.max(Time::from_millis(run.walk.last_ms)),
                };
                if since.max(calm) + bound < now {
                    found.jobs(I11, format!("nothing has happened to {job_key:?} since {since}: {job:?}"));
                }
            }
            violations.extend(found.of_run(key));
        }
        violations
    }
}
