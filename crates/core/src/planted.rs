//! Bugs planted on purpose, to show that the simulator and the checker would find them.
//!
//! Without the feature `planted`, which only the mutation gate turns on, [`is`] is a constant `false` and the compiler
//! removes every trace. With it, one bug at a time can be switched on for the current thread.

/// A mistake that someone could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// A commit does not check that its lease is held.
    NoFence,
}

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
pub use switched::{is, plant};

#[cfg(feature = "planted")]
mod switched {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether this bug is switched on in this thread.
    pub fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Switches one bug on in this thread, or all off.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }
}
