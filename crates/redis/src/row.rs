//! A run's row. The key `run:` holds what commits change, in three parts, the first two a line each:
//!
//! ```text
//! VERSION STATUS[:STATE] EVENTS LAST ,KEYS OF JOBS, STARTED ENDED TRIMMED[:RETAIN] NUMBER FLOW
//! COMPLETED FAILED RETRIED {the failure}
//! the encoded run state
//! ```
//!
//! and the key `start:` what is said once: `CREATED LABELS {the rest}`. Scripts write them; here they are
//! read, and written of a run that is restored.

use std::sync::Arc;

use flowline_core::definition::Retain;
use flowline_core::{RunKey, Status, Time};
use flowline_store::{Failure, Index, JobKey, RestoredRun, RunRow, Snapshot, StoreError};
use redis::Value;

use crate::answer::{bytes, maybe_text, number};
use crate::args::ScriptArgs;
use crate::encode::{StoredStart, end_of_row, failure, failure_text, status};
use crate::known::KnownRow;
use crate::names;

/// What commits change.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) flow: Arc<str>,
    pub(crate) events: u64,
    pub(crate) jobs: Vec<JobKey>,
    pub(crate) version: u64,
    status: Status,
    machine_state: Option<Arc<str>>,
    started: Option<Time>,
    ended: Option<Time>,
    trimmed: bool,
    retain: Option<Retain>,
    steps: [u32; 3],
    failure: Option<Failure>,
    state: Vec<u8>,
}

/// Reads what `GET` gave of the key `run:`; `None` where the run is not there.
pub(crate) fn read(run: &RunKey, value: Value) -> Result<Option<Row>, StoreError> {
    let Some(found) = bytes(value)? else { return Ok(None) };
    let damaged = |what: &str| damaged(run, what);
    let mut parts = found.splitn(3, |byte| *byte == b'\n');
    let mut line = || {
        let part = parts.next().ok_or_else(|| damaged("a part is missing"))?;
        std::str::from_utf8(part).map_err(|_| damaged("it isn't UTF-8"))
    };
    let (head, steps) = (line()?, line()?);
    let state = parts.next().ok_or_else(|| damaged("it has no state"))?.to_vec();
    let head: Vec<&str> = head.split(' ').collect();
    let &[version, status, events, _, keys, started, ended, kept, _, flow] = &head[..] else {
        return Err(damaged("its first line"));
    };
    let (trimmed, retain) = match kept.split_once(':') {
        Some((trimmed, own)) => {
            (trimmed, Some(Retain::from_code(own).ok_or_else(|| damaged("its retention"))?))
        }
        None => (kept, None),
    };
    let (status, machine_state) = match status.split_once(':') {
        Some((status, state)) => (status, Some(names::decode(state)?.into())),
        None => (status, None),
    };
    let status = Status::ALL.into_iter().find(|known| known.as_str() == status);
    let keys = keys.split(',').filter(|key| !key.is_empty());
    let mut steps = steps.splitn(4, ' ');
    let mut count = || number(steps.next().unwrap_or_default());
    Ok(Some(Row {
        flow: names::decode(flow)?.into(),
        events: number(events)?,
        jobs: keys.map(|key| number(key).map(JobKey::from_number)).collect::<Result<_, _>>()?,
        version: number(version)?,
        status: status.ok_or_else(|| damaged("its status"))?,
        machine_state,
        started: date(started)?,
        ended: date(ended)?,
        trimmed: trimmed == "1",
        retain,
        steps: [count()?, count()?, count()?],
        failure: failure(steps.next().unwrap_or_default())?,
        state,
    }))
}

/// How a row begins.
pub(crate) fn known(row: &Value) -> Option<KnownRow> {
    let Value::BulkString(bytes) = row else { return None };
    let mut lines = bytes.splitn(3, |byte| *byte == b'\n').map(|line| std::str::from_utf8(line).ok());
    KnownRow::read(lines.next()??, lines.next()??)
}

/// Reads a run from both of its keys, as `MGET` gave them.
pub(crate) fn snapshot(run: &RunKey, row: Value, start: Value) -> Result<Option<Snapshot>, StoreError> {
    let Some(found) = read(run, row)? else { return Ok(None) };
    let Row { flow, events, version, status, machine_state, .. } = found;
    let Row { started, ended, trimmed, retain, steps, failure, state, .. } = found;
    // A run that is removed in between may have lost one of the two.
    let Some(said) = maybe_text(start)? else { return Ok(None) };
    let mut said = said.splitn(3, ' ');
    let (Some(created), Some(_), Some(start)) = (said.next(), said.next(), said.next()) else {
        return Err(damaged(run, "its start"));
    };
    let start: StoredStart = serde_json::from_str(start).map_err(|error| damaged(run, &error.to_string()))?;
    let created_at = Time::from_millis(number(created)?);
    let row = RunRow {
        run_id: run.run.clone(),
        flow_name: flow,
        tenant: run.tenant.clone(),
        definition: start.definition,
        status,
        state: machine_state,
        created_at,
        started_at: started.or(ended.map(|_| created_at)),
        completed_at: ended,
        duration: ended.map(|end| end.since(created_at).as_millis() as u64),
        step_count: start.step_count,
        completed_steps: steps[0],
        failed_steps: steps[1],
        retries: steps[2],
        failure,
        labels: start.labels,
        idempotency_key: start.idempotency_key,
        retry_of: start.retry_of,
        retain,
        version,
        events,
        events_trimmed: trimmed,
        input_digest: start.input_digest,
    };
    Ok(Some(Snapshot { row, state }))
}

/// What the key `run:` holds of a run that is restored.
pub(crate) fn write(args: &mut ScriptArgs, restored: &RestoredRun, number: u64) -> Result<(), StoreError> {
    let RestoredRun { row, state, last, jobs, .. } = restored;
    args.part(format_args!("{} ", row.version));
    status(args, row.status, row.state.as_deref());
    args.part(format_args!(" {} {} ,", row.events, last.millis()));
    for job in jobs {
        args.part(format_args!("{},", job.key.number()));
    }
    for date in [row.started_at, row.completed_at] {
        match date {
            Some(date) => args.part(format_args!(" {}", date.millis())),
            None => args.part_bytes(b" -"),
        };
    }
    args.part(format_args!(" {}", u8::from(row.events_trimmed)));
    if let Some(retain) = row.retain {
        args.part(format_args!(":{}", retain.code()));
    }
    args.part(format_args!(" {number} "));
    args.part_name(&row.flow_name).part_bytes(b"\n");
    let index = Index {
        status: row.status,
        state: row.state.clone(),
        completed_steps: row.completed_steps,
        failed_steps: row.failed_steps,
        retries: row.retries,
        failure: row.failure.clone(),
    };
    end_of_row(args, &index, &failure_text(row.failure.as_ref())?, state);
    Ok(())
}

fn date(text: &str) -> Result<Option<Time>, StoreError> {
    match text {
        "-" => Ok(None),
        text => number(text).map(|ms| Some(Time::from_millis(ms))),
    }
}

fn damaged(run: &RunKey, what: &str) -> StoreError {
    StoreError::Damaged(format!("can't read the row of run {run}: {what}"))
}
