//! The source text of pure crates: no clock, no randomness, no file, no thread, no map whose order changes.
//!
//! Their `clippy.toml` bans what clippy can name one by one; this bans whole modules of `std`. Tests may do as
//! they like.

use super::rust::{has_word, uses};
use super::{Finding, Tree, rules};

const BARRED: &[(&str, &str)] = &[
    ("std::fs", "it touches no file: take the content as an argument"),
    ("std::net", "it opens no connection: take the answer as an argument"),
    ("std::process", "it starts nothing: return a decision that asks for it"),
    ("std::thread", "it spawns nothing: return a decision that asks for it"),
    ("std::env", "it reads no environment: take the setting as an argument"),
    ("SystemTime", "time is an argument: take `now: Time`"),
    ("Instant::now", "time is an argument: take `now: Time`"),
    ("tokio", "it is synchronous: leave waiting to its callers"),
];

/// Allowed under [`ORDER_DOES_NOT_MATTER`], for a map that is never iterated.
const UNORDERED: &[(&str, &str)] = &[("HashMap", "use BTreeMap"), ("HashSet", "use BTreeSet")];

const ORDER_DOES_NOT_MATTER: &str = "#[allow(clippy::disallowed_types)]";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pure = tree.rust().filter(|file| rules::is_pure(file.path) && !file.test);
    for file in pure {
        for (at, line) in file.lines.iter().enumerate().filter(|(_, line)| !line.test) {
            for (name, remedy) in BARRED.iter().filter(|(name, _)| has_word(&line.code, name)) {
                findings.push(Finding::new(file.path, at + 1, format!("`{name}` in pure code"), *remedy));
            }
            let excused = at > 0 && file.lines[at - 1].code.trim() == ORDER_DOES_NOT_MATTER;
            for (name, remedy) in UNORDERED.iter().filter(|(name, _)| !excused && has_word(&line.code, name))
            {
                let message = format!("`{name}` in pure code, whose iteration order differs from run to run");
                let remedy = format!("{remedy}, or put `{ORDER_DOES_NOT_MATTER}` on the line above");
                findings.push(Finding::new(file.path, at + 1, message, remedy));
            }
        }
        for u in uses(file.lines).iter().filter(|u| !u.test) {
            let inside =
                |name: &str| u.path.strip_prefix(name).is_some_and(|r| r.is_empty() || r.starts_with("::"));
            for (name, remedy) in BARRED.iter().filter(|(name, _)| inside(name)) {
                findings.push(Finding::new(file.path, u.line, format!("`{name}` in pure code"), *remedy));
            }
        }
    }
    // A plain `use std::fs;` is seen both as a path and as a use.
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|f| (f.line, f.message)).collect()
    }

    #[test]
    fn every_barred_name_is_found() {
        for (name, _) in BARRED {
            assert_eq!(
                found("crates/core/src/a.rs", &format!("fn f() {{ {name}(); }}\n")).len(),
                1,
                "{name}"
            );
        }
    }

    #[test]
    fn a_grouped_use_hides_nothing() {
        let text = "use std::{\n    collections::BTreeMap,\n    fs,\n};\nuse std::fs::File;\n";
        let expected = [(1, "`std::fs` in pure code".to_owned()), (5, "`std::fs` in pure code".to_owned())];
        assert_eq!(found("crates/core/src/a.rs", text), expected);
    }

    #[test]
    fn a_hash_map_needs_its_excuse_on_the_line_above() {
        let text = "#[allow(clippy::disallowed_types)]\nuse std::collections::HashMap;\n\nuse std::collections::HashSet;\n";
        let findings = found("crates/core/src/a.rs", text);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].0, 4);
    }

    #[test]
    fn tests_comments_strings_and_other_crates_are_free() {
        let text = "//! no std::fs\nconst A: &str = \"tokio\";\n#[cfg(test)]\nmod tests { use std::fs; }\n";
        assert_eq!(found("crates/core/src/a.rs", text), []);
        assert_eq!(found("crates/types/src/a.rs", "use std::fs;\n").len(), 1);
        assert_eq!(found("crates/sqlite/src/a.rs", "use std::fs;\n"), []);
        assert_eq!(found("crates/core/tests/a.rs", "use std::fs;\n"), []);
    }
}
