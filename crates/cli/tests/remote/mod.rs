//! Remote workers over HTTP: real servers, real workers, kills on both sides, then the checker; and the protocol as the
//! fixtures write it down.
//!
//! Numbers are small enough for every run of the tests; `FLOWLINE_SOAK=1` takes the large ones.
#![cfg(unix)]

mod commands;
mod faults;
mod figures;
mod fixtures;
mod protocol;
mod volume;
mod waits;
