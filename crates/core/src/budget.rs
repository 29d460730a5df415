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
        "too costly: the expressions evaluated at once take more than {TOTAL_STEPS} steps together; simplify them, or do \
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
pub struct Budget(Cell<u64>);

impl Default for Budget {
    fn default() -> Budget {
        Budget(Cell::new(TOTAL_STEPS))
    }
}

impl Budget {
    /// Counts one evaluation. What it leaves over goes back to the budget.
    pub(crate) fn meter(&self) -> Meter<'_> {
        let granted = self.0.get().min(STEPS);
        Meter { budget: self, granted, steps: granted, bytes: BYTES }
    }

    #[cfg(test)]
    pub(crate) fn of(steps: u64) -> Budget {
        Budget(Cell::new(steps))
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
            None => Err(TooCostly::Bytes),
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
        let left = self.budget.0.get();
        self.budget.0.set(left - (self.granted - self.steps).min(left));
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
    fn bytes_are_counted_as_steps_too() {
        let budget = Budget::default();
        let mut meter = budget.meter();
        assert_eq!(meter.makes(6400), Ok(()));
        assert_eq!(meter.taken(), 100);
        assert_eq!(meter.makes(BYTES as usize), Err(TooCostly::Bytes));
    }
}
