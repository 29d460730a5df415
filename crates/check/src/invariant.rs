//! The invariants by number, as the design lists them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! invariants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What must always hold.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Invariant {
            $($(#[$doc])* $variant,)*
        }

        impl Invariant {
            pub const ALL: &'static [Invariant] = &[$(Invariant::$variant),*];

            /// `I5`
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Invariant::$variant => stringify!($variant),)*
                }
            }

            /// A few words for people.
            pub fn name(self) -> &'static str {
                match self {
                    $(Invariant::$variant => $name,)*
                }
            }
        }
    };
}

invariants! {
    /// One terminal event, at the end of the log and when nothing is left to do; then no job and no lease.
    I1 = "one end",
    /// One job per run, step and attempt; attempts from 1 without gaps; failed tries and lost leases within their caps.
    I2 = "attempts",
    /// What was acknowledged is there exactly once, what was refused is not, what is unknown at most once.
    I3 = "acknowledged once",
    /// The log is 1..n without gaps, in order of time, and never changes.
    I4 = "the log",
    /// A step is triggered if and only if what it waits for precedes it, in the commit of the deciding event. A machine gives
    /// turns in order and one at a time, and each leads where the definition says.
    I5 = "joins",
    /// The index row, what became of events and the run's own key-value state equal the log; so does what a terminal event says of
    /// the run's duration. Counters equal a recount.
    I6 = "the index",
    /// A stale lease token writes nothing, not even a log line.
    I7 = "the fence",
    /// A commit is written whole, on the version that it was decided on, once.
    I8 = "all or none",
    /// One idempotency key, one run; another body is refused.
    I9 = "idempotency keys",
    /// Nothing that waits for a time happens before it. The timers of a state are set and go with it.
    I10 = "timers",
    /// After faults end, every run gets on.
    I11 = "progress",
    /// A run is pinned to its definition, whose content has its hash; the stored state equals the log.
    I12 = "the pinned definition",
    /// A store that went back in time is noticed. Only a store shared by servers can go back under a living instance, and
    /// none is here yet: nothing checks it.
    I13 = "time of the store",
    /// Nothing crosses tenants.
    I14 = "tenants",
    /// Jobs added are over in one way, or live.
    I15 = "balance of jobs",
    /// No attempt is leased, or begins, after its step is over.
    I16 = "no late attempt",
    /// A worker runs no more than its slots; a paused queue and a paused run hand out nothing.
    I17 = "slots",
    /// An action that a transition asked for has run, was skipped by its own `if`, failed, or was cut off by a failure or a
    /// cancel that the log names.
    I18 = "no action dropped",
    /// A step's input is fixed when it is triggered: every attempt gets the same.
    I19 = "fixed inputs",
    /// A report that was recorded is answered as recorded for as long as its log is kept, and no other is.
    I20 = "reports",
}

impl Invariant {
    pub fn parse(text: &str) -> Option<Invariant> {
        Invariant::ALL.iter().copied().find(|invariant| invariant.as_str().eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Invariant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Invariant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Invariant, D::Error> {
        let text = String::deserialize(deserializer)?;
        Invariant::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no invariant")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_their_text() {
        let numbers: Vec<u32> = Invariant::ALL.iter().map(|of| of.as_str()[1..].parse().unwrap()).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        for invariant in Invariant::ALL {
            assert_eq!(Invariant::parse(&invariant.to_string()), Some(*invariant));
        }
        assert_eq!(Invariant::parse("I0"), None);
    }
}
