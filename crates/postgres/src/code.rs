//! Small enums, tokens and texts as the tables have them.

use std::borrow::Cow;

use flowline_core::definition::{Priority, Retain};
use flowline_core::{RunId, Status, Tenant};
use flowline_store::{StateOwner, Token};

use crate::fault::PgFault;

pub(crate) fn status(text: &str) -> Result<Status, PgFault> {
    let known = Status::ALL.into_iter().find(|status| status.as_str() == text);
    known.ok_or_else(|| PgFault::damaged(&format!("status {text:?} is unknown")))
}

pub(crate) fn priority(number: i16) -> Result<Priority, PgFault> {
    let known = Priority::ALL.into_iter().find(|priority| priority_number(*priority) == number);
    known.ok_or_else(|| PgFault::damaged(&format!("priority {number} is unknown")))
}

pub(crate) fn priority_number(priority: Priority) -> i16 {
    match priority {
        Priority::Low => 0,
        Priority::Normal => 1,
        Priority::High => 2,
        Priority::Urgent => 3,
    }
}

/// The column `retain`: empty where the definition says nothing.
pub(crate) fn retained(retain: Option<Retain>) -> String {
    retain.map(|retain| retain.code()).unwrap_or_default()
}

pub(crate) fn retain(text: &str) -> Result<Option<Retain>, PgFault> {
    if text.is_empty() {
        return Ok(None);
    }
    let known = Retain::from_code(text);
    known.map(Some).ok_or_else(|| PgFault::damaged(&format!("the retention {text:?} is unknown")))
}

/// The number of named scopes.
pub(crate) const NAMED: i16 = 3;

pub(crate) fn scope_number(owner: &StateOwner) -> i16 {
    match owner {
        StateOwner::Run(_) => 0,
        StateOwner::Flow(_) => 1,
        StateOwner::Tenant => 2,
        StateOwner::Named(_) => NAMED,
    }
}

/// What tells an owner of key-value state from others of its scope.
pub(crate) fn owner_name(owner: &StateOwner) -> &str {
    match owner {
        StateOwner::Run(run) => run.as_str(),
        StateOwner::Flow(name) | StateOwner::Named(name) => name,
        StateOwner::Tenant => "",
    }
}

pub(crate) fn token(bytes: &[u8]) -> Result<Token, PgFault> {
    let bytes = bytes.try_into().map_err(|_| PgFault::damaged("a token doesn't have 16 bytes"))?;
    Ok(Token(u128::from_be_bytes(bytes)))
}

pub(crate) fn token_bytes(token: Token) -> Vec<u8> {
    token.0.to_be_bytes().to_vec()
}

pub(crate) fn tenant(text: &str) -> Result<Tenant, PgFault> {
    Tenant::new(text).map_err(|error| PgFault::damaged(&error.to_string()))
}

pub(crate) fn run_id(text: &str) -> Result<RunId, PgFault> {
    RunId::new(text).map_err(|error| PgFault::damaged(&error.to_string()))
}

/// A user's text as a column can hold it: PostgreSQL refuses NUL, so it becomes `\0`, and `\` becomes `\\`.
pub(crate) fn shut(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\\']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\\', "\\\\").replace('\0', "\\0"))
}

/// Undoes [`shut`].
pub(crate) fn open(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push(if chars.next() == Some('0') { '\0' } else { '\\' }),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_survives_the_column() {
        for text in ["", "plain", "\0", "\\", "\\0", "a\\\0\\\\b", "é\0"] {
            assert!(!shut(text).contains('\0'));
            assert_eq!(open(&shut(text)), text);
        }
    }
}
