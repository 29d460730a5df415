//! Caps that more than one crate enforces. Everything a user can send has one; the error names it.
//!
//! Sizes of payloads are settings: [`Limits`]. Names, counts and nesting are not. Names are parts of keys in every store,
//! counts are checked when a definition is registered and have to hold on whichever instance runs it, and nesting protects
//! the stack.

use std::time::Duration;

/// Flow, step, event, queue and tenant names, in bytes.
pub const NAME_BYTES: usize = 128;
/// An idempotency key, in bytes.
pub const KEY_BYTES: usize = 256;
/// One label's value, in bytes.
pub const LABEL_BYTES: usize = 256;
/// Labels on one run.
pub const LABELS: usize = 32;
/// A log line, in bytes of JSON: 1 MiB. Longer ones are cut, not refused.
pub const LOG_BYTES: usize = 1 << 20;
/// The key-value state of a run that an attempt is given without asking, in bytes: 1 MiB.
pub const STATE_BYTES: usize = 1 << 20;
/// A document that an engine keeps for itself, in bytes of JSON: 1 MiB.
pub const DOCUMENT_BYTES: usize = 1 << 20;
/// Nesting of a payload. Deeper JSON is refused before anything recurses into it.
pub const JSON_DEPTH: usize = 100;
/// Steps in one flow.
pub const STEPS: usize = 10_000;
/// Steps that one commit may trigger.
pub const TRIGGERS: usize = 1_000;
/// Attempts that a retry policy may ask for.
pub const ATTEMPTS: u32 = 1_000;
/// Lost leases of one step before it fails with code `lease_lost`.
pub const LOST_LEASES: u32 = 5;
/// A definition file, in bytes: 4 MiB.
pub const DEFINITION_BYTES: usize = 4 << 20;
/// Text kept of an error message, in bytes; the rest is cut.
pub const ERROR_BYTES: usize = 16 << 10;
/// Events that wait in the inbox of one machine's run.
pub const INBOX: usize = 256;
/// Events whose receipts a machine's run takes over from the one that it repeats.
pub const PAST_EVENTS: usize = 10_000;
/// Transitions of one run of a machine.
pub const TRANSITIONS: u32 = 1_000_000;
/// Actions of one machine.
pub const ACTIONS: usize = 1_000;
/// States of one machine.
pub const STATES: usize = 1_000;
/// The longest time that a definition may keep its ended runs for: a hundred years.
pub const RETAIN: Duration = Duration::from_secs(36_500 * 86_400);
/// Timers of one state.
pub const TIMERS: usize = 100;
/// How long after its time a timer counts as missed.
pub const MISSED: Duration = Duration::from_secs(60);

/// How large payloads may be, in bytes of JSON. Settings of an instance.
///
/// They judge what is new. What a store holds already is read whatever its size, so they can be changed at any time and can
/// differ between instances of one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// An input, event, emit, result or state value: `max-payload`.
    pub payload: usize,
    /// What several payloads make together: the input of a step that joins events, the results that a run without `output`
    /// ends with, the body of a request: `max-join`.
    pub join: usize,
    /// The context of a machine's run, which every transition that changes it writes whole: `max-context`.
    pub context: usize,
    /// What one attempt may log; the rest is cut: `max-log`.
    pub log: usize,
    /// What the attempts of one run may log together: `max-run-log`.
    pub run_log: usize,
}

/// One of the [`Limits`], with the setting that changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub setting: &'static str,
    pub bytes: usize,
}

/// Room for what the engine itself puts around or into a payload: names of events and runs, ids of 256 bytes in which every
/// character is escaped.
const ENVELOPE: usize = 4 << 10;

impl Default for Limits {
    fn default() -> Limits {
        Limits { payload: 1 << 20, join: 16 << 20, context: 64 << 10, log: 16 << 20, run_log: 256 << 20 }
    }
}

impl Limits {
    /// The least that can be set.
    pub const LEAST: Limits =
        Limits { payload: ENVELOPE, join: 3 * ENVELOPE, context: ENVELOPE, log: ENVELOPE, run_log: ENVELOPE };
    /// The most that can be set. Every store can carry it with room to spare: Redis takes 512 MiB in one argument, SQLite 1 GB
    /// in one value, Postgres 1 GB in one field. A claim hands a worker up to 64 MiB of inputs.
    pub const MOST: Limits =
        Limits { payload: 32 << 20, join: 64 << 20, context: 32 << 20, log: 1 << 30, run_log: 2 << 30 };

    /// The default limits where payloads have this one.
    pub fn of_payload(payload: usize) -> Limits {
        let usual = Limits::default();
        Limits {
            payload,
            join: usual.join.max(payload.saturating_mul(2)),
            context: usual.context.min(payload),
            ..usual
        }
    }

    pub fn payload(&self) -> Limit {
        Limit { setting: "max-payload", bytes: self.payload }
    }

    pub fn join(&self) -> Limit {
        Limit { setting: "max-join", bytes: self.join }
    }

    pub fn context(&self) -> Limit {
        Limit { setting: "max-context", bytes: self.context }
    }

    pub fn log(&self) -> Limit {
        Limit { setting: "max-log", bytes: self.log }
    }

    pub fn run_log(&self) -> Limit {
        Limit { setting: "max-run-log", bytes: self.run_log }
    }

    /// Refuses limits that no engine can keep, with the remedy.
    pub fn check(&self) -> Result<(), String> {
        let (least, most) = (Limits::LEAST, Limits::MOST);
        for (limit, least, most) in [
            (self.payload(), least.payload, most.payload),
            (self.join(), least.join, most.join),
            (self.context(), least.context, most.context),
            (self.log(), least.log, most.log),
            (self.run_log(), least.run_log, most.run_log),
        ] {
            if !(least..=most).contains(&limit.bytes) {
                let (least, most, bytes) =
                    (format_bytes(least), format_bytes(most), format_bytes(limit.bytes));
                return Err(format!("{} is {bytes}; it must be {least} to {most}", limit.setting));
            }
        }
        let [payload, join, context] = [self.payload, self.join, self.context].map(format_bytes);
        if self.context > self.payload {
            return Err(format!(
                "max-context ({context}) is larger than max-payload ({payload}); a run can end with its context as the \
                 result: raise max-payload or lower max-context"
            ));
        }
        let needed = self.payload + self.context + ENVELOPE;
        if self.join < needed {
            let needed = format_bytes(needed);
            return Err(format!(
                "max-join ({join}) is too small for max-payload ({payload}): an action gets an event with the context; set \
                 max-join to {needed} or more"
            ));
        }
        Ok(())
    }
}

const UNITS: [(&str, usize); 3] = [("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads a number of bytes: `65536`, `64KiB`, `4MiB`.
pub fn parse_bytes(text: &str) -> Option<usize> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((text, 1));
    number.trim_end().parse::<usize>().ok()?.checked_mul(unit)
}

/// Writes a number of bytes, in the largest unit that divides it.
pub fn format_bytes(bytes: usize) -> String {
    let fits = UNITS.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    let (unit, size) = fits.unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / size)
}

#[test]
fn sizes_are_read_as_they_are_written() {
    for (text, bytes) in
        [("4096B", 4096), ("64KiB", 64 << 10), ("4MiB", 4 << 20), ("1048577B", (1 << 20) + 1)]
    {
        assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        assert_eq!(parse_bytes(&format_bytes(bytes)), Some(bytes), "{text}");
    }
    assert_eq!(format_bytes(64 << 10), "64KiB");
    assert_eq!(parse_bytes("65536"), Some(65536));
    for wrong in ["", "MiB", "1MB", "1.5MiB", "-1", "99999999999999999999MiB"] {
        assert_eq!(parse_bytes(wrong), None, "{wrong}");
    }
}

#[test]
fn limits_that_no_engine_can_keep_are_refused_with_the_remedy() {
    let usual = Limits::default();
    for right in [
        usual,
        Limits::LEAST,
        Limits { context: 1 << 20, ..Limits::MOST },
        Limits::of_payload(4096),
        Limits::of_payload(32 << 20),
    ] {
        assert_eq!(right.check(), Ok(()), "{right:?}");
    }
    let refused = |limits: Limits| limits.check().unwrap_err();
    assert_eq!(refused(Limits { payload: 1000, ..usual }), "max-payload is 1000B; it must be 4KiB to 32MiB");
    assert!(refused(Limits { join: 65 << 20, ..usual }).starts_with("max-join is 65MiB; it must be"));
    assert!(refused(Limits { context: 0, ..usual }).starts_with("max-context is 0B"));
    assert!(refused(Limits { context: 2 << 20, ..usual }).contains("raise max-payload or lower max-context"));
    let small = refused(Limits { payload: 20 << 20, ..usual });
    assert!(small.ends_with("set max-join to 20548KiB or more"), "{small}");
}

#[test]
fn the_limits_in_the_docs_are_these() {
    let page = include_str!("../../../docs/file-format.md");
    let rows: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
        .collect();
    for (what, limit) in [
        ("events in the inbox of a machine's run", INBOX),
        ("steps of a flow", STEPS),
        ("steps triggered at once", TRIGGERS),
        ("timers of a state", TIMERS),
        ("nesting of JSON", JSON_DEPTH),
        ("attempts of a step", ATTEMPTS as usize),
        ("lost leases of a step", LOST_LEASES as usize),
    ] {
        let said = rows.iter().find(|(row, _)| *row == what).map(|(_, said)| said.replace(',', ""));
        assert_eq!(said, Some(limit.to_string()), "{what}");
    }
    let (usual, least, most) = (Limits::default(), Limits::LEAST, Limits::MOST);
    for (setting, usual, least, most) in [
        ("max-payload", usual.payload, least.payload, most.payload),
        ("max-join", usual.join, least.join, most.join),
        ("max-context", usual.context, least.context, most.context),
        ("max-log", usual.log, least.log, most.log),
        ("max-run-log", usual.run_log, least.run_log, most.run_log),
    ] {
        let [usual, least, most] = [usual, least, most].map(format_bytes);
        let row = format!("| `{setting}` | {usual} | {least} | {most} |");
        assert!(page.contains(&row), "{row}");
    }
}
