//! Definitions: registered, checked, listed, drawn.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flowline_types::row::StoredDefinition;
use flowline_types::{Json, Status};
use serde::{Deserialize, Serialize};

use crate::problem::DiagnosticList;

/// A flow or a machine. `flowline schema` prints the whole schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Definition", extend("type" = "object", "anyOf" = [
    { "type": "object", "required": ["flow"], "properties": { "flow": { "type": "string" } }, "additionalProperties": true },
    { "type": "object", "required": ["machine"], "properties": { "machine": { "type": "string" } }, "additionalProperties": true },
])))]
pub struct DefinitionJson(pub Json);

/// A registered definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Registered {
    /// Name of the flow.
    pub flow: Arc<str>,
    /// Hash of the content.
    pub hash: Arc<str>,
    /// Whether it was new.
    pub created: bool,
    pub warnings: DiagnosticList,
}

/// Result of checking a definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Validated {
    /// Whether it could be registered.
    pub valid: bool,
    /// Name of the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    pub diagnostics: DiagnosticList,
}

/// Version to activate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Activate {
    /// Hash of a version of the flow, or at least its first 6 characters.
    pub version: String,
}

/// A flow that was activated or retired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowChanged {
    /// Name of the flow.
    pub flow: String,
    /// Version that new runs use; null for a retired flow.
    pub hash: Option<Arc<str>>,
    /// Whether it's retired: no new runs start.
    pub retired: bool,
}

/// A definition.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Flow"))]
pub struct FlowDefinition {
    #[serde(flatten)]
    pub stored: StoredDefinition,
    pub definition: DefinitionJson,
    /// Whether the flow is retired: no new runs start.
    pub retired: bool,
}

/// In two goes: one would lose the digits of numbers in the definition.
impl<'de> Deserialize<'de> for FlowDefinition {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<FlowDefinition, D::Error> {
        #[derive(Deserialize)]
        struct Rest {
            definition: DefinitionJson,
            retired: bool,
        }
        let json = Json::deserialize(from)?;
        let misread = |error: serde_json::Error| serde::de::Error::custom(error);
        let Rest { definition, retired } = json.to().map_err(misread)?;
        Ok(FlowDefinition { stored: json.to().map_err(misread)?, definition, retired })
    }
}

/// Definitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowList {
    pub items: Vec<FlowView>,
}

/// A definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowView {
    #[serde(flatten)]
    pub definition: StoredDefinition,
    /// Whether it's a flow or a machine; only in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DefinitionKind>,
    /// Runs of the flow by status; only in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<BTreeMap<Status, u64>>,
    /// Whether the flow is retired, so that no new runs start; only in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<bool>,
    /// Steps that this server can't run; another instance on the same store may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run_here: Vec<Unserved>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum DefinitionKind {
    Flow,
    Machine,
}

impl DefinitionKind {
    pub fn as_str(self) -> &'static str {
        match self {
            DefinitionKind::Flow => "flow",
            DefinitionKind::Machine => "machine",
        }
    }
}

/// Steps that an instance can't run itself, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unserved {
    /// What an instance has to be able to run: `command`, `function:NAME`.
    pub need: Arc<str>,
    pub steps: Vec<Arc<str>>,
    /// What to do.
    pub remedy: String,
}

impl Unserved {
    /// What runs jobs of this need, for people. A store that isn't shared takes one engine at a time.
    pub fn remedy(need: &str, is_shared: bool) -> String {
        match need {
            "command" if is_shared => {
                "start a server with --allow-commands, or run `flowline work` on the same store".to_owned()
            }
            "command" => "start the server with --allow-commands, or stop it and run `flowline work` instead"
                .to_owned(),
            "http" | "start" | "send" => {
                "run `flowline work` or `flowline serve` on the same store".to_owned()
            }
            need => format!("run the program that provides {need:?} on the same store"),
        }
    }
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = if self.steps.len() == 1 { "step" } else { "steps" };
        let (names, need, remedy) = (self.steps.join(", "), &self.need, &self.remedy);
        write!(f, "{steps} {names} can't run on this instance, which doesn't run {need:?} steps; {remedy}")
    }
}
