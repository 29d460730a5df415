//! A definition as a picture: Mermaid, DOT, or nodes and edges as JSON.
//!
//! The same definition always gives the same text. Identifiers are numbers, so no name can break the syntax; labels are
//! escaped for names that were never checked.

mod machine;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

pub use flowline_types::graph::{Graph, GraphEdge, GraphNode, Join, NodeKind};

use super::{Definition, Runner, StepDefinition, Subscribes};

/// The graph of a definition. An event that nothing publishes has no edge.
pub fn graph(definition: &Definition) -> Graph {
    if let Some(machine) = &definition.machine {
        return machine::graph(definition, machine);
    }
    let mut nodes: Vec<GraphNode> =
        definition.steps.iter().enumerate().map(|(i, step)| step_node(i, step)).collect();
    let mut sources: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (i, event) in definition.accepts.keys().enumerate() {
        let id = format!("e{i}");
        sources.entry(event).or_default().push(id.clone());
        nodes.push(GraphNode {
            id,
            kind: NodeKind::Event,
            name: event.clone(),
            runner: None,
            condition: None,
        });
    }
    for (i, step) in definition.steps.iter().enumerate() {
        for event in step.published() {
            sources.entry(event).or_default().push(format!("s{i}"));
        }
    }
    let steps: BTreeMap<&str, usize> =
        definition.steps.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
    let mut edges = Vec::new();
    for (i, step) in definition.steps.iter().enumerate() {
        let mut leaves = Vec::new();
        if let Some(subscribes) = &step.subscribes {
            collect(subscribes, Join::All, &mut leaves);
        }
        for (leaf, join) in leaves {
            let (event, from) = match leaf {
                Subscribes::Event(event) => {
                    (Some(event.clone()), sources.get(event.as_str()).cloned().unwrap_or_default())
                }
                Subscribes::Step(name) => {
                    (None, steps.get(name.as_str()).map(|s| format!("s{s}")).into_iter().collect())
                }
                Subscribes::All(_) | Subscribes::Any(_) => continue,
            };
            edges.extend(from.into_iter().map(|from| GraphEdge {
                event: event.clone(),
                join: Some(join),
                ..GraphEdge::between(from, format!("s{i}"))
            }));
        }
    }
    Graph { flow: definition.flow.clone(), nodes, edges }
}

/// A Mermaid flowchart, in which dotted edges are alternatives and flags are events from outside; of a machine a state
/// diagram.
pub fn mermaid(definition: &Definition) -> String {
    let graph = graph(definition);
    if definition.machine.is_some() {
        return machine::mermaid(&graph);
    }
    let mut out = String::from("flowchart TD\n");
    for node in &graph.nodes {
        let label = mermaid_text(&node.name);
        let _ = match node.kind {
            NodeKind::Entry => writeln!(out, "    {}([\"{label}\"])", node.id),
            NodeKind::Event => writeln!(out, "    {}>\"{label}\"]", node.id),
            _ => writeln!(out, "    {}[\"{label}\"]", node.id),
        };
    }
    for edge in &graph.edges {
        let arrow = if edge.join == Some(Join::Any) { "-.->" } else { "-->" };
        let _ = match &edge.event {
            Some(event) => {
                writeln!(out, "    {} {arrow}|\"{}\"| {}", edge.from, mermaid_text(event), edge.to)
            }
            None => writeln!(out, "    {} {arrow} {}", edge.from, edge.to),
        };
    }
    out
}

/// A Graphviz digraph. Dashed edges are alternatives; of a machine they are timers, and dotted ones failed actions.
pub fn dot(definition: &Definition) -> String {
    let graph = graph(definition);
    if definition.machine.is_some() {
        return machine::dot(&graph);
    }
    let mut out =
        format!("digraph \"{}\" {{\n    rankdir=TB;\n    node [shape=box];\n", dot_text(&graph.flow));
    for node in &graph.nodes {
        let shape = match node.kind {
            NodeKind::Entry => ", style=rounded",
            NodeKind::Event => ", shape=cds",
            _ => "",
        };
        let _ = writeln!(out, "    {} [label=\"{}\"{shape}];", node.id, dot_text(&node.name));
    }
    for edge in &graph.edges {
        let label = edge.event.as_deref().map(|event| format!("label=\"{}\"", dot_text(event)));
        let style = (edge.join == Some(Join::Any)).then(|| "style=dashed".to_owned());
        let attributes: Vec<String> = label.into_iter().chain(style).collect();
        let attributes =
            if attributes.is_empty() { String::new() } else { format!(" [{}]", attributes.join(", ")) };
        let _ = writeln!(out, "    {} -> {}{attributes};", edge.from, edge.to);
    }
    out.push_str("}\n");
    out
}

fn step_node(index: usize, step: &StepDefinition) -> GraphNode {
    GraphNode {
        id: format!("s{index}"),
        kind: if step.subscribes.is_none() { NodeKind::Entry } else { NodeKind::Step },
        name: step.name.clone(),
        runner: Some(Cow::Borrowed(match step.runner {
            Runner::Command(_) => "command",
            Runner::Http(_) => "http",
            Runner::Worker(_) => "worker",
            Runner::Function(_) => "function",
            Runner::Start(_) => "start",
            Runner::Send(_) => "send",
        })),
        condition: step.condition.clone(),
    }
}

/// The names in a subscription; below an OR of several, each is an alternative.
fn collect<'a>(subscribes: &'a Subscribes, join: Join, out: &mut Vec<(&'a Subscribes, Join)>) {
    match subscribes {
        Subscribes::Event(_) | Subscribes::Step(_) => out.push((subscribes, join)),
        Subscribes::All(parts) => parts.iter().for_each(|part| collect(part, join, out)),
        Subscribes::Any(parts) => {
            let join = if parts.len() > 1 { Join::Any } else { join };
            parts.iter().for_each(|part| collect(part, join, out));
        }
    }
}

/// Mermaid reads `#NN;` as the character with that number.
fn mermaid_text(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        if c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ' ') {
            out.push(c);
        } else {
            let _ = write!(out, "#{};", u32::from(c));
        }
        out
    })
}

fn dot_text(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
        out
    })
}
