//! The contract as tests: one case per claim, the same for every store.
//!
//! An adapter's `tests/conformance.rs` enables the feature `conformance` of this crate, says how a fresh store is opened,
//! and calls the macro; every case becomes a test of its own:
//!
//! ```ignore
//! async fn open() -> Fixture { … }
//! flowline_store::conformance!(open);
//! ```
//!
//! A case never asks which store runs and never looks at the wall clock: [`Fixture::pass`] lets the store's time go by.
//! `differential` adds seeded random sequences of calls, compared answer by answer with the in-memory store.

pub mod commit;
mod fixture;
pub mod given;

pub use fixture::Fixture;

/// One `#[tokio::test]` per case of the suite. `$open` names an async function without arguments that opens a fresh,
/// empty store as a [`Fixture`].
#[macro_export]
macro_rules! conformance {
    ($open:ident) => {
        $crate::conformance_tests! { $open
            commit: [
                a_new_run_gets_version_one_and_its_events_from_one
            ]
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($open:ident $($theme:ident: [$($case:ident)*])*) => {
        $(mod $theme {
            $(#[tokio::test]
            async fn $case() {
                $crate::conformance::$theme::$case(super::$open().await).await;
            })*
        })*
    };
}
