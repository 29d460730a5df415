//! Whitespace: no trailing blanks, no CRLF, no tabs in Rust, a newline at the end.

use super::{Finding, Tree};

/// Files kept byte for byte: made by a tool, or the expected output of a test.
const VERBATIM_EXTENSIONS: &[&str] = &["golden", "lock", "patch", "snap", "stderr", "stdout", "trycmd"];
const VERBATIM_FOLDERS: &[&str] = &["dist", "fixtures"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| !is_verbatim(path)) {
        if text.contains("\r\n") {
            let line = text.split('\n').position(|line| line.ends_with('\r')).map_or(1, |at| at + 1);
            findings.push(Finding::new(path, line, "lines end with CRLF", "save the file with LF"));
        }
        for (at, line) in text.lines().enumerate() {
            if line.ends_with([' ', '\t']) {
                findings.push(Finding::new(path, at + 1, "blanks at the end of the line", "remove them"));
            }
            if path.ends_with(".rs") && line.contains('\t') {
                findings.push(Finding::new(path, at + 1, "a tab", "indent with spaces; write `\\t` in text"));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            let last = text.lines().count();
            findings.push(Finding::new(path, last, "no newline at the end of the file", "add one"));
        }
    }
    findings
}

fn is_verbatim(path: &str) -> bool {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    VERBATIM_EXTENSIONS.contains(&extension) || path.split('/').any(|part| VERBATIM_FOLDERS.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|f| (f.line, f.message)).collect()
    }

    #[test]
    fn each_kind_is_found_where_it_is() {
        assert_eq!(found("a.md", "x\ny \n"), [(2, "blanks at the end of the line".to_owned())]);
        assert_eq!(found("a.md", "x\ny\r\n"), [(2, "lines end with CRLF".to_owned())]);
        assert_eq!(found("a.md", "x\ny"), [(2, "no newline at the end of the file".to_owned())]);
        assert_eq!(found("a.rs", "x\n\ty\n"), [(2, "a tab".to_owned())]);
    }

    #[test]
    fn verbatim_and_empty_files_are_left_alone() {
        assert_eq!(found("a.snap", "x \n"), []);
        assert_eq!(found("crates/a/tests/fixtures/a.yaml", "x \r\n"), []);
        assert_eq!(found("a.rs", ""), []);
        assert_eq!(found("Makefile", "\tx\n"), []);
    }
}
