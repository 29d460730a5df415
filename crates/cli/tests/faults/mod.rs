//! Real processes on a real file under faults, then the checker: nothing acknowledged is lost, nothing is done twice, and
//! what a log says is what the steps did.
//!
//! `FLOWLINE_SOAK=1` makes them many: 200 kills and 50 pauses instead of 40 and 10.
#![cfg(unix)]

mod disk;
mod kills;
mod torn;
