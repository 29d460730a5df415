//! Dependencies as the manifests declare them, held against [`super::rules`].
//!
//! Reads the manifests' text, not cargo's resolution: what a dependency pulls in is the business of `cargo deny`.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::rules::{CORE_FEATURES, CORE_MAY_USE, CORE_TESTS_MAY_USE, CRATES, Crate, PURE};
use super::{Finding, Tree};

const ROOT: &str = "Cargo.toml";
const RULES: &str = "xtask/src/tidy/rules.rs";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let shared = match tree.text(ROOT).map(str::parse::<Table>) {
        Some(Ok(table)) => shared_dependencies(&table),
        Some(Err(error)) => return vec![unreadable(ROOT, &error)],
        None => BTreeMap::new(),
    };
    for (path, text) in tree.texts() {
        let Some(folder) = path.strip_suffix("/Cargo.toml") else { continue };
        if !folder.starts_with("crates/") && folder != "xtask" {
            continue;
        }
        let table = match text.parse::<Table>() {
            Ok(table) => table,
            Err(error) => {
                findings.push(unreadable(path, &error));
                continue;
            }
        };
        match CRATES.iter().find(|krate| krate.folder == folder) {
            Some(krate) => {
                let manifest = Manifest { path, text, krate, shared: &shared };
                manifest.check(&table, &mut findings);
            }
            None => findings.push(Finding::new(
                path,
                1,
                format!("crate `{folder}` has no rule for what it may depend on"),
                format!("add it to {RULES} and to ARCHITECTURE.md, or make it a module of an existing crate"),
            )),
        }
    }
    if let Some(text) = tree.text(ROOT) {
        for (name, shared) in &shared {
            findings.extend(features_findings(ROOT, text, name, shared, true));
        }
    }
    findings
}

/// A dependency as one table declares it.
#[derive(Debug, Clone)]
struct Dependency {
    package: String,
    default_features: Option<bool>,
    features: Vec<String>,
    inherited: bool,
}

impl Dependency {
    fn new(name: &str, value: &Value) -> Dependency {
        let flag = |key: &str| value.get(key).and_then(Value::as_bool);
        let features = value.get("features").and_then(Value::as_array).into_iter().flatten();
        Dependency {
            package: value.get("package").and_then(Value::as_str).unwrap_or(name).to_owned(),
            default_features: flag("default-features"),
            features: features.filter_map(|feature| Some(feature.as_str()?.to_owned())).collect(),
            inherited: flag("workspace") == Some(true),
        }
    }
}

#[derive(Debug)]
struct Manifest<'a> {
    path: &'a str,
    text: &'a str,
    krate: &'static Crate,
    shared: &'a BTreeMap<String, Dependency>,
}

impl Manifest<'_> {
    fn check(&self, table: &Table, findings: &mut Vec<Finding>) {
        let name = table.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
        if name.is_some_and(|name| name != self.krate.name) {
            findings.push(Finding::new(
                self.path,
                line_of(self.text, "name"),
                format!("package `{}` is not called `{}`", name.unwrap_or_default(), self.krate.name),
                format!("rename it, or change {RULES}"),
            ));
        }
        let targets = table.get("target").and_then(Value::as_table).into_iter().flatten();
        let per_target = targets.filter_map(|(_, target)| target.as_table());
        for tables in std::iter::once(table).chain(per_target) {
            for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
                let entries = tables.get(section).and_then(Value::as_table).into_iter().flatten();
                for (name, value) in entries {
                    self.check_entry(section, name, value, findings);
                }
            }
        }
    }

    fn check_entry(&self, section: &str, name: &str, value: &Value, findings: &mut Vec<Finding>) {
        let mut entry = Dependency::new(name, value);
        if entry.inherited
            && let Some(shared) = self.shared.get(name)
        {
            entry.package.clone_from(&shared.package);
        }
        let line = line_of(self.text, name);
        let (user, package) = (self.krate.name, &entry.package);
        if CRATES.iter().any(|krate| krate.name == package) || package.starts_with("flowline-") {
            // A crate may ask for its own features in its tests.
            let itself = section == "dev-dependencies" && package == user;
            if !itself && !self.krate.may_use.contains(&package.as_str()) {
                let allowed = match self.krate.may_use {
                    [] => "no crate of this workspace".to_owned(),
                    names => format!("only {}", names.join(", ")),
                };
                findings.push(Finding::new(
                    self.path,
                    line,
                    format!("`{user}` may not depend on `{package}`"),
                    format!(
                        "it may use {allowed}: move the code, or change ARCHITECTURE.md and {RULES} first"
                    ),
                ));
            }
        } else if PURE.contains(&user) {
            let in_tests = section == "dev-dependencies" && CORE_TESTS_MAY_USE.contains(&package.as_str());
            if section == "build-dependencies" || !(in_tests || CORE_MAY_USE.contains(&package.as_str())) {
                findings.push(Finding::new(
                    self.path,
                    line,
                    format!("`{user}` may not have `{package}` in [{section}]: it is pure"),
                    format!("hand in what it gives as an argument, or show that it does no I/O and add it to {RULES}"),
                ));
            }
            findings.extend(features_findings(self.path, self.text, name, &entry, !entry.inherited));
        }
    }
}

/// What is wrong with the features of a dependency that must stay pure. `whole` says that this declaration
/// decides on the default features, rather than adding to one that does.
fn features_findings(path: &str, text: &str, name: &str, entry: &Dependency, whole: bool) -> Vec<Finding> {
    let Some((_, allowed)) = CORE_FEATURES.iter().find(|(package, _)| *package == entry.package) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    if entry.default_features == Some(true) || (whole && entry.default_features.is_none()) {
        findings.push(Finding::new(
            path,
            line_of(text, name),
            format!("`{}` comes with its default features, which reach beyond pure code", entry.package),
            "set `default-features = false`",
        ));
    }
    for feature in entry.features.iter().filter(|feature| !allowed.contains(&feature.as_str())) {
        findings.push(Finding::new(
            path,
            line_of(text, name),
            format!("feature `{feature}` of `{}` is not known to be pure", entry.package),
            format!("ask for it in the crate that needs it, or add it to CORE_FEATURES in {RULES}"),
        ));
    }
    findings
}

fn shared_dependencies(root: &Table) -> BTreeMap<String, Dependency> {
    let shared = root.get("workspace").and_then(|workspace| workspace.get("dependencies"));
    let entries = shared.and_then(Value::as_table).into_iter().flatten();
    entries.map(|(name, value)| (name.clone(), Dependency::new(name, value))).collect()
}

fn unreadable(path: &str, error: &toml::de::Error) -> Finding {
    Finding::new(path, 1, format!("not valid TOML: {}", error.message()), "mend the manifest")
}

/// The first line that declares `name`: `name = …`, `name.workspace = …` or `[dependencies.name]`.
fn line_of(text: &str, name: &str) -> usize {
    let declares = |line: &str| {
        let section = line.strip_prefix('[').and_then(|section| section.strip_suffix(']'));
        section.is_some_and(|section| section.ends_with(&format!("dependencies.{name}")))
            || line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(['=', '.']))
    };
    text.lines().position(|line| declares(line.trim())).map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "[workspace.dependencies]\n\
        jsonschema = { version = \"0\", default-features = false }\n\
        db = { package = \"flowline-sqlite\", path = \"crates/sqlite\" }\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    fn core(sections: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"flowline-core\"\n{sections}");
        found(&[(ROOT, WORKSPACE), ("crates/core/Cargo.toml", &manifest)])
    }

    #[test]
    fn core_may_not_gain_a_runtime() {
        let findings = core("[dependencies]\nserde.workspace = true\ntokio.workspace = true\n");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("crates/core/Cargo.toml:5: `flowline-core` may not have `tokio`"));
    }

    #[test]
    fn core_may_not_gain_one_by_another_name_or_table() {
        for sections in [
            "[dependencies]\nserde = { package = \"tokio\", version = \"1\" }\n",
            "[dependencies.rusqlite]\nversion = \"0\"\n",
            "[target.'cfg(unix)'.dependencies]\nuuid = \"1\"\n",
            "[dev-dependencies]\nreqwest = \"0\"\n",
            "[build-dependencies]\nserde = \"1\"\n",
            "[dependencies]\ninsta = \"1\"\n",
        ] {
            assert_eq!(core(sections).len(), 1, "{sections}");
        }
    }

    #[test]
    fn core_as_designed_is_fine() {
        let sections = "[dependencies]\njsonschema.workspace = true\n[dev-dependencies]\ninsta = \"1\"\nserde_json = \"1\"\n";
        assert_eq!(core(sections), [""; 0]);
    }

    #[test]
    fn inner_dependencies_follow_the_table() {
        let store = "[package]\nname = \"flowline-store\"\n[dependencies]\nflowline-core.workspace = true\n";
        assert_eq!(found(&[(ROOT, WORKSPACE), ("crates/store/Cargo.toml", store)]), [""; 0]);

        let store = store.replace("flowline-core", "db");
        let findings = found(&[(ROOT, WORKSPACE), ("crates/store/Cargo.toml", &store)]);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].contains("`flowline-store` may not depend on `flowline-sqlite`"), "{findings:?}");

        let xtask =
            "[package]\nname = \"xtask\"\n[dependencies]\nflowline = { path = \"../crates/flowline\" }\n";
        assert!(found(&[("xtask/Cargo.toml", xtask)])[0].contains("no crate of this workspace"));
    }

    #[test]
    fn a_crate_without_a_rule_is_found() {
        let findings = found(&[("crates/extra/Cargo.toml", "[package]\nname = \"flowline-extra\"\n")]);
        assert!(findings[0].starts_with("crates/extra/Cargo.toml:1: crate `crates/extra` has no rule"));
    }

    #[test]
    fn default_features_that_do_io_are_found() {
        let shared = "[workspace.dependencies]\njsonschema = \"0\"\njiff = { version = \"0\", default-features = false, features = [\"std\"] }\n";
        let findings = found(&[(ROOT, shared)]);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("Cargo.toml:3: feature `std` of `jiff`"));
        assert!(findings[1].starts_with("Cargo.toml:2: `jsonschema` comes with its default features"));

        assert_eq!(
            core("[dependencies]\njsonschema = { workspace = true, default-features = true }\n").len(),
            1
        );
        assert_eq!(
            core("[dependencies]\njsonschema = { workspace = true, features = [\"resolve-http\"] }\n").len(),
            1
        );
    }
}
