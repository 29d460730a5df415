//! Everything an attempt reports, in order: its lines, the emits that are published when it completes, its outcome.
//!
//! The first line is `step.started`. Lines are written by a fenced append, which says where it starts so that a repeated
//! one writes nothing twice, or together with a commit of the run. The record does no I/O: the caller writes what it
//! hands out and reports the result, one write at a time.

use std::time::Duration;

use flowline_core::definition::Cleanup;
use flowline_core::event::{EventType, NewEvent};
use flowline_core::json::{self, Json};
use flowline_core::{DecideInput, Time, limits};
use flowline_store::{Append, AppendError, AppendLine, StateChange, StateEdit, StateScope};

use super::{Attempt, FirstLine, Launch, started_data};
use crate::ledger::{InputEntry, InputOutcome};
use crate::state::check_key;
use crate::step::{Level, StepError};

/// Writes with more lines than this, or with more bytes of data, are large.
const LARGE_LINES: usize = 32;
const LARGE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub struct Record {
    attempt: Attempt,
    /// Lines that are not in the log yet.
    lines: Vec<AppendLine>,
    /// Lines on their way to the log with an emit.
    sent: Vec<AppendLine>,
    /// Lines that are in the log, as far as is known.
    written: u32,
    /// Whether lines that wait may be in the log already.
    unsure: bool,
    emits: Vec<(String, Json)>,
    /// Set when the step did what no attempt may: it fails, whatever it returns.
    broken: Option<StepError>,
}

impl Record {
    /// The record of an attempt that begins now by the store's clock: a line is dated when it is written, which can be
    /// later.
    pub fn new(launch: &Launch, instance: &Json, began: Time) -> Record {
        let written = launch.first_line == FirstLine::Written;
        let mut record = Record::after(launch.attempt.clone(), u32::from(written));
        if !written {
            let data = started_data(instance, instance, Some(began));
            let event = record.attempt.event(EventType::StepStarted, data);
            record.lines.push(AppendLine { event, state: None });
        }
        record
    }

    /// The record of an attempt with this many lines in the log.
    pub fn after(attempt: Attempt, written: u32) -> Record {
        Record {
            attempt,
            lines: Vec::new(),
            sent: Vec::new(),
            written,
            unsure: false,
            emits: Vec::new(),
            broken: None,
        }
    }

    /// Lines that wait to be written.
    pub fn waiting(&self) -> usize {
        self.lines.len()
    }

    /// Whether the waiting lines are so much that others of the tenant must not write as much at the same time.
    pub fn is_large(&self) -> bool {
        let bytes = |line: &AppendLine| line.event.data.as_ref().map_or(0, |data| data.get().len());
        self.lines.len() > LARGE_LINES || self.lines.iter().map(bytes).sum::<usize>() > LARGE_BYTES
    }

    /// Whether the waiting lines must be appended before anything else is written: only an append says where it starts,
    /// so only an append can tell which of them are in the log.
    pub fn must_append(&self) -> bool {
        self.unsure && !self.lines.is_empty()
    }

    pub fn emit(&mut self, name: &str, payload: Json) {
        self.emits.push((name.to_owned(), payload));
    }

    pub fn log(
        &mut self,
        level: Level,
        message: &str,
        fields: Option<serde_json::Map<String, serde_json::Value>>,
    ) {
        self.log_line(log_data(level, message, fields));
    }

    /// Adds a line made by [`log_data`].
    pub fn log_line(&mut self, data: Json) {
        let event = self.attempt.event(EventType::Log, data);
        self.lines.push(AppendLine { event, state: None });
    }

    /// Changes key-value state, or with no value deletes it. The line must be appended at once: it may not ride with
    /// anything but its own append. Without a `ttl`, a value lives as long as the definition says.
    pub fn set(
        &mut self,
        scope: StateScope,
        key: &str,
        value: Option<Json>,
        ttl: Option<Duration>,
    ) -> Result<(), StepError> {
        check_state(&scope, key)?;
        let ttl = match self.attempt.plan.definition.state {
            Cleanup::Ttl(usual) => Some(ttl.unwrap_or(usual)),
            _ => ttl,
        };
        let ttl = ttl.filter(|_| value.is_some());
        let operation = if value.is_some() { "set" } else { "delete" };
        let event = self.state_event(operation, &scope, key, value.as_ref(), ttl);
        let state = Some(StateChange { scope, edit: StateEdit::new(key, value, ttl) });
        self.lines.push(AppendLine { event, state });
        Ok(())
    }

    /// Notes that key-value state was read. What was found is not noted.
    pub fn get(&mut self, scope: &StateScope, key: &str) -> Result<(), StepError> {
        check_state(scope, key)?;
        let event = self.state_event("get", scope, key, None, None);
        self.lines.push(AppendLine { event, state: None });
        Ok(())
    }

    fn state_event(
        &self,
        operation: &str,
        scope: &StateScope,
        key: &str,
        value: Option<&Json>,
        ttl: Option<Duration>,
    ) -> NewEvent {
        let ttl = ttl.map(|ttl| json::number(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)));
        let data = json::object([
            ("operation", Some(&json::string(operation))),
            ("scope", Some(&json::string(scope.as_str()))),
            ("key", Some(&json::string(key))),
            ("value", value),
            ("ttlMs", ttl.as_ref()),
        ]);
        self.attempt.event(EventType::State, data)
    }

    /// The waiting lines as an append, to be retried until its outcome is known; `None` if there are none.
    pub fn append(&mut self) -> Option<Append> {
        let lines = std::mem::take(&mut self.lines);
        (!lines.is_empty()).then(|| Append {
            run: self.attempt.run.clone(),
            key: self.attempt.key(),
            attempt: self.attempt.number,
            token: self.attempt.token,
            from_line: self.written,
            lines,
        })
    }

    /// The outcome of an append. An error means that the lease is gone.
    pub fn appended(&mut self, result: Result<u32, AppendError>) -> Result<(), StepError> {
        self.written = result.map_err(|_| lease_gone())?;
        self.unsure = false;
        Ok(())
    }

    /// An event to be published at once, together with the waiting lines. See [`Record::must_append`].
    pub fn emit_now<R>(&mut self, name: &str, payload: Json, reply: R) -> InputEntry<R> {
        self.sent = std::mem::take(&mut self.lines);
        let (step, attempt) = (self.attempt.step, self.attempt.number);
        let input = DecideInput::EmitNow { step, attempt, name: name.to_owned(), payload };
        let lease = self.attempt.keep(self.sent.len() as u32);
        let lines = self.sent.iter().map(|line| line.event.clone()).collect();
        InputEntry::new(input, lines, Some(lease), reply)
    }

    /// The outcome of [`Record::emit_now`].
    pub fn emitted(&mut self, outcome: InputOutcome) -> Result<(), StepError> {
        if let InputOutcome::Committed { .. } = outcome {
            self.written += self.sent.len() as u32;
            self.sent.clear();
            return Ok(());
        }
        // The lines are still to come, before any that were added meanwhile; or they came with a commit of this very emit
        // whose outcome was unknown.
        self.unsure = true;
        self.sent.append(&mut self.lines);
        self.lines = std::mem::take(&mut self.sent);
        match outcome {
            InputOutcome::Applied { .. } => Ok(()),
            InputOutcome::Refused(refusal) => {
                self.broken = Some(StepError::fatal(&refusal).code("emit_refused"));
                Err(StepError::fatal(refusal).code("emit_refused"))
            }
            _ => Err(lease_gone()),
        }
    }

    /// The outcome of the attempt, with the lines that wait. See [`Record::must_append`].
    pub fn finish<R>(&mut self, outcome: Result<Json, StepError>, reply: R) -> InputEntry<R> {
        let (step, attempt) = (self.attempt.step, self.attempt.number);
        let emits = std::mem::take(&mut self.emits);
        let input = match self.broken.take().map_or(outcome, Err) {
            Ok(result) => DecideInput::Done { step, attempt, result, emits },
            Err(StepError(failure)) => DecideInput::Failed { step, attempt, failure },
        };
        let lines = std::mem::take(&mut self.lines).into_iter().map(|line| line.event).collect();
        InputEntry::new(input, lines, Some(self.attempt.finish()), reply)
    }
}

/// The data of a log line, cut to the size that a line may have.
pub fn log_data(
    level: Level,
    message: &str,
    fields: Option<serde_json::Map<String, serde_json::Value>>,
) -> Json {
    let mut data = fields.unwrap_or_default();
    let mut end = message.len().min(limits::LOG_BYTES / 2);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    data.insert("level".to_owned(), level.as_str().into());
    data.insert("message".to_owned(), message[..end].into());
    let json = Json::from(serde_json::Value::Object(data));
    if json.get().len() <= limits::LOG_BYTES {
        return json;
    }
    json::object([
        ("level", Some(&json::string(level.as_str()))),
        ("message", Some(&json::string("a log line over the size limit was left out"))),
    ])
}

/// Refuses a scope or a key that no state can have.
pub fn check_state(scope: &StateScope, key: &str) -> Result<(), StepError> {
    scope.check().map_err(|error| StepError::fatal(error).code("invalid_state_scope"))?;
    check_key(key).map_err(|error| StepError::fatal(error).code("invalid_state_key"))
}

pub(super) fn lease_gone() -> StepError {
    StepError::new("the lease of this attempt is gone").code(flowline_core::run::LEASE_LOST)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flowline_core::definition::{Format, read};
    use flowline_core::{Plan, RunId, RunKey, Tenant};
    use flowline_store::Token;

    use super::*;

    fn record() -> Record {
        let text = "flow: greet\nsteps:\n  wait: { worker: depot }\n";
        let definition = read("greet.yaml", text, Format::Yaml).unwrap().definition;
        let plan = Arc::new(Plan::build(definition).unwrap());
        let run = RunKey::new(Tenant::default(), RunId::new("r1").unwrap());
        let token = Token(1);
        Record::after(Attempt { run, plan, trace: None, step: 0, number: 1, transition: None, token }, 0)
    }

    #[test]
    fn a_few_lines_are_not_large_and_many_or_long_ones_are() {
        let mut many = record();
        (0..LARGE_LINES).for_each(|_| many.log(Level::Info, "a line", None));
        assert!(!many.is_large());
        many.log(Level::Info, "one more", None);
        assert!(many.is_large());
        let mut long = record();
        long.emit("not.a.line", json::string(&"x".repeat(LARGE_BYTES)));
        assert!(!long.is_large());
        long.log_line(json::string(&"x".repeat(LARGE_BYTES)));
        assert!(long.is_large());
    }
}
