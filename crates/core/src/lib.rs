//! The pure heart of Flowline.
//!
//! Everything that happens to a run is an [`DecideInput`]. [`decide()`] turns it into a [`Decision`]: events, jobs to add,
//! jobs to drop. A store makes the decision durable in one commit. What a run *is* at any moment is the fold of its
//! events ([`RunState`]), and there is one fold.
//!
//! Nothing here reads a clock, draws a random number, touches a file or starts a thread: time and payloads are
//! arguments. `clippy.toml` beside this crate and `cargo xtask tidy` keep it so.

pub mod budget;
pub mod call;
pub mod decide;
pub mod definition;
pub mod encode;
pub mod expr;
pub mod machine;
pub mod plan;
#[cfg(feature = "planted")]
pub mod planted;
pub mod report;
pub mod request;
pub mod run;
pub mod schema;
mod shape;
pub mod template;

pub use decide::{DecideInput, Decided, Decision, decide};
pub use definition::Definition;
pub use flowline_types::{
    Binding, Event, EventType, Json, NewEvent, RunId, RunKey, Status, Tenant, Time, error, event, ids, json,
    limits, receipt, row, time, violation,
};
pub use plan::Plan;
pub use run::RunState;
