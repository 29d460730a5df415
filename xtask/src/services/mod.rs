//! Private Redis, Redis Cluster and Postgres servers for the tests, on free ports, with their data and logs under the
//! target folder.
//!
//! A server whose URL is given in the environment is not started: the tests use that one. What is missing on the machine
//! is installed with apt where that can be done. Everything started is listed in one file, so that `stop` and the next
//! `start` find it even after a killed run.

mod install;
mod postgres;
mod redis;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub(crate) use install::browser;

/// How long a server may take until it answers.
const READY: Duration = Duration::from_secs(30);

/// What a test run needs. Each is known by the variable that its URL is handed over in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Redis,
    /// Redis that writes every commit through before it answers.
    RedisAlways,
    RedisCluster,
    Postgres,
}

impl Service {
    const ALL: [Service; 4] =
        [Service::Redis, Service::RedisAlways, Service::RedisCluster, Service::Postgres];

    fn variable(self) -> &'static str {
        match self {
            Service::Redis => "FLOWLINE_TEST_REDIS_URL",
            Service::RedisAlways => "FLOWLINE_TEST_REDIS_ALWAYS_URL",
            Service::RedisCluster => "FLOWLINE_TEST_REDIS_CLUSTER_URL",
            Service::Postgres => "FLOWLINE_TEST_POSTGRES_URL",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Service::Redis => "redis",
            Service::RedisAlways => "redis-always",
            Service::RedisCluster => "redis-cluster",
            Service::Postgres => "postgres",
        }
    }

    /// Starts the server with its data in `place` and gives its URL once it answers.
    fn start(self, place: &Path) -> Result<String> {
        match self {
            Service::Redis => redis::start(place, "everysec"),
            Service::RedisAlways => redis::start(place, "always"),
            Service::RedisCluster => redis::start_cluster(place),
            Service::Postgres => postgres::start(place),
        }
    }

    fn stop(self, place: &Path) -> Result<()> {
        match self {
            Service::Postgres => postgres::stop(place),
            _ => redis::stop(place),
        }
    }
}

/// Servers that stop when this goes, whatever became of the tests.
#[derive(Debug)]
pub(crate) struct RunningServices {
    root: PathBuf,
    urls: Vec<(&'static str, String)>,
}

impl RunningServices {
    /// The variables to run the tests with.
    pub(crate) fn variables(&self) -> &[(&'static str, String)] {
        &self.urls
    }
}

impl Drop for RunningServices {
    fn drop(&mut self) {
        if let Err(error) = stop(&self.root) {
            eprintln!("xtask: {error:#}");
        }
    }
}

/// Starts what the environment gives no URL for, until the answer is dropped.
pub(crate) fn run(root: &Path) -> Result<RunningServices> {
    let mut running = RunningServices { root: root.to_path_buf(), urls: Vec::new() };
    running.urls = start(root)?;
    Ok(running)
}

/// Starts what the environment gives no URL for, and leaves it running. Gives the variables of what was started.
pub(crate) fn start(root: &Path) -> Result<Vec<(&'static str, String)>> {
    stop(root)?;
    let wanted: Vec<Service> =
        Service::ALL.into_iter().filter(|service| std::env::var_os(service.variable()).is_none()).collect();
    install::missing(&wanted)?;
    let folder = folder(root);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut urls = Vec::new();
    for service in wanted {
        let place = folder.join(service.folder());
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        let url = service.start(&place).with_context(|| {
            format!("{} did not start; its log is in {}", service.folder(), place.display())
        });
        match url {
            Ok(url) => urls.push((service.variable(), url)),
            Err(error) => {
                let _ = service.stop(&place);
                stop(root)?;
                return Err(error);
            }
        }
        write_list(root, &urls)?;
    }
    Ok(urls)
}

/// Stops all that was started and removes its data. The logs stay.
pub(crate) fn stop(root: &Path) -> Result<()> {
    let list = list(root);
    for (variable, _) in read_list(&list) {
        let Some(service) = Service::ALL.into_iter().find(|service| service.variable() == variable) else {
            continue;
        };
        let place = folder(root).join(service.folder());
        service.stop(&place).with_context(|| format!("cannot stop {}", service.folder()))?;
    }
    match fs::remove_file(&list) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", list.display()))
        }
        _ => Ok(()),
    }
}

/// What `start` left running, as variables.
pub(crate) fn status(root: &Path) -> Vec<(String, String)> {
    read_list(&list(root))
}

/// Where cargo builds, and where what tests leave behind goes.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    root.join(target.unwrap_or_else(|| "target".into()))
}

fn folder(root: &Path) -> PathBuf {
    target_folder(root).join("services")
}

fn list(root: &Path) -> PathBuf {
    folder(root).join("running")
}

fn write_list(root: &Path, urls: &[(&str, String)]) -> Result<()> {
    let text: String = urls.iter().map(|(variable, url)| format!("{variable}={url}\n")).collect();
    let list = list(root);
    fs::write(&list, text).with_context(|| format!("cannot write {}", list.display()))
}

fn read_list(path: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(variable, url)| (variable.to_owned(), url.to_owned())).collect()
}

/// A port that nobody listened on a moment ago.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Asks until the answer is yes.
fn wait(what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
    let until = Instant::now() + READY;
    while Instant::now() < until {
        if ready() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    bail!("{what} did not answer within {} s", READY.as_secs())
}

/// Runs a command to its end; its output is shown only where it fails.
fn finish(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let said =
            String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
        bail!("{name} failed ({}): {}", output.status, said.trim());
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_started_is_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("running");
        fs::write(&path, "A=redis://127.0.0.1:1/?x=y\nB=postgres://u@h/d\n").unwrap();
        let pairs = read_list(&path);
        assert_eq!(pairs[0], ("A".to_owned(), "redis://127.0.0.1:1/?x=y".to_owned()));
        assert_eq!(pairs.len(), 2);
        assert_eq!(read_list(&root.path().join("none")), []);
    }

    #[test]
    fn every_service_has_its_own_variable_and_folder() {
        for (i, one) in Service::ALL.iter().enumerate() {
            for other in &Service::ALL[i + 1..] {
                assert_ne!(one.variable(), other.variable());
                assert_ne!(one.folder(), other.folder());
            }
        }
    }

    #[test]
    fn a_failed_command_tells_what_it_said() {
        let error = finish(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
    }
}
