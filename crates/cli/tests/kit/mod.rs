//! What the tests share: a folder to run the binary in, servers and clients of many kinds, dice, and what steps did.

pub mod client;
pub mod crowd;
pub mod dice;
pub mod dump;
pub mod ledger;
pub mod place;
pub mod served;
pub mod server;
pub mod silence;

use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what it takes: a machine may be busy with other things.
const PATIENCE: Duration = Duration::from_secs(90);

/// Looks until it is so.
#[track_caller]
pub fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
