//! What is wrong, where.

use std::fmt;

use flowline_core::{RunId, RunKey, Tenant};
use serde::{Deserialize, Serialize};

use crate::invariant::Invariant;

/// Something that must always hold, and does not. Its JSON is a contract.
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

/// What a violation is about, which is what would have to be mended. Ordered by what is worth mending first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Subject {
    /// Row or state differ from the log.
    Row,
    /// Jobs differ from what the log asks for.
    Jobs,
    /// Nothing is left to do, and no terminal event says so.
    End,
    Counters,
    /// What became of events differs from the log.
    Receipts,
    /// Key-value state of the run differs from the log.
    State,
    /// The log itself is wrong: nothing to derive the truth from. Also of one that was read from JSON, where nothing can be
    /// mended.
    #[default]
    Log,
    /// A call to the store that should have been refused, or that did something else than it said.
    Call,
    /// What clients were told, or what workers did.
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

/// What is checked: everything, or everything but one, to show what that one is good for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Checker {
    pub without: Option<Invariant>,
}

impl Checker {
    pub(crate) fn findings(self) -> Findings {
        Findings { checker: self, found: Vec::new() }
    }
}

/// What was found, before it is known whose run it is.
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
