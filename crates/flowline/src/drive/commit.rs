//! Commits: decides what can be decided, has it written, and acts on the commits that landed.

use std::time::Duration;

use flowline_core::decide::Refusal;
use flowline_core::{RunKey, Status};
use flowline_store::job::REMOTE;
use flowline_store::{CommitError, Committed, LeaseUse, StoreError, Token};

use super::{BATCH, Driver, DriverOrder, FLIGHTS, RETRY_STORE, Reply, RunEnd, StoreCall};
use crate::attempt::{FirstLine, Launch};
use crate::ledger::{Batch, HandedOff, InputOutcome, Unused};
use crate::meters::count;

impl<R> Driver<R> {
    /// Decides a batch of inputs and asks the store for what follows. False if there was nothing to decide, or no room for a
    /// further batch on its way to the store.
    pub fn pump(&mut self) -> bool {
        if self.flights >= FLIGHTS {
            return false;
        }
        let batch = self.ledger.next(self.store_now(), &mut self.slots, BATCH);
        let asks = batch.questions() > 0;
        let Batch { mut commits, loads, missing, costly, replies } = batch;
        self.reply(replies);
        for commit in &mut commits {
            for lease in &commit.leases {
                if let LeaseUse::Finish { token, .. } | LeaseUse::Whole { token, .. } = lease {
                    self.ended_attempt(*token);
                }
            }
            for receipt in commit.receipts.iter_mut().filter(|receipt| receipt.status.is_started()) {
                receipt.worker = Some(self.config.instance.clone());
            }
        }
        for (run, missing) in missing {
            self.call(StoreCall::LookUp(run, missing));
        }
        self.actions.extend(costly.into_iter().map(|costly| DriverOrder::Decide(Box::new(costly))));
        if !loads.is_empty() {
            self.call(StoreCall::Load(loads));
        }
        if !commits.is_empty() {
            self.flights += 1;
            self.call(StoreCall::Commit(commits));
        }
        asks
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
                count(&self.meters.batches);
                for (run, result) in runs.iter().zip(results) {
                    self.tell_commit(run, &result);
                    if let Ok(committed) = &result {
                        self.adjust(committed.ts.max(self.store_now()));
                    }
                    self.landed(run, result);
                }
            }
            Err(error) => runs.iter().for_each(|run| self.question_failed(run, &error)),
        }
    }

    fn landed(&mut self, run: &RunKey, result: Result<Committed, CommitError>) {
        self.changes += 1;
        (self.quiet, self.ahead) = (None, None);
        let landed = self.ledger.committed(run, result, self.store_now());
        self.count_heard(landed.heard);
        self.not_used(landed.unused);
        self.reply(landed.replies);
        if let Some(due) = landed.waiting {
            self.claim_by(due);
            // What is due now is to be claimed; only what is due later may be a timer.
            if due > self.store_now() {
                self.next_sweep = self.next_sweep.min(self.clock.local(due));
            }
        }
        for handed in landed.handed {
            self.take_over(handed);
        }
        if let Some(ended) = landed.ended {
            self.tell_ended(run, &ended);
            self.ended(run, ended);
        }
    }

    /// What was reserved for hand-offs that did not come to be is for others.
    fn not_used(&mut self, unused: Vec<Unused>) {
        for Unused { lane, token } in unused {
            match *lane.need == *REMOTE {
                true => self.slots.cancel(token),
                false => self.free(&lane.queue),
            }
        }
    }

    /// Starts an attempt that a commit handed to this instance, or passes on one that it handed to a worker elsewhere.
    fn take_over(&mut self, handed: HandedOff) {
        self.meters.queue_wait.observe(Duration::ZERO);
        if *handed.attempt.planned().need == *REMOTE {
            return self.actions.push(DriverOrder::HandOff(handed));
        }
        match handed.launch() {
            Ok(launch) => self.launch(launch),
            Err(job) => self.prepare(vec![*job]),
        }
    }

    /// A run has ended: tells those who wait, and stops its attempts.
    fn ended(&mut self, run: &RunKey, ended: RunEnd) {
        let alone = ended.status == Status::Completed && self.attempts.is_empty();
        self.actions.push(DriverOrder::Ended(run.clone(), ended));
        if alone {
            return;
        }
        let of_run = self.attempts.iter().filter(|(_, running)| running.run == *run);
        let tokens: Vec<Token> = of_run.map(|(token, _)| *token).collect();
        tokens.into_iter().for_each(|token| self.lost(token));
    }

    /// The store couldn't answer: the run's inputs wait, or are refused if waiting can't help.
    pub(super) fn question_failed(&mut self, run: &RunKey, error: &StoreError) {
        // Whoever drains has until its deadline: an attempt that may finish may also write.
        let waits = self.stop_by.is_none_or(|by| self.now < by);
        if error.is_transient() && waits {
            let unused = self.ledger.failed(run);
            self.not_used(unused);
            self.tell_trouble(Some(error.clone()));
            let replies = match error.nothing_written() {
                true => self.ledger.refuse_outside(run, error),
                false => self.ledger.refuse_unnamed(run, error),
            };
            self.reply(replies);
            self.retry.push(run.clone());
            let pause = RETRY_STORE.saturating_mul(1 << self.trouble.min(6));
            self.trouble += 1;
            self.next_retry.get_or_insert(self.now + pause.min(Duration::from_secs(1)));
            return;
        }
        let (replies, unused) = self.ledger.abandon(run, || error.clone());
        self.not_used(unused);
        self.reply(replies);
    }

    pub(super) fn reply(&mut self, replies: Vec<(Reply<R>, InputOutcome)>) {
        for (reply, outcome) in replies {
            match outcome {
                InputOutcome::Applied { .. } => count(&self.meters.repeated),
                InputOutcome::Exists => count(&self.meters.existed),
                InputOutcome::StaleLease(_) | InputOutcome::Refused(Refusal::OtherOutcome { .. }) => {
                    count(&self.meters.stale)
                }
                _ => {}
            }
            match reply {
                Reply::None => {}
                Reply::Slot(token, caller) => {
                    self.ended_attempt(token);
                    self.actions.extend(caller.map(|caller| DriverOrder::Reply(caller, outcome)));
                }
                Reply::Caller(caller) => self.actions.push(DriverOrder::Reply(caller, outcome)),
                Reply::Launch(launch) => match outcome {
                    // Applied before: by a commit of its own whose outcome was unknown.
                    InputOutcome::Committed { .. } | InputOutcome::Applied { .. } => {
                        self.launch(Launch { first_line: FirstLine::Written, ..*launch });
                    }
                    _ => self.free(launch.attempt.queue()),
                },
            }
        }
    }
}
