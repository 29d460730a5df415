//! Traces of one machine or of a few people: absolute paths of a developer's disk, package hosts other than the public ones,
//! and numbered specs that readers don't have.

use super::{Finding, Tree};

/// First folders of paths that exist on somebody's machine only.
const PRIVATE_FOLDERS: &[&str] = &["work", "root", "home"];

/// What introduces a package host in lock files and settings, and the public hosts that may follow.
const HOSTS: &[(&str, &[&str])] = &[
    ("registry+", &["https://github.com/rust-lang/crates.io-index"]),
    ("sparse+", &["https://index.crates.io/"]),
    ("\"resolved\": \"", &["https://registry.npmjs.org/"]),
    ("resolved \"", &["https://registry.npmjs.org/", "https://registry.yarnpkg.com/"]),
    ("registry=", &["https://registry.npmjs.org/"]),
    ("index-url", &[]),
    ("replace-with", &[]),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for (at, line) in text.lines().enumerate() {
            if let Some(folder) = private_folder(line) {
                findings.push(Finding::new(
                    path,
                    at + 1,
                    format!("a path under `/{folder}` exists on one machine only"),
                    "use a path relative to the repository, or a made-up one such as `/srv/…`",
                ));
            }
            if names_spec(line) {
                findings.push(Finding::new(
                    path,
                    at + 1,
                    "refers to a numbered spec, which readers don't have",
                    "say what it says, or link to the page that does",
                ));
            }
            if may_name_hosts(path) && names_other_host(line) {
                findings.push(Finding::new(
                    path,
                    at + 1,
                    "names a package host that others may not reach",
                    "resolve against the public registry and commit that",
                ));
            }
        }
    }
    findings
}

/// The private folder that an absolute path in `line` begins with.
fn private_folder(line: &str) -> Option<&'static str> {
    PRIVATE_FOLDERS.iter().copied().find(|folder| {
        line.match_indices(folder).any(|(at, _)| {
            let Some(before) = line[..at].strip_suffix('/') else { return false };
            begins_path(before) && ends_component(&line[at + folder.len()..])
        })
    })
}

/// Whether `line` names a spec by its number, with the word before it.
fn names_spec(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    line.match_indices("spec ").any(|(at, word)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(char::is_alphanumeric) && after.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// Whether a slash after `before` is the first of a path: nothing that could be a path or a host stands before.
fn begins_path(before: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "._-~*/)]}>%@".contains(c);
    before.ends_with("file://") || !before.ends_with(continues)
}

/// Whether the name of a folder ends here, as in `/x/`, `/x"` or `/x.` but not `/xy`, `/x-y` or `/x.png`.
fn ends_component(after: &str) -> bool {
    let mut after = after.chars();
    match after.next() {
        None => true,
        Some('.') => !after.next().is_some_and(char::is_alphanumeric),
        Some(c) => !(c.is_alphanumeric() || c == '_' || c == '-'),
    }
}

/// Lock files and settings of package tools; prose and code may speak of them.
fn may_name_hosts(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    matches!(
        extension,
        "lock" | "toml" | "json" | "yaml" | "yml" | "npmrc" | "conf" | "cfg" | "txt" | "sh" | "ini"
    ) || !name.contains('.')
}

fn names_other_host(line: &str) -> bool {
    HOSTS.iter().any(|(sign, public)| {
        line.split_once(sign).is_some_and(|(_, host)| !public.iter().any(|public| host.starts_with(public)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    /// Keeps the very paths that are looked for out of this file.
    fn with_folder(template: &str) -> String {
        template.replace("DIR", "root")
    }

    #[test]
    fn numbered_specs_are_found() {
        for text in ["see SPEC # §2", "(spec #)", "the Spec #."] {
            assert_eq!(count("docs/a.md", &text.replace('#', "004")), 1, "{text}");
        }
        for text in ["the OpenAPI spec says", "a spec of 3 pages", "aspec 4", "RFC 7807"] {
            assert_eq!(count("docs/a.md", text), 0, "{text}");
        }
    }

    #[test]
    fn private_paths_are_found() {
        for text in
            ["see /DIR/flowline/a.rs", "`/DIR`", "dir=/DIR/x", "file:///DIR/x", "in /DIR.", "-v $PWD:/DIR"]
        {
            assert_eq!(count("a.md", &with_folder(text)), 1, "{text}");
        }
    }

    #[test]
    fn paths_that_only_look_private_are_fine() {
        for text in [
            "https://example.org/DIR/x",
            "src/DIR/x",
            "./DIR/x",
            "/DIRs",
            "/DIR.png",
            "{base}/DIR",
            "and / DIR",
        ] {
            assert_eq!(count("a.md", &with_folder(text)), 0, "{text}");
        }
    }

    #[test]
    fn only_public_package_hosts_are_fine() {
        let npm = |host: &str| format!("  \"resolved\": \"https://{host}/a/-/a-1.tgz\",\n");
        assert_eq!(count("clients/package-lock.json", &npm("registry.npmjs.org")), 0);
        assert_eq!(count("clients/package-lock.json", &npm("packages.example")), 1);
        let cargo = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
        assert_eq!(count("Cargo.lock", cargo), 0);
        assert_eq!(count("Cargo.lock", &cargo.replace("github.com", "mirror.example")), 1);
        assert_eq!(count(".cargo/config.toml", "[source.crates-io]\nreplace-with = \"mirror\"\n"), 1);
        assert_eq!(count("requirements.txt", "--index-url https://mirror.example/simple\n"), 1);
    }
}
