//! Key-value state.

use std::collections::BTreeMap;

use flowline_types::{Json, Time};
use serde::{Deserialize, Serialize};

/// Key-value state, as a run sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "State"))]
pub struct RunValues {
    /// `run`, `flow`, `tenant` or any other name.
    pub scope: String,
    pub values: BTreeMap<String, Json>,
    /// Whether there are more keys.
    pub has_more: bool,
}

/// Scopes that have values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateScopes {
    pub items: Vec<StateScopeView>,
}

/// A scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateScopeView {
    /// `tenant`, or a name.
    pub scope: String,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateEntry {
    /// `tenant`, `flow:FLOW`, `run:RUN` or a name.
    pub scope: String,
    pub key: String,
    pub value: Json,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}

/// A page of keys and values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateList {
    /// Sorted by key.
    pub items: Vec<StateEntry>,
    /// `cursor` of the next page.
    pub next: Option<String>,
}

/// A value to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateWrite {
    /// JSON value of up to `max-payload`, 1 MiB by default.
    pub value: Json,
    /// Delete the value after this time: `30s`, `1h`, `7d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub ttl: Option<String>,
}

/// Result of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StateChanged {
    pub scope: String,
    pub key: String,
    /// False if there was nothing to delete.
    pub changed: bool,
}
