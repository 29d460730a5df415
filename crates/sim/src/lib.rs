//! The real core, engine and in-memory store under a seeded scheduler with virtual time.
//!
//! One thread, no real clock, no real randomness: the same seed gives the same story, so every failure replays.

pub mod model;
pub mod program;
pub mod report;
