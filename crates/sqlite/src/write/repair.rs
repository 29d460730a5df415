//! Mending what reconciling found.

use flowline_core::Tenant;
use flowline_store::CommitError;
use flowline_store::row::Repair;
use flowline_store::rule;
use rusqlite::params;

use super::Writer;
use super::log::LogEnd;
use crate::fault::Fault;

impl Writer<'_> {
    pub(crate) fn repair(&mut self, repair: &Repair) -> Result<Result<(), CommitError>, Fault> {
        let (run, version) = match repair {
            Repair::Counters { tenant } => return self.recount(tenant).map(Ok),
            Repair::Row { run, version, .. }
            | Repair::Events { run, version, .. }
            | Repair::Jobs { run, version, .. } => (run, *version),
        };
        let found = self.find(run)?;
        let at = found.and_then(|id| self.live.get(id)).map(|run| run.version);
        if let Err(refused) = rule::check_version(version, at) {
            return Ok(Err(refused));
        }
        let id = found.ok_or_else(|| Fault::damaged("a run vanished within a repair"))?;
        match repair {
            Repair::Row { state, index, created_at, started_at, completed_at, events, seen, .. } => {
                let run = self.run(id)?;
                if run.seq != *seen {
                    return Ok(Err(CommitError::Conflict { expected: version, found: Some(version) }));
                }
                (run.seq, run.started_at) = (*events, started_at.map(|time| time.millis()));
                run.created_at = *created_at;
                self.advance(id, state, index, LogEnd::Open)?;
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
            Repair::Jobs { add, remove, .. } => {
                let changes = match rule::repair(add, remove, &self.run(id)?.jobs) {
                    Ok(changes) => changes,
                    Err(refused) => return Ok(Err(refused)),
                };
                self.change_jobs(id, changes)?;
                let run = self.run(id)?;
                run.version += 1;
                let version = run.version as i64;
                self.conn.execute("update progress set version = ?2 where run = ?1", [id, version])?;
            }
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
