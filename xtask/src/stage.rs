//! Stages: named commands run one after the other until one fails.
//!
//! A stage's own output stays visible as it is, so the totals of `cargo test` are cargo's, not ours. A failure
//! ends the run at once with the command that repeats that stage alone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{services, tidy};

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
    /// `cargo` with the servers that the tests talk to, for as long as it runs.
    Served {
        args: &'static [&'static str],
    },
    Tidy,
    Skip {
        why: &'static str,
    },
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

    /// Compiles the tests, so that their own run shows nothing but tests.
    pub(crate) fn build() -> Stage {
        Stage::cargo("build", &["test", "--workspace", "--no-run"])
    }

    pub(crate) fn tests() -> Stage {
        Stage { name: "tests", work: Work::Served { args: &["test", "--workspace"] }, quiet: false }
    }

    /// Apart from the libraries: the binary `flowline` and the library of that name would overwrite each other's
    /// pages, and the library's are the ones to keep.
    pub(crate) fn docs_of_binaries() -> Stage {
        Stage::docs("docs of binaries", &["doc", "--no-deps", "--workspace", "--bins"])
    }

    pub(crate) fn docs_of_libraries() -> Stage {
        Stage::docs("docs of libraries", &["doc", "--no-deps", "--workspace", "--lib"])
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
            Work::Served { args } => {
                format!("eval \"$(cargo xtask services start)\" && cargo {}", args.join(" "))
            }
            Work::Tidy => "cargo xtask tidy".to_owned(),
            Work::Skip { .. } => String::new(),
        }
    }

    fn run(&self, root: &Path) -> Result<()> {
        match &self.work {
            Work::Cargo { env, args } => self.cargo_in(root, args, cargo().envs(env.iter().copied())),
            Work::Served { args } => {
                let servers = services::run(root)?;
                let variables = servers.variables().iter().map(|(variable, url)| (variable, url));
                self.cargo_in(root, args, cargo().envs(variables))
            }
            Work::Tidy => tidy::run(root),
            Work::Skip { .. } => Ok(()),
        }
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

/// The stages that judge dependencies. Advisories are left out: their database needs the network, and a new
/// advisory must not fail an unchanged commit.
pub(crate) fn dependencies(install: Install) -> Vec<Stage> {
    let check = Stage::cargo(
        "dependencies",
        &["deny", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"],
    );
    if has_cargo_deny() {
        return vec![check];
    }
    match install {
        Install::IfMissing => {
            vec![Stage::cargo("install cargo-deny", &["install", "--locked", "cargo-deny"]), check]
        }
        Install::Never => {
            let why = "cargo-deny is not installed; `cargo xtask ci --deny` installs it";
            vec![Stage { name: "dependencies", work: Work::Skip { why }, quiet: false }]
        }
    }
}

/// Whether a missing tool may be built on the spot, which takes minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Install {
    IfMissing,
    Never,
}

/// Runs `stages` in order, each with its name and time, and stops at the first that fails.
pub(crate) fn run_all(root: &Path, stages: impl IntoIterator<Item = Stage>) -> Result<()> {
    for stage in stages {
        let name = stage.name;
        if let Work::Skip { why } = stage.work {
            eprintln!("==> {name}: SKIPPED: {why}");
            continue;
        }
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

fn has_cargo_deny() -> bool {
    let probe = cargo().args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

/// The cargo that runs this xtask, so that a toolchain chosen with `cargo +NAME xtask` holds for every stage.
fn cargo() -> Command {
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
