//! Work: claims jobs while there are free slots, and starts their attempts.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use flowline_core::{RunKey, Time};
use flowline_store::{Claimed, Extend, LeasedJob, StoreError, Token};

use super::{Driver, DriverOrder, LOOK, Prepared, Reply, StoreCall};
use crate::attempt::{FirstLine, Launch, started_data};
use crate::config::InstanceRole;
use crate::ledger::InputEntry;

impl<R> Driver<R> {
    pub(super) fn claim_by(&mut self, due: Time) {
        if self.stop_by.is_none() && self.config.role == InstanceRole::Work {
            let at = self.clock.local(due);
            self.next_claim = Some(self.next_claim.map_or(at, |next| next.min(at)));
        }
    }

    /// Another instance may have left jobs to others. It's only a hint: without it they're found by the next sweep.
    pub(super) fn look_soon(&mut self) {
        if self.stop_by.is_none() && self.config.role == InstanceRole::Work {
            let at = self.now.max(self.last_claim + LOOK);
            self.next_claim = Some(self.next_claim.map_or(at, |next| next.min(at)));
        }
    }

    /// A slot is free: whatever waits for one can be claimed.
    pub(super) fn free(&mut self, queue: &str) {
        self.slots.free(queue);
        if self.backlog && self.stop_by.is_none() {
            self.next_claim = Some(self.now);
        }
    }

    pub(super) fn claim(&mut self) {
        let Some(claim) = self.slots.claim() else { return };
        self.claiming = true;
        self.claim_saw = self.changes;
        self.last_claim = self.now;
        self.meters.claims.fetch_add(1, Ordering::Relaxed);
        self.call(StoreCall::Claim(claim));
    }

    pub(super) fn claimed(&mut self, result: Result<Claimed, StoreError>) {
        self.claiming = false;
        let again = self.now + self.config.sweep;
        let claimed = match result {
            Ok(claimed) => claimed,
            Err(error) => {
                self.slots.claimed([]);
                self.tell_trouble(Some(error));
                self.next_claim = self.stop_by.is_none().then_some(again);
                return;
            }
        };
        self.adjust(claimed.now);
        for job in &claimed.jobs {
            self.meters.queue_wait.observe(claimed.now.since(job.due));
        }
        self.slots.claimed(claimed.jobs.iter().map(|job| &job.lane.queue));
        if self.stop_by.is_none() {
            // Somebody else's commit can make a job ready too: look again now and then.
            self.backlog = !claimed.jobs.is_empty() || self.slots.any_full();
            let current = self.claim_saw == self.changes;
            self.quiet = (current && claimed.jobs.is_empty()).then_some(claimed.next_due);
            let next = if claimed.jobs.is_empty() {
                claimed.next_due.map_or(again, |due| self.clock.local(due).min(again))
            } else {
                self.now
            };
            // What was asked for meanwhile stays asked for: this claim may have been too early to see it.
            self.next_claim = Some(self.next_claim.map_or(next, |asked| asked.min(next)));
        }
        if !claimed.jobs.is_empty() {
            self.prepare(claimed.jobs);
        }
    }

    /// Starts the attempts of claimed jobs; loads what they need unless it's cached.
    pub(super) fn prepare(&mut self, jobs: Vec<LeasedJob>) {
        let mut load = Vec::new();
        for job in jobs {
            match self.ledger.launch(&job) {
                Some(launch) => self.launch(launch),
                None => load.push(job),
            }
        }
        if !load.is_empty() {
            self.preparing += load.len();
            self.call(StoreCall::Prepare(load));
        }
    }

    pub(super) fn prepared(&mut self, launches: Vec<Prepared>, failed: Vec<LeasedJob>) {
        self.preparing -= launches.len() + failed.len();
        for Prepared { launch, seen } in launches {
            self.ledger.learn(&launch.attempt.run, seen);
            self.launch(launch);
        }
        if failed.is_empty() {
            return;
        }
        failed.iter().for_each(|job| self.free(&job.lane.queue));
        let given_back = |job: LeasedJob| Extend { run: job.run, key: job.key, token: job.token };
        self.call(StoreCall::Release(failed.into_iter().map(given_back).collect()));
    }

    pub(super) fn launch(&mut self, launch: Launch) {
        if launch.first_line == FirstLine::Awaited {
            let data = started_data(&self.instance, &self.instance, Some(self.store_now()));
            let run = launch.attempt.run.clone();
            let (input, lease) = launch.attempt.end_wait(data);
            let reply = Reply::Launch(Box::new(launch));
            return self.ledger.offer(run, InputEntry::new(input, Vec::new(), Some(lease), reply));
        }
        self.attempts.insert(launch.attempt.token, launch.attempt.clone());
        let now = self.store_now();
        self.actions.push(DriverOrder::Launch(launch, now));
    }

    /// An attempt is over. Until its outcome is decided its slot is kept for the steps that follow: handed over they take one
    /// commit, and this instance already knows the run.
    pub(super) fn finished(&mut self, token: Token, run: RunKey, mut entry: InputEntry<Reply<R>>) {
        if let Some(attempt) = self.attempts.remove(&token) {
            if self.is_shared(&run, attempt.step) {
                self.ledger.doubt(&run);
            }
            self.slots.end(attempt.queue());
            self.ending.insert(token, attempt.queue().clone());
            let caller = match entry.reply {
                Reply::Caller(caller) => Some(caller),
                _ => None,
            };
            entry.reply = Reply::Slot(token, caller);
        } else if self.meters.conflicts.load(Ordering::Relaxed) > 0 {
            // A remote worker's: what came before may have gone through another instance.
            self.ledger.doubt(&run);
        }
        self.ledger.offer(run, entry);
    }

    /// The outcome of an attempt is decided: whatever is left of its slot is for anyone.
    pub(super) fn ended_attempt(&mut self, token: Token) {
        if let Some(queue) = self.ending.remove(&token) {
            self.slots.ended(&queue);
            self.free(&queue);
        }
    }

    /// Whether another instance is likely to be at work on a run that this attempt belonged to: some step is under way and
    /// not here. Never true on an instance that has had no conflicts, because it's alone.
    pub(super) fn is_shared(&self, run: &RunKey, done: u32) -> bool {
        if self.meters.conflicts.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let of_run = self.attempts.values().filter(|attempt| attempt.run == *run);
        let here: BTreeSet<u32> = of_run.map(|attempt| attempt.step).chain([done]).collect();
        let elsewhere = |step| !here.contains(&step);
        self.ledger.seen(run).is_some_and(|seen| seen.state.live().any(elsewhere))
    }

    /// The lease of an attempt is gone: the attempt is stopped, and reports nothing.
    pub(super) fn lost(&mut self, token: Token) {
        if let Some(attempt) = self.attempts.remove(&token) {
            self.actions.push(DriverOrder::Stop(token));
            self.free(attempt.queue());
        }
    }
}
