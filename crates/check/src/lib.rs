//! Checks whether the content of a store keeps the invariants.
//!
//! It's written from the invariants alone. It reads events, rows, jobs and histories, and never calls `decide` or the fold that
//! the engine uses, so a bug there can't hide itself here. `cargo xtask tidy` enforces that.
//!
//! There are three ways to use it, depending on what the caller can see:
//! - [`RunCheck`] checks one run after the fact: its row, log and jobs. [`miscounted`] checks the counters.
//! - [`Watch`] sits next to a store and sees every call that changes it, so it also sees what no dump shows: whole commits,
//!   tokens, the log before and after.
//! - [`History`] and [`Effects`] compare what clients were told and what workers did with the store, at the end.
//!
//! It changes nothing and proposes no repair. A [`Subject`] says what a violation is about; repairs go by that.

mod counters;
mod effects;
mod flow;
mod history;
mod inputs;
mod look;
mod source;
mod violation;
mod walk;
mod watch;

pub use counters::{CountKey, counted, miscounted};
pub use effects::{AttemptReport, Effect, Effects, RepeatedReport, ReportReply, WorkerSlots};
pub use flow::FlowMap;
pub use flowline_core::violation::Invariant;
pub use history::{ClientReply, ClientRequest, History, Operation};
pub use look::{RunCheck, RunShape};
pub use source::StoreSnapshot;
pub use violation::{Checker, Subject, Violation};
pub use watch::Watch;
