//! The invariants by number, as in docs/checker.md.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! invariants {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What must always hold.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

            /// A short name for people.
            pub fn name(self) -> &'static str {
                match self {
                    $(Invariant::$variant => $name,)*
                }
            }
        }
    };
}

invariants! {
    /// One terminal event, at the end of the log, when nothing is left to do; after it, no job and no lease.
    I1 = "one terminal event",
    /// One job per run, step and attempt; attempts from 1 without gaps; failed attempts and lost leases within their limits.
    I2 = "attempts",
    /// What was acknowledged is there exactly once, what was refused isn't there, and what is unknown is there at most once.
    I3 = "acknowledged once",
    /// Events are numbered 1..n without gaps, timestamps never go back, and events never change.
    I4 = "log",
    /// A step is triggered if and only if what it waits for came before, in the commit of the deciding event. A machine handles
    /// events in order, one at a time, and each transition leads where the definition says.
    I5 = "joins",
    /// The index row, the receipts of events and the run's own key-value state match the log. So does the duration in a
    /// terminal event. Counters match a recount.
    I6 = "index",
    /// A stale lease token writes nothing, not even a log line.
    I7 = "stale tokens",
    /// A commit is written whole, once, on the version it was decided on.
    I8 = "atomic commits",
    /// One idempotency key, one run; a different body is refused.
    I9 = "idempotency keys",
    /// Nothing that waits for a time happens before it. A state's timers are set when it's entered and dropped when it's left.
    I10 = "timers",
    /// After faults end, every run makes progress.
    I11 = "progress",
    /// A run is pinned to its definition, whose content has that hash, and the stored run state matches the log.
    I12 = "pinned definition",
    /// A store that went back in time is noticed. The checker doesn't check this: only a store that is a server can go back
    /// under a running instance.
    I13 = "store going back in time",
    /// Nothing crosses tenants.
    I14 = "tenants",
    /// Every job that was added either ended in exactly one way or is still live.
    I15 = "jobs accounted for",
    /// No attempt is leased or starts after its step is over.
    I16 = "no late attempts",
    /// A worker never runs more than its slots; a paused queue or run hands out nothing.
    I17 = "slots",
    /// An action that a transition triggered has run, was skipped by its own `if`, failed, or was cut off by a failure or a
    /// cancel that the log names.
    I18 = "no dropped actions",
    /// A step's input is fixed when it's triggered; every attempt gets the same input.
    I19 = "fixed inputs",
    /// A recorded report is answered as recorded for as long as its run is kept; no other report ever is.
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
