//! Violations of invariants: what is wrong, and where.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::invariant::Invariant;

use crate::ids::{RunId, Tenant};

/// An invariant that doesn't hold. Its JSON is part of the public interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    pub tenant: Tenant,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    pub invariant: Invariant,
    pub message: String,
    #[serde(skip)]
    pub subject: Subject,
}

/// What a violation is about, and so what would have to be repaired. In the order in which to repair it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Subject {
    /// The row or the run state differs from the log.
    Row,
    /// Jobs differ from what the log asks for.
    Jobs,
    /// Nothing is left to do, but there's no terminal event.
    End,
    Counters,
    /// Receipts differ from the log.
    Receipts,
    /// Key-value state of the run differs from the log.
    State,
    /// The log itself is wrong, so there's nothing to repair from. Also the default for a violation read from JSON, which can't
    /// be repaired.
    #[default]
    Log,
    /// A call to the store should have been refused, or did something else than it reported.
    Call,
    /// What clients were told or what workers did doesn't match the store.
    Outside,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { tenant, run_id, invariant, message, .. } = self;
        write!(f, "{invariant} ({})", invariant.name())?;
        match run_id {
            Some(run) => write!(f, " {tenant}/{run}: {message}"),
            None => write!(f, " {tenant}: {message}"),
        }
    }
}
