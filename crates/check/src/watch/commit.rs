//! Commits: what they require, what they say, and what they leave behind.

use std::collections::BTreeSet;

use flowline_core::Time;
use flowline_store::{Base, Commit, CommitError, Committed, JobKey, LeaseUse, Others};

use super::{Followed, KnownJob, KnownLease, Watch};
use crate::Invariant::{I2, I4, I5, I7, I8, I9, I10, I12, I17};
use crate::source::StoreSnapshot;
use crate::violation::{Findings, Violation};

impl Watch {
    /// A commit was written or refused, at `now` by the store's clock.
    pub fn committed(
        &mut self,
        source: &dyn StoreSnapshot,
        now: Time,
        commit: &Commit,
        answer: &Result<Committed, CommitError>,
    ) -> Vec<Violation> {
        let mut found = self.checker.findings();
        match answer {
            Ok(landed) => self.landed(source, now, commit, landed, &mut found),
            Err(_) => {
                if let Some(run) = self.runs.get_mut(&commit.run) {
                    let new = run.read_on(source, &commit.run, &mut found);
                    if new > 0 {
                        found.call(I8, format!("a refused commit wrote {new} events"));
                    }
                } else if source.row(&commit.run).is_some() {
                    found.call(I8, "a refused commit created a run");
                }
            }
        }
        if self.runs.contains_key(&commit.run) {
            self.compare(source, &commit.run, &mut found);
        }
        found.of_run(&commit.run)
    }

    fn landed(
        &mut self,
        source: &dyn StoreSnapshot,
        now: Time,
        commit: &Commit,
        landed: &Committed,
        found: &mut Findings,
    ) {
        self.base(source, commit, found);
        let Some(run) = self.runs.get_mut(&commit.run) else { return };
        run.version += 1;
        if landed.version != run.version {
            let (is, was) = (landed.version, run.version - 1);
            found.call(I8, format!("a commit on version {was} led to version {is}"));
            run.version = landed.version;
        }
        for lease in &commit.leases {
            run.guard(now, lease, found);
        }
        run.take_jobs(commit);
        for job in &commit.add {
            run.add_job(job, found);
            if landed.granted.contains(&job.key)
                && let Some(asked) = &job.handoff
            {
                let queue = (commit.run.tenant.clone(), job.lane.queue.clone());
                if job.held || self.paused.contains(&queue) {
                    let (name, queue) = (&job.name, &job.lane.queue);
                    let message =
                        format!("{name:?} was handed out while its run or queue {queue:?} is paused");
                    found.call(I17, message);
                }
                if job.due > now {
                    let message =
                        format!("{:?} was handed out at {now}, before it's due ({})", job.name, job.due);
                    found.call(I10, message);
                }
                let lease = KnownLease {
                    token: asked.token,
                    worker: asked.worker.clone(),
                    expires: now + asked.ttl,
                    released: false,
                };
                run.jobs.entry(job.key).and_modify(|known| known.lease = Some(lease));
            }
        }
        run.events(source, commit, landed, found);
    }

    /// Checks that the commit was written on the version it was decided on.
    fn base(&mut self, source: &dyn StoreSnapshot, commit: &Commit, found: &mut Findings) {
        let known = self.runs.get(&commit.run).map(|run| run.version);
        match (&commit.base, known) {
            (Base::Version(decided), Some(known)) if *decided != known => {
                found.call(I8, format!("decided on version {decided}, but written on version {known}"));
            }
            (Base::New(_), Some(_)) => {
                found.call(I9, "an existing run was started again");
            }
            (_, Some(_)) => return,
            (_, None) => {}
        }
        if known.is_some() {
            return;
        }
        let Some(row) = source.row(&commit.run) else {
            return found.call(I8, "a commit was written, but there's no run");
        };
        self.tenants.insert(commit.run.tenant.clone());
        match self.flow(source, &commit.run.tenant, &row.definition) {
            Some(flow) => {
                let followed = Followed::new(&commit.run, &row, flow);
                self.runs.insert(commit.run.clone(), followed);
            }
            None => {
                found.call(I12, format!("definition {} can't be read under this tenant", row.definition));
            }
        }
    }
}

impl Followed {
    /// Checks that each job a commit relies on is as the commit says.
    fn guard(&self, now: Time, lease: &LeaseUse, found: &mut Findings) {
        let key = lease.key();
        let job = self.jobs.get(&key);
        let problem = match *lease {
            // That nothing of a whole attempt was in the log is for the log to show.
            LeaseUse::Finish { attempt, token, .. }
            | LeaseUse::Whole { attempt, token, .. }
            | LeaseUse::Keep { attempt, token, .. } => {
                let held = job.is_some_and(|job| job.leased_with(attempt, token).is_some());
                (!held).then_some((I7, "a stale token"))
            }
            LeaseUse::Expired { attempt, token, .. } => {
                match job.and_then(|job| job.leased_with(attempt, token)) {
                    None => Some((I7, "a missing lease, reported as expired")),
                    Some(lease) if lease.expires > now => {
                        Some((I7, "a lease that's still held, reported as expired"))
                    }
                    Some(_) => None,
                }
            }
            LeaseUse::Due { attempt, .. } => match job {
                Some(job) if job.attempt == attempt && job.due <= now && !job.held => None,
                _ => Some((I10, "a timer that isn't due")),
            },
            LeaseUse::Unleased { attempt, .. } => match job {
                Some(job) if job.attempt == attempt && job.lease.is_none() => None,
                _ => Some((I7, "a dropped job that is leased or missing")),
            },
        };
        if let Some((invariant, what)) = problem {
            let message = format!("written with {what} at {now}: {lease:?}, while the job is {job:?}");
            found.call(invariant, message);
        }
    }

    /// Removes, holds and releases jobs as the commit says.
    fn take_jobs(&mut self, commit: &Commit) {
        for lease in &commit.leases {
            if !matches!(lease, LeaseUse::Keep { .. }) {
                self.jobs.remove(&lease.key());
            }
        }
        let named: BTreeSet<JobKey> = commit.leases.iter().map(LeaseUse::key).collect();
        let others = self.jobs.iter_mut().filter(|(key, _)| !named.contains(key)).map(|(_, job)| job);
        match commit.others {
            Others::Leave => {}
            Others::Hold => others.for_each(|job| job.held = job.lease.is_none()),
            Others::Release => others.for_each(|job| job.held = false),
            Others::Drop => self.jobs.retain(|key, _| named.contains(key)),
        }
    }

    fn add_job(&mut self, job: &flowline_store::NewJob, found: &mut Findings) {
        let (name, attempt) = (&job.name, job.attempt);
        if let JobKey::Step(_) = job.key {
            // If the condition of an action was false, its attempt has a number but no job.
            let follows = attempt == 1
                || self.walk.machine.is_some()
                || self.attempts.contains(&(job.key, attempt - 1));
            if !self.attempts.insert((job.key, attempt)) || !follows {
                found.call(I2, format!("attempt {attempt} of {name:?} got a job out of order"));
            }
        }
        if self.jobs.insert(job.key, KnownJob::new(job)).is_some() {
            found.call(I2, format!("{name:?} got a second job"));
        }
    }

    /// Checks that all events of the commit are in the log, and that what they trigger has a job.
    fn events(
        &mut self,
        source: &dyn StoreSnapshot,
        commit: &Commit,
        landed: &Committed,
        found: &mut Findings,
    ) {
        if landed.first_seq != self.walk.seq + 1 {
            let (first, after) = (landed.first_seq, self.walk.seq);
            found.call(I4, format!("a commit started at event {first}, after event {after}"));
        }
        self.walk.triggered.clear();
        self.walk.retried.clear();
        let new = self.read_on(source, &commit.run, found);
        if new != commit.events.len() {
            let said = commit.events.len();
            found.call(I8, format!("a commit of {said} events wrote {new}"));
        }
        let triggered = std::mem::take(&mut self.walk.triggered);
        let of_machine = self.walk.machine.is_some();
        let added: BTreeSet<usize> = commit
            .add
            .iter()
            .filter_map(|job| match job.key {
                JobKey::Step(step) if job.attempt == 1 => Some(step as usize),
                // Attempts of an action keep counting from one transition to the next.
                JobKey::Step(step) if of_machine && !self.walk.retried.contains(&(step as usize)) => {
                    Some(step as usize)
                }
                _ => None,
            })
            .collect();
        let name = |step: usize| self.flow.name(step).to_owned();
        for &step in added.difference(&triggered) {
            found.call(I5, format!("step {:?} got a job, but nothing in the commit triggers it", name(step)));
        }
        for &step in triggered.difference(&added) {
            let live = self.walk.ended.is_none() && self.walk.steps[step].is_live();
            if live {
                found.call(I5, format!("step {:?} was triggered, but the commit adds no job", name(step)));
            }
        }
    }
}
