//! Why a run isn't progressing, where a machine stands, and whether a run is as its log says.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use flowline_types::row::{JobRow, RunRow};
use flowline_types::violation::Violation;
use flowline_types::{Json, Time};
use serde::{Deserialize, Serialize};

/// Why a run isn't progressing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    #[serde(flatten)]
    pub row: RunRow,
    /// One sentence on the run as a whole.
    pub summary: String,
    pub steps: Vec<StepExplanation>,
    /// External events that the run could still accept.
    pub accepts: Vec<Arc<str>>,
    /// State of a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Position>,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepExplanation {
    pub step: Arc<str>,
    pub state: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Why it isn't progressing.
    pub reason: String,
    /// Events that its subscription still needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingEvent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MissingEvent {
    pub event: String,
    /// Steps that would emit it.
    pub emitted_by: Vec<Arc<str>>,
    /// Whether it's an external event.
    pub external: bool,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Where the run of a machine stands, beside the name of its state, which is in its row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Position {
    /// Context of the machine.
    pub context: Json,
    /// Events that a machine accepts in its current state.
    pub accepts: Vec<Accepted>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Taken>,
    /// Pending events and timers.
    pub inbox: usize,
    /// Timers that are set.
    pub timers: Vec<Armed>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Accepted {
    pub event: Arc<str>,
    /// Roles that may send it; anyone if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
}

/// The transition whose actions are running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Taken {
    /// What caused the transition.
    pub by: By,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// In the order of their groups.
    pub actions: Vec<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum By {
    Start,
    Event,
    Timer,
    /// An action failed, and names a state for that.
    Error,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Armed {
    pub at: Time,
    /// State it moves to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Arc<str>>,
}

impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.roles[..] {
            [] => f.write_str(&self.event),
            roles => write!(f, "{} ({})", self.event, roles.join(", ")),
        }
    }
}

impl fmt::Display for Armed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Some(to) => write!(f, "timer at {}, to {to}", self.at),
            None => write!(f, "timer at {}", self.at),
        }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.by, &self.event) {
            (By::Event, Some(event)) => f.write_str(event)?,
            (By::Start, _) => f.write_str("the start")?,
            (By::Timer, _) => f.write_str("a timer")?,
            (By::Event | By::Error, _) => f.write_str("a failed action")?,
        }
        match &self.actions[..] {
            [] => Ok(()),
            actions => write!(f, " is being handled, running {}", actions.join(", ")),
        }
    }
}

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Report"))]
pub struct VerifyReport {
    pub runs: u64,
    pub events: u64,
    /// What doesn't match, with the run.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>"))]
    pub violations: Vec<Violation>,
}
