//! Trace context of runs and attempts (W3C), and the spans that an instance has finished.
//!
//! A run whose label `traceparent` holds a trace context belongs to that trace; any other makes a trace of its own, its id
//! derived from the run's. Span ids are derived too: nobody has to remember them, and every instance makes the same ones.
//! A span is made when a run or an attempt ends, by the instance that saw it end; so each is made once, and what a killed
//! instance had begun has none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowline_core::ids::digest;
use flowline_core::{Json, RunId, RunKey, Status, Time};
use tokio::sync::mpsc;

use crate::step::StepError;

/// The label of a run that names the trace it belongs to.
pub const LABEL: &str = "traceparent";

/// The trace that a run belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// 32 hexadecimal digits.
    pub id: String,
    /// The span that the run was started from, if any: 16 digits.
    pub parent: Option<String>,
    /// Whether the trace is recorded where the run was started. If not, neither do we.
    pub sampled: bool,
}

impl Trace {
    /// The trace of a run with this label. One that is no trace context is passed over.
    pub fn of(run: &RunId, label: Option<&str>) -> Trace {
        label.and_then(Trace::parse).unwrap_or_else(|| {
            let id = digest(run.as_str().as_bytes())[..32].to_owned();
            Trace { id, parent: None, sampled: true }
        })
    }

    /// Reads a `traceparent`: `00-TRACE-SPAN-FLAGS`. `None` if it is not one.
    pub fn parse(text: &str) -> Option<Trace> {
        let mut parts = text.split('-');
        let (version, id, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex = |text: &str, digits: usize| {
            text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let named = |text: &str| text.bytes().any(|byte| byte != b'0');
        // Later versions may add parts; ff is none.
        let fits = hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        if !fits || !hex(id, 32) || !hex(span, 16) || !hex(flags, 2) || !named(id) || !named(span) {
            return None;
        }
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        Some(Trace { id: id.to_owned(), parent: Some(span.to_owned()), sampled })
    }

    /// The trace context to hand to whatever works for this attempt.
    pub fn traceparent(&self, step_id: &str) -> String {
        format!("00-{}-{}-{:02x}", self.id, attempt_span(step_id), u8::from(self.sampled))
    }
}

/// The label, among a run's.
pub(crate) fn of_labels(labels: &BTreeMap<String, String>) -> Option<Arc<str>> {
    labels.get(LABEL).map(|label| label.as_str().into())
}

/// When something ended that another process did: by this machine's clock, as spans go.
pub(crate) fn now() -> Time {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Time::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The id of a run's own span.
fn run_span(run: &RunId) -> String {
    digest(format!("run:{run}").as_bytes())[..16].to_owned()
}

fn attempt_span(step_id: &str) -> String {
    digest(step_id.as_bytes())[..16].to_owned()
}

/// A run or an attempt that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub trace: String,
    pub id: String,
    pub parent: Option<String>,
    pub run: RunKey,
    pub flow: Arc<str>,
    /// Name and number of the attempt; `None` for a run.
    pub attempt: Option<(Arc<str>, u32)>,
    pub began: Time,
    pub ended: Time,
    pub end: SpanEnd,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpanEnd {
    Run(Status),
    Completed,
    /// With the error's code, if it has one. Its text is only in the run's log.
    Failed(Option<String>),
}

impl SpanEnd {
    pub(crate) fn of(outcome: &Result<Json, StepError>) -> SpanEnd {
        match outcome {
            Ok(_) => SpanEnd::Completed,
            Err(error) => SpanEnd::Failed(error.failure().code.clone()),
        }
    }
}

impl Span {
    /// The span of a run; `None` if its trace is not recorded.
    pub fn run(
        run: &RunKey,
        label: Option<&str>,
        flow: &Arc<str>,
        (began, ended): (Time, Time),
        status: Status,
    ) -> Option<Span> {
        let trace = Trace::of(&run.run, label);
        trace.sampled.then(|| Span {
            trace: trace.id,
            id: run_span(&run.run),
            parent: trace.parent,
            run: run.clone(),
            flow: flow.clone(),
            attempt: None,
            began,
            ended,
            end: SpanEnd::Run(status),
        })
    }

    /// The span of an attempt; `None` if its trace is not recorded.
    pub fn attempt(
        run: &RunKey,
        label: Option<&str>,
        flow: &Arc<str>,
        attempt: (Arc<str>, u32),
        (began, ended): (Time, Time),
        end: SpanEnd,
    ) -> Option<Span> {
        let trace = Trace::of(&run.run, label);
        let step_id = flowline_core::ids::step_id(&run.run, &attempt.0, attempt.1);
        trace.sampled.then(|| Span {
            trace: trace.id,
            id: attempt_span(&step_id),
            parent: Some(run_span(&run.run)),
            run: run.clone(),
            flow: flow.clone(),
            attempt: Some(attempt),
            began,
            ended,
            end,
        })
    }
}

/// Where spans go: a queue with an end, so that a slow receiver costs spans and never work.
#[derive(Debug)]
pub struct Spans {
    queue: mpsc::Sender<Span>,
    dropped: AtomicU64,
}

impl Spans {
    /// A queue of up to `waiting` spans, and the end to take them from.
    pub fn new(waiting: usize) -> (Spans, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(waiting);
        (Spans { queue, dropped: AtomicU64::new(0) }, spans)
    }

    /// How many found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn put(&self, span: Option<Span>) {
        if let Some(span) = span
            && self.queue.try_send(span).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn run() -> RunKey {
        RunKey::new(flowline_core::Tenant::default(), RunId::new("r-1").unwrap())
    }

    #[test]
    fn a_trace_context_is_read_strictly() {
        let trace = Trace::parse(GIVEN).unwrap();
        assert_eq!(trace.id, "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(trace.parent.as_deref(), Some("b7ad6b7169203331"));
        assert!(trace.sampled && !Trace::parse(&GIVEN.replace("-01", "-00")).unwrap().sampled);
        assert!(Trace::parse(&GIVEN.replace("00-", "01-").replace("-01", "-01-more")).is_some());
        for wrong in [
            "",
            "00",
            &GIVEN.to_uppercase(),
            &GIVEN.replace("00-0af", "ff-0af"),
            &format!("{GIVEN}-more"),
            &GIVEN.replace("b7ad6b7169203331", "0000000000000000"),
            &GIVEN.replace("0af7651916cd43dd8448eb211c80319c", "00000000000000000000000000000000"),
            &GIVEN.replace("31-01", "3-01"),
        ] {
            assert_eq!(Trace::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_run_joins_the_trace_it_was_started_from_and_makes_its_own_otherwise() {
        let given = Trace::of(&run().run, Some(GIVEN));
        assert_eq!(given.id, "0af7651916cd43dd8448eb211c80319c");
        let own = Trace::of(&run().run, Some("nonsense"));
        assert_eq!((own.id.len(), own.parent.as_ref(), own.sampled), (32, None, true));
        assert_eq!(own, Trace::of(&run().run, None));
        assert_eq!(Trace::parse(&own.traceparent("r-1__a__attempt-1")).unwrap().id, own.id);
    }

    #[test]
    fn an_attempt_is_a_child_of_its_run_and_the_run_of_its_caller() {
        let (flow, at) = (Arc::from("f"), Time::from_millis(1));
        let of_run = Span::run(&run(), Some(GIVEN), &flow, (at, at), Status::Completed).unwrap();
        let attempt =
            Span::attempt(&run(), Some(GIVEN), &flow, ("a".into(), 1), (at, at), SpanEnd::Completed).unwrap();
        assert_eq!(of_run.parent.as_deref(), Some("b7ad6b7169203331"));
        assert_eq!(attempt.parent, Some(of_run.id));
        assert_eq!(attempt.trace, of_run.trace);
        let handed = Trace::of(&run().run, Some(GIVEN)).traceparent("r-1__a__attempt-1");
        assert_eq!(Trace::parse(&handed).unwrap().parent, Some(attempt.id));
        let off = GIVEN.replace("-01", "-00");
        assert_eq!(Span::run(&run(), Some(&off), &flow, (at, at), Status::Completed), None);
    }

    #[test]
    fn spans_without_room_are_counted() {
        let (spans, taken) = Spans::new(1);
        let (flow, at) = (Arc::from("f"), Time::from_millis(1));
        for _ in 0..3 {
            spans.put(Span::run(&run(), None, &flow, (at, at), Status::Failed));
        }
        assert_eq!(spans.dropped(), 2);
        assert_eq!(taken.len(), 1);
    }
}
