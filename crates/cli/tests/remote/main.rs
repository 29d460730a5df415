//! Remote workers over HTTP: real servers, real workers, kills on both sides, then the checker; and the protocol as the
//! fixtures write it down.
//!
//! Numbers are small enough for every run of the tests; `FLOWLINE_SOAK=1` takes the large ones.
#![cfg(unix)]

#[allow(dead_code)]
#[path = "../instances/client.rs"]
mod client;
mod commands;
mod crowd;
#[allow(dead_code)]
#[path = "../faults/dice.rs"]
mod dice;
#[allow(dead_code)]
#[path = "../faults/dump.rs"]
mod dump;
mod faults;
mod figures;
mod fixtures;
#[allow(dead_code)]
#[path = "../faults/ledger.rs"]
mod ledger;
#[allow(dead_code)]
#[path = "../cli/place.rs"]
mod place;
mod protocol;
#[allow(dead_code)]
#[path = "../instances/server.rs"]
mod server;
mod volume;
mod waits;
