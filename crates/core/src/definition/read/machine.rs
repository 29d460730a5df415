//! A machine: its context, its states, their transitions and timers.
//!
//! A single transition or timer stands without a list, in the file and in places: `states.draft.on.submit.to`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Reader, step};
use crate::definition::place::Place;
use crate::definition::source::{Map, MapEntry, Node, NodeValue};
use crate::definition::{
    Definition, Ends, Machine, Missed, StateDefinition, TimerDefinition, Transition, When,
};

/// The keys that flows do not have.
pub(super) const OWN_KEYS: [&str; 5] = ["events", "context", "initial", "states", "actions"];
const MACHINE_KEYS: [&str; 12] = [
    "machine",
    "description",
    "input",
    "events",
    "context",
    "output",
    "timeout",
    "state",
    "retain",
    "initial",
    "states",
    "actions",
];
const STATE_KEYS: [&str; 6] = ["description", "final", "entry", "exit", "on", "after"];
const TRANSITION_KEYS: [&str; 5] = ["to", "if", "role", "set", "actions"];
const TIMER_KEYS: [&str; 7] = ["in", "at", "missed", "to", "if", "set", "actions"];

const CEL: &str = "a CEL expression in text";

impl Reader {
    pub(super) fn machine(&mut self, root: &Node, map: &Map) -> Definition {
        let place = Place::root();
        let mut definition = Definition::new("unnamed");
        let mut machine = Machine::default();
        let mut initial = None;
        let mut meant = Vec::new();
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                key if self.shared(key, entry, &at, &mut definition) => {}
                "machine" => definition.flow = self.text(entry, &at, "a name").unwrap_or_default(),
                "events" => definition.accepts = self.events(entry, &at),
                "context" => machine.context = self.text_map(entry, &at, CEL, "write {key: \"input.key\"}"),
                "initial" => {
                    initial = self.text(entry, &at, "the name of a state");
                    self.graph_unread |= initial.is_none();
                }
                "states" => machine.states = self.states(entry, &at),
                "actions" => definition.steps = self.steps(entry, &at, &step::ACTION),
                // Said already.
                "flow" => {}
                _ => {
                    self.graph_unread = true;
                    meant.extend(self.unknown_key("a machine", &MACHINE_KEYS, entry, &at));
                }
            }
        }
        let required = [("machine", "add machine: NAME"), ("states", "add states: with at least one state")];
        self.required(root, map, &required, &meant);
        let first = || machine.states.first().map(|state| state.name.clone());
        machine.initial = initial.or_else(first).unwrap_or_default();
        definition.machine = Some(machine);
        definition
    }

    fn states(&mut self, entry: &MapEntry, place: &Place) -> Vec<StateDefinition> {
        let NodeValue::Map(map) = &entry.value.value else {
            self.graph_unread = true;
            let help = "write each state as NAME: {on: {event: other-state}}";
            self.wrong_type(&entry.value, place, "`states`", "a map from state names to states", help);
            return Vec::new();
        };
        map.entries().iter().map(|state| self.state(state, &place.key(&state.key))).collect()
    }

    fn state(&mut self, entry: &MapEntry, place: &Place) -> StateDefinition {
        let mut state = StateDefinition { name: entry.key.clone(), ..StateDefinition::default() };
        let NodeValue::Map(map) = &entry.value.value else {
            self.graph_unread = true;
            let message =
                format!("state {:?} expects a map of its keys, found {}", state.name, entry.value.describe());
            let help = "write the events it handles, {on: {event: other-state}}, or that it ends the run, {final: true}";
            self.error("wrong-type", place, entry.key_span.clone(), message, help);
            return state;
        };
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                "description" => state.description = self.text(entry, &at, "text"),
                "final" => state.ends = self.ends(entry, &at),
                "entry" => state.entry = self.names(entry, &at, "actions"),
                "exit" => state.exit = self.names(entry, &at, "actions"),
                "on" => state.on = self.on(entry, &at),
                "after" => state.after = self.each(entry, &at, "timers", Reader::timer),
                _ => {
                    self.graph_unread = true;
                    self.unknown_key("a state", &STATE_KEYS, entry, &at);
                }
            }
        }
        state
    }

    fn ends(&mut self, entry: &MapEntry, place: &Place) -> Ends {
        match &entry.value.value {
            NodeValue::Bool(true) => return Ends::Completed,
            NodeValue::Bool(false) => return Ends::No,
            NodeValue::String(text) if text == "failed" => return Ends::Failed,
            _ => {}
        }
        self.graph_unread = true;
        let help = "true ends the run as completed, failed ends it as failed";
        self.wrong_type(&entry.value, place, "`final`", "true, false or failed", help);
        Ends::No
    }

    fn on(&mut self, entry: &MapEntry, place: &Place) -> BTreeMap<String, Vec<Transition>> {
        let NodeValue::Map(map) = &entry.value.value else {
            self.graph_unread = true;
            let help = "write {event: other-state}, or {event: {to: other-state, if: \"…\"}}";
            self.wrong_type(&entry.value, place, "`on`", "a map from events to transitions", help);
            return BTreeMap::new();
        };
        let each = map.entries().iter().map(|event| {
            let transitions = self.each(event, &place.key(&event.key), "transitions", Reader::transition);
            (event.key.clone(), transitions)
        });
        each.collect()
    }

    /// One of something, or a list of them. What cannot be read is stood in for, so that places keep their numbers.
    fn each<T>(
        &mut self,
        entry: &MapEntry,
        place: &Place,
        of: &str,
        read: impl Fn(&mut Reader, &Node, &Place) -> T,
    ) -> Vec<T> {
        let items = match &entry.value.value {
            NodeValue::List(items) => items,
            _ => std::slice::from_ref(&entry.value),
        };
        if items.is_empty() {
            self.graph_unread = true;
            let message = format!("`{}` has an empty list of {of}", entry.key);
            self.error("empty-list", place, entry.key_span.clone(), message, "add one, or remove the key");
        }
        let at = |index| if items.len() == 1 { place.clone() } else { place.index(index) };
        items.iter().enumerate().map(|(index, item)| read(self, item, &at(index))).collect()
    }

    fn transition(&mut self, node: &Node, place: &Place) -> Transition {
        let map = match &node.value {
            NodeValue::Map(map) => map,
            NodeValue::String(to) => return Transition { to: Some(to.clone()), ..Transition::default() },
            _ => {
                self.graph_unread = true;
                let help = "write {to: other-state}; {} accepts the event and does nothing";
                self.wrong_type(node, place, "a transition", "the name of a state or a map", help);
                return Transition::default();
            }
        };
        let mut transition = Transition::default();
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                "role" => transition.roles = self.roles(entry, &at),
                _ if self.leads_to(entry, &at, &mut transition) => {}
                _ => {
                    self.graph_unread = true;
                    self.unknown_key("a transition", &TRANSITION_KEYS, entry, &at);
                }
            }
        }
        transition
    }

    /// Reads a key that transitions and timers have alike; false if it is none.
    fn leads_to(&mut self, entry: &MapEntry, at: &Place, transition: &mut Transition) -> bool {
        match entry.key.as_str() {
            "to" => {
                transition.to = self.text(entry, at, "the name of a state");
                self.graph_unread |= transition.to.is_none();
            }
            "if" => transition.condition = self.text(entry, at, CEL),
            "set" => transition.set = self.text_map(entry, at, CEL, "write {key: \"payload.key\"}"),
            "actions" => transition.actions = self.names(entry, at, "actions"),
            _ => return false,
        }
        true
    }

    /// An empty list is refused: it would let anyone in, which is hardly what it's meant to do.
    fn roles(&mut self, entry: &MapEntry, place: &Place) -> Vec<String> {
        let roles = match &entry.value.value {
            NodeValue::String(role) => vec![role.clone()],
            _ => self.texts(entry, place, "roles").unwrap_or_default(),
        };
        if matches!(&entry.value.value, NodeValue::List(items) if items.is_empty()) {
            let message = "`role` is an empty list".to_owned();
            let help = "name the roles that may send the event, or remove the key to allow anyone";
            self.error("empty-list", place, entry.key_span.clone(), message, help);
        }
        roles
    }

    fn timer(&mut self, node: &Node, place: &Place) -> TimerDefinition {
        let unread = When::In(Duration::from_secs(1));
        let (mut missed, mut then) = (Missed::default(), Transition::default());
        let NodeValue::Map(map) = &node.value else {
            self.graph_unread = true;
            self.wrong_type(node, place, "a timer", "a map", "write {in: 48h, to: other-state}");
            return TimerDefinition { when: unread, missed, then };
        };
        for entry in map.entries() {
            let at = place.key(&entry.key);
            match entry.key.as_str() {
                "in" | "at" => {}
                "missed" => {
                    missed = self.choice(entry, &at, Missed::ALL, Missed::as_str).unwrap_or_default();
                }
                _ if self.leads_to(entry, &at, &mut then) => {}
                "role" => {
                    let message = "a timer has no key \"role\"".to_owned();
                    let help = "no one sends a timer, so it can't require a role; use `if`";
                    self.error("unknown-key", &at, entry.key_span.clone(), message, help);
                }
                _ => {
                    self.graph_unread = true;
                    self.unknown_key("a timer", &TIMER_KEYS, entry, &at);
                }
            }
        }
        let when = self.when(node, map, place);
        self.graph_unread |= when.is_none();
        TimerDefinition { when: when.unwrap_or(unread), missed, then }
    }

    fn when(&mut self, node: &Node, map: &Map, place: &Place) -> Option<When> {
        match (map.get("in"), map.get("at")) {
            (Some(delay), None) => self.duration(delay, &place.key("in")).map(When::In),
            (None, Some(time)) => self.text(time, &place.key("at"), CEL).map(When::At),
            (Some(_), Some(time)) => {
                let message = "a timer has both `in` and `at`".to_owned();
                let help = "a timer fires once: keep one of them";
                self.error("two-times", &place.key("at"), time.key_span.clone(), message, help);
                None
            }
            (None, None) => {
                // A misspelt key is an error already.
                if map.entries().iter().all(|entry| TIMER_KEYS.contains(&entry.key.as_str())) {
                    let at = map.entries().first().map_or(node.span.clone(), |entry| entry.key_span.clone());
                    let help = "add in: 48h, or at: with a CEL expression for a timestamp";
                    self.error(
                        "missing-key",
                        place,
                        at,
                        "a timer doesn't say when it fires".to_owned(),
                        help,
                    );
                }
                None
            }
        }
    }
}
