//! Leases: which worker may claim which job, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use flowline_core::{RunKey, Time};
use flowline_store::{Claim, Claimed, Extend, Extended, JobKey, LeasedJob};

use super::{KnownLease, Watch};
use crate::Invariant::{I7, I10, I14, I15, I16, I17};
use crate::violation::{Findings, Violation};
use crate::walk::StepPhase;

impl Watch {
    /// Jobs were leased.
    pub fn claimed(&mut self, now: Time, claim: &Claim, claimed: &Claimed) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        for job in &claimed.jobs {
            let mut found = self.checker.findings();
            let count = taken.entry(&job.lane.queue).or_default();
            *count += 1;
            let free = claim.free_in(&job.lane.queue);
            if *count > free {
                let queue = &job.lane.queue;
                let message =
                    format!("a claim with {free} free slots in queue {queue:?} got more jobs than that");
                found.call(I17, message);
            }
            if claim.tenant.as_ref().is_some_and(|tenant| *tenant != job.run.tenant) {
                let worker = &claim.worker;
                found.call(I14, format!("{worker} serves another tenant, but got {:?}", job.name));
            }
            self.lease(now, claim, job, &mut found);
            violations.extend(found.of_run(&job.run));
        }
        violations
    }

    fn lease(&mut self, now: Time, claim: &Claim, job: &LeasedJob, found: &mut Findings) {
        let (name, attempt, worker) = (&job.name, job.attempt, &claim.worker);
        let paused = self.paused.contains(&(job.run.tenant.clone(), job.lane.queue.clone()));
        let Some(run) = self.runs.get_mut(&job.run) else { return };
        if let JobKey::Step(step) = job.key {
            let at = run.walk.steps.get(step as usize).copied().unwrap_or_default();
            if run.walk.ended.is_some() || !at.is_live() || at.attempt != attempt {
                let message =
                    format!("{worker} got attempt {attempt} of step {name:?}, which is over: {at:?}");
                found.call(I16, message);
            }
        }
        let Some(known) = run.jobs.get_mut(&job.key).filter(|known| known.attempt == attempt) else {
            return found.call(I15, format!("{worker} got attempt {attempt} of {name:?}, which has no job"));
        };
        if let Some(lease) = &known.lease {
            let message = format!("{worker} got attempt {attempt} of {name:?}, which {} holds", lease.worker);
            found.call(I7, message);
        }
        if known.held || paused {
            let queue = &known.queue;
            found.call(I17, format!("{worker} got {name:?}, while its run or queue {queue:?} is paused"));
        }
        if known.due > now {
            let due = known.due;
            found.call(I10, format!("{worker} got {name:?} at {now}, which is due at {due}"));
        }
        let (token, worker) = (job.token, claim.worker.clone());
        known.lease = Some(KnownLease { token, worker, expires: now + claim.ttl, released: false });
    }

    /// Leases were extended, or turned out to be gone.
    pub fn extended(
        &mut self,
        now: Time,
        leases: &[Extend],
        ttl: Duration,
        answers: &[Extended],
    ) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (held, answer) in leases.iter().zip(answers) {
            let mut found = self.checker.findings();
            let key = held.key;
            let lease = self.held(held);
            match (lease, answer) {
                (Some(lease), Extended::Held) => lease.expires = now + ttl,
                (None, Extended::Held) => {
                    found.call(I7, format!("a stale token extended the lease of {key:?}"));
                }
                (Some(lease), Extended::Gone(why)) => {
                    let message =
                        format!("the lease of {key:?} was reported as gone ({why:?}), but it's {lease:?}");
                    found.call(I7, message);
                }
                (None, Extended::Gone(_)) => {}
            }
            violations.extend(found.of_run(&held.run));
        }
        violations
    }

    /// Leases were released.
    pub fn released(&mut self, now: Time, leases: &[Extend]) {
        for held in leases {
            if let Some(lease) = self.held(held) {
                lease.released = true;
                lease.expires = lease.expires.min(now);
            }
        }
    }

    /// A worker starts an attempt. It may have lost its lease without knowing it, but its step can't be over yet, because it
    /// checks its deadline first.
    pub fn began(&self, worker: &str, run: &RunKey, step: u32, attempt: u32) -> Vec<Violation> {
        let mut found = self.checker.findings();
        let at = self.runs.get(run).and_then(|run| run.walk.steps.get(step as usize));
        if let Some(at) = at.filter(|at| matches!(at.phase, StepPhase::Completed | StepPhase::Failed)) {
            found.outside(I16, format!("{worker} starts attempt {attempt} of step {step}, which is {at:?}"));
        }
        found.of_run(run)
    }

    fn held(&mut self, held: &Extend) -> Option<&mut KnownLease> {
        let lease = self.runs.get_mut(&held.run)?.jobs.get_mut(&held.key)?.lease.as_mut()?;
        (lease.token == held.token && !lease.released).then_some(lease)
    }
}
