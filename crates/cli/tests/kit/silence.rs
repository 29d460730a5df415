//! How long nothing happened to a run although it could have.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flowline::core::Event;

/// Milliseconds of the clock that events are dated by.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// The longest stretch between two events of a run without a fault in it. Faults, from and to, are in order of time.
pub fn longest(events: &[Event], faults: &[(i64, i64)]) -> Duration {
    // A run that waits for an event from outside is not kept waiting by anyone here.
    let outside = |event: &Event| event.kind.as_str() == "emit" && event.step_name.is_none();
    let pairs = events.windows(2).filter(|pair| !outside(&pair[1]));
    let silences = pairs.map(|pair| between(pair[0].ts.millis(), pair[1].ts.millis(), faults));
    silences.max().unwrap_or_default()
}

fn between(from: i64, to: i64, faults: &[(i64, i64)]) -> Duration {
    let (mut since, mut longest) = (from, 0);
    for (start, end) in faults.iter().filter(|(start, end)| *end > from && *start < to) {
        longest = longest.max(start - since);
        since = since.max(*end);
    }
    Duration::from_millis(longest.max(to - since).max(0) as u64)
}
