//! What this instance knows about one run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use flowline_core::decide::{Known, Learned, Moment, decide_quickly};
use flowline_core::event::PayloadSlot;
use flowline_core::limits::Limits;
use flowline_core::run::Phase;
use flowline_core::{Decided, Json, Plan, RunKey, RunState, Time};
use flowline_store::{Base, CommitError, Committed, Handoff, JobKey, Lane, NewRun, StoreError};

use super::draft::CommitDraft;
use super::{
    Batch, CACHED_PAYLOADS, Capacity, CostlyDecision, HandedOff, Heard, InputEntry, InputOutcome, Landed,
    RunEnd, Seen, Unused,
};
use crate::trace;

#[derive(Debug)]
pub(super) struct Cell<R> {
    pub(super) seen: Option<Seen>,
    pub(super) known: Known,
    pub(super) cached: usize,
    pub(super) waiting: VecDeque<InputEntry<R>>,
    /// How many of them, from the front, waited when `seen` was asked for. Only to these may be told what it says: to
    /// others it is a guess, and what writes nothing is not checked by a commit.
    fresh: usize,
    /// What the first that waits comes to on this version of the run, if that was decided elsewhere.
    pub(super) decided: Option<(u64, Decided)>,
    pub(super) busy: InFlight<R>,
}

#[derive(Debug)]
pub(super) enum InFlight<R> {
    No,
    /// An answer to a question is awaited.
    Asking,
    /// The decision with this number, on the first that waits, is made elsewhere.
    Deciding(u64),
    Committing(Box<Flight<R>>),
}

#[derive(Debug)]
pub(super) struct Flight<R> {
    pub(super) entries: Vec<InputEntry<R>>,
    pub(super) after: Seen,
    pub(super) payloads: BTreeMap<PayloadSlot, Json>,
    pub(super) handoffs: Vec<(u32, u32, Handoff)>,
    pub(super) waiting: Option<Time>,
    pub(super) terminal: Option<Json>,
    pub(super) heard: Heard,
}

impl<R> Default for Cell<R> {
    fn default() -> Self {
        Cell {
            seen: None,
            known: Known::default(),
            cached: 0,
            waiting: VecDeque::new(),
            fresh: 0,
            decided: None,
            busy: InFlight::No,
        }
    }
}

impl<R> Cell<R> {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && matches!(self.busy, InFlight::No)
    }

    /// The plan of the run, if it's cached.
    pub(super) fn plan(&self) -> Option<&Arc<Plan>> {
        match (&self.seen, &self.busy) {
            (Some(seen), _) => Some(&seen.plan),
            (None, InFlight::Committing(flight)) => Some(&flight.after.plan),
            _ => self.waiting.iter().find_map(InputEntry::as_start).map(|(plan, _)| plan),
        }
    }

    /// Nothing to do, and nothing worth remembering.
    pub(super) fn is_spent(&self) -> bool {
        self.is_idle() && self.seen.as_ref().is_none_or(|seen| seen.state.ended.is_some())
    }

    /// The run isn't there: the start that waits first makes it, or is refused for good.
    pub(super) fn found_nothing(&mut self) {
        self.forget();
        self.fresh = 1;
    }

    pub(super) fn forget(&mut self) {
        self.seen = None;
        self.decided = None;
        self.fresh = 0;
        self.known = Known::default();
        self.cached = 0;
    }

    pub(super) fn learn(&mut self, learned: Learned) {
        if let Learned::Payloads(payloads) = &learned {
            self.cached += bytes(payloads.iter().map(|(_, payload)| payload));
        }
        self.known.learn(learned);
    }

    /// Keeps what is small and may be read again: a machine can have any number of events and contexts behind it.
    fn forget_past(&mut self, state: &RunState) {
        let payloads = &mut self.known.payloads;
        if let Some(machine) = &state.machine {
            payloads.retain(|slot, _| machine.may_read(*slot));
            self.cached = bytes(payloads.values());
        }
        if self.cached > CACHED_PAYLOADS {
            payloads.clear();
            self.cached = 0;
        }
    }

    /// Decides what can be decided. `number` is for a decision that must be made elsewhere.
    pub(super) fn next(
        &mut self,
        run: &RunKey,
        number: u64,
        now: Time,
        limits: Limits,
        room: &mut dyn Capacity,
        batch: &mut Batch<R>,
    ) {
        let Some(first) = self.waiting.front() else { return };
        // Whatever waits before a start is of a run that was there: only a start may be decided on nothing.
        let (seen, base) = match (&self.seen, first.as_start()) {
            (Some(seen), _) => (seen.clone(), Base::Version(seen.version)),
            (None, Some((plan, start))) => {
                let trace = trace::of_labels(&start.labels);
                let (plan, state) = (plan.clone(), RunState::new(plan));
                let base = Base::New(NewRun::of(&plan, start));
                (Seen { plan, state, version: 0, created_at: now, trace }, base)
            }
            (None, None) => return batch.loads.push(self.load(run)),
        };
        let mut draft = CommitDraft::new(run, seen, base, now);
        while let Some(entry) = self.waiting.front() {
            if draft.contradicts(entry) {
                break;
            }
            let moment = Moment { run: &run.run, created_at: draft.seen.created_at, now, limits };
            let known = draft.known(&self.known, entry);
            let plan = draft.seen.plan.clone();
            let decided = match self.decided.take() {
                Some((version, decided)) if version == draft.seen.version && draft.entries.is_empty() => {
                    Some(decided)
                }
                _ => decide_quickly(&plan, &draft.seen.state, &entry.input, &known, moment),
            };
            let Some(decided) = decided else {
                // What was decided so far goes first.
                if draft.entries.is_empty() {
                    let (seen, input, known) = (draft.seen, entry.input.clone(), known.into_owned());
                    self.busy = InFlight::Deciding(number);
                    let run = run.clone();
                    batch.costly.push(CostlyDecision { run, number, seen, input, known, now, limits });
                    return;
                }
                break;
            };
            match decided {
                Decided::Decision(decision) => {
                    if let Some(entry) = self.take()
                        && draft.take(entry, *decision)
                    {
                        break;
                    }
                }
                // Told only once what it rests on is written; then it is decided again.
                Decided::Applied | Decided::Refused(_) if !draft.entries.is_empty() => break,
                Decided::Applied | Decided::Refused(_) if self.is_guess() => {
                    return batch.loads.push(self.load(run));
                }
                Decided::Refused(_) if self.may_exist() => return batch.loads.push(self.load(run)),
                Decided::Applied => {
                    let status = draft.seen.state.status();
                    // A start that was repeated; but its own commit may have made the run.
                    let exists = |entry: &InputEntry<R>| entry.as_start().is_some() && !entry.unsure;
                    let told = |entry: InputEntry<R>| match exists(&entry) {
                        true => (entry.reply, InputOutcome::Exists),
                        false => (entry.reply, InputOutcome::Applied { status }),
                    };
                    batch.replies.extend(self.take().map(told));
                }
                Decided::Refused(refusal) => {
                    let told = |entry: InputEntry<R>| (entry.refused(refusal), entry.reply);
                    batch.replies.extend(self.take().map(told).map(|(outcome, reply)| (reply, outcome)));
                }
                // What was decided so far goes first; this input is decided again on the state after it.
                Decided::Missing(_) if !draft.entries.is_empty() => break,
                Decided::Missing(missing) => {
                    self.busy = InFlight::Asking;
                    return batch.missing.push((run.clone(), missing));
                }
            }
        }
        // These are only true for the decision that they were asked for.
        self.known.leased = None;
        self.known.receipts.clear();
        self.known.attempt = None;
        if draft.entries.is_empty() {
            return;
        }
        let (commit, flight) = draft.finish(room);
        self.busy = InFlight::Committing(Box::new(flight));
        batch.commits.push(commit);
    }

    /// Whether the first that waits is a start whose key may have made the run before, when limits, schemas or the definition
    /// were others. Then it isn't refused, but told that the run exists.
    fn may_exist(&self) -> bool {
        let start = self.waiting.front().and_then(InputEntry::as_start);
        self.fresh == 0 && start.is_some_and(|(_, start)| start.idempotency_key.is_some())
    }

    /// Whether the first that waits must not be told what `seen` says. A start that was decided on nothing rests on nothing.
    fn is_guess(&self) -> bool {
        self.fresh == 0 && self.seen.is_some()
    }

    /// Waits for the run to be read.
    fn load(&mut self, run: &RunKey) -> RunKey {
        self.busy = InFlight::Asking;
        self.fresh = self.waiting.len();
        run.clone()
    }

    fn take(&mut self) -> Option<InputEntry<R>> {
        self.fresh = self.fresh.saturating_sub(1);
        self.waiting.pop_front()
    }

    pub(super) fn land(&mut self, run: &RunKey, committed: Committed, now: Time, landed: &mut Landed<R>) {
        let InFlight::Committing(mut flight) = std::mem::replace(&mut self.busy, InFlight::No) else {
            return;
        };
        flight.after.version = committed.version;
        if flight.after.version == 1 {
            flight.after.created_at = committed.ts;
        }
        let status = flight.after.state.status();
        if status.is_terminal() {
            landed.ended = Some(RunEnd {
                status,
                data: flight.terminal,
                flow: flight.after.plan.flow.clone(),
                created_at: flight.after.created_at,
                ended_at: committed.ts,
                trace: flight.after.trace.clone(),
            });
        }
        self.cached += bytes(flight.payloads.values());
        self.known.payloads.append(&mut flight.payloads);
        (landed.waiting, landed.heard) = (flight.waiting, flight.heard);
        for (step, attempt, handoff) in flight.handoffs {
            if committed.granted.contains(&JobKey::Step(step)) {
                let Seen { plan, state, .. } = &flight.after;
                let input = plan.input_of(step, state, &self.known.payloads).ok();
                let attempt = flight.after.attempt(run.clone(), step, attempt, handoff.token);
                landed.handed.push(HandedOff { attempt, input, at: now, ttl: handoff.ttl });
            } else {
                landed.waiting = Some(landed.waiting.unwrap_or(committed.ts).min(committed.ts));
                landed.unused.push(unused(&flight.after.plan, step, &handoff));
            }
        }
        self.forget_past(&flight.after.state);
        self.seen = Some(flight.after);
        let outcome = || InputOutcome::Committed { status };
        landed.replies.extend(flight.entries.into_iter().map(|entry| (entry.reply, outcome())));
    }

    /// Puts the inputs of a commit that did not land back in line.
    pub(super) fn unwind(&mut self) -> Vec<Unused> {
        match std::mem::replace(&mut self.busy, InFlight::No) {
            InFlight::Committing(flight) => {
                for entry in flight.entries.into_iter().rev() {
                    self.waiting.push_front(entry);
                }
                let plan = &flight.after.plan;
                flight.handoffs.iter().map(|(step, _, handoff)| unused(plan, *step, handoff)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The steps that the commit on its way triggers, by name.
    pub(super) fn triggered(&self) -> Vec<Arc<str>> {
        let InFlight::Committing(flight) = &self.busy else { return Vec::new() };
        let after = &flight.after;
        let idle = |step: &u32| {
            self.seen.as_ref().is_none_or(|before| before.state.step(*step).phase == Phase::Idle)
        };
        after.state.live().filter(idle).map(|step| after.plan.step(step).name.clone()).collect()
    }

    /// How many inputs are in the commit on its way.
    pub(super) fn flown(&self) -> usize {
        match &self.busy {
            InFlight::Committing(flight) => flight.entries.len(),
            _ => 0,
        }
    }

    /// A commit of the first `flown` that wait was refused.
    pub(super) fn refuse(&mut self, error: CommitError, flown: usize, replies: &mut Vec<(R, InputOutcome)>) {
        // A commit that was carried out twice is refused the second time: what was new in it may be written.
        self.waiting.iter_mut().take(flown).for_each(|entry| entry.fresh = false);
        match error {
            CommitError::Exists => {
                let start = self.waiting.iter().position(|entry| entry.as_start().is_some());
                if let Some(entry) = start.and_then(|at| self.waiting.remove(at)) {
                    replies.push((entry.reply, InputOutcome::Exists));
                }
            }
            CommitError::StaleLease(key) => {
                let relies =
                    |entry: &InputEntry<R>| entry.lease.as_ref().is_some_and(|lease| lease.key() == key);
                let stale = self.waiting.iter().take(flown).position(relies);
                // A job that no input relied on (one that `fail_fast` drops) was taken meanwhile: look again. What its
                // attempt says since is not at fault.
                // One that brought the first line of its attempt may just have found it in the log.
                let first_line = stale.is_some_and(|at| self.waiting[at].drop_first_line());
                if let Some(entry) = stale.filter(|_| !first_line).and_then(|at| self.waiting.remove(at)) {
                    replies.push((entry.reply, InputOutcome::StaleLease(None)));
                }
            }
            CommitError::Store(error) if !error.is_transient() => {
                let text = error.to_string();
                let failed = |_| InputOutcome::Failed(StoreError::Damaged(text.clone()));
                replies.extend(self.waiting.drain(..).map(|entry| (entry.reply, failed(()))));
            }
            CommitError::UnknownDefinition(hash) => {
                let why =
                    || StoreError::Invalid(format!("definition {hash} isn't stored; register it first"));
                replies
                    .extend(self.waiting.drain(..).map(|entry| (entry.reply, InputOutcome::Failed(why()))));
            }
            _ => {}
        }
        self.forget();
    }
}

fn bytes<'a>(payloads: impl Iterator<Item = &'a Json>) -> usize {
    payloads.map(|payload| payload.get().len()).sum()
}

fn unused(plan: &Plan, step: u32, handoff: &Handoff) -> Unused {
    let planned = plan.step(step);
    let lane = Lane { queue: planned.queue.clone(), need: planned.need.clone() };
    Unused { lane, token: handoff.token }
}
