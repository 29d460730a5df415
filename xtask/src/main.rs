//! `cargo xtask`: what a contributor and CI run, so that both run the same thing.
//!
//! Needs nothing beyond Rust itself, but for the servers that the tests talk to. It never fixes anything: it names the
//! place and the remedy.

mod clients;
mod console;
mod fuzz;
mod mutants;
mod probe;
mod services;
mod simulate;
mod stage;
mod suite;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use fuzz::Fuzz;
use mutants::Mutants;
use probe::Probe;
use simulate::Simulate;
use stage::Stage;

/// The commands of a contributor.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything to run before a commit: format, tidy, lints, tests
    Test {
        /// Leave out the format check and clippy
        #[arg(long)]
        fast: bool,
    },
    /// Check what the compiler cannot: who may depend on whom, purity of core, links, leftovers
    Tidy,
    /// Private Redis, Redis Cluster and Postgres servers for the tests
    Services {
        #[command(subcommand)]
        command: Services,
    },
    /// Run the engine under a seeded scheduler with faults, and check every invariant
    Simulate(Simulate),
    /// Hunt the planted bugs: each must break an invariant within so many seeds
    Mutants(Mutants),
    /// Feed made-up bytes to every parser that outsiders reach
    Fuzz(Fuzz),
    /// Hold the HTTP API against its own description with made-up requests (needs Python)
    Probe(Probe),
    /// Lint the API's description, and use clients generated from it against a server (needs npm and Python)
    Clients,
    /// Build the web console and test it in a browser (needs npm)
    Console {
        /// Only rewrite the build that the binary embeds
        #[arg(long)]
        build: bool,
    },
    /// What CI runs: `test`, then generated clients, the console, licences and sources of dependencies, and the docs
    Ci,
}

#[derive(Debug, Subcommand)]
enum Services {
    /// Start them (installing what is missing) and print their URLs as variables to export
    Start,
    /// Stop them and remove their data
    Stop,
    /// Print the URLs of those that run
    Status,
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
        Command::Services { command } => return serve(&root, command),
        Command::Simulate(simulate) => return simulate.run(&root),
        Command::Mutants(mutants) => return mutants.run(&root),
        Command::Fuzz(fuzz) => return fuzz.run(&root),
        Command::Probe(probe) => return probe.run(&root),
        Command::Clients => return clients::run(&root),
        Command::Console { build } => return console::run(&root, build),
        Command::Test { fast: true } => stage::run_all(&root, [Stage::tidy(), Stage::tests()])?,
        Command::Test { fast: false } => {
            stage::run_all(&root, [Stage::format(), Stage::tidy(), Stage::lints(), Stage::tests()])?;
        }
        Command::Ci => stage::run_all(&root, ci())?,
    }
    eprintln!("xtask: every stage passed");
    Ok(())
}

fn serve(root: &Path, command: Services) -> Result<()> {
    let running = match command {
        Services::Start => services::start(root).map(|_| services::status(root))?,
        Services::Status => services::status(root),
        Services::Stop => return services::stop(root),
    };
    for (variable, url) in &running {
        println!("export {variable}={url}");
    }
    if running.is_empty() {
        eprintln!("xtask: no server of ours runs");
    }
    Ok(())
}

/// What takes seconds comes first, so that most failures show at once.
fn ci() -> [Stage; 10] {
    [
        Stage::format(),
        Stage::tidy(),
        Stage::lints().quiet(),
        Stage::tests(),
        Stage::clients(),
        Stage::console(),
        Stage::planted(),
        Stage::dependencies(),
        Stage::docs_of_binaries().quiet(),
        Stage::docs_of_libraries().quiet(),
    ]
}

/// The repository this xtask was built from: the folder above its own manifest.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_path_buf).context("xtask has no parent folder; run it from the repository")
}
