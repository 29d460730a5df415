//! Where to begin to look for what is due.
//!
//! A claim takes the oldest jobs of a lane, a sweep the oldest leases and timers. The entries of those that were taken before
//! stay at the front of the index until a vacuum may remove them, which a long transaction of somebody else puts off: every
//! look would walk over all of them again. So each instance remembers how far it found nothing, and begins there.
//!
//! What is made ready is ready from about the time of its transaction on, which lies above every floor. What is not, because
//! a run that was paused goes on or an outcome was decided on long before it could be written, is announced: whoever writes
//! it draws a number of `job_rewinds`. A look that finds a new number there forgets its floors for a while.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use flowline_core::Time;

/// What is older than this when it is written is announced.
pub(crate) const OLD: Duration = Duration::from_secs(5);
/// How far below the time of a look its floors end: further back than what is not announced, written by a transaction as
/// long as there can be one.
const BELOW: Duration = Duration::from_secs(15);
/// How long after an announcement the transaction that made it may still be under way.
const UNDER_WAY: Duration = Duration::from_secs(10);
/// How often everything is looked at, announced or not.
const EVERY: Duration = Duration::from_secs(5);

/// What is looked for, each with a floor of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FloorKey {
    Ready { lane: i32, priority: i16 },
    Leases,
    Timers,
}

#[derive(Debug, Default)]
pub(crate) struct Floors(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    floors: HashMap<FloorKey, i64>,
    rewinds: i64,
    /// The last time that a new announcement was found.
    rewound: Option<Instant>,
    /// The last time that the floors were forgotten.
    forgotten: Option<Instant>,
}

/// What a look begins with.
#[derive(Debug)]
pub(crate) struct FloorLook {
    pub(crate) floors: HashMap<FloorKey, i64>,
    rewinds: i64,
}

impl Floors {
    /// Everything that is known. Now and then that is nothing.
    pub(crate) fn begin(&self) -> FloorLook {
        let mut known = self.known();
        let within =
            |since: Option<Instant>, time| since.is_some_and(|since: Instant| since.elapsed() < time);
        if within(known.rewound, UNDER_WAY) || !within(known.forgotten, EVERY) {
            known.floors.clear();
            known.forgotten = Some(Instant::now());
        }
        FloorLook { floors: known.floors.clone(), rewinds: known.rewinds }
    }

    /// Whether a look that found this number of announcements may have missed something: it is to be made once more.
    pub(crate) fn missed(&self, look: &FloorLook, rewinds: i64) -> bool {
        let mut known = self.known();
        if known.rewinds != rewinds {
            known.rewinds = rewinds;
            known.rewound = Some(Instant::now());
            known.floors.clear();
        }
        look.rewinds != rewinds && !look.floors.is_empty()
    }

    /// Remembers what a look at this time found first in a place.
    pub(crate) fn raise(&self, place: FloorKey, first: Option<i64>, now: Time) {
        let top = now.millis() - BELOW.as_millis() as i64;
        self.known().floors.insert(place, first.map_or(top, |first| first.min(top)));
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: FloorKey = FloorKey::Ready { lane: 1, priority: 2 };

    fn looked(first: Option<i64>) -> Floors {
        let floors = Floors::default();
        let look = floors.begin();
        assert!(!floors.missed(&look, 7), "it began at the bottom");
        floors.known().rewound = None;
        floors.raise(PLACE, first, Time::from_millis(100_000));
        floors
    }

    #[test]
    fn a_look_begins_where_the_last_one_found_something_or_well_below_its_time() {
        assert_eq!(looked(Some(40_000)).begin().floors[&PLACE], 40_000);
        assert_eq!(looked(None).begin().floors[&PLACE], 85_000);
        assert_eq!(looked(Some(99_000)).begin().floors[&PLACE], 85_000);
    }

    #[test]
    fn an_announcement_sends_looks_to_the_bottom() {
        let floors = looked(None);
        let (look, other) = (floors.begin(), floors.begin());
        assert!(!floors.missed(&look, 7));
        assert!(floors.missed(&look, 8));
        assert!(floors.missed(&other, 8), "who began before the first who noticed, too");
        // The transaction may not have ended yet: what is found now says nothing.
        floors.raise(PLACE, None, Time::from_millis(100_000));
        assert!(floors.begin().floors.is_empty());
    }
}
