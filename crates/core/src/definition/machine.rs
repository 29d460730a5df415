//! A machine as data: states that answer events.
//!
//! What a machine shares with a flow is in [`Definition`](super::Definition): its name, the schemas of its input and of
//! the events that it takes, its output and time-out, and its actions, which are its steps. What only a machine has is
//! here.

use std::collections::BTreeMap;
use std::time::Duration;

use flowline_types::words;
use serde::{Serialize, Serializer};

use super::is_default;

/// What the conditions and the changes of a transition may read.
pub const VARIABLES: [&str; 7] = ["input", "context", "payload", "event", "user", "role", "roles"];

/// States, and the transitions between them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Machine {
    /// The state that a run begins in.
    pub initial: String,
    /// The context that a run begins with: CEL over `input`, by key.
    pub context: BTreeMap<String, String>,
    /// In the order of the file: a state's place here is its number in the run state.
    pub states: Vec<StateDefinition>,
}

/// A position that a machine can be in.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct StateDefinition {
    #[serde(skip)]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether the run ends here, and how.
    #[serde(rename = "final", skip_serializing_if = "is_default")]
    pub ends: Ends,
    /// Actions when it is entered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entry: Vec<String>,
    /// Actions when it is left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit: Vec<String>,
    /// What it does on events, by event name; of several transitions the first that applies is taken.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "transitions")]
    pub on: BTreeMap<String, Vec<Transition>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<TimerDefinition>,
}

/// What reaching a state means for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ends {
    #[default]
    No,
    /// `final: true`
    Completed,
    /// `final: failed`
    Failed,
}

/// What an event or a timer leads to.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Transition {
    /// None stays in the state, without leaving it: no exit, no entry, and its timers keep running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// CEL over `input`, `context`, `payload`, `event`, `user`, `role` and `roles`.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Roles that may send the event; empty for anyone.
    #[serde(rename = "role", skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Changes of the context: CEL over what the condition reads, by key. A null takes the key away.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
}

/// A transition that time brings about.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimerDefinition {
    #[serde(flatten)]
    pub when: When,
    #[serde(skip_serializing_if = "is_default")]
    pub missed: Missed,
    /// Without roles.
    #[serde(flatten)]
    pub then: Transition,
}

#[derive(Debug, Clone, PartialEq)]
pub enum When {
    /// `in: 48h`, from the moment that the state is entered.
    In(Duration),
    /// `at: "context.due"`: CEL over `input` and `context` that gives a time, evaluated when the state is entered.
    At(String),
}

words! {
    /// What happens to a timer that is found more than [`limits::MISSED`](crate::limits::MISSED) after its time, because
    /// nothing was running.
    #[derive(Default)]
    pub enum Missed {
        /// It fires, late.
        #[default]
        Fire = "fire",
        /// It doesn't fire.
        Skip = "skip",
        /// It counts again from the moment it's found; one with `at` doesn't fire.
        Restart = "restart",
    }
}

impl Machine {
    pub fn state(&self, name: &str) -> Option<&StateDefinition> {
        self.states.iter().find(|state| state.name == name)
    }
}

impl Serialize for Ends {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Ends::No => serializer.serialize_bool(false),
            Ends::Completed => serializer.serialize_bool(true),
            Ends::Failed => serializer.serialize_str("failed"),
        }
    }
}

impl Serialize for When {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            When::In(delay) => serializer.collect_map([("in", crate::time::format_duration(*delay))]),
            When::At(expression) => serializer.collect_map([("at", expression)]),
        }
    }
}

/// A list of one is written as that one.
fn transitions<S: Serializer>(
    on: &BTreeMap<String, Vec<Transition>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Either<'a> {
        One(&'a Transition),
        Many(&'a [Transition]),
    }
    serializer.collect_map(on.iter().map(|(event, all)| match &all[..] {
        [one] => (event, Either::One(one)),
        many => (event, Either::Many(many)),
    }))
}
