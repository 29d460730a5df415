//! An attempt of a step: what it is, what it starts with, its lines and outcome ([`record`]), and how it runs here
//! ([`live`]).

pub(crate) mod live;
pub mod record;
pub(crate) mod volume;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::event::{EventType, NewEvent};
use flowline_core::ids::step_id;
use flowline_core::json::{self, Json};
use flowline_core::plan::PlanStep;
use flowline_core::{DecideInput, Plan, RunKey, Time};
use flowline_store::{Extend, JobKey, Lane, LeaseUse, Token};

use crate::step::{StepError, idempotency_key};
use crate::trace::{Span, SpanEnd, Trace};

pub use record::Record;

/// How long lines wait for the outcome before they are written by themselves.
pub const FLUSH: Duration = Duration::from_millis(50);
/// Pause between tries while the store is away.
pub const ASK_AGAIN: Duration = Duration::from_millis(200);

/// An attempt of a step, and its lease.
#[derive(Clone)]
pub struct Attempt {
    pub run: RunKey,
    pub plan: Arc<Plan>,
    /// The label that names the run's trace.
    pub trace: Option<Arc<str>>,
    pub step: u32,
    /// 1 for the first try.
    pub number: u32,
    /// The machine's transition that asked for it.
    pub transition: Option<u32>,
    pub token: Token,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({} step {} attempt {})", self.run, self.step, self.number)
    }
}

impl Attempt {
    pub fn key(&self) -> JobKey {
        JobKey::Step(self.step)
    }

    pub fn planned(&self) -> &PlanStep {
        self.plan.step(self.step)
    }

    pub fn name(&self) -> &Arc<str> {
        &self.planned().name
    }

    pub fn queue(&self) -> &Arc<str> {
        &self.planned().queue
    }

    pub fn lane(&self) -> Lane {
        Lane { queue: self.queue().clone(), need: self.planned().need.clone() }
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.plan.step_definition(self.step).timeout
    }

    pub fn step_id(&self) -> String {
        step_id(&self.run.run, self.name(), self.number)
    }

    pub fn idempotency_key(&self) -> String {
        idempotency_key(&self.run.run, self.name(), self.transition)
    }

    pub fn traceparent(&self) -> String {
        Trace::of(&self.run.run, self.trace.as_deref()).traceparent(&self.step_id())
    }

    /// An event of it.
    pub fn event(&self, kind: EventType, data: Json) -> NewEvent {
        NewEvent::step(kind, self.name(), self.number, Some(data))
    }

    /// Its lease, to extend or release.
    pub fn lease(&self) -> Extend {
        Extend { run: self.run.clone(), key: self.key(), token: self.token }
    }

    /// Its lease in the commit that ends it.
    pub fn finish(&self) -> LeaseUse {
        LeaseUse::Finish { key: self.key(), attempt: self.number, token: self.token }
    }

    /// Its lease in a commit that it outlasts, with so many lines more in the log.
    pub fn keep(&self, lines: u32) -> LeaseUse {
        LeaseUse::Keep { key: self.key(), attempt: self.number, token: self.token, lines }
    }

    /// What tells its run that it waits no longer, with the `data` of `step.started`.
    pub fn end_wait(&self, data: Json) -> (DecideInput, LeaseUse) {
        (DecideInput::Started { step: self.step, attempt: self.number, data }, self.keep(1))
    }

    /// Its span; `None` if its trace is not recorded.
    pub fn span(&self, times: (Time, Time), end: SpanEnd) -> Option<Span> {
        let step = (self.name().clone(), self.number);
        Span::attempt(&self.run, self.trace.as_deref(), &self.plan.flow, step, times, end)
    }
}

/// What an attempt starts from.
#[derive(Debug)]
pub struct Launch {
    pub attempt: Attempt,
    pub input: Json,
    pub first_line: FirstLine,
}

/// Where the first line of an attempt is, `step.started`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstLine {
    /// To be written with the lines that follow it.
    Buffered,
    /// Must be committed before the attempt starts: the run waits for it, and its status follows from the log.
    Awaited,
    /// In the log.
    Written,
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
