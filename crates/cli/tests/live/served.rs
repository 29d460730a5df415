//! `flowline serve` as a process, for tests that talk to it. Other tests include this file by its path.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A server that listens on a free port of this machine; it ends with this.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    /// `http` or `https`.
    pub scheme: String,
    child: Child,
}

impl Server {
    /// Starts one in a folder, with these flags after `serve`.
    pub fn start(folder: &Path, flags: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flowline"));
        command.arg("serve").args(["--listen", "127.0.0.1:0"]).args(flags).current_dir(folder);
        for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("FLOWLINE_")) {
            command.env_remove(variable);
        }
        command.env("FLOWLINE_LOG_FORMAT", "pretty");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let mut server = Server { address: ([0, 0, 0, 0], 0).into(), scheme: String::new(), child };
        let lines = BufReader::new(server.child.stderr.take().unwrap()).lines();
        let (tell, told) = mpsc::channel();
        // Reads to the end, so that the server never waits for somebody to take what it says.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let mut said = String::new();
        loop {
            let line = told.recv_timeout(Duration::from_secs(60));
            let Ok(line) = line else { panic!("the server did not start: {said}") };
            if let Some((_, url)) = line.split_once(" on http") {
                let (s, address) = url.split_once("://").unwrap();
                (server.address, server.scheme) = (address.parse().unwrap(), format!("http{s}"));
                return server;
            }
            said.push_str(&line);
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        let asked = Command::new("kill").arg(self.child.id().to_string()).status();
        assert!(asked.unwrap().success());
        self.child.wait().unwrap()
    }

    /// Memory of the process that is not shared with files, in bytes.
    #[cfg(target_os = "linux")]
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
