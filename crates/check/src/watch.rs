//! A checker that sits next to a store and sees every call that changes it.
//!
//! It keeps its own ledger: where each log ended, which jobs the commits so far leave, who holds which lease. Each call is
//! compared with the ledger before it's entered, and the store with the ledger afterwards. Only the runs that a call touches
//! are checked, and only the new part of their logs; [`Watch::end`] checks everything again.
//!
//! If a store is rolled back to an earlier moment, continue with a clone of the watch from that moment.

mod commit;
mod lease;
mod rest;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use flowline_core::{Event, RunKey, Tenant, Time};
use flowline_store::{Append, AppendError, JobKey, JobState, NewJob, ReceiptStatus, RunRow, Token};

use crate::Invariant::{I3, I4, I6, I7, I8, I12, I15};
use crate::flow::FlowMap;
use crate::look::{check_jobs, check_pinned, check_receipts, check_row, check_state};
use crate::source::StoreSnapshot;
use crate::violation::{Checker, Findings, Subject, Violation};
use crate::walk::Walk;

/// What the checker has seen so far.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    checker: Checker,
    flows: BTreeMap<(Tenant, Arc<str>), Arc<FlowMap>>,
    runs: BTreeMap<RunKey, Followed>,
    paused: BTreeSet<(Tenant, Arc<str>)>,
    tenants: BTreeSet<Tenant>,
}

/// A run as the calls so far leave it.
#[derive(Debug, Clone)]
struct Followed {
    flow: Arc<FlowMap>,
    definition: Arc<str>,
    walk: Walk,
    version: u64,
    /// A digest of each event, in order.
    digests: Vec<u64>,
    jobs: BTreeMap<JobKey, KnownJob>,
    /// Every attempt that ever had a job.
    attempts: BTreeSet<(JobKey, u32)>,
    /// The last status of each receipt.
    receipts: BTreeMap<u32, ReceiptStatus>,
    trimmed: bool,
}

#[derive(Debug, Clone)]
struct KnownJob {
    attempt: u32,
    due: Time,
    held: bool,
    queue: Arc<str>,
    lease: Option<KnownLease>,
}

#[derive(Debug, Clone)]
struct KnownLease {
    token: Token,
    worker: Arc<str>,
    expires: Time,
    released: bool,
}

impl KnownJob {
    fn new(job: &NewJob) -> KnownJob {
        KnownJob {
            attempt: job.attempt,
            due: job.due,
            held: job.held,
            queue: job.lane.queue.clone(),
            lease: None,
        }
    }

    fn leased_with(&self, attempt: u32, token: Token) -> Option<&KnownLease> {
        self.lease.as_ref().filter(|lease| self.attempt == attempt && lease.token == token)
    }
}

impl Watch {
    pub fn new(checker: Checker) -> Watch {
        Watch { checker, ..Watch::default() }
    }

    /// Lines were appended to the log of a running attempt, or refused.
    pub fn appended(
        &mut self,
        source: &dyn StoreSnapshot,
        append: &Append,
        answer: &Result<u32, AppendError>,
    ) -> Vec<Violation> {
        let mut found = self.checker.findings();
        let Some(run) = self.runs.get_mut(&append.run) else { return Vec::new() };
        if answer.is_ok() {
            let job = run.jobs.get(&append.key);
            if job.and_then(|job| job.leased_with(append.attempt, append.token)).is_none() {
                let (attempt, key) = (append.attempt, append.key);
                let message =
                    format!("lines of attempt {attempt} of {key:?} were accepted with a stale token");
                found.call(I7, message);
            }
        }
        let most = answer.as_ref().map_or(0, |_| append.lines.len());
        let new = run.read_on(source, &append.run, &mut found);
        if new > most {
            found.call(I8, format!("an append of {most} lines wrote {new} events"));
        }
        self.compare(source, &append.run, &mut found);
        found.of_run(&append.run)
    }

    /// A queue was paused or resumed.
    pub fn queue_paused(&mut self, tenant: &Tenant, queue: &str, paused: bool) {
        let key = (tenant.clone(), Arc::from(queue));
        match paused {
            true => self.paused.insert(key),
            false => self.paused.remove(&key),
        };
    }

    fn flow(&mut self, source: &dyn StoreSnapshot, tenant: &Tenant, hash: &Arc<str>) -> Option<Arc<FlowMap>> {
        let key = (tenant.clone(), hash.clone());
        if let Some(flow) = self.flows.get(&key) {
            return Some(flow.clone());
        }
        let flow = Arc::new(FlowMap::read(hash, &source.definition(tenant, hash)?).ok()?);
        self.flows.insert(key, flow.clone());
        Some(flow)
    }

    /// Compares what the store says about a run with the ledger.
    fn compare(&mut self, source: &dyn StoreSnapshot, key: &RunKey, found: &mut Findings) {
        if let Some(run) = self.runs.get_mut(key).filter(|run| run.walk.machine.is_some()) {
            run.follow_receipts(source, key, found);
        }
        let Some(run) = self.runs.get(key) else { return };
        let Some(row) = source.row(key) else {
            return found.say(I3, Subject::Row, "the run is gone");
        };
        if row.version != run.version {
            let versions = (row.version, run.version);
            let message =
                format!("the row is at version {}, but the commits are at {}", versions.0, versions.1);
            found.say(I8, Subject::Row, message);
        }
        if row.definition != run.definition {
            let message =
                format!("the run was pinned to {} and is now pinned to {}", run.definition, row.definition);
            found.say(I12, Subject::Row, message);
        }
        check_pinned(&row, &run.flow, found);
        check_row(&row, &run.walk, &run.flow, found);
        check_state(&source.state(key), &run.walk, &run.flow, found);
        self.compare_jobs(source, key, run, found);
    }

    /// Checks that the jobs in the store are the ones that the commits so far leave, and the ones that the log asks for.
    fn compare_jobs(&self, source: &dyn StoreSnapshot, key: &RunKey, run: &Followed, found: &mut Findings) {
        let jobs = source.jobs(key);
        check_jobs(&jobs, &run.walk, &run.flow, found);
        for job in &jobs {
            let known = run.jobs.get(&job.key);
            let alike = known.is_some_and(|known| {
                let state = match &known.lease {
                    Some(_) => JobState::Leased,
                    None if known.held => JobState::Held,
                    None => JobState::Waiting,
                };
                known.attempt == job.attempt && known.due == job.due && state == job.state
            });
            if !alike {
                let message =
                    format!("the store has {job:?}, but after the calls so far it should be {known:?}");
                found.jobs(I15, message);
            }
        }
        for (key, known) in run.jobs.iter().filter(|(key, _)| !jobs.iter().any(|job| job.key == **key)) {
            let message =
                format!("the store has no job {key:?}, but after the calls so far there should be {known:?}");
            found.jobs(I15, message);
        }
    }
}

impl Followed {
    fn new(key: &RunKey, row: &RunRow, flow: Arc<FlowMap>) -> Followed {
        Followed {
            walk: Walk::new(key.clone(), row.flow_name.clone(), &flow),
            definition: row.definition.clone(),
            flow,
            version: 0,
            digests: Vec::new(),
            jobs: BTreeMap::new(),
            attempts: BTreeSet::new(),
            receipts: BTreeMap::new(),
            trimmed: false,
        }
    }

    /// Checks that receipts match the log, and that their status only moves forward.
    fn follow_receipts(&mut self, source: &dyn StoreSnapshot, key: &RunKey, found: &mut Findings) {
        let receipts = source.receipts(key);
        check_receipts(&receipts, &self.walk, found);
        for receipt in receipts {
            let (number, now) = (receipt.number, receipt.status);
            let then = self.receipts.insert(number, now);
            if then.is_some_and(|then| now < then || then.is_end() && now != then) {
                let message = format!("the receipt of event {number} was {then:?} and is now {now:?}");
                found.say(I6, Subject::Receipts, message);
            }
        }
    }

    /// Walks the new part of the log, and returns the number of new events.
    fn read_on(&mut self, source: &dyn StoreSnapshot, key: &RunKey, found: &mut Findings) -> usize {
        let events = source.events(key, self.walk.seq);
        for event in &events {
            self.walk.event(&self.flow, event, found);
            self.digests.push(digest(event));
        }
        events.len()
    }

    /// Walks the whole log again. Earlier events must be unchanged.
    fn reread(&self, source: &dyn StoreSnapshot, key: &RunKey, found: &mut Findings) {
        let events = source.events(key, 0);
        let changed = events.iter().map(digest).zip(&self.digests).position(|(now, then)| now != *then);
        if let Some(at) = changed {
            found.log(I4, format!("event {} has changed", events[at].seq));
        }
        if events.len() != self.digests.len() {
            let counts = (events.len(), self.digests.len());
            found.log(I4, format!("the log has {} events, but had {}", counts.0, counts.1));
        }
    }
}

fn digest(event: &Event) -> u64 {
    let mut hasher = DefaultHasher::new();
    (event.seq, event.ts, event.kind, &event.id, &event.step_name, event.attempt).hash(&mut hasher);
    event.data.as_ref().map(|data| data.get()).hash(&mut hasher);
    hasher.finish()
}
