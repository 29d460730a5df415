//! Violations: what is wrong, and where.

use flowline_core::violation::Invariant;
pub use flowline_core::violation::{Subject, Violation};
use flowline_core::{RunId, RunKey, Tenant};

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
    pub(crate) fn say(&mut self, invariant: Invariant, subject: Subject, message: impl Into<String>) {
        if self.checker.without != Some(invariant) {
            self.found.push((invariant, subject, message.into()));
        }
    }

    pub(crate) fn log(&mut self, invariant: Invariant, message: impl Into<String>) {
        self.say(invariant, Subject::Log, message);
    }

    pub(crate) fn call(&mut self, invariant: Invariant, message: impl Into<String>) {
        self.say(invariant, Subject::Call, message);
    }

    pub(crate) fn jobs(&mut self, invariant: Invariant, message: impl Into<String>) {
        self.say(invariant, Subject::Jobs, message);
    }

    pub(crate) fn outside(&mut self, invariant: Invariant, message: impl Into<String>) {
        self.say(invariant, Subject::Outside, message);
    }

    pub(crate) fn of_run(&mut self, run: &RunKey) -> Vec<Violation> {
        self.violations(&run.tenant, Some(&run.run))
    }

    pub(crate) fn of_tenant(&mut self, tenant: &Tenant) -> Vec<Violation> {
        self.violations(tenant, None)
    }

    fn violations(&mut self, tenant: &Tenant, run: Option<&RunId>) -> Vec<Violation> {
        let of = |(invariant, subject, message)| Violation {
            tenant: tenant.clone(),
            run_id: run.cloned(),
            invariant,
            message,
            subject,
        };
        self.found.drain(..).map(of).collect()
    }
}
