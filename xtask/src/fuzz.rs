//! `cargo xtask fuzz`: made-up bytes for every parser that outsiders reach, for as long as asked.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Fuzz {
    /// One target: definitions, json, templates, cel, cursors, leases or bodies; all by default
    target: Option<String>,
    /// For how long each
    #[arg(long, default_value_t = 10)]
    minutes: u64,
}

impl Fuzz {
    pub(crate) fn run(&self, root: &Path) -> Result<()> {
        let tests = self.target.as_deref().map_or("fuzz::".to_owned(), |target| format!("fuzz::{target}"));
        let mut command = Command::new("cargo");
        command.current_dir(root).args(["test", "--package", "flowline-cli", "--test", "all", "--"]);
        command.args([&tests, "--test-threads=1", "--nocapture"]);
        command.env("FLOWLINE_FUZZ_SECONDS", (self.minutes * 60).to_string());
        let status = command.status().context("cargo could not be started")?;
        match status.success() {
            true => Ok(()),
            false => bail!("an input broke a parser; see above"),
        }
    }
}
