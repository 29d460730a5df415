//! How long a definition keeps its ended runs, if it says so.

use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::time::{format_duration, parse_duration};

/// A definition's own retention, counted from the end of each run. A value that it leaves out follows the engine's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Retain {
    pub events: Option<Duration>,
    pub runs: Option<Duration>,
}

impl Retain {
    /// Keeps events for this long, and follows the engine's policy in how long runs are kept.
    pub fn events(events: Duration) -> Retain {
        Retain { events: Some(events), runs: None }
    }

    /// Keeps runs for this long, and follows the engine's policy in how long events are kept, as far as the run is.
    pub fn runs(runs: Duration) -> Retain {
        Retain { events: None, runs: Some(runs) }
    }

    /// Keeps runs for this long as well.
    pub fn and_runs(self, runs: Duration) -> Retain {
        Retain { runs: Some(runs), ..self }
    }

    /// As stores keep it: both in milliseconds with a `/` between them, `-` for what is left out. No two that differ are
    /// written alike, so runs can be grouped by it.
    pub fn code(&self) -> String {
        let part = |kept: Option<Duration>| kept.map_or("-".to_owned(), |kept| kept.as_millis().to_string());
        format!("{}/{}", part(self.events), part(self.runs))
    }

    /// Reads what [`Retain::code`] wrote.
    pub fn from_code(code: &str) -> Option<Retain> {
        let part = |text: &str| match text {
            "-" => Some(None),
            text => text.parse().ok().map(Duration::from_millis).map(Some),
        };
        let (events, runs) = code.split_once('/')?;
        Some(Retain { events: part(events)?, runs: part(runs)? })
    }
}

/// With the keys of the file format.
impl Serialize for Retain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, kept) in [("events", self.events), ("runs", self.runs)] {
            if let Some(kept) = kept {
                map.serialize_entry(key, &format_duration(kept))?;
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Retain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Retain, D::Error> {
        #[derive(Deserialize)]
        struct Texts {
            events: Option<String>,
            runs: Option<String>,
        }
        let Texts { events, runs } = Texts::deserialize(deserializer)?;
        let read = |text: Option<String>| match text {
            Some(text) => match parse_duration(&text) {
                Some(kept) => Ok(Some(kept)),
                None => Err(de::Error::custom(format!("{text:?} is not a duration"))),
            },
            None => Ok(None),
        };
        Ok(Retain { events: read(events)?, runs: read(runs)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_reads_back_from_its_code_and_its_json() {
        let day = Duration::from_secs(86_400);
        let both = Retain::events(day).and_runs(day * 7);
        for (retain, code, json) in [
            (both, "86400000/604800000", r#"{"events":"1d","runs":"7d"}"#),
            (Retain::events(day), "86400000/-", r#"{"events":"1d"}"#),
            (Retain::runs(day), "-/86400000", r#"{"runs":"1d"}"#),
        ] {
            assert_eq!((retain.code().as_str(), Retain::from_code(code)), (code, Some(retain)));
            assert_eq!(serde_json::to_string(&retain).unwrap(), json);
            assert_eq!(serde_json::from_str::<Retain>(json).unwrap(), retain);
        }
        for bad in ["", "1", "1/", "x/1", "1/2/3"] {
            assert_eq!(Retain::from_code(bad), None, "{bad:?}");
        }
    }
}
