//! Work: jobs are claimed while there is room, and their attempts run.

use flowline_core::{Input, Time};
use flowline_store::{Claimed, Gone, JobKey, LeaseUse, LeasedJob, StoreError, Token};
use std::sync::atomic::Ordering;
use tokio::time::Instant;

use super::load::prepare;
use super::{Answer, Driver, Reply, Running};
use crate::attempt::{Launch, started_data};
use crate::config::Role;
use crate::ledger::Entry;

impl Driver {
    pub(super) fn claim_by(&mut self, due: Time) {
        if self.stop_by.is_none() && self.config.role == Role::Work {
            let at = self.clock.instant(due);
            self.next_claim = Some(self.next_claim.map_or(at, |next| next.min(at)));
        }
    }

    /// A slot is free: whatever waits for one can be claimed.
    pub(super) fn free(&mut self, queue: &str) {
        self.slots.free(queue);
        if self.backlog && self.stop_by.is_none() {
            self.next_claim = Some(Instant::now());
        }
    }

    pub(super) fn claim(&mut self) {
        let Some(claim) = self.slots.claim() else { return };
        self.claiming = true;
        self.meters.claims.fetch_add(1, Ordering::Relaxed);
        let store = self.store.clone();
        self.ask(async move { Answer::Claimed(store.claim(claim).await) });
    }

    pub(super) fn claimed(&mut self, result: Result<Claimed, StoreError>) {
        self.claiming = false;
        let again = Instant::now() + self.config.sweep;
        let claimed = match result {
            Ok(claimed) => claimed,
            Err(error) => {
                self.tell_trouble(Some(error));
                self.next_claim = self.stop_by.is_none().then_some(again);
                return;
            }
        };
        self.clock.adjust(claimed.now);
        for job in &claimed.jobs {
            self.slots.take(&job.lane.queue);
        }
        if self.stop_by.is_none() {
            // Somebody else's commit can make a job ready too: look again now and then.
            self.backlog = !claimed.jobs.is_empty() || self.slots.any_full();
            self.quiet = claimed.jobs.is_empty().then_some(claimed.next_due);
            let next = if claimed.jobs.is_empty() {
                claimed.next_due.map_or(again, |due| self.clock.instant(due).min(again))
            } else {
                Instant::now()
            };
            self.next_claim = Some(next);
        }
        if !claimed.jobs.is_empty() {
            self.prepare(claimed.jobs);
        }
    }

    /// Loads what the attempts of claimed jobs need.
    pub(super) fn prepare(&mut self, jobs: Vec<LeasedJob>) {
        self.preparing += jobs.len();
        let (store, plans) = (self.store.clone(), self.plans.clone());
        self.ask(async move {
            let (launches, failed) = prepare(&*store, &plans, jobs).await;
            Answer::Prepared(launches, failed)
        });
    }

    pub(super) fn launch(&mut self, launch: Launch, delayed: bool) {
        if delayed {
            // The log must say that the wait is over, for the run's status follows from the log.
            let (run, step, attempt) = (launch.run.clone(), launch.step, launch.attempt);
            let entry = Entry {
                input: Input::Started {
                    step,
                    attempt,
                    data: started_data(&self.instance, Some(self.clock.now())),
                },
                lines: Vec::new(),
                lease: Some(LeaseUse::Keep {
                    key: JobKey::Step(step),
                    attempt,
                    token: launch.token,
                    lines: 1,
                }),
                reply: Reply::Launch(Box::new(launch)),
            };
            self.ledger.offer(run, entry);
            return;
        }
        let planned = launch.plan.step(launch.step);
        let Some(runner) = self.runners.get(&planned.need) else { return };
        let (token, run, key) = (launch.token, launch.run.clone(), JobKey::Step(launch.step));
        let queue = planned.queue.clone();
        let (store, inbox, instance) = (self.store.clone(), self.inbox.clone(), self.instance.clone());
        let work = launch.run(runner, store, inbox, instance, self.clock.now());
        let stop = self.tasks.spawn(work);
        self.attempts.insert(token, Running { run, key, queue, stop });
    }

    /// The lease of an attempt is gone: the attempt is stopped, and reports nothing.
    pub(super) fn lost(&mut self, token: Token, _why: Gone) {
        if let Some(running) = self.attempts.remove(&token) {
            running.stop.abort();
            self.free(&running.queue);
        }
    }
}
