//! Commit and append: every guard is checked first, then everything is written.

use std::collections::BTreeSet;

use flowline_core::{NewEvent, RunKey, Time};

use super::rows::{Job, Lease, Memory, Run};
use crate::commit::{
    Append, AppendError, Base, Commit, CommitError, Committed, Index, LeaseUse, NewRun, Others, StateChange,
};
use crate::job::{JobKey, NewJob};
use crate::row::RunRow;
use crate::state::StateOwner;

impl Memory {
    /// Each commit that its guards allow lands, in order; the others leave nothing behind.
    pub fn commit(&mut self, now: Time, batch: Vec<Commit>) -> Vec<Result<Committed, CommitError>> {
        batch.into_iter().map(|commit| self.commit_one(now, commit)).collect()
    }

    /// Answers for each append how many lines of its attempt are in the log now.
    pub fn append(&mut self, now: Time, batch: Vec<Append>) -> Vec<Result<u32, AppendError>> {
        batch.into_iter().map(|append| self.append_one(now, append)).collect()
    }

    fn commit_one(&mut self, now: Time, commit: Commit) -> Result<Committed, CommitError> {
        self.check_base(&commit)?;
        commit.check_jobs(now, |key| self.job(&commit.run, key).map(Job::now))?;

        let Commit { run, base, leases, events, state, index, others, add, receipts, clear_state } = commit;
        let moves = self.moves(&run, &index, &events);
        match base {
            Base::New(new) => self.insert_run(now, &run, new, &index),
            Base::Version(_) if moves => self.unlist(&run),
            Base::Version(_) => {}
        }
        let named: BTreeSet<JobKey> = leases.iter().map(LeaseUse::key).collect();
        for lease in leases {
            self.use_lease(&run, lease);
        }
        self.apply_others(&run, others, &named);
        let granted = self.add_jobs(now, &run, add);
        if clear_state {
            self.states.remove(&(run.tenant.clone(), StateOwner::Run(run.run.clone())));
        }
        let ts = self.date(now, &run);
        self.change_receipts(&run, ts, receipts);
        let first_seq = self.runs.get(&run).map_or(0, |run| run.row.events) + 1;
        self.push_events(&run, ts, events);
        let version = self.advance(&run, state, index);
        if moves {
            self.list(&run);
        }
        Ok(Committed { version, first_seq, ts, granted })
    }

    /// Whether a commit moves its run from one list to another: most do not, and listing is what costs.
    fn moves(&self, run: &RunKey, index: &Index, events: &[NewEvent]) -> bool {
        let there = self.runs.get(run).map(|run| (run.row.status, &run.row.state));
        there != Some((index.status, &index.state)) || events.iter().any(|event| event.kind.is_terminal())
    }

    fn check_base(&self, commit: &Commit) -> Result<(), CommitError> {
        let found = self.runs.get(&commit.run).map(|run| run.row.version);
        match &commit.base {
            Base::New(_) if found.is_some() => Err(CommitError::Exists),
            Base::New(new) => {
                let key = (commit.run.tenant.clone(), new.definition.clone());
                match self.definitions.contains_key(&key) {
                    true => Ok(()),
                    false => Err(CommitError::UnknownDefinition(new.definition.clone())),
                }
            }
            Base::Version(expected) if found == Some(*expected) => Ok(()),
            Base::Version(expected) => Err(CommitError::Conflict { expected: *expected, found }),
        }
    }

    fn insert_run(&mut self, now: Time, key: &RunKey, new: NewRun, index: &Index) {
        let NewRun { flow, definition, step_count, labels, input_digest, idempotency_key, retry_of, retain } =
            new;
        let row = RunRow {
            run_id: key.run.clone(),
            flow_name: flow,
            tenant: key.tenant.clone(),
            definition,
            status: index.status,
            state: index.state.clone(),
            created_at: now,
            started_at: None,
            completed_at: None,
            duration: None,
            step_count,
            completed_steps: 0,
            failed_steps: 0,
            retries: 0,
            failure: None,
            labels,
            idempotency_key,
            retry_of,
            retain,
            version: 0,
            events: 0,
            events_trimmed: false,
            input_digest,
        };
        self.last_run += 1;
        let run = Run {
            number: self.last_run,
            row,
            state: Vec::new(),
            last: now,
            log: Default::default(),
            slots: Default::default(),
            jobs: Default::default(),
            receipts: Default::default(),
            received: Default::default(),
        };
        self.runs.insert(key.clone(), run);
    }

    fn use_lease(&mut self, run: &RunKey, lease: LeaseUse) {
        match lease {
            LeaseUse::Keep { key, lines, .. } => self.add_lines(run, key, lines),
            other => {
                self.take_job(run, other.key());
            }
        }
    }

    fn add_lines(&mut self, run: &RunKey, key: JobKey, lines: u32) {
        let job = self.runs.get_mut(run).and_then(|run| run.jobs.get_mut(&key));
        if let Some(lease) = job.and_then(|job| job.lease.as_mut()) {
            lease.lines += lines;
        }
    }

    fn apply_others(&mut self, run: &RunKey, others: Others, named: &BTreeSet<JobKey>) {
        if others == Others::Leave {
            return;
        }
        let Some(found) = self.runs.get(run) else { return };
        let keys: Vec<JobKey> = found.jobs.keys().filter(|key| !named.contains(key)).copied().collect();
        for key in keys {
            match others {
                Others::Leave => {}
                Others::Drop => {
                    self.take_job(run, key);
                }
                Others::Hold => {
                    self.change_job(run, key, |job| job.held = job.lease.is_none());
                }
                Others::Release => {
                    self.change_job(run, key, |job| job.held = false);
                }
            }
        }
    }

    /// Adds jobs, and leases those whose hand-off can be granted. Gives the keys of those.
    pub(super) fn add_jobs(&mut self, now: Time, run: &RunKey, add: Vec<NewJob>) -> Vec<JobKey> {
        let mut granted = Vec::new();
        for mut job in add {
            let key = job.key;
            let lease = job.handoff.take().filter(|_| {
                matches!(key, JobKey::Step(_))
                    && !job.held
                    && job.due <= now
                    && !self.paused.contains(&(run.tenant.clone(), job.lane.queue.clone()))
            });
            let lease = lease.map(|asked| Lease::new(asked.token, asked.worker, now, asked.ttl));
            if lease.is_some() {
                granted.push(key);
            }
            self.last_job += 1;
            self.put_job(run, key, Job::new(self.last_job, job, lease));
        }
        granted
    }

    /// The date of what is written to a run's log now.
    pub(super) fn date(&self, now: Time, run: &RunKey) -> Time {
        self.runs.get(run).map_or(now, |run| now.max(run.last))
    }

    /// Replaces a run's state and index, and counts its version up.
    pub(super) fn advance(&mut self, run: &RunKey, state: Vec<u8>, index: Index) -> u64 {
        let Some(run) = self.runs.get_mut(run) else { return 0 };
        let Index { status, state: position, completed_steps, failed_steps, retries, failure } = index;
        run.state = state;
        run.row.version += 1;
        run.row.status = status;
        run.row.state = position;
        run.row.completed_steps = completed_steps;
        run.row.failed_steps = failed_steps;
        run.row.retries = retries;
        if failure.is_some() {
            run.row.failure = failure;
        }
        run.row.version
    }

    fn append_one(&mut self, now: Time, append: Append) -> Result<u32, AppendError> {
        let Append { run, key, attempt, token, from_line, lines } = append;
        let lease = self.job(&run, key).and_then(|job| job.leased_with(attempt, token));
        // Lines that the caller believes to be there and that are not: its lease is of another history.
        let Some(there) = lease.map(|lease| lease.lines).filter(|there| from_line <= *there) else {
            return Err(AppendError::StaleLease(key));
        };
        let known = (there - from_line) as usize;
        let ts = self.date(now, &run);
        let mut written = 0;
        for line in lines.into_iter().skip(known) {
            if let Some(change) = line.state {
                self.change_state_of_run(now, &run, change);
            }
            self.push_events(&run, ts, [line.event]);
            written += 1;
        }
        self.add_lines(&run, key, written);
        Ok(there + written)
    }

    fn change_state_of_run(&mut self, now: Time, run: &RunKey, change: StateChange) {
        let StateChange { scope, key, value, ttl } = change;
        if let Some(found) = self.runs.get(run) {
            let owner = scope.of(&run.run, &found.row.flow_name);
            self.change_state(now, &run.tenant, &owner, &key, value, ttl);
        }
    }
}
