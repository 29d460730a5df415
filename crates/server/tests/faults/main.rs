//! Real processes on a real file under faults, then the checker: nothing acknowledged is lost, nothing is done twice, and
//! what a log says is what the steps did.
//!
//! `FLOWLINE_SOAK=1` makes them many: 200 kills and 50 pauses instead of 40 and 10.
#![cfg(unix)]

#[allow(dead_code)]
#[path = "../cli/place.rs"]
mod place;

mod disk;
mod dump;
mod kills;
mod ledger;
mod torn;

/// Enough randomness to choose moments; a seed gives the same choices again.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }

    pub fn between(&mut self, least: std::time::Duration, most: std::time::Duration) -> std::time::Duration {
        least + std::time::Duration::from_micros(self.roll((most - least).as_micros() as u64))
    }
}

/// From `FLOWLINE_SEED` to repeat the choices of a failure, or from the clock; printed either way.
pub fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = std::env::var("FLOWLINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(now.as_nanos() as u64);
    println!("FLOWLINE_SEED={seed}");
    seed
}

pub fn soaking() -> bool {
    std::env::var_os("FLOWLINE_SOAK").is_some()
}
