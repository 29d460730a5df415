//! `unwrap()` and `expect(` outside tests: each carries the reason why it cannot fail.
//!
//! The reason is a comment `// unwrap: …` on the same line or in the comment right above. The conformance suite is made
//! of tests, though it lives in a crate's source for adapters to call.

use super::rust::SourceLine;
use super::{Finding, Tree};

const CALLS: &[&str] = &[".unwrap()", ".expect("];
const REASON: &str = "unwrap:";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sources = tree.rust().filter(|file| !file.test && in_crate_src(file.path));
    for file in sources {
        for (at, line) in file.lines.iter().enumerate().filter(|(_, line)| !line.test) {
            let call = CALLS.iter().find(|call| line.code.contains(**call));
            if let Some(call) = call.filter(|_| !has_reason(file.lines, at)) {
                findings.push(Finding::new(
                    file.path,
                    at + 1,
                    format!("`{call}` without a reason", call = call.trim_end_matches('(')),
                    "return an error, or say in `// unwrap: …` why it cannot fail",
                ));
            }
        }
    }
    findings
}

fn in_crate_src(path: &str) -> bool {
    path.starts_with("crates/")
        && path.split('/').nth(2) == Some("src")
        && !path.contains("/src/conformance/")
}

fn has_reason(lines: &[SourceLine], at: usize) -> bool {
    let gives =
        |line: &SourceLine| line.comment.split_once(REASON).is_some_and(|(_, why)| !why.trim().is_empty());
    let above =
        lines[..at].iter().rev().take_while(|line| line.code.trim().is_empty() && !line.comment.is_empty());
    gives(&lines[at]) || above.into_iter().any(gives)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_bare_unwrap_is_found() {
        let text = "fn f() {\n    a.unwrap();\n    b.expect(\"b\");\n    c.unwrap_or(1);\n}\n";
        assert_eq!(lines("crates/a/src/b/c.rs", text), [2, 3]);
    }

    #[test]
    fn a_reason_beside_or_above_excuses_it() {
        let text = "fn f() {\n    a.unwrap(); // unwrap: checked above\n    // unwrap: the list is\n    // never empty\n    b.unwrap();\n    c.unwrap(); // unwrap:\n}\n";
        assert_eq!(lines("crates/a/src/a.rs", text), [6]);
    }

    #[test]
    fn tests_comments_and_other_folders_are_free() {
        let text = "/// `x.unwrap()`\nfn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() { a.unwrap(); }\n}\n";
        assert_eq!(lines("crates/a/src/a.rs", text), [0; 0]);
        for path in ["crates/a/src/b/tests.rs", "crates/a/tests/b.rs", "xtask/src/a.rs", "crates/a/build.rs"]
        {
            assert_eq!(lines(path, "fn f() { a.unwrap(); }\n"), [0; 0], "{path}");
        }
    }
}
