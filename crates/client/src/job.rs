//! A job as its handler sees it: its input, and ways to log, emit and keep state.
//!
//! Lines are buffered and sent together: every 50 ms by the worker's loop, and always before the outcome. So a quick job
//! costs no extra request.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flowline_types::Json;
use flowline_types::error::with_causes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::ClientError;
use crate::lock::RemoteLock;
use flowline_api::work as wire;

/// Lines that a job may be ahead of the server.
const BUFFERED: usize = 500;
/// Lines in one request, in bytes; a request holds at least one.
const APPEND_BYTES: usize = 512 << 10;

/// One attempt of a step that this worker has claimed. Cheap to clone.
#[derive(Clone)]
pub struct Job(Arc<Inner>);

struct Inner {
    assignment: wire::Assignment,
    client: Client,
    /// How long to try to be heard: as long as the lease lasts.
    patience: Duration,
    said: Mutex<Said>,
    /// Held while lines are on their way, so that they arrive in order.
    sending: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Said {
    lines: Vec<wire::AttemptLine>,
    /// Lines that are in the log.
    written: u32,
    emits: Vec<wire::Emit>,
    /// Set once the server takes no more log lines of this attempt: they are discarded.
    full: bool,
}

impl Job {
    pub(crate) fn new(assignment: wire::Assignment, client: Client, patience: Duration) -> Job {
        let (said, sending) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Job(Arc::new(Inner { assignment, client, patience, said, sending }))
    }

    /// Everything that came with it.
    pub fn assignment(&self) -> &wire::Assignment {
        &self.0.assignment
    }

    pub fn input(&self) -> &Json {
        &self.0.assignment.input
    }

    /// The same for every attempt of this step in this run: pass it to whatever must not do its work twice.
    pub fn idempotency_key(&self) -> &str {
        &self.0.assignment.idempotency_key
    }

    /// The tenant's lock of this name, owned by this attempt. Drop its guard with the attempt.
    pub fn lock(&self, name: impl Into<String>) -> RemoteLock {
        self.0.client.lock(name).owner(self.0.assignment.step_id.as_str())
    }

    /// Adds a line to the run's log.
    pub async fn log(&self, message: impl fmt::Display) {
        let line = Map::from_iter([
            ("level".to_owned(), Value::from("info")),
            ("message".to_owned(), Value::from(message.to_string())),
        ]);
        self.log_with(line).await;
    }

    /// Adds a line with `level`, `message` and further fields. A job that logs faster than the server writes is slowed down.
    /// Once an attempt or its run has logged as much as the server allows, lines are discarded.
    pub async fn log_with(&self, line: Map<String, Value>) {
        let waiting = {
            let mut said = self.said();
            if said.full {
                return;
            }
            said.lines.push(wire::AttemptLine { log: Some(line), state: None });
            said.lines.len()
        };
        if waiting >= BUFFERED {
            // Where this fails the loop will find out.
            let _ = self.flush().await;
        }
    }

    /// Publishes an event with the completion of this attempt.
    pub fn emit(&self, name: &str, payload: &impl Serialize) -> Result<(), JobError> {
        self.emit_json(name, payload_of(payload)?);
        Ok(())
    }

    /// Like [`Job::emit`], with a payload that's already JSON, or with none: [`Json::nothing`].
    pub fn emit_json(&self, name: &str, payload: Json) {
        self.said().emits.push(wire::Emit { name: name.to_owned(), payload });
    }

    /// Publishes an event at once. It stays published if the attempt fails.
    pub async fn emit_now(&self, name: &str, payload: &impl Serialize) -> Result<(), JobError> {
        self.emit_json_now(name, payload_of(payload)?).await
    }

    /// Like [`Job::emit_now`], with a payload that's already JSON, or with none: [`Json::nothing`].
    pub async fn emit_json_now(&self, name: &str, payload: Json) -> Result<(), JobError> {
        self.flush().await?;
        let request =
            wire::EmitRequest { lease: self.0.assignment.lease.clone(), name: name.to_owned(), payload };
        match self.0.client.emit(&request, self.0.patience).await {
            Ok(_) => Ok(()),
            Err(error @ ClientError::Refused { .. }) if !error.is_stale() => {
                Err(JobError::new(error).never().code("emit_refused"))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads key-value state; `None` if the key isn't set or has expired. A scope is `run`, `flow`, `tenant` or any
    /// other name, which all flows of the tenant share.
    pub async fn get<T: DeserializeOwned>(&self, scope: &str, key: &str) -> Result<Option<T>, JobError> {
        let order = self.0.sending.lock().await;
        self.send_lines(&order).await?;
        // Ahead of lines that were added meanwhile, and on its own, so that this call gets its answer.
        let get = wire::StateLine {
            get: Some(key.to_owned()),
            scope: Some(scope.to_owned()),
            ..wire::StateLine::default()
        };
        self.said().lines.insert(0, wire::AttemptLine { log: None, state: Some(get) });
        let answer = self.append(&order, 1).await?;
        match answer.found.into_iter().next().and_then(|found| found.value) {
            Some(value) => Ok(Some(value.to()?)),
            None => Ok(None),
        }
    }

    /// Writes key-value state. It stays written if the attempt fails.
    pub async fn set(&self, scope: &str, key: &str, value: &impl Serialize) -> Result<(), JobError> {
        self.change(
            scope,
            wire::StateLine {
                set: Some(key.to_owned()),
                value: Some(payload_of(value)?),
                ..Default::default()
            },
        )
        .await
    }

    /// Like [`Job::set`]; the value is gone after `ttl`.
    pub async fn set_for(
        &self,
        scope: &str,
        key: &str,
        value: &impl Serialize,
        ttl: Duration,
    ) -> Result<(), JobError> {
        let ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let (set, value) = (Some(key.to_owned()), Some(payload_of(value)?));
        self.change(scope, wire::StateLine { set, value, ttl_ms, ..Default::default() }).await
    }

    pub async fn delete(&self, scope: &str, key: &str) -> Result<(), JobError> {
        self.change(scope, wire::StateLine { delete: Some(key.to_owned()), ..Default::default() }).await
    }

    async fn change(&self, scope: &str, state: wire::StateLine) -> Result<(), JobError> {
        let state = wire::StateLine { scope: Some(scope.to_owned()), ..state };
        self.said().lines.push(wire::AttemptLine { log: None, state: Some(state) });
        self.flush().await.map_err(JobError::from)
    }

    /// Sends the lines that wait.
    pub(crate) async fn flush(&self) -> Result<(), ClientError> {
        let order = self.0.sending.lock().await;
        self.send_lines(&order).await
    }

    async fn send_lines(&self, order: &tokio::sync::MutexGuard<'_, ()>) -> Result<(), ClientError> {
        loop {
            let count = some(&self.said().lines);
            if count == 0 {
                return Ok(());
            }
            self.append(order, count).await?;
        }
    }

    /// Sends the first lines that wait.
    async fn append(
        &self,
        _order: &tokio::sync::MutexGuard<'_, ()>,
        count: usize,
    ) -> Result<wire::AppendAnswer, ClientError> {
        let request = {
            let said = self.said();
            let (lease, from_line) = (self.0.assignment.lease.clone(), said.written);
            wire::AppendRequest { lease, from_line, lines: said.lines[..count].to_vec() }
        };
        // Lines stay until they are known to be there: one that was dropped could never be told from one that came.
        let answer = self.0.client.append(&request, self.0.patience).await;
        let mut said = self.said();
        if let Err(error) = &answer
            && error.is_log_full()
        {
            said.stop_logging(error);
            let (lines, found) = (said.written, Vec::new());
            return Ok(wire::AppendAnswer { lines, found });
        }
        if answer.is_ok() || matches!(&answer, Err(ClientError::Refused { .. })) {
            said.lines.drain(..count);
        }
        let answer = answer?;
        said.written = answer.lines;
        Ok(answer)
    }

    /// What is published with the completion.
    pub(crate) fn emits(&self) -> Vec<wire::Emit> {
        std::mem::take(&mut self.said().emits)
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    /// Drops the log lines that wait, for one that says so, and all that come. If that one isn't taken either, it goes too.
    fn stop_logging(&mut self, why: &ClientError) {
        self.lines.retain(|line| line.log.is_none());
        if std::mem::replace(&mut self.full, true) {
            return;
        }
        let message = format!("the log is truncated here, and later lines are discarded: {why}");
        let note = Map::from_iter([
            ("level".to_owned(), Value::from("warn")),
            ("message".to_owned(), Value::from(message)),
        ]);
        self.lines.insert(0, wire::AttemptLine { log: Some(note), state: None });
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({})", self.0.assignment.step_id)
    }
}

/// How many of the lines one request takes.
fn some(lines: &[wire::AttemptLine]) -> usize {
    let mut bytes = 0;
    let fits = lines.iter().take_while(|line| {
        bytes += serde_json::to_string(line).map_or(0, |text| text.len());
        bytes <= APPEND_BYTES
    });
    fits.count().max(1).min(lines.len())
}

fn payload_of(value: &impl Serialize) -> Result<Json, JobError> {
    Json::of(value).map_err(|error| JobError::new(error).never().code("invalid_payload"))
}

/// Why an attempt failed. Made by `?` from any error, which is then retried as the step's policy says.
#[derive(Debug)]
pub struct JobError(pub(crate) wire::FailedAttempt);

impl JobError {
    pub fn new(error: impl fmt::Display) -> JobError {
        let (error, retry) = (error.to_string(), wire::RetryAdvice::Policy);
        JobError(wire::FailedAttempt { error, code: None, stack: None, retry, after_ms: None })
    }

    /// As it goes over the wire.
    pub fn failed(&self) -> &wire::FailedAttempt {
        &self.0
    }

    /// No retry can help.
    pub fn never(mut self) -> JobError {
        self.0.retry = wire::RetryAdvice::Never;
        self
    }

    /// Names the kind of error, for `only` and `except` of the step's retry policy.
    pub fn code(mut self, code: &str) -> JobError {
        self.0.code = Some(code.to_owned());
        self
    }

    /// Asks for the next try after this long, within the step's policy.
    pub fn retry_after(mut self, delay: Duration) -> JobError {
        self.0.after_ms = Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        self
    }
}

impl<E: std::error::Error> From<E> for JobError {
    fn from(error: E) -> JobError {
        JobError::new(with_causes(&error))
    }
}
