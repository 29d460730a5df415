//! Store time: milliseconds since the Unix epoch, handed in and never read from a clock here.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment by the store's clock. JSON shows it as ISO-8601 UTC with milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(i64);

impl Time {
    pub const fn from_millis(ms: i64) -> Time {
        Time(ms)
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero where `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).max(0) as u64)
    }

    /// So long before this, or the beginning of time.
    pub fn before(self, by: Duration) -> Time {
        Time(self.0.saturating_sub(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }

    /// Reads ISO-8601 with an offset or `Z`.
    pub fn parse(text: &str) -> Option<Time> {
        text.parse::<jiff::Timestamp>().ok().map(|t| Time(t.as_millisecond()))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Time;
    fn add(self, by: Duration) -> Time {
        Time(self.0.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => write!(f, "{t:.3}"),
            // Beyond the calendar: only a damaged row gets here, and it should stay visible.
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        Time::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} isn't an ISO 8601 timestamp")))
    }
}

/// Reads a duration as definitions and flags write it: `250ms`, `30s`, `5m`, `1h`, `7d`, or several in a row (`1h30m`).
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).filter(|&n| n > 0)?;
        let amount: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..unit_len] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(amount.checked_mul(unit)?))?;
        rest = &rest[unit_len..];
    }
    Some(total)
}

/// Writes a duration the way [`parse_duration`] reads it, in the fewest parts.
pub fn format_duration(duration: Duration) -> String {
    let mut ms = duration.as_millis();
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut out = String::new();
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
        if ms >= size {
            out.push_str(&format!("{}{unit}", ms / size));
            ms %= size;
        }
    }
    out
}

/// Writes a duration for people: from ten seconds on in whole seconds, its parts apart (`59m 57s`).
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let rounded = match ms {
        0..10_000 => duration,
        _ => Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_millis() >= 500)),
    };
    let text = format_duration(rounded);
    let mut shown = String::with_capacity(text.len() + 4);
    let mut before = None;
    for c in text.chars() {
        if c.is_ascii_digit() && before.is_some_and(|before: char| before.is_ascii_alphabetic()) {
            shown.push(' ');
        }
        shown.push(c);
        before = Some(c);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_trip() {
        for text in ["250ms", "30s", "5m", "1h", "7d", "1h30m", "1m500ms", "0s"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        for bad in ["", "5", "m", "5 m", "-1s", "1w", "99999999999999999999s"] {
            assert_eq!(parse_duration(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn people_read_whole_seconds() {
        let shown =
            [1_250, 9_999, 59_500, 3_596_975, 90_061_000].map(Duration::from_millis).map(show_duration);
        assert_eq!(shown, ["1s 250ms", "9s 999ms", "1m", "59m 57s", "1d 1h 1m 1s"]);
    }

    #[test]
    fn time_is_shown_as_iso_8601_with_milliseconds() {
        let time = Time::from_millis(1_761_754_554_834);
        assert_eq!(time.to_string(), "2025-10-29T16:15:54.834Z");
        assert_eq!(Time::parse(&time.to_string()), Some(time));
    }
}
