//! Requests and answers of Flowline's HTTP API (`/v1`), for servers and clients alike.
//!
//! A route of the server names these types, its OpenAPI document is written from them (feature `schema`), and the client
//! sends and reads them. Doc comments are the descriptions in that document. Requests refuse fields that they don't know,
//! so that a typo is noticed; answers may grow.

pub mod access;
pub mod codes;
pub mod events;
pub mod explain;
pub mod flows;
pub mod locks;
pub mod problem;
pub mod queues;
pub mod runs;
pub mod state;
pub mod stats;
pub mod work;

pub use problem::ProblemDetails;

use serde::{Deserialize, Deserializer};

/// Reads a field that may be missing or null; either means the default.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}
