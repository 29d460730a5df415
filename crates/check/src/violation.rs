//! Violations: what is wrong, and where.

use flowline_core::violation::Invariant;
pub use flowline_core::violation::{Subject, Violation};
use flowline_core::{RunKey, Tenant};

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
