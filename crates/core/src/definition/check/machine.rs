//! A machine as a whole: states, actions and events that name each other, and what can never happen.

use std::collections::{BTreeMap, BTreeSet};

use super::{CYCLE_SHOWN, Finding, SUGGESTIONS, order};
use crate::definition::diagnostic::Severity;
use crate::definition::place::Place;
use crate::definition::{Definition, Ends, Machine, StateDefinition, StepDefinition, Transition, suggest};
use crate::limits;

pub(super) fn check(definition: &Definition, machine: &Machine) -> Vec<Finding> {
    if machine.states.is_empty() || machine.states.len() > limits::STATES {
        return Vec::new();
    }
    let mut whole = Whole::of(definition, machine);
    whole.initial();
    machine.states.iter().for_each(|state| whole.state(state));
    definition.steps.iter().for_each(|action| whole.action(action));
    whole.cycles();
    // Whatever hangs on a wrong name cannot be reached either; naming the cause is enough.
    if !whole.findings.iter().any(|finding| finding.severity == Severity::Error) {
        whole.unreachable();
        whole.trapped();
        whole.unused();
        whole.findings.extend(order::check(definition, machine));
    }
    whole.findings
}

/// The place of a transition; a single one stands without a list.
pub(super) fn place_of_transition(state: &StateDefinition, event: &str, index: usize) -> Place {
    let place = Place::state(&state.name).key("on").key(event);
    if state.on.get(event).is_some_and(|all| all.len() == 1) { place } else { place.index(index) }
}

/// The place of a timer; a single one stands without a list.
pub(super) fn place_of_timer(state: &StateDefinition, index: usize) -> Place {
    let place = Place::state(&state.name).key("after");
    if state.after.len() == 1 { place } else { place.index(index) }
}

struct Whole<'a> {
    definition: &'a Definition,
    machine: &'a Machine,
    states: BTreeMap<&'a str, usize>,
    actions: BTreeMap<&'a str, usize>,
    findings: Vec<Finding>,
}

/// Every transition of a state, by events and by timers, with its place.
fn transitions(state: &StateDefinition) -> impl Iterator<Item = (&Transition, Place)> {
    let on = state.on.iter().flat_map(|(event, all)| {
        all.iter().enumerate().map(|(index, each)| (each, place_of_transition(state, event, index)))
    });
    let after = state.after.iter().enumerate();
    on.chain(after.map(|(index, timer)| (&timer.then, place_of_timer(state, index))))
}

impl<'a> Whole<'a> {
    fn of(definition: &'a Definition, machine: &'a Machine) -> Whole<'a> {
        let states = machine.states.iter().enumerate().map(|(i, state)| (state.name.as_str(), i)).collect();
        let actions = definition.steps.iter().enumerate().map(|(i, step)| (step.name.as_str(), i)).collect();
        Whole { definition, machine, states, actions, findings: Vec::new() }
    }

    fn initial(&mut self) {
        let machine = self.machine;
        self.names_state("the machine starts in", &machine.initial, Place::root().key("initial"));
    }

    fn state(&mut self, state: &'a StateDefinition) {
        let place = Place::state(&state.name);
        let name = &state.name;
        for (transition, at) in transitions(state) {
            if let Some(to) = &transition.to {
                self.names_state(&format!("state {name:?} moves to"), to, at.key("to"));
            }
            self.names_actions(
                &format!("a transition of state {name:?}"),
                &transition.actions,
                &at.key("actions"),
            );
        }
        self.names_actions(&format!("the entry of state {name:?}"), &state.entry, &place.key("entry"));
        self.names_actions(&format!("the exit of state {name:?}"), &state.exit, &place.key("exit"));
        for event in state.on.keys().filter(|event| !self.definition.accepts.contains_key(*event)) {
            let message = format!("state {name:?} handles {event:?}, which `events` doesn't list");
            let help = match self.suggest(event, self.definition.accepts.keys().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("add {event:?} to `events`"),
            };
            self.findings
                .push(Finding::error("unknown-event", place.key("on").name(event), message).help(help));
        }
        self.ending(state, &place);
        self.shadowed(state);
    }

    /// A state is left, or the run ends in it: one of both.
    fn ending(&mut self, state: &StateDefinition, place: &Place) {
        let name = &state.name;
        if state.ends == Ends::No {
            // Timers that stay are set when the state is entered, fire once, and then nothing is left that could happen.
            if state.on.is_empty() && state.after.iter().all(|timer| timer.then.to.is_none()) {
                let timer =
                    if state.after.is_empty() { "has no timer" } else { "none of its timers leaves it" };
                let message =
                    format!("state {name:?} is a dead end: it handles no event, {timer}, and it isn't final");
                let help = "add final: true (or failed) to end the run there, or list the events it handles under `on`";
                self.findings.push(Finding::error("dead-end", place.clone(), message).help(help));
            }
            return;
        }
        let pointless =
            [("on", state.on.is_empty()), ("after", state.after.is_empty()), ("exit", state.exit.is_empty())];
        for (key, _) in pointless.into_iter().filter(|(_, empty)| !empty) {
            let message = format!("state {name:?} is final, so its `{key}` has no effect");
            let help = format!("the run ends there; remove `{key}`, or remove `final`");
            self.findings.push(Finding::error("final-goes-on", place.key(key), message).help(help));
        }
    }

    /// Of several transitions the first that applies is taken; none comes after one that always applies.
    fn shadowed(&mut self, state: &StateDefinition) {
        for (event, all) in &state.on {
            let always = |each: &Transition| each.condition.is_none() && each.roles.is_empty();
            let Some(first) = all.iter().position(always).filter(|first| first + 1 < all.len()) else {
                continue;
            };
            let message = format!(
                "state {:?} never takes this transition on {event:?}: an earlier one has neither `if` nor `role`",
                state.name
            );
            let place = place_of_transition(state, event, first + 1);
            let help = "put the transition without conditions last, or give it a condition";
            self.findings.push(Finding::warning("shadowed", place, message).help(help));
        }
    }

    fn action(&mut self, action: &'a StepDefinition) {
        let place = self.definition.place_of(action);
        let name = &action.name;
        if let Some(state) = &action.on_error {
            self.names_state(&format!("if it fails, action {name:?} moves to"), state, place.key("on_error"));
        }
        for (index, before) in action.after.iter().enumerate() {
            let at = place.key("after").index(index);
            if before == name {
                let message = format!("action {name:?} waits for itself");
                let help = "an action runs once per transition; name another one, or remove `after`";
                self.findings.push(Finding::error("cycle", at, message).help(help));
            } else {
                self.names_action(&format!("action {name:?} waits for"), before, at);
            }
        }
    }

    fn names_state(&mut self, what: &str, name: &str, place: Place) {
        if self.states.contains_key(name) {
            return;
        }
        let message = format!("{what} {name:?}, which isn't a state");
        let help = match self.suggest(name, self.states.keys().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("add {name:?} to `states`, or name an existing state"),
        };
        self.findings.push(Finding::error("unknown-state", place, message).help(help));
    }

    fn names_actions(&mut self, what: &str, names: &[String], place: &Place) {
        for (index, name) in names.iter().enumerate() {
            self.names_action(&format!("{what} uses"), name, place.index(index));
        }
    }

    fn names_action(&mut self, what: &str, name: &str, place: Place) {
        if self.actions.contains_key(name) {
            return;
        }
        let message = format!("{what} {name:?}, which isn't an action");
        let help = match self.suggest(name, self.actions.keys().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("add {name:?} to `actions`, or name an existing action"),
        };
        self.findings.push(Finding::error("unknown-action", place, message).help(help));
    }

    fn suggest<'b>(&self, name: &str, known: impl Iterator<Item = &'b str>) -> Option<&'b str> {
        if self.findings.len() >= SUGGESTIONS {
            return None;
        }
        suggest::nearest(name, known)
    }

    /// Actions that wait for each other. Each is taken away once all that it waits for is gone; in what is left, walking
    /// back comes round.
    fn cycles(&mut self) {
        let steps = &self.definition.steps;
        let before = |action: usize| {
            let named =
                steps[action].after.iter().filter_map(|name| self.actions.get(name.as_str()).copied());
            named.filter(move |&other| other != action).collect::<BTreeSet<usize>>()
        };
        let before: Vec<BTreeSet<usize>> = (0..steps.len()).map(before).collect();
        let mut waiting: Vec<usize> = before.iter().map(BTreeSet::len).collect();
        let mut after = vec![Vec::new(); steps.len()];
        for (action, names) in before.iter().enumerate() {
            names.iter().for_each(|&name| after[name].push(action));
        }
        let mut free: Vec<usize> = (0..steps.len()).filter(|&action| waiting[action] == 0).collect();
        while let Some(action) = free.pop() {
            for &next in &after[action] {
                waiting[next] -= 1;
                if waiting[next] == 0 {
                    free.push(next);
                }
            }
        }
        let Some(mut at) = (0..steps.len()).find(|&action| waiting[action] > 0) else { return };
        let mut path = Vec::new();
        while !path.contains(&at) {
            path.push(at);
            let Some(&back) = before[at].iter().find(|&&name| waiting[name] > 0) else { return };
            at = back;
        }
        let mut circle = path.split_off(path.iter().position(|&action| action == at).unwrap_or_default());
        circle.reverse();
        self.findings.push(looping(self.definition, &circle));
    }

    fn unreachable(&mut self) {
        let mut reached = vec![false; self.machine.states.len()];
        let mut next = vec![self.states[self.machine.initial.as_str()]];
        while let Some(state) = next.pop() {
            if !std::mem::replace(&mut reached[state], true) {
                next.extend(self.leads_to(&self.machine.states[state]));
            }
        }
        for (state, _) in self.machine.states.iter().zip(&reached).filter(|(_, reached)| !**reached) {
            let message =
                format!("state {:?} can never be reached from {:?}", state.name, self.machine.initial);
            let help = "add a transition, a timer or an `on_error` that leads to it, or remove it";
            self.findings
                .push(Finding::error("unreachable-state", Place::state(&state.name), message).help(help));
        }
    }

    /// States that can't reach a final state. A machine without a final state is meant to run forever.
    fn trapped(&mut self) {
        let states = &self.machine.states;
        let mut ends: Vec<bool> = states.iter().map(|state| state.ends != Ends::No).collect();
        if !ends.contains(&true) {
            return;
        }
        let mut before = vec![Vec::new(); states.len()];
        for (at, state) in states.iter().enumerate() {
            self.leads_to(state).into_iter().for_each(|to| before[to].push(at));
        }
        let mut next: Vec<usize> = (0..states.len()).filter(|&state| ends[state]).collect();
        while let Some(state) = next.pop() {
            next.extend(
                before[state].iter().copied().filter(|&from| !std::mem::replace(&mut ends[from], true)),
            );
        }
        for (state, _) in states.iter().zip(&ends).filter(|(_, ends)| !**ends) {
            let message = format!("no final state can be reached from state {:?}", state.name);
            let help = "a run that gets there never ends; add a transition or a timer that leads out";
            self.findings.push(Finding::warning("no-way-out", Place::state(&state.name), message).help(help));
        }
    }

    /// Where a machine can go from a state: by its transitions, and by the failure of an action that leaving it or
    /// staying in it runs. What entering the next state runs is counted there.
    fn leads_to(&self, state: &'a StateDefinition) -> BTreeSet<usize> {
        let moves = transitions(state).filter_map(|(transition, _)| transition.to.as_deref());
        let failures = asked_for(state).filter_map(|name| {
            self.actions.get(name).and_then(|&action| self.definition.steps[action].on_error.as_deref())
        });
        moves.chain(failures).filter_map(|name| self.states.get(name).copied()).collect()
    }

    fn unused(&mut self) {
        let states = &self.machine.states;
        let answered: BTreeSet<&str> =
            states.iter().flat_map(|state| state.on.keys().map(String::as_str)).collect();
        for event in self.definition.accepts.keys().filter(|event| !answered.contains(event.as_str())) {
            let message = format!("no state handles the event {event:?}");
            let place = Place::root().key("events").key(event);
            let help = "remove it, or handle it under `on` of a state";
            self.findings.push(Finding::warning("unused-event", place, message).help(help));
        }
        let asked: BTreeSet<&str> = states.iter().flat_map(asked_for).collect();
        for action in self.definition.steps.iter().filter(|action| !asked.contains(action.name.as_str())) {
            let message = format!("nothing uses the action {:?}", action.name);
            let help = "add it to `entry`, `exit` or the `actions` of a transition, or remove it";
            let place = self.definition.place_of(action);
            self.findings.push(Finding::warning("unused-action", place, message).help(help));
        }
    }
}

/// Every action that a state names.
fn asked_for(state: &StateDefinition) -> impl Iterator<Item = &str> {
    let of_transitions = transitions(state).flat_map(|(transition, _)| &transition.actions);
    state.entry.iter().chain(&state.exit).chain(of_transitions).map(String::as_str)
}

fn looping(definition: &Definition, circle: &[usize]) -> Finding {
    let name = |action: &usize| definition.steps[*action].name.as_str();
    let first = circle.first().map(name).unwrap_or_default();
    let mut path: Vec<&str> = circle.iter().take(CYCLE_SHOWN).map(name).collect();
    if circle.len() > CYCLE_SHOWN {
        path.push("…");
    }
    path.push(first);
    let message = format!("actions wait for each other in a cycle: {}", path.join(" → "));
    let place = Place::root().key("actions").key(first).key("after");
    let help = format!("remove what {first:?} waits for in this cycle");
    Finding::error("cycle", place, message).help(help)
}
