//! What expressions, schemas and templates may cost.
//!
//! A tenant writes them, and everyone's runs are decided on the same threads. So each evaluation counts its steps and the
//! bytes that it makes while it runs, and stops where a limit is reached. Nothing here looks at a clock: the same expression
//! over the same values costs the same on every instance, so all of them come to the same decision.

use std::cell::Cell;

/// Steps of one evaluation. A step is a part of an expression that is evaluated once, an item that a macro looks at, a value
/// that is compared or copied, or 64 bytes of text. A million take tens of milliseconds.
pub const STEPS: u64 = 1_000_000;
/// Bytes that one evaluation may make, whether it keeps them or not: 64 MiB. A payload of the default size can be copied
/// whole, however small its values are.
pub const BYTES: u64 = 64 << 20;
/// Steps of all evaluations of one decision, or of one request's templates.
pub const TOTAL_STEPS: u64 = 4 * STEPS;
/// Steps that one check of a payload against its schema can take. One is a subschema that looks at a value.
pub const CHECK_STEPS: u64 = 2_000_000;
/// Steps of all checks of one decision.
pub const TOTAL_CHECK_STEPS: u64 = 4 * CHECK_STEPS;
/// Steps, and steps of checks, of work that is quick: about a tenth of a millisecond. What takes more is done where it holds
/// up nobody.
pub const QUICK_STEPS: u64 = 4_000;

/// The bytes of text that count as one step.
const STEP_BYTES: u64 = 64;

/// Why an evaluation was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TooCostly {
    #[error("too costly: it takes more than {STEPS} steps; do this work in a step, or pass it less data")]
    Steps,
    #[error("too costly: it makes more than {} MiB of values; do this work in a step", BYTES >> 20)]
    Bytes,
    #[error(
        "too costly: together, the expressions of one decision take more than {TOTAL_STEPS} steps; simplify them, or do \
         this work in a step"
    )]
    Together,
}

impl TooCostly {
    /// The code that errors and events carry.
    pub const CODE: &'static str = "too_costly";
}

/// What a decision, or a request's templates, may still cost.
#[derive(Debug)]
pub struct Budget {
    steps: Cell<u64>,
    checks: Cell<u64>,
    /// Whether something was stopped.
    spent: Cell<bool>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::of(TOTAL_STEPS, TOTAL_CHECK_STEPS)
    }
}

impl Budget {
    /// A small budget for a first try. If it is [spent](Budget::is_spent), do the work again elsewhere, on a whole one.
    pub fn quick() -> Budget {
        Budget::of(QUICK_STEPS, QUICK_STEPS)
    }

    fn of(steps: u64, checks: u64) -> Budget {
        Budget { steps: Cell::new(steps), checks: Cell::new(checks), spent: Cell::new(false) }
    }

    /// Whether it was exceeded: what was stopped for that may be possible on a larger one.
    pub fn is_spent(&self) -> bool {
        self.spent.get()
    }

    /// The steps that a check may still take.
    pub(crate) fn checks(&self) -> u64 {
        self.checks.get()
    }

    /// Counts a check, or says that it would be too much.
    pub(crate) fn check(&self, steps: Option<u64>) -> bool {
        let left = steps.and_then(|steps| self.checks.get().checked_sub(steps));
        match left {
            Some(left) => self.checks.set(left),
            None => self.spent.set(true),
        }
        left.is_some()
    }

    /// Counts one evaluation. What it leaves over goes back to the budget.
    pub(crate) fn meter(&self) -> Meter<'_> {
        let granted = self.steps.get().min(STEPS);
        Meter { budget: self, granted, steps: granted, bytes: BYTES }
    }

    #[cfg(test)]
    pub(crate) fn of_steps(steps: u64) -> Budget {
        Budget::of(steps, TOTAL_CHECK_STEPS)
    }
}

/// What one evaluation may still cost.
#[derive(Debug)]
pub(crate) struct Meter<'b> {
    budget: &'b Budget,
    granted: u64,
    steps: u64,
    bytes: u64,
}

impl Meter<'_> {
    #[inline]
    pub(crate) fn step(&mut self) -> Result<(), TooCostly> {
        self.steps(1)
    }

    #[inline]
    pub(crate) fn steps(&mut self, steps: u64) -> Result<(), TooCostly> {
        match self.steps.checked_sub(steps) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => {
                self.steps = 0;
                self.budget.spent.set(true);
                Err(if self.granted < STEPS { TooCostly::Together } else { TooCostly::Steps })
            }
        }
    }

    /// Counts text that is looked at.
    #[inline]
    pub(crate) fn reads(&mut self, bytes: usize) -> Result<(), TooCostly> {
        self.steps(bytes as u64 / STEP_BYTES)
    }

    /// Counts bytes that are about to be made.
    #[inline]
    pub(crate) fn makes(&mut self, bytes: usize) -> Result<(), TooCostly> {
        match self.bytes.checked_sub(bytes as u64) {
            Some(left) => {
                self.bytes = left;
                self.reads(bytes)
            }
            None => {
                self.budget.spent.set(true);
                Err(TooCostly::Bytes)
            }
        }
    }

    /// The steps taken so far.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.granted - self.steps
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        let left = self.budget.steps.get();
        self.budget.steps.set(left - (self.granted - self.steps).min(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_evaluation_leaves_over_goes_back() {
        let budget = Budget::default();
        let mut meter = budget.meter();
        assert_eq!(meter.steps(STEPS), Ok(()));
        assert_eq!(meter.step(), Err(TooCostly::Steps));
        drop(meter);
        for _ in 0..2 {
            assert_eq!(budget.meter().steps(STEPS), Ok(()));
        }
        assert_eq!(budget.meter().steps(10), Ok(()));
        let mut last = budget.meter();
        assert_eq!(last.steps(STEPS - 10), Ok(()));
        assert_eq!(last.step(), Err(TooCostly::Together));
        drop(last);
        assert_eq!(budget.meter().step(), Err(TooCostly::Together));
    }

    #[test]
    fn checks_have_a_total_and_what_exceeds_it_is_remembered() {
        let budget = Budget::default();
        for _ in 0..4 {
            assert!(budget.check(Some(CHECK_STEPS)) && !budget.is_spent());
        }
        assert!(!budget.check(Some(1)) && budget.is_spent());
        let quick = Budget::quick();
        assert_eq!(quick.meter().steps(QUICK_STEPS), Ok(()));
        assert!(!quick.is_spent());
        assert_eq!(quick.meter().step(), Err(TooCostly::Together));
        assert!(quick.is_spent());
    }

    #[test]
    fn bytes_are_counted_as_steps_too() {
        let budget = Budget::default();
        let mut meter = budget.meter();
        assert_eq!(meter.makes(6400), Ok(()));
        assert_eq!(meter.taken(), 100);
        assert_eq!(meter.makes(BYTES as usize), Err(TooCostly::Bytes));
    }
}
