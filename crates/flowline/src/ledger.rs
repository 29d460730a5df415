//! What this instance knows of runs, and the inputs that wait to be decided on.
//!
//! One cell per run: the state that was last seen, the inputs offered since, and at most one commit in flight. Inputs of
//! one run that wait together are decided in turn and written as one commit. The ledger does no I/O and knows no clock:
//! [`Ledger::next`] says what to ask of the store, the answers come back through [`Ledger::loaded`],
//! [`Ledger::payloads`], [`Ledger::leases`] and [`Ledger::committed`]. So it runs under tokio and under a simulator alike.
//!
//! Cached state is only ever a guess: every commit names the version that it was decided on, and a conflict throws the
//! guess away.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use flowline_core::decide::{AddJob, Job, Known, Missing, Moment, OtherJobs, Refusal};
use flowline_core::event::Slot;
use flowline_core::run::{Phase, RunState};
use flowline_core::{Decided, Decision, Input, Json, NewEvent, Plan, RunKey, Status, Time, decide};
use flowline_store::{
    Base, Commit, CommitError, Committed, Failure, Handoff, Index, JobKey, Lane, LeaseUse, NewJob, NewRun,
    Others, StoreError,
};

/// The number of the run's time-out among its timers.
pub const RUN_TIMEOUT: JobKey = JobKey::Timer(0);

/// Payload bytes that a cell keeps for the steps to come; beyond that they are read again from the store.
const CACHED_PAYLOADS: usize = 64 << 10;
/// Cells that are kept without work to do.
const IDLE_CELLS: usize = 20_000;

/// An input on its way into a run. `R` is whatever the caller wants back with the outcome.
#[derive(Debug)]
pub struct Entry<R> {
    pub input: Input,
    /// Lines of the attempt that are not in the log yet; written before the input's own events.
    pub lines: Vec<NewEvent>,
    /// The job that the input comes from, as the commit must find it.
    pub lease: Option<LeaseUse>,
    pub reply: R,
}

/// What became of an input.
#[derive(Debug)]
pub enum Outcome {
    /// Written.
    Committed {
        status: Status,
    },
    /// It had been applied before.
    Applied {
        status: Status,
    },
    Refused(Refusal),
    /// The lease that it relied on is not held any more.
    StaleLease,
    /// A start whose run exists.
    Exists,
    /// There is no such run.
    NotFound,
    Failed(StoreError),
}

/// What the ledger wants from the store.
#[derive(Debug)]
pub enum Ask {
    Load(RunKey),
    Payloads(RunKey, Vec<Slot>),
    Leases(RunKey),
    Commit(Box<Commit>),
}

/// What a landed commit sets off.
#[derive(Debug)]
pub struct Landed<R> {
    pub replies: Vec<(R, Outcome)>,
    /// Jobs that were handed to this instance.
    pub handed: Vec<Handed>,
    /// Queues of slots that were reserved for a hand-off that did not come to be.
    pub unused: Vec<Arc<str>>,
    /// Whether the commit left jobs for anyone to claim, and the earliest time one is due.
    pub waiting: Option<Time>,
    /// Set when the commit ended the run: how, and the data of the terminal event.
    pub ended: Option<(Status, Option<Json>)>,
}

/// An attempt that this instance may start at once.
#[derive(Debug)]
pub struct Handed {
    pub run: RunKey,
    pub plan: Arc<Plan>,
    pub step: u32,
    pub attempt: u32,
    pub handoff: Handoff,
    /// The step's input where every payload was at hand.
    pub input: Option<Json>,
}

/// Who has room to take a job right away.
pub trait Room {
    /// Reserves a slot for a job of this lane, or says no.
    fn reserve(&mut self, lane: &Lane) -> Option<Handoff>;
}

/// A run as it was last seen.
#[derive(Debug, Clone)]
pub struct Seen {
    pub plan: Arc<Plan>,
    pub state: RunState,
    pub version: u64,
    pub created_at: Time,
}

#[derive(Debug)]
pub struct Ledger<R> {
    cells: HashMap<RunKey, Cell<R>>,
    /// Cells with something to decide.
    dirty: VecDeque<RunKey>,
}

#[derive(Debug)]
struct Cell<R> {
    seen: Option<Seen>,
    known: Known,
    cached: usize,
    waiting: VecDeque<Entry<R>>,
    /// A run that does not exist yet: what its first commit is to say of it.
    new: Option<(Arc<Plan>, NewRun)>,
    busy: Busy<R>,
}

#[derive(Debug)]
enum Busy<R> {
    No,
    /// An answer to a question is awaited.
    Asking,
    Committing(Box<Flight<R>>),
}

#[derive(Debug)]
struct Flight<R> {
    entries: Vec<Entry<R>>,
    after: Seen,
    payloads: BTreeMap<Slot, Json>,
    handoffs: Vec<(u32, u32, Handoff)>,
    waiting: Option<Time>,
    terminal: Option<Json>,
}

impl<R> Default for Cell<R> {
    fn default() -> Self {
        Cell {
            seen: None,
            known: Known::default(),
            cached: 0,
            waiting: VecDeque::new(),
            new: None,
            busy: Busy::No,
        }
    }
}

impl<R> Default for Ledger<R> {
    fn default() -> Self {
        Ledger { cells: HashMap::new(), dirty: VecDeque::new() }
    }
}

impl<R> Ledger<R> {
    /// Takes an input for a run.
    pub fn offer(&mut self, run: RunKey, entry: Entry<R>) {
        let cell = self.cells.entry(run.clone()).or_default();
        cell.waiting.push_back(entry);
        self.dirty.push_back(run);
    }

    /// Takes the first input of a run that should not exist yet.
    pub fn offer_new(&mut self, run: RunKey, plan: Arc<Plan>, new: NewRun, entry: Entry<R>) {
        let cell = self.cells.entry(run.clone()).or_default();
        if cell.seen.is_none() && cell.new.is_none() {
            cell.new = Some((plan, new));
        }
        cell.waiting.push_back(entry);
        self.dirty.push_back(run);
    }

    /// Whether nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.cells.values().all(|cell| cell.waiting.is_empty() && matches!(cell.busy, Busy::No))
    }

    /// Runs that it remembers.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// What is known of a run, which may be out of date.
    pub fn seen(&self, run: &RunKey) -> Option<&Seen> {
        self.cells.get(run)?.seen.as_ref()
    }

    /// Decides what can be decided and says what to ask of the store. At most `limit` questions.
    pub fn next(&mut self, now: Time, room: &mut dyn Room, limit: usize) -> (Vec<Ask>, Vec<(R, Outcome)>) {
        let (mut asks, mut replies) = (Vec::new(), Vec::new());
        while asks.len() < limit {
            let Some(run) = self.dirty.pop_front() else { break };
            let Some(cell) = self.cells.get_mut(&run) else { continue };
            if let Busy::No = cell.busy {
                asks.extend(cell.next(&run, now, room, &mut replies));
            }
            if cell.is_spent() {
                self.cells.remove(&run);
            }
        }
        (asks, replies)
    }

    /// The answer to [`Ask::Load`]; `None` where there is no such run.
    pub fn loaded(&mut self, run: &RunKey, seen: Option<Seen>) -> Vec<(R, Outcome)> {
        let Some(cell) = self.cells.get_mut(run) else { return Vec::new() };
        cell.busy = Busy::No;
        let Some(seen) = seen else {
            let waiting = std::mem::take(&mut cell.waiting);
            self.cells.remove(run);
            return waiting.into_iter().map(|entry| (entry.reply, Outcome::NotFound)).collect();
        };
        cell.known = Known::default();
        cell.cached = 0;
        cell.seen = Some(seen);
        self.dirty.push_back(run.clone());
        Vec::new()
    }

    /// The answer to [`Ask::Payloads`]: the payloads by address. One that is not there counts as null.
    pub fn payloads(&mut self, run: &RunKey, payloads: impl IntoIterator<Item = (Slot, Json)>) {
        let Some(cell) = self.cells.get_mut(run) else { return };
        cell.busy = Busy::No;
        cell.keep(payloads);
        self.dirty.push_back(run.clone());
    }

    /// The answer to [`Ask::Leases`].
    pub fn leases(&mut self, run: &RunKey, leased: BTreeSet<u32>) {
        let Some(cell) = self.cells.get_mut(run) else { return };
        cell.busy = Busy::No;
        cell.known.leased = Some(leased);
        self.dirty.push_back(run.clone());
    }

    /// A question to the store failed. The inputs wait to be decided again after [`Ledger::wake`], on fresh state.
    pub fn failed(&mut self, run: &RunKey) -> Vec<Arc<str>> {
        let Some(cell) = self.cells.get_mut(run) else { return Vec::new() };
        let unused = cell.unwind();
        cell.forget();
        unused
    }

    /// Refuses the inputs that came from outside: whoever sent them is there to decide what next. What attempts did
    /// stays, for it was done.
    pub fn refuse_outside(&mut self, run: &RunKey, why: &StoreError) -> Vec<(R, Outcome)> {
        let Some(cell) = self.cells.get_mut(run) else { return Vec::new() };
        let (stay, go) =
            std::mem::take(&mut cell.waiting).into_iter().partition(|entry| entry.lease.is_some());
        cell.waiting = stay;
        if cell.is_spent() {
            self.cells.remove(run);
        }
        let go: VecDeque<Entry<R>> = go;
        go.into_iter().map(|entry| (entry.reply, Outcome::Failed(why.clone()))).collect()
    }

    /// Gives up on a run's inputs: each gets `why`.
    pub fn abandon(
        &mut self,
        run: &RunKey,
        why: impl Fn() -> StoreError,
    ) -> (Vec<(R, Outcome)>, Vec<Arc<str>>) {
        let Some(mut cell) = self.cells.remove(run) else { return (Vec::new(), Vec::new()) };
        let unused = cell.unwind();
        (cell.waiting.into_iter().map(|entry| (entry.reply, Outcome::Failed(why()))).collect(), unused)
    }

    /// Looks at a run again after [`Ledger::failed`].
    pub fn wake(&mut self, run: &RunKey) {
        self.dirty.push_back(run.clone());
    }

    /// The answer to [`Ask::Commit`].
    pub fn committed(&mut self, run: &RunKey, result: Result<Committed, CommitError>) -> Landed<R> {
        let mut landed = Landed {
            replies: Vec::new(),
            handed: Vec::new(),
            unused: Vec::new(),
            waiting: None,
            ended: None,
        };
        let Some(cell) = self.cells.get_mut(run) else { return landed };
        match result {
            Ok(committed) => cell.land(run, committed, &mut landed),
            Err(error) => {
                landed.unused = cell.unwind();
                cell.refuse(error, &mut landed.replies);
            }
        }
        if cell.is_spent() || (cell.is_idle() && self.cells.len() > IDLE_CELLS) {
            self.cells.remove(run);
        } else if !self.cells[run].waiting.is_empty() {
            self.dirty.push_back(run.clone());
        }
        landed
    }
}

impl<R> Cell<R> {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && matches!(self.busy, Busy::No)
    }

    /// Nothing to do, and nothing worth remembering.
    fn is_spent(&self) -> bool {
        self.is_idle() && self.seen.as_ref().is_none_or(|seen| seen.state.ended.is_some())
    }

    fn forget(&mut self) {
        self.seen = None;
        self.known = Known::default();
        self.cached = 0;
    }

    fn keep(&mut self, payloads: impl IntoIterator<Item = (Slot, Json)>) {
        for (slot, payload) in payloads {
            self.cached += payload.get().len();
            self.known.payloads.insert(slot, payload);
        }
    }

    fn next(
        &mut self,
        run: &RunKey,
        now: Time,
        room: &mut dyn Room,
        replies: &mut Vec<(R, Outcome)>,
    ) -> Option<Ask> {
        if self.waiting.is_empty() {
            return None;
        }
        let (seen, base) = match (&self.seen, &self.new) {
            (Some(seen), _) => (seen.clone(), Base::Version(seen.version)),
            (None, Some((plan, new))) => {
                let state = RunState::new(plan);
                (Seen { plan: plan.clone(), state, version: 0, created_at: now }, Base::New(new.clone()))
            }
            (None, None) => {
                self.busy = Busy::Asking;
                return Some(Ask::Load(run.clone()));
            }
        };
        let mut draft = Draft::new(run, seen, base, now);
        while let Some(entry) = self.waiting.front() {
            let moment = Moment { run: &run.run, created_at: draft.seen.created_at, now };
            let known = draft.known(&self.known);
            let plan = draft.seen.plan.clone();
            match decide(&plan, &draft.seen.state, &entry.input, &known, moment) {
                Decided::Decision(decision) => {
                    if let Some(entry) = self.waiting.pop_front()
                        && draft.take(entry, *decision)
                    {
                        break;
                    }
                }
                Decided::Applied => {
                    let status = draft.seen.state.status();
                    let applied = self.waiting.pop_front();
                    replies.extend(applied.map(|entry| (entry.reply, Outcome::Applied { status })));
                }
                Decided::Refused(refusal) => {
                    let refused = self.waiting.pop_front();
                    replies.extend(refused.map(|entry| (entry.reply, Outcome::Refused(refusal))));
                }
                // What was decided so far goes first; this input is decided again on the state after it.
                Decided::Missing(_) if !draft.entries.is_empty() => break,
                Decided::Missing(missing) => {
                    self.busy = Busy::Asking;
                    return Some(match missing {
                        Missing::Payloads(slots) => Ask::Payloads(run.clone(), slots),
                        Missing::Leases => Ask::Leases(run.clone()),
                    });
                }
            }
        }
        // Leases are only true for the decision that they were asked for.
        self.known.leased = None;
        if draft.entries.is_empty() {
            return None;
        }
        let (commit, flight) = draft.finish(room);
        self.busy = Busy::Committing(Box::new(flight));
        Some(Ask::Commit(Box::new(commit)))
    }

    fn land(&mut self, run: &RunKey, committed: Committed, landed: &mut Landed<R>) {
        let Busy::Committing(mut flight) = std::mem::replace(&mut self.busy, Busy::No) else { return };
        self.new = None;
        flight.after.version = committed.version;
        if flight.after.version == 1 {
            flight.after.created_at = committed.ts;
        }
        let status = flight.after.state.status();
        if status.is_terminal() {
            landed.ended = Some((status, flight.terminal));
        }
        self.keep(flight.payloads);
        landed.waiting = flight.waiting;
        for (step, attempt, handoff) in flight.handoffs {
            if committed.granted.contains(&JobKey::Step(step)) {
                let plan = flight.after.plan.clone();
                let input = input_of(&plan, step, &flight.after.state, &self.known.payloads).ok();
                landed.handed.push(Handed { run: run.clone(), plan, step, attempt, handoff, input });
            } else {
                landed.waiting = Some(landed.waiting.unwrap_or(committed.ts).min(committed.ts));
                landed.unused.push(plan_queue(&flight.after.plan, step));
            }
        }
        if self.cached > CACHED_PAYLOADS {
            self.known.payloads.clear();
            self.cached = 0;
        }
        self.seen = Some(flight.after);
        let outcome = || Outcome::Committed { status };
        landed.replies.extend(flight.entries.into_iter().map(|entry| (entry.reply, outcome())));
    }

    /// Puts the inputs of a commit that did not land back in line.
    fn unwind(&mut self) -> Vec<Arc<str>> {
        match std::mem::replace(&mut self.busy, Busy::No) {
            Busy::Committing(flight) => {
                for entry in flight.entries.into_iter().rev() {
                    self.waiting.push_front(entry);
                }
                flight.handoffs.iter().map(|(step, ..)| plan_queue(&flight.after.plan, *step)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn refuse(&mut self, error: CommitError, replies: &mut Vec<(R, Outcome)>) {
        match error {
            CommitError::Exists => {
                self.new = None;
                let start = self.waiting.iter().position(|entry| matches!(entry.input, Input::Start(_)));
                if let Some(entry) = start.and_then(|at| self.waiting.remove(at)) {
                    replies.push((entry.reply, Outcome::Exists));
                }
            }
            CommitError::StaleLease(key) => {
                let stale =
                    self.waiting.iter().position(|e| e.lease.as_ref().is_some_and(|l| l.key() == key));
                // A job that no input relied on (one that `fail_fast` drops) was taken meanwhile: look again.
                if let Some(entry) = stale.and_then(|at| self.waiting.remove(at)) {
                    replies.push((entry.reply, Outcome::StaleLease));
                }
            }
            CommitError::Store(error) if !error.is_transient() => {
                let text = error.to_string();
                let failed = |_| Outcome::Failed(StoreError::Damaged(text.clone()));
                replies.extend(self.waiting.drain(..).map(|entry| (entry.reply, failed(()))));
            }
            CommitError::UnknownDefinition(hash) => {
                let why =
                    || StoreError::Invalid(format!("definition {hash} is not stored; register it first"));
                replies.extend(self.waiting.drain(..).map(|entry| (entry.reply, Outcome::Failed(why()))));
            }
            _ => {}
        }
        self.forget();
    }
}

/// A commit in the making, out of one or more inputs of a run.
struct Draft<'a, R> {
    run: &'a RunKey,
    now: Time,
    seen: Seen,
    base: Base,
    entries: Vec<Entry<R>>,
    leases: Vec<LeaseUse>,
    events: Vec<NewEvent>,
    add: Vec<AddJob>,
    others: OtherJobs,
    failure: Option<Failure>,
    payloads: BTreeMap<Slot, Json>,
}

impl<'a, R> Draft<'a, R> {
    fn new(run: &'a RunKey, seen: Seen, base: Base, now: Time) -> Self {
        Draft {
            run,
            now,
            seen,
            base,
            entries: Vec::new(),
            leases: Vec::new(),
            events: Vec::new(),
            add: Vec::new(),
            others: OtherJobs::Leave,
            failure: None,
            payloads: BTreeMap::new(),
        }
    }

    fn known<'k>(&self, known: &'k Known) -> std::borrow::Cow<'k, Known> {
        if self.payloads.is_empty() {
            return std::borrow::Cow::Borrowed(known);
        }
        let mut known = known.clone();
        known.payloads.extend(self.payloads.iter().map(|(slot, payload)| (*slot, payload.clone())));
        // Jobs that this commit adds are not leased, but those it finds may be: only the first decision may trust it.
        known.leased = None;
        std::borrow::Cow::Owned(known)
    }

    /// Adds a decision. True where nothing may follow it in the same commit.
    fn take(&mut self, mut entry: Entry<R>, decision: Decision) -> bool {
        self.leases.extend(entry.lease.clone());
        self.events.extend(entry.lines.iter().cloned());
        entry.lines.shrink_to_fit();
        self.events.extend(decision.events);
        for (step, attempt) in decision.drop {
            let added = self.add.iter().position(|add| add.job == Job::Step(step));
            match added {
                Some(at) => drop(self.add.swap_remove(at)),
                None => self.leases.push(LeaseUse::Unleased { key: JobKey::Step(step), attempt }),
            }
        }
        match decision.others {
            OtherJobs::Leave => {}
            OtherJobs::Drop => self.add.clear(),
            OtherJobs::Hold => self.add.iter_mut().for_each(|add| add.held = true),
            OtherJobs::Release => self.add.iter_mut().for_each(|add| add.held = false),
        }
        self.add.extend(decision.add);
        self.payloads.extend(decision.payloads);
        if let Some((error, step)) = decision.failure {
            self.failure.get_or_insert(Failure { error, step });
        }
        self.seen.state = decision.state;
        self.others = decision.others;
        self.entries.push(entry);
        decision.others != OtherJobs::Leave
    }

    fn finish(self, room: &mut dyn Room) -> (Commit, Flight<R>) {
        let mut handoffs = Vec::new();
        let mut waiting: Option<Time> = None;
        let plan = self.seen.plan.clone();
        let mut add = Vec::with_capacity(self.add.len());
        for job in self.add {
            let mut new = new_job(&plan, &job);
            if !job.held && job.due <= self.now && matches!(job.job, Job::Step(_)) {
                new.handoff = room.reserve(&new.lane);
            }
            match (&new.handoff, job.job) {
                (Some(handoff), Job::Step(step)) => handoffs.push((step, job.attempt, handoff.clone())),
                _ => waiting = Some(waiting.unwrap_or(job.due).min(job.due)),
            }
            add.push(new);
        }
        let state = &self.seen.state;
        let terminal = state.ended.and_then(|_| self.events.last()?.data.clone());
        let commit = Commit {
            run: self.run.clone(),
            base: self.base,
            leases: self.leases,
            state: state.encode(),
            index: index_of(state, self.failure),
            others: match self.others {
                OtherJobs::Leave => Others::Leave,
                OtherJobs::Drop => Others::Drop,
                OtherJobs::Hold => Others::Hold,
                OtherJobs::Release => Others::Release,
            },
            add,
            clear_state: state.ended.is_some()
                && plan.definition.state == flowline_core::definition::Cleanup::OnComplete,
            events: self.events,
        };
        let flight = Flight {
            entries: self.entries,
            after: self.seen,
            payloads: self.payloads,
            handoffs,
            waiting,
            terminal,
        };
        (commit, flight)
    }
}

fn plan_queue(plan: &Plan, step: u32) -> Arc<str> {
    plan.step(step).queue.clone()
}

/// The index row's changing part, from the state.
pub fn index_of(state: &RunState, failure: Option<Failure>) -> Index {
    Index {
        status: state.status(),
        completed_steps: state.count(Phase::Completed),
        failed_steps: state.count(Phase::Failed),
        retries: state.retries,
        failure,
    }
}

/// The store's view of a job that a decision asks for.
pub fn new_job(plan: &Plan, add: &AddJob) -> NewJob {
    let (key, name, lane) = match add.job {
        Job::Step(step) => {
            let planned = plan.step(step);
            let lane = Lane { queue: planned.queue.clone(), need: planned.need.clone() };
            (JobKey::Step(step), planned.name.clone(), lane)
        }
        Job::RunTimeout => {
            (RUN_TIMEOUT, "timeout".into(), Lane { queue: "timers".into(), need: "timer".into() })
        }
    };
    let AddJob { attempt, priority, due, held, .. } = *add;
    NewJob { key, name, attempt, lane, priority, due, held, handoff: None }
}

/// Puts a step's input together: the run's input as it is, or an object keyed by event name. Gives the addresses that
/// are missing from `payloads` otherwise.
pub fn input_of(
    plan: &Plan,
    step: u32,
    state: &RunState,
    payloads: &BTreeMap<Slot, Json>,
) -> Result<Json, Vec<Slot>> {
    let slots: Vec<Slot> = plan
        .input_slots(step)
        .into_iter()
        .filter(|slot| !matches!(slot, Slot::Emit(event) if !state.emitted.contains(*event)))
        .collect();
    let missing: Vec<Slot> = slots.iter().copied().filter(|slot| !payloads.contains_key(slot)).collect();
    if !missing.is_empty() {
        return Err(missing);
    }
    if plan.is_entry(step) {
        return Ok(payloads[&Slot::Input].clone());
    }
    Ok(flowline_core::json::object(slots.iter().filter_map(|slot| match slot {
        Slot::Emit(event) => Some((&*plan.events[*event as usize].name, payloads.get(slot))),
        _ => None,
    })))
}
