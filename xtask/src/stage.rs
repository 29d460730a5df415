//! Stages: named commands run one after the other until one fails.
//!
//! A stage's own output stays visible as it is. A failure ends the run at once with the command that repeats that stage
//! alone.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{clients, console, mutants, services, suite, tidy};

/// Advisories are left out: their database needs the network, and a new advisory must not fail an unchanged commit.
const DENY: &[&str] = &["deny", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
/// What is built where it is missing, and where it goes then.
const CARGO_DENY: &str = "cargo-deny@0.20.2";
pub(crate) const TOOLS: &str = "target/tools";

/// One named step of `test` or `ci`.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    name: &'static str,
    work: Work,
    /// Leave out cargo's line per compiled crate. Errors and warnings stay.
    quiet: bool,
}

#[derive(Debug, Clone)]
enum Work {
    Cargo {
        env: Option<(&'static str, &'static str)>,
        args: &'static [&'static str],
    },
    /// The tests, with the servers that they talk to.
    Tests,
    Tidy,
    Dependencies,
    Clients,
    Console,
    Planted,
}

impl Stage {
    pub(crate) fn format() -> Stage {
        Stage::cargo("format", &["fmt", "--all", "--check"])
    }

    pub(crate) fn lints() -> Stage {
        Stage::cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    }

    pub(crate) fn tidy() -> Stage {
        Stage { name: "tidy", work: Work::Tidy, quiet: false }
    }

    pub(crate) fn tests() -> Stage {
        Stage { name: "tests", work: Work::Tests, quiet: false }
    }

    /// Apart from the libraries: the binary `flowline` and the library of that name would overwrite each other's
    /// pages, and the library's are the ones to keep.
    pub(crate) fn docs_of_binaries() -> Stage {
        Stage::docs("docs of binaries", &["doc", "--no-deps", "--workspace", "--bins"])
    }

    pub(crate) fn docs_of_libraries() -> Stage {
        Stage::docs("docs of libraries", &["doc", "--no-deps", "--workspace", "--lib"])
    }

    /// Licences, bans and sources of dependencies.
    pub(crate) fn dependencies() -> Stage {
        Stage { name: "dependencies", work: Work::Dependencies, quiet: false }
    }

    /// The API's description, and clients generated from it.
    pub(crate) fn clients() -> Stage {
        Stage { name: "clients", work: Work::Clients, quiet: false }
    }

    /// The web console: what is committed is what its source builds, and works in a browser.
    pub(crate) fn console() -> Stage {
        Stage { name: "console", work: Work::Console, quiet: false }
    }

    /// The planted bugs still fit the source, and compile.
    pub(crate) fn planted() -> Stage {
        Stage { name: "planted bugs", work: Work::Planted, quiet: false }
    }

    pub(crate) fn quiet(self) -> Stage {
        Stage { quiet: true, ..self }
    }

    fn docs(name: &'static str, args: &'static [&'static str]) -> Stage {
        let work = Work::Cargo { env: Some(("RUSTDOCFLAGS", "-Dwarnings")), args };
        Stage { name, work, quiet: false }
    }

    fn cargo(name: &'static str, args: &'static [&'static str]) -> Stage {
        Stage { name, work: Work::Cargo { env: None, args }, quiet: false }
    }

    /// The command line that repeats this stage alone.
    fn by_hand(&self) -> String {
        match &self.work {
            Work::Cargo { env: Some((key, value)), args } => {
                format!("{key}={value} cargo {}", args.join(" "))
            }
            Work::Cargo { env: None, args } => format!("cargo {}", args.join(" ")),
            Work::Tests => "eval \"$(cargo xtask services start)\" && cargo test --workspace".to_owned(),
            Work::Tidy => "cargo xtask tidy".to_owned(),
            Work::Clients => "cargo xtask clients".to_owned(),
            Work::Console => "cargo xtask console".to_owned(),
            Work::Planted => "cargo xtask mutants --check".to_owned(),
            Work::Dependencies => format!("cargo {}", DENY.join(" ")),
        }
    }

    fn run(&self, root: &Path) -> Result<()> {
        match &self.work {
            Work::Cargo { env, args } => self.cargo_in(root, args, cargo().envs(env.iter().copied())),
            Work::Tests => suite::run(root, services::run(root)?.variables()),
            Work::Tidy => tidy::run(root),
            Work::Clients => clients::run(root),
            Work::Console => console::run(root, false),
            Work::Planted => mutants::check(root),
            Work::Dependencies => self.judge_dependencies(root),
        }
    }

    /// With the cargo-deny that is there, or else with one of our own under the target folder, built without optimization:
    /// that takes a minute instead of five, and a check seconds either way.
    fn judge_dependencies(&self, root: &Path) -> Result<()> {
        let mut path = root.join(TOOLS).join("bin").into_os_string();
        if let Some(known) = std::env::var_os("PATH") {
            path.push(":");
            path.push(known);
        }
        let probe = cargo().args(["deny", "--version"]).env("PATH", &path).output();
        if !probe.is_ok_and(|probe| probe.status.success()) {
            let install = ["install", "--quiet", "--debug", "--locked", "--root", TOOLS, CARGO_DENY];
            self.cargo_in(root, &install, &mut cargo())?;
        }
        self.cargo_in(root, DENY, cargo().env("PATH", &path))
    }

    fn cargo_in(&self, root: &Path, args: &[&str], command: &mut Command) -> Result<()> {
        command.current_dir(root).args(self.quiet.then_some("--quiet")).args(args);
        let status = command.status().context("cannot start cargo; is it on PATH?")?;
        if !status.success() {
            bail!("{status}");
        }
        Ok(())
    }
}

/// Runs `stages` in order, each with its name and time, and stops at the first that fails.
pub(crate) fn run_all(root: &Path, stages: impl IntoIterator<Item = Stage>) -> Result<()> {
    for stage in stages {
        let name = stage.name;
        eprintln!("==> {name}: {}", stage.by_hand());
        let began = Instant::now();
        let outcome = stage.run(root);
        let took = began.elapsed().as_secs_f32();
        if let Err(error) = outcome {
            bail!(
                "stage `{name}` failed after {took:.1} s ({error:#}); repeat it alone with: {}",
                stage.by_hand()
            );
        }
        eprintln!("==> {name}: ok in {took:.1} s");
    }
    Ok(())
}

/// The cargo that runs this xtask, so that a toolchain chosen with `cargo +NAME xtask` holds for every stage.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_says_how_to_repeat_it_alone() {
        assert_eq!(
            Stage::docs_of_libraries().quiet().by_hand(),
            "RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps --workspace --lib"
        );
        assert_eq!(Stage::tidy().by_hand(), "cargo xtask tidy");
        assert_eq!(Stage::format().by_hand(), "cargo fmt --all --check");
    }

    #[test]
    fn the_first_failing_stage_ends_the_run_and_names_the_command() {
        // Not a git work tree, so tidy cannot list its files.
        let root = tempfile::tempdir().unwrap();
        let error = run_all(root.path(), [Stage::tidy(), Stage::format()]).unwrap_err().to_string();
        assert!(error.starts_with("stage `tidy` failed"), "{error}");
        assert!(error.ends_with("repeat it alone with: cargo xtask tidy"), "{error}");
    }
}
