//! A Postgres server of our own. It refuses to run as root, so there it runs as the user that its package made.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{finish, free_port, install};

/// The user that Debian's packages make for the server.
const UNPRIVILEGED: &str = "postgres";

pub(super) fn start(place: &Path) -> Result<String> {
    let bin = install::postgres_folder().context("no Postgres of version 15 or later was found")?;
    let data = data_folder(place)?;
    fs::write(place.join("data-folder"), data.as_os_str().as_encoded_bytes())?;
    let port = free_port()?;
    let mut init = unprivileged(&bin.join("initdb"));
    init.args(["-U", "flowline", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]);
    finish(init.arg(&data))?;
    guard(&data.join("pg_hba.conf"))?;
    let options = format!(
        "-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=200"
    );
    let mut start = unprivileged(&bin.join("pg_ctl"));
    start.args(["-w", "-s", "-o", &options, "-l"]).arg(data.join("log")).arg("-D").arg(&data).arg("start");
    // Its output stays open in the server: waiting for the end of it would be waiting for the server's.
    let status = start.stdout(std::process::Stdio::null()).status().context("cannot run pg_ctl")?;
    anyhow::ensure!(status.success(), "pg_ctl start failed ({status}); see {}", data.join("log").display());
    Ok(format!("postgres://flowline@127.0.0.1:{port}/postgres"))
}

/// Users named `guarded` must show a password: for the tests of a wrong one. All others are let in.
fn guard(rules: &Path) -> Result<()> {
    let others = fs::read_to_string(rules)?;
    Ok(fs::write(rules, format!("host all guarded all scram-sha-256\n{others}"))?)
}

pub(super) fn stop(place: &Path) -> Result<()> {
    let Ok(data) = fs::read_to_string(place.join("data-folder")) else { return Ok(()) };
    let data = PathBuf::from(data);
    if let (Some(bin), true) = (install::postgres_folder(), data.join("postmaster.pid").exists()) {
        let mut stop = unprivileged(&bin.join("pg_ctl"));
        finish(stop.args(["-w", "-s", "-m", "immediate", "-D"]).arg(&data).arg("stop"))?;
    }
    let _ = fs::copy(data.join("log"), place.join("log"));
    let _ = fs::remove_dir_all(&data);
    let _ = fs::remove_file(place.join("data-folder"));
    Ok(())
}

/// A folder that the server's user can reach and owns: below `place`, or, where that lies behind a closed folder, below
/// the system's temporary one.
fn data_folder(place: &Path) -> Result<PathBuf> {
    let below = place.join("data");
    fs::create_dir_all(&below)?;
    if !is_root() {
        return Ok(below);
    }
    if finish(Command::new("chown").arg(UNPRIVILEGED).arg(&below)).is_ok()
        && unprivileged(OsStr::new("test").as_ref())
            .arg("-w")
            .arg(&below)
            .status()
            .is_ok_and(|it| it.success())
    {
        return Ok(below);
    }
    let elsewhere = std::env::temp_dir().join(format!("flowline-postgres-{}", std::process::id()));
    fs::create_dir_all(&elsewhere)?;
    finish(Command::new("chown").arg(UNPRIVILEGED).arg(&elsewhere))?;
    Ok(elsewhere)
}

fn unprivileged(program: &Path) -> Command {
    // From a folder that the other user can enter.
    let mut command = match is_root() {
        true => {
            let mut command = Command::new("runuser");
            command.args(["-u", UNPRIVILEGED, "--"]).arg(program);
            command
        }
        false => Command::new(program),
    };
    command.current_dir("/");
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
