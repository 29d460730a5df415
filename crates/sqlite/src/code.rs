//! Small enums and tokens as numbers and bytes of the file. These numbers are part of the layout.

use std::borrow::Cow;

use flowline_core::definition::{Priority, Retain};
use flowline_core::{Json, Status};
use flowline_store::{ReceiptStatus, StateOwner, Token};

use crate::fault::Fault;

/// Both ways between an enum and its numbers.
macro_rules! numbered {
    ($to:ident, $from:ident: $enum:ident, $what:literal { $($variant:ident = $number:literal,)* }) => {
        pub(crate) fn $to(value: $enum) -> i64 {
            match value {
                $($enum::$variant => $number,)*
            }
        }

        pub(crate) fn $from(number: i64) -> Result<$enum, Fault> {
            match number {
                $($number => Ok($enum::$variant),)*
                _ => Err(Fault::damaged(&format!(concat!($what, " {} is unknown"), number))),
            }
        }
    };
}

numbered! { status_number, status: Status, "status" {
    Running = 0,
    Waiting = 1,
    Paused = 2,
    Completed = 3,
    Failed = 4,
    Cancelled = 5,
} }

numbered! { receipt_status_number, receipt_status: ReceiptStatus, "receipt status" {
    Pending = 0,
    Processing = 1,
    Completed = 2,
    Failed = 3,
} }

numbered! { priority_number, priority: Priority, "priority" {
    Low = 0,
    Normal = 1,
    High = 2,
    Urgent = 3,
} }

pub(crate) fn retain(text: &str) -> Result<Retain, Fault> {
    Retain::from_code(text).ok_or_else(|| Fault::damaged(&format!("the retention {text:?} is unknown")))
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
