//! Crates as the source text names them, held against [`rules`].
//!
//! The compiler already refuses a crate that no manifest declares. This check refuses the code before anyone is
//! tempted to declare it, and sees paths that a rename in a manifest would hide.

use std::collections::BTreeSet;

use super::rules::{self, CORE_MAY_USE, CRATES, Crate};
use super::rust::{self, Use, word_positions};
use super::tree::Rust;
use super::{Finding, Tree};

/// Roots of paths that are no crate, or no crate to speak of.
const LANGUAGE: &[&str] = &[
    "std", "core", "alloc", "crate", "self", "super", "Self", "clippy", "rustfmt", "rustdoc", "bool", "char",
    "str", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128",
    "usize",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        if let Some(krate) = rules::of_file(file.path) {
            inner_crates(file, krate, &mut findings);
            if !file.test && rules::is_pure(file.path) {
                outer_crates(file, krate, &mut findings);
            }
        }
    }
    findings
}

/// Crates of this workspace that the table does not allow, in tests too.
fn inner_crates(file: Rust<'_>, krate: &Crate, findings: &mut Vec<Finding>) {
    let barred =
        CRATES.iter().filter(|other| other.name != krate.name && !krate.may_use.contains(&other.name));
    let barred: Vec<_> = barred.map(|other| (other.name, rules::in_code(other.name))).collect();
    let uses = rust::uses(file.lines);
    for (package, name) in &barred {
        let in_use = uses.iter().filter(|u| root(&u.path) == name).map(|u| u.line);
        let in_paths = file.lines.iter().enumerate();
        let in_paths =
            in_paths.filter(|(_, line)| paths(&line.code).any(|root| root == name)).map(|(at, _)| at + 1);
        for line in in_use.chain(in_paths).collect::<BTreeSet<_>>() {
            findings.push(Finding::new(
                file.path,
                line,
                format!("`{}` may not use `{package}`", krate.name),
                "move the code to a crate that may, or change ARCHITECTURE.md and xtask/src/tidy/rules.rs first",
            ));
        }
    }
}

/// Crates that pure code names without leave.
fn outer_crates(file: Rust<'_>, krate: &Crate, findings: &mut Vec<Finding>) {
    let uses: Vec<Use> = rust::uses(file.lines).into_iter().filter(|u| !u.test).collect();
    let allowed: BTreeSet<String> =
        CORE_MAY_USE.iter().chain(krate.may_use).map(|package| rules::in_code(package)).collect();
    let modules = file.lines.iter().filter_map(|line| module_named(&line.code));
    let in_scope: BTreeSet<&str> = uses.iter().map(|u| u.name.as_str()).chain(modules).collect();
    let known = |name: &str| {
        LANGUAGE.contains(&name) || allowed.contains(name) || in_scope.contains(name) || is_type(name)
    };
    let mut lines = BTreeSet::new();
    for u in &uses {
        // The name that a `use` brings in must not vouch for its own root.
        let name = root(&u.path);
        let vouched = uses.iter().any(|other| other.name == name && root(&other.path) != name);
        let module = file.lines.iter().any(|line| module_named(&line.code) == Some(name));
        if !(LANGUAGE.contains(&name) || allowed.contains(name) || vouched || module || is_type(name)) {
            lines.insert((u.line, name.to_owned()));
        }
    }
    // A glob brings in names that the text does not show.
    if !uses.iter().any(|u| u.name == "*") {
        for (at, line) in file.lines.iter().enumerate().filter(|(_, line)| !line.test) {
            lines.extend(paths(&line.code).filter(|root| !known(root)).map(|root| (at + 1, root.to_owned())));
        }
    }
    for (line, name) in lines {
        findings.push(Finding::new(
            file.path,
            line,
            format!("`{}` may not use crate `{name}`: it is pure", krate.name),
            "hand in what it gives as an argument, or add it to CORE_MAY_USE in xtask/src/tidy/rules.rs",
        ));
    }
}

fn root(path: &str) -> &str {
    path.split("::").next().unwrap_or_default().trim()
}

/// Types, variants and generic parameters begin with a capital; crates do not.
fn is_type(name: &str) -> bool {
    name.starts_with(|c: char| c.is_uppercase())
}

/// The first names of the paths in a line of code: `a` of `a::b::c`.
fn paths(code: &str) -> impl Iterator<Item = &str> {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("::").filter_map(move |(at, _)| {
        let before = &code[..at];
        let start = before.rfind(|c| !part_of_name(c)).map_or(0, |last| last + 1);
        let (before, name) = before.split_at(start);
        // `x::name::`, `.name::<T>`, `$crate::` and `r#name::` continue something or come from elsewhere.
        let begins = !before.trim_end().ends_with("::") && !before.ends_with(['.', '$', '#', '\'']);
        (begins && name.starts_with(|c: char| c.is_alphabetic() || c == '_')).then_some(name)
    })
}

fn module_named(code: &str) -> Option<&str> {
    let at = word_positions(code, "mod").next()?;
    Some(code[at + "mod".len()..].trim().trim_end_matches([';', '{', '}', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn core_may_not_name_its_users() {
        let text = "//! x\nuse flowline_store::Store;\nfn f() { flowline_sqlite::open(); }\n";
        let findings = check(&Tree::of(&[("crates/core/src/run.rs", text)]));
        assert_eq!(findings.iter().map(|f| f.line).collect::<BTreeSet<_>>(), [2, 3].into());
        assert!(findings.iter().any(|f| f.message == "`flowline-core` may not use `flowline-sqlite`"));
    }

    #[test]
    fn tests_of_a_crate_follow_the_table_too() {
        assert_eq!(lines("crates/store/tests/all.rs", "use {flowline_sqlite::Sqlite, std::fs};\n"), [1]);
        assert_eq!(
            lines("crates/sqlite/tests/all.rs", "use flowline_store::suite;\nuse flowline_sqlite::Sqlite;\n"),
            [0; 0]
        );
        assert_eq!(
            lines("crates/client/src/lib.rs", "#[cfg(test)]\nmod tests {\n    use flowline::Engine;\n}\n"),
            [3]
        );
    }

    #[test]
    fn text_and_comments_name_what_they_like() {
        assert_eq!(
            lines("crates/core/src/a.rs", "//! `flowline_store::Store`\nconst A: &str = \"tokio::spawn\";\n"),
            [0; 0]
        );
    }

    #[test]
    fn core_may_not_name_a_crate_off_its_list() {
        let text = "use serde::Serialize;\nuse uuid::Uuid;\nuse rand;\nfn f() { reqwest::get(1); }\n";
        assert_eq!(lines("crates/core/src/a.rs", text), [2, 3, 4]);
    }

    #[test]
    fn core_may_name_its_own_modules_types_and_the_language() {
        let text = "mod parse;\nuse std::fmt;\nuse parse::Parsed;\nuse crate::json;\n\
            fn f() { fmt::Error; json::read(); u64::MAX; Parsed::new(); serde_json::Value::Null; parse::go(); x.collect::<Vec<_>>(); $crate::x(); }\n\
            #[allow(clippy::all)]\n#[cfg(test)]\nmod tests {\n    use proptest::prelude::*;\n}\n";
        assert_eq!(lines("crates/core/src/a.rs", text), [0; 0]);
    }
}
