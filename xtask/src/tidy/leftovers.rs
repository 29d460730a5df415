//! Work left half done: placeholders, debugging, tests switched off.

use super::rust::has_word;
use super::{Finding, Tree};

/// Macros that must not be committed.
const MACROS: &[(&str, &str)] = &[
    ("todo!", "write it, or leave the whole path out"),
    ("unimplemented!", "write it, or return an error that says what is not supported"),
    ("dbg!", "remove it, or use `tracing`"),
];

/// Marks that promise a later change.
const MARKS: &[&str] = &["FIXME", "XXX"];

/// Source text besides Rust. Prose may speak of the marks.
const SOURCES: &[&str] =
    &["css", "html", "js", "lua", "mjs", "py", "sh", "sql", "svelte", "toml", "ts", "yaml", "yml"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (at, line) in file.lines.iter().enumerate() {
            for (name, remedy) in MACROS.iter().filter(|(name, _)| calls(&line.code, name)) {
                findings.push(Finding::new(file.path, at + 1, format!("`{name}` left in the code"), *remedy));
            }
            if line.code.contains("#[ignore") {
                let remedy = "mend it or delete it; what needs a server skips itself with a reason";
                findings.push(Finding::new(file.path, at + 1, "a test that never runs", remedy));
            }
            let mark = MARKS.iter().find(|mark| has_word(&line.comment, mark) || has_word(&line.code, mark));
            findings.extend(mark.map(|mark| left(file.path, at + 1, mark)));
        }
    }
    for (path, text) in tree.texts().filter(|(path, _)| is_source(path)) {
        for (at, line) in text.lines().enumerate() {
            findings
                .extend(MARKS.iter().find(|mark| has_word(line, mark)).map(|mark| left(path, at + 1, mark)));
        }
    }
    findings
}

fn left(path: &str, line: usize, mark: &str) -> Finding {
    Finding::new(
        path,
        line,
        format!("`{mark}` left behind"),
        "do it now, or open an issue and say here what holds today",
    )
}

fn calls(code: &str, name: &str) -> bool {
    // The `!` is no part of a name, so the edge of the word is only before it.
    code.match_indices(name).any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn is_source(path: &str) -> bool {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    SOURCES.contains(&extension) && !path.split('/').any(|folder| folder == "dist")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn placeholders_and_switched_off_tests_are_found() {
        let lines = [
            "todo!()",
            "unimplemented!(\"x\")",
            "std::dbg!(x)",
            "#[ignore]",
            "#[ignore = \"slow\"]",
            "// FIXME: x",
            "/* XXX */",
        ];
        for line in lines {
            assert_eq!(count("a.rs", &format!("{line}\n")), 1, "{line}");
        }
        assert_eq!(count("a.py", "# FIXME later\n"), 1);
    }

    #[test]
    fn what_only_looks_like_one_is_not() {
        for line in
            ["let s = \"todo!(\";", "my_todo!();", "// a todo! in prose", "mktemp(XXXXXX)", "fn ignore() {}"]
        {
            assert_eq!(count("a.rs", &format!("{line}\n")), 0, "{line}");
        }
        assert_eq!(count("a.md", "No FIXME, please.\n"), 0);
        assert_eq!(count("site/dist/a.js", "XXX\n"), 0);
    }
}
