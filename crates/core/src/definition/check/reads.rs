//! Expressions of a flow that read an event or a result which can't be there.
//!
//! A condition sees the events of its step's own subscription, and `output` those of the whole run and the results of its
//! steps. A read of anything else always fails, which is an error. Tested with `has` first, it's never there: a warning.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, SUGGESTIONS, Subscribes};
use crate::definition::place::Place;
use crate::definition::{Definition, suggest};
use crate::expr::{Expr, Member};

/// Names that a message lists.
const SHOWN: usize = 8;

pub(super) fn check(definition: &Definition) -> Vec<Finding> {
    let mut reads = Reads::default();
    for step in &definition.steps {
        let Some(condition) = step.condition.as_deref() else { continue };
        let known: BTreeSet<&str> = match &step.subscribes {
            Some(subscribes) => subscribes.leaves().into_iter().filter_map(event).collect(),
            None => BTreeSet::new(),
        };
        let what = format!("the condition of step {:?}", step.name);
        let place = Place::step(&step.name).key("if");
        reads.judge((&what, &place), condition, "events", &known, "the step doesn't subscribe to");
    }
    if let Some(output) = definition.output.as_deref() {
        let place = Place::root().key("output");
        let published = definition.steps.iter().flat_map(|step| step.published());
        let events = published.chain(definition.accepts.keys().map(String::as_str)).collect();
        let steps = definition.steps.iter().map(|step| step.name.as_str()).collect();
        let why = "no step emits and `accepts` doesn't list";
        reads.judge(("`output`", &place), output, "events", &events, why);
        reads.judge(("`output`", &place), output, "results", &steps, "isn't a step");
    }
    reads.findings
}

fn event(leaf: &Subscribes) -> Option<&str> {
    match leaf {
        Subscribes::Event(name) => Some(name),
        _ => None,
    }
}

#[derive(Default)]
struct Reads<'a> {
    /// What expressions seen before read: generated flows repeat them.
    members: BTreeMap<(&'a str, &'static str), Vec<Member>>,
    findings: Vec<Finding>,
}

impl<'a> Reads<'a> {
    fn judge(
        &mut self,
        (what, place): (&str, &Place),
        text: &'a str,
        variable: &'static str,
        known: &BTreeSet<&str>,
        why: &str,
    ) {
        if !text.contains(variable) {
            return;
        }
        let members = self.members.entry((text, variable)).or_insert_with(|| {
            // What can't be parsed is a finding already.
            Expr::parse(text).map(|expr| expr.members_of(&[variable])).unwrap_or_default()
        });
        let unknown: BTreeSet<&str> =
            members.iter().map(|read| read.name.as_str()).filter(|name| !known.contains(name)).collect();
        for name in unknown {
            let tested = members.iter().any(|read| read.name == name && read.tested);
            let message = format!("{what} reads `{}`, which {why}", written(variable, name));
            let finding = match tested {
                true => Finding::warning(code(variable), place.clone(), message),
                false => Finding::error(code(variable), place.clone(), message),
            };
            let near = match self.findings.len() < SUGGESTIONS {
                true => nearest(name, known),
                false => None,
            };
            self.findings.push(finding.help(match near {
                Some(near) => format!("did you mean `{}`?", written(variable, near)),
                None if known.is_empty() => format!("`{variable}` is always empty here"),
                None => format!("it can read {}", list(variable, known)),
            }));
        }
    }
}

fn code(variable: &str) -> &'static str {
    match variable {
        "results" => "unknown-step",
        _ => "unknown-event",
    }
}

/// A name that's cut at its first dot is one too: `events.order.paid` reads `order`.
fn nearest<'a>(name: &str, known: &BTreeSet<&'a str>) -> Option<&'a str> {
    let cut = |known: &str| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    let whole = known.iter().copied().find(|known| cut(known));
    whole.or_else(|| suggest::nearest(name, known.iter().copied()))
}

/// As an expression has to name it.
fn written(variable: &str, name: &str) -> String {
    match name.contains(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
        true => format!("{variable}[{name:?}]"),
        false => format!("{variable}.{name}"),
    }
}

fn list(variable: &str, known: &BTreeSet<&str>) -> String {
    let shown: Vec<String> =
        known.iter().take(SHOWN).map(|name| format!("`{}`", written(variable, name))).collect();
    let more = if known.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}
