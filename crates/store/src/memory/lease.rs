//! Who works on what: claim, renew, sweep.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;

use flowline_core::Time;

use super::rows::{JobAt, LaneJobs, LaneKey, Memory};
use crate::job::{
    Claim, Claimed, DueTimer, ExpiredLease, Extend, Extended, JobKey, LeasedJob, Renewal, Swept, Token,
};
use crate::rotate::{self, FreeSlots};
use crate::rule::StoredLease;

impl Memory {
    /// Leases due jobs, one of each lane in turn.
    pub fn claim(&mut self, now: Time, claim: Claim) -> Claimed {
        let mut lanes = self.served(&claim);
        rotate::begin_after(&mut lanes, self.last_lane.as_ref(), |lane| lane);
        let (mut tokens, mut jobs) = (claim.tokens.iter(), Vec::new());
        let take = |lane: &mut &LaneKey| {
            let Some(at) = self.lanes.get(lane).and_then(|jobs| jobs.first_due(now)) else {
                return Ok::<_, Infallible>(false);
            };
            let Some(token) = tokens.next() else { return Ok(false) };
            self.last_lane = Some(lane.clone());
            jobs.extend(self.lease(now, at, *token, &claim));
            Ok(true)
        };
        let Ok(()) = FreeSlots::new(&claim).deal(&lanes, claim.tokens.len(), |lane| &lane.lane.queue, take);
        let next_due = lanes.iter().filter_map(|lane| self.lanes.get(lane)?.next_due(now)).min();
        Claimed { jobs, next_due, now }
    }

    pub fn renew(&mut self, now: Time, leases: Vec<Extend>, renewal: Renewal) -> Vec<Extended> {
        let renew = |held: Extend| match self.change_lease(&held, |lease| lease.renew(now, renewal)) {
            true => Extended::Held,
            false => Extended::gone(self.runs.get(&held.run).map(|run| run.row.status)),
        };
        leases.into_iter().map(renew).collect()
    }

    pub fn sweep(&self, now: Time, limit: usize) -> Swept {
        let due = (Bound::Unbounded, Bound::Included((now, u64::MAX)));
        let ahead = (Bound::Excluded((now, u64::MAX)), Bound::Unbounded);
        let next_of =
            |index: &BTreeMap<(Time, u64), JobAt>| index.range(ahead).next().map(|((at, _), _)| *at);
        Swept {
            expired: self
                .leases
                .range(due)
                .filter_map(|(_, at)| self.expired_lease(at))
                .take(limit)
                .collect(),
            timers: self.timers.range(due).filter_map(|(_, at)| self.due_timer(at)).take(limit).collect(),
            now,
            next_timer: next_of(&self.timers),
            next_lease: next_of(&self.leases),
        }
    }

    /// The lanes of a claim, in order.
    fn served(&self, claim: &Claim) -> Vec<LaneKey> {
        let serves = |lane: &LaneKey| {
            claim.needs.contains(&lane.lane.need)
                && claim.free_in(&lane.lane.queue) > 0
                && !self.paused.contains(&(lane.tenant.clone(), lane.lane.queue.clone()))
        };
        match &claim.tenant {
            Some(tenant) => {
                let nothing: Arc<str> = "".into();
                let lane = crate::Lane { queue: nothing.clone(), need: nothing };
                self.lanes
                    .range(LaneKey { tenant: tenant.clone(), lane }..)
                    .map(|(lane, _)| lane)
                    .take_while(|lane| lane.tenant == *tenant)
                    .filter(|lane| serves(lane))
                    .cloned()
                    .collect()
            }
            _ => self.lanes.keys().filter(|lane| serves(lane)).cloned().collect(),
        }
    }

    fn lease(&mut self, now: Time, at: JobAt, token: Token, claim: &Claim) -> Option<LeasedJob> {
        let (run, key) = at;
        let lease = StoredLease::new(token, &claim.worker, now, claim.ttl);
        let expires = lease.expires;
        self.change_job(&run, key, |job| job.lease = Some(lease));
        let job = self.job(&run, key)?;
        let (name, attempt, lane, due) = (job.name.clone(), job.attempt, job.lane.clone(), job.due);
        Some(LeasedJob { run, key, name, attempt, lane, due, token, expires })
    }

    /// Changes a lease that is still held. True where it is.
    fn change_lease(&mut self, held: &Extend, change: impl FnOnce(&mut StoredLease)) -> bool {
        let mut found = false;
        self.change_job(&held.run, held.key, |job| {
            if let Some(lease) = job.held_with(held.token) {
                change(lease);
                found = true;
            }
        });
        found
    }

    fn expired_lease(&self, (run, key): &JobAt) -> Option<ExpiredLease> {
        let job = self.job(run, *key)?;
        let lease = job.lease.as_ref()?;
        Some(ExpiredLease {
            run: run.clone(),
            key: *key,
            name: job.name.clone(),
            attempt: job.attempt,
            token: lease.token,
            worker: lease.worker.clone(),
            lines: lease.lines,
            released: lease.released,
        })
    }

    fn due_timer(&self, (run, key): &JobAt) -> Option<DueTimer> {
        debug_assert!(matches!(key, JobKey::Timer(_)));
        let job = self.job(run, *key)?;
        Some(DueTimer { run: run.clone(), key: *key, attempt: job.attempt, due: job.due })
    }
}

impl LaneJobs {
    /// The most urgent of the jobs that are due; among equals the one due first, then the one added first.
    fn first_due(&self, now: Time) -> Option<JobAt> {
        self.waiting.iter().rev().find_map(|jobs| {
            let ((due, _), at) = jobs.first_key_value()?;
            (*due <= now).then(|| at.clone())
        })
    }

    fn next_due(&self, now: Time) -> Option<Time> {
        let ahead = (Bound::Excluded((now, u64::MAX)), Bound::Unbounded);
        self.waiting.iter().filter_map(|jobs| jobs.range(ahead).next().map(|((due, _), _)| *due)).min()
    }
}
