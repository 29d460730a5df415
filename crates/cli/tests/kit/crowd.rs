//! Servers and workers as processes.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::place::Here;
use crate::kit::wait_for;

/// A process that can be killed and started again.
#[derive(Debug)]
pub struct Running {
    arguments: Vec<String>,
    log: String,
    child: Child,
}

impl Running {
    pub fn start(here: &Here, log: &str, arguments: &[&str]) -> Running {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let child = spawn(here, log, &arguments);
        Running { arguments, log: log.to_owned(), child }
    }

    /// `kill -9`, and another in its place.
    pub fn kill(&mut self, here: &Here) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
        self.child = spawn(here, &self.log, &self.arguments);
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Starts it again where it ended by itself.
    pub fn revive(&mut self, here: &Here) {
        if self.child.try_wait().unwrap().is_some() {
            self.child = spawn(here, &self.log, &self.arguments);
        }
    }

    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be stopped.
        let _ = Command::new("kill")
            .args(["-s", "CONT", &self.child.id().to_string()])
            .stderr(Stdio::null())
            .status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(here: &Here, log: &str, arguments: &[String]) -> Child {
    let file = File::options().create(true).append(true).open(here.path(log)).unwrap();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = here.command(&arguments);
    command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap()
}

/// A `flowline serve`.
#[derive(Debug)]
pub struct Server {
    pub running: Running,
    pub port: u16,
}

impl Server {
    /// Serves a store; ready when this is done.
    pub fn start(here: &Here, number: usize, store: &str, flags: &[&str]) -> Server {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let listen = format!("127.0.0.1:{port}");
        let arguments = [&["serve", "--listen", &listen, "--store", store], flags].concat();
        let running = Running::start(here, &format!("server-{number}"), &arguments);
        let server = Server { running, port };
        wait_for("a server answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        server
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A request by hand: its status and its body.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send("POST", path, "application/json", &body.to_string())
    }

    pub fn send(&self, verb: &str, path: &str, kind: &str, body: &str) -> (u16, Value) {
        let (status, body) = self.exchange(verb, path, kind, body);
        let json = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| panic!("{body:?}"));
        (status, if body.is_empty() { Value::Null } else { json(&body) })
    }

    /// What a path answers with, as it is.
    pub fn text(&self, path: &str) -> (u16, String) {
        self.exchange("GET", path, "application/json", "")
    }

    fn exchange(&self, verb: &str, path: &str, kind: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "{verb} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// Registers a definition.
    pub fn learn(&self, yaml: &str) {
        let (status, answer) = self.send("POST", "/v1/flows", "application/yaml", yaml);
        assert!(matches!(status, 200 | 201), "{answer}");
    }

    /// Starts a run; its id.
    pub fn begin(&self, flow: &str, input: &Value) -> String {
        let (status, answer) =
            self.post(&format!("/v1/flows/{flow}/runs"), &serde_json::json!({ "input": input }));
        assert_eq!(status, 201, "{answer}");
        answer["runId"].as_str().unwrap().to_owned()
    }

    /// The log of a run: type, step and data of each event.
    pub fn log(&self, run: &str) -> Vec<(String, String, Value)> {
        let (status, page) =
            self.send("GET", &format!("/v1/runs/{run}/events?limit=1000"), "application/json", "");
        assert_eq!(status, 200, "{page}");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = page["items"].as_array().unwrap().iter();
        events.map(|event| (text(&event["type"]), text(&event["stepName"]), event["data"].clone())).collect()
    }

    /// How a run ended.
    pub fn outcome(&self, run: &str) -> Value {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let (status, row) = self.send("GET", &format!("/v1/runs/{run}"), "application/json", "");
            assert_eq!(status, 200, "{row}");
            if matches!(row["status"].as_str(), Some("completed" | "failed" | "cancelled")) {
                return row;
            }
            assert!(Instant::now() < until, "the run does not end: {row}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}
