//! `cargo xtask mutants`: plants bugs in a copy of the repository, builds its simulator, optimized, and hunts them.
//!
//! The source itself holds no bugs: `crates/sim/planted.patch` adds them to the copy under `target/planted`. All are
//! compiled at once, and switched on one at a time.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

pub(crate) const PATCH: &str = "crates/sim/planted.patch";
const COPY: &str = "target/planted";

#[derive(Debug, Args)]
pub(crate) struct Mutants {
    /// How many seeds a bug may take
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Hunt this bug alone
    #[arg(long)]
    bug: Option<String>,
    /// Leave this invariant unchecked (I1, I2 …), and see what escapes
    #[arg(long)]
    without: Option<String>,
    /// For every invariant, the bugs that no other catches
    #[arg(long, conflicts_with = "without")]
    needed: bool,
    /// Only make the copy with the bugs in it, target/planted, to change them there
    #[arg(long, conflicts_with_all = ["bug", "without", "needed"])]
    plant: bool,
    /// Only see that the patch fits and every bug compiles
    #[arg(long, conflicts_with_all = ["bug", "without", "needed", "plant", "save"])]
    check: bool,
    /// Write what differs in target/planted to the patch; then hunt as usual
    #[arg(long, conflicts_with = "plant")]
    save: bool,
}

impl Mutants {
    pub(crate) fn run(&self, root: &Path) -> Result<()> {
        if self.check {
            return check(root);
        }
        if self.save {
            save(root)?;
        }
        let copy = plant(root)?;
        if self.plant {
            eprintln!(
                "xtask: change the bugs in {COPY}, then write them back with `cargo xtask mutants --save`"
            );
            return Ok(());
        }
        let mut command = cargo(root, &copy);
        command.args(["run", "--quiet", "--profile", "sim", "--package", "flowline-sim"]);
        command.args(["--features", "planted", "--bin", "flowline-mutants", "--"]);
        command.args(["--seeds", &self.seeds.to_string()]);
        for (flag, value) in [("--bug", &self.bug), ("--without", &self.without)] {
            if let Some(value) = value {
                command.args([flag, value]);
            }
        }
        command.args(self.needed.then_some("--needed"));
        run(&mut command, "a planted bug was not caught; see above")
    }
}

/// What CI asks: the patch fits, all bugs compile, and one of them is found in a report that users see.
pub(crate) fn check(root: &Path) -> Result<()> {
    let copy = plant(root)?;
    let mut command = cargo(root, &copy);
    command.args([
        "test",
        "--quiet",
        "--package",
        "flowline-sim",
        "--features",
        "planted",
        "--test",
        "all",
        "shown::",
    ]);
    run(&mut command, "the copy with the planted bugs does not compile, or its test fails")
}

/// Copies the files that git knows or would add, and plants the bugs in the copy.
fn plant(root: &Path) -> Result<PathBuf> {
    let copy = root.join(COPY);
    if copy.exists() {
        std::fs::remove_dir_all(&copy).with_context(|| format!("cannot empty {}", copy.display()))?;
    }
    let list = git(root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
    for name in list.split('\0').filter(|name| root.join(name).is_file()) {
        let to = copy.join(name);
        std::fs::create_dir_all(to.parent().unwrap_or(&copy))?;
        std::fs::copy(root.join(name), &to).with_context(|| format!("cannot copy {name}"))?;
    }
    // One line of context is enough: what a bug changes stays readable while the code around it moves.
    git(root, &["apply", "-C1", "--directory", COPY, PATCH]).with_context(|| {
        format!("{PATCH} no longer fits; `git apply --reject --directory {COPY} {PATCH}` plants what does, `cargo xtask mutants --save` writes it anew")
    })?;
    Ok(copy)
}

/// Writes the difference between the source and the copy as the patch.
fn save(root: &Path) -> Result<()> {
    let crates = format!("{COPY}/crates");
    let output = Command::new("git")
        .current_dir(root)
        .args(["diff", "--no-index", "--no-color", "--diff-filter=M", "--", "crates", &crates])
        .output()
        .context("git could not be started")?;
    let text = String::from_utf8(output.stdout).context("git's answer is not text")?;
    if text.is_empty() {
        bail!("{COPY} has no planted bugs; make it with `cargo xtask mutants --plant`");
    }
    let lines = text.lines().filter(|line| !line.starts_with("index ")).map(|line| {
        let header = ["diff --git ", "+++ "].iter().any(|start| line.starts_with(start));
        let line = if header { line.replace(&format!("b/{COPY}/"), "b/") } else { line.to_owned() };
        line.trim_end().to_owned() + "\n"
    });
    std::fs::write(root.join(PATCH), lines.collect::<String>())
        .with_context(|| format!("cannot write {PATCH}"))
}

/// Dependencies are built once for both: only the path of the workspace differs.
fn cargo(root: &Path, copy: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(copy);
    if std::env::var_os("CARGO_TARGET_DIR").is_none() {
        command.env("CARGO_TARGET_DIR", root.join("target"));
    }
    command
}

fn run(command: &mut Command, failed: &str) -> Result<()> {
    let status = command.status().context("cargo could not be started")?;
    match status.success() {
        true => Ok(()),
        false => bail!("{failed}"),
    }
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    let output =
        Command::new("git").current_dir(root).args(args).output().context("git could not be started")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("git's answer is not text")
}
