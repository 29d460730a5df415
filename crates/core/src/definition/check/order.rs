//! `after` of a machine's actions, held against the transitions that ask for them.
//!
//! A transition runs three groups in turn: the exit actions, its own, the entry actions. `after` orders the actions within a
//! group. One that names an action of a later group can never hold there, and is an error; one that names an action which
//! no transition asks for along with its own does nothing, and is a warning.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::definition::{Definition, Machine, StateDefinition};

/// Names that are compared in one definition. One that takes more is not looked at further: what is left unsaid costs a
/// warning, while the engine runs every action all the same.
const COMPARED: usize = 1_000_000;

/// The actions of one transition by group, and how to call it.
struct Transition<'a> {
    groups: [&'a [String]; 3],
    from: Option<&'a str>,
    to: Option<&'a str>,
    by: By<'a>,
}

#[derive(Clone, Copy)]
enum By<'a> {
    Start,
    Event(&'a str),
    Timer,
    Error,
}

pub(super) fn check(definition: &Definition, machine: &Machine) -> Vec<Finding> {
    let after: BTreeMap<&str, &[String]> = definition
        .steps
        .iter()
        .filter(|action| !action.after.is_empty())
        .map(|action| (action.name.as_str(), action.after.as_slice()))
        .collect();
    if after.is_empty() {
        return Vec::new();
    }
    let mut findings = BTreeMap::new();
    let mut together = BTreeSet::new();
    let mut compared = 0;
    for transition in transitions(definition, machine) {
        let group_of = transition.group_of();
        for (&action, &group) in &group_of {
            for (index, before) in after.get(action).copied().unwrap_or_default().iter().enumerate() {
                compared += 1;
                if let Some(&other) = group_of.get(before.as_str()) {
                    together.insert((action, index));
                    if other > group {
                        let finding = || transition.crossed(definition, action, index, before, group, other);
                        findings.entry((action, index)).or_insert_with(finding);
                    }
                }
            }
        }
        compared += group_of.len();
        if compared > COMPARED {
            return findings.into_values().collect();
        }
    }
    for (&action, names) in &after {
        let alone = names.iter().enumerate().filter(|(index, _)| !together.contains(&(action, *index)));
        for (index, before) in alone {
            findings.insert((action, index), pointless(definition, action, index, before));
        }
    }
    findings.into_values().collect()
}

/// Every transition that a run can make: into its first state, by events and timers, and by actions that fail.
fn transitions<'a>(definition: &'a Definition, machine: &'a Machine) -> Vec<Transition<'a>> {
    let state = |name: &str| machine.state(name);
    let entry = |to: Option<&'a str>| to.and_then(state).map_or(&[][..], |state| &state.entry);
    let mut all = vec![Transition {
        groups: [&[], &[], entry(Some(&machine.initial))],
        from: None,
        to: Some(&machine.initial),
        by: By::Start,
    }];
    for from in &machine.states {
        let on = from.on.iter().flat_map(|(event, all)| all.iter().map(move |each| (By::Event(event), each)));
        for (by, each) in on.chain(from.after.iter().map(|timer| (By::Timer, &timer.then))) {
            let to = each.to.as_deref();
            let exit = if to.is_some() { from.exit.as_slice() } else { &[] };
            all.push(Transition { groups: [exit, &each.actions, entry(to)], from: Some(&from.name), to, by });
        }
    }
    by_failure(definition, machine, &mut all);
    all
}

/// Adds the transitions by `on_error`: an action fails in the state that the transition which asked for it led to.
fn by_failure<'a>(definition: &'a Definition, machine: &'a Machine, all: &mut Vec<Transition<'a>>) {
    let moves: BTreeMap<&str, &str> = definition
        .steps
        .iter()
        .filter_map(|action| Some((action.name.as_str(), action.on_error.as_deref()?)))
        .collect();
    if moves.is_empty() {
        return;
    }
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut at = 0;
    while at < all.len() && at < COMPARED {
        let Some(fails_in) = all[at].to.or(all[at].from).and_then(|name| machine.state(name)) else {
            at += 1;
            continue;
        };
        let targets: BTreeSet<&str> = all[at]
            .groups
            .into_iter()
            .flatten()
            .filter_map(|name| moves.get(name.as_str()).copied())
            .collect();
        for to in targets.into_iter().filter_map(|to| machine.state(to)) {
            if seen.insert((&fails_in.name, &to.name)) {
                all.push(Transition::by_error(fails_in, to));
            }
        }
        at += 1;
    }
}

impl<'a> Transition<'a> {
    fn by_error(from: &'a StateDefinition, to: &'a StateDefinition) -> Transition<'a> {
        let groups = [from.exit.as_slice(), &[], &to.entry];
        Transition { groups, from: Some(&from.name), to: Some(&to.name), by: By::Error }
    }

    /// The group that each action runs in: one that is named twice runs once, with the first that names it.
    fn group_of(&self) -> BTreeMap<&'a str, usize> {
        let mut groups = BTreeMap::new();
        for (group, names) in self.groups.into_iter().enumerate() {
            for name in names {
                groups.entry(name.as_str()).or_insert(group);
            }
        }
        groups
    }

    fn crossed(
        &self,
        definition: &Definition,
        action: &str,
        index: usize,
        before: &str,
        group: usize,
        other: usize,
    ) -> Finding {
        let asked = |group: usize| match (group, self.from, self.to) {
            (0, Some(from), _) => format!("an exit action of {from:?}"),
            (2, _, Some(to)) => format!("an entry action of {to:?}"),
            _ => "an action of the transition".to_owned(),
        };
        let when = match self.by {
            By::Start => "when the run starts".to_owned(),
            By::Event(event) => format!("on {event:?}"),
            By::Timer => "when a timer fires".to_owned(),
            By::Error => "when an action fails".to_owned(),
        };
        let from = self.from.map(|from| format!(" in state {from:?}")).unwrap_or_default();
        let message = format!(
            "action {action:?} waits for {before:?}, but runs before it {when}{from}: {action:?} is {}, {before:?} is {}",
            asked(group),
            asked(other)
        );
        let place = place_of(definition, action, index);
        let help = format!(
            "`after` orders actions within one group (exit, then the transition's own, then entry); \
             list both in the same group, or remove {before:?} from `after`"
        );
        Finding::error("crossed-after", place, message).help(help)
    }
}

fn pointless(definition: &Definition, action: &str, index: usize, before: &str) -> Finding {
    let message = format!("action {action:?} waits for {before:?}, but no transition uses both");
    let help = format!("remove {before:?} from `after`, or use both in one transition");
    Finding::warning("pointless-after", place_of(definition, action, index), message).help(help)
}

fn place_of(definition: &Definition, action: &str, index: usize) -> crate::definition::place::Place {
    let step = definition.steps.iter().find(|step| step.name == action);
    let place = step.map(|step| definition.place_of(step)).unwrap_or_default();
    place.key("after").index(index)
}
