//! Forgetting what is old, and mending what reconciling found.

use std::collections::BTreeMap;
use std::time::Duration;

use flowline_core::definition::Retain;
use flowline_core::report::ReportDigests;
use flowline_core::{RunKey, Tenant, Time};

use super::rows::{EndedRuns, Memory, counter};
use crate::commit::CommitError;
use crate::row::{Repair, Retained, Retention};
use crate::rule;
use crate::state::StateSpace;

impl Memory {
    /// Removes runs first, then events; those that ended first go first. Key-value state, locks and documents past
    /// their time go along.
    pub fn retain(&mut self, now: Time, policy: Retention, limit: usize) -> Retained {
        let mut done = Retained::default();
        for run in self.due(&self.ended, now, |own| policy.of(own).runs, limit) {
            self.remove_run(&run);
            done.removed += 1;
        }
        let left = limit - done.removed as usize;
        for run in self.due(&self.untrimmed, now, |own| policy.of(own).events, left) {
            self.trim(&run);
            done.trimmed += 1;
        }
        self.states.retain(|_, values| {
            values.retain(|_, value| value.live(now));
            !values.is_empty()
        });
        self.locks.retain(|_, held| now < held.until);
        self.forget_expired_documents(now);
        done
    }

    pub fn reports(&self, run: &RunKey) -> Option<ReportDigests> {
        self.runs.get(run)?.reports.clone()
    }

    pub fn delete_runs(&mut self, runs: &[RunKey]) -> Vec<bool> {
        let delete = |run: &RunKey| {
            let ended = self.runs.get(run).is_some_and(|run| run.row.status.is_terminal());
            if ended {
                self.remove_run(run);
            }
            ended
        };
        runs.iter().map(delete).collect()
    }

    pub fn repair(&mut self, now: Time, repair: Repair) -> Result<(), CommitError> {
        match repair {
            Repair::Row {
                run,
                version,
                state,
                index,
                created_at,
                started_at,
                completed_at,
                events,
                seen,
            } => {
                self.check_version(&run, version)?;
                if self.runs.get(&run).is_some_and(|found| found.row.events != seen) {
                    return Err(CommitError::Conflict { expected: version, found: Some(version) });
                }
                self.unlist(&run);
                if let Some(found) = self.runs.get_mut(&run) {
                    found.row.created_at = created_at;
                    found.row.started_at = started_at;
                    found.row.completed_at = completed_at;
                    found.row.duration = completed_at.map(|end| end.since(created_at).as_millis() as u64);
                    found.row.events = events;
                    // The log says that there is none; a commit's `None` would keep it.
                    found.row.failure = None;
                }
                self.advance(&run, state, index);
                self.list(&run);
            }
            Repair::Events { run, version, events, state, index } => {
                self.check_version(&run, version)?;
                self.unlist(&run);
                let ts = self.date(now, &run);
                self.push_events(&run, ts, events);
                self.advance(&run, state, index);
                self.list(&run);
            }
            Repair::Jobs { run, version, add, remove } => {
                self.check_version(&run, version)?;
                let changes = rule::repair(&add, &remove, self.jobs_of(&run))?;
                self.change_jobs(&run, changes);
                if let Some(found) = self.runs.get_mut(&run) {
                    found.row.version += 1;
                }
            }
            Repair::Counters { tenant } => self.recount(&tenant),
        }
        Ok(())
    }

    fn check_version(&self, run: &RunKey, expected: u64) -> Result<(), CommitError> {
        rule::check_version(expected, self.runs.get(run).map(|run| run.row.version))
    }

    fn recount(&mut self, tenant: &Tenant) {
        self.counters.retain(|(of, ..), _| of != tenant);
        let mut counts = BTreeMap::new();
        for run in self.runs.values().filter(|run| run.row.tenant == *tenant) {
            *counts.entry(counter(&run.row)).or_default() += 1;
        }
        self.counters.append(&mut counts);
    }

    /// Runs that ended longer ago than they are kept.
    fn due(
        &self,
        index: &EndedRuns,
        now: Time,
        kept: impl Fn(Option<Retain>) -> Duration,
        limit: usize,
    ) -> Vec<RunKey> {
        let mut due = Vec::new();
        for (own, ended) in index {
            let kept = kept(*own);
            due.extend(ended.iter().take_while(|(end, _)| *end + kept <= now).take(limit));
        }
        due.sort();
        due.iter().take(limit).filter_map(|(_, number)| self.by_number.get(number).cloned()).collect()
    }

    fn trim(&mut self, key: &RunKey) {
        self.unlist(key);
        if let Some(run) = self.runs.get_mut(key) {
            run.reports = Some(ReportDigests::of(run.log.values().map(|logged| &logged.event)));
            for logged in std::mem::take(&mut run.log).into_values() {
                self.feed.remove(&logged.number);
            }
            run.slots.clear();
            run.row.events_trimmed = true;
        }
        self.list(key);
    }

    fn remove_run(&mut self, key: &RunKey) {
        let jobs = self.runs.get(key).map(|run| run.jobs.keys().copied().collect::<Vec<_>>());
        for job in jobs.into_iter().flatten() {
            self.take_job(key, job);
        }
        self.states.remove(&StateSpace::of_run(key));
        self.forget_receipts(key);
        self.unlist(key);
        for logged in self.runs.remove(key).into_iter().flat_map(|run| run.log.into_values()) {
            self.feed.remove(&logged.number);
        }
    }
}
