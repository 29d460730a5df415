//! Caps that more than one crate enforces. Everything a user can send has one; the error names it.

/// Flow, step, event, queue and tenant names, in bytes.
pub const NAME_BYTES: usize = 128;
/// An idempotency key, in bytes.
pub const KEY_BYTES: usize = 256;
/// One label's value, in bytes.
pub const LABEL_BYTES: usize = 256;
/// Labels on one run.
pub const LABELS: usize = 32;
/// One payload (input, emit, result, state value, log line), in bytes of JSON: 1 MiB.
pub const PAYLOAD_BYTES: usize = 1 << 20;
/// The payloads that one join collects, in bytes of JSON: 16 MiB.
pub const JOIN_BYTES: usize = 16 << 20;
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
/// Timers of one state.
pub const TIMERS: usize = 100;
/// The context of a machine's run, in bytes of JSON: 64 KiB. Every transition that changes it writes it whole.
pub const CONTEXT_BYTES: usize = 64 << 10;
/// How long after its time a timer counts as missed.
pub const MISSED: std::time::Duration = std::time::Duration::from_secs(60);

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
}
