//! The runs this instance knows about, and the inputs to be decided.
//!
//! There's one cell per run: the last known state, the inputs that have arrived since, and at most one commit in flight.
//! Inputs that wait together are decided one after the other and written as one commit. The ledger does no I/O and has
//! no clock: [`Ledger::next`] says what to ask the store, and the answers come back through [`Ledger::loaded`],
//! [`Ledger::learned`] and [`Ledger::committed`].
//!
//! Cached state is only a guess. Every commit names the version it was decided on, and a conflict discards the guess. An
//! outcome that writes nothing is only given on state that was read for it.

mod cell;
mod draft;
mod entry;
mod jobs;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flowline_core::decide::{Decided, Known, Learned, Missing, Moment, decide};
use flowline_core::event::PayloadSlot;
use flowline_core::limits::Limits;
use flowline_core::run::{Phase, RunState};
use flowline_core::{DecideInput, Json, Plan, RunKey, Status, Tenant, Time};
use flowline_store::{Commit, CommitError, Committed, Handoff, JobKey, Lane, LeasedJob, StoreError, Token};

use crate::attempt::{Attempt, FirstLine, Launch};
use cell::{Cell, InFlight};

pub use entry::{InputEntry, InputOutcome};
pub use jobs::{RUN_TIMEOUT, index_of, job_key, new_job, timer_input, timer_of};

/// Payload bytes that a cell keeps for the steps to come; beyond that they are read again from the store.
const CACHED_PAYLOADS: usize = 64 << 10;
/// Cells that are kept without work to do.
const IDLE_CELLS: usize = 20_000;

/// The result of a round of decisions: questions for the store, and outcomes that are known already.
#[derive(Debug)]
pub struct Batch<R> {
    pub commits: Vec<Commit>,
    /// Runs to read.
    pub loads: Vec<RunKey>,
    /// What decisions lack.
    pub missing: Vec<(RunKey, Missing)>,
    /// Decisions that are not quick. What they come to is told by [`Ledger::decided`].
    pub costly: Vec<CostlyDecision>,
    pub replies: Vec<(R, InputOutcome)>,
}

impl<R> Batch<R> {
    /// How many questions it has for the store.
    pub fn questions(&self) -> usize {
        self.commits.len() + self.loads.len() + self.missing.len() + self.costly.len()
    }
}

/// All that a decision rests on, to make it elsewhere.
#[derive(Debug, Clone)]
pub struct CostlyDecision {
    pub run: RunKey,
    number: u64,
    seen: Seen,
    input: DecideInput,
    known: Known,
    now: Time,
    limits: Limits,
}

impl CostlyDecision {
    /// Takes as long as a decision may.
    pub fn decide(self) -> CostlyDecided {
        let CostlyDecision { run, number, seen, input, known, now, limits } = self;
        let moment = Moment { run: &run.run, created_at: seen.created_at, now, limits };
        let decided = decide(&seen.plan, &seen.state, &input, &known, moment);
        CostlyDecided { run, number, version: seen.version, decided }
    }
}

/// What a costly decision came to.
#[derive(Debug)]
pub struct CostlyDecided {
    pub run: RunKey,
    /// Of the question, so that it answers no other.
    number: u64,
    /// Of the run that it was made on.
    version: u64,
    decided: Decided,
}

/// What a landed commit sets off.
#[derive(Debug)]
pub struct Landed<R> {
    pub replies: Vec<(R, InputOutcome)>,
    /// Jobs that were handed to this instance.
    pub handed: Vec<HandedOff>,
    /// What was reserved for hand-offs that did not come to be.
    pub unused: Vec<Unused>,
    /// Whether the commit left timers, or jobs that are claimed here, and the earliest time one is due.
    pub waiting: Option<Time>,
    /// Set when the commit ended the run.
    pub ended: Option<RunEnd>,
    pub heard: Heard,
}

/// What a commit says of the events of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heard {
    /// Taken in.
    pub received: u64,
    /// That moved it.
    pub applied: u64,
    /// Turned down.
    pub rejected: u64,
}

/// How a run ended, and which it was.
#[derive(Debug, Clone)]
pub struct RunEnd {
    pub status: Status,
    /// Of the terminal event.
    pub data: Option<Json>,
    pub flow: Arc<str>,
    pub created_at: Time,
    pub ended_at: Time,
    /// The label that names the run's trace.
    pub trace: Option<Arc<str>>,
}

/// An attempt that a commit leased to this instance, or to a worker that waits here.
#[derive(Debug)]
pub struct HandedOff {
    pub attempt: Attempt,
    /// The step's input, if every payload was cached.
    pub input: Option<Json>,
    /// Now by the store's clock.
    pub at: Time,
    pub ttl: Duration,
}

impl HandedOff {
    /// What starts it; or its job, as if it had been claimed, if its input has yet to be read.
    pub fn launch(self) -> Result<Launch, Box<LeasedJob>> {
        let HandedOff { attempt, input, at, ttl } = self;
        if let Some(input) = input {
            return Ok(Launch { attempt, input, first_line: FirstLine::Buffered });
        }
        Err(Box::new(LeasedJob {
            key: attempt.key(),
            name: attempt.name().clone(),
            attempt: attempt.number,
            lane: attempt.lane(),
            due: at,
            token: attempt.token,
            expires: at + ttl,
            run: attempt.run,
        }))
    }
}

/// A reservation that wasn't used.
#[derive(Debug)]
pub struct Unused {
    pub lane: Lane,
    pub token: Token,
}

/// Where a commit can hand off its new jobs.
pub trait Capacity {
    /// Reserves room for a job of this tenant's lane, or says no.
    fn reserve(&mut self, tenant: &Tenant, lane: &Lane) -> Option<Handoff>;

    /// Whether jobs of this lane are claimed here when there is room.
    fn claims(&self, lane: &Lane) -> bool;
}

/// A run as it was last seen.
#[derive(Debug, Clone)]
pub struct Seen {
    pub plan: Arc<Plan>,
    pub state: RunState,
    pub version: u64,
    pub created_at: Time,
    /// The label that names the run's trace.
    pub trace: Option<Arc<str>>,
}

impl Seen {
    /// An attempt of the run.
    pub fn attempt(&self, run: RunKey, step: u32, number: u32, token: Token) -> Attempt {
        let (plan, trace) = (self.plan.clone(), self.trace.clone());
        Attempt { run, plan, trace, step, number, transition: self.state.transition(), token }
    }

    /// What starts the attempt of a leased job of the run; the payloads that are missing for it. A timer has no attempt.
    pub fn launch(
        &self,
        job: &LeasedJob,
        payloads: &BTreeMap<PayloadSlot, Json>,
    ) -> Result<Launch, Vec<PayloadSlot>> {
        let JobKey::Step(step) = job.key else { return Err(Vec::new()) };
        let input = self.plan.input_of(step, &self.state, payloads)?;
        let first_line = match self.state.step(step).phase {
            Phase::Delayed => FirstLine::Awaited,
            _ => FirstLine::Buffered,
        };
        let attempt = self.attempt(job.run.clone(), step, job.attempt, job.token);
        Ok(Launch { attempt, input, first_line })
    }
}

#[derive(Debug)]
pub struct Ledger<R> {
    cells: HashMap<RunKey, Cell<R>>,
    /// Cells with something to decide.
    dirty: VecDeque<RunKey>,
    /// How often a cell was asked for decisions, which numbers the costly ones.
    rounds: u64,
    limits: Limits,
}

impl<R> Ledger<R> {
    /// A ledger that takes new payloads within these limits.
    pub fn new(limits: Limits) -> Ledger<R> {
        Ledger { cells: HashMap::new(), dirty: VecDeque::new(), rounds: 0, limits }
    }

    /// Takes an input for a run.
    pub fn offer(&mut self, run: RunKey, entry: InputEntry<R>) {
        let cell = self.cells.entry(run.clone()).or_default();
        cell.waiting.push_back(entry);
        self.dirty.push_back(run);
    }

    /// Whether nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.cells.values().all(|cell| cell.waiting.is_empty() && matches!(cell.busy, InFlight::No))
    }

    /// What is known of a run, which may be out of date.
    pub fn seen(&self, run: &RunKey) -> Option<&Seen> {
        self.cells.get(run)?.seen.as_ref()
    }

    /// The flow of a run, if it's cached.
    pub fn flow(&self, run: &RunKey) -> Option<Arc<str>> {
        Some(self.cells.get(run)?.plan()?.flow.clone())
    }

    /// The steps that the commit on its way triggers, by name.
    pub fn triggered(&self, run: &RunKey) -> Vec<Arc<str>> {
        self.cells.get(run).map(Cell::triggered).unwrap_or_default()
    }

    /// What starts the attempt of a claimed job, if all of it is cached: a state at least as new as the job, and every
    /// payload.
    pub fn launch(&self, job: &LeasedJob) -> Option<Launch> {
        let (JobKey::Step(step), Some(cell)) = (job.key, self.cells.get(&job.run)) else { return None };
        let seen = cell.seen.as_ref()?;
        let now = seen.state.step(step);
        if !now.is_live() || now.attempt != job.attempt {
            return None;
        }
        seen.launch(job, &cell.known.payloads).ok()
    }

    /// Takes a run's state that was read for another reason, if it's newer.
    pub fn learn(&mut self, run: &RunKey, seen: Seen) {
        let Some(cell) = self.cells.get_mut(run).filter(|cell| matches!(cell.busy, InFlight::No)) else {
            return;
        };
        if cell.seen.as_ref().is_some_and(|known| known.version < seen.version) {
            cell.seen = Some(seen);
        }
    }

    /// What is known of a run is likely to be out of date: it is read again before the next decision, which is cheaper
    /// than a conflict.
    pub fn doubt(&mut self, run: &RunKey) {
        if let Some(cell) = self.cells.get_mut(run).filter(|cell| matches!(cell.busy, InFlight::No)) {
            cell.forget();
        }
    }

    /// Decides what can be decided and says what to ask of the store. At most `limit` questions.
    pub fn next(&mut self, now: Time, room: &mut dyn Capacity, limit: usize) -> Batch<R> {
        let mut batch = Batch {
            commits: Vec::new(),
            loads: Vec::new(),
            missing: Vec::new(),
            costly: Vec::new(),
            replies: Vec::new(),
        };
        while batch.questions() < limit {
            let Some(run) = self.dirty.pop_front() else { break };
            let Some(cell) = self.cells.get_mut(&run) else { continue };
            if let InFlight::No = cell.busy {
                self.rounds += 1;
                cell.next(&run, self.rounds, now, self.limits, room, &mut batch);
            }
            if cell.is_spent() {
                self.cells.remove(&run);
            }
        }
        batch
    }

    /// A run of [`Batch::loads`] as it was read; `None` if there is no such run.
    pub fn loaded(&mut self, run: &RunKey, seen: Option<Seen>) -> Vec<(R, InputOutcome)> {
        let Some(cell) = self.cells.get_mut(run) else { return Vec::new() };
        cell.busy = InFlight::No;
        let start = cell.waiting.iter().position(|entry| entry.as_start().is_some());
        if let (None, Some(start)) = (&seen, start) {
            // A start came while it was looked for: there will be a run, for the start and what came after it.
            let before = cell.waiting.drain(..start);
            let unfounded = before.map(|entry| (entry.reply, InputOutcome::NotFound)).collect();
            cell.found_nothing();
            self.dirty.push_back(run.clone());
            return unfounded;
        }
        let Some(seen) = seen else {
            let waiting = std::mem::take(&mut cell.waiting);
            self.cells.remove(run);
            return waiting.into_iter().map(|entry| (entry.reply, InputOutcome::NotFound)).collect();
        };
        cell.known = Known::default();
        cell.cached = 0;
        cell.seen = Some(seen);
        self.dirty.push_back(run.clone());
        Vec::new()
    }

    /// What was found for one of [`Batch::missing`].
    pub fn learned(&mut self, run: &RunKey, learned: Learned) {
        let Some(cell) = self.cells.get_mut(run) else { return };
        cell.busy = InFlight::No;
        cell.learn(learned);
        self.dirty.push_back(run.clone());
    }

    /// What one of [`Batch::costly`] came to. It counts if its input still waits for it and the run is still as it was.
    pub fn decided(&mut self, CostlyDecided { run, number, version, decided }: CostlyDecided) {
        let Some(cell) = self.cells.get_mut(&run) else { return };
        if !matches!(cell.busy, InFlight::Deciding(asked) if asked == number) {
            return;
        }
        cell.busy = InFlight::No;
        cell.decided = Some((version, decided));
        self.dirty.push_back(run);
    }

    /// A question to the store failed. The inputs wait to be decided again after [`Ledger::wake`], on fresh state.
    pub fn failed(&mut self, run: &RunKey) -> Vec<Unused> {
        let Some(cell) = self.cells.get_mut(run) else { return Vec::new() };
        if let InFlight::Committing(flight) = &mut cell.busy {
            flight.entries.iter_mut().for_each(|entry| entry.unsure = true);
        }
        let unused = cell.unwind();
        cell.forget();
        unused
    }

    /// Refuses the inputs that came from outside, whose senders can decide what to do. What attempts reported
    /// stays, because it has happened.
    pub fn refuse_outside(&mut self, run: &RunKey, why: &StoreError) -> Vec<(R, InputOutcome)> {
        self.refuse(run, why, |entry| entry.lease.is_none())
    }

    /// Refuses the inputs that couldn't be recognized if they were applied already.
    pub fn refuse_unnamed(&mut self, run: &RunKey, why: &StoreError) -> Vec<(R, InputOutcome)> {
        self.refuse(run, why, |entry| !entry.input.names_itself())
    }

    fn refuse(
        &mut self,
        run: &RunKey,
        why: &StoreError,
        which: impl Fn(&InputEntry<R>) -> bool,
    ) -> Vec<(R, InputOutcome)> {
        let Some(cell) = self.cells.get_mut(run) else { return Vec::new() };
        let waiting = std::mem::take(&mut cell.waiting).into_iter();
        let (go, stay): (VecDeque<_>, VecDeque<_>) = waiting.partition(which);
        cell.waiting = stay;
        cell.decided = None;
        if cell.is_spent() {
            self.cells.remove(run);
        }
        go.into_iter().map(|entry| (entry.reply, InputOutcome::Failed(why.clone()))).collect()
    }

    /// Gives up on a run's inputs: each gets `why`.
    pub fn abandon(
        &mut self,
        run: &RunKey,
        why: impl Fn() -> StoreError,
    ) -> (Vec<(R, InputOutcome)>, Vec<Unused>) {
        let Some(mut cell) = self.cells.remove(run) else { return (Vec::new(), Vec::new()) };
        let unused = cell.unwind();
        (cell.waiting.into_iter().map(|entry| (entry.reply, InputOutcome::Failed(why()))).collect(), unused)
    }

    /// Looks at a run again after [`Ledger::failed`].
    pub fn wake(&mut self, run: &RunKey) {
        self.dirty.push_back(run.clone());
    }

    /// The outcome of one of [`Batch::commits`].
    pub fn committed(
        &mut self,
        run: &RunKey,
        result: Result<Committed, CommitError>,
        now: Time,
    ) -> Landed<R> {
        let mut landed = Landed {
            replies: Vec::new(),
            handed: Vec::new(),
            unused: Vec::new(),
            waiting: None,
            ended: None,
            heard: Heard::default(),
        };
        let Some(cell) = self.cells.get_mut(run) else { return landed };
        match result {
            Ok(committed) => cell.land(run, committed, now, &mut landed),
            Err(error) => {
                let flown = cell.flown();
                landed.unused = cell.unwind();
                cell.refuse(error, flown, &mut landed.replies);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(ledger: &mut Ledger<u32>, run: &RunKey, asked: u64) {
        ledger.offer(run.clone(), InputEntry::new(DecideInput::Pause, Vec::new(), None, 1));
        if let Some(cell) = ledger.cells.get_mut(run) {
            cell.busy = InFlight::Deciding(asked);
        }
    }

    #[test]
    fn a_decision_made_elsewhere_is_for_the_input_that_it_was_asked_for() {
        let run = RunKey::new(Tenant::default(), flowline_core::RunId::new("r1").expect("an id"));
        let decided =
            |number| CostlyDecided { run: run.clone(), number, version: 1, decided: Decided::Applied };
        let is_decided = |ledger: &Ledger<u32>| ledger.cells[&run].decided.is_some();
        let mut ledger = Ledger::<u32>::new(Limits::default());
        offer(&mut ledger, &run, 1);
        let (replies, _) = ledger.abandon(&run, || StoreError::Invalid("given up".to_owned()));
        assert_eq!(replies.len(), 1);
        ledger.decided(decided(1));
        offer(&mut ledger, &run, 2);
        ledger.decided(decided(1));
        assert!(!is_decided(&ledger), "another input");
        ledger.decided(decided(2));
        assert!(is_decided(&ledger));
        ledger.doubt(&run);
        assert!(!is_decided(&ledger), "forgotten with the rest");
    }
}
