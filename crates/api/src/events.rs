//! External events: sent to runs, and what happened to them.

use std::sync::Arc;

use flowline_types::{Json, ReceiptStatus, RunId, Status, Time};
use serde::{Deserialize, Serialize};

/// An external event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Send"))]
pub struct EventSend {
    /// Name as in the definition.
    pub name: String,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "flowline_types::json::present"
    )]
    pub payload: Option<Json>,
    /// Sending the same id to the same run again does nothing.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub event_id: Option<String>,
    /// Sending the same key in this tenant again does nothing.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub idempotency_key: Option<String>,
    /// Who sends it. Only if the server doesn't require tokens, or with a token that has scope `on_behalf`.
    pub user_id: Option<String>,
    /// Roles of `userId`; with a token, only roles that the token has.
    pub roles: Option<Vec<String>>,
}

/// An external event, and how to start its run if needed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StartOrSend {
    /// Business key: the idempotency key of the run.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub key: String,
    /// Input of the run; null by default.
    pub input: Option<Json>,
    /// Name as in the definition.
    pub name: String,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "flowline_types::json::present"
    )]
    pub payload: Option<Json>,
    /// Sending the same id to the same run again does nothing.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub event_id: Option<String>,
    /// Sending the same key in this tenant again does nothing.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub idempotency_key: Option<String>,
    /// Who sends it. Only if the server doesn't require tokens, or with a token that has scope `on_behalf`.
    pub user_id: Option<String>,
    /// Roles of `userId`; with a token, only roles that the token has.
    pub roles: Option<Vec<String>>,
}

/// Result of sending an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Sent"))]
pub struct SentView {
    pub run_id: RunId,
    pub event_id: Arc<str>,
    /// False if this changed nothing.
    pub changed: bool,
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<ReceiptView>,
}

/// What happened to an event that a machine received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Receipt"))]
pub struct ReceiptView {
    pub event_id: Arc<str>,
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    /// Name of the event.
    pub name: Arc<str>,
    /// Who sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    /// Roles of the sender.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Subject of the token that sent it on behalf of that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_by: Option<String>,
    /// Status of the event.
    pub status: ReceiptStatus,
    /// Instance that wrote the receipt; while actions run, who holds their lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
    /// Attempts of the action that needed most; 1 if there was no action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// When the lease of its actions expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_until: Option<Time>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `action_failed` if an action ran out of attempts; otherwise why the event was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["wrong_state", "guard", "forbidden", "expression", "too_costly", "ended", "action_failed"])))]
    pub code: Option<String>,
    /// For a rejected event: the events that the state accepts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts: Option<Vec<String>>,
    pub received_at: Time,
    /// When its turn came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the machine finished handling it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ReceiptResult>,
}

/// What it did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Moved"))]
pub struct ReceiptResult {
    pub previous_state: String,
    pub current_state: String,
    pub actions_executed: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions_failed: Vec<String>,
}

/// A page of receipts, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReceiptPage"))]
pub struct ReceiptList {
    pub items: Vec<ReceiptView>,
    pub has_more: bool,
    /// `cursor` of the next page.
    pub next: Option<String>,
}

impl ReceiptView {
    /// Whether the machine was moved by it and is done with that, or never will be.
    pub fn is_done(&self) -> bool {
        self.status.is_end()
    }

    /// In words, for people.
    pub fn said(&self) -> String {
        let moved = self.result.as_ref().map(|moved| match &moved.actions_executed[..] {
            [] => format!("{} → {}", moved.previous_state, moved.current_state),
            actions => {
                format!("{} → {}, {} done", moved.previous_state, moved.current_state, actions.join(", "))
            }
        });
        let moved = moved.unwrap_or_default();
        let error = self.error.as_deref().unwrap_or("no reason recorded");
        match (self.status, self.code.as_deref()) {
            (ReceiptStatus::Pending, _) => "pending".to_owned(),
            (ReceiptStatus::Processing, _) => match self.locked_until {
                Some(until) => format!("processing: {moved}; lease until {until}"),
                None => format!("processing: {moved}"),
            },
            (ReceiptStatus::Completed, _) => format!("completed: {moved}"),
            (ReceiptStatus::Failed, Some("action_failed")) => format!("failed: {error} ({moved})"),
            (ReceiptStatus::Failed, _) => format!("rejected: {error}"),
        }
    }
}

impl ReceiptList {
    /// Adds the page after.
    pub fn extend(&mut self, page: ReceiptList) {
        self.items.extend(page.items);
        (self.next, self.has_more) = (page.next, page.has_more);
    }
}

/// The outcome of a step: one of these fields. An empty object means a result of null.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Callback {
    /// The step's result.
    pub result: Option<Json>,
    pub fail: Option<CallbackFail>,
    pub retry: Option<CallbackRetry>,
}

/// It failed, and a retry won't help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallbackFail {
    /// Message for the log.
    pub error: String,
    /// Error code.
    pub code: Option<String>,
}

/// It failed; retried as the step's retry policy allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallbackRetry {
    /// Message for the log.
    pub error: String,
    /// Error code, for `only` and `except` of the retry policy.
    pub code: Option<String>,
    /// Retry after this time at the earliest.
    pub after: Option<String>,
}
