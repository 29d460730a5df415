//! `cargo xtask console`: the web console's types, its unit tests, a new build that must not differ from the committed one,
//! and its tests in a real browser against the real binary.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{probe, services};

const SOURCE: &str = "ui";
const BUILT: &str = "crates/ui/dist";

/// With `build_only`, rewrites the committed build and tests nothing.
pub(crate) fn run(root: &Path, build_only: bool) -> Result<()> {
    let ui = root.join(SOURCE);
    npm(&ui, &["ci", "--no-audit", "--no-fund", "--loglevel=error"])?;
    npm(&ui, &["run", "--silent", "check"])?;
    npm(&ui, &["run", "--silent", "build"])?;
    if build_only {
        return Ok(());
    }
    let changed = Command::new("git").current_dir(root).args(["status", "--porcelain", BUILT]).output();
    let changed = String::from_utf8_lossy(&changed.context("cannot start git")?.stdout).into_owned();
    ensure!(
        changed.is_empty(),
        "{BUILT} isn't what {SOURCE} builds; commit what `cargo xtask console --build` made:\n{changed}"
    );
    npm(&ui, &["run", "--silent", "test"])?;
    let binary = probe::built(root)?;
    let mut tests = Command::new("npm");
    tests.current_dir(&ui).args(["run", "--silent", "browser"]);
    finish(tests.env("FLOWLINE_BIN", binary.get_program()).env("CHROMIUM", services::browser()?))
}

fn npm(folder: &Path, arguments: &[&str]) -> Result<()> {
    finish(Command::new("npm").current_dir(folder).args(arguments))
}

fn finish(command: &mut Command) -> Result<()> {
    let status = command.status().context("cannot start npm; is it on PATH?")?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
