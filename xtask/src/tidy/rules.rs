//! Who may depend on whom: the table of ARCHITECTURE.md in a form that can fail.
//!
//! Change it only together with that page.

/// What one crate of this workspace may build on.
#[derive(Debug)]
pub(super) struct Crate {
    /// Its folder in the repository.
    pub(super) folder: &'static str,
    /// Its package name.
    pub(super) name: &'static str,
    /// The packages of this workspace that it may use, in tests too.
    pub(super) may_use: &'static [&'static str],
}

pub(super) const CRATES: &[Crate] = &[
    Crate { folder: "crates/types", name: TYPES, may_use: &[] },
    Crate { folder: "crates/core", name: CORE, may_use: &[TYPES] },
    Crate { folder: "crates/api", name: API, may_use: &[TYPES] },
    Crate { folder: "crates/store", name: "flowline-store", may_use: &[CORE] },
    Crate { folder: "crates/sqlite", name: "flowline-sqlite", may_use: &[CORE, "flowline-store"] },
    Crate { folder: "crates/postgres", name: "flowline-postgres", may_use: &[CORE, "flowline-store"] },
    Crate { folder: "crates/redis", name: "flowline-redis", may_use: &[CORE, "flowline-store"] },
    Crate { folder: "crates/check", name: "flowline-check", may_use: &[CORE, "flowline-store"] },
    Crate {
        folder: "crates/flowline",
        name: "flowline",
        may_use: &[API, "flowline-check", CORE, "flowline-store", "flowline-sqlite"],
    },
    Crate {
        folder: "crates/sim",
        name: "flowline-sim",
        may_use: &["flowline", "flowline-check", CORE, "flowline-store"],
    },
    Crate { folder: "crates/client", name: "flowline-client", may_use: &[API, TYPES] },
    Crate {
        folder: "crates/server",
        name: "flowline-server",
        may_use: &["flowline", API, "flowline-client", CORE, "flowline-store", "flowline-ui"],
    },
    Crate { folder: "crates/ui", name: "flowline-ui", may_use: &[] },
    Crate {
        folder: "crates/cli",
        name: "flowline-cli",
        may_use: &[
            "flowline",
            API,
            "flowline-check",
            "flowline-client",
            CORE,
            "flowline-postgres",
            "flowline-redis",
            "flowline-server",
            "flowline-sim",
            "flowline-sqlite",
            "flowline-store",
        ],
    },
    // Builds before everything else and must stay quick to build.
    Crate { folder: "xtask", name: "xtask", may_use: &[] },
];

pub(super) const TYPES: &str = "flowline-types";
pub(super) const API: &str = "flowline-api";
pub(super) const CORE: &str = "flowline-core";

/// The crates that are pure.
pub(super) const PURE: &[&str] = &[TYPES, CORE];

/// The outside crates that these may use. None of them does I/O, reads a clock or draws random numbers with the
/// features listed in [`CORE_FEATURES`].
pub(super) const CORE_MAY_USE: &[&str] = &[
    "annotate-snippets",
    "cel",
    "granit-parser",
    "jiff",
    "jsonschema",
    "petgraph",
    "schemars",
    "serde",
    "serde_json",
    "sha2",
    "thiserror",
    "toml",
];

/// What their tests may use on top.
pub(super) const CORE_TESTS_MAY_USE: &[&str] = &["insta", "proptest"];

/// Crates that are pure only without their default features, and the features that keep them so.
pub(super) const CORE_FEATURES: &[(&str, &[&str])] =
    &[("cel", &["json"]), ("jiff", &["alloc", "serde"]), ("jsonschema", &[])];

/// The rule for the crate that holds the file at `path`.
pub(super) fn of_file(path: &str) -> Option<&'static Crate> {
    CRATES.iter().find(|krate| path.strip_prefix(krate.folder).is_some_and(|rest| rest.starts_with('/')))
}

/// Whether the file at `path` is code of a crate that is pure.
pub(super) fn is_pure(path: &str) -> bool {
    of_file(path)
        .is_some_and(|krate| PURE.contains(&krate.name) && path[krate.folder.len()..].starts_with("/src/"))
}

/// The name a package has in Rust code.
pub(super) fn in_code(package: &str) -> String {
    package.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_for_a_crate_that_is_there() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for Crate { folder, name, may_use } in CRATES {
            let manifest = root.join(folder).join("Cargo.toml");
            let text = std::fs::read_to_string(&manifest);
            assert!(text.is_ok_and(|text| text.contains(&format!("name = \"{name}\""))), "{folder}");
            let known = |used: &&str| CRATES.iter().any(|krate| krate.name == *used);
            assert!(may_use.iter().all(known), "{folder} may use {may_use:?}");
        }
    }
}
