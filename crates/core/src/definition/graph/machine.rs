//! A machine as a picture: states, and what leads from one to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{Graph, GraphEdge, GraphNode, NodeKind, dot_text, mermaid_text};
use crate::definition::{Definition, Ends, Machine, StateDefinition, TimerDefinition, Transition, When};
use crate::time::format_duration;

pub(super) fn graph(definition: &Definition, machine: &Machine) -> Graph {
    let drawing = Drawing::of(definition, machine);
    let nodes = machine.states.iter().enumerate().map(|(at, state)| GraphNode {
        id: format!("s{at}"),
        kind: kind(machine, state),
        name: state.name.clone(),
        runner: None,
        condition: None,
    });
    let nodes = nodes.collect();
    let mut edges = Vec::new();
    for state in &machine.states {
        for (event, transitions) in &state.on {
            let named = |edge| GraphEdge { event: Some(event.clone()), ..edge };
            edges.extend(transitions.iter().filter_map(|each| drawing.edge(state, each).map(named)));
        }
        for TimerDefinition { when, then, .. } in &state.after {
            let timed = |edge| match when {
                When::In(delay) => GraphEdge { after: Some(format_duration(*delay)), ..edge },
                When::At(time) => GraphEdge { at: Some(time.clone()), ..edge },
            };
            edges.extend(drawing.edge(state, then).map(timed));
        }
    }
    edges.extend(drawing.failures());
    Graph { flow: definition.flow.clone(), nodes, edges }
}

pub(super) fn mermaid(graph: &Graph) -> String {
    let mut out = String::from("stateDiagram-v2\n");
    for node in &graph.nodes {
        let _ = writeln!(out, "    state \"{}\" as {}", mermaid_text(&node.name), node.id);
    }
    let initial = graph.nodes.iter().filter(|node| node.kind == NodeKind::Initial);
    initial.for_each(|node| _ = writeln!(out, "    [*] --> {}", node.id));
    for edge in &graph.edges {
        let _ = writeln!(out, "    {} --> {} : {}", edge.from, edge.to, mermaid_label(&label(edge)));
    }
    for node in &graph.nodes {
        let _ = match node.kind {
            NodeKind::Final => writeln!(out, "    {} --> [*]", node.id),
            NodeKind::Failed => writeln!(out, "    {} --> [*] : failed", node.id),
            _ => Ok(()),
        };
    }
    out
}

pub(super) fn dot(graph: &Graph) -> String {
    let name = dot_text(&graph.flow);
    let mut out = format!("digraph \"{name}\" {{\n    rankdir=TB;\n    node [shape=box, style=rounded];\n");
    for node in &graph.nodes {
        let shape = match node.kind {
            NodeKind::Final => ", peripheries=2",
            NodeKind::Failed => ", peripheries=2, color=red",
            _ => "",
        };
        let _ = writeln!(out, "    {} [label=\"{}\"{shape}];", node.id, dot_text(&node.name));
    }
    for node in graph.nodes.iter().filter(|node| node.kind == NodeKind::Initial) {
        let _ = writeln!(out, "    start [shape=point];\n    start -> {};", node.id);
    }
    for edge in &graph.edges {
        let style = match edge {
            edge if edge.action.is_some() => ", style=dotted",
            edge if edge.event.is_none() => ", style=dashed",
            _ => "",
        };
        let label = dot_text(&label(edge));
        let _ = writeln!(out, "    {} -> {} [label=\"{label}\"{style}];", edge.from, edge.to);
    }
    out.push_str("}\n");
    out
}

/// `approve [context.amount < 1000] (manager)`, `after 48h`, `pay fails`.
fn label(edge: &GraphEdge) -> String {
    let mut label = match (&edge.event, &edge.after, &edge.at, &edge.action) {
        (Some(event), ..) => event.clone(),
        (_, Some(delay), ..) => format!("after {delay}"),
        (_, _, Some(time), _) => format!("at {time}"),
        (.., Some(action)) => format!("{action} fails"),
        _ => String::new(),
    };
    if let Some(condition) = &edge.condition {
        let _ = write!(label, " [{condition}]");
    }
    if !edge.roles.is_empty() {
        let _ = write!(label, " ({})", edge.roles.join(", "));
    }
    if edge.stays {
        label.push_str(", stays");
    }
    label
}

/// What a label of a state diagram takes as it is, and the rest by number.
fn mermaid_label(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if "[]()=+*/,'|!?".contains(c) {
            out.push(c);
        } else {
            out.push_str(&mermaid_text(c.encode_utf8(&mut [0; 4])));
        }
    }
    out
}

fn kind(machine: &Machine, state: &StateDefinition) -> NodeKind {
    match state.ends {
        Ends::Completed => NodeKind::Final,
        Ends::Failed => NodeKind::Failed,
        Ends::No if state.name == machine.initial => NodeKind::Initial,
        Ends::No => NodeKind::State,
    }
}

struct Drawing<'a> {
    definition: &'a Definition,
    machine: &'a Machine,
    states: BTreeMap<&'a str, usize>,
    /// Where an action's failure leads, by its name.
    on_error: BTreeMap<&'a str, &'a str>,
}

impl<'a> Drawing<'a> {
    fn of(definition: &'a Definition, machine: &'a Machine) -> Drawing<'a> {
        let states = machine.states.iter().enumerate().map(|(at, state)| (state.name.as_str(), at)).collect();
        let failing = definition.steps.iter().filter_map(|action| {
            let state = action.on_error.as_deref()?;
            Some((action.name.as_str(), state))
        });
        Drawing { definition, machine, states, on_error: failing.collect() }
    }

    fn id(&self, state: &str) -> Option<String> {
        self.states.get(state).map(|at| format!("s{at}"))
    }

    /// An edge without what brings it about; none for a transition to no state.
    fn edge(&self, from: &StateDefinition, transition: &Transition) -> Option<GraphEdge> {
        let to = transition.to.as_deref().unwrap_or(&from.name);
        Some(GraphEdge {
            condition: transition.condition.clone(),
            roles: transition.roles.clone(),
            stays: transition.to.is_none(),
            ..GraphEdge::between(self.id(&from.name)?, self.id(to)?)
        })
    }

    /// A transition is made before its actions run, so that their failure leads on from the state that it led to.
    fn failures(&self) -> BTreeSet<GraphEdge> {
        let mut edges = BTreeSet::new();
        let mut add = |state: &str, actions: &mut dyn Iterator<Item = &String>| {
            for action in actions {
                let to = self.on_error.get(action.as_str()).and_then(|to| self.id(to));
                if let (Some(from), Some(to)) = (self.id(state), to) {
                    edges.insert(GraphEdge { action: Some(action.clone()), ..GraphEdge::between(from, to) });
                }
            }
        };
        if self.definition.steps.iter().all(|action| action.on_error.is_none()) {
            return BTreeSet::new();
        }
        for state in &self.machine.states {
            add(&state.name, &mut state.entry.iter());
            let timers = state.after.iter().map(|timer| &timer.then);
            for transition in state.on.values().flatten().chain(timers) {
                let to = transition.to.as_ref().unwrap_or(&state.name);
                add(to, &mut transition.actions.iter());
                if transition.to.is_some() {
                    add(to, &mut state.exit.iter());
                }
            }
        }
        edges
    }
}
