//! `cargo xtask simulate`: builds the simulator, optimized, and runs seeds.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// How many seeds to run
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this one seed and tell its story
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
}

impl Simulate {
    pub(crate) fn run(&self, root: &Path) -> Result<()> {
        let mut command = Command::new("cargo");
        command.current_dir(root);
        command.args([
            "run",
            "--quiet",
            "--profile",
            "sim",
            "--package",
            "flowline-sim",
            "--bin",
            "flowline-sim",
        ]);
        command.arg("--");
        match self.seed {
            Some(seed) => command.args(["--seed", &seed.to_string()]),
            None => command.args(["--seeds", &self.seeds.to_string(), "--from", &self.from.to_string()]),
        };
        let status = command.status().context("cargo could not be started")?;
        match status.success() {
            true => Ok(()),
            false => bail!("the simulation found something; see above"),
        }
    }
}
