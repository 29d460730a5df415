//! A flow or a machine as a graph.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A flow or a machine as a graph: steps and external events, joined by what they wait for, or states, joined by
/// transitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Graph {
    pub flow: String,
    pub nodes: Vec<GraphNode>,
    pub edges: Vec<GraphEdge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GraphNode {
    /// `s0`, `s1` … for steps or states in the order of the definition, `e0` … for accepted events.
    pub id: String,
    pub kind: NodeKind,
    pub name: String,
    /// How a step runs: `command`, `http`, `worker`, `function`, `start` or `send`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<Cow<'static, str>>,
    /// The step's condition.
    #[serde(rename = "if", default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum NodeKind {
    /// A step that waits for something.
    Step,
    /// A step that starts with the run.
    Entry,
    /// An event from outside.
    Event,
    /// A state of a machine.
    State,
    /// The state that its runs begin in.
    Initial,
    /// A state that ends a run, completed.
    Final,
    /// A state that ends a run, failed.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GraphEdge {
    pub from: String,
    pub to: String,
    /// In a flow: the event waited for; absent for `step:NAME`. In a machine: the event that leads here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// In a flow: how this event or step is combined with the others that the step waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<Join>,
    /// In a machine: the delay of a timer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// In a machine: the expression that says when a timer fires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// In a machine: the action whose failure leads here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// In a machine: the transition's condition.
    #[serde(rename = "if", default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// In a machine: who may send the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// In a machine: the transition stays in its state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
}

impl GraphEdge {
    pub fn between(from: String, to: String) -> GraphEdge {
        GraphEdge { from, to, ..GraphEdge::default() }
    }
}

/// How an edge counts among the others of its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Join {
    /// All of these must happen, or it is the only one.
    All,
    /// One of several is enough.
    Any,
}
