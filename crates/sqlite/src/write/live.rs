//! Runs that the writer has in mind: version, number of the last event, and their jobs, so that the guards of a commit
//! are checked without a read. Everything here is also in the file or in the open transaction; a rollback empties it.

use std::collections::HashMap;
use std::sync::Arc;

use flowline_core::{RunId, RunKey, Status, Time};
use flowline_store::rule::{Jobs, StoredJob, StoredLease};
use flowline_store::{Extend, JobKey};
use rusqlite::params;

use super::Writer;
use crate::code;
use crate::fault::Fault;

/// Beyond this many runs the writer forgets all and begins anew: the next commit of each costs three reads.
const RUNS: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct LiveRuns {
    ids: HashMap<RunKey, i64>,
    runs: HashMap<i64, LiveRun>,
}

#[derive(Debug)]
pub(crate) struct LiveRun {
    pub(crate) key: RunKey,
    pub(crate) tenant: i64,
    pub(crate) flow: i64,
    pub(crate) status: Status,
    pub(crate) machine_state: Option<Arc<str>>,
    pub(crate) created_at: Time,
    pub(crate) started_at: Option<i64>,
    pub(crate) version: u64,
    /// Number of the last event.
    pub(crate) seq: u64,
    /// Date of the last event.
    pub(crate) ms: i64,
    pub(crate) jobs: Jobs<i64>,
}

impl LiveRuns {
    pub(crate) fn get(&self, id: i64) -> Option<&LiveRun> {
        self.runs.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: i64) -> Option<&mut LiveRun> {
        self.runs.get_mut(&id)
    }

    pub(crate) fn enter(&mut self, id: i64, run: LiveRun) {
        self.ids.insert(run.key.clone(), id);
        self.runs.insert(id, run);
    }

    pub(crate) fn forget(&mut self, id: i64) {
        if let Some(run) = self.runs.remove(&id) {
            self.ids.remove(&run.key);
        }
    }

    /// Keeps memory in bounds; called between transactions.
    pub(crate) fn trim(&mut self) {
        if self.runs.len() > RUNS {
            *self = LiveRuns::default();
        }
    }
}

impl LiveRun {
    /// The lease that a holder may still extend or give back.
    pub(crate) fn held_by(&mut self, held: &Extend) -> Option<&mut StoredLease> {
        self.jobs.get_mut(&held.key)?.held_with(held.token)
    }
}

impl Writer<'_> {
    /// The number of a run, which is then in mind. `None` where there is no such run.
    pub(crate) fn find(&mut self, run: &RunKey) -> Result<Option<i64>, Fault> {
        if let Some(id) = self.live.ids.get(run) {
            return Ok(Some(*id));
        }
        let Some(tenant) = self.names.known_tenant(&run.tenant) else { return Ok(None) };
        let mut rows = self.sql.run_by_name.query(params![tenant, run.run.as_str()])?;
        let Some(id) = rows.next()?.map(|row| row.get(0)).transpose()? else { return Ok(None) };
        drop(rows);
        self.recall(id)?;
        Ok(Some(id))
    }

    /// Takes a run into mind by its number.
    pub(crate) fn recall(&mut self, id: i64) -> Result<(), Fault> {
        if self.live.runs.contains_key(&id) {
            return Ok(());
        }
        let mut rows = self.sql.run_by_id.query([id])?;
        let row = rows.next()?.ok_or_else(|| Fault::damaged(&format!("run {id} is not there")))?;
        let tenant: i64 = row.get(7)?;
        let name = row.get_ref(6)?.as_str().map_err(rusqlite::Error::from)?;
        let name = RunId::new(name).map_err(|error| Fault::damaged(&error.to_string()))?;
        let mut run = LiveRun {
            key: RunKey::new(self.names.tenant_name(tenant)?.clone(), name),
            tenant,
            flow: row.get(0)?,
            status: code::status(row.get(1)?)?,
            machine_state: row.get(8)?,
            created_at: Time::from_millis(row.get(9)?),
            started_at: row.get(2)?,
            version: row.get::<_, i64>(3)? as u64,
            seq: row.get::<_, i64>(4)? as u64,
            ms: row.get(5)?,
            jobs: Jobs::new(),
        };
        drop(rows);
        self.recall_jobs(id, &mut run.jobs)?;
        self.live.enter(id, run);
        Ok(())
    }

    fn recall_jobs(&mut self, id: i64, jobs: &mut Jobs<i64>) -> Result<(), Fault> {
        let mut rows = self.sql.jobs_of_run.query([id])?;
        while let Some(row) = rows.next()? {
            let lease = match row.get::<_, Option<[u8; 16]>>(8)? {
                Some(token) => Some(StoredLease {
                    token: code::token(token),
                    worker: row.get(9)?,
                    leased_at: Time::from_millis(row.get(10)?),
                    expires: Time::from_millis(row.get(11)?),
                    lines: row.get(12)?,
                    released: row.get(13)?,
                }),
                None => None,
            };
            let job = StoredJob {
                name: row.get(1)?,
                attempt: row.get(2)?,
                lane: row.get(3)?,
                priority: code::priority(row.get(4)?)?,
                due: Time::from_millis(row.get(5)?),
                held: row.get(6)?,
                number: row.get::<_, i64>(7)? as u64,
                lease,
            };
            jobs.insert(JobKey::from_number(row.get(0)?), job);
        }
        Ok(())
    }
}
