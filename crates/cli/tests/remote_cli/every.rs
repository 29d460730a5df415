//! Every command of the binary, held against itself: on a store and at a server it ends and answers alike. A command that is
//! in none of the lists here fails the test.

use crate::kit::place::Here;
use crate::remote_cli::twins::Twins;

/// Commands that work in both places, with their exit code, in an order in which each finds what it needs. A word in braces
/// stands for a run.
const TWINS: &[(i32, &[&str])] = &[
    (0, &["start", "order", "--input", r#"{"total": 2}"#, "--idempotency-key", "every", "--label", "team=b"]),
    (0, &["send", "{approve}", "approval.given", "--payload", r#"{"by": "ada"}"#]),
    (0, &["pause", "{slow}"]),
    (0, &["resume", "{slow}"]),
    (0, &["cancel", "{slow}", "--reason", "enough"]),
    (0, &["complete", "{done}", "--result", "[1, 2]"]),
    (0, &["fail", "{failed}", "--error", "burnt"]),
    (0, &["retry", "{doomed}"]),
    (0, &["runs", "--status", "failed", "--label", "team=a"]),
    (0, &["runs", "--flow", "slow", "--since", "1h"]),
    (0, &["show", "{order}"]),
    (0, &["events", "{order}"]),
    (0, &["explain", "{approve}"]),
    (0, &["receipts"]),
    (0, &["stats", "--steps", "--bucket", "365d"]),
    (0, &["verify"]),
    (0, &["delete", "{slow}"]),
    (0, &["delete", "--status", "failed", "--dry-run"]),
    (0, &["flows", "--versions"]),
    (2, &["flows", "activate", "order", "000000000000"]),
    (0, &["flows", "retire", "slow"]),
    (0, &["queues"]),
    (0, &["queues", "pause", "reports"]),
    (0, &["queues", "resume", "reports"]),
    (0, &["locks", "acquire", "nightly", "--owner", "me"]),
    (0, &["locks"]),
    (1, &["locks", "extend", "nightly", "--lock-token", "00000000000000000000000000000001"]),
    (1, &["locks", "release", "nightly", "--lock-token", "00000000000000000000000000000001"]),
    (0, &["locks", "run", "hourly", "--", "true"]),
    (0, &["state", "set", "orders", "a b/c", r#"{"status": "paid"}"#, "--ttl", "1h"]),
    (0, &["state", "get", "orders", "a b/c"]),
    (0, &["state", "list", "orders"]),
    (0, &["state", "list"]),
    (0, &["state", "delete", "orders", "a b/c"]),
    (1, &["state", "get", "orders", "a b/c"]),
    (0, &["token", "create", "--subject", "ci", "--scope", "read", "--expires", "1h"]),
    (0, &["token", "list"]),
    (2, &["token", "rotate", "0123456789abcdef", "--overlap", "1h"]),
    (2, &["token", "rotate", "0123456789abcdef", "--overlap", "soon"]),
    (2, &["token", "revoke", "0123456789abcdef"]),
];

/// Commands that need the store itself: they refuse a server, which another test shows.
const STORE_ONLY: &[&str] =
    &["run", "work", "serve", "dev", "reconcile", "retain", "doctor", "bench", "move"];

/// Commands that have nothing to do with a store, or only with a server.
const OTHERS: &[&str] =
    &["worker", "validate", "graph", "schema", "simulate", "config", "completions", "help"];

#[test]
fn every_command_ends_and_answers_alike_on_a_store_and_at_a_server() {
    let mut twins = Twins::new();
    twins.start("approve", &["approve.yaml"]);
    for name in ["slow", "done", "failed"] {
        twins.start(name, &["slow.yaml", "--delay", "1h"]);
    }
    for (exit, words) in TWINS {
        twins.same(*exit, words);
    }
    let all = commands(&twins.own, &[]);
    let listed = [STORE_ONLY, OTHERS].concat();
    assert!(listed.iter().all(|command| all.iter().any(|known| known == command)), "{all:?}");
    for command in all {
        if listed.contains(&&*command) {
            continue;
        }
        let said = |words: &[&str]| TWINS.iter().any(|(_, twin)| twin.starts_with(words));
        assert!(said(&[&command]), "TWINS has no `flowline {command}`");
        for part in commands(&twins.own, &[&command]).iter().filter(|part| *part != "help") {
            assert!(said(&[&command, part]), "TWINS has no `flowline {command} {part}`");
        }
    }
}

/// The commands that help lists.
fn commands(here: &Here, of: &[&str]) -> Vec<String> {
    let help = here.flowline(&[of, &["--help"]].concat()).out;
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    list.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}
