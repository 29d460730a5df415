//! Violations: what is wrong, and where.

use std::fmt;

use flowline_core::{RunId, RunKey, Tenant};
use serde::{Deserialize, Serialize};

use crate::invariant::Invariant;

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

/// What to check: everything, or everything but one invariant, to show what that one is good for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checker {
    pub without: Option<Invariant>,
}

impl Checker {
    pub(crate) fn findings(self) -> Findings {
        Findings { checker: self, found: Vec::new() }
    }
}

/// Findings that aren't assigned to a run yet.
#[derive(Debug, Clone)]
pub(crate) struct Findings {
    checker: Checker,
    found: Vec<(Invariant, Subject, String)>,
}

impl Findings {
    pub(crate) fn say(&mut self, invariant: Invariant, subject: Subject, message: impl FnOnce() -> String) {
        if self.checker.without != Some(invariant) {
            self.found.push((invariant, subject, message()));
        }
    }

    pub(crate) fn of_run(&mut self, run: &RunKey) -> Vec<Violation> {
        let of = |(invariant, subject, message)| Violation {
            tenant: run.tenant.clone(),
            run_id: Some(run.run.clone()),
            invariant,
            message,
            subject,
        };
        self.found.drain(..).map(of).collect()
    }

    pub(crate) fn of_tenant(&mut self, tenant: &Tenant) -> Vec<Violation> {
        let of = |(invariant, subject, message)| Violation {
            tenant: tenant.clone(),
            run_id: None,
            invariant,
            message,
            subject,
        };
        self.found.drain(..).map(of).collect()
    }
}
