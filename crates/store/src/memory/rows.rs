//! What the in-memory store keeps, and the moves that keep its indexes true.
//!
//! Invariant: a job is in exactly one index. Waiting steps are in their lane, waiting timers among the timers, leased
//! jobs among the leases by expiry, held jobs in none. Every change of a job goes through [`Memory::put_job`] and
//! [`Memory::take_job`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_core::definition::Retain;
use flowline_core::event::PayloadSlot;
use flowline_core::report::ReportDigests;
use flowline_core::{Event, NewEvent, RunKey, Status, Tenant, Time};

use super::receipts::ReceiptsOf;
use crate::document::Document;
use crate::job::{JobKey, Lane, Token};
use crate::receipt::{Receipt, ReceiptPlace};
use crate::row::{CounterKey, RunRow, StoredDefinition};
use crate::rule::{JobChange, Jobs, StoredJob};
use crate::state::{StateSpace, StateValue};

/// The content of an in-memory store. Its methods are the contract's verbs without waiting: time is an argument, and
/// nothing is random, so that a simulator can clone it, roll back to the clone and replay.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    pub(super) runs: BTreeMap<RunKey, StoredRun>,
    /// Runs in the order of their creation, by each filter that an index answers.
    pub(super) listed: BTreeSet<(Listing, u64)>,
    pub(super) by_number: BTreeMap<u64, RunKey>,
    pub(super) counters: BTreeMap<CounterKey, u64>,
    pub(super) listed_receipts: BTreeSet<(ReceiptsOf, ReceiptPlace)>,
    /// Ended runs; the first only while their events are there.
    pub(super) untrimmed: EndedRuns,
    pub(super) ended: EndedRuns,

    pub(super) lanes: BTreeMap<LaneKey, LaneJobs>,
    pub(super) timers: BTreeMap<(Time, u64), JobAt>,
    pub(super) leases: BTreeMap<(Time, u64), JobAt>,
    pub(super) paused: BTreeSet<(Tenant, Arc<str>)>,
    /// The lane that the last claim served last: the next one begins after it.
    pub(super) last_lane: Option<LaneKey>,

    /// Every event kept, by the number that it got among all.
    pub(super) feed: BTreeMap<u64, (RunKey, u64)>,
    pub(super) states: BTreeMap<StateSpace, BTreeMap<String, StateValue>>,
    pub(super) definitions: BTreeMap<(Tenant, Arc<str>), (u64, StoredDefinition)>,
    pub(super) locks: BTreeMap<(Tenant, String), Lock>,
    /// When the last lock was granted.
    pub(super) last_lock: Time,
    /// By collection and id.
    pub(super) documents: BTreeMap<String, BTreeMap<String, Document>>,
    /// A move into it is under way.
    pub(super) filling: bool,

    pub(super) last_run: u64,
    pub(super) last_job: u64,
    pub(super) last_event: u64,
    pub(super) last_definition: u64,
}

/// Ended runs by what their definition says of how long they are kept, then by their end.
pub(super) type EndedRuns = BTreeMap<Option<Retain>, BTreeSet<(Time, u64)>>;

/// A list of runs that is kept ready.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listing {
    pub(super) tenant: Tenant,
    pub(super) flow: Option<Arc<str>>,
    pub(super) status: Option<Status>,
    /// Only with a flow, and only of machines.
    pub(super) state: Option<Arc<str>>,
}

#[derive(Debug, Clone)]
pub(super) struct StoredRun {
    pub(super) number: u64,
    pub(super) row: RunRow,
    pub(super) state: Vec<u8>,
    /// The date of the last event: the next ones are not dated before it.
    pub(super) last: Time,
    pub(super) log: BTreeMap<u64, LoggedEvent>,
    /// What is left of a log that was trimmed.
    pub(super) reports: Option<ReportDigests>,
    pub(super) slots: BTreeMap<PayloadSlot, u64>,
    pub(super) jobs: Jobs,
    pub(super) receipts: BTreeMap<u32, Receipt>,
    /// The numbers of receipts by their events' ids.
    pub(super) received: BTreeMap<Arc<str>, u32>,
}

#[derive(Debug, Clone)]
pub(super) struct LoggedEvent {
    pub(super) event: Event,
    /// Its number in the feed.
    pub(super) number: u64,
}

pub(super) type JobAt = (RunKey, JobKey);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LaneKey {
    pub(super) tenant: Tenant,
    pub(super) lane: Lane,
}

impl StoredRun {
    /// A run without log, jobs and receipts.
    pub(super) fn new(number: u64, row: RunRow, state: Vec<u8>, last: Time) -> StoredRun {
        StoredRun {
            number,
            row,
            state,
            last,
            log: BTreeMap::new(),
            reports: None,
            slots: BTreeMap::new(),
            jobs: Jobs::new(),
            receipts: BTreeMap::new(),
            received: BTreeMap::new(),
        }
    }
}

/// The jobs of a lane. Gone with its last job.
#[derive(Debug, Clone, Default)]
pub(super) struct LaneJobs {
    /// By rank of priority.
    pub(super) waiting: [BTreeMap<(Time, u64), JobAt>; 4],
    pub(super) held: u64,
    pub(super) leased: u64,
}

impl LaneJobs {
    fn is_empty(&self) -> bool {
        self.held == 0 && self.leased == 0 && self.waiting.iter().all(BTreeMap::is_empty)
    }
}

/// A named lock, held or run out.
#[derive(Debug, Clone)]
pub(super) struct Lock {
    pub(super) owner: String,
    pub(super) token: Token,
    pub(super) since: Time,
    pub(super) until: Time,
}

impl Memory {
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Puts a job into its run and into the one index that it belongs to.
    pub(super) fn put_job(&mut self, run: &RunKey, key: JobKey, job: StoredJob) {
        let Some(owner) = self.runs.get_mut(run) else { return };
        let at = (run.clone(), key);
        if let JobKey::Step(_) = key {
            let lane = LaneKey { tenant: run.tenant.clone(), lane: job.lane.clone() };
            let lane = self.lanes.entry(lane).or_default();
            match (&job.lease, job.held) {
                (Some(_), _) => lane.leased += 1,
                (None, true) => lane.held += 1,
                (None, false) => {
                    lane.waiting[job.priority as usize].insert((job.due, job.number), at.clone());
                }
            }
        } else if job.lease.is_none() && !job.held {
            self.timers.insert((job.due, job.number), at.clone());
        }
        if let Some(lease) = &job.lease {
            self.leases.insert((lease.expires, job.number), at);
        }
        owner.jobs.insert(key, job);
    }

    /// Takes a job out of its run and out of its index.
    pub(super) fn take_job(&mut self, run: &RunKey, key: JobKey) -> Option<StoredJob> {
        let job = self.runs.get_mut(run)?.jobs.remove(&key)?;
        if let JobKey::Step(_) = key {
            let lane_key = LaneKey { tenant: run.tenant.clone(), lane: job.lane.clone() };
            if let Some(lane) = self.lanes.get_mut(&lane_key) {
                match (&job.lease, job.held) {
                    (Some(_), _) => lane.leased -= 1,
                    (None, true) => lane.held -= 1,
                    (None, false) => {
                        lane.waiting[job.priority as usize].remove(&(job.due, job.number));
                    }
                }
                if lane.is_empty() {
                    self.lanes.remove(&lane_key);
                }
            }
        } else {
            self.timers.remove(&(job.due, job.number));
        }
        if let Some(lease) = &job.lease {
            self.leases.remove(&(lease.expires, job.number));
        }
        Some(job)
    }

    /// Changes a job where it is, indexes included. True where it was there.
    pub(super) fn change_job(
        &mut self,
        run: &RunKey,
        key: JobKey,
        change: impl FnOnce(&mut StoredJob),
    ) -> bool {
        let Some(mut job) = self.take_job(run, key) else { return false };
        change(&mut job);
        self.put_job(run, key, job);
        true
    }

    /// Writes what the rule for jobs says.
    pub(super) fn change_jobs(&mut self, run: &RunKey, changes: Vec<JobChange<'_>>) {
        for change in changes {
            match change {
                JobChange::Remove(key) => _ = self.take_job(run, key),
                JobChange::AddLines(key, lines) => self.add_lines(run, key, lines),
                JobChange::Hold(key) => _ = self.change_job(run, key, |job| job.held = true),
                JobChange::Release(key) => _ = self.change_job(run, key, |job| job.held = false),
                JobChange::Add(job, lease) => {
                    self.last_job += 1;
                    let stored = StoredJob::new(self.last_job, job, job.lane.clone(), lease);
                    self.put_job(run, job.key, stored);
                }
            }
        }
    }

    pub(super) fn add_lines(&mut self, run: &RunKey, key: JobKey, lines: u32) {
        let job = self.runs.get_mut(run).and_then(|run| run.jobs.get_mut(&key));
        if let Some(lease) = job.and_then(|job| job.lease.as_mut()) {
            lease.lines += lines;
        }
    }

    pub(super) fn job(&self, run: &RunKey, key: JobKey) -> Option<&StoredJob> {
        self.jobs_of(run).get(&key)
    }

    /// The jobs of a run; none where there is no such run.
    pub(super) fn jobs_of(&self, run: &RunKey) -> &Jobs {
        static NONE: Jobs = Jobs::new();
        self.runs.get(run).map_or(&NONE, |run| &run.jobs)
    }

    /// Numbers and dates events, and puts them into the log and the feed.
    pub(super) fn push_events(&mut self, key: &RunKey, ts: Time, events: impl IntoIterator<Item = NewEvent>) {
        let Some(run) = self.runs.get_mut(key) else { return };
        for new in events {
            run.row.events += 1;
            run.last = ts;
            let seq = run.row.events;
            if let Some(began) = new.begins(ts) {
                run.row.started_at.get_or_insert(began);
            }
            let new = new.lasting(run.row.created_at, ts);
            if new.kind.is_terminal() {
                run.row.started_at.get_or_insert(run.row.created_at);
                run.row.completed_at = Some(ts);
                run.row.duration = Some(ts.since(run.row.created_at).as_millis() as u64);
            }
            if let Some(slot) = new.slot {
                run.slots.entry(slot).or_insert(seq);
            }
            self.last_event += 1;
            self.feed.insert(self.last_event, (key.clone(), seq));
            let event = Event::stored(&key.run, &run.row.flow_name, &key.tenant, seq, ts.millis(), new);
            run.log.insert(seq, LoggedEvent { event, number: self.last_event });
        }
    }

    /// Enters a run into the lists, counters and ended runs that its row belongs to.
    pub(super) fn list(&mut self, key: &RunKey) {
        let Some(run) = self.runs.get(key) else { return };
        self.by_number.insert(run.number, key.clone());
        for listing in listings(&run.row) {
            self.listed.insert((listing, run.number));
        }
        *self.counters.entry(counter(&run.row)).or_default() += 1;
        if let Some(end) = ended_at(&run.row) {
            let at = (end, run.number);
            self.ended.entry(run.row.retain).or_default().insert(at);
            if !run.row.events_trimmed {
                self.untrimmed.entry(run.row.retain).or_default().insert(at);
            }
        }
    }

    /// Takes a run out of all that [`Memory::list`] entered it into. Comes before any change of its row.
    pub(super) fn unlist(&mut self, key: &RunKey) {
        let Some(run) = self.runs.get(key) else { return };
        self.by_number.remove(&run.number);
        for listing in listings(&run.row) {
            self.listed.remove(&(listing, run.number));
        }
        if let Some(count) = self.counters.get_mut(&counter(&run.row)) {
            *count -= 1;
            if *count == 0 {
                self.counters.remove(&counter(&run.row));
            }
        }
        if let Some(end) = ended_at(&run.row) {
            for index in [&mut self.ended, &mut self.untrimmed] {
                if let Entry::Occupied(mut alike) = index.entry(run.row.retain) {
                    alike.get_mut().remove(&(end, run.number));
                    if alike.get().is_empty() {
                        alike.remove();
                    }
                }
            }
        }
    }
}

pub(super) fn counter(row: &RunRow) -> CounterKey {
    (row.tenant.clone(), row.flow_name.clone(), row.status, row.state.clone())
}

fn ended_at(row: &RunRow) -> Option<Time> {
    row.completed_at.filter(|_| row.status.is_terminal())
}

fn listings(row: &RunRow) -> impl Iterator<Item = Listing> + use<> {
    let (tenant, flow, status) = (row.tenant.clone(), row.flow_name.clone(), row.status);
    let of = move |by_flow: bool, by_status: bool, state: Option<Arc<str>>| Listing {
        tenant: tenant.clone(),
        flow: by_flow.then(|| flow.clone()),
        status: by_status.then_some(status),
        state,
    };
    let plain = [of(false, false, None), of(false, true, None), of(true, false, None), of(true, true, None)];
    let of_state =
        row.state.clone().map(|state| [of(true, false, Some(state.clone())), of(true, true, Some(state))]);
    plain.into_iter().chain(of_state.into_iter().flatten())
}
