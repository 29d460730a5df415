//! What a server says of a request that it refused.

use flowline_types::{Json, Time};
use serde::{Deserialize, Serialize};

/// A problem, in the format of RFC 9457.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Problem"))]
pub struct ProblemDetails {
    /// URL of the page about this code.
    #[serde(rename = "type")]
    pub kind: String,
    /// Short summary of the code.
    pub title: String,
    #[cfg_attr(feature = "schema", schemars(range(min = 400, max = 599)))]
    pub status: u16,
    /// What is wrong with this request.
    pub detail: String,
    /// Stable code for programs.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::codes::names())))]
    pub code: String,
    /// Which parts of the request are wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ProblemPlace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnostics: Option<DiagnosticList>,
    /// Id of the event that a machine rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// Events that the machine's state accepts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepts: Option<Vec<String>>,
    /// Who holds the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// When the lock expires unless it's extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// A place.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProblemPlace {
    /// A JSON pointer into the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// A parameter or header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// What is wrong there.
    pub detail: String,
}

/// Problems in a definition, each with severity, code, message, line, column and help.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Diagnostics"))]
pub struct DiagnosticList(pub Json);
