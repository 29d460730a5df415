//! The tests: built once, then their binaries side by side.
//!
//! `cargo test` runs one binary after the other, and most of ours wait: for a lease to expire, a server to come back, a
//! process to end. So a few run at a time, the first of them while the rest is built. What each prints is kept and shown
//! whole when it ends, so that outputs never mix. All run to their end whatever fails, and the end names each that failed
//! with the command that repeats it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::stage::cargo;

/// Binaries at a time, beyond one for each core: most of their tests wait. With more, tests with deadlines miss them.
const SPARE: usize = 1;
/// What takes longest starts first, so that it doesn't run on alone at the end.
const SLOW: &[&str] = &[
    "instances",
    "live",
    "machines",
    "pages",
    "moved",
    "remote",
    "conformance",
    "differential",
    "conformance_cluster",
    "scale",
    "trouble",
    "seeds",
    "shown",
    "definitions_any_input",
    "remote_cli",
    "limits",
];
/// The name of a binary with all the tests of a crate, module by module.
const ALL: &str = "all";
/// The packages whose tests ask for the suite that stores share, a feature of one of them. Built with the others, they would
/// have all the rest built again with that feature, the binary too.
const STORES: &[&str] = &["flowline-store", "flowline-sqlite", "flowline-postgres", "flowline-redis"];

/// What is built at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Everything but the stores: as `cargo run` has built it.
    Most,
    Stores,
}

/// One binary with tests, or the examples in doc comments.
#[derive(Debug)]
struct Suite {
    /// What `cargo test` takes to run this one alone.
    select: Vec<String>,
    /// The binary and the folder that it runs in; the doc tests have none and are run by cargo.
    binary: Option<(PathBuf, PathBuf)>,
    /// The tests of the binary that it is about; all of them if there are none here.
    tests: Vec<String>,
}

/// A line of what `cargo --message-format=json` prints, as far as it is read here.
#[derive(Debug, Deserialize)]
struct Artifact {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// How one suite ended.
#[derive(Debug)]
struct Ran {
    by_hand: String,
    ok: bool,
    took: Duration,
    counts: Counts,
}

/// The numbers of lines such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Builds every test of the workspace and runs them, with `variables` in their environment.
pub(crate) fn run(root: &Path, variables: &[(&'static str, String)]) -> Result<()> {
    let logs = crate::services::target_folder(root).join("xtask/tests");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let ran = Mutex::new(Vec::new());
    let lanes = thread::available_parallelism().map_or(1, usize::from) + SPARE;
    let (add, suites) = mpsc::channel::<Suite>();
    let suites = Mutex::new(suites);
    let built = thread::scope(|scope| {
        for lane in 0..lanes {
            let (suites, ran) = (&suites, &ran);
            let log = logs.join(format!("lane-{lane}.log"));
            scope.spawn(move || {
                loop {
                    let next = locked(suites).recv();
                    let Ok(suite) = next else { return };
                    let one = suite.run(root, variables, &log);
                    locked(ran).push(one);
                }
            });
        }
        build_all(root, add)
    });
    built?;
    report(locked(&ran).drain(..).collect::<Result<Vec<Ran>>>()?)
}

/// Hands over the suites of each part as soon as it is built. Drops its end of the channel, which ends the lanes.
fn build_all(root: &Path, add: Sender<Suite>) -> Result<()> {
    for part in [Part::Most, Part::Stores] {
        for suite in build(root, part)? {
            add.send(suite).context("the lanes have ended")?;
        }
    }
    Ok(())
}

fn locked<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compiles the tests of a part and gives what there is to run, the slow ones first.
fn build(root: &Path, part: Part) -> Result<Vec<Suite>> {
    let mut child = cargo()
        .current_dir(root)
        .arg("test")
        .args(part.packages())
        .args(["--no-run", "--quiet", "--message-format=json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo; is it on PATH?")?;
    let lines = BufReader::new(child.stdout.take().context("cargo has no output")?).lines();
    let mut suites = vec![Suite::docs(part)];
    for line in lines {
        let artifact: Artifact = serde_json::from_str(&line?).context("cannot read what cargo printed")?;
        if let Some(suite) = Suite::of(artifact) {
            suites.extend(suite.by_module()?);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the tests don't compile ({status})");
    }
    suites.sort_by_key(|suite| suite.rank());
    Ok(suites)
}

impl Part {
    /// What cargo takes to build just this.
    fn packages(self) -> Vec<String> {
        let flag = if self == Part::Most { "--exclude" } else { "-p" };
        let all = (self == Part::Most).then(|| "--workspace".to_owned());
        all.into_iter()
            .chain(STORES.iter().flat_map(|store| [flag.to_owned(), (*store).to_owned()]))
            .collect()
    }
}

impl Suite {
    /// The examples in doc comments, of all crates of a part at once.
    fn docs(part: Part) -> Suite {
        let select = [part.packages(), vec!["--doc".to_owned()]].concat();
        Suite { select, binary: None, tests: Vec::new() }
    }

    fn of(artifact: Artifact) -> Option<Suite> {
        let (target, executable) = (artifact.target?, artifact.executable?);
        if !artifact.profile?.test {
            return None;
        }
        let folder = artifact.manifest_path?.parent()?.to_path_buf();
        let mut select = vec!["-p".to_owned(), package_of(&folder)?];
        select.extend(match target.kind.first()?.as_str() {
            "test" => vec!["--test".to_owned(), target.name],
            "bin" => vec!["--bin".to_owned(), target.name],
            "example" => vec!["--example".to_owned(), target.name],
            _ => vec!["--lib".to_owned()],
        });
        Some(Suite { select, binary: Some((executable, folder)), tests: Vec::new() })
    }

    /// A suite for each module of a binary that holds all the tests of a crate: they wait for other things, so they run side
    /// by side, and one that dies takes no other with it.
    fn by_module(self) -> Result<Vec<Suite>> {
        let Some((binary, folder)) = self.binary.as_ref().filter(|_| self.name() == ALL) else {
            return Ok(vec![self]);
        };
        let list = Command::new(binary).args(["--list", "--format", "terse"]).output();
        let list = list.with_context(|| format!("cannot run {}", binary.display()))?;
        if !list.status.success() {
            bail!("{} does not list its tests ({})", binary.display(), list.status);
        }
        let list = String::from_utf8(list.stdout).context("the names of tests are text")?;
        let modules = modules_of(&list).into_iter().map(|(module, tests)| {
            let select = [&self.select[..], &[module]].concat();
            Suite { select, binary: Some((binary.clone(), folder.clone())), tests }
        });
        Ok(modules.collect())
    }

    fn name(&self) -> &str {
        self.select.last().map_or("", |name| name.trim_end_matches("::"))
    }

    fn rank(&self) -> usize {
        let place = SLOW.iter().position(|slow| *slow == self.name());
        // The doc tests compile as they run: they begin at once, too.
        if self.binary.is_none() { 0 } else { place.map_or(SLOW.len() + 1, |place| place + 1) }
    }

    fn run(&self, root: &Path, variables: &[(&'static str, String)], log: &Path) -> Result<Ran> {
        let by_hand = format!("cargo test {}", self.select.join(" "));
        let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = match &self.binary {
            Some((binary, folder)) => {
                let mut command = Command::new(binary);
                command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
                command.args((!self.tests.is_empty()).then_some("--exact")).args(&self.tests);
                command
            }
            None => {
                let mut command = cargo();
                command.current_dir(root).args(["test", "--quiet"]).args(&self.select);
                command
            }
        };
        let began = Instant::now();
        let status = command
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            .status()
            .with_context(|| format!("cannot run {by_hand}"))?;
        let took = began.elapsed();
        let printed = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        // One write, so that two that end together do not mix.
        let shown = format!("\n     Running {by_hand} ({:.1} s)\n{printed}", took.as_secs_f32());
        std::io::stdout().lock().write_all(shown.as_bytes())?;
        let counts = Counts::of(&printed);
        Ok(Ran { by_hand, ok: status.success() && counts.failed == 0, took, counts })
    }
}

/// The tests that a binary lists, by their outermost module.
fn modules_of(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or(String::new(), |(module, _)| format!("{module}::"));
        modules.entry(module).or_default().push(test.to_owned());
    }
    modules
}

/// The name in the manifest of a folder.
fn package_of(folder: &Path) -> Option<String> {
    let manifest: toml::Table = fs::read_to_string(folder.join("Cargo.toml")).ok()?.parse().ok()?;
    Some(manifest.get("package")?.get("name")?.as_str()?.to_owned())
}

impl Counts {
    fn of(printed: &str) -> Counts {
        let mut counts = Counts::default();
        for line in printed.lines().filter_map(|line| line.strip_prefix("test result: ")) {
            let number = |word: &str| {
                let part = line.split([';', '.']).find(|part| part.trim().ends_with(word));
                part.and_then(|part| part.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
            };
            counts.passed += number("passed");
            counts.failed += number("failed");
            counts.ignored += number("ignored");
        }
        counts
    }
}

fn report(mut ran: Vec<Ran>) -> Result<()> {
    ran.sort_by_key(|one| std::cmp::Reverse(one.took));
    println!("\nlongest:");
    for one in ran.iter().take(8) {
        println!("  {:6.1} s  {}", one.took.as_secs_f32(), one.by_hand);
    }
    let total = |count: fn(&Counts) -> u64| ran.iter().map(|one| count(&one.counts)).sum::<u64>();
    let (passed, failed) = (total(|counts| counts.passed), total(|counts| counts.failed));
    println!("\n{passed} passed, {failed} failed, {} skipped", total(|counts| counts.ignored));
    let failed: Vec<&str> = ran.iter().filter(|one| !one.ok).map(|one| one.by_hand.as_str()).collect();
    if !failed.is_empty() {
        bail!("these failed:\n  {}", failed.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_binary_with_several_results_are_added_up() {
        let printed = "running 4 tests\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out\n\
            test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.2s\n";
        assert_eq!(Counts::of(printed), Counts { passed: 8, failed: 2, ignored: 1 });
    }

    #[test]
    fn tests_are_told_apart_by_their_outermost_module() {
        let list = "live::many::a: test\nfaults::b: test\nlive::c: test\nd: test\ne: benchmark\n\n4 tests, 1 benchmark\n";
        let modules = modules_of(list);
        let modules: Vec<_> = modules.iter().map(|(name, tests)| (name.as_str(), tests.len())).collect();
        assert_eq!(modules, [("", 1), ("faults::", 1), ("live::", 2)]);
    }

    #[test]
    fn every_package_is_built_in_one_of_the_parts() {
        let most = Part::Most.packages();
        assert_eq!(most[..3], ["--workspace", "--exclude", "flowline-store"]);
        let [excluded, picked] = [&most[1..], &Part::Stores.packages()].map(|words| words.join(" "));
        assert_eq!(excluded.replace("--exclude", "-p"), picked);
    }

    #[test]
    fn a_binary_that_dies_without_a_word_counts_as_failed() {
        let folder = tempfile::tempdir().unwrap();
        let suite = Suite {
            select: ["-p", "flowline-core", "--lib"].map(str::to_owned).to_vec(),
            binary: Some(("/bin/false".into(), folder.path().to_path_buf())),
            tests: Vec::new(),
        };
        let ran = suite.run(folder.path(), &[], &folder.path().join("log")).unwrap();
        assert!(!ran.ok);
        let error = report(vec![ran]).unwrap_err().to_string();
        assert!(error.ends_with("cargo test -p flowline-core --lib"), "{error}");
    }
}
