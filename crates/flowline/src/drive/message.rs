//! The interface of a driver: the messages it takes and the actions it asks for.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::decide::{Learned, Missing, Start};
use flowline_core::{DecideInput, Plan, RunKey, Time};
use flowline_store::{
    Claim, Claimed, Commit, CommitError, Committed, Extend, Extended, LeasedJob, StoreError, Swept, Token,
};

use crate::attempt::Launch;
use crate::ledger::{CostlyDecided, CostlyDecision, HandedOff, InputEntry, InputOutcome, RunEnd, Seen};

/// Something for a driver to deal with. `R` is whatever a caller wants back with the outcome of its input.
#[derive(Debug)]
pub enum DriverMessage<R> {
    Offer(RunKey, InputEntry<Reply<R>>),
    /// An attempt is over; its slot is free for what follows from it.
    Finished(Token, RunKey, InputEntry<Reply<R>>),
    /// The outcome of an attempt was committed through its reference, so a runner that still works on it here stops.
    Settled(Token),
    /// Start no new attempts; give back those that are still running after this long.
    Stop(Duration),
    /// The store has changed, perhaps by another instance.
    Changed,
    /// An attempt could not write its lines, or can again.
    Trouble(Option<StoreError>),
    Answer(StoreReply),
    /// What [`DriverOrder::Decide`] came to.
    Decided(CostlyDecided),
}

impl<R> DriverMessage<R> {
    /// An input from outside for a run.
    pub fn input(run: RunKey, input: DecideInput, caller: R) -> DriverMessage<R> {
        DriverMessage::Offer(run, InputEntry::new(input, Vec::new(), None, Reply::Caller(caller)))
    }

    /// Like [`DriverMessage::input`], of an event with a new id.
    pub fn new_event(run: RunKey, input: DecideInput, caller: R) -> DriverMessage<R> {
        let entry = InputEntry::new(input, Vec::new(), None, Reply::Caller(caller));
        DriverMessage::Offer(run, entry.with_fresh_id())
    }

    /// The start of a run of this plan.
    pub fn start(run: RunKey, plan: Arc<Plan>, start: Start, caller: R) -> DriverMessage<R> {
        DriverMessage::Offer(run, InputEntry::start(plan, start, Reply::Caller(caller)))
    }
}

/// Something that a driver wants done.
#[derive(Debug)]
pub enum DriverOrder<R> {
    /// Ask the store. The answer comes back as [`DriverMessage::Answer`].
    Call(StoreCall),
    /// Make a decision that isn't quick where it holds up nobody. It comes back as [`DriverMessage::Decided`].
    Decide(Box<CostlyDecision>),
    /// Run this attempt. The time is now by the store's clock.
    Launch(Launch, Time),
    /// Hand this attempt to the remote worker that its lease names.
    HandOff(HandedOff),
    /// Stop this attempt without a report.
    Stop(Token),
    /// Tell a caller the outcome of its input.
    Reply(R, InputOutcome),
    /// Tell waiting callers that this run has ended.
    Ended(RunKey, RunEnd),
    /// Tell watchers that the store stopped taking writes, or takes them again.
    Trouble(Option<StoreError>),
}

/// A question to the store.
#[derive(Debug, Clone)]
pub enum StoreCall {
    Commit(Vec<Commit>),
    Load(Vec<RunKey>),
    /// Look up what a decision lacks.
    LookUp(RunKey, Missing),
    Claim(Claim),
    /// Load what the attempts of claimed jobs need.
    Prepare(Vec<LeasedJob>),
    Sweep(usize),
    Extend(Vec<Extend>, Duration),
    /// There's no reply: if it fails, the leases expire.
    Release(Vec<Extend>),
}

/// What the store answered.
#[derive(Debug)]
pub enum StoreReply {
    Committed(Vec<RunKey>, Result<Vec<Result<Committed, CommitError>>, StoreError>),
    Loaded(Vec<RunKey>, Result<Vec<Option<Seen>>, StoreError>),
    LookedUp(RunKey, Result<Learned, StoreError>),
    Claimed(Result<Claimed, StoreError>),
    /// Claimed jobs with everything their attempts need; those that couldn't be prepared are given back.
    Prepared(Vec<Prepared>, Vec<LeasedJob>),
    Swept(Result<Swept, StoreError>),
    Extended(Vec<Token>, Result<Vec<Extended>, StoreError>),
}

/// An attempt of a claimed job, ready to start.
#[derive(Debug)]
pub struct Prepared {
    pub launch: Launch,
    /// The run as it was read for this.
    pub seen: Seen,
}

/// Who gets the outcome of an input.
#[derive(Debug)]
pub enum Reply<R> {
    None,
    Caller(R),
    /// Start this attempt once its `step.started` is in the log.
    Launch(Box<Launch>),
    /// The slot of this attempt becomes free; and the caller, if there is one.
    Slot(Token, Option<R>),
}
