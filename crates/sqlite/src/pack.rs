//! The events of one commit as one text: a JSON array that `json_each` of SQLite reads too.
//!
//! One row for a commit's events costs a third of a row each; numbers and dates are the row's own.

use std::borrow::Cow;

use flowline_core::event::AttemptOf;
use flowline_core::json::push_string;
use flowline_core::{EventType, Json, NewEvent};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::fault::Fault;

/// Begins with an empty text; [`close`] ends it.
pub(crate) fn push(out: &mut String, event: &NewEvent) {
    out.push_str(if out.is_empty() { "[{\"type\":\"" } else { ",{\"type\":\"" });
    out.push_str(event.kind.as_str());
    out.push('"');
    if let Some(of) = &event.of {
        out.push_str(",\"step\":");
        push_string(out, &of.step);
        out.push_str(",\"attempt\":");
        push_number(out, of.attempt);
    }
    if let Some(data) = &event.data {
        out.push_str(",\"data\":");
        out.push_str(data.get());
    }
    out.push('}');
}

pub(crate) fn close(out: &mut String) {
    out.push(']');
}

/// One event of a row.
#[derive(Debug, Deserialize)]
pub(crate) struct Packed<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: EventType,
    #[serde(borrow)]
    pub(crate) step: Option<Cow<'a, str>>,
    pub(crate) attempt: Option<u32>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
}

pub(crate) fn unpack(text: &str) -> Result<Vec<Packed<'_>>, Fault> {
    serde_json::from_str(text)
        .map_err(|error| Fault::damaged(&format!("events of a commit aren't JSON: {error}")))
}

impl Packed<'_> {
    pub(crate) fn data(&self) -> Option<Json> {
        self.data.map(|data| Json::composed(data.get().to_owned()))
    }

    /// The number of the transition that wrote the context in it.
    pub(crate) fn context_of(&self) -> Option<u32> {
        #[derive(Deserialize)]
        struct Data {
            transition: u32,
            context: Option<IgnoredAny>,
        }
        let data = self.data.filter(|_| self.kind == EventType::StateChanged)?;
        let Data { transition, context } = serde_json::from_str(data.get()).ok()?;
        context.map(|_| transition)
    }

    pub(crate) fn event(&self) -> NewEvent {
        let of = self
            .step
            .as_deref()
            .map(|step| AttemptOf { step: step.into(), attempt: self.attempt.unwrap_or(0) });
        NewEvent { kind: self.kind, of, data: self.data(), slot: None }
    }
}

/// Data that is there may well be `null`.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

fn push_number(out: &mut String, number: u32) {
    match number {
        0..=9 => out.push(char::from(b'0' + number as u8)),
        _ => out.push_str(&number.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_being_packed() {
        let step: std::sync::Arc<str> = "a \"b\"\u{0}é".into();
        let events = [
            NewEvent::run(EventType::FlowStart, Some(Json::parse(r#"{"input": [1, "ü"]}"#).unwrap())),
            NewEvent::step(EventType::StepStarted, &step, 12, None),
            NewEvent::step(EventType::StepSkipped, &step, 0, Some(Json::null())),
        ];
        let mut text = String::new();
        events.iter().for_each(|event| push(&mut text, event));
        close(&mut text);
        let unpacked: Vec<NewEvent> = unpack(&text).unwrap().iter().map(Packed::event).collect();
        assert_eq!(unpacked, events);
    }

    #[test]
    fn text_that_is_no_list_of_events_is_damage() {
        for text in ["", "{}", "[{}]", r#"[{"type":"no.such"}]"#] {
            assert!(unpack(text).is_err(), "{text}");
        }
    }
}
