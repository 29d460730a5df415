//! A server process of its own, on a port of its own, and requests to it over plain sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Generous: machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Served {
    process: Process,
    pub address: SocketAddr,
    /// What it said before it listened.
    pub began: String,
    /// Kept open, or the server's next line would fail.
    stderr: BufReader<ChildStderr>,
}

/// A process that does not outlive its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// The code of a problem.
    pub fn code(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Served {
    /// Starts `flowline serve` with these arguments on a store in this folder.
    pub fn start(folder: &Path, arguments: &[&str]) -> Served {
        Served::command(folder, &[&["serve", "--listen", "127.0.0.1:0"], arguments].concat())
            .unwrap_or_else(|said| panic!("the server did not start: {said}"))
    }

    /// Runs a command that serves; where it ends at once, what it said.
    pub fn command(folder: &Path, arguments: &[&str]) -> Result<Served, String> {
        Served::command_with(folder, arguments, &[])
    }

    /// The same with these environment variables.
    pub fn command_with(
        folder: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Served, String> {
        let child = Command::new(env!("CARGO_BIN_EXE_flowline"))
            .current_dir(folder)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary is built");
        let mut process = Process(child);
        let mut stderr = BufReader::new(process.0.stderr.take().expect("a pipe"));
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if stderr.read_line(&mut line).expect("text") == 0 {
                return Err(said);
            }
            // A line of the log, where that is JSON.
            let logged: Option<Value> = serde_json::from_str(&line).ok();
            let text = logged.as_ref().and_then(|line| line["message"].as_str()).unwrap_or(&line).trim();
            if let Some(address) = text.rsplit_once(" on http://").and_then(|(_, at)| at.parse().ok()) {
                return Ok(Served { process, address, began: said, stderr });
            }
            said.push_str(&line);
        }
    }

    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request += &format!("host: {}\r\n", self.address);
        }
        headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
        if !body.is_empty() || method == "POST" {
            request += &format!("content-length: {}\r\n", body.len());
        }
        self.raw(format!("{request}\r\n{body}").as_bytes())
    }

    /// Sends bytes as they are, and reads until the server closes.
    pub fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        // A server that has refused the head may close before it has read the rest.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        parse(&answer)
    }

    /// Registers a definition in YAML.
    pub fn register(&self, definition: &str) {
        let reply = self.send("POST", "/v1/flows", &[("content-type", "application/yaml")], definition);
        assert!(reply.status == 200 || reply.status == 201, "{reply:?}");
    }

    /// The most memory that it has held, in bytes.
    pub fn peak_memory(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel says");
        line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
    }

    /// Asks it to stop; what it has said on stderr since it listened, by line.
    pub fn said(mut self) -> Vec<String> {
        let _ = Command::new("kill").args(["-TERM", &self.process.0.id().to_string()]).status();
        self.stderr.by_ref().lines().map(|line| line.expect("text")).collect()
    }

    /// Asks it to stop, and waits until it has.
    pub fn stop(mut self) -> std::process::ExitStatus {
        let _ = Command::new("kill").args(["-TERM", &self.process.0.id().to_string()]).status();
        self.process.0.wait().expect("it was started")
    }
}

fn parse(answer: &[u8]) -> Reply {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { unchunk(body) } else { body.to_owned() };
    Reply { status, headers, body }
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        whole.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    whole
}
