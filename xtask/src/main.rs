//! `cargo xtask`: what a contributor and CI run, so that both run the same thing.
//!
//! Needs nothing beyond Rust itself. It never fixes anything: it names the place and the remedy.

mod stage;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use stage::{Install, Stage};

/// The commands of a contributor.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything to run before a commit: format, lints, tidy, tests
    Test {
        /// Leave out the format check and clippy
        #[arg(long)]
        fast: bool,
    },
    /// Check what the compiler cannot: who may depend on whom, purity of core, links, leftovers
    Tidy,
    /// What CI runs: `test`, then licences and sources of dependencies, then the docs
    Ci {
        /// Install cargo-deny first if it is missing (takes minutes)
        #[arg(long)]
        deny: bool,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let root = root()?;
    match command {
        Command::Tidy => return tidy::run(&root),
        Command::Test { fast: true } => stage::run_all(&root, [Stage::tidy(), Stage::tests()])?,
        Command::Test { fast: false } => stage::run_all(&root, before_commit())?,
        Command::Ci { deny } => {
            stage::run_all(&root, before_commit())?;
            stage::run_all(
                &root,
                stage::dependencies(if deny { Install::IfMissing } else { Install::Never }),
            )?;
            stage::run_all(&root, [Stage::docs()])?;
        }
    }
    eprintln!("xtask: every stage passed");
    Ok(())
}

fn before_commit() -> [Stage; 4] {
    [Stage::format(), Stage::lints(), Stage::tidy(), Stage::tests()]
}

/// The repository this xtask was built from: the folder above its own manifest.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_path_buf).context("xtask has no parent folder; run it from the repository")
}
