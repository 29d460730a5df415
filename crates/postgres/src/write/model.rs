//! The runs of one batch as they were locked, changed in memory by every commit, append and repair of the batch in
//! turn. What differs in the end is written in a few statements (`flush`).
//!
//! Invariant: guards are checked before the first change, so a refused request leaves the model as it was.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use flowline_core::definition::Priority;
use flowline_core::{Json, NewEvent, RunKey, Status, Tenant, Time};
use flowline_store::row::Repair;
use flowline_store::{
    Append, AppendError, Base, Commit, CommitError, Committed, Handoff, Index, JobKey, JobNow, Lane,
    LeaseNow, LeaseUse, NewJob, NewRun, Opened, Others, ReceiptStatus, RunRow, StateChange, StateOwner,
    Token,
};

/// All that a batch works on.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) now: Time,
    pub(super) runs: HashMap<RunKey, Live>,
    pub(super) paused: BTreeSet<(Tenant, String)>,
    /// Definitions that starts of the batch name and that are not stored.
    pub(super) unknown: BTreeSet<(Tenant, Arc<str>)>,
    pub(super) events: Vec<EventRow>,
    pub(super) state: StateWrites,
    pub(super) counts: BTreeMap<Counted, i64>,
    /// By run and number.
    pub(super) receipts: BTreeMap<(i64, u32), ReceiptRow>,
    /// Tenant, key, value and run.
    pub(super) labels: Vec<(Tenant, String, String, i64)>,
    /// The place in the batch of what is applied next.
    pub(super) place: usize,
}

/// What runs are counted by: flow, status and, of machines, state.
pub(super) type Counted = (Tenant, Arc<str>, Status, Option<Arc<str>>);

/// A run of the batch.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub(super) id: i64,
    pub(super) flow: Arc<str>,
    /// The version that is in the table.
    pub(super) base: u64,
    pub(super) version: u64,
    pub(super) seq: u64,
    pub(super) ms: i64,
    pub(super) status: Status,
    pub(super) machine_state: Option<Arc<str>>,
    pub(super) completed_steps: u32,
    pub(super) failed_steps: u32,
    pub(super) retries: u32,
    pub(super) created_at: i64,
    pub(super) started_at: Option<i64>,
    pub(super) completed_at: Option<i64>,
    /// As the columns have them.
    pub(super) failure: (Option<String>, Option<String>),
    /// `None` keeps what is in the table.
    pub(super) state: Option<Vec<u8>>,
    pub(super) changed: bool,
    pub(super) jobs: BTreeMap<JobKey, Job>,
    /// Jobs that are in the table and go.
    pub(super) removed: Vec<(JobKey, Job)>,
}

#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) name: Arc<str>,
    pub(super) attempt: u32,
    pub(super) lane: Lane,
    pub(super) priority: Priority,
    pub(super) due: Time,
    pub(super) held: bool,
    pub(super) lease: Option<Lease>,
    pub(super) stored: Stored,
    /// Of an added job: the place of its commit in the batch, and its own in the commit.
    pub(super) order: (usize, usize),
}

/// How a job stands to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    AsRead,
    Changed,
    Added,
}

#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) token: Token,
    pub(super) worker: Arc<str>,
    pub(super) leased_at: Time,
    pub(super) expires: Time,
    pub(super) lines: u32,
    /// Only known of what is added: a change leaves it as it is.
    pub(super) released: bool,
}

#[derive(Debug)]
pub(super) struct EventRow {
    pub(super) run: i64,
    pub(super) seq: u64,
    pub(super) ms: i64,
    pub(super) event: NewEvent,
}

/// What a batch does to a receipt.
#[derive(Debug)]
pub(super) struct ReceiptRow {
    /// Set where the row is new: its tenant, its event, and when that came.
    pub(super) opened: Option<(Tenant, Opened, i64)>,
    pub(super) status: ReceiptStatus,
    /// `None` keeps what is in the table, here and below.
    pub(super) worker: Option<Arc<str>>,
    pub(super) outcome: Option<Json>,
    /// What is in the table goes before these.
    pub(super) started_at: Option<i64>,
    pub(super) completed_at: Option<i64>,
}

/// A value and its end.
pub(super) type StateValue = (String, Option<i64>);

pub(super) type Owner = (Tenant, StateOwner);

#[derive(Debug, Default)]
pub(super) struct StateWrites {
    pub(super) cleared: BTreeSet<Owner>,
    /// The last word on each key.
    pub(super) keys: BTreeMap<(Owner, String), Option<StateValue>>,
}

impl Model {
    /// A commit on a run that is there. New runs are inserted before; see [`Model::started`].
    pub(super) fn commit(&mut self, commit: &Commit) -> Result<Committed, CommitError> {
        let now = self.now;
        let run = self.runs.get_mut(&commit.run);
        let found = run.as_ref().map(|run| run.version);
        let run = match (&commit.base, run) {
            (Base::New(_), Some(_)) => return Err(CommitError::Exists),
            // Its row could not be inserted, and it was not there to be locked: one of its own guards failed.
            (Base::New(new), None) => return Err(self.unstartable(commit, &new.definition)),
            (Base::Version(expected), Some(run)) if run.version == *expected => run,
            (Base::Version(expected), _) => {
                return Err(CommitError::Conflict { expected: *expected, found });
            }
        };
        run.check(commit, now)?;
        let granted = run.settle(commit, now, &self.paused, self.place);
        let ts = now.max(Time::from_millis(run.ms));
        let first_seq = run.seq + 1;
        run.log(ts, commit.events.iter().cloned(), &mut self.events);
        let before = run.counted(&commit.run.tenant);
        run.advance(&commit.state, &commit.index);
        let (id, version, after) = (run.id, run.version, run.counted(&commit.run.tenant));
        self.count(before, after);
        self.change_receipts(id, &commit.run.tenant, ts, &commit.receipts);
        if commit.clear_state {
            self.clear_state(&commit.run);
        }
        Ok(Committed { version, first_seq, ts, granted })
    }

    /// The rest of a start whose row was just inserted: its jobs and events.
    pub(super) fn started(&mut self, id: i64, commit: &Commit, new: &NewRun) -> Committed {
        let (now, flow) = (self.now, &new.flow);
        let mut run = Live::inserted(id, commit, flow, now);
        let granted = run.settle(commit, now, &self.paused, self.place);
        let (mut seq, ms) = (0, now.millis());
        for event in &commit.events {
            seq += 1;
            self.events.push(EventRow { run: id, seq, ms, event: event.clone() });
        }
        let tenant = &commit.run.tenant;
        *self.counts.entry(run.counted(tenant)).or_default() += 1;
        self.change_receipts(id, tenant, now, &commit.receipts);
        let labels = new.labels.iter();
        self.labels.extend(labels.map(|(key, value)| (tenant.clone(), key.clone(), value.clone(), id)));
        self.runs.insert(commit.run.clone(), run);
        if commit.clear_state {
            self.clear_state(&commit.run);
        }
        Committed { version: 1, first_seq: 1, ts: now, granted }
    }

    pub(super) fn append(&mut self, append: &Append) -> Result<u32, AppendError> {
        let Append { run, key, attempt, token, from_line, lines } = append;
        let now = self.now;
        let stale = AppendError::StaleLease(*key);
        let Some(live) = self.runs.get_mut(run) else { return Err(stale) };
        let lease = live.jobs.get(key).and_then(|job| job.leased_with(*attempt, *token));
        // Lines that the caller believes to be there and that are not: its lease is of another history.
        let Some(there) = lease.map(|lease| lease.lines).filter(|there| from_line <= there) else {
            return Err(stale);
        };
        let fresh = lines.get((there - from_line) as usize..).unwrap_or_default();
        let ts = now.max(Time::from_millis(live.ms));
        live.log(ts, fresh.iter().map(|line| line.event.clone()), &mut self.events);
        live.add_lines(*key, fresh.len() as u32);
        live.changed |= !fresh.is_empty();
        let flow = live.flow.clone();
        for change in fresh.iter().filter_map(|line| line.state.as_ref()) {
            self.change_state(run, &flow, change);
        }
        Ok(there + fresh.len() as u32)
    }

    pub(super) fn repair(&mut self, repair: &Repair) -> Result<(), CommitError> {
        let (Repair::Row { run: key, version, .. }
        | Repair::Events { run: key, version, .. }
        | Repair::Jobs { run: key, version, .. }) = repair
        else {
            return Ok(());
        };
        let now = self.now;
        let run = match self.runs.get_mut(key) {
            Some(run) if run.version == *version => run,
            other => {
                let found = other.map(|run| run.version);
                return Err(CommitError::Conflict { expected: *version, found });
            }
        };
        let before = run.counted(&key.tenant);
        match repair {
            Repair::Row { seen, .. } if run.seq != *seen => {
                return Err(CommitError::Conflict { expected: *version, found: Some(*version) });
            }
            Repair::Row { state, index, created_at, started_at, completed_at, events, .. } => {
                run.advance(state, index);
                run.created_at = created_at.millis();
                run.started_at = started_at.map(Time::millis);
                run.completed_at = completed_at.map(Time::millis);
                run.seq = *events;
                // The log says what it is, `None` too; a commit's `None` would keep it.
                run.failure = Live::failure_of(index);
            }
            Repair::Events { events, state, index, .. } => {
                let ts = now.max(Time::from_millis(run.ms));
                run.log(ts, events.iter().cloned(), &mut self.events);
                run.advance(state, index);
            }
            Repair::Jobs { add, remove, .. } => run.mend_jobs(add, remove, now, self.place)?,
            Repair::Counters { .. } => {}
        }
        let after = run.counted(&key.tenant);
        self.count(before, after);
        Ok(())
    }

    /// Which guard of a start failed, the run not being there.
    fn unstartable(&self, commit: &Commit, definition: &Arc<str>) -> CommitError {
        if self.unknown.contains(&(commit.run.tenant.clone(), definition.clone())) {
            return CommitError::UnknownDefinition(definition.clone());
        }
        sound(commit).err().unwrap_or(CommitError::Exists)
    }

    fn count(&mut self, before: Counted, after: Counted) {
        if before != after {
            *self.counts.entry(before).or_default() -= 1;
            *self.counts.entry(after).or_default() += 1;
        }
    }

    fn clear_state(&mut self, run: &RunKey) {
        let owner = (run.tenant.clone(), StateOwner::Run(run.run.clone()));
        self.state.keys.retain(|(of, _), _| *of != owner);
        self.state.cleared.insert(owner);
    }

    fn change_state(&mut self, run: &RunKey, flow: &Arc<str>, change: &StateChange) {
        let owner = (run.tenant.clone(), change.scope.of(&run.run, flow));
        let expires = change.ttl.map(|ttl| (self.now + ttl).millis());
        let value = change.value.as_ref().map(|value| (value.get().to_owned(), expires));
        self.state.keys.insert((owner, change.key.clone()), value);
    }
}

/// The guards of a start that need no look at the store: a new run has no job that a commit could use, and each of its
/// own is added once.
pub(super) fn sound(commit: &Commit) -> Result<(), CommitError> {
    commit.check_jobs(Time::from_millis(0), |_| None)
}

impl Live {
    fn inserted(id: i64, commit: &Commit, flow: &Arc<str>, now: Time) -> Live {
        let Index { status, completed_steps, failed_steps, retries, .. } = commit.index;
        let machine_state = commit.index.state.clone();
        let ms = now.millis();
        let ended = commit.events.iter().any(|event| event.kind.is_terminal()).then_some(ms);
        Live {
            id,
            flow: flow.clone(),
            base: 1,
            version: 1,
            seq: commit.events.len() as u64,
            ms,
            status,
            machine_state,
            completed_steps,
            failed_steps,
            retries,
            created_at: ms,
            started_at: commit.events.iter().find_map(|event| event.begins(now)).map(Time::millis).or(ended),
            completed_at: ended,
            failure: Live::failure_of(&commit.index),
            state: None,
            changed: false,
            jobs: BTreeMap::new(),
            removed: Vec::new(),
        }
    }

    /// A run whose row was inserted whole: nothing of it is to be written but its jobs.
    pub(super) fn restored(id: i64, row: &RunRow) -> Live {
        Live {
            id,
            flow: row.flow_name.clone(),
            base: 0,
            version: 0,
            seq: 0,
            ms: 0,
            status: row.status,
            machine_state: row.state.clone(),
            completed_steps: 0,
            failed_steps: 0,
            retries: 0,
            created_at: 0,
            started_at: None,
            completed_at: None,
            failure: (None, None),
            state: None,
            changed: false,
            jobs: BTreeMap::new(),
            removed: Vec::new(),
        }
    }

    /// What the run is counted under as it stands.
    pub(super) fn counted(&self, tenant: &Tenant) -> Counted {
        (tenant.clone(), self.flow.clone(), self.status, self.machine_state.clone())
    }

    pub(super) fn failure_of(index: &Index) -> (Option<String>, Option<String>) {
        let failure = index.failure.as_ref();
        let step = failure.and_then(|failure| failure.step.as_deref()).map(crate::code::shut);
        (
            failure.map(|failure| crate::code::shut(&failure.error).into_owned()),
            step.map(std::borrow::Cow::into_owned),
        )
    }

    /// The guards of a commit after its base.
    fn check(&self, commit: &Commit, now: Time) -> Result<(), CommitError> {
        commit.check_jobs(now, |key| self.jobs.get(&key).map(Job::now))
    }

    /// What a commit does to the jobs of its run. Gives the keys of granted hand-offs.
    fn settle(
        &mut self,
        commit: &Commit,
        now: Time,
        paused: &BTreeSet<(Tenant, String)>,
        place: usize,
    ) -> Vec<JobKey> {
        for lease in &commit.leases {
            match *lease {
                LeaseUse::Keep { key, lines, .. } => self.add_lines(key, lines),
                _ => self.take(lease.key()),
            }
        }
        if commit.others != Others::Leave {
            let named: BTreeSet<JobKey> = commit.leases.iter().map(LeaseUse::key).collect();
            let others: Vec<JobKey> = self.jobs.keys().filter(|key| !named.contains(key)).copied().collect();
            for key in others {
                match commit.others {
                    Others::Drop => self.take(key),
                    Others::Hold => self.hold(key, true),
                    Others::Release => self.hold(key, false),
                    Others::Leave => {}
                }
            }
        }
        let is_paused = |lane: &Lane| {
            !paused.is_empty() && paused.contains(&(commit.run.tenant.clone(), lane.queue.to_string()))
        };
        let mut granted = Vec::new();
        for (at, job) in commit.add.iter().enumerate() {
            let grantable =
                matches!(job.key, JobKey::Step(_)) && !job.held && job.due <= now && !is_paused(&job.lane);
            let handoff = job.handoff.as_ref().filter(|_| grantable);
            if handoff.is_some() {
                granted.push(job.key);
            }
            self.jobs.insert(job.key, Job::added(job, handoff, now, (place, at)));
        }
        granted
    }

    fn mend_jobs(
        &mut self,
        add: &[NewJob],
        remove: &[JobKey],
        now: Time,
        place: usize,
    ) -> Result<(), CommitError> {
        for (at, job) in add.iter().enumerate() {
            let there = self.jobs.contains_key(&job.key) && !remove.contains(&job.key);
            if there || add[..at].iter().any(|other| other.key == job.key) {
                return Err(CommitError::StaleLease(job.key));
            }
        }
        for key in remove {
            self.take(*key);
        }
        for (at, job) in add.iter().enumerate() {
            // Nobody waits for the answer to a hand-off here: mended jobs wait to be claimed.
            self.jobs.insert(job.key, Job::added(job, None, now, (place, at)));
        }
        self.version += 1;
        self.changed = true;
        Ok(())
    }

    fn take(&mut self, key: JobKey) {
        if let Some(job) = self.jobs.remove(&key)
            && job.stored != Stored::Added
        {
            self.removed.push((key, job));
        }
    }

    /// Waiting jobs alone are held or let go.
    fn hold(&mut self, key: JobKey, held: bool) {
        if let Some(job) = self.jobs.get_mut(&key).filter(|job| job.lease.is_none() && job.held != held) {
            job.held = held;
            job.touch();
        }
    }

    fn add_lines(&mut self, key: JobKey, lines: u32) {
        if let Some(job) = self.jobs.get_mut(&key).filter(|_| lines > 0)
            && let Some(lease) = &mut job.lease
        {
            lease.lines += lines;
            job.touch();
        }
    }

    /// Numbers and dates events.
    fn log(&mut self, ts: Time, events: impl Iterator<Item = NewEvent>, into: &mut Vec<EventRow>) {
        for event in events {
            self.seq += 1;
            self.ms = ts.millis();
            if let Some(began) = event.begins(ts) {
                self.started_at.get_or_insert(began.millis());
            }
            if event.kind.is_terminal() {
                self.started_at.get_or_insert(self.created_at);
                self.completed_at = Some(self.ms);
            }
            let event = event.lasting(Time::from_millis(self.created_at), ts);
            into.push(EventRow { run: self.id, seq: self.seq, ms: self.ms, event });
        }
    }

    /// Replaces state and index, and counts the version up.
    fn advance(&mut self, state: &[u8], index: &Index) {
        self.version += 1;
        self.state = Some(state.to_vec());
        self.status = index.status;
        self.machine_state = index.state.clone();
        self.completed_steps = index.completed_steps;
        self.failed_steps = index.failed_steps;
        self.retries = index.retries;
        if index.failure.is_some() {
            self.failure = Live::failure_of(index);
        }
        self.changed = true;
    }
}

impl Job {
    fn added(job: &NewJob, handoff: Option<&Handoff>, now: Time, order: (usize, usize)) -> Job {
        let lease = handoff.map(|asked| Lease {
            token: asked.token,
            worker: asked.worker.clone(),
            leased_at: now,
            expires: now + asked.ttl,
            lines: 0,
            released: false,
        });
        Job {
            name: job.name.clone(),
            attempt: job.attempt,
            lane: job.lane.clone(),
            priority: job.priority,
            due: job.due,
            held: job.held,
            lease,
            stored: Stored::Added,
            order,
        }
    }

    fn touch(&mut self) {
        if self.stored == Stored::AsRead {
            self.stored = Stored::Changed;
        }
    }

    fn leased_with(&self, attempt: u32, token: Token) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| self.attempt == attempt && lease.token == token)
    }

    /// As the guards of a commit look at it.
    fn now(&self) -> JobNow {
        let lease =
            |lease: &Lease| LeaseNow { token: lease.token, expires: lease.expires, lines: lease.lines };
        JobNow {
            attempt: self.attempt,
            held: self.held,
            due: self.due,
            lease: self.lease.as_ref().map(lease),
        }
    }
}
