//! Redis servers of our own: one alone, or three masters as a cluster.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{finish, free_port, wait};

const MASTERS: usize = 3;

/// One server with an append-only file, synced as `fsync` says.
pub(super) fn start(place: &Path, fsync: &str) -> Result<String> {
    let port = launch(place, &["--appendfsync", fsync])?;
    Ok(format!("redis://127.0.0.1:{port}"))
}

/// Three masters that share the slots among them.
pub(super) fn start_cluster(place: &Path) -> Result<String> {
    let mut nodes = Vec::new();
    for n in 0..MASTERS {
        let folder = place.join(n.to_string());
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // Its own choice would be the port and ten thousand, which can lie beyond the last port.
        let bus = free_port()?.to_string();
        let port = launch(&folder, &["--cluster-enabled", "yes", "--cluster-port", &bus])?;
        nodes.push(format!("127.0.0.1:{port}"));
    }
    finish(Command::new("redis-cli").args(["--cluster", "create"]).args(&nodes).arg("--cluster-yes"))?;
    wait("the cluster", || {
        nodes.iter().all(|node| {
            let port = node.rsplit(':').next().unwrap_or_default();
            ask(port, &["cluster", "info"]).is_ok_and(|said| said.contains("cluster_state:ok"))
        })
    })?;
    Ok(format!("redis+cluster://{}", nodes.join(",")))
}

/// Stops every server that left its port below `place`, and removes its data.
pub(super) fn stop(place: &Path) -> Result<()> {
    for n in 0..MASTERS {
        let folder = place.join(n.to_string());
        if folder.is_dir() {
            stop(&folder)?;
        }
    }
    let file = place.join("port");
    if let Ok(port) = fs::read_to_string(&file) {
        // One that is gone already needs no stopping.
        let _ = ask(port.trim(), &["shutdown", "nosave", "now", "force"]);
        let _ = fs::remove_file(&file);
        let _ = fs::remove_dir_all(place.join("appendonlydir"));
    }
    Ok(())
}

fn launch(place: &Path, more: &[&str]) -> Result<u16> {
    let port = free_port()?;
    let mut command = Command::new("redis-server");
    command.current_dir(place).args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "yes", "--daemonize", "yes", "--logfile", "log", "--dir"]).arg(place);
    finish(command.args(more))?;
    fs::write(place.join("port"), port.to_string()).context("cannot note the port")?;
    wait("redis-server", || ask(&port.to_string(), &["ping"]).is_ok_and(|said| said.contains("PONG")))?;
    Ok(port)
}

fn ask(port: &str, words: &[&str]) -> Result<String> {
    let output = finish(Command::new("redis-cli").args(["-p", port]).args(words))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
