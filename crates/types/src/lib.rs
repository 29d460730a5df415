//! Flowline's vocabulary as plain data: names, times, payloads, events, limits.
//!
//! The engine, the stores, the API and its clients all speak it. Nothing here knows what a definition means or how a run
//! moves on, so a client that only needs the words doesn't build the engine. It's as pure as core, which re-exports it
//! under its own paths.

pub mod binding;
pub mod error;
pub mod event;
pub mod graph;
pub mod ids;
mod invariant;
pub mod json;
pub mod limits;
pub mod receipt;
pub mod retain;
pub mod row;
#[cfg(feature = "schema")]
mod schema;
pub mod status;
pub mod time;
pub mod violation;
mod words;

pub use binding::Binding;
pub use event::{Event, EventType, NewEvent};
pub use ids::{RunId, RunKey, Tenant};
pub use json::Json;
pub use receipt::ReceiptStatus;
pub use retain::Retain;
pub use status::{Priority, Status};
pub use time::Time;
