//! Tokens, who you are, and the audit log.

use flowline_types::{Tenant, Time};
use serde::{Deserialize, Serialize};

/// What a token allows. `admin` includes all the others except `on_behalf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Scope"))]
pub enum TokenScope {
    /// Look at definitions, runs, events, queues.
    Read,
    /// Start runs and send events into them.
    Start,
    /// Take jobs and report their outcomes.
    Work,
    /// Steer runs and queues, register definitions.
    Operate,
    /// Send events for users whom the request names. No other scope includes it.
    #[serde(rename = "on_behalf")]
    OnBehalf,
    /// Everything but `on_behalf`: tokens and the audit log too.
    Admin,
}

impl TokenScope {
    pub const ALL: [TokenScope; 6] = [
        TokenScope::Read,
        TokenScope::Start,
        TokenScope::Work,
        TokenScope::Operate,
        TokenScope::OnBehalf,
        TokenScope::Admin,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TokenScope::Read => "read",
            TokenScope::Start => "start",
            TokenScope::Work => "work",
            TokenScope::Operate => "operate",
            TokenScope::OnBehalf => "on_behalf",
            TokenScope::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<TokenScope> {
        TokenScope::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

/// A token to create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NewToken {
    /// Who the token is for.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256)))]
    pub subject: String,
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub scopes: Vec<TokenScope>,
    #[serde(default, deserialize_with = "crate::or_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<String>>"))]
    pub roles: Vec<String>,
    /// Flows to limit it to; all by default.
    pub flows: Option<Vec<String>>,
    /// Queues to limit it to; all by default.
    pub queues: Option<Vec<String>>,
    /// Expire after this time; never by default.
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::runs::DurationText>"))]
    pub expires: Option<String>,
}

/// How to replace a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RotateToken {
    /// How long the old secret stays valid; an hour by default.
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::runs::DurationText>"))]
    pub overlap: Option<String>,
    /// Expire the new token after this time; by default, it lasts as long as the old one did.
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::runs::DurationText>"))]
    pub expires: Option<String>,
}

/// A token to sign in with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NewSession {
    /// The secret of the token.
    pub token: String,
}

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenRow {
    /// Id of the token; reveals nothing about the secret.
    pub id: String,
    pub tenant: Tenant,
    /// Who the token is for.
    pub subject: String,
    /// What it allows.
    pub scopes: Vec<TokenScope>,
    #[serde(default)]
    pub roles: Vec<String>,
    /// Flows that it's limited to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub flows: Option<Vec<String>>,
    /// Queues that it's limited to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub queues: Option<Vec<String>>,
    pub created_at: Time,
    pub expires_at: Option<Time>,
    /// When it was last used, to within a few minutes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_used_at: Option<Time>,
    /// Id of the token that it was rotated to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replaced_by: Option<String>,
}

/// A token with its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MadeToken {
    #[serde(flatten)]
    pub row: TokenRow,
    /// The secret, shown only here.
    pub token: String,
}

/// Tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenList {
    pub items: Vec<TokenRow>,
}

/// Who you are, according to your token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Principal"))]
pub struct Whoami {
    pub tenant: Tenant,
    pub subject: String,
    /// What it allows.
    pub scopes: Vec<TokenScope>,
    pub roles: Vec<String>,
    pub flows: Option<Vec<String>>,
    pub queues: Option<Vec<String>>,
}

/// A page of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "AuditPage"))]
pub struct AuditList {
    pub items: Vec<AuditEntry>,
    pub has_more: bool,
    /// `cursor` of the next page.
    pub next: Option<String>,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditEntry {
    pub id: String,
    pub at: Time,
    /// Who did it.
    pub subject: String,
    /// What was done.
    pub action: String,
    pub method: String,
    pub path: String,
    /// HTTP status of the response. 0 while the request is being carried out, and if the server died before it was done.
    #[cfg_attr(feature = "schema", schemars(with = "u32"))]
    pub status: u16,
    /// Id of the token. Absent if the server doesn't require tokens, and in entries written by older builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// Address that the request came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Path of the route, with the names of its parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Details of the request, such as flow, action, filter or scopes, without payloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<std::collections::BTreeMap<String, serde_json::Value>>")
    )]
    pub asked: Option<serde_json::Map<String, serde_json::Value>>,
    /// User on whose behalf it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
}
