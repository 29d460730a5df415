//! The real core, engine and in-memory store under a seeded scheduler with virtual time.
//!
//! One thread, no real clock, no real randomness: the same seed gives the same story, so every failure replays.

mod client;
mod instance;
mod mishap;
pub mod model;
#[cfg(feature = "planted")]
pub mod mutants;
pub mod program;
pub mod report;
mod shared;
mod story;
mod tell;
pub mod trial;
mod wire;
mod worker;
mod world;

pub use world::{Aim, Simulated, SimulationOptions, simulate};
