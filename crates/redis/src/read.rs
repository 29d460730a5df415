//! Reading runs, their logs and their payloads.

use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey};
use flowline_store::query::{PAGE_BYTES, PageRoom, page_size};
use flowline_store::{EventPage, EventQuery, JobRow, PayloadsAt, Snapshot, StoreError};
use redis::Value;

use crate::RedisStore;
use crate::answer::{bytes, list, maybe_text, number, text};
use crate::args::ScriptArgs;
use crate::job::JobField;
use crate::log;
use crate::names;
use crate::row::{self, snapshot};
use crate::script;

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
                let row = part();
                let known = row::known(&row);
                found[n] = snapshot(run, row, part())?;
                if let (Some(known), Some(_)) = (known, &found[n]) {
                    self.known.keep(names::run(run), known);
                }
            }
        }
        Ok(found)
    }

    pub(crate) async fn payloads_at(
        &self,
        asked: &[PayloadsAt],
    ) -> Result<Vec<Vec<Option<Json>>>, StoreError> {
        let payload = |value: Value| -> Result<Option<Json>, StoreError> {
            Ok(maybe_text(value)?.filter(|text| !text.is_empty()).map(Json::composed))
        };
        let mut found = vec![Vec::new(); asked.len()];
        let some = asked.iter().enumerate().filter(|(_, (_, slots))| !slots.is_empty());
        for (shard, asked) in self.by_shard(some, |(_, (run, _))| names::run(run)) {
            let mut args = ScriptArgs::new();
            for (_, (run, slots)) in &asked {
                args.text(&names::run(run));
                args.number(slots.len() as u32);
                for slot in slots {
                    args.number(slot.number());
                }
            }
            let mut answers = shard.call(&script::PAYLOADS, [&args]).await?.rest.map(payload);
            for (at, (_, slots)) in asked {
                found[at] = answers.by_ref().take(slots.len()).collect::<Result<_, _>>()?;
            }
        }
        Ok(found)
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
        // Ids rise with the number and with the date. From the date of a mark on, at most the events up to the next
        // mark come too early.
        let ms: i64 = began.filter(|_| mark > 0).map_or(Ok(0), |ms| number(&ms))?;
        let mut from = format!("{ms}-{}", query.after + 1);
        let size = page_size(query.limit);
        let (mut page, mut room) = (none, PageRoom::new(size));
        // Most entries hold several events: few are asked for first, more where that was not enough.
        let most = size + 1 + MARK as usize;
        let mut part = most / 8 + 2;
        loop {
            let mut args = ScriptArgs::new();
            args.text(&run).text(&from).number(part).number(PAGE_BYTES);
            let mut answer = shard.call(&script::EVENTS, [&args]).await?;
            let more = text(answer.rest.next().unwrap_or_default())? == "1";
            let entries = log::read(key, &row.flow, answer.rest.next().unwrap_or_default())?;
            for event in entries.events.into_iter().filter(|event| query.matches(event)) {
                if !room.take(event.data.as_ref()) {
                    page.more = true;
                    return Ok(page);
                }
                page.events.push(event);
            }
            match entries.last {
                Some(last) if more => from = format!("({last}"),
                _ => return Ok(page),
            }
            part = (part * 2).min(most);
        }
    }

    /// The digests of a run's reports as its log has them, and the version of the run that they hold for.
    pub(crate) async fn digest(&self, key: &RunKey) -> Result<Option<(u64, ReportDigests)>, StoreError> {
        let run = names::run(key);
        let shard = self.shard(&run);
        let mut asked = redis::cmd("GET");
        asked.arg(shard.key(&format!("run:{run}")));
        let Some(row) = row::read(key, shard.ask(&asked).await?)? else { return Ok(None) };
        let mut query = EventQuery { kinds: ReportDigests::KINDS.to_vec(), ..EventQuery::default() };
        let mut digests = ReportDigests::default();
        loop {
            let page = self.page_of_events(key, &query).await?;
            page.events.iter().for_each(|event| digests.note_event(event));
            match page.events.last() {
                Some(last) if page.more => query.after = last.seq,
                _ => return Ok(Some((row.version, digests))),
            }
        }
    }

    pub(crate) async fn reports_of(&self, key: &RunKey) -> Result<Option<ReportDigests>, StoreError> {
        let run = names::run(key);
        let shard = self.shard(&run);
        let mut asked = redis::cmd("GET");
        asked.arg(shard.key(&format!("reports:{run}")));
        let Some(found) = bytes(shard.ask(&asked).await?)? else { return Ok(None) };
        let digests = ReportDigests::decode(&found);
        digests.map(Some).map_err(|error| StoreError::Damaged(error.to_string()))
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
                rows.push(JobField::read(&found)?.row(job));
            }
        }
        rows.sort_by_key(|row: &JobRow| row.key);
        Ok(rows)
    }
}
