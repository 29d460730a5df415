//! Joins that can be left half satisfied: one side happens, the other does not, and the step never runs.
//!
//! For every step and event we keep what would stop it: a step that is skipped by its `if`, or one that fails under
//! `on_failure: continue` and so emits nothing. An AND unites what stops its parts, an OR keeps what stops all of them.
//! A join is in danger if something stops it that does not stop each of its parts.

use super::network::Network;
use super::{Finding, SUGGESTIONS};
use crate::definition::place::Place;
use crate::definition::{Definition, OnFailure, StepDefinition, Subscribes};

/// Causes kept per node, the latest in the file: keeps the cost linear and only loses warnings, because a node with this
/// many is never taken to lack one.
const CAUSES: usize = 8;

/// The step that stops something, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cause {
    step: usize,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    Skipped,
    Failed,
}

/// Sorted, at most [`CAUSES`].
type Causes = Vec<Cause>;

struct Joins<'a> {
    definition: &'a Definition,
    network: &'a Network<'a>,
    /// What stops each step from being triggered and each event from happening.
    stopped_by: Vec<Causes>,
}

pub(super) fn check(definition: &Definition, network: &Network<'_>) -> Vec<Finding> {
    let stopped_by = vec![Causes::new(); network.node_count()];
    let mut joins = Joins { definition, network, stopped_by };
    for node in network.in_order() {
        let causes = match definition.steps.get(node) {
            Some(step) => step.subscribes.as_ref().map_or(Causes::new(), |s| joins.of_subscription(s)),
            None => joins.of_event(node),
        };
        joins.stopped_by[node] = causes;
    }
    let mut findings = Vec::new();
    for (index, step) in definition.steps.iter().enumerate() {
        let Some(subscribes) = &step.subscribes else { continue };
        let place = Place::step(&step.name).key("subscribes");
        for cause in &joins.stopped_by[index] {
            if let Some((part, place)) = joins.half_satisfied(subscribes, *cause, &place) {
                findings.push(joins.finding(step, *cause, part, place, findings.len() < SUGGESTIONS));
                break;
            }
        }
    }
    findings
}

impl<'a> Joins<'a> {
    fn of_subscription(&self, subscribes: &Subscribes) -> Causes {
        match subscribes {
            Subscribes::Event(event) => {
                self.network.event_number(event).map_or(Causes::new(), |e| self.stopped_by[e].clone())
            }
            Subscribes::Step(name) => {
                self.network.step_number(name).map_or(Causes::new(), |s| self.of_completion(s))
            }
            Subscribes::All(parts) => {
                capped(parts.iter().flat_map(|part| self.of_subscription(part)).collect())
            }
            Subscribes::Any(parts) => common(parts.iter().map(|part| self.of_subscription(part))),
        }
    }

    fn of_event(&self, event: usize) -> Causes {
        if self.network.is_accepted(event) {
            return Causes::new();
        }
        common(self.network.before(event).iter().map(|&step| {
            let mut causes = self.of_completion(step);
            if self.definition.steps[step].on_failure == OnFailure::Continue {
                causes.push(Cause { step, how: How::Failed });
            }
            capped(causes)
        }))
    }

    /// What stops a step from completing; a failure that the run survives does not.
    fn of_completion(&self, step: usize) -> Causes {
        let mut causes = self.stopped_by[step].clone();
        if self.definition.steps[step].condition.is_some() {
            causes.push(Cause { step, how: How::Skipped });
        }
        capped(causes)
    }

    /// The part of an AND that `cause` stops while another part goes on.
    fn half_satisfied<'s>(
        &self,
        subscribes: &'s Subscribes,
        cause: Cause,
        place: &Place,
    ) -> Option<(&'s Subscribes, Place)> {
        match subscribes {
            Subscribes::Event(_) | Subscribes::Step(_) => None,
            Subscribes::Any(parts) => {
                let place = place.key("any");
                parts
                    .iter()
                    .enumerate()
                    .find_map(|(i, part)| self.half_satisfied(part, cause, &place.index(i)))
            }
            Subscribes::All(parts) => {
                let causes: Vec<Causes> = parts.iter().map(|part| self.of_subscription(part)).collect();
                let first = causes.iter().position(|causes| causes.contains(&cause))?;
                if causes.iter().any(|causes| !causes.contains(&cause) && causes.len() < CAUSES) {
                    return Some((&parts[first], place.index(first)));
                }
                parts
                    .iter()
                    .enumerate()
                    .find_map(|(i, part)| self.half_satisfied(part, cause, &place.index(i)))
            }
        }
    }

    fn finding(
        &self,
        step: &StepDefinition,
        cause: Cause,
        part: &Subscribes,
        place: Place,
        detailed: bool,
    ) -> Finding {
        let name = &step.name;
        let part = match part {
            Subscribes::Event(event) => format!("{event:?}"),
            Subscribes::Step(step) => format!("\"step:{step}\""),
            Subscribes::All(_) | Subscribes::Any(_) => "this part".to_owned(),
        };
        let by = &self.definition.steps[cause.step].name;
        let (message, help) = match cause.how {
            How::Skipped => (
                format!(
                    "step {name:?} joins {part} with other events, but if the `if` of step {by:?} is false, {part} never happens and {name:?} never runs"
                ),
                "add an {any: […]} alternative to the join, or put the same `if` on whatever else it waits for"
                    .to_owned(),
            ),
            How::Failed => (
                format!(
                    "step {name:?} joins {part} with other events, but if step {by:?} fails, the run continues (on_failure: continue) without {part} and {name:?} never runs"
                ),
                format!(
                    "wait for \"step:{by}\" instead, which is also satisfied if the step fails, or add an {{any: […]}} alternative"
                ),
            ),
        };
        let finding = Finding::warning("half-satisfied-join", place, message);
        if detailed { finding.help(help) } else { finding }
    }
}

fn capped(mut causes: Causes) -> Causes {
    causes.sort();
    causes.dedup();
    causes.drain(..causes.len().saturating_sub(CAUSES));
    causes
}

/// What is in all of them.
fn common(mut sets: impl Iterator<Item = Causes>) -> Causes {
    let first = sets.next().unwrap_or_default();
    sets.fold(first, |kept, set| kept.into_iter().filter(|cause| set.binary_search(cause).is_ok()).collect())
}
