//! The mutation gate: bugs are planted one at a time, and each must be caught.
//!
//! If no seed catches a bug, the simulator doesn't get to where it would show, or the checker doesn't look there.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use flowline_check::{Checker, Invariant};
use flowline_core::planted::{Bug, plant};

use crate::program::SimProgram;
use crate::{SimulationOptions, simulate};

/// What became of one planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hunt {
    pub bug: Bug,
    /// How many seeds it took and what gave it away; `None` where nothing did.
    pub caught: Option<(u64, CaughtBy)>,
}

/// What gives a bug away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaughtBy {
    Invariant(Invariant),
    /// An assertion of the engine's own.
    Panic,
}

/// Plants a bug in this thread, and runs seeds until one shows it or there are no more.
pub fn hunt(bug: Bug, seeds: u64, checker: Checker) -> Hunt {
    plant(Some(bug));
    let caught = (0..seeds).find_map(|seed| {
        let options = SimulationOptions { checker, ..SimulationOptions::default() };
        let run = || simulate(SimProgram::random(seed), &options).violations;
        let by = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(violations) => CaughtBy::Invariant(violations.first()?.invariant),
            Err(_) => CaughtBy::Panic,
        };
        Some((seed + 1, by))
    });
    plant(None);
    Hunt { bug, caught }
}

/// Hunts several bugs at once, each under its own checker. The answers are in the order of the questions.
pub fn hunt_all(
    asked: &[(Bug, Checker)],
    seeds: u64,
    threads: usize,
    told: &(dyn Fn(&Hunt) + Sync),
) -> Vec<Hunt> {
    let next = AtomicUsize::new(0);
    let hunts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((bug, checker)) = asked.get(at) else { break };
                    let hunt = hunt(*bug, seeds, *checker);
                    told(&hunt);
                    if let Ok(mut hunts) = hunts.lock() {
                        hunts.push((at, hunt));
                    }
                }
            });
        }
    });
    let mut hunts = hunts.into_inner().unwrap_or_default();
    hunts.sort_by_key(|(at, _)| *at);
    hunts.into_iter().map(|(_, hunt)| hunt).collect()
}

impl fmt::Display for CaughtBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaughtBy::Invariant(invariant) => f.pad(invariant.as_str()),
            CaughtBy::Panic => f.pad("panic"),
        }
    }
}

impl fmt::Display for Hunt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, what) = (self.bug.name(), self.bug.what());
        match self.caught {
            Some((seeds, by)) => write!(f, "{name:<21} {seeds:>5}  {by:<5}  {what}"),
            None => write!(f, "{name:<21}     -  -      {what}"),
        }
    }
}
