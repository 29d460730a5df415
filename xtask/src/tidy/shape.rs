//! The shape of Rust files: how long, how they open, what they are called.

use super::{Finding, Tree};

/// Past this a file has more than one subject.
const MAX_LINES: usize = 600;

/// Words that say nothing about what a file holds, or that this project has another word for.
const VAGUE: &[&str] = &[
    "common",
    "coordinator",
    "execution",
    "helper",
    "info",
    "manager",
    "metadata",
    "processor",
    "task",
    "util",
    "wiring",
    "workflow",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        if file.lines.len() > MAX_LINES && !file.path.split('/').any(|folder| folder == "tests") {
            findings.push(Finding::new(
                file.path,
                MAX_LINES + 1,
                format!("{} lines, more than {MAX_LINES}", file.lines.len()),
                "split it by verb or by noun",
            ));
        }
        let in_src = file.path.starts_with("src/") || file.path.contains("/src/");
        if in_src && !tree.text(file.path).is_some_and(|text| text.starts_with("//!")) {
            findings.push(Finding::new(
                file.path,
                1,
                "does not open with a `//!` comment",
                "say what it is for, what it guarantees and what it leaves to others",
            ));
        }
        if in_all_tests(tree, file.path) && !is_declared(tree, file.path) {
            findings.push(Finding::new(
                file.path,
                1,
                "is no module of any test binary, so nothing runs it",
                "declare it with `mod` in the file above it, such as `tests/all.rs`",
            ));
        }
        if let Some(word) = vague_word(file.path) {
            findings.push(Finding::new(
                file.path,
                1,
                format!("`{word}` in a file name says nothing about its content"),
                "name it by the noun or verb it holds",
            ));
        }
    }
    findings
}

/// Whether a file is below a `tests` folder whose files are modules of one binary.
fn in_all_tests(tree: &Tree, path: &str) -> bool {
    let folder = path.split_once("/tests/").map(|(krate, _)| format!("{krate}/tests/all.rs"));
    folder.is_some_and(|all| tree.has(&all) && all != path)
}

/// Whether the file above declares this one as a module.
fn is_declared(tree: &Tree, path: &str) -> bool {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let Some((folder, name)) = module.rsplit_once('/') else { return false };
    let above = [format!("{folder}/all.rs"), format!("{folder}/mod.rs"), format!("{folder}.rs")];
    let mut files = tree.rust().filter(|file| above.iter().any(|above| above == file.path));
    files.any(|file| file.lines.iter().any(|line| line.module_declared() == Some(name)))
}

/// The first word of the path that is vague or a version.
fn vague_word(path: &str) -> Option<&str> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.split('/').find_map(|part| {
        let mut words = part.split(['_', '-']);
        let first = words.next().filter(|word| is_vague(word));
        first.or_else(|| words.find(|word| is_vague(word) || is_version(word)))
    })
}

fn is_vague(word: &str) -> bool {
    VAGUE.contains(&word) || word.strip_suffix('s').is_some_and(|singular| VAGUE.contains(&singular))
}

/// `v2` after another word; a folder `v1` alone is a version of the API.
fn is_version(word: &str) -> bool {
    word.strip_prefix('v').is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_long_file_is_found_except_among_tests() {
        let long = format!("//! x\n{}", "fn f() {}\n".repeat(MAX_LINES));
        assert_eq!(messages("crates/a/src/a.rs", &long), ["601 lines, more than 600"]);
        assert_eq!(messages("crates/a/tests/a.rs", &long), [""; 0]);
        assert_eq!(messages("crates/a/src/a.rs", &long[..long.len() - 10]), [""; 0]);
    }

    #[test]
    fn every_source_file_opens_with_its_purpose() {
        for path in
            ["crates/a/src/lib.rs", "crates/a/src/main.rs", "xtask/src/main.rs", "crates/a/src/b/mod.rs"]
        {
            assert_eq!(messages(path, "fn main() {}\n").len(), 1, "{path}");
            assert_eq!(messages(path, "").len(), 1, "{path}");
            assert_eq!(messages(path, "//! Purpose.\n").len(), 0, "{path}");
        }
        assert_eq!(messages("crates/a/tests/b.rs", "fn f() {}\n"), [""; 0]);
    }

    #[test]
    fn a_test_file_that_nothing_declares_is_found() {
        let tree = Tree::of(&[
            ("crates/a/tests/all.rs", "mod b;\npub mod c;\n// mod e;\n"),
            ("crates/a/tests/b.rs", ""),
            ("crates/a/tests/c/mod.rs", "mod d;\n"),
            ("crates/a/tests/c/d.rs", ""),
            ("crates/a/tests/c/f.rs", ""),
            ("crates/a/tests/e.rs", ""),
            ("crates/b/tests/own.rs", ""),
        ]);
        let places: Vec<_> = check(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(places, ["crates/a/tests/c/f.rs", "crates/a/tests/e.rs"]);
    }

    #[test]
    fn vague_names_are_found() {
        for path in [
            "a/utils.rs",
            "a/helpers.rs",
            "a/common/mod.rs",
            "a/run_manager.rs",
            "a/engine_v2.rs",
            "a/task.rs",
        ] {
            assert_eq!(messages(path, "").len(), 1, "{path}");
        }
        for path in ["xtask/a.rs", "a/v1/runs.rs", "a/recover.rs", "a/tokens.rs"] {
            assert_eq!(messages(path, "").len(), 0, "{path}");
        }
    }
}
