//! Reading runs, their logs and their payloads.

use std::sync::Arc;

use flowline_core::event::Slot;
use flowline_core::{Event, Json, RunKey};
use flowline_store::query::page_size;
use flowline_store::{EventPage, EventQuery, JobRow, Snapshot, StoreError};
use redis::Value;

use crate::RedisStore;
use crate::answer::{list, maybe_text, number, text};
use crate::args::Args;
use crate::encode::read_event;
use crate::job::Job;
use crate::names;
use crate::row::{self, snapshot};
use crate::script;
use crate::shard::Shard;

/// Every so many events a run's marks keep the date of one, as scripts do.
const MARK: u64 = 64;

impl RedisStore {
    pub(crate) async fn load_runs(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        let mut found: Vec<Option<Snapshot>> = vec![None; runs.len()];
        let by_shard = self.by_shard(runs.iter().enumerate(), |(_, run)| names::run(run));
        for (shard, runs) in by_shard {
            let mut asked = redis::cmd("MGET");
            for (_, run) in &runs {
                let name = names::run(run);
                asked.arg(shard.key(&format!("run:{name}"))).arg(shard.key(&format!("start:{name}")));
            }
            let mut answers = list(shard.ask(&asked).await?)?.into_iter();
            for (n, run) in runs {
                let mut part = || answers.next().unwrap_or_default();
                found[n] = snapshot(run, part(), part())?;
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
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(shard.key(&format!("run:{run}")));
        pipe.cmd("HGET").arg(shard.key(&format!("marks:{run}"))).arg(format!("m{mark}"));
        let mut answers = shard.ask_all(&pipe).await?.into_iter();
        let none = EventPage { events: Vec::new(), more: false };
        let Some(row) = row::read(key, answers.next().unwrap_or_default())? else {
            return Ok(none);
        };
        let began = maybe_text(answers.next().unwrap_or_default())?;
        if query.after >= row.events {
            return Ok(none);
        }
        let flow = row.flow;
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

    pub(crate) async fn jobs_of(&self, key: &RunKey) -> Result<Vec<JobRow>, StoreError> {
        let run = names::run(key);
        let shard = self.shard(&run);
        let mut asked = redis::cmd("GET");
        asked.arg(shard.key(&format!("run:{run}")));
        let jobs = row::read(key, shard.ask(&asked).await?)?.map(|row| row.jobs).unwrap_or_default();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let mut asked = redis::cmd("HMGET");
        asked.arg(shard.key("jobs"));
        for job in &jobs {
            asked.arg(format!("{}:{run}", job.number()));
        }
        let mut rows = Vec::with_capacity(jobs.len());
        for (job, value) in jobs.into_iter().zip(list(shard.ask(&asked).await?)?) {
            // One that went in between is gone.
            if let Some(found) = maybe_text(value)? {
                rows.push(Job::read(&found)?.row(job));
            }
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
        let event = text(fields.into_iter().nth(1).unwrap_or_default())?;
        let new = read_event(&event).ok_or_else(damaged)?;
        Ok(Event::stored(&run.run, flow, &run.tenant, number(seq)?, number(ms)?, new))
    };
    list(entries)?.into_iter().map(read).collect()
}
