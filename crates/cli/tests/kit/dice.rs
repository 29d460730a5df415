//! Chance that can be repeated, and how much of it there is to be.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        least + Duration::from_micros(self.roll((most - least).as_micros() as u64))
    }
}

/// From `FLOWLINE_SEED` to repeat the choices of a failure, or from the clock; printed either way.
pub fn seed() -> u64 {
    let seed = std::env::var("FLOWLINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64);
    println!("FLOWLINE_SEED={seed}");
    seed
}

/// Whether the large numbers are asked for.
pub fn soaking() -> bool {
    std::env::var_os("FLOWLINE_SOAK").is_some()
}
