//! Times and durations as people write them in flags, query strings and bodies.

use std::time::Duration;

use flowline::core::Time;
use flowline::core::time::parse_duration;

/// Reads a duration; the message shows what one looks like.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| format!("{text:?} isn't a duration (250ms, 30s, 5m, 1h, 7d, 1h30m)"))
}

/// A timestamp, or a duration before now.
pub fn moment(text: &str, now: Time) -> Option<Time> {
    parse_duration(text).map(|ago| now.before(ago)).or_else(|| Time::parse(text))
}
