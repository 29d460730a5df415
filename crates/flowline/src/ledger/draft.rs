//! A commit that's being put together.

use std::borrow::Cow;
use std::collections::BTreeMap;

use flowline_core::decide::{AddJob, Job, Known, OtherJobs};
use flowline_core::definition::Cleanup;
use flowline_core::event::{EventType, PayloadSlot};
use flowline_core::machine::Turn;
use flowline_core::{DecideInput, Decision, Json, NewEvent, RunKey, Time};
use flowline_store::{Base, Commit, Failure, LeaseUse, Others, ReceiptChange};

use super::cell::Flight;
use super::{Capacity, Heard, InputEntry, Seen, index_of, job_key, new_job};

/// A commit in the making, out of one or more inputs of a run.
pub(super) struct CommitDraft<'a, R> {
    run: &'a RunKey,
    now: Time,
    pub(super) seen: Seen,
    base: Base,
    pub(super) entries: Vec<InputEntry<R>>,
    leases: Vec<LeaseUse>,
    events: Vec<NewEvent>,
    add: Vec<AddJob>,
    others: OtherJobs,
    failure: Option<Failure>,
    payloads: BTreeMap<PayloadSlot, Json>,
    receipts: BTreeMap<u32, ReceiptChange>,
    heard: Heard,
}

impl<'a, R> CommitDraft<'a, R> {
    pub(super) fn new(run: &'a RunKey, seen: Seen, base: Base, now: Time) -> Self {
        CommitDraft {
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
            receipts: BTreeMap::new(),
            heard: Heard::default(),
        }
    }

    pub(super) fn known<'k>(&self, known: &'k Known, entry: &InputEntry<R>) -> Cow<'k, Known> {
        let event_id = match &entry.input {
            DecideInput::External { event_id: Some(id), .. } if self.seen.plan.machine.is_some() => Some(id),
            _ => None,
        };
        if self.payloads.is_empty() && event_id.is_none() {
            return Cow::Borrowed(known);
        }
        let mut known = known.clone();
        if let Some(id) = event_id {
            let here = |change: &ReceiptChange| {
                change.opened.as_ref().is_some_and(|opened| *opened.event_id == **id)
            };
            if self.receipts.values().any(here) {
                known.receipts.insert(id.clone(), true);
            } else if entry.fresh && !entry.unsure {
                known.receipts.insert(id.clone(), false);
            }
        }
        known.payloads.extend(self.payloads.iter().map(|(slot, payload)| (*slot, payload.clone())));
        // Jobs that this commit adds are not leased, but those it finds may be: only the first decision may trust it.
        known.leased = None;
        Cow::Owned(known)
    }

    /// Whether an input must wait for a commit of its own: that a lease is lost was found before what its attempt says in
    /// this commit was written.
    pub(super) fn contradicts(&self, entry: &InputEntry<R>) -> bool {
        let lost = |lease: &&LeaseUse| matches!(lease, LeaseUse::Expired { .. });
        let key = entry.lease.as_ref().filter(lost).map(LeaseUse::key);
        key.is_some_and(|key| self.leases.iter().any(|lease| lease.key() == key))
    }

    /// Adds a decision. True if nothing may follow it in the same commit.
    pub(super) fn take(&mut self, mut entry: InputEntry<R>, decision: Decision) -> bool {
        self.hear(&decision);
        self.leases.extend(entry.lease.clone());
        self.events.extend(entry.lines.iter().cloned());
        entry.lines.shrink_to_fit();
        self.events.extend(decision.events);
        for (job, attempt) in decision.drop {
            let added = self.add.iter().position(|add| add.job == job);
            match added {
                Some(at) => drop(self.add.swap_remove(at)),
                None => self.leases.push(LeaseUse::Unleased { key: job_key(job), attempt }),
            }
        }
        decision.receipts.into_iter().for_each(|change| self.note(change));
        match decision.others {
            OtherJobs::Leave => {}
            OtherJobs::Drop => {
                self.add.clear();
                self.leases.iter_mut().for_each(end_lease);
            }
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

    /// Counts the events that a decision is about. One that has the turn already was applied before.
    fn hear(&mut self, decision: &Decision) {
        let rejected = decision.events.iter().filter(|event| event.kind == EventType::EventRejected).count();
        let current = self.seen.state.machine.as_ref().and_then(|machine| machine.current.as_ref());
        let turn = current.and_then(|current| match current.by {
            Turn::Event { number, .. } => Some(number),
            _ => None,
        });
        let new = |receipt: &&ReceiptChange| receipt.status.is_started() && Some(receipt.number) != turn;
        let started = decision.receipts.iter().filter(new).count();
        self.heard.received +=
            decision.receipts.iter().filter(|receipt| receipt.opened.is_some()).count() as u64;
        self.heard.applied += started.saturating_sub(rejected) as u64;
        self.heard.rejected += rejected as u64;
    }

    /// Adds a change to an event's receipt. A commit has one per event.
    fn note(&mut self, change: ReceiptChange) {
        match self.receipts.get_mut(&change.number) {
            Some(before) => before.then(change),
            None => drop(self.receipts.insert(change.number, change)),
        }
    }

    pub(super) fn finish(self, room: &mut dyn Capacity) -> (Commit, Flight<R>) {
        let mut handoffs = Vec::new();
        let mut waiting: Option<Time> = None;
        let plan = self.seen.plan.clone();
        let mut add = Vec::with_capacity(self.add.len());
        for job in self.add {
            let mut new = new_job(&plan, &job);
            if !job.held && job.due <= self.now && matches!(job.job, Job::Step(_)) {
                new.handoff = room.reserve(&self.run.tenant, &new.lane);
            }
            match (&new.handoff, job.job) {
                (Some(handoff), Job::Step(step)) => handoffs.push((step, job.attempt, handoff.clone())),
                (None, Job::Step(_)) if !room.claims(&new.lane) => {}
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
            index: index_of(&plan, state, self.failure),
            others: match self.others {
                OtherJobs::Leave => Others::Leave,
                OtherJobs::Drop => Others::Drop,
                OtherJobs::Hold => Others::Hold,
                OtherJobs::Release => Others::Release,
            },
            add,
            clear_state: state.ended.is_some() && plan.definition.state == Cleanup::OnComplete,
            events: self.events,
            receipts: self.receipts.into_values().collect(),
        };
        let flight = Flight {
            entries: self.entries,
            after: self.seen,
            payloads: self.payloads,
            handoffs,
            waiting,
            terminal,
            heard: self.heard,
        };
        (commit, flight)
    }
}

/// The run has ended: an attempt that would have gone on is over as well.
fn end_lease(lease: &mut LeaseUse) {
    if let LeaseUse::Keep { key, attempt, token, .. } = *lease {
        *lease = LeaseUse::Finish { key, attempt, token };
    }
}
