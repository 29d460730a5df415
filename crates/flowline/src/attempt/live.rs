//! An attempt that runs in this process.
//!
//! Its lines are appended every 50 ms, or committed together with the outcome if that's ready first. So a quick step
//! costs one commit, and a slow one can be watched.

#[cfg(feature = "command")]
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowline_core::Time;
use flowline_core::json::Json;
use flowline_core::limits::Limits;
use flowline_store::{Append, StateScope, StateSpace, Store, StoreError};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::record::{self, Record};
use super::volume::{self, LogRoom, LogTally, LogVolume};
use super::{ASK_AGAIN, Attempt, FLUSH, Launch, out_of_time_error};
use crate::aside::Aside;
use crate::drive::host::Mail;
use crate::drive::{DriverMessage, Reply};
use crate::meters::Meters;
use crate::runner::{Runner, StepFuture};
use crate::step::{Level, Step, StepError};
use crate::trace::SpanEnd;

/// Lines that a program may be ahead of the store.
#[cfg(feature = "command")]
const BUFFERED: usize = 250;

/// The longest pause of a tenant after a large write of its lines.
const REST: Duration = Duration::from_millis(100);

/// An attempt that runs in this process.
pub(crate) struct LiveAttempt {
    pub(crate) attempt: Attempt,
    pub(crate) limits: Limits,
    /// By the store's clock.
    #[cfg(feature = "http")]
    began: Time,
    store: Arc<dyn Store>,
    inbox: mpsc::UnboundedSender<Mail>,
    record: Mutex<Record>,
    pub(crate) aside: Arc<Aside>,
    tally: Arc<LogTally>,
    logged: Mutex<LogVolume>,
    /// Held while lines are on their way to the log, so that they land in order.
    flushing: tokio::sync::Mutex<()>,
}

/// The instance that an attempt runs in.
pub(crate) struct Workplace {
    pub store: Arc<dyn Store>,
    pub inbox: mpsc::UnboundedSender<Mail>,
    /// Its name, as JSON.
    pub instance: Json,
    pub limits: Limits,
    pub aside: Arc<Aside>,
    pub tally: Arc<LogTally>,
    pub meters: Arc<Meters>,
}

impl Launch {
    /// Runs the attempt to its end and sends the outcome to the run. `began` is now by the store's clock. Without a
    /// runner the attempt fails.
    pub(crate) async fn run(self, runner: Option<Arc<dyn Runner>>, place: Workplace, began: Time) {
        let Workplace { store, inbox, instance, limits, aside, tally, meters } = place;
        let start = std::time::Instant::now();
        let record = Mutex::new(Record::new(&self, &instance, began));
        let timeout = self.attempt.timeout();
        let live = Arc::new(LiveAttempt {
            attempt: self.attempt,
            limits,
            #[cfg(feature = "http")]
            began,
            store,
            inbox,
            record,
            aside,
            tally,
            logged: Mutex::default(),
            flushing: tokio::sync::Mutex::new(()),
        });
        let input = self.input.within("the step's input", limits.join());
        let outcome = match (input, runner) {
            (Ok(input), Some(runner)) => {
                live.watch(runner.run(Step { live: live.clone() }, input), timeout).await
            }
            (Ok(_), None) => {
                Err(StepError::fatal("this engine has no runner for the step").code("no_runner"))
            }
            (Err(error), _) => Err(StepError::fatal(error).code("too_large")),
        };
        let meter = if outcome.is_ok() { &meters.completed } else { &meters.failed };
        meter.observe(start.elapsed());
        if let Some(spans) = &meters.spans {
            spans.put(live.attempt.span((began, began + start.elapsed()), SpanEnd::of(&outcome)));
        }
        live.finish(outcome).await;
    }
}

impl LiveAttempt {
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Polls the step's future and writes its lines until it ends or times out.
    async fn watch(&self, mut work: StepFuture, timeout: Option<Duration>) -> Result<Json, StepError> {
        let deadline = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
        let out_of_time = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(out_of_time);
        loop {
            tokio::select! {
                biased;
                outcome = &mut work => return outcome,
                () = &mut out_of_time => {
                    // What the step is writing is seen to its end, or nobody would know which lines are in the log.
                    tokio::select! {
                        biased;
                        _ = &mut work => {}
                        _ = self.flushing.lock() => {}
                    }
                    return Err(out_of_time_error(timeout.unwrap_or_default()));
                }
                turn = self.next_flush() => {
                    // Where the step itself is writing, it must be polled to get done: waiting for it here would be for
                    // ever.
                    if let Ok(order) = self.flushing.try_lock() {
                        self.write_in_turn(&order, turn).await?;
                    }
                }
            }
        }
    }

    /// Waits until lines are to be written, and for the turn to write them.
    async fn next_flush(&self) -> Option<OwnedSemaphorePermit> {
        tokio::time::sleep(FLUSH).await;
        self.turn().await
    }

    async fn finish(&self, outcome: Result<Json, StepError>) {
        let order = self.flushing.lock().await;
        if self.record().must_append() {
            // Where the lease is gone, the outcome will be refused as well.
            let _ = self.write_lines(&order).await;
        }
        let entry = self.record().finish(outcome, Reply::None);
        let message = DriverMessage::Finished(self.attempt.token, self.attempt.run.clone(), entry);
        let _ = self.inbox.send(Mail::Message(message));
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn emit(&self, name: &str, payload: Json) {
        self.record().emit(name, payload);
    }

    pub(crate) fn log(
        &self,
        level: Level,
        message: &str,
        fields: Option<serde_json::Map<String, serde_json::Value>>,
    ) {
        let mut logged = self.logged.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if logged.is_cut() {
            return;
        }
        let line = record::log_data(level, message, fields);
        match logged.ask(&self.tally, &self.attempt.run, line.get().len(), &self.limits) {
            LogRoom::Fits => self.record().log_line(line),
            LogRoom::Cut(limit) => self.record().log(Level::Warn, &volume::cut_here(limit), None),
            LogRoom::Over => {}
        }
    }

    /// Whether what it logs is discarded.
    #[cfg(feature = "command")]
    pub(crate) fn log_is_cut(&self) -> bool {
        self.logged.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_cut()
    }

    /// Waits for room in the buffer: a step that logs faster than the store writes is slowed down, not buffered for ever.
    #[cfg(feature = "command")]
    pub(crate) async fn make_room(&self) -> Result<(), StepError> {
        if self.record().waiting() < BUFFERED {
            return Ok(());
        }
        let order = self.flushing.lock().await;
        self.write_lines(&order).await
    }

    /// Writes what has been said so far, and waits for that.
    #[cfg(feature = "http")]
    pub(crate) async fn flush(&self) -> Result<(), StepError> {
        let order = self.flushing.lock().await;
        self.write_lines(&order).await
    }

    /// By which anyone who is told can say the outcome of this attempt.
    #[cfg(feature = "http")]
    pub(crate) async fn lease_ref(&self) -> Result<crate::LeaseRef, StoreError> {
        let Attempt { run, step, number, token, .. } = &self.attempt;
        let unsealed = crate::LeaseRef {
            run: run.clone(),
            step: *step,
            attempt: *number,
            token: *token,
            claimed: self.began,
            seal: None,
        };
        Ok(unsealed.sealed(&crate::seal::Sealer::of(&*self.store).await?))
    }

    /// Writes the buffered lines to the log. An error means that the lease is gone.
    async fn write_lines(&self, order: &tokio::sync::MutexGuard<'_, ()>) -> Result<(), StepError> {
        let turn = self.turn().await;
        self.write_in_turn(order, turn).await
    }

    /// Waits for the tenant's turn to write, if there is much to write: a few lines are written at once.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let is_large = self.record().is_large();
        if is_large { self.tally.turn(&self.attempt.run.tenant).await } else { None }
    }

    async fn write_in_turn(
        &self,
        _order: &tokio::sync::MutexGuard<'_, ()>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<(), StepError> {
        let Some(append) = self.record().append() else { return Ok(()) };
        let took = self.write(append).await?;
        if let Some(turn) = turn {
            // A tenant's large writes take up half of the store's time at most.
            tokio::spawn(async move {
                tokio::time::sleep(took.min(REST)).await;
                drop(turn);
            });
        }
        Ok(())
    }

    /// Writes lines, however often that must be tried. Returns how long it took the time that it worked.
    async fn write(&self, append: Append) -> Result<Duration, StepError> {
        let mut failed = false;
        loop {
            let began = tokio::time::Instant::now();
            let answer = self.store.append(vec![append.clone()]).await;
            let took = began.elapsed();
            if failed || answer.is_err() {
                let trouble = DriverMessage::Trouble(answer.as_ref().err().cloned());
                let _ = self.inbox.send(Mail::Message(trouble));
                failed = true;
            }
            match answer {
                Ok(results) => match results.into_iter().next() {
                    Some(result) => return self.record().appended(result).map(|()| took),
                    None => return Err(record::lease_gone()),
                },
                Err(error) if error.is_transient() => tokio::time::sleep(ASK_AGAIN).await,
                Err(error) => return Err(StepError::new(error)),
            }
        }
    }

    pub(crate) async fn emit_now(&self, name: &str, payload: Json) -> Result<(), StepError> {
        let order = self.flushing.lock().await;
        if self.record().must_append() {
            self.write_lines(&order).await?;
        }
        let (reply, answer) = oneshot::channel();
        let entry = self.record().emit_now(name, payload, Reply::Caller(reply.into()));
        let _ = self.inbox.send(Mail::Message(DriverMessage::Offer(self.attempt.run.clone(), entry)));
        match answer.await {
            Ok(outcome) => self.record().emitted(outcome),
            Err(_) => Err(record::lease_gone()),
        }
    }

    pub(crate) async fn get(&self, scope: StateScope, key: &str) -> Result<Option<Json>, StepError> {
        record::check_state(&scope, key)?;
        let Attempt { run, plan, .. } = &self.attempt;
        let space = StateSpace::new(&run.tenant, scope.of(&run.run, &plan.flow));
        let found = self.ask(|| self.store.state(&space, key)).await?;
        self.record().get(&scope, key)?;
        Ok(found.map(|found| found.value))
    }

    /// All key-value state of the run; `None` if it's too much.
    #[cfg(feature = "command")]
    pub(crate) async fn states(&self) -> Result<Option<BTreeMap<String, Json>>, StepError> {
        let found = self.ask(|| crate::state::of_run(&*self.store, &self.attempt.run, usize::MAX)).await?;
        Ok(found.map(|(state, _)| state))
    }

    /// The stored definition that the run is pinned to.
    #[cfg(feature = "command")]
    pub(crate) async fn definition(&self) -> Result<Option<flowline_store::StoredDefinition>, StepError> {
        let Attempt { run, plan, .. } = &self.attempt;
        self.ask(|| self.store.definition(&run.tenant, &plan.hash)).await
    }

    /// Asks until the store can answer: an outage doesn't fail the step. An attempt that loses its lease meanwhile is stopped
    /// by [`LiveAttempt::watch`].
    async fn ask<T, F>(&self, question: impl Fn() -> F) -> Result<T, StepError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match question().await {
                Err(error) if error.is_transient() => tokio::time::sleep(ASK_AGAIN).await,
                answer => return Ok(answer?),
            }
        }
    }

    pub(crate) async fn set(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Json>,
        ttl: Option<Duration>,
    ) -> Result<(), StepError> {
        let order = self.flushing.lock().await;
        self.record().set(scope, key, value, ttl)?;
        self.write_lines(&order).await
    }
}
