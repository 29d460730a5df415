//! The runs of one batch as they were locked, changed in memory by every commit, append and repair of the batch in
//! turn. What differs in the end is written in a few statements (`flush`).
//!
//! Invariant: guards are checked before the first change, so a refused request leaves the model as it was.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use flowline_core::{Json, NewEvent, RunKey, Status, Tenant, Time};
use flowline_store::row::{CounterKey, Repair};
use flowline_store::rule::{self, FencedLines, JobChange, Jobs, StoredJob};
use flowline_store::{
    Append, AppendError, Commit, CommitError, Committed, Index, JobKey, NewRun, Opened, ReceiptStatus,
    StateChange, StateEdit, StateSpace,
};

/// All that a batch works on.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) now: Time,
    pub(super) runs: HashMap<RunKey, BatchRun>,
    pub(super) paused: BTreeSet<(Tenant, String)>,
    /// Definitions that starts of the batch name and that are not stored.
    pub(super) unknown: BTreeSet<(Tenant, Arc<str>)>,
    pub(super) events: Vec<EventRow>,
    pub(super) state: StateWrites,
    pub(super) counts: BTreeMap<CounterKey, i64>,
    /// By run and number.
    pub(super) receipts: BTreeMap<(i64, u32), ReceiptRow>,
    /// Tenant, key, value and run.
    pub(super) labels: Vec<(Tenant, String, String, i64)>,
    /// The place in the batch of what is applied next.
    pub(super) place: usize,
}

/// A run of the batch.
#[derive(Debug, Clone)]
pub(super) struct BatchRun {
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
    /// The number of one that is added is its place in the batch.
    pub(super) jobs: Jobs,
    /// Jobs that are in the table and go.
    pub(super) removed: Vec<(JobKey, StoredJob)>,
    /// Those that are in the table and are no longer as they were read.
    pub(super) touched: BTreeSet<JobKey>,
    /// Those that are not in the table.
    pub(super) added: BTreeSet<JobKey>,
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

/// A value and when it expires.
pub(super) type ValueColumns = (String, Option<i64>);

#[derive(Debug, Default)]
pub(super) struct StateWrites {
    pub(super) cleared: BTreeSet<StateSpace>,
    /// The last write of each key.
    pub(super) keys: BTreeMap<(StateSpace, String), Option<ValueColumns>>,
}

impl Model {
    /// A commit on a run that is there. New runs are inserted before; see [`Model::started`].
    pub(super) fn commit(&mut self, commit: &Commit) -> Result<Committed, CommitError> {
        let now = self.now;
        self.check(commit, now)?;
        // A start that its guards allow was inserted, or its run is there after all and was not to be locked.
        let Some(run) = self.runs.get_mut(&commit.run) else { return Err(CommitError::Exists) };
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
        let mut run = BatchRun::inserted(id, commit, flow, now);
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
        let now = self.now;
        let live = self.runs.get_mut(&append.run);
        let job = live.as_ref().and_then(|live| live.jobs.get(&append.key));
        let FencedLines { new, total } = rule::fence(append, job)?;
        let Some(live) = live.filter(|_| !new.is_empty()) else { return Ok(total) };
        let ts = now.max(Time::from_millis(live.ms));
        live.log(ts, new.iter().map(|line| line.event.clone()), &mut self.events);
        live.add_lines(append.key, new.len() as u32);
        live.changed = true;
        let flow = live.flow.clone();
        for change in new.iter().filter_map(|line| line.state.as_ref()) {
            self.change_state(&append.run, &flow, change);
        }
        Ok(total)
    }

    pub(super) fn repair(&mut self, repair: &Repair) -> Result<(), CommitError> {
        let (Repair::Row { run: key, version, .. }
        | Repair::Events { run: key, version, .. }
        | Repair::Jobs { run: key, version, .. }) = repair
        else {
            return Ok(());
        };
        let now = self.now;
        let run = self.runs.get_mut(key);
        rule::check_version(*version, run.as_ref().map(|run| run.version))?;
        let Some(run) = run else { return Ok(()) };
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
                run.failure = BatchRun::failure_of(index);
            }
            Repair::Events { events, state, index, .. } => {
                let ts = now.max(Time::from_millis(run.ms));
                run.log(ts, events.iter().cloned(), &mut self.events);
                run.advance(state, index);
            }
            Repair::Jobs { add, remove, .. } => {
                let changes = rule::repair(add, remove, &run.jobs)?;
                run.change_jobs(changes, self.place);
                run.version += 1;
                run.changed = true;
            }
            Repair::Counters { .. } => {}
        }
        let after = run.counted(&key.tenant);
        self.count(before, after);
        Ok(())
    }

    /// The guards of a commit.
    pub(super) fn check(&self, commit: &Commit, now: Time) -> Result<(), CommitError> {
        let run = self.runs.get(&commit.run).map(|run| (run.version, &run.jobs));
        rule::check(commit, now, run, |new| {
            !self.unknown.contains(&(commit.run.tenant.clone(), new.definition.clone()))
        })
    }

    fn count(&mut self, before: CounterKey, after: CounterKey) {
        if before != after {
            *self.counts.entry(before).or_default() -= 1;
            *self.counts.entry(after).or_default() += 1;
        }
    }

    fn clear_state(&mut self, run: &RunKey) {
        let space = StateSpace::of_run(run);
        self.state.keys.retain(|(of, _), _| *of != space);
        self.state.cleared.insert(space);
    }

    fn change_state(&mut self, run: &RunKey, flow: &Arc<str>, change: &StateChange) {
        let StateChange { scope, edit: StateEdit { key, value, ttl } } = change;
        let space = StateSpace::new(&run.tenant, scope.of(&run.run, flow));
        let expires = ttl.map(|ttl| (self.now + ttl).millis());
        let value = value.as_ref().map(|value| (value.get().to_owned(), expires));
        self.state.keys.insert((space, key.clone()), value);
    }
}

impl BatchRun {
    fn inserted(id: i64, commit: &Commit, flow: &Arc<str>, now: Time) -> BatchRun {
        let Index { status, completed_steps, failed_steps, retries, .. } = commit.index;
        let ms = now.millis();
        let ended = commit.events.iter().any(|event| event.kind.is_terminal()).then_some(ms);
        let began = commit.events.iter().find_map(|event| event.begins(now)).map(Time::millis);
        BatchRun {
            base: 1,
            version: 1,
            seq: commit.events.len() as u64,
            ms,
            completed_steps,
            failed_steps,
            retries,
            created_at: ms,
            started_at: began.or(ended),
            completed_at: ended,
            failure: BatchRun::failure_of(&commit.index),
            ..BatchRun::new(id, flow.clone(), status, commit.index.state.clone())
        }
    }

    /// A run with nothing to write but what is added to it.
    pub(super) fn new(id: i64, flow: Arc<str>, status: Status, machine_state: Option<Arc<str>>) -> BatchRun {
        BatchRun {
            id,
            flow,
            base: 0,
            version: 0,
            seq: 0,
            ms: 0,
            status,
            machine_state,
            completed_steps: 0,
            failed_steps: 0,
            retries: 0,
            created_at: 0,
            started_at: None,
            completed_at: None,
            failure: (None, None),
            state: None,
            changed: false,
            jobs: Jobs::new(),
            removed: Vec::new(),
            touched: BTreeSet::new(),
            added: BTreeSet::new(),
        }
    }

    /// What the run is counted under as it stands.
    pub(super) fn counted(&self, tenant: &Tenant) -> CounterKey {
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

    /// What a commit does to the jobs of its run. Gives the keys of granted hand-offs.
    fn settle(
        &mut self,
        commit: &Commit,
        now: Time,
        paused: &BTreeSet<(Tenant, String)>,
        place: usize,
    ) -> Vec<JobKey> {
        let changes = rule::changes(commit, now, &self.jobs, |lane| {
            !paused.is_empty() && paused.contains(&(commit.run.tenant.clone(), lane.queue.to_string()))
        });
        let granted = rule::granted(&changes);
        self.change_jobs(changes, place);
        granted
    }

    fn change_jobs(&mut self, changes: Vec<JobChange<'_>>, place: usize) {
        for (at, change) in changes.into_iter().enumerate() {
            match change {
                JobChange::Remove(key) => self.take(key),
                JobChange::AddLines(key, lines) => self.add_lines(key, lines),
                JobChange::Hold(key) => self.change_job(key, |job| job.held = true),
                JobChange::Release(key) => self.change_job(key, |job| job.held = false),
                JobChange::Add(job, lease) => {
                    self.add(job.key, StoredJob::new(number(place, at), job, job.lane.clone(), lease));
                }
            }
        }
    }

    pub(super) fn add(&mut self, key: JobKey, job: StoredJob) {
        self.added.insert(key);
        self.jobs.insert(key, job);
    }

    fn take(&mut self, key: JobKey) {
        let Some(job) = self.jobs.remove(&key) else { return };
        self.touched.remove(&key);
        if !self.added.remove(&key) {
            self.removed.push((key, job));
        }
    }

    fn change_job(&mut self, key: JobKey, change: impl FnOnce(&mut StoredJob)) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        change(job);
        if !self.added.contains(&key) {
            self.touched.insert(key);
        }
    }

    fn add_lines(&mut self, key: JobKey, lines: u32) {
        if lines > 0 {
            self.change_job(key, |job| job.lease.iter_mut().for_each(|lease| lease.lines += lines));
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
            self.failure = BatchRun::failure_of(index);
        }
        self.changed = true;
    }
}

/// The number of an added job: jobs are numbered by the table in the order of the batch, and of their commits.
pub(super) fn number(place: usize, at: usize) -> u64 {
    (place as u64) << 32 | at as u64
}
