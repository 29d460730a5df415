//! Mending what reconciling found.

use flowline_core::{RunKey, Tenant};
use flowline_store::row::Repair;
use flowline_store::{CommitError, JobKey, NewJob};
use rusqlite::params;

use super::Writer;
use super::log::End;
use crate::fault::Fault;

impl Writer<'_> {
    pub(crate) fn repair(&mut self, repair: &Repair) -> Result<Result<(), CommitError>, Fault> {
        let (run, version) = match repair {
            Repair::Counters { tenant } => return self.recount(tenant).map(Ok),
            Repair::Row { run, version, .. }
            | Repair::Events { run, version, .. }
            | Repair::Jobs { run, version, .. } => (run, *version),
        };
        let id = match self.at_version(run, version)? {
            Ok(id) => id,
            Err(refused) => return Ok(Err(refused)),
        };
        match repair {
            Repair::Row { state, index, created_at, started_at, completed_at, events, seen, .. } => {
                let run = self.run(id)?;
                if run.seq != *seen {
                    return Ok(Err(CommitError::Conflict { expected: version, found: Some(version) }));
                }
                (run.seq, run.started_at) = (*events, started_at.map(|time| time.millis()));
                run.created_at = *created_at;
                self.advance(id, state, index, End::Open)?;
                // After it: a run that comes to its end by `advance` is dated by its last event, here by the repair.
                let failure = index.failure.as_ref();
                self.date_again(id, created_at.millis())?;
                self.conn.execute(
                    "update progress set completed_at = ?2, failure_error = ?3, failure_step = ?4 where run = ?1",
                    params![
                        id,
                        completed_at.map(|time| time.millis()),
                        failure.map(|failure| &failure.error),
                        failure.and_then(|failure| failure.step.as_deref()),
                    ],
                )?;
            }
            Repair::Events { events, state, index, .. } => {
                let now = self.clock.now();
                let ts = self.date(id, now)?;
                let (_, end) = self.log(id, ts, events)?;
                self.advance(id, state, index, end)?;
            }
            Repair::Jobs { add, remove, .. } => return self.repair_jobs(id, add, remove),
            Repair::Counters { .. } => {}
        }
        Ok(Ok(()))
    }

    /// Dates a run anew, which may put it out of order by as much as it moves.
    fn date_again(&mut self, id: i64, at: i64) -> Result<(), Fault> {
        let before = "select created_at from runs where id = ?1";
        let before: i64 = self.conn.query_row(before, [id], |row| row.get(0))?;
        if before != at {
            self.conn.execute("update runs set created_at = ?2 where id = ?1", [id, at])?;
            self.last.created = self.last.created.max(at);
            self.widen_slack(self.last.created_slack.saturating_add((before - at).abs()))?;
        }
        Ok(())
    }

    fn at_version(&mut self, run: &RunKey, expected: u64) -> Result<Result<i64, CommitError>, Fault> {
        let found = self.find(run)?;
        let version = found.and_then(|id| self.live.get(id)).map(|run| run.version);
        Ok(match found {
            Some(id) if version == Some(expected) => Ok(id),
            _ => Err(CommitError::Conflict { expected, found: version }),
        })
    }

    fn repair_jobs(
        &mut self,
        id: i64,
        add: &[NewJob],
        remove: &[JobKey],
    ) -> Result<Result<(), CommitError>, Fault> {
        for (at, job) in add.iter().enumerate() {
            let there = self.run(id)?.jobs.contains_key(&job.key) && !remove.contains(&job.key);
            if there || add[..at].iter().any(|other| other.key == job.key) {
                return Ok(Err(CommitError::StaleLease(job.key)));
            }
        }
        for key in remove {
            self.take_job(id, *key)?;
        }
        // Nobody waits for the answer to a hand-off here: mended jobs wait to be claimed.
        let add: Vec<NewJob> = add.iter().map(|job| NewJob { handoff: None, ..job.clone() }).collect();
        let now = self.clock.now();
        self.add_jobs(id, &add, now)?;
        let run = self.run(id)?;
        run.version += 1;
        let version = run.version as i64;
        self.conn.execute("update progress set version = ?2 where run = ?1", params![id, version])?;
        Ok(Ok(()))
    }

    fn recount(&mut self, tenant: &Tenant) -> Result<(), Fault> {
        let Some(id) = self.names.known_tenant(tenant) else { return Ok(()) };
        // What this transaction has counted so far is in the rows that are counted now.
        self.write_counts()?;
        self.conn
            .execute("delete from counters where flow in (select id from flows where tenant = ?1)", [id])?;
        self.conn.execute(
            "insert into counters (flow, status, state, n)
                select flow, status, coalesce(machine_state, ''), count(*) from progress where tenant = ?1
                group by flow, status, machine_state",
            [id],
        )?;
        Ok(())
    }
}
