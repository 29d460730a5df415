//! The binary as a user meets it: real processes on real SQLite files, their exit codes, JSON and messages.

mod calling;
mod deleting;
mod machines;
mod reading;
mod refusals;
mod registry;
mod running;
#[cfg(unix)]
mod secrets;
mod simulating;
mod state;
mod steering;
