//! Runs that the writer has in mind: version, number of the last event, and their jobs, so that the guards of a commit
//! are checked without a read. Everything here is also in the file or in the open transaction; a rollback empties it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use flowline_core::definition::Priority;
use flowline_core::{RunId, RunKey, Status, Time};
use flowline_store::{Extend, JobKey, JobNow, LeaseNow, Token};
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
    pub(crate) jobs: BTreeMap<JobKey, LiveJob>,
}

#[derive(Debug)]
pub(crate) struct LiveJob {
    pub(crate) name: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) lane: i64,
    pub(crate) priority: Priority,
    pub(crate) due: Time,
    pub(crate) held: bool,
    /// Jobs alike in lane, priority and due time go in this order.
    pub(crate) n: i64,
    pub(crate) lease: Option<LiveLease>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LiveLease {
    pub(crate) token: Token,
    pub(crate) expires: Time,
    pub(crate) lines: u32,
    pub(crate) released: bool,
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
    pub(crate) fn held_by(&mut self, held: &Extend) -> Option<&mut LiveLease> {
        let lease = self.jobs.get_mut(&held.key)?.lease.as_mut()?;
        (lease.token == held.token && !lease.released).then_some(lease)
    }
}

impl LiveJob {
    /// As the guards of a commit look at it.
    pub(crate) fn now(&self) -> JobNow {
        let lease =
            |lease: &LiveLease| LeaseNow { token: lease.token, expires: lease.expires, lines: lease.lines };
        JobNow {
            attempt: self.attempt,
            held: self.held,
            due: self.due,
            lease: self.lease.as_ref().map(lease),
        }
    }

    pub(crate) fn leased_with(&self, attempt: u32, token: Token) -> Option<&LiveLease> {
        self.lease.as_ref().filter(|lease| self.attempt == attempt && lease.token == token)
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
            jobs: BTreeMap::new(),
        };
        drop(rows);
        self.recall_jobs(id, &mut run.jobs)?;
        self.live.enter(id, run);
        Ok(())
    }

    fn recall_jobs(&mut self, id: i64, jobs: &mut BTreeMap<JobKey, LiveJob>) -> Result<(), Fault> {
        let mut rows = self.sql.jobs_of_run.query([id])?;
        while let Some(row) = rows.next()? {
            let job = LiveJob {
                name: row.get(1)?,
                attempt: row.get(2)?,
                lane: row.get(3)?,
                priority: code::priority(row.get(4)?)?,
                due: Time::from_millis(row.get(5)?),
                held: row.get(6)?,
                n: row.get(7)?,
                lease: None,
            };
            jobs.insert(JobKey::from_number(row.get(0)?), job);
        }
        drop(rows);
        let mut rows = self.sql.leases_of_run.query([id])?;
        while let Some(row) = rows.next()? {
            let lease = LiveLease {
                token: code::token(row.get(7)?),
                expires: Time::from_millis(row.get(8)?),
                lines: row.get(9)?,
                released: row.get(10)?,
            };
            let job = LiveJob {
                name: row.get(1)?,
                attempt: row.get(2)?,
                lane: row.get(3)?,
                priority: code::priority(row.get(4)?)?,
                due: Time::from_millis(row.get(5)?),
                held: false,
                n: row.get(6)?,
                lease: Some(lease),
            };
            jobs.insert(JobKey::from_number(row.get(0)?), job);
        }
        Ok(())
    }
}
