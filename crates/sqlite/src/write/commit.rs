//! One run's next version.

use flowline_core::event::PayloadSlot;
use flowline_core::{RunId, Time};
use flowline_store::rule::{self, JobChange, StoredJob};
use flowline_store::{Base, Commit, CommitError, Committed, Index, JobKey, NewRun, StoreError};
use rusqlite::params;

use super::Writer;
use super::live::LiveRun;
use super::log::LogEnd;
use crate::code;
use crate::fault::Fault;

impl Writer<'_> {
    pub(crate) fn commit(&mut self, batch: &[Commit]) -> Result<Vec<Result<Committed, CommitError>>, Fault> {
        let now = self.clock.now();
        batch.iter().map(|commit| self.commit_one(commit, now)).collect()
    }

    fn commit_one(&mut self, commit: &Commit, now: Time) -> Result<Result<Committed, CommitError>, Fault> {
        let found = self.find(&commit.run)?;
        let run = found.and_then(|id| self.live.get(id)).map(|run| (run.version, &run.jobs));
        let tenant = self.names.known_tenant(&commit.run.tenant);
        let is_defined =
            |new: &NewRun| tenant.and_then(|tenant| self.names.definition(tenant, &new.definition)).is_some();
        if let Err(refused) = rule::check(commit, now, run, is_defined) {
            return Ok(Err(refused));
        }
        let id = match (&commit.base, found) {
            (Base::New(new), _) => self.insert_run(commit, new, now)?,
            (Base::Version(_), Some(id)) => id,
            (Base::Version(_), None) => return Err(Fault::damaged("a run vanished within a commit")),
        };
        let run = self.live.get(id).ok_or_else(|| not_in_mind(id))?;
        let changes =
            rule::changes(commit, now, &run.jobs, |lane| self.names.is_paused(run.tenant, &lane.queue));
        let granted = rule::granted(&changes);
        self.change_jobs(id, changes)?;
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

    fn insert_run(&mut self, commit: &Commit, new: &NewRun, now: Time) -> Result<i64, Fault> {
        let tenant = self.names.tenant(self.conn, &commit.run.tenant)?;
        let definition = self
            .names
            .definition(tenant, &new.definition)
            .ok_or_else(|| Fault::damaged("a definition vanished within a commit"))?;
        let flow = self.names.flow(self.conn, tenant, &new.flow)?;
        let id = self.insert_start([tenant, flow, definition], &commit.run.run, now, new)?;
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

    /// Writes what is written once of a run, and gives its number.
    pub(super) fn insert_start(
        &mut self,
        [tenant, flow, definition]: [i64; 3],
        run: &RunId,
        created_at: Time,
        new: &NewRun,
    ) -> Result<i64, Fault> {
        let NewRun { step_count, labels, input_digest, idempotency_key, retry_of, .. } = new;
        let encode = || serde_json::to_string(labels).map_err(|error| StoreError::Invalid(error.to_string()));
        let text = (!labels.is_empty()).then(encode).transpose()?;
        let (id, created, retry_of) =
            (self.last.run + 1, created_at.millis(), retry_of.as_ref().map(RunId::as_str));
        self.note_creation(created)?;
        let insert = &mut self.sql.insert_run;
        insert.execute(params![
            id,
            tenant,
            flow,
            definition,
            run.as_str(),
            created,
            step_count,
            idempotency_key,
            retry_of,
            input_digest,
            text
        ])?;
        for (key, value) in labels {
            self.sql.insert_label.execute(params![tenant, key, value, id])?;
        }
        self.last.run = id;
        Ok(id)
    }

    /// Writes what the rule for jobs says.
    pub(super) fn change_jobs(&mut self, id: i64, changes: Vec<JobChange<'_>>) -> Result<(), Fault> {
        for change in changes {
            match change {
                JobChange::Remove(key) => self.take_job(id, key)?,
                JobChange::AddLines(key, lines) => self.add_lines(id, key, lines)?,
                JobChange::Hold(key) => self.hold_job(id, key, true)?,
                JobChange::Release(key) => self.hold_job(id, key, false)?,
                JobChange::Add(job, lease) => {
                    let tenant = self.run(id)?.tenant;
                    let lane = self.names.lane(self.conn, tenant, &job.lane)?;
                    self.last.job += 1;
                    let stored = StoredJob::new(self.last.job, job, lane, lease);
                    self.insert_job(id, job.key, &stored)?;
                    self.run(id)?.jobs.insert(job.key, stored);
                }
            }
        }
        Ok(())
    }

    /// Writes a job, among those that wait or among the leases.
    pub(super) fn insert_job(&mut self, id: i64, key: JobKey, job: &StoredJob<i64>) -> Result<(), Fault> {
        let (key, number) = (key.number(), job.number as i64);
        let (priority, due) = (code::priority_number(job.priority), job.due.millis());
        let StoredJob { name, attempt, lane, held, .. } = job;
        match &job.lease {
            None => {
                self.sql.insert_job.execute((id, key, &**name, attempt, lane, priority, due, held, number))?
            }
            Some(lease) => self.sql.insert_lease.execute(params![
                id,
                key,
                name,
                attempt,
                lane,
                priority,
                due,
                number,
                code::token_bytes(lease.token),
                lease.worker,
                lease.leased_at.millis(),
                lease.expires.millis(),
                lease.lines,
                lease.released,
            ])?,
        };
        Ok(())
    }

    fn take_job(&mut self, id: i64, key: JobKey) -> Result<(), Fault> {
        let Some(job) = self.run(id)?.jobs.remove(&key) else { return Ok(()) };
        match job.lease {
            Some(_) => self.sql.delete_lease.execute((id, key.number()))?,
            None => self.sql.delete_job.execute((id, key.number()))?,
        };
        Ok(())
    }

    fn hold_job(&mut self, id: i64, key: JobKey, held: bool) -> Result<(), Fault> {
        if let Some(job) = self.run(id)?.jobs.get_mut(&key) {
            job.held = held;
            self.sql.hold_job.execute((id, key.number(), held))?;
        }
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
    pub(super) fn advance(
        &mut self,
        id: i64,
        state: &[u8],
        index: &Index,
        end: LogEnd,
    ) -> Result<u64, Fault> {
        let context = self.take_seq(id, |slot| matches!(slot, PayloadSlot::Context(_)))?;
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
        let ended = (end == LogEnd::Reached).then_some(ms);
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
        self.live.get_mut(id).ok_or_else(|| not_in_mind(id))
    }
}

fn not_in_mind(id: i64) -> Fault {
    Fault::damaged(&format!("run {id} isn't cached"))
}
