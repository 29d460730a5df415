//! Whether what a store holds keeps the invariants.
//!
//! Written from the invariants alone: reads events, rows, jobs and histories, and never calls `decide` or the fold that
//! the engine uses, so that a bug there cannot hide itself here. `cargo xtask tidy` keeps it so.
//!
//! Three ways in, by what the caller can see:
//! - [`Look`] takes one run apart after the fact: its row, its log, its jobs. [`miscounted`] does the counters.
//! - [`Watch`] stands beside a store and sees every call that changes it, so it also sees what no dump shows: commits
//!   as a whole, tokens, the log before and after.
//! - [`History`] and [`Effects`] hold what clients were told and what workers did against the store, at the end.
//!
//! It changes nothing and proposes no repair; a [`Subject`] says what a violation is about, and whoever mends goes by that.

mod counters;
mod effects;
mod flow;
mod history;
mod inputs;
mod invariant;
mod look;
mod source;
mod violation;
mod walk;
mod watch;

pub use counters::{Counted, counted, miscounted};
pub use effects::{Again, Answer, Effect, Effects, Reported, Slots};
pub use flow::Flow;
pub use history::{Act, History, Operation, Outcome};
pub use invariant::Invariant;
pub use look::{Look, Shape};
pub use source::Source;
pub use violation::{Checker, Subject, Violation};
pub use watch::Watch;
