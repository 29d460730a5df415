//! Forgetting what is old, a little at a time.
//!
//! A run is trimmed or removed in one small write that makes its events invisible and enters it in `purges`; the events
//! themselves go afterwards, some thousand per transaction, so that other writers never wait long for a large run. For the
//! same reason the digests of a run's reports are made by a reader, before it is trimmed.

use std::time::Duration;

use flowline_core::{RunKey, Status, Time};
use flowline_store::row::Retention;
use rusqlite::{OptionalExtension, params};

use super::Writer;
use crate::code;
use crate::fault::Fault;
use crate::read::events::Digested;

/// Runs marked in one transaction.
pub(crate) const RUNS: usize = 64;
/// Events deleted in one transaction: a few milliseconds.
const EVENTS: usize = 2_000;
/// Free pages given back in one transaction.
const PAGES: usize = 512;
/// Pages that stay free for what comes next: 4 MiB.
const SPARE_PAGES: i64 = 1_024;

/// Whether there is more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    Yes,
    No,
}

impl Writer<'_> {
    /// Removes some of the runs that are due, at most `limit`, those that ended first before others. Says how many.
    pub(crate) fn remove_due(&mut self, policy: Retention, limit: usize) -> Result<u64, Fault> {
        let kept = self.kept(policy)?;
        let runs: Vec<_> = kept.iter().map(|(code, kept)| (code.as_deref(), kept.runs)).collect();
        let due = self.due(&runs, &[0, 1], limit.min(RUNS))?;
        for id in &due {
            self.remove_run(*id)?;
        }
        Ok(due.len() as u64)
    }

    /// Some of the runs whose events are due, at most `limit`, those that ended first before others.
    pub(crate) fn due_to_trim(&mut self, policy: Retention, limit: usize) -> Result<Vec<i64>, Fault> {
        let kept = self.kept(policy)?;
        let events: Vec<_> = kept.iter().map(|(code, kept)| (code.as_deref(), kept.events)).collect();
        self.due(&events, &[0], limit.min(RUNS))
    }

    /// Trims those of these runs that stand where their reports were read. Says how many.
    pub(crate) fn trim(&mut self, runs: &[Digested]) -> Result<u64, Fault> {
        let mut trimmed = 0;
        for Digested { run, version, digests } in runs {
            let mark = "update progress set events_trimmed = 1, trimmed_to = seq
                where run = ?1 and version = ?2 and events_trimmed = 0";
            self.recall(*run)?;
            if self.conn.prepare_cached(mark)?.execute(params![run, version])? == 0 {
                continue;
            }
            let keep = "insert or replace into reports (run, digests) values (?1, ?2)";
            self.conn.prepare_cached(keep)?.execute(params![run, digests])?;
            let last_seq = self.run(*run)?.seq as i64;
            self.purge_later(*run, last_seq)?;
            trimmed += 1;
        }
        Ok(trimmed)
    }

    /// Removes those of these runs that have ended, and says which.
    pub(crate) fn delete_runs(&mut self, runs: &[RunKey]) -> Result<Vec<bool>, Fault> {
        let mut done = Vec::with_capacity(runs.len());
        for run in runs {
            let id = self.find(run)?;
            let ended = match id {
                Some(id) => self.run(id)?.status.is_terminal(),
                None => false,
            };
            if let Some(id) = id.filter(|_| ended) {
                self.remove_run(id)?;
            }
            done.push(ended);
        }
        Ok(done)
    }

    /// Deletes key-value state, documents and locks that are past their time.
    pub(crate) fn expire(&mut self) -> Result<More, Fault> {
        let now = self.clock.now().millis();
        let values = "delete from kv where (scope, owner, key) in
            (select scope, owner, key from kv where expires <= ?1 limit ?2)";
        let documents = "delete from documents where (collection, id) in
            (select collection, id from documents where expires <= ?1 limit ?2)";
        let mut more = More::No;
        for sql in [values, documents] {
            if self.conn.prepare_cached(sql)?.execute(params![now, EVENTS as i64])? == EVENTS {
                more = More::Yes;
            }
        }
        self.conn.execute("delete from locks where until <= ?1", [now])?;
        Ok(more)
    }

    /// Deletes events of runs that were trimmed or removed.
    pub(crate) fn purge(&mut self) -> Result<More, Fault> {
        let first = "select run, last_seq from purges order by run limit 1";
        let first = self
            .conn
            .prepare_cached(first)?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((id, last_seq)) = first else { return Ok(More::No) };
        self.write_slots()?;
        if self.purge_some(id, last_seq)? == More::No {
            self.conn.execute("delete from purges where run = ?1", [id])?;
        }
        Ok(More::Yes)
    }

    fn purge_some(&mut self, id: i64, last_seq: i64) -> Result<More, Fault> {
        let parts = "select n, count from log where run = ?1 and first_seq <= ?2 order by first_seq limit ?3";
        let mut parts = self.conn.prepare_cached(parts)?;
        let mut parts = parts.query(params![id, last_seq, EVENTS as i64])?;
        let mut delete = self.conn.prepare_cached("delete from log where n = ?1")?;
        let mut found: Vec<(i64, i64)> = Vec::new();
        while let Some(row) = parts.next()? {
            found.push((row.get(0)?, row.get(1)?));
        }
        drop(parts);
        let mut gone = 0;
        for (n, count) in &found {
            delete.execute([n])?;
            gone += *count as usize;
            if gone >= EVENTS {
                return Ok(More::Yes);
            }
        }
        self.conn.prepare_cached("delete from slots where run = ?1")?.execute([id])?;
        Ok(More::No)
    }

    /// Gives free pages back to the file system.
    pub(crate) fn shrink(&mut self) -> Result<More, Fault> {
        let free: i64 = self.conn.query_row("pragma freelist_count", [], |row| row.get(0))?;
        if free <= SPARE_PAGES {
            return Ok(More::No);
        }
        let mut statement = self.conn.prepare(&format!("pragma incremental_vacuum({PAGES})"))?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        Ok(More::Yes)
    }

    fn remove_run(&mut self, id: i64) -> Result<(), Fault> {
        self.recall(id)?;
        let run = self.run(id)?;
        let (flow, status, state) = (run.flow, run.status, run.machine_state.clone());
        self.count(flow, status, state, -1);
        self.live.forget(id);
        let labels = "delete from labels where run = ?1 and (tenant, key, value) in (select runs.tenant, l.key, l.value
            from runs, json_each(runs.labels) l where runs.id = ?1)";
        for sql in [
            labels,
            "delete from jobs where run = ?1",
            "delete from leases where run = ?1",
            "delete from receipts where run = ?1",
            "delete from reports where run = ?1",
            "delete from kv where scope = 0 and owner = ?1",
            "delete from progress where run = ?1",
            "delete from runs where id = ?1",
        ] {
            self.conn.prepare_cached(sql)?.execute([id])?;
        }
        self.purge_later(id, i64::MAX)
    }

    fn purge_later(&mut self, id: i64, last_seq: i64) -> Result<(), Fault> {
        let purge = "insert or replace into purges (run, last_seq) values (?1, ?2)";
        self.conn.prepare_cached(purge)?.execute([id, last_seq])?;
        // Numbers of what goes are never given again.
        let mut cell =
            self.conn.prepare_cached("insert or replace into cells (name, value) values (?1, ?2)")?;
        cell.execute(params!["last_event", self.last.event])?;
        cell.execute(params!["last_run", self.last.run])?;
        Ok(())
    }

    /// What holds for ended runs, by the `retain` that they have.
    fn kept(&self, policy: Retention) -> Result<Vec<(Option<String>, Retention)>, Fault> {
        let mut kept = vec![(None, policy.of(None))];
        let mut statement = self.conn.prepare_cached(RETAINS)?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let text: String = row.get(0)?;
            let own = code::retain(&text)?;
            kept.push((Some(text), policy.of(Some(own))));
        }
        Ok(kept)
    }

    /// Up to `limit` runs that ended longer ago than they are kept, of those whose events are gone (1) or there (0).
    fn due(
        &self,
        kept: &[(Option<&str>, Duration)],
        trimmed: &[i64],
        limit: usize,
    ) -> Result<Vec<i64>, Fault> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let now = self.clock.now();
        let ended = code::status_number(Status::Completed);
        let mut statement = self.conn.prepare_cached(DUE)?;
        let mut due: Vec<(i64, i64)> = Vec::new();
        for (retain, kept) in kept {
            for trimmed in trimmed {
                let end = before(now, *kept).millis();
                let found = statement
                    .query_map(params![retain, trimmed, end, ended, limit as i64], |row| {
                        Ok((row.get(0)?, row.get(1)?))
                    })?;
                due.extend(found.collect::<Result<Vec<_>, _>>()?);
            }
        }
        due.sort_unstable();
        Ok(due.into_iter().take(limit).map(|(_, run)| run).collect())
    }
}

/// The different `retain` of ended runs: a step in the index for each, not for each run.
pub(crate) const RETAINS: &str = "
    with recursive own(retain) as (
        select min(retain) from progress where completed_at is not null and retain > ''
        union all
        select (select min(p.retain) from progress p where p.completed_at is not null and p.retain > own.retain)
            from own where own.retain is not null)
    select retain from own where retain is not null";

pub(crate) const DUE: &str = "
    select completed_at, run from progress where retain is ?1 and events_trimmed = ?2 and completed_at is not null
        and completed_at <= ?3 and status >= ?4 order by completed_at, run limit ?5";

/// What ended by this moment is older than `kept`.
fn before(now: Time, kept: Duration) -> Time {
    let kept = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
    Time::from_millis(now.millis().saturating_sub(kept))
}
