//! Tidy: the rules of this repository that the compiler and clippy cannot hold.
//!
//! Every check is a function from a [`Tree`] to findings, reads nothing but that tree, and fixes nothing. The
//! list in [`CHECKS`] is the whole of it; `docs/checks.md` says what each asks for.

mod imports;
mod independence;
mod leaks;
mod leftovers;
mod links;
mod manifests;
mod names;
mod planted;
mod purity;
mod rules;
mod rust;
mod shape;
mod tree;
mod unwraps;
mod whitespace;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

use tree::Tree;

type Check = fn(&Tree) -> Vec<Finding>;

const CHECKS: &[Check] = &[
    manifests::check,
    imports::check,
    purity::check,
    independence::check,
    shape::check,
    leftovers::check,
    leaks::check,
    whitespace::check,
    links::check,
    unwraps::check,
    planted::check,
    names::check,
];

/// Something to mend: where, what, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
    remedy: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.message, self.remedy)
    }
}

/// Prints what there is to mend in the repository at `root`; an error if there is anything.
pub(crate) fn run(root: &Path) -> Result<()> {
    let findings = check(&Tree::read(root)?);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => bail!("tidy: 1 finding"),
        n => bail!("tidy: {n} findings"),
    }
}

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<_> = CHECKS.iter().flat_map(|check| check(tree)).collect();
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_as_place_message_and_remedy() {
        let finding = Finding::new("a/b.rs", 7, "tab", "use spaces");
        assert_eq!(finding.to_string(), "a/b.rs:7: tab; use spaces");
    }

    #[test]
    fn findings_come_sorted_and_once() {
        let tree = Tree::of(&[("b.md", "x \n"), ("a.md", "x \ny \n")]);
        let places: Vec<_> = check(&tree).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(places, [("a.md".into(), 1), ("a.md".into(), 2), ("b.md".into(), 1)]);
    }
}
