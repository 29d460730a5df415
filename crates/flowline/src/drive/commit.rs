//! Commits: what can be decided is decided and written, and what a landed commit sets off is set off.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flowline_core::event::Slot;
use flowline_core::{Json, RunKey, Status};
use flowline_store::{
    Commit, CommitError, Committed, Gone, JobKey, JobState, Lane, LeasedJob, StoreError, Token,
};
use tokio::time::Instant;

use super::load::{load, open};
use super::{Answer, BATCH, Driver, Ended, FLIGHTS, Message, RETRY_STORE, Reply};
use crate::attempt::Launch;
use crate::ledger::{Ask, Handed, Outcome};

impl Driver {
    /// Decides what can be decided and sends the questions off.
    pub(super) fn pump(&mut self) {
        while self.flights < FLIGHTS {
            let (asks, replies) = self.ledger.next(self.clock.now(), &mut self.slots, BATCH);
            self.reply(replies);
            if asks.is_empty() {
                return;
            }
            let (mut commits, mut loads) = (Vec::new(), Vec::new());
            for ask in asks {
                match ask {
                    Ask::Commit(commit) => commits.push(*commit),
                    Ask::Load(run) => loads.push(run),
                    Ask::Payloads(run, slots) => self.ask_payloads(run, slots),
                    Ask::Leases(run) => self.ask_leases(run),
                }
            }
            if !loads.is_empty() {
                self.ask_load(loads);
            }
            if !commits.is_empty() {
                self.send_commits(commits);
            }
        }
    }

    pub(super) fn send_commits(&mut self, commits: Vec<Commit>) {
        self.flights += 1;
        let runs: Vec<RunKey> = commits.iter().map(|commit| commit.run.clone()).collect();
        let store = self.store.clone();
        self.ask(async move { Answer::Committed(runs, store.commit(commits).await) });
    }

    pub(super) fn committed(
        &mut self,
        runs: Vec<RunKey>,
        result: Result<Vec<Result<Committed, CommitError>>, StoreError>,
    ) {
        self.flights -= 1;
        match result {
            Ok(results) => {
                self.trouble = 0;
                self.tell_trouble(None);
                self.meters.batches.fetch_add(1, Ordering::Relaxed);
                for (run, result) in runs.iter().zip(results) {
                    match &result {
                        Ok(committed) => {
                            self.meters.commits.fetch_add(1, Ordering::Relaxed);
                            self.clock.adjust(committed.ts.max(self.clock.now()));
                        }
                        Err(CommitError::Conflict { .. }) => {
                            self.meters.conflicts.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {}
                    }
                    self.landed(run, result);
                }
            }
            Err(error) => runs.iter().for_each(|run| self.question_failed(run, &error)),
        }
    }

    pub(super) fn landed(&mut self, run: &RunKey, result: Result<Committed, CommitError>) {
        self.quiet = None;
        let landed = self.ledger.committed(run, result);
        landed.unused.iter().for_each(|queue| self.free(queue));
        self.reply(landed.replies);
        if let Some(due) = landed.waiting {
            self.claim_by(due);
            self.next_sweep = self.next_sweep.min(self.clock.instant(due));
        }
        for handed in landed.handed {
            self.take_over(handed);
        }
        if let Some((status, data)) = landed.ended {
            self.ended(run, Ended { status, data });
        }
    }

    /// Starts an attempt that a commit handed to this instance.
    pub(super) fn take_over(&mut self, handed: Handed) {
        let Handed { run, plan, step, attempt, handoff, input } = handed;
        let token = handoff.token;
        if let Some(input) = input {
            self.launch(Launch { run, plan, step, attempt, token, input, started: false }, false);
            return;
        }
        let planned = plan.step(step);
        let lane = Lane { queue: planned.queue.clone(), need: planned.need.clone() };
        let (key, name, expires) = (JobKey::Step(step), planned.name.clone(), self.clock.now() + handoff.ttl);
        self.prepare(vec![LeasedJob { run, key, name, attempt, lane, token, expires }]);
    }

    /// A run has ended: whoever waits is told, and attempts that are still running are stopped.
    pub(super) fn ended(&mut self, run: &RunKey, ended: Ended) {
        for waiter in self.waiters.remove(run).unwrap_or_default() {
            let _ = waiter.send(ended.clone());
        }
        if ended.status == Status::Completed && self.attempts.is_empty() {
            return;
        }
        let tokens: Vec<Token> = self
            .attempts
            .iter()
            .filter(|(_, running)| running.run == *run)
            .map(|(token, _)| *token)
            .collect();
        tokens.into_iter().for_each(|token| self.lost(token, Gone::RunEnded));
    }

    /// The store could not answer: the run's inputs wait, or are refused where waiting cannot help.
    pub(super) fn question_failed(&mut self, run: &RunKey, error: &StoreError) {
        if error.is_transient() && self.stop_by.is_none() {
            let unused = self.ledger.failed(run);
            unused.iter().for_each(|queue| self.free(queue));
            self.tell_trouble(Some(error.clone()));
            if error.nothing_written() {
                let replies = self.ledger.refuse_outside(run, error);
                self.reply(replies);
            }
            self.retry.push(run.clone());
            let pause = RETRY_STORE.saturating_mul(1 << self.trouble.min(6));
            self.trouble += 1;
            self.next_retry.get_or_insert(Instant::now() + pause.min(Duration::from_secs(1)));
            return;
        }
        let (replies, unused) = self.ledger.abandon(run, || error.clone());
        unused.iter().for_each(|queue| self.free(queue));
        self.reply(replies);
    }

    pub(super) fn ask_load(&mut self, runs: Vec<RunKey>) {
        let (store, plans) = (self.store.clone(), self.plans.clone());
        self.ask(async move {
            let result = load(&*store, &plans, &runs).await;
            Answer::Loaded(runs, result)
        });
    }

    pub(super) fn ask_payloads(&mut self, run: RunKey, slots: Vec<Slot>) {
        let store = self.store.clone();
        self.ask(async move {
            let found = store.payloads(&run, &slots).await;
            let opened = found.map(|found| {
                let open = |(slot, data): (_, Option<Json>)| (slot, open(slot, data));
                slots.into_iter().zip(found).map(open).collect()
            });
            Answer::Payloads(run, opened)
        });
    }

    pub(super) fn ask_leases(&mut self, run: RunKey) {
        let store = self.store.clone();
        self.ask(async move {
            let leased = store.jobs(&run).await.map(|jobs| {
                let leased = jobs.into_iter().filter(|job| job.state == JobState::Leased);
                leased
                    .filter_map(|job| if let JobKey::Step(step) = job.key { Some(step) } else { None })
                    .collect()
            });
            Answer::Leases(run, leased)
        });
    }

    /// Runs a call to the store; its answer comes back as a message.
    pub(super) fn ask(&mut self, call: impl Future<Output = Answer> + Send + 'static) {
        let inbox = self.inbox.clone();
        self.tasks.spawn(async move {
            let _ = inbox.send(Message::Answer(call.await));
        });
    }

    pub(super) fn reply(&mut self, replies: Vec<(Reply, Outcome)>) {
        for (reply, outcome) in replies {
            match reply {
                Reply::None => {}
                Reply::Outcome(sender) => drop(sender.send(outcome)),
                Reply::Launch(launch) => match outcome {
                    Outcome::Committed { .. } => self.launch(Launch { started: true, ..*launch }, false),
                    Outcome::Applied { .. } => self.launch(*launch, false),
                    _ => {
                        let queue = launch.plan.step(launch.step).queue.clone();
                        self.free(&queue);
                    }
                },
            }
        }
    }
}
