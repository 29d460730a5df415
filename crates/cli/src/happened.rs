//! The events of machines in words, for the log and for progress.

use flowline::core::event::EventType;
use flowline::core::{Event, Json};
use serde::Deserialize;

use crate::output;

/// Characters of a payload or a reason.
const TEXT: usize = 160;

/// The members of their `data` that are shown. Kept apart from those of other events, whose data users may add to.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Said {
    name: String,
    payload: Option<Json>,
    user_id: Option<String>,
    roles: Vec<String>,
    reason: Option<String>,
    from: Option<String>,
    to: String,
    event: Option<String>,
    timer: Option<u32>,
    action: Option<String>,
    stays: bool,
    inherited: bool,
    state: String,
    at: Option<String>,
}

/// What happened to a machine; nothing where the event is no machine's.
pub fn words(event: &Event) -> Option<String> {
    let said: Said = event.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default();
    let text = match event.kind {
        EventType::EventReceived => received(&said),
        EventType::EventRejected => format!("{}: {}", said.name, said.reason.unwrap_or_default()),
        EventType::StateChanged => moved(&said),
        EventType::TimerSet => format!("in {}, for {}", said.state, said.at.unwrap_or_default()),
        EventType::TimerFired => format!("in {}", said.state),
        EventType::TimerCancelled => match said.reason.as_deref() {
            Some("left") => format!("of {}, because the run left that state", said.state),
            Some("guard") => format!("of {}, because its condition is false", said.state),
            Some("missed") => format!("of {}, because its time was missed", said.state),
            _ => format!("of {}", said.state),
        },
        _ => return None,
    };
    Some(output::clip(&text, 2 * TEXT))
}

fn received(said: &Said) -> String {
    let payload = said.payload.as_ref().filter(|payload| !payload.is_null());
    let payload = payload.map_or(String::new(), |json| format!(" {}", output::clip(json.get(), TEXT)));
    let roles = if said.roles.is_empty() { String::new() } else { format!(" ({})", said.roles.join(", ")) };
    let by = match &said.user_id {
        Some(user) => format!(" by {user}{roles}"),
        None => roles,
    };
    let before = if said.inherited { ", in the run that this one retries" } else { "" };
    format!("{}{payload}{by}{before}", said.name)
}

fn moved(said: &Said) -> String {
    let by = match (&said.event, said.timer, &said.action) {
        (Some(event), ..) => format!(" on {event}"),
        (None, Some(_), _) => " on a timer".to_owned(),
        (None, None, Some(action)) => format!(" because {action} failed"),
        (None, None, None) => String::new(),
    };
    match &said.from {
        Some(_) if said.stays => format!("stays in {}{by}", said.to),
        Some(from) => format!("{from} → {}{by}", said.to),
        None if said.inherited => format!("→ {}, from the run that this one retries", said.to),
        None => format!("→ {}{by}", said.to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn shown(kind: &str, data: &str, words_of: &str) {
        let json = format!(
            r#"{{"id":"1-1","seq":1,"ts":"2026-01-01T00:00:00.000Z","type":{kind:?},"runId":"r","flowName":"f","tenant":"default","data":{data},"v":1}}"#
        );
        let event: Event = serde_json::from_str(&json).unwrap();
        assert_eq!(words(&event).unwrap(), words_of);
    }

    #[test]
    fn what_happened_to_a_machine_reads_as_a_sentence() {
        shown(
            "event.received",
            r#"{"name":"edit","payload":{"a":1},"userId":"ada","roles":["x","y"]}"#,
            r#"edit {"a":1} by ada (x, y)"#,
        );
        shown("event.received", r#"{"name":"edit","payload":null}"#, "edit");
        shown("event.rejected", r#"{"name":"edit","reason":"too late"}"#, "edit: too late");
        shown("state.changed", r#"{"to":"draft","transition":1,"context":{}}"#, "→ draft");
        shown(
            "state.changed",
            r#"{"to":"draft","transition":3,"context":{},"inherited":true}"#,
            "→ draft, from the run that this one retries",
        );
        shown(
            "state.changed",
            r#"{"from":"draft","to":"review","event":"submit"}"#,
            "draft → review on submit",
        );
        shown(
            "state.changed",
            r#"{"from":"draft","to":"draft","event":"edit","stays":true}"#,
            "stays in draft on edit",
        );
        shown("state.changed", r#"{"from":"a","to":"b","timer":0}"#, "a → b on a timer");
        shown("state.changed", r#"{"from":"a","to":"b","action":"pay"}"#, "a → b because pay failed");
        shown(
            "timer.set",
            r#"{"timer":0,"state":"a","at":"2026-01-03T00:00:00.000Z"}"#,
            "in a, for 2026-01-03T00:00:00.000Z",
        );
        shown(
            "timer.cancelled",
            r#"{"timer":0,"state":"a","reason":"left"}"#,
            "of a, because the run left that state",
        );
    }
}
