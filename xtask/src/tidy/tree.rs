//! The files that tidy looks at: what git tracks, and what it would track.
//!
//! Read once and kept in memory, so that the checks are plain functions and their tests need no disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::rust::{self, SourceLine};

#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, File>,
    /// Rust modules declared under `#[cfg(test)]` in another file: a path without `.rs`.
    test_modules: BTreeSet<String>,
}

#[derive(Debug)]
struct File {
    /// Nothing for what is not UTF-8 text.
    text: Option<String>,
    /// Nothing for what is not Rust.
    rust: Vec<SourceLine>,
}

/// A Rust file with its text taken apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rust<'a> {
    pub(super) path: &'a str,
    pub(super) lines: &'a [SourceLine],
    /// The whole file is test code.
    pub(super) test: bool,
}

impl Tree {
    /// The tracked and not ignored files under `root`, which must be in a git work tree.
    pub(super) fn read(root: &Path) -> Result<Tree> {
        let list = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .context("cannot run git; tidy asks it which files belong to the repository")?;
        if !list.status.success() {
            bail!("git ls-files failed: {}", String::from_utf8_lossy(&list.stderr).trim());
        }
        let mut tree = Tree::default();
        for name in list.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = std::str::from_utf8(name).context("a file name is not UTF-8; rename it")?;
            let path = root.join(name);
            match path.symlink_metadata() {
                // Deleted but still in the index, or a nested repository: nothing to read.
                Err(_) => continue,
                Ok(kind) if kind.is_dir() => continue,
                Ok(kind) if kind.is_symlink() => tree.add(name, None),
                Ok(_) => {
                    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {name}"))?;
                    tree.add(name, String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')));
                }
            }
        }
        tree.find_test_modules();
        Ok(tree)
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.add(path, Some((*text).to_owned()));
        }
        tree.find_test_modules();
        tree
    }

    #[cfg(test)]
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Every text file.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, file)| Some((path.as_str(), file.text.as_deref()?)))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.text.as_deref()
    }

    /// A file of that path, or a folder that holds one.
    pub(super) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.files.contains_key(path)
            || self.files.range(folder.clone()..).next().is_some_and(|(next, _)| next.starts_with(&folder))
    }

    /// Every Rust file.
    pub(super) fn rust(&self) -> impl Iterator<Item = Rust<'_>> {
        let rust = self.files.iter().filter(|(path, file)| path.ends_with(".rs") && file.text.is_some());
        rust.map(|(path, file)| Rust { path, lines: &file.rust, test: self.is_test(path) })
    }

    fn add(&mut self, path: &str, text: Option<String>) {
        let rust = match &text {
            Some(text) if path.ends_with(".rs") => rust::read(text),
            _ => Vec::new(),
        };
        self.files.insert(path.to_owned(), File { text, rust });
    }

    fn is_test(&self, path: &str) -> bool {
        let module = path.strip_suffix(".rs").unwrap_or(path);
        let in_test_module =
            module.match_indices('/').any(|(end, _)| self.test_modules.contains(&module[..end]));
        in_test_module
            || self.test_modules.contains(module)
            || path.ends_with("/tests.rs")
            || path.split('/').any(|folder| folder == "tests" || folder == "benches")
    }

    fn find_test_modules(&mut self) {
        for (path, file) in &self.files {
            let folder = match path.rsplit_once('/') {
                Some((folder, "mod.rs" | "lib.rs" | "main.rs")) => folder,
                _ => path.trim_end_matches(".rs"),
            };
            for line in file.rust.iter().filter(|line| line.test) {
                if let Some(name) = line.module_declared() {
                    self.test_modules.insert(format!("{folder}/{name}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_new_files_but_neither_ignored_nor_deleted_ones() {
        let root = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            assert!(Command::new("git").current_dir(root.path()).args(args).status().unwrap().success());
        };
        git(&["init", "--quiet"]);
        for (name, text) in [(".gitignore", "out\n"), ("out", "x"), ("gone", "x"), ("new.md", "# New\n")] {
            std::fs::write(root.path().join(name), text).unwrap();
        }
        std::fs::write(root.path().join("picture"), [0xff, 0x00]).unwrap();
        git(&["add", "gone"]);
        std::fs::remove_file(root.path().join("gone")).unwrap();

        let tree = Tree::read(root.path()).unwrap();
        assert_eq!(tree.paths().collect::<Vec<_>>(), [".gitignore", "new.md", "picture"]);
        assert_eq!(tree.text("new.md"), Some("# New\n"));
        assert_eq!(tree.text("picture"), None);
    }

    #[test]
    fn folders_exist_by_their_files() {
        let tree = Tree::of(&[("docs/guide/one.md", ""), ("docs-old", "")]);
        assert!(tree.has("docs") && tree.has("docs/guide") && tree.has("docs/guide/one.md"));
        assert!(!tree.has("doc") && !tree.has("docs/guide/one"));
    }

    #[test]
    fn a_module_declared_for_tests_is_test_code() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod fixtures;\nmod real;\n"),
            ("crates/a/src/fixtures.rs", "fn f() {}\n"),
            ("crates/a/src/fixtures/deep.rs", "fn f() {}\n"),
            ("crates/a/src/real.rs", "fn f() {}\n"),
            ("crates/a/tests/whole.rs", "fn f() {}\n"),
        ]);
        let test: Vec<_> = tree.rust().filter(|file| file.test).map(|file| file.path).collect();
        assert_eq!(
            test,
            ["crates/a/src/fixtures.rs", "crates/a/src/fixtures/deep.rs", "crates/a/tests/whole.rs"]
        );
    }
}
