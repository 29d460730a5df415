//! `cargo xtask mutants`: builds the simulator with its planted bugs, optimized, and hunts them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Mutants {
    /// How many seeds a bug may take
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Hunt this bug alone
    #[arg(long)]
    bug: Option<String>,
    /// Leave this invariant unchecked (I1 … I20), and see what escapes
    #[arg(long)]
    without: Option<String>,
    /// For every invariant, the bugs that no other catches
    #[arg(long, conflicts_with = "without")]
    needed: bool,
}

impl Mutants {
    pub(crate) fn run(&self, root: &Path) -> Result<()> {
        let mut command = Command::new("cargo");
        command.current_dir(root).args(["run", "--quiet", "--profile", "sim", "--package", "flowline-sim"]);
        command.args(["--features", "planted", "--bin", "flowline-mutants", "--"]);
        command.args(["--seeds", &self.seeds.to_string()]);
        for (flag, value) in [("--bug", &self.bug), ("--without", &self.without)] {
            if let Some(value) = value {
                command.args([flag, value]);
            }
        }
        command.args(self.needed.then_some("--needed"));
        let status = command.status().context("cargo could not be started")?;
        match status.success() {
            true => Ok(()),
            false => bail!("a planted bug was not caught; see above"),
        }
    }
}
