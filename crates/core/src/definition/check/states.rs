//! Each part of a machine on its own: names, expressions, durations, numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Finding;
use super::expressions::{self, ExpressionUse};
use super::machine::{place_of_timer, place_of_transition};
use super::parts::Parts;
use crate::definition::place::Place;
use crate::definition::{Definition, Machine, OnFailure, StateDefinition, TimerDefinition, Transition, When};
use crate::limits;

/// A role, in bytes.
const ROLE_BYTES: usize = 256;

impl Parts {
    pub(super) fn machine(&mut self, definition: &Definition, machine: &Machine) {
        let root = Place::root();
        let place = root.key("states");
        if machine.states.is_empty() {
            let message = format!("machine {:?} has no states", definition.flow);
            self.error("no-states", place, message, "add at least one state under `states`");
        } else if machine.states.len() > limits::STATES {
            let message = format!(
                "machine {:?} has {} states; the limit is {}",
                definition.flow,
                machine.states.len(),
                limits::STATES
            );
            self.error("too-many-states", place, message, "split it into several machines");
        }
        self.changes("the context", &machine.context, ExpressionUse::Start, &root.key("context"));
        let mut seen = BTreeSet::new();
        for state in &machine.states {
            self.state(state);
            if !seen.insert(state.name.as_str()) {
                let message = format!("there are two states named {:?}", state.name);
                self.error("duplicate-state", Place::state(&state.name), message, "rename one of them");
            }
        }
        self.not_of_flows(definition);
    }

    /// What only code can say of a machine, for its file has no such keys; and what two keys say against each other.
    fn not_of_flows(&mut self, definition: &Definition) {
        if definition.fail_fast {
            let message = format!("machine {:?} has `fail_fast`", definition.flow);
            let help =
                "that's for flows; an action sets what its failure does with `on_failure` or `on_error`";
            self.error("wrong-kind", Place::root().key("fail_fast"), message, help);
        }
        for action in &definition.steps {
            let place = definition.place_of(action);
            if action.subscribes.is_some() || action.published().next().is_some() {
                let message = format!("action {:?} subscribes or emits", action.name);
                let help =
                    "that's for steps of flows; transitions name their actions, and `after` orders them";
                self.error("wrong-kind", place.clone(), message, help);
            }
            if action.on_error.is_some() && action.on_failure == OnFailure::Continue {
                let message =
                    format!("action {:?} has both `on_error` and `on_failure: continue`", action.name);
                let help = "a failure either moves the machine or is ignored; keep one of them";
                self.error("two-outcomes", place.key("on_error"), message, help);
            }
        }
    }

    fn state(&mut self, state: &StateDefinition) {
        let place = Place::state(&state.name);
        let who = format!("state {:?}", state.name);
        self.name("state", &state.name, place.clone());
        for (event, transitions) in &state.on {
            if transitions.is_empty() {
                let message = format!("{who} has an empty list of transitions on {event:?}");
                self.error("empty-list", place.key("on").key(event), message, "add one, or remove the key");
            }
            for (index, transition) in transitions.iter().enumerate() {
                let at = place_of_transition(state, event, index);
                let what = format!("the transition of {who} on {event:?}");
                self.transition(&what, transition, ExpressionUse::Guard, &at);
                self.roles(&what, &transition.roles, &at.key("role"));
            }
        }
        if state.after.len() > limits::TIMERS {
            let message = format!("{who} has {} timers; the limit is {}", state.after.len(), limits::TIMERS);
            self.error("too-many-timers", place.key("after"), message, "split it into several states");
        }
        for (index, timer) in state.after.iter().enumerate() {
            self.timer(&format!("the timer of {who}"), timer, &place_of_timer(state, index));
        }
    }

    fn transition(&mut self, what: &str, transition: &Transition, role: ExpressionUse, place: &Place) {
        if let Some(condition) = &transition.condition {
            let at = place.key("if");
            self.expression(&format!("the condition of {what}"), condition, role, at.clone());
            if expressions::never_holds(Some(condition)) {
                let message = format!("{what} is never taken: its condition is always false");
                let help = "read `context` or `input` in the condition, or remove the transition";
                self.findings.push(Finding::warning("never-taken", at, message).help(help));
            }
        }
        self.changes(&format!("`set` of {what}"), &transition.set, role, &place.key("set"));
    }

    /// Expressions that give the context its values.
    fn changes(
        &mut self,
        what: &str,
        changes: &BTreeMap<String, String>,
        role: ExpressionUse,
        place: &Place,
    ) {
        for (key, expression) in changes {
            self.name("context key", key, place.name(key));
            self.expression(&format!("{key:?} in {what}"), expression, role, place.key(key));
        }
    }

    fn roles(&mut self, what: &str, roles: &[String], place: &Place) {
        for (index, role) in roles.iter().enumerate() {
            if role.trim().is_empty() || role.len() > ROLE_BYTES || role.contains(char::is_control) {
                let message = format!("{what} requires the role {role:?}");
                let help = format!("a role must be one line of text of 1 to {ROLE_BYTES} bytes");
                self.error("bad-role", place.index(index), message, &help);
            }
        }
    }

    fn timer(&mut self, what: &str, timer: &TimerDefinition, place: &Place) {
        match &timer.when {
            When::In(Duration::ZERO) => {
                let message = format!("{what} has a duration of zero");
                let help =
                    "use a duration such as 48h; to move on at once, change where the transition leads";
                self.error("zero-duration", place.key("in"), message, help);
            }
            When::In(delay) => self.whole_milliseconds(what, *delay, place.key("in")),
            When::At(time) => {
                self.expression(&format!("`at` of {what}"), time, ExpressionUse::Context, place.key("at"))
            }
        }
        self.transition(what, &timer.then, ExpressionUse::Context, place);
        let then = &timer.then;
        if then.to.is_none() && then.actions.is_empty() && then.set.is_empty() {
            let message = format!("{what} does nothing: it has no `to`, no `actions` and no `set`");
            self.error("idle-timer", place.clone(), message, "add to: with the state to move to");
        }
        if !then.roles.is_empty() {
            let message = format!("{what} requires a role");
            let help = "no one sends a timer, so it can't require a role; use a condition";
            self.error("bad-role", place.key("role"), message, help);
        }
    }
}
