//! Rows of the file as the contract's types.

use flowline_core::{RunId, RunKey, Tenant, Time};
use flowline_store::{Failure, RunRow};
use rusqlite::Row;
use std::sync::Arc;

use crate::code;
use crate::fault::Fault;
use crate::names::tenant_of;

/// The columns that [`run_row`] reads; `r` is the run, `p` its progress, and [`RUN_JOINS`] gives the rest.
pub(crate) const RUN_COLUMNS: &str = "r.id, r.run_id, f.name, t.name, d.hash, p.status, r.created_at, p.started_at,
    p.completed_at, r.step_count, p.completed_steps, p.failed_steps, p.retries, p.failure_error, p.failure_step,
    r.labels, r.idempotency_key, r.retry_of, p.version, p.seq, p.events_trimmed, r.input_digest, p.state, p.machine_state,
    p.retain";
/// `cross` keeps the planner from turning the order round.
pub(crate) const RUN_JOINS: &str = "cross join flows f on f.id = r.flow cross join tenants t on t.id = r.tenant cross join definitions d on d.id = r.definition";
/// Where the encoded state is among [`RUN_COLUMNS`].
pub(crate) const STATE_COLUMN: usize = 22;

pub(crate) fn run_row(row: &Row<'_>) -> Result<RunRow, Fault> {
    let created_at = Time::from_millis(row.get(6)?);
    let completed_at = row.get::<_, Option<i64>>(8)?.map(Time::from_millis);
    let failure = row.get::<_, Option<String>>(13)?;
    let labels = match row.get_ref(15)?.as_str_or_null().map_err(rusqlite::Error::from)? {
        Some(text) => serde_json::from_str(text).map_err(|error| Fault::damaged(&error.to_string()))?,
        None => Default::default(),
    };
    Ok(RunRow {
        run_id: run_id(text(row, 1)?)?,
        flow_name: row.get(2)?,
        tenant: tenant_of(text(row, 3)?)?,
        definition: row.get(4)?,
        status: code::status(row.get(5)?)?,
        state: row.get(23)?,
        created_at,
        started_at: row.get::<_, Option<i64>>(7)?.map(Time::from_millis).or(completed_at.map(|_| created_at)),
        completed_at,
        duration: completed_at.map(|end| end.since(created_at).as_millis() as u64),
        step_count: row.get(9)?,
        completed_steps: row.get(10)?,
        failed_steps: row.get(11)?,
        retries: row.get(12)?,
        failure: match failure {
            Some(error) => Some(Failure { error, step: row.get(14)? }),
            None => None,
        },
        labels,
        idempotency_key: row.get(16)?,
        retry_of: match row.get_ref(17)?.as_str_or_null().map_err(rusqlite::Error::from)? {
            Some(id) => Some(run_id(id)?),
            None => None,
        },
        retain: match row.get_ref(24)?.as_str_or_null().map_err(rusqlite::Error::from)? {
            Some(retain) => Some(code::retain(retain)?),
            None => None,
        },
        version: row.get::<_, i64>(18)? as u64,
        events: row.get::<_, i64>(19)? as u64,
        events_trimmed: row.get(20)?,
        input_digest: row.get(21)?,
    })
}

/// Whose events these are.
#[derive(Debug, Clone)]
pub(crate) struct LogOwner {
    pub(crate) run: RunId,
    pub(crate) flow: Arc<str>,
    pub(crate) tenant: Tenant,
    /// Events up to this one were trimmed, though some may not be deleted yet.
    pub(crate) trimmed_to: u64,
}

pub(crate) fn run_id(text: &str) -> Result<RunId, Fault> {
    RunId::new(text).map_err(|error| Fault::damaged(&error.to_string()))
}

/// A run's address from two columns: tenant and run id.
pub(crate) fn run_key(row: &Row<'_>, at: usize) -> Result<RunKey, Fault> {
    Ok(RunKey::new(tenant_of(text(row, at)?)?, run_id(text(row, at + 1)?)?))
}

fn text<'r>(row: &'r Row<'_>, at: usize) -> Result<&'r str, Fault> {
    Ok(row.get_ref(at)?.as_str().map_err(rusqlite::Error::from)?)
}
