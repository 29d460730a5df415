//! The pure heart of Flowline.
//!
//! Everything that happens to a run is an input. `decide` turns it into a decision: events, jobs to add, jobs to drop. A store makes the decision durable in one
//! commit. What a run *is* at any moment is the fold of its events , and there is one fold.
//!
//! Nothing here reads a clock, draws a random number, touches a file or starts a thread: time and payloads are
//! arguments. `clippy.toml` beside this crate and `cargo xtask tidy` keep it so.

pub mod definition;
pub mod event;
pub mod expr;
pub mod ids;
pub mod json;
pub mod limits;
pub mod run;
pub mod schema;
pub mod time;

pub use definition::Definition;
pub use event::{Event, EventType, NewEvent};
pub use ids::{RunId, RunKey, Tenant};
pub use json::Json;
pub use run::Status;
pub use time::Time;
