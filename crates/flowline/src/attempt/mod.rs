//! One running attempt: its record, and the way from there to its run.
//!
//! The record opens with `step.started`. It is flushed by a fenced append after a moment, or rides with the outcome,
//! whichever comes first; so a quick step costs one commit and a slow one can be watched.

pub mod record;

#[cfg(feature = "command")]
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowline_core::json::{self, Json};
use flowline_core::limits::Limits;
use flowline_core::{Plan, RunKey, Time};
use flowline_store::{StateScope, Store, StoreError, Token};
use tokio::sync::{mpsc, oneshot};

use crate::drive::host::Mail;
use crate::drive::{Message, Reply};
use crate::meters::Meters;
use crate::runner::Runner;
use crate::step::{Level, Step, StepError};
use crate::trace::{End, Span};

pub use record::Record;

/// How long lines wait for the outcome before they are written by themselves.
pub const FLUSH: Duration = Duration::from_millis(50);
/// Lines that a program may be ahead of the store.
#[cfg(feature = "command")]
const BUFFERED: usize = 1_000;
/// Pause between tries while the store is away.
pub const ASK_AGAIN: Duration = Duration::from_millis(200);

pub struct Attempt {
    pub run: RunKey,
    pub plan: Arc<Plan>,
    /// The label that names the run's trace.
    pub trace: Option<Arc<str>>,
    pub step: u32,
    pub attempt: u32,
    /// The transition of a machine that asked for it.
    pub transition: Option<u32>,
    pub(crate) limits: Limits,
    token: Token,
    /// By the store's clock.
    #[cfg(feature = "http")]
    began: Time,
    store: Arc<dyn Store>,
    inbox: mpsc::UnboundedSender<Mail>,
    record: Mutex<Record>,
    /// Held while lines are on their way to the log, so that they land in order.
    flushing: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attempt({} step {} attempt {})", self.run, self.step, self.attempt)
    }
}

/// What an attempt starts from.
pub struct Launch {
    pub run: RunKey,
    pub plan: Arc<Plan>,
    /// The label that names the run's trace.
    pub trace: Option<Arc<str>>,
    pub step: u32,
    pub attempt: u32,
    /// The transition of a machine that asked for it.
    pub transition: Option<u32>,
    pub token: Token,
    pub input: Json,
    /// Whether `step.started` is in the log already.
    pub started: bool,
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Launch({} step {} attempt {})", self.run, self.step, self.attempt)
    }
}

/// The instance that an attempt runs in.
pub(crate) struct Workplace {
    pub store: Arc<dyn Store>,
    pub inbox: mpsc::UnboundedSender<Mail>,
    /// Its name, as JSON.
    pub instance: Json,
    pub limits: Limits,
    pub meters: Arc<Meters>,
}

impl Launch {
    /// Runs the attempt to its end and sends the outcome to the run. `began` is now by the store's clock. Without a
    /// runner the attempt fails.
    pub(crate) async fn run(self, runner: Option<Arc<dyn Runner>>, place: Workplace, began: Time) {
        let Workplace { store, inbox, instance, limits, meters } = place;
        let start = std::time::Instant::now();
        let record = Mutex::new(Record::new(&self, &instance, began));
        let timeout = self.plan.step_definition(self.step).timeout;
        let attempt = Arc::new(Attempt {
            run: self.run,
            plan: self.plan,
            trace: self.trace,
            step: self.step,
            attempt: self.attempt,
            transition: self.transition,
            limits,
            token: self.token,
            #[cfg(feature = "http")]
            began,
            store,
            inbox,
            record,
            flushing: tokio::sync::Mutex::new(()),
        });
        let input = self.input.within("the step's input", limits.join());
        let outcome = match (input, runner) {
            (Ok(input), Some(runner)) => {
                attempt.watch(runner.run(Step { attempt: attempt.clone() }, input), timeout).await
            }
            (Ok(_), None) => {
                Err(StepError::fatal("this engine has no runner for the step").code("no_runner"))
            }
            (Err(error), _) => Err(StepError::fatal(error).code("too_large")),
        };
        let meter = if outcome.is_ok() { &meters.completed } else { &meters.failed };
        meter.observe(start.elapsed());
        if let Some(spans) = &meters.spans {
            spans.put(attempt.span((began, began + start.elapsed()), End::of(&outcome)));
        }
        attempt.finish(outcome).await;
    }
}

impl Attempt {
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Drives the step's future, flushing lines meanwhile, until it ends or its time is up.
    async fn watch(
        &self,
        mut work: crate::runner::Attempt,
        timeout: Option<Duration>,
    ) -> Result<Json, StepError> {
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
                () = tokio::time::sleep(FLUSH) => {
                    // Where the step itself is writing, it must be polled to get done: waiting for it here would be for
                    // ever.
                    if let Ok(order) = self.flushing.try_lock() {
                        self.write_lines(&order).await?;
                    }
                }
            }
        }
    }

    fn span(&self, times: (Time, Time), end: End) -> Option<Span> {
        let step = (self.plan.step(self.step).name.clone(), self.attempt);
        Span::attempt(&self.run, self.trace.as_deref(), &self.plan.flow, step, times, end)
    }

    async fn finish(&self, outcome: Result<Json, StepError>) {
        let order = self.flushing.lock().await;
        if self.record().must_append() {
            // Where the lease is gone, the outcome will be refused as well.
            let _ = self.write_lines(&order).await;
        }
        let entry = self.record().finish(outcome, Reply::None);
        let message = Message::Finished(self.token, self.run.clone(), entry);
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
        self.record().log(level, message, fields);
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
    pub(crate) fn lease_ref(&self) -> crate::LeaseRef {
        let (run, token, claimed) = (self.run.clone(), self.token, self.began);
        crate::LeaseRef { run, step: self.step, attempt: self.attempt, token, claimed }
    }

    /// Writes the buffered lines to the log. An error means that the lease is gone.
    async fn write_lines(&self, _order: &tokio::sync::MutexGuard<'_, ()>) -> Result<(), StepError> {
        let Some(append) = self.record().append() else { return Ok(()) };
        let mut failed = false;
        loop {
            let answer = self.store.append(vec![append.clone()]).await;
            if failed || answer.is_err() {
                let trouble = Message::Trouble(answer.as_ref().err().cloned());
                let _ = self.inbox.send(Mail::Message(trouble));
                failed = true;
            }
            match answer {
                Ok(results) => match results.into_iter().next() {
                    Some(result) => return self.record().appended(result),
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
        let entry = self.record().emit_now(name, payload, Reply::Caller(reply));
        let _ = self.inbox.send(Mail::Message(Message::Offer(self.run.clone(), entry)));
        match answer.await {
            Ok(outcome) => self.record().emitted(outcome),
            Err(_) => Err(record::lease_gone()),
        }
    }

    pub(crate) async fn get(&self, scope: StateScope, key: &str) -> Result<Option<Json>, StepError> {
        record::check_state(&scope, key)?;
        let owner = scope.of(&self.run.run, &self.plan.flow);
        let found = self.ask(|| self.store.state(&self.run.tenant, &owner, key)).await?;
        self.record().get(&scope, key)?;
        Ok(found.map(|found| found.value))
    }

    /// All key-value state of the run; `None` where it is too much to hand out.
    #[cfg(feature = "command")]
    pub(crate) async fn states(&self) -> Result<Option<BTreeMap<String, Json>>, StepError> {
        self.ask(|| crate::state::of_run(&*self.store, &self.run)).await
    }

    /// The stored definition that the run is pinned to.
    #[cfg(feature = "command")]
    pub(crate) async fn definition(&self) -> Result<Option<flowline_store::StoredDefinition>, StepError> {
        self.ask(|| self.store.definition(&self.run.tenant, &self.plan.hash)).await
    }

    /// Asks until the store can answer: that it is away is no failure of the step. Who lost its lease meanwhile is stopped
    /// by [`Attempt::watch`].
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

/// The data of `step.started`: who works, the instance that it was claimed from, and when it began, which is left out where
/// only the lease is known.
pub fn started_data(worker: &Json, instance: &Json, began: Option<Time>) -> Json {
    let at = began.map(|at| json::string(&at.to_string()));
    json::object([("worker", Some(worker)), ("instance", Some(instance)), ("at", at.as_ref())])
}

/// The attempt took longer than its step allows.
pub fn out_of_time_error(limit: Duration) -> StepError {
    let limit = flowline_core::time::format_duration(limit);
    StepError::new(format!("the attempt took longer than {limit}")).code("timeout")
}
