//! `cargo xtask probe`: a server, and made-up requests for so long, held against the API's own description by Schemathesis.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::services;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;

/// The release that the configuration is written for.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
const CONFIG: &str = "crates/cli/tests/http/schemathesis.toml";
/// Something to be found.
const FLOW: &str = "flow: order\naccepts: { go: {} }\nsteps:\n  wait: { worker: depot, subscribes: [go] }\n";
const MACHINE: &str = "machine: door\nevents: { push: , lock: { type: object } }\nstates:\n  open: { on: { push: shut, lock: { role: [porter] } } }\n  shut: { on: { push: { to: open, actions: [creak] } }, after: { in: 1h, to: open } }\nactions:\n  creak: { worker: depot }\n";

#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// How long to go on
    #[arg(long, default_value_t = 10)]
    minutes: u32,
}

/// A server that ends with its owner.
pub(crate) struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Probe {
    pub(crate) fn run(&self, root: &Path) -> Result<()> {
        let folder = root.join("target/probe");
        let _ = std::fs::remove_dir_all(folder.join("store"));
        std::fs::create_dir_all(folder.join("store/flows")).context("cannot make target/probe")?;
        std::fs::write(folder.join("store/flows/order.yaml"), FLOW)?;
        std::fs::write(folder.join("store/flows/door.yaml"), MACHINE)?;
        let venv = folder.join("python");
        if !venv.join("bin/schemathesis").exists() {
            succeed(Command::new("python3").args(["-m", "venv"]).arg(&venv), "python3 with venv is needed")?;
            succeed(
                Command::new(venv.join("bin/pip")).args(["install", "--quiet", SCHEMATHESIS]),
                "pip could not install it",
            )?;
        }
        built(root)?;
        let (_server, address) = serve(root, &folder.join("store"), &["--flows", "flows"])?;
        let found = Command::new(venv.join("bin/schemathesis"))
            .current_dir(&folder)
            .arg("--config-file")
            .arg(root.join(CONFIG))
            .args([
                "run",
                &format!("{address}/openapi.json"),
                // With more it breaks down over its own source now and then, which says nothing of the server.
                "--workers",
                "1",
                "--continue-on-failure",
                "--request-timeout",
                "90",
            ])
            .args(["--max-time", &(self.minutes * 60).to_string()])
            .status()
            .context("schemathesis could not be started")?;
        ensure!(found.success(), "the API does not do what it says; see above");
        Ok(())
    }
}

/// The binary of this tree, built if it is not.
pub(crate) fn built(root: &Path) -> Result<Command> {
    succeed(Command::new("cargo").current_dir(root).args(["build", "--quiet"]), "the server does not build")?;
    Ok(flowline(root))
}

fn flowline(root: &Path) -> Command {
    Command::new(services::target_folder(root).join("debug/flowline"))
}

/// Starts a server on a store in this folder. Gives the URL that it listens on.
pub(crate) fn serve(root: &Path, folder: &Path, arguments: &[&str]) -> Result<(ServerProcess, String)> {
    let mut child = flowline(root)
        .current_dir(folder)
        .env("FLOWLINE_LOG_FORMAT", "pretty")
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .context("the server could not be started")?;
    let stderr = child.stderr.take().context("no pipe")?;
    let server = ServerProcess(child);
    let mut lines = BufReader::new(stderr).lines();
    for line in lines.by_ref() {
        if let Some((_, address)) = line?.rsplit_once(" on http://") {
            let address = format!("http://{address}");
            // Read on, or a full pipe would stop it.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((server, address));
        }
    }
    bail!("the server ended before it listened")
}

fn succeed(command: &mut Command, or: &'static str) -> Result<()> {
    let status = command.status().context(or)?;
    ensure!(status.success(), "{or}");
    Ok(())
}
