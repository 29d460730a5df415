//! The runners that ask the engine for something: `start` and `send`.

use super::Reader;
use crate::definition::place::Place;
use crate::definition::source::{Map, MapEntry, NodeValue};
use crate::definition::{Receiver, SendEvent, StartRun};

const START_KEYS: [&str; 2] = ["flow", "input"];
const SEND_KEYS: [&str; 6] = ["run", "machine", "key", "input", "event", "payload"];

impl Reader {
    pub(super) fn start(&mut self, entry: &MapEntry, place: &Place) -> Option<StartRun> {
        let map = self.call(entry, place, &START_KEYS, "write {flow: NAME, input: {…}}")?;
        let flow = self.needed(entry, map, place, "flow", "the name of a flow or a machine");
        Some(StartRun { flow: flow?, input: map.get("input").map(|input| input.value.to_json()) })
    }

    pub(super) fn send(&mut self, entry: &MapEntry, place: &Place) -> Option<SendEvent> {
        let help = "write {run: \"${input.id}\", event: NAME}, or {machine: NAME, key: \"${input.order}\", event: NAME}";
        let map = self.call(entry, place, &SEND_KEYS, help)?;
        let to = self.receiver(entry, map, place);
        let event = self.needed(entry, map, place, "event", "the name of an event");
        let payload = map.get("payload").map(|payload| payload.value.to_json());
        Some(SendEvent { to: to?, event: event?, payload })
    }

    fn receiver(&mut self, send: &MapEntry, map: &Map, place: &Place) -> Option<Receiver> {
        match (map.get("run"), map.get("machine")) {
            (Some(run), None) => {
                for key in ["key", "input"] {
                    let Some(other) = map.get(key) else { continue };
                    let message = format!("`send` has both `run` and `{key}`");
                    let help = format!("`run` names an existing run; remove `{key}`, or name a `machine`");
                    self.error("two-receivers", &place.key(key), other.key_span.clone(), message, &help);
                }
                let run = self.text(run, &place.key("run"), "the id of a run")?;
                Some(Receiver::Run { run })
            }
            (None, Some(machine)) => {
                let machine = self.text(machine, &place.key("machine"), "the name of a machine");
                let key = self.needed(send, map, place, "key", "a business key");
                let input = map.get("input").map(|input| input.value.to_json());
                Some(Receiver::Machine { machine: machine?, key: key?, input })
            }
            (Some(_), Some(machine)) => {
                let message = "`send` has both `run` and `machine`".to_owned();
                let help = "an event goes to one run: give its id, or its machine and key";
                self.error("two-receivers", &place.key("machine"), machine.key_span.clone(), message, help);
                None
            }
            (None, None) => {
                let message = "`send` doesn't say which run to send to".to_owned();
                let help = "add run: with the run's id, or machine: and key:";
                if map.entries().iter().all(|entry| SEND_KEYS.contains(&entry.key.as_str())) {
                    self.error("missing-key", place, send.key_span.clone(), message, help);
                }
                None
            }
        }
    }

    /// The map of a call, without keys that it does not have.
    fn call<'a>(
        &mut self,
        entry: &'a MapEntry,
        place: &Place,
        keys: &[&'static str],
        help: &str,
    ) -> Option<&'a Map> {
        let of = format!("`{}`", entry.key);
        let NodeValue::Map(map) = &entry.value.value else {
            self.wrong_type(&entry.value, place, &of, "a map", help);
            return None;
        };
        for other in map.entries().iter().filter(|other| !keys.contains(&other.key.as_str())) {
            self.unknown_key(&of, keys, other, &place.key(&other.key));
        }
        Some(map)
    }

    fn needed(
        &mut self,
        call: &MapEntry,
        map: &Map,
        place: &Place,
        key: &str,
        expected: &str,
    ) -> Option<String> {
        match map.get(key) {
            Some(entry) => self.text(entry, &place.key(key), expected),
            None => {
                let message = format!("`{}` has no `{key}`", call.key);
                let help = format!("add {key}: with {expected}");
                self.error("missing-key", &place.key(key), call.key_span.clone(), message, &help);
                None
            }
        }
    }
}
