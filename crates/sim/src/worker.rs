//! A simulated attempt: the stub of a step, with the real record of what it says.

use std::sync::Arc;
use std::time::Duration;

use flowline::internal::{
    ASK_AGAIN, Attempt, DriverMessage, FLUSH, InputEntry, InputOutcome, Launch, Record, Reply,
    out_of_time_error, started_data,
};
use flowline::{Level, StepError};
use flowline_check::{AttemptReport, Effect, RepeatedReport, ReportReply};
use flowline_core::decide::{AttemptFailure, Retryable};
use flowline_core::event::{EventType, NewEvent};
use flowline_core::{DecideInput, Json, Time};
use flowline_store::{LeaseUse, RunStore};

use crate::instance::{SimInstance, ended};
use crate::program::{Doing, ScriptedAttempt, ScriptedOutcome};
use crate::shared::{Life, SharedWorld, Ticket, WaitPlace};
use crate::wire::Wire;

pub(crate) struct SimulatedWorker {
    shared: Arc<SharedWorld>,
    wire: Wire,
    life: Life,
    worker: Arc<str>,
    attempt: Attempt,
    record: Record,
    first_line: NewEvent,
    /// When its last lines were flushed, or it began.
    flushed: Duration,
}

impl SimulatedWorker {
    pub(crate) fn new(
        shared: Arc<SharedWorld>,
        instance: &SimInstance,
        launch: &Launch,
        began: Time,
    ) -> SimulatedWorker {
        let flushed = shared.lock().now;
        SimulatedWorker {
            record: Record::new(launch, &instance.json, began),
            first_line: launch
                .attempt
                .event(EventType::StepStarted, started_data(&instance.json, &instance.json, Some(began))),
            attempt: launch.attempt.clone(),
            shared,
            wire: instance.wire.clone(),
            life: instance.life,
            worker: instance.name.clone(),
            flushed,
        }
    }

    /// Plays an act, reports its outcome and writes down what came of the report.
    pub(crate) async fn play(mut self, act: ScriptedAttempt) {
        let outcome = self.perform(act).await;
        if self.record.must_append() {
            let _ = self.write_lines().await;
        }
        let reported = if outcome.is_ok() { AttemptReport::Done } else { AttemptReport::Failed };
        let (ticket, input, lease) = {
            let mut inner = self.shared.lock();
            let ticket = inner.ticket(self.life);
            let entry = self.record.finish(outcome, Reply::Caller(ticket));
            let entry = self.unaware(entry);
            let (input, lease) = (entry.input.clone(), entry.lease.clone());
            inner.mail.push_back((self.life, self.finished(entry)));
            inner.effects.log.push(ended(&self.attempt, &self.worker, reported));
            (ticket, input, lease)
        };
        let Some(answer) = said(self.shared.answered(ticket, None).await) else { return };
        let Attempt { run, number: attempt, .. } = self.attempt.clone();
        let step = self.attempt.name().clone();
        self.shared.lock().effects.log.push(Effect::Answered { run, step, attempt, answer });
        self.repeat(input, lease).await;
    }

    /// Sometimes reports like an instance that doesn't know whether the attempt's first line is in the log.
    fn unaware(&self, entry: InputEntry<Reply<Ticket>>) -> InputEntry<Reply<Ticket>> {
        let aware = self.attempt.token.0 >> 88 & 1 == 0;
        if aware || entry.lines.iter().any(|line| line.kind != EventType::StepStarted) {
            return entry;
        }
        entry.with_first_line(self.first_line.clone())
    }

    /// Sometimes reports again to any instance after an answer: the same, or something else. Its token decides whether and
    /// when, so that the world's random numbers stay the same.
    async fn repeat(self, input: DecideInput, lease: Option<LeaseUse>) {
        let dice = (self.attempt.token.0 >> 64) as u64;
        if !dice.is_multiple_of(6) {
            return;
        }
        // Up to four seconds, or up to half a minute: by then retention may have trimmed the log.
        let most = if dice >> 21 & 1 == 0 { 0xfff } else { 0x7fff };
        self.shared.sleep(Duration::from_millis(dice >> 24 & most), WaitPlace::Home).await;
        let (step, attempt) = (self.attempt.step, self.attempt.number);
        let (report, input) = match dice >> 20 & 1 {
            0 => (RepeatedReport::Same, input),
            _ => {
                let error = "something that it never said before".to_owned();
                let failure = AttemptFailure { error, code: None, stack: None, retry: Retryable::ByPolicy };
                (RepeatedReport::Other, DecideInput::Failed { step, attempt, failure })
            }
        };
        let ticket = {
            let mut inner = self.shared.lock();
            let Some(&life) = inner.up.get(dice as usize % inner.up.len().max(1)) else { return };
            let ticket = inner.ticket(life);
            let entry = InputEntry::new(input, Vec::new(), lease, Reply::Caller(ticket));
            inner.mail.push_back((life, self.finished(entry)));
            ticket
        };
        let Some(answer) = said(self.shared.answered(ticket, None).await) else { return };
        let (step, attempt, run) = (self.attempt.name().clone(), self.attempt.number, self.attempt.run);
        let again = Effect::AnsweredAgain { run, step, attempt, report, answer };
        self.shared.lock().effects.log.push(again);
    }

    fn finished(&self, entry: InputEntry<Reply<Ticket>>) -> DriverMessage<Ticket> {
        DriverMessage::Finished(self.attempt.token, self.attempt.run.clone(), entry)
    }

    async fn perform(&mut self, act: ScriptedAttempt) -> Result<Json, StepError> {
        let began = self.flushed;
        let late = self.attempt.timeout().filter(|timeout| *timeout < act.takes);
        let end = late.unwrap_or(act.takes);
        let acts_at = act.effect.min(end);
        let mut acted = false;
        for (at, doing) in act.doings {
            if !acted && acts_at <= at {
                self.until(began + acts_at).await;
                self.act_on_the_world();
                acted = true;
            }
            self.until(began + at).await;
            self.act(doing).await?;
        }
        if !acted {
            self.until(began + acts_at).await;
            self.act_on_the_world();
        }
        self.until(began + end).await;
        if let Some(timeout) = late {
            return Err(out_of_time_error(timeout));
        }
        match act.outcome {
            ScriptedOutcome::Done { result, emits } => {
                emits.into_iter().for_each(|(name, payload)| self.record.emit(&name, payload));
                Ok(result)
            }
            ScriptedOutcome::Failed { error, code, retry } => {
                let failed = match retry {
                    Retryable::Never => StepError::fatal(error),
                    Retryable::After(delay) => StepError::new(error).retry_after(delay),
                    Retryable::ByPolicy => StepError::new(error),
                };
                Err(match code {
                    Some(code) => failed.code(&code),
                    None => failed,
                })
            }
        }
    }

    fn act_on_the_world(&self) {
        let Attempt { run, step, number, .. } = &self.attempt;
        self.shared.lock().acted.push((run.clone(), *step, *number));
    }

    async fn act(&mut self, doing: Doing) -> Result<(), StepError> {
        match doing {
            Doing::Log(line) => {
                self.record.log(Level::Info, &line, None);
                Ok(())
            }
            Doing::Set(scope, key, value, ttl) => {
                self.record.set(scope, &key, value, ttl)?;
                self.write_lines().await
            }
            Doing::Get(scope, key) => self.record.get(&scope, &key),
            Doing::EmitNow(name, payload) => {
                if self.record.must_append() {
                    self.write_lines().await?;
                }
                let ticket = {
                    let mut inner = self.shared.lock();
                    let ticket = inner.ticket(self.life);
                    let Attempt { run, number: attempt, .. } = self.attempt.clone();
                    let step = self.attempt.name().clone();
                    let emitted = Effect::EmittedNow { run, step, attempt, name: name.clone() };
                    inner.effects.log.push(emitted);
                    let entry = self.record.emit_now(&name, payload, Reply::Caller(ticket));
                    inner.mail.push_back((self.life, DriverMessage::Offer(self.attempt.run.clone(), entry)));
                    ticket
                };
                match self.shared.answered(ticket, None).await {
                    Some(outcome) => self.record.emitted(outcome),
                    // Its process is gone, and it with it.
                    None => std::future::pending().await,
                }
            }
        }
    }

    /// Waits, and flushes lines that have waited long enough meanwhile.
    async fn until(&mut self, until: Duration) {
        while self.record.waiting() > 0 && self.flushed + FLUSH < until {
            self.shared.sleep_until(self.flushed + FLUSH, WaitPlace::Home).await;
            // A step whose lease is gone is stopped by the heartbeat; here it is enough to stop writing.
            let _ = self.write_lines().await;
            self.flushed = self.shared.lock().now;
        }
        self.shared.sleep_until(until, WaitPlace::Home).await;
    }

    async fn write_lines(&mut self) -> Result<(), StepError> {
        let Some(append) = self.record.append() else { return Ok(()) };
        loop {
            match self.wire.append(vec![append.clone()]).await {
                Ok(results) => {
                    let Some(result) = results.into_iter().next() else { continue };
                    return self.record.appended(result);
                }
                Err(_) => self.shared.sleep(ASK_AGAIN, WaitPlace::Home).await,
            }
        }
    }
}

/// What an attempt is told of its report; `None` where that is nothing.
fn said(outcome: Option<InputOutcome>) -> Option<ReportReply> {
    match outcome? {
        InputOutcome::Committed { .. } | InputOutcome::Applied { .. } => Some(ReportReply::Acknowledged),
        InputOutcome::Refused(_) | InputOutcome::StaleLease(_) => Some(ReportReply::Refused),
        _ => None,
    }
}
