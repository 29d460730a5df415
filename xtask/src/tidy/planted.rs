//! The planted bugs: each that is listed is planted somewhere, and each that is planted is listed.

use std::collections::BTreeSet;

use super::{Finding, Tree};
use crate::mutants::PATCH;

const LIST: &str = "crates/core/src/planted.rs";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (Some(list), Some(patch)) = (tree.text(LIST), tree.text(PATCH)) else { return Vec::new() };
    let planted: BTreeSet<&str> = patch
        .lines()
        .filter(|line| line.starts_with('+'))
        .flat_map(|line| line.split("Bug::").skip(1))
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next())
        .collect();
    let mut findings = Vec::new();
    let mut listed = BTreeSet::new();
    let names = list.lines().enumerate().skip_while(|(_, line)| *line != "bugs! {");
    for (at, line) in names.skip(1).take_while(|(_, line)| *line != "}") {
        let Some(name) = line.trim().strip_suffix(',').filter(|name| !name.starts_with("//")) else {
            continue;
        };
        listed.insert(name);
        if !planted.contains(name) {
            let remedy = format!("plant it with `cargo xtask mutants --plant`, which writes {PATCH}");
            findings.push(Finding::new(LIST, at + 1, format!("bug `{name}` is planted nowhere"), remedy));
        }
    }
    for name in planted.difference(&listed) {
        findings.push(Finding::new(
            PATCH,
            1,
            format!("bug `{name}` is not listed"),
            format!("list it in {LIST}"),
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_are_listed_and_planted() {
        let list = "//! x\nbugs! {\n    /// No fence.\n    NoFence,\n    // Machines.\n    /// Never planted.\n    Forgotten,\n}\n";
        let patch = " fn f() {\n+    if planted::is(Bug::NoFence) || planted::is(Bug::Unlisted) {}\n-    Bug::Gone\n }\n";
        let found = check(&Tree::of(&[(LIST, list), (PATCH, patch)]));
        let found: Vec<_> =
            found.iter().map(|one| (one.path.as_str(), one.line, one.message.as_str())).collect();
        assert_eq!(
            found,
            [(LIST, 7, "bug `Forgotten` is planted nowhere"), (PATCH, 1, "bug `Unlisted` is not listed")]
        );
    }
}
