//! One running attempt: its buffer of lines, the emits that wait for its completion, and the way to its run.
//!
//! The buffer opens with `step.started`. It is flushed by a fenced append after a moment, or rides with the outcome,
//! whichever comes first; so a quick step costs one commit and a slow one can be watched.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowline_core::event::{EventType, NewEvent};
use flowline_core::json::{self, Json};
use flowline_core::{Input, Plan, RunKey, Time, limits};
use flowline_store::row::StateScope;
use flowline_store::{Append, JobKey, LeaseUse, Line, StateChange, Store, Token};
use tokio::sync::{mpsc, oneshot};

use crate::drive::{Message, Reply};
use crate::ledger::{Entry, Outcome};
use crate::runner::Runner;
use crate::step::{Level, Step, StepError};

/// How long lines wait for the outcome before they are written by themselves.
const FLUSH: Duration = Duration::from_millis(50);
/// Lines that a program may be ahead of the store.
#[cfg(feature = "command")]
const BUFFERED: usize = 1_000;
/// Pause between tries to append while the store is away.
const APPEND_AGAIN: Duration = Duration::from_millis(200);

pub struct Attempt {
    pub run: RunKey,
    pub plan: Arc<Plan>,
    pub step: u32,
    pub attempt: u32,
    pub token: Token,
    store: Arc<dyn Store>,
    inbox: mpsc::UnboundedSender<Message>,
    buffer: Mutex<Buffer>,
    /// Held while lines are on their way to the log, so that they land in order.
    flushing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Buffer {
    /// Lines that are not in the log yet.
    lines: Vec<Line>,
    /// Lines that are.
    flushed: u32,
    emits: Vec<(String, Json)>,
    /// Set when the step did what no attempt may: it fails, whatever it returns.
    broken: Option<StepError>,
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
    pub step: u32,
    pub attempt: u32,
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

impl Launch {
    /// Runs the attempt to its end and sends the outcome to the run. `began` is now by the store's clock: a line is dated
    /// when it is written, which can be later.
    pub async fn run(
        self,
        runner: Arc<dyn Runner>,
        store: Arc<dyn Store>,
        inbox: mpsc::UnboundedSender<Message>,
        instance: Json,
        began: Time,
    ) {
        let mut buffer = Buffer::default();
        if self.started {
            buffer.flushed = 1;
        } else {
            let name = &self.plan.step(self.step).name;
            let data = started_data(&instance, Some(began));
            let event = NewEvent::step(EventType::StepStarted, name, self.attempt, Some(data));
            buffer.lines.push(Line { event, state: None });
        }
        let timeout = self.plan.step_definition(self.step).timeout;
        let attempt = Arc::new(Attempt {
            run: self.run,
            plan: self.plan,
            step: self.step,
            attempt: self.attempt,
            token: self.token,
            store,
            inbox,
            buffer: Mutex::new(buffer),
            flushing: tokio::sync::Mutex::new(()),
        });
        let input = self.input.within("the step's input", limits::JOIN_BYTES);
        let outcome = match input {
            Ok(input) => attempt.watch(runner.run(Step { attempt: attempt.clone() }, input), timeout).await,
            Err(error) => Err(StepError::fatal(error).code("too_large")),
        };
        attempt.finish(outcome).await;
    }
}

impl Attempt {
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
                    let limit = flowline_core::time::format_duration(timeout.unwrap_or_default());
                    return Err(StepError::new(format!("the attempt took longer than {limit}")).code("timeout"));
                }
                () = tokio::time::sleep(FLUSH) => {
                    // Where the step itself is writing, it must be polled to get done: waiting for it here would be for
                    // ever. A step whose lease is gone is stopped by the heartbeat; here it is enough to stop writing.
                    if let Ok(order) = self.flushing.try_lock() {
                        let _ = self.write_lines(&order).await;
                    }
                }
            }
        }
    }

    async fn finish(&self, outcome: Result<Json, StepError>) {
        let _order = self.flushing.lock().await;
        let (lines, emits, broken) = {
            let mut buffer = self.lock();
            (std::mem::take(&mut buffer.lines), std::mem::take(&mut buffer.emits), buffer.broken.take())
        };
        let (step, attempt) = (self.step, self.attempt);
        let input = match broken.map_or(outcome, Err) {
            Ok(result) => Input::Done { step, attempt, result, emits },
            Err(StepError(failure)) => Input::Failed { step, attempt, failure },
        };
        let lease = LeaseUse::Finish { key: self.key(), attempt, token: self.token };
        let lines = lines.into_iter().map(|line| line.event).collect();
        let entry = Entry { input, lines, lease: Some(lease), reply: Reply::None };
        let _ = self.inbox.send(Message::Finished(self.token, self.run.clone(), entry));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn key(&self) -> JobKey {
        JobKey::Step(self.step)
    }

    fn event(&self, kind: EventType, data: Json) -> NewEvent {
        NewEvent::step(kind, &self.plan.step(self.step).name, self.attempt, Some(data))
    }

    pub(crate) fn emit(&self, name: &str, payload: Json) {
        self.lock().emits.push((name.to_owned(), payload));
    }

    pub(crate) fn log(
        &self,
        level: Level,
        message: &str,
        fields: Option<serde_json::Map<String, serde_json::Value>>,
    ) {
        let mut data = fields.unwrap_or_default();
        let mut end = message.len().min(limits::PAYLOAD_BYTES / 2);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        data.insert("level".to_owned(), level.as_str().into());
        data.insert("message".to_owned(), message[..end].into());
        let mut json = Json::from(serde_json::Value::Object(data));
        if json.get().len() > limits::PAYLOAD_BYTES {
            json = json::object([
                ("level", Some(&json::string(level.as_str()))),
                ("message", Some(&json::string("a log line over the size limit was left out"))),
            ]);
        }
        let event = self.event(EventType::Log, json);
        self.lock().lines.push(Line { event, state: None });
    }

    /// Waits for room in the buffer: a step that logs faster than the store writes is slowed down, not buffered for ever.
    #[cfg(feature = "command")]
    pub(crate) async fn make_room(&self) -> Result<(), StepError> {
        if self.lock().lines.len() < BUFFERED { Ok(()) } else { self.flush().await }
    }

    /// Writes the buffered lines to the log. An error means that the lease is gone.
    async fn flush(&self) -> Result<(), StepError> {
        let order = self.flushing.lock().await;
        self.write_lines(&order).await
    }

    async fn write_lines(&self, _order: &tokio::sync::MutexGuard<'_, ()>) -> Result<(), StepError> {
        let (lines, from_line) = {
            let mut buffer = self.lock();
            (std::mem::take(&mut buffer.lines), buffer.flushed)
        };
        if lines.is_empty() {
            return Ok(());
        }
        let append = Append {
            run: self.run.clone(),
            key: self.key(),
            attempt: self.attempt,
            token: self.token,
            from_line,
            lines,
        };
        // An append says where it starts, so trying again after an unknown outcome writes nothing twice.
        let mut failed = false;
        loop {
            let answer = self.store.append(vec![append.clone()]).await;
            if failed || answer.is_err() {
                let _ = self.inbox.send(Message::Trouble(answer.as_ref().err().cloned()));
                failed = true;
            }
            match answer {
                Ok(results) => match results.into_iter().next() {
                    Some(Ok(flushed)) => {
                        self.lock().flushed = flushed;
                        return Ok(());
                    }
                    _ => return Err(lease_gone()),
                },
                Err(error) if error.is_transient() => tokio::time::sleep(APPEND_AGAIN).await,
                Err(error) => return Err(StepError::new(error)),
            }
        }
    }

    pub(crate) async fn emit_now(&self, name: &str, payload: Json) -> Result<(), StepError> {
        let _order = self.flushing.lock().await;
        let lines = std::mem::take(&mut self.lock().lines);
        let count = lines.len() as u32;
        let (reply, answer) = oneshot::channel();
        let entry = Entry {
            input: Input::EmitNow { step: self.step, attempt: self.attempt, name: name.to_owned(), payload },
            lines: lines.iter().map(|line| line.event.clone()).collect(),
            lease: Some(LeaseUse::Keep {
                key: self.key(),
                attempt: self.attempt,
                token: self.token,
                lines: count,
            }),
            reply: Reply::Outcome(reply),
        };
        let _ = self.inbox.send(Message::Offer(self.run.clone(), entry));
        match answer.await {
            Ok(Outcome::Committed { .. }) => {
                self.lock().flushed += count;
                Ok(())
            }
            Ok(outcome) => {
                // Nothing was written: the lines are still to come, before any that were added meanwhile.
                let mut buffer = self.lock();
                let later = std::mem::replace(&mut buffer.lines, lines);
                buffer.lines.extend(later);
                match outcome {
                    Outcome::Applied { .. } => Ok(()),
                    Outcome::Refused(refusal) => {
                        buffer.broken = Some(StepError::fatal(&refusal).code("emit_refused"));
                        Err(StepError::fatal(refusal).code("emit_refused"))
                    }
                    _ => Err(lease_gone()),
                }
            }
            Err(_) => Err(lease_gone()),
        }
    }

    pub(crate) async fn get(&self, scope: StateScope, key: &str) -> Result<Option<Json>, StepError> {
        Ok(self.store.state(&self.run, scope, key).await?)
    }

    /// All key-value state of the run.
    #[cfg(feature = "command")]
    pub(crate) async fn states(&self) -> Result<Vec<(String, Json)>, StepError> {
        Ok(self.store.states(&self.run, StateScope::Run).await?)
    }

    /// The stored definition that the run is pinned to.
    #[cfg(feature = "command")]
    pub(crate) async fn definition(&self) -> Result<Option<flowline_store::StoredDefinition>, StepError> {
        Ok(self.store.definition(&self.run.tenant, &self.plan.hash).await?)
    }

    pub(crate) async fn set(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Json>,
    ) -> Result<(), StepError> {
        if key.is_empty() || key.len() > limits::KEY_BYTES {
            let limit = limits::KEY_BYTES;
            return Err(
                StepError::fatal(format!("a state key has 1 to {limit} bytes")).code("invalid_state_key")
            );
        }
        let operation = json::string(if value.is_some() { "set" } else { "delete" });
        let data = json::object([
            ("operation", Some(&operation)),
            ("scope", Some(&json::string(scope.as_str()))),
            ("key", Some(&json::string(key))),
            ("value", value.as_ref()),
        ]);
        let ttl = match self.plan.definition.state {
            flowline_core::definition::Cleanup::Ttl(ttl) => Some(ttl),
            _ => None,
        };
        let state = Some(StateChange { scope, key: key.to_owned(), value, ttl });
        let event = self.event(EventType::State, data);
        // In one go: a change of state that waits in the buffer must not ride with anything but its own append.
        let order = self.flushing.lock().await;
        self.lock().lines.push(Line { event, state });
        self.write_lines(&order).await
    }
}

/// The data of `step.started`; `began` is left out where only the lease is known.
pub fn started_data(instance: &Json, began: Option<Time>) -> Json {
    let at = began.map(|at| json::string(&at.to_string()));
    json::object([("worker", Some(instance)), ("instance", Some(instance)), ("at", at.as_ref())])
}

fn lease_gone() -> StepError {
    StepError::new("the lease of this attempt is gone").code(flowline_core::run::LEASE_LOST)
}
