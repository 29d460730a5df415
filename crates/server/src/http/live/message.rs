//! What goes over the wire, as `text/event-stream` writes it.

use std::sync::Arc;

use axum::body::Bytes;
use flowline::core::event::EventType;
use flowline::core::{Event, RunId, Status};
use serde_json::json;

/// How soon a browser reconnects, in milliseconds.
const RETRY: u32 = 1_000;
/// Memory of a message beside its text.
const OVERHEAD: usize = 160;

/// An event, serialized once for all clients.
#[derive(Debug, Clone)]
pub(super) struct LiveMessage {
    /// The cursor right after it.
    pub cursor: Arc<str>,
    pub flow: Arc<str>,
    pub kind: EventType,
    pub text: Bytes,
}

/// What the `id` of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// The event's own, within its run.
    Events,
    /// The cursor of the feed.
    Cursors,
}

impl LiveMessage {
    pub fn of(event: &Event, cursor: &str, ids: Ids) -> LiveMessage {
        let id = match ids {
            Ids::Events => &event.id,
            Ids::Cursors => cursor,
        };
        let mut data = serde_json::to_string(event).unwrap_or_default();
        // A payload keeps the blanks that it came with, and a line ends the field. In JSON one blank is as good as another.
        if data.contains(['\n', '\r']) {
            data = data.replace(['\n', '\r'], " ");
        }
        let text = format!("id: {id}\nevent: {}\ndata: {data}\n\n", event.kind);
        LiveMessage {
            cursor: cursor.into(),
            flow: event.flow_name.clone(),
            kind: event.kind,
            text: text.into_bytes().into_boxed_slice().into(),
        }
    }

    /// Bytes of memory that it takes.
    pub fn size(&self) -> usize {
        self.text.len() + self.cursor.len() + OVERHEAD
    }
}

/// The start of a stream. With a cursor, a stream that breaks off before its first event resumes there.
pub fn opening(cursor: Option<&str>) -> Bytes {
    match cursor {
        Some(cursor) => format!("retry: {RETRY}\nid: {cursor}\n\n").into(),
        None => format!("retry: {RETRY}\n\n").into(),
    }
}

/// A heartbeat. With a cursor, it moves the point to resume from past events that were filtered out.
pub fn heartbeat(cursor: Option<&str>) -> Bytes {
    match cursor {
        Some(cursor) => format!(":\nid: {cursor}\n\n").into(),
        None => Bytes::from_static(b":\n\n"),
    }
}

/// The end of a run's stream.
pub fn end(run: &RunId, status: Status) -> Bytes {
    let data = json!({ "runId": run, "status": status });
    format!("event: end\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline::core::event::NewEvent;
    use flowline::core::{Json, Tenant};

    #[test]
    fn a_payload_with_line_breaks_stays_one_field() {
        let data = Json::parse("{\n \"a\":\r\n \"b\\n\"}").unwrap();
        let new = NewEvent::run(EventType::FlowStart, Some(data));
        let event = Event::stored(&RunId::new("r").unwrap(), &"f".into(), &Tenant::default(), 1, 5, new);
        let message = LiveMessage::of(&event, "17", Ids::Cursors);
        let text = std::str::from_utf8(&message.text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[1], lines.len()), ("id: 17", "event: flow.start", 4));
        let data: Event = serde_json::from_str(lines[2].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data.id, "5-1");
        let payload: serde_json::Value = serde_json::from_str(data.data.unwrap().get()).unwrap();
        assert_eq!(payload, json!({ "a": "b\n" }));
    }
}
