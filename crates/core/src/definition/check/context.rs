//! The keys that a machine's context can ever have, and expressions that read others.
//!
//! With a `context` map these are its keys and those that a `set` writes; without one the run's input comes first, whose
//! keys are known where its schema forbids others. A read of any other key always fails, which is an error. Where the input
//! may hold more than its schema lists, a key that looks like a slip is a warning, and every other is let be.

use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::Value;

use super::Finding;
use crate::definition::place::Place;
use crate::definition::{Definition, Machine, Transition, suggest};
use crate::expr::Member;

/// Unknown keys that are compared with every known one.
const COMPARED: usize = 100;

#[derive(Debug)]
pub(super) struct ContextKeys {
    known: BTreeSet<String>,
    /// There can be no others.
    closed: bool,
    compared: Cell<usize>,
}

impl ContextKeys {
    pub(super) fn of(definition: &Definition, machine: &Machine) -> ContextKeys {
        let mut known: BTreeSet<String> = machine.context.keys().cloned().collect();
        let mut closed = true;
        if machine.context.is_empty() {
            let schema = definition.input.as_ref();
            let member = |key: &str| schema.and_then(|schema| schema.get(key));
            known.extend(
                member("properties")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flat_map(|map| map.keys().cloned()),
            );
            let required = member("required").and_then(Value::as_array).into_iter().flatten();
            known.extend(required.filter_map(Value::as_str).map(str::to_owned));
            closed = member("additionalProperties") == Some(&Value::Bool(false))
                && member("patternProperties").is_none();
        }
        let transitions = machine
            .states
            .iter()
            .flat_map(|state| state.on.values().flatten().chain(state.after.iter().map(|timer| &timer.then)));
        known.extend(transitions.flat_map(|transition: &Transition| transition.set.keys().cloned()));
        ContextKeys { known, closed, compared: Cell::new(0) }
    }

    /// What there is to say of an expression that reads these members of the context.
    pub(super) fn judge(&self, what: &str, reads: &[Member], place: &Place) -> Vec<Finding> {
        let names: BTreeSet<&str> = reads.iter().map(|read| read.name.as_str()).collect();
        let unknown = names.into_iter().filter(|name| !self.known.contains(*name));
        unknown.filter_map(|name| self.unknown(what, name, reads, place)).collect()
    }

    fn unknown(&self, what: &str, name: &str, reads: &[Member], place: &Place) -> Option<Finding> {
        self.compared.set(self.compared.get() + 1);
        let near = match self.compared.get() <= COMPARED {
            true => suggest::nearest(name, self.known.iter().map(String::as_str)),
            false => None,
        };
        // `has(context.x)` asks whether it is there, and what follows it is not read otherwise.
        let asks = reads.iter().any(|read| read.name == name && read.tested);
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None if self.known.is_empty() => {
                "the context has no keys; add one under `context`, or to a `set`".to_owned()
            }
            None => format!("the context has {}", list(&self.known)),
        };
        let never = format!("{what} reads `context.{name}`, which nothing sets");
        let place = place.clone();
        match (self.closed, asks) {
            (true, false) => Some(Finding::error("unknown-context-key", place, never).help(help)),
            (true, true) => Some(Finding::warning("unknown-context-key", place, never).help(help)),
            (false, _) if near.is_some() => {
                let message = format!(
                    "{what} reads `context.{name}`, which is neither in the input's schema nor in a `set`"
                );
                Some(Finding::warning("unknown-context-key", place, message).help(help))
            }
            (false, _) => None,
        }
    }
}

/// The first few names, for a message.
fn list(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let more = if names.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}
