//! One word, one thing: a type that others can see has a name of its own, and a word of the glossary means what the
//! glossary says.
//!
//! Looks at `struct`, `enum`, `trait` and `type` with a `pub` of any width, in the sources of all crates and of xtask.
//! Private types and tests are free: nobody else reads their names.

use std::collections::BTreeMap;

use super::{Finding, Tree};

const GLOSSARY: &str = "docs/glossary.md";
const KINDS: &[&str] = &["struct", "enum", "trait", "type"];

/// Names that are defined more than once, each with the reason.
const SHARED: &[(&str, &str)] = &[
    ("Args", "what a command takes on its command line, a type per command"),
    ("Event", "the glossary has two: a record of the log, and a typed message that steps emit"),
    ("Job", "what a decision adds to a queue, and what a remote worker gets of it"),
    ("Machine", "a machine as data, and the builder of one in Rust"),
    ("Retry", "the policy of a step, and what a worker says of its failure"),
    ("Runner", "how a step says that it runs, and the trait of what runs it"),
];

/// Words of the glossary that are also types, each with the folder that defines it in the glossary's sense.
const KEPT: &[(&str, &str)] = &[
    ("Attempt", "crates/flowline/"),
    ("Backoff", "crates/core/"),
    ("Binding", "crates/types/"),
    ("Callback", "crates/api/"),
    ("Claim", "crates/store/"),
    ("Commit", "crates/store/"),
    ("Condition", "crates/sim/"),
    ("Definition", "crates/core/"),
    ("Emit", "crates/api/"),
    ("Engine", "crates/flowline/"),
    ("ExternalEvent", "crates/cli/"),
    ("Flow", "crates/flowline/"),
    ("Guard", "crates/sim/"),
    ("Inherited", "crates/core/"),
    ("Invariant", "crates/types/"),
    ("Join", "crates/types/"),
    ("Lease", "crates/flowline/"),
    ("Missed", "crates/core/"),
    ("NamedLock", "crates/flowline/"),
    ("Priority", "crates/types/"),
    ("Receipt", "crates/store/"),
    ("Redrive", "crates/api/"),
    ("Retention", "crates/store/"),
    ("RunState", "crates/core/"),
    ("Scope", "crates/api/"),
    ("Status", "crates/types/"),
    ("Step", "crates/flowline/"),
    ("Store", "crates/store/"),
    ("Stuck", "crates/flowline/"),
    ("Template", "crates/core/"),
    ("Transition", "crates/core/"),
    ("Version", "crates/sim/"),
    ("Worker", "crates/client/"),
];

/// A type that more than its own module sees.
#[derive(Debug, Clone, Copy)]
struct Defined<'a> {
    name: &'a str,
    path: &'a str,
    line: usize,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    judge(tree, SHARED, KEPT)
}

fn judge(tree: &Tree, shared: &[(&str, &str)], kept: &[(&str, &str)]) -> Vec<Finding> {
    let mut by_name: BTreeMap<&str, Vec<Defined<'_>>> = BTreeMap::new();
    for defined in defined(tree) {
        by_name.entry(defined.name).or_default().push(defined);
    }
    let glossary = terms(tree.text(GLOSSARY).unwrap_or_default());
    let mut findings = Vec::new();
    for (name, all) in &by_name {
        let is_shared = shared.iter().any(|(known, _)| known == name);
        if let [first, others @ ..] = all.as_slice()
            && !is_shared
        {
            findings.extend(others.iter().map(|other| {
                let message = format!("`{name}` is also defined at {}:{}", first.path, first.line);
                let remedy = "name each after what it is, in the words of docs/glossary.md";
                other.finding(message, remedy)
            }));
        }
        let Some(meaning) = glossary.get(*name) else { continue };
        let home = kept.iter().find(|(word, _)| word == name).map(|(_, folder)| *folder);
        let strange = all.iter().filter(|one| !home.is_some_and(|home| one.path.starts_with(home)));
        findings.extend(strange.filter(|_| !is_shared).map(|one| {
            let message = format!("the glossary keeps the word of `{name}` for something: {meaning}");
            let remedy = "rename the type; if it is just that, add it to KEPT in names.rs";
            one.finding(message, remedy)
        }));
    }
    findings
}

impl Defined<'_> {
    fn finding(&self, message: String, remedy: &str) -> Finding {
        Finding::new(self.path, self.line, message, remedy)
    }
}

fn defined(tree: &Tree) -> Vec<Defined<'_>> {
    let mut all = Vec::new();
    for file in tree.rust().filter(|file| !file.test && is_source(file.path)) {
        for (at, line) in file.lines.iter().enumerate().filter(|(_, line)| !line.test) {
            let name = name_in(&line.code);
            all.extend(name.map(|name| Defined { name, path: file.path, line: at + 1 }));
        }
    }
    all
}

fn is_source(path: &str) -> bool {
    path.starts_with("xtask/src/") || path.starts_with("crates/") && path.split('/').nth(2) == Some("src")
}

/// The name of the type that a line of code defines for others to see.
fn name_in(code: &str) -> Option<&str> {
    let rest = code.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(width) => width.split_once(')')?.1,
        None => rest,
    };
    let (kind, rest) = rest.strip_prefix(' ')?.split_once(' ')?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (KINDS.contains(&kind) && end > 0).then(|| &rest[..end])
}

/// The terms of the glossary as the names that types would have, with their meanings.
fn terms(glossary: &str) -> BTreeMap<String, &str> {
    let rows =
        glossary.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let rows = rows.filter(|(term, _)| *term != "term");
    rows.flat_map(|(words, meaning)| words.split(", ").map(move |term| (type_name(term), meaning))).collect()
}

/// `leaf step` as `LeafStep`.
fn type_name(term: &str) -> String {
    let words = term.split([' ', '-']).map(|word| {
        let mut letters = word.chars();
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect::<String>()
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Glossary\n\n| term | meaning |\n|---|---|\n| slot | room for an attempt |\n\
        | condition, guard | an expression |\n| leaf step | the last |\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(&[files, &[(GLOSSARY, PAGE)]].concat());
        let findings = judge(&tree, &[("Args", "why")], &[("Slot", "crates/a/")]);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_second_definition_is_found_in_any_crate_and_at_any_width() {
        for second in [
            "pub enum Found {",
            "pub(crate) trait Found {",
            "    pub(super) type Found<T> = T;",
            "pub struct Found;",
        ] {
            let all = found(&[("crates/a/src/a.rs", "pub struct Found {\n}\n"), ("xtask/src/b.rs", second)]);
            assert_eq!(all.len(), 1, "{second}: {all:?}");
            assert!(all[0].starts_with("xtask/src/b.rs:1: `Found` is also defined at crates/a/src/a.rs:1"));
        }
    }

    #[test]
    fn private_types_tests_texts_and_names_with_a_reason_are_free() {
        let text = "pub struct Found;\nstruct Other;\npub struct Args {}\npub fn structs() {}\n";
        for again in [
            "struct Found;\n",
            "/// pub struct Found;\n",
            "const A: &str = \"pub struct Found;\";\n",
            "#[cfg(test)]\nmod tests {\n    pub struct Found;\n}\n",
            "pub struct Args {}\n",
            "pub struct FoundToo;\n",
        ] {
            let all = found(&[("crates/a/src/a.rs", text), ("crates/b/src/b.rs", again)]);
            assert_eq!(all, [""; 0], "{again}");
        }
        let files =
            [("crates/a/src/a.rs", text), ("crates/b/tests/b.rs", text), ("crates/b/src/x/tests.rs", text)];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_word_of_the_glossary_has_its_one_home() {
        assert_eq!(found(&[("crates/a/src/a.rs", "pub struct Slot;\n")]), [""; 0]);
        let elsewhere = found(&[("crates/b/src/b.rs", "pub struct Slot;\n")]);
        assert_eq!(elsewhere.len(), 1);
        assert!(elsewhere[0].contains("for something: room for an attempt"), "{elsewhere:?}");
        for text in ["pub enum Guard {}\n", "pub enum LeafStep {}\n"] {
            assert_eq!(found(&[("crates/a/src/a.rs", text)]).len(), 1, "{text}");
        }
        for text in ["enum Guard {}\n", "pub enum LeafSteps {}\n", "pub enum Term {}\n"] {
            assert_eq!(found(&[("crates/a/src/a.rs", text)]), [""; 0], "{text}");
        }
    }

    #[test]
    fn exceptions_are_sorted_and_have_reasons() {
        assert!(SHARED.is_sorted() && KEPT.is_sorted());
        assert!(SHARED.iter().all(|(_, reason)| !reason.is_empty()));
    }
}
