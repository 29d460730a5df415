//! One run's next version.

use std::collections::BTreeSet;

use flowline_core::Time;
use flowline_core::event::Slot;
use flowline_store::{
    Base, Commit, CommitError, Committed, Handoff, Index, JobKey, LeaseUse, NewJob, NewRun, Others,
    StoreError,
};
use rusqlite::params;

use super::Writer;
use super::live::{LiveJob, LiveLease, LiveRun};
use super::log::End;
use crate::code;
use crate::fault::Fault;

impl Writer<'_> {
    pub(crate) fn commit(&mut self, batch: &[Commit]) -> Result<Vec<Result<Committed, CommitError>>, Fault> {
        let now = self.clock.now();
        batch.iter().map(|commit| self.commit_one(commit, now)).collect()
    }

    fn commit_one(&mut self, commit: &Commit, now: Time) -> Result<Result<Committed, CommitError>, Fault> {
        let found = self.find(&commit.run)?;
        if let Err(refused) = self.check(commit, found, now) {
            return Ok(Err(refused));
        }
        let id = match (&commit.base, found) {
            (Base::New(new), _) => self.insert_run(commit, new, now)?,
            (Base::Version(_), Some(id)) => id,
            (Base::Version(_), None) => return Err(Fault::damaged("a run vanished within a commit")),
        };
        self.use_leases(id, &commit.leases)?;
        self.settle_others(id, commit)?;
        let granted = self.add_jobs(id, &commit.add, now)?;
        if commit.clear_state {
            self.sql.clear_kv.execute((0, id))?;
        }
        let ts = self.date(id, now)?;
        let (first_seq, end) = self.log(id, ts, &commit.events)?;
        self.change_receipts(id, ts, &commit.receipts)?;
        let version = self.advance(id, &commit.state, &commit.index, end)?;
        if let Base::New(NewRun { retain: Some(retain), .. }) = &commit.base {
            self.sql.set_retain.execute((id, retain.code()))?;
        }
        if commit.index.status.is_terminal() {
            self.live.forget(id);
        }
        Ok(Ok(Committed { version, first_seq, ts, granted }))
    }

    /// Every guard of a commit, before anything is written.
    fn check(&self, commit: &Commit, found: Option<i64>, now: Time) -> Result<(), CommitError> {
        let run = found.and_then(|id| self.live.get(id));
        match &commit.base {
            Base::New(_) if run.is_some() => return Err(CommitError::Exists),
            Base::New(new) => {
                let tenant = self.names.known_tenant(&commit.run.tenant);
                if tenant.and_then(|tenant| self.names.definition(tenant, &new.definition)).is_none() {
                    return Err(CommitError::UnknownDefinition(new.definition.clone()));
                }
            }
            Base::Version(expected) => {
                let found = run.map(|run| run.version);
                if found != Some(*expected) {
                    return Err(CommitError::Conflict { expected: *expected, found });
                }
            }
        }
        commit.check_jobs(now, |key| run.and_then(|run| run.jobs.get(&key)).map(LiveJob::now))
    }

    fn insert_run(&mut self, commit: &Commit, new: &NewRun, now: Time) -> Result<i64, Fault> {
        let tenant = self.names.tenant(self.conn, &commit.run.tenant)?;
        let definition = self
            .names
            .definition(tenant, &new.definition)
            .ok_or_else(|| Fault::damaged("a definition vanished within a commit"))?;
        let flow = self.names.flow(self.conn, tenant, &new.flow)?;
        let labels = match new.labels.is_empty() {
            true => None,
            false => {
                Some(serde_json::to_string(&new.labels).map_err(|e| StoreError::Invalid(e.to_string()))?)
            }
        };
        let id = self.last.run + 1;
        self.note_creation(now.millis())?;
        self.sql.insert_run.execute(params![
            id,
            tenant,
            flow,
            definition,
            commit.run.run.as_str(),
            now.millis(),
            new.step_count,
            new.idempotency_key,
            new.retry_of.as_ref().map(|run| run.as_str()),
            new.input_digest,
            labels,
        ])?;
        for (key, value) in &new.labels {
            self.sql.insert_label.execute(params![tenant, key, value, id])?;
        }
        self.last.run = id;
        self.count(flow, commit.index.status, commit.index.state.clone(), 1);
        let run = LiveRun {
            key: commit.run.clone(),
            tenant,
            flow,
            status: commit.index.status,
            machine_state: commit.index.state.clone(),
            created_at: now,
            started_at: None,
            version: 0,
            seq: 0,
            ms: now.millis(),
            jobs: Default::default(),
        };
        self.live.enter(id, run);
        Ok(id)
    }

    fn use_leases(&mut self, id: i64, leases: &[LeaseUse]) -> Result<(), Fault> {
        for lease in leases {
            match *lease {
                LeaseUse::Keep { key, lines, .. } => self.add_lines(id, key, lines)?,
                _ => self.take_job(id, lease.key())?,
            }
        }
        Ok(())
    }

    fn settle_others(&mut self, id: i64, commit: &Commit) -> Result<(), Fault> {
        match commit.others {
            Others::Leave => {}
            Others::Drop => {
                let named: BTreeSet<JobKey> = commit.leases.iter().map(LeaseUse::key).collect();
                let keys = self.run(id)?.jobs.keys().filter(|key| !named.contains(key));
                for key in keys.copied().collect::<Vec<_>>() {
                    self.take_job(id, key)?;
                }
            }
            Others::Hold => self.hold_jobs(id, true)?,
            Others::Release => self.hold_jobs(id, false)?,
        }
        Ok(())
    }

    /// Waiting jobs are the only ones that are held or let go, and a commit that names one removes it.
    fn hold_jobs(&mut self, id: i64, held: bool) -> Result<(), Fault> {
        let waiting = self.run(id)?.jobs.values_mut().filter(|job| job.lease.is_none());
        let mut any = false;
        for job in waiting {
            any |= job.held != held;
            job.held = held;
        }
        if any {
            self.sql.hold_jobs.execute((id, held))?;
        }
        Ok(())
    }

    /// Adds jobs, and leases those whose hand-off can be granted. Gives the keys of those.
    pub(super) fn add_jobs(&mut self, id: i64, add: &[NewJob], now: Time) -> Result<Vec<JobKey>, Fault> {
        let mut granted = Vec::new();
        for job in add {
            let tenant = self.run(id)?.tenant;
            let lane = self.names.lane(self.conn, tenant, &job.lane)?;
            let grantable = matches!(job.key, JobKey::Step(_))
                && !job.held
                && job.due <= now
                && !self.names.is_paused(tenant, &job.lane.queue);
            self.last.job += 1;
            let mut live = LiveJob {
                name: job.name.clone(),
                attempt: job.attempt,
                lane,
                priority: job.priority,
                due: job.due,
                held: job.held,
                n: self.last.job,
                lease: None,
            };
            match job.handoff.as_ref().filter(|_| grantable) {
                Some(Handoff { token, ttl, worker }) => {
                    let lease = LiveLease { token: *token, expires: now + *ttl, lines: 0, released: false };
                    live.lease = Some(lease);
                    self.insert_lease(id, job.key, &live, lease, worker, now)?;
                    granted.push(job.key);
                }
                None => self.insert_job(id, job.key, &live)?,
            }
            self.run(id)?.jobs.insert(job.key, live);
        }
        Ok(granted)
    }

    fn insert_job(&mut self, id: i64, key: JobKey, job: &LiveJob) -> Result<(), Fault> {
        self.sql.insert_job.execute((
            id,
            key.number(),
            &*job.name,
            job.attempt,
            job.lane,
            code::priority_number(job.priority),
            job.due.millis(),
            job.held,
            job.n,
        ))?;
        Ok(())
    }

    pub(super) fn insert_lease(
        &mut self,
        id: i64,
        key: JobKey,
        job: &LiveJob,
        lease: LiveLease,
        worker: &str,
        now: Time,
    ) -> Result<(), Fault> {
        self.sql.insert_lease.execute((
            id,
            key.number(),
            &*job.name,
            job.attempt,
            job.lane,
            code::priority_number(job.priority),
            job.due.millis(),
            job.n,
            code::token_bytes(lease.token),
            worker,
            now.millis(),
            lease.expires.millis(),
        ))?;
        Ok(())
    }

    /// Removes a job of a run, waiting or leased.
    pub(super) fn take_job(&mut self, id: i64, key: JobKey) -> Result<(), Fault> {
        let Some(job) = self.run(id)?.jobs.remove(&key) else { return Ok(()) };
        match job.lease {
            Some(_) => self.sql.delete_lease.execute((id, key.number()))?,
            None => self.sql.delete_job.execute((id, key.number()))?,
        };
        Ok(())
    }

    pub(super) fn add_lines(&mut self, id: i64, key: JobKey, lines: u32) -> Result<(), Fault> {
        if lines == 0 {
            return Ok(());
        }
        let lease = self.run(id)?.jobs.get_mut(&key).and_then(|job| job.lease.as_mut());
        if let Some(lease) = lease {
            lease.lines += lines;
            let lines = lease.lines;
            self.sql.set_lines.execute((id, key.number(), lines))?;
        }
        Ok(())
    }

    /// Replaces a run's state and index, and counts its version up.
    pub(super) fn advance(&mut self, id: i64, state: &[u8], index: &Index, end: End) -> Result<u64, Fault> {
        let context = self.take_seq(id, |slot| matches!(slot, Slot::Context(_)))?;
        let run = self.run(id)?;
        run.version += 1;
        let before = (run.status, run.machine_state.clone());
        let after = (index.status, index.state.clone());
        let moved = before != after;
        if moved {
            (run.status, run.machine_state) = after.clone();
        }
        let (version, seq, ms, started_at) = (run.version as i64, run.seq as i64, run.ms, run.started_at);
        let (tenant, flow) = (run.tenant, run.flow);
        let Index { completed_steps: completed, failed_steps: failed, retries, .. } = *index;
        let status = code::status_number(index.status);
        let ended = (end == End::Reached).then_some(ms);
        if version == 1 {
            self.sql.insert_progress.execute(params![
                id,
                version,
                seq,
                ms,
                started_at,
                completed,
                failed,
                retries,
                state,
                status,
                ended,
                index.state,
                context,
                tenant,
                flow
            ])?;
        } else if moved || ended.is_some() {
            self.sql.advance_status.execute(params![
                id,
                version,
                seq,
                ms,
                started_at,
                completed,
                failed,
                retries,
                state,
                status,
                ended,
                index.state,
                context
            ])?;
        } else {
            self.sql.advance.execute(params![
                id, version, seq, ms, started_at, completed, failed, retries, state, context
            ])?;
        }
        if moved {
            self.count(flow, before.0, before.1, -1);
            self.count(flow, after.0, after.1, 1);
        }
        if let Some(failure) = &index.failure {
            self.sql.set_failure.execute((id, &failure.error, failure.step.as_deref()))?;
        }
        Ok(version as u64)
    }

    /// A run that `find` or `recall` took into mind in this transaction.
    pub(super) fn run(&mut self, id: i64) -> Result<&mut LiveRun, Fault> {
        self.live.get_mut(id).ok_or_else(|| Fault::damaged(&format!("run {id} is not in mind")))
    }
}
