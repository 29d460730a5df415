//! One instance as a state machine: its ledger, slots, attempts and timers.
//!
//! A [`Driver`] takes [`DriverMessage`]s, each with the local time at which it arrived, and asks for [`DriverOrder`]s. It
//! does no I/O, reads no clock, spawns nothing and draws no random numbers, so the same messages at the same times lead
//! to the same actions, under tokio ([`host`]) as well as in the simulator.
//!
//! The owner passes in messages, calls [`Driver::tick`], then [`Driver::pump`] until there's nothing left to decide,
//! carrying out the actions in between so that the next batch is decided while the last one is being written. Then it
//! waits for the next message or for [`Driver::next_tick`].

mod call;
mod commit;
pub mod host;
mod load;
mod message;
mod recover;
mod tell;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::{Json, RunKey, Time, json};
use flowline_store::{ExpiredLease, Extended, Gone, StoreError, Token};

use crate::attempt::Attempt;
use crate::config::{Config, InstanceRole};
use crate::ledger::Ledger;
use crate::slots::Slots;

pub use crate::ledger::RunEnd;
pub use crate::meters::Meters;
pub(crate) use call::look_up;
pub(crate) use load::{prepare, see};
pub use message::{DriverMessage, DriverOrder, Prepared, Reply, StoreCall, StoreReply};

/// Batches of commits on their way to the store at once.
const FLIGHTS: usize = 16;
/// Commits in a batch.
pub(crate) const BATCH: usize = 512;
/// Pause before asking a store again that could not answer; doubled up to a second.
const RETRY_STORE: Duration = Duration::from_millis(20);
/// The most often that jobs are looked for because the store has changed.
const LOOK: Duration = Duration::from_millis(25);
/// Expired leases and due timers looked at in one sweep.
const SWEEP: usize = 1_000;

/// Times of a driver are local: monotonic, since whatever moment its owner likes.
pub struct Driver<R> {
    config: Config,
    ledger: Ledger<Reply<R>>,
    slots: Slots,
    /// By token, so that whatever goes over all of them does so in one order.
    attempts: BTreeMap<Token, Attempt>,
    /// Queues of attempts that are over and whose outcomes are not decided on yet.
    ending: BTreeMap<Token, Arc<str>>,
    actions: Vec<DriverOrder<R>>,
    now: Duration,
    clock: StoreClock,
    /// Its name, as JSON.
    instance: Json,
    meters: Arc<Meters>,
    /// Why the store accepts no writes at the moment.
    told_trouble: Option<StoreError>,
    flights: usize,
    /// Consecutive failures of the store, for the pause between tries.
    trouble: u32,
    /// Runs to look at again once the store answers.
    retry: Vec<RunKey>,
    claiming: bool,
    sweeping: bool,
    /// Claimed jobs whose attempts are being prepared.
    preparing: usize,
    next_claim: Option<Duration>,
    last_claim: Duration,
    next_sweep: Duration,
    next_heartbeat: Duration,
    next_retry: Option<Duration>,
    stop_by: Option<Duration>,
    /// Whether jobs may wait for a slot: then a free one is filled at once.
    backlog: bool,
    /// Commits that came back. A claim or sweep that was asked for before the last one doesn't know what it left.
    changes: u64,
    claim_saw: u64,
    sweep_saw: u64,
    /// The last claim found nothing and nothing has changed since; with it, when the next job is due.
    quiet: Option<Option<Time>>,
    /// What the last sweep saw ahead, if nothing has changed since.
    ahead: Option<Ahead>,
    /// Since when there has been nothing to do here, and the first lease of another instance that was seen then.
    rest: Option<(Duration, Option<Time>)>,
    /// Leases that ran out and whose flows are not known yet.
    untold: BTreeMap<Token, ExpiredLease>,
}

/// What lies ahead for sweeps to come.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    timer: Option<Time>,
    lease: Option<Time>,
}

/// The store's time, read off its last answer and the local time that has passed since.
#[derive(Debug, Clone, Copy)]
struct StoreClock {
    at: Time,
    seen: Duration,
}

impl StoreClock {
    fn at(&self, local: Duration) -> Time {
        self.at + local.saturating_sub(self.seen)
    }

    /// When, by local time, the store's clock will show this time.
    fn local(&self, time: Time) -> Duration {
        self.seen.saturating_add(time.since(self.at))
    }
}

impl<R> std::fmt::Debug for Driver<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.config.instance)
    }
}

impl<R> Driver<R> {
    /// A driver at local time `now`, when the store's clock shows `store_now`.
    pub fn new(
        config: Config,
        slots: Slots,
        meters: Arc<Meters>,
        now: Duration,
        store_now: Time,
    ) -> Driver<R> {
        let works = config.role == InstanceRole::Work;
        Driver {
            slots,
            next_heartbeat: now + config.lease / 3,
            next_claim: works.then_some(now),
            last_claim: now,
            next_sweep: now,
            instance: json::string(&config.instance),
            ledger: Ledger::new(config.limits),
            config,
            attempts: BTreeMap::new(),
            ending: BTreeMap::new(),
            actions: Vec::new(),
            now,
            clock: StoreClock { at: store_now, seen: now },
            meters,
            told_trouble: None,
            flights: 0,
            trouble: 0,
            retry: Vec::new(),
            claiming: false,
            sweeping: false,
            preparing: 0,
            next_retry: None,
            stop_by: None,
            backlog: false,
            changes: 0,
            claim_saw: 0,
            sweep_saw: 0,
            quiet: None,
            ahead: None,
            rest: None,
            untold: BTreeMap::new(),
        }
    }

    /// Takes a message that came at local time `now`.
    pub fn handle(&mut self, message: DriverMessage<R>, now: Duration) {
        self.now = self.now.max(now);
        match message {
            DriverMessage::Offer(run, entry) => self.ledger.offer(run, entry),
            DriverMessage::Finished(token, run, entry) => self.finished(token, run, entry),
            DriverMessage::Settled(token) => self.lost(token),
            DriverMessage::Stop(drain) => {
                self.slots.close();
                self.stop_by = Some(self.now.saturating_add(drain));
                self.next_claim = None;
            }
            DriverMessage::Changed => self.look_soon(),
            DriverMessage::Trouble(trouble) => self.tell_trouble(trouble),
            DriverMessage::Answer(answer) => self.answer(answer),
            DriverMessage::Decided(decided) => self.ledger.decided(decided),
        }
    }

    /// Does what is due at local time `now`.
    pub fn tick(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.next_retry.is_some_and(|at| at <= self.now) {
            self.next_retry = None;
            std::mem::take(&mut self.retry).iter().for_each(|run| self.ledger.wake(run));
        }
        if self.next_heartbeat <= self.now {
            self.heartbeat();
        }
        if self.config.role == InstanceRole::Work && !self.sweeping && self.next_sweep <= self.now {
            self.sweep();
        }
        if !self.claiming && self.next_claim.is_some_and(|at| at <= self.now) {
            self.next_claim = None;
            self.claim();
        }
        if self.stop_by.is_some_and(|at| at <= self.now) && !self.attempts.is_empty() {
            self.give_back();
        }
    }

    /// When [`Driver::tick`] has something to do next, by local time.
    pub fn next_tick(&self) -> Duration {
        let mut next = self.next_heartbeat;
        if self.config.role == InstanceRole::Work && !self.sweeping {
            next = next.min(self.next_sweep);
        }
        if !self.claiming {
            next = self.next_claim.map_or(next, |at| next.min(at));
        }
        let stop_by = self.stop_by.filter(|at| !self.attempts.is_empty() || *at > self.now);
        for at in [self.next_retry, stop_by].into_iter().flatten() {
            next = next.min(at);
        }
        next
    }

    /// What it wants done, in order.
    pub fn actions(&mut self) -> std::vec::Drain<'_, DriverOrder<R>> {
        self.actions.drain(..)
    }

    /// Whether it was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop_by.is_some()
    }

    /// Whether it was told to stop and has nothing left to do.
    pub fn has_stopped(&self) -> bool {
        self.stop_by.is_some() && self.at_rest()
    }

    /// How long until a job or timer is due, if nothing is ready or running here and no lease may belong to a dead
    /// instance. Looks again if it doesn't know.
    pub fn idle_for(&mut self) -> Option<Duration> {
        if self.is_busy() {
            self.rest = None;
            return None;
        }
        // Nobody has looked since the last change: do it now.
        if self.quiet.is_none() && !self.claiming {
            self.next_claim = Some(self.now);
        }
        if self.ahead.is_none() && !self.sweeping {
            self.next_sweep = self.now;
        }
        let (false, Some(next_due), Some(ahead)) = (self.claiming, self.quiet, self.ahead) else {
            return None;
        };
        let (since, first) = *self.rest.get_or_insert((self.now, ahead.lease));
        // A live holder extends its leases and a dead one doesn't. So whatever is still leased after a whole lease, under
        // another date than at first, is somebody's who lives.
        let settled = ahead.lease != first && self.now >= since + self.config.lease;
        if ahead.lease.is_some() && !settled {
            return None;
        }
        let next = next_due.into_iter().chain(ahead.timer).min();
        Some(next.map_or(Duration::MAX, |due| due.since(self.store_now())))
    }

    /// Attempts that run here now, by token.
    pub fn running(&self) -> impl Iterator<Item = Token> {
        self.attempts.keys().copied()
    }

    /// The store's time as far as it is known here.
    pub fn store_now(&self) -> Time {
        self.clock.at(self.now)
    }

    fn adjust(&mut self, at: Time) {
        self.clock = StoreClock { at, seen: self.now };
    }

    fn tell_trouble(&mut self, trouble: Option<StoreError>) {
        if self.told_trouble != trouble {
            self.told_trouble = trouble.clone();
            self.actions.push(DriverOrder::Trouble(trouble));
        }
    }

    fn answer(&mut self, answer: StoreReply) {
        match answer {
            StoreReply::Committed(runs, result) => self.committed(runs, result),
            StoreReply::Loaded(runs, Ok(seen)) => {
                for (run, seen) in runs.iter().zip(seen) {
                    self.tell_untold(run, seen.as_ref().map(|seen| &*seen.plan.flow));
                    let replies = self.ledger.loaded(run, seen);
                    self.reply(replies);
                }
            }
            StoreReply::Loaded(runs, Err(error)) => {
                for run in &runs {
                    self.tell_untold(run, None);
                    self.question_failed(run, &error);
                }
            }
            StoreReply::LookedUp(run, Ok(learned)) => self.ledger.learned(&run, learned),
            StoreReply::LookedUp(run, Err(error)) => self.question_failed(&run, &error),
            StoreReply::Claimed(result) => self.claimed(result),
            StoreReply::Prepared(launches, failed) => self.prepared(launches, failed),
            StoreReply::Swept(result) => self.swept(result),
            StoreReply::Extended(tokens, Ok(results)) => {
                for (token, result) in tokens.iter().zip(results) {
                    if let Extended::Gone(gone) = result {
                        if let (Gone::Lost, Some(attempt)) = (gone, self.attempts.get(token)) {
                            self.tell_lost(attempt);
                        }
                        self.lost(*token);
                    }
                }
            }
            // The next heartbeat is soon enough: a lease outlasts two that are missed.
            StoreReply::Extended(_, Err(_)) => {}
        }
    }

    fn call(&mut self, call: StoreCall) {
        self.actions.push(DriverOrder::Call(call));
    }

    /// The drain time is over: stops what's still running and gives it back.
    fn give_back(&mut self) {
        let mut leases = Vec::with_capacity(self.attempts.len());
        for (token, attempt) in std::mem::take(&mut self.attempts) {
            self.actions.push(DriverOrder::Stop(token));
            leases.push(attempt.lease());
        }
        self.call(StoreCall::Release(leases));
    }

    fn at_rest(&self) -> bool {
        !self.claiming && !self.is_busy()
    }

    fn is_busy(&self) -> bool {
        !self.attempts.is_empty() || self.preparing > 0 || !self.ledger.is_idle()
    }
}
