//! Single values: text, booleans, durations, numbers, schemas, lists of names.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Reader;
use crate::definition::place::Place;
use crate::definition::source::{MapEntry, Node, NodeValue};
use crate::definition::suggest;
use crate::time::parse_duration;

impl Reader {
    pub(super) fn text(&mut self, entry: &MapEntry, place: &Place, expected: &str) -> Option<String> {
        self.text_of(&entry.value, place, &format!("`{}`", entry.key), expected)
    }

    pub(super) fn text_of(
        &mut self,
        node: &Node,
        place: &Place,
        what: &str,
        expected: &str,
    ) -> Option<String> {
        match &node.value {
            NodeValue::String(text) => return Some(text.clone()),
            NodeValue::Number(n) => {
                self.wrong_type(node, place, what, expected, &format!("put it in quotes: \"{n}\""))
            }
            NodeValue::Bool(b) => {
                self.wrong_type(node, place, what, expected, &format!("put it in quotes: \"{b}\""))
            }
            NodeValue::Null => {
                self.wrong_type(node, place, what, expected, "give it a value, or remove the key")
            }
            NodeValue::List(_) | NodeValue::Map(_) => {
                self.wrong_type(node, place, what, expected, "write one value here")
            }
        }
        None
    }

    pub(super) fn boolean(&mut self, entry: &MapEntry, place: &Place) -> Option<bool> {
        if let NodeValue::Bool(value) = entry.value.value {
            return Some(value);
        }
        let help = match &entry.value.value {
            NodeValue::String(text) => match text.to_ascii_lowercase().as_str() {
                "yes" | "on" | "true" | "y" => "write true",
                "no" | "off" | "false" | "n" => "write false",
                _ => "write true or false, without quotes",
            },
            _ => "write true or false",
        };
        self.wrong_type(&entry.value, place, &format!("`{}`", entry.key), "true or false", help);
        None
    }

    pub(super) fn duration(&mut self, entry: &MapEntry, place: &Place) -> Option<Duration> {
        let what = format!("`{}`", entry.key);
        let help = match &entry.value.value {
            NodeValue::String(text) => match parse_duration(text) {
                Some(duration) => return Some(duration),
                None => "units are ms, s, m, h and d, as in 250ms, 30s or 1h30m".to_owned(),
            },
            NodeValue::Number(n) if n.is_u64() => format!("add a unit, for example {n}s for seconds"),
            _ => "units are ms, s, m, h and d, as in 250ms, 30s or 1h30m".to_owned(),
        };
        self.wrong_type(&entry.value, place, &what, "a duration such as 30s", &help);
        None
    }

    pub(super) fn whole_number(&mut self, node: &Node, place: &Place, what: &str) -> Option<u32> {
        let number = match &node.value {
            NodeValue::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()),
            _ => None,
        };
        if number.is_none() {
            let help = "write it without quotes, sign or decimal point";
            self.wrong_type(node, place, what, "a whole number such as 3", help);
        }
        number
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy, const N: usize>(
        &mut self,
        entry: &MapEntry,
        place: &Place,
        all: [T; N],
        word: fn(T) -> &'static str,
    ) -> Option<T> {
        let words = all.map(word);
        let expected = format!("one of {}", words.join(", "));
        let help = match &entry.value.value {
            NodeValue::String(text) => {
                match (all.into_iter().find(|one| word(*one) == text), suggest::nearest(text, words)) {
                    (Some(value), _) => return Some(value),
                    (None, Some(near)) => format!("did you mean {near}?"),
                    (None, None) => format!("write {}", words.join(" or ")),
                }
            }
            _ => format!("write {}", words.join(" or ")),
        };
        self.wrong_type(&entry.value, place, &format!("`{}`", entry.key), &expected, &help);
        None
    }

    /// A list of texts; what is not text is reported and left out.
    pub(super) fn texts(&mut self, entry: &MapEntry, place: &Place, of: &str) -> Option<Vec<String>> {
        let what = format!("`{}`", entry.key);
        let NodeValue::List(items) = &entry.value.value else {
            let help = match &entry.value.value {
                NodeValue::String(text) => format!("write it as a list: {}", as_list(text, &entry.key)),
                _ => "write a list: [one, two]".to_owned(),
            };
            self.wrong_type(&entry.value, place, &what, &format!("a list of {of}"), &help);
            return None;
        };
        let what = format!("each item of {what}");
        let texts =
            items.iter().enumerate().map(|(i, item)| self.text_of(item, &place.index(i), &what, "text"));
        Some(texts.collect::<Vec<_>>().into_iter().flatten().collect())
    }

    /// A list of names, or one name; what could not be read leaves the graph unread.
    pub(super) fn names(&mut self, entry: &MapEntry, place: &Place, of: &str) -> Vec<String> {
        if let NodeValue::String(name) = &entry.value.value {
            return vec![name.clone()];
        }
        let before = self.items.len();
        let names = self.texts(entry, place, of).unwrap_or_default();
        self.graph_unread |= self.items.len() > before;
        names
    }

    /// A map from names to texts; what is not text is reported and left out.
    pub(super) fn text_map(
        &mut self,
        entry: &MapEntry,
        place: &Place,
        expected: &str,
        help: &str,
    ) -> BTreeMap<String, String> {
        let NodeValue::Map(map) = &entry.value.value else {
            self.wrong_type(&entry.value, place, &format!("`{}`", entry.key), "a map", help);
            return BTreeMap::new();
        };
        let texts = map.entries().iter().map(|item| {
            let text = self.text(item, &place.key(&item.key), expected);
            text.map(|text| (item.key.clone(), text))
        });
        texts.collect::<Vec<_>>().into_iter().flatten().collect()
    }

    /// Names of events with an optional schema each: a list of names, or a map from names to schemas.
    pub(super) fn events(
        &mut self,
        entry: &MapEntry,
        place: &Place,
    ) -> BTreeMap<String, Option<serde_json::Value>> {
        let before = self.items.len();
        let mut events = BTreeMap::new();
        match &entry.value.value {
            NodeValue::Map(map) => {
                for event in map.entries() {
                    let at = place.key(&event.key);
                    let schema = match &event.value.value {
                        NodeValue::Null => None,
                        _ => self.schema(&event.value, &at, &format!("event {:?}", event.key)),
                    };
                    events.insert(event.key.clone(), schema);
                }
                return events;
            }
            NodeValue::List(items) => {
                let what = format!("each item of `{}`", entry.key);
                for (i, item) in items.iter().enumerate() {
                    let Some(name) = self.text_of(item, &place.index(i), &what, "an event's name") else {
                        continue;
                    };
                    if events.contains_key(&name) {
                        let message = format!("the event {name:?} is listed twice");
                        let help = "remove one of them";
                        self.error("duplicate-event", &place.index(i), item.span.clone(), message, help);
                    }
                    events.insert(name, None);
                }
            }
            other => {
                let help = match other {
                    NodeValue::String(text) => format!("write it as a list: [{text}]"),
                    _ => "write a list of names, or a map from names to JSON Schemas".to_owned(),
                };
                let what = format!("`{}`", entry.key);
                self.wrong_type(&entry.value, place, &what, "a list of event names", &help);
            }
        }
        self.graph_unread |= self.items.len() > before;
        events
    }

    pub(super) fn schema(&mut self, node: &Node, place: &Place, what: &str) -> Option<serde_json::Value> {
        match &node.value {
            NodeValue::Map(_) | NodeValue::Bool(_) => Some(node.to_json()),
            _ => {
                self.wrong_type(node, place, what, "a JSON Schema", "write a map such as {type: object}");
                None
            }
        }
    }
}

/// A line of text as the list it was probably meant to be.
fn as_list(text: &str, key: &str) -> String {
    let short: String = text.chars().take(60).collect();
    match key {
        "command" => {
            format!("[{}] (there's no shell)", short.split_whitespace().collect::<Vec<_>>().join(", "))
        }
        _ => format!("[{short}]"),
    }
}
