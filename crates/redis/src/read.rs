//! Reading runs, their logs and their payloads.

use std::sync::Arc;

use flowline_core::event::{AttemptOf, Slot};
use flowline_core::{Event, EventType, Json, NewEvent, RunKey, Status, Time};
use flowline_store::query::page_size;
use flowline_store::{EventPage, EventQuery, JobKey, JobRow, RunRow, Snapshot, StoreError};
use redis::Value;

use crate::RedisStore;
use crate::answer::{bytes, list, maybe_text, number, text};
use crate::args::Args;
use crate::encode::{Job, Start, failure};
use crate::names;
use crate::script;
use crate::shard::Shard;

/// Every so many events a run's hash keeps the date of one, as scripts do.
const MARK: u64 = 64;

/// The fields of a run's hash that make its row, in the order that [`row`] reads them.
pub(crate) const ROW: [&str; 11] = [
    "start", "version", "status", "events", "created", "started", "ended", "steps", "failure", "trimmed",
    "state",
];

impl RedisStore {
    pub(crate) async fn load_runs(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        let mut found: Vec<Option<Snapshot>> = vec![None; runs.len()];
        let by_shard = self.by_shard(runs.iter().enumerate(), |(_, run)| names::run(run));
        for (shard, runs) in by_shard {
            let mut pipe = redis::pipe();
            for (_, run) in &runs {
                pipe.cmd("HMGET").arg(shard.key(&format!("run:{}", names::run(run)))).arg(&ROW);
            }
            for ((n, run), answer) in runs.into_iter().zip(shard.ask_all(&pipe).await?) {
                found[n] = snapshot(run, answer)?;
            }
        }
        Ok(found)
    }

    pub(crate) async fn payloads_of(
        &self,
        run: &RunKey,
        slots: &[Slot],
    ) -> Result<Vec<Option<Json>>, StoreError> {
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        let run = names::run(run);
        let mut args = Args::new();
        args.text(&run);
        for slot in slots {
            args.number(slot.number());
        }
        let answer = self.shard(&run).call(&script::PAYLOADS, [&args]).await?;
        let payload = |value: Value| -> Result<Option<Json>, StoreError> {
            Ok(maybe_text(value)?.filter(|text| !text.is_empty()).map(Json::composed))
        };
        answer.rest.map(payload).collect()
    }

    pub(crate) async fn page_of_events(
        &self,
        key: &RunKey,
        query: &EventQuery,
    ) -> Result<EventPage, StoreError> {
        let run = names::run(key);
        let shard = self.shard(&run);
        let mark = query.after / MARK;
        let mut asked = redis::cmd("HMGET");
        asked.arg(shard.key(&format!("run:{run}"))).arg("flow").arg("events").arg(format!("m{mark}"));
        let mut row = list(shard.ask(&asked).await?)?.into_iter();
        let mut field = || maybe_text(row.next().unwrap_or_default());
        let (Some(flow), Some(events), began) = (field()?, field()?, field()?) else {
            return Ok(EventPage { events: Vec::new(), more: false });
        };
        if query.after >= number(&events)? {
            return Ok(EventPage { events: Vec::new(), more: false });
        }
        let flow: Arc<str> = names::decode(&flow)?.into();
        // Ids rise with the number and with the date. From the date of a mark on, at most the events up to the next
        // mark come too early.
        let ms: i64 = began.filter(|_| mark > 0).map_or(Ok(0), |ms| number(&ms))?;
        let mut from = format!("{ms}-{}", query.after + 1);
        let size = page_size(query.limit);
        let mut found = Vec::new();
        loop {
            let part = size + 1 + MARK as usize;
            let page = log(shard, key, &flow, &from, "+", part).await?;
            let (count, last) = (page.len(), page.last().map(|event| event.id.clone()));
            found.extend(page.into_iter().filter(|event| query.matches(event)));
            match last {
                Some(last) if found.len() <= size && count == part => from = format!("({last}"),
                _ => break,
            }
        }
        let more = found.len() > size;
        found.truncate(size);
        Ok(EventPage { events: found, more })
    }

    pub(crate) async fn jobs_of(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError> {
        let run = names::run(run);
        let shard = self.shard(&run);
        let mut asked = redis::cmd("HGETALL");
        asked.arg(shard.key(&format!("run:{run}")));
        let mut rows = Vec::new();
        let mut all = list(shard.ask(&asked).await?)?.into_iter();
        while let (Some(field), Some(value)) = (all.next(), all.next()) {
            let Some(field) = bytes(field)?.and_then(|field| String::from_utf8(field).ok()) else { continue };
            let Some(Ok(key)) = field.strip_prefix('j').map(str::parse) else { continue };
            let key = JobKey::from_number(key);
            rows.push(Job::read(&text(value)?)?.row(key));
        }
        rows.sort_by_key(|row: &JobRow| row.key);
        Ok(rows)
    }
}

/// Events of a run's log between two ids, up to `count`.
pub(crate) async fn log(
    shard: &Shard,
    run: &RunKey,
    flow: &Arc<str>,
    from: &str,
    to: &str,
    count: usize,
) -> Result<Vec<Event>, StoreError> {
    let mut asked = redis::cmd("XRANGE");
    asked.arg(shard.key(&format!("log:{}", names::run(run)))).arg(from).arg(to).arg("COUNT").arg(count);
    events(run, flow, shard.ask(&asked).await?)
}

/// Events as a stream's entries hold them.
pub(crate) fn events(run: &RunKey, flow: &Arc<str>, entries: Value) -> Result<Vec<Event>, StoreError> {
    let read = |entry: Value| -> Result<Event, StoreError> {
        let mut entry = list(entry)?.into_iter();
        let id = text(entry.next().unwrap_or_default())?;
        let damaged = || StoreError::Damaged(format!("event {id} of run {run} cannot be read"));
        let (ms, seq) = id.split_once('-').ok_or_else(damaged)?;
        let fields = list(entry.next().unwrap_or_default())?;
        let [_, kind, _, step, _, attempt, _, data, ..] =
            <[Value; 10]>::try_from(fields).map_err(|_| damaged())?;
        let kind = EventType::parse(&text(kind)?).ok_or_else(damaged)?;
        let (step, attempt, data) = (text(step)?, text(attempt)?, text(data)?);
        let of = match attempt.as_str() {
            "" => None,
            attempt => Some(AttemptOf { step: step.into(), attempt: number(attempt)? }),
        };
        let data = Some(data).filter(|data| !data.is_empty()).map(Json::composed);
        let new = NewEvent { kind, of, data, slot: None };
        Ok(Event::stored(&run.run, flow, &run.tenant, number(seq)?, number(ms)?, new))
    };
    list(entries)?.into_iter().map(read).collect()
}

/// A run's row and state from the fields of [`ROW`]; `None` where the run is not there.
pub(crate) fn snapshot(run: &RunKey, fields: Value) -> Result<Option<Snapshot>, StoreError> {
    let mut fields = list(fields)?.into_iter();
    let Some(start) = maybe_text(fields.next().unwrap_or_default())? else { return Ok(None) };
    let damaged = |error: serde_json::Error| StoreError::Damaged(format!("the start of run {run}: {error}"));
    let start: Start = serde_json::from_str(&start).map_err(damaged)?;
    let mut field = || maybe_text(fields.next().unwrap_or_default()).map(Option::unwrap_or_default);
    let (version, status, events) = (number(&field()?)?, field()?, number(&field()?)?);
    let time = |text: String| -> Result<Option<Time>, StoreError> {
        Some(text).filter(|text| !text.is_empty()).map(|ms| number(&ms).map(Time::from_millis)).transpose()
    };
    let created_at = time(field()?)?.unwrap_or_default();
    let (started_at, completed_at) = (time(field()?)?, time(field()?)?);
    let steps = field()?;
    let mut steps = steps.split(' ');
    let mut count = || number(steps.next().unwrap_or_default());
    let status = Status::ALL.into_iter().find(|known| known.as_str() == status);
    let row = RunRow {
        run_id: run.run.clone(),
        flow_name: start.flow,
        tenant: run.tenant.clone(),
        definition: start.definition,
        status: status.ok_or_else(|| StoreError::Damaged(format!("run {run} has an unknown status")))?,
        created_at,
        started_at,
        completed_at,
        duration: completed_at.map(|end| end.since(created_at).as_millis() as u64),
        step_count: start.step_count,
        completed_steps: count()?,
        failed_steps: count()?,
        retries: count()?,
        failure: failure(&field()?)?,
        labels: start.labels,
        idempotency_key: start.idempotency_key,
        retry_of: start.retry_of,
        version,
        events,
        events_trimmed: field()? == "1",
        input_digest: start.input_digest,
    };
    let state = bytes(fields.next().unwrap_or_default())?.unwrap_or_default();
    Ok(Some(Snapshot { row, state }))
}
