//! Small enums and tokens as numbers and bytes of the file. These numbers are part of the layout.

use std::borrow::Cow;

use flowline_core::definition::{Priority, Retain};
use flowline_core::{Json, Status};
use flowline_store::{ReceiptStatus, StateOwner, Token};

use crate::fault::Fault;

pub(crate) fn status_number(status: Status) -> i64 {
    match status {
        Status::Running => 0,
        Status::Waiting => 1,
        Status::Paused => 2,
        Status::Completed => 3,
        Status::Failed => 4,
        Status::Cancelled => 5,
    }
}

pub(crate) fn status(number: i64) -> Result<Status, Fault> {
    let known = Status::ALL.into_iter().find(|status| status_number(*status) == number);
    known.ok_or_else(|| Fault::damaged(&format!("status {number} is unknown")))
}

pub(crate) fn retain(text: &str) -> Result<Retain, Fault> {
    Retain::from_code(text).ok_or_else(|| Fault::damaged(&format!("the retention {text:?} is unknown")))
}

pub(crate) fn receipt_status_number(status: ReceiptStatus) -> i64 {
    match status {
        ReceiptStatus::Pending => 0,
        ReceiptStatus::Processing => 1,
        ReceiptStatus::Completed => 2,
        ReceiptStatus::Failed => 3,
    }
}

pub(crate) fn receipt_status(number: i64) -> Result<ReceiptStatus, Fault> {
    let known = ReceiptStatus::ALL.into_iter().find(|status| receipt_status_number(*status) == number);
    known.ok_or_else(|| Fault::damaged(&format!("status {number} of a receipt is unknown")))
}

pub(crate) fn priority_number(priority: Priority) -> i64 {
    match priority {
        Priority::Low => 0,
        Priority::Normal => 1,
        Priority::High => 2,
        Priority::Urgent => 3,
    }
}

pub(crate) fn priority(number: i64) -> Result<Priority, Fault> {
    let known = Priority::ALL.into_iter().find(|priority| priority_number(*priority) == number);
    known.ok_or_else(|| Fault::damaged(&format!("priority {number} is unknown")))
}

/// The number of named scopes.
pub(crate) const NAMED: i64 = 3;

pub(crate) fn scope_number(owner: &StateOwner) -> i64 {
    match owner {
        StateOwner::Run(_) => 0,
        StateOwner::Flow(_) => 1,
        StateOwner::Tenant => 2,
        StateOwner::Named(_) => NAMED,
    }
}

/// A key as the column has it: in a named scope behind its name.
pub(crate) fn kv_key<'a>(owner: &StateOwner, key: &'a str) -> Cow<'a, str> {
    match owner {
        StateOwner::Named(name) => Cow::Owned(format!("{name}/{key}")),
        _ => Cow::Borrowed(key),
    }
}

/// Undoes [`kv_key`].
pub(crate) fn state_key(owner: &StateOwner, kept: String) -> String {
    match owner {
        StateOwner::Named(name) => kept.get(name.len() + 1..).unwrap_or_default().to_owned(),
        _ => kept,
    }
}

pub(crate) fn token(bytes: [u8; 16]) -> Token {
    Token(u128::from_be_bytes(bytes))
}

pub(crate) fn token_bytes(token: Token) -> [u8; 16] {
    token.0.to_be_bytes()
}

/// A payload as it was stored. It was checked when it came in, so its depth is not measured again.
pub(crate) fn json(text: &str) -> Result<Json, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::damaged(&format!("a payload isn't JSON: {error}")))
}
