//! Whether what a store holds keeps the invariants.
//!
//! Written from the invariants alone: reads events, rows, jobs and histories, and never calls `decide` or the fold that
//! the engine uses, so that a bug there cannot hide itself here.
