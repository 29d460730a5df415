//! `http` steps of flows that are run from files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;

use crate::kit::place::Here;

/// A server that answers every request with `{"hello": 1}`; its URL.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The requests of these tests have no body and fit one packet.
            let _ = stream.read(&mut [0; 4096]);
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"hello\": 1}";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

fn here() -> (Here, String) {
    let here = Here::new();
    here.write("call.yaml", "flow: call\nsteps:\n  ask: { http: { get: '${input}' } }\n");
    (here, format!("{:?}", server()))
}

#[test]
fn a_step_on_this_machine_can_be_called_unless_that_is_ruled_out() {
    let (here, url) = here();
    let done = here.json(0, &["run", "call.yaml", "--input", &url]);
    assert_eq!(done["result"]["ask"]["hello"], 1);
    let refused = here.json(1, &["run", "call.yaml", "--input", &url, "--http-allow", "none"]);
    assert!(refused["error"].as_str().unwrap().contains("http-allow"), "{refused}");
    let mut by_list = here.command(&["run", "call.yaml", "--input", &url]);
    let by_list = by_list.env("FLOWLINE_HTTP_ALLOW", "10.0.0.0/8,127.0.0.1").output().unwrap();
    assert!(by_list.status.success(), "{by_list:?}");
}

#[test]
fn a_rule_that_cannot_be_read_is_refused_with_the_part_that_is_wrong() {
    let (here, url) = here();
    let said = here.flowline(&["run", "call.yaml", "--input", &url, "--http-allow", "private,10.0.0.0/99"]);
    assert_eq!(said.exit, 2, "{said:?}");
    assert!(said.err.contains("http-allow (from flag): \"10.0.0.0/99\""), "{said:?}");
}

#[test]
fn a_settings_file_can_hold_the_rule() {
    let here = Here::new();
    here.write("flowline.toml", "http-allow = \"none\"\n");
    let settings = here.json(0, &["config"]);
    assert_eq!(settings["http-allow"]["value"], "none");
    assert!(settings["http-allow"]["source"].as_str().unwrap().starts_with("file "), "{settings}");
}

#[test]
fn a_waiting_request_is_said_to_need_a_worker_and_gets_one() {
    let (here, url) = here();
    let started = here.json(0, &["start", "call.yaml", "--input", &url]);
    let run = started["runId"].as_str().unwrap();
    let why = here.json(0, &["explain", run])["steps"][0]["reason"].as_str().unwrap().to_owned();
    assert!(why.contains("no worker has claimed it; run `flowline work`"), "{why}");
    here.json(0, &["work", "--until-idle"]);
    assert_eq!(here.json(0, &["show", run])["status"], "completed");
}

/// A server that does not outlive its test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads one request with its body; its head and its stream.
fn request(listener: &TcpListener) -> (String, TcpStream) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.ends_with("null") {
        let read = stream.read(&mut buffer).unwrap();
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    (text, stream)
}

/// Posts JSON; the status and the answer.
fn post(address: &str, path: &str, kind: &str, body: &str) -> (u16, serde_json::Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: {kind}");
    stream.write_all(format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn a_served_step_ends_with_what_is_called_back() {
    let here = Here::new();
    let mut serving = Serving(here.spawn(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--http-allow",
        "127.0.0.0/8",
        "--log-format",
        "pretty",
    ]));
    let mut line = String::new();
    BufReader::new(serving.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit_once("http://").unwrap().1;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/jobs", listener.local_addr().unwrap());
    let flow = format!("flow: later\nsteps:\n  ask: {{ http: {{ post: '{url}', callback: true }} }}\n");
    assert_eq!(post(address, "/v1/flows", "application/yaml", &flow).0, 201);
    let json = "application/json";
    let started = post(address, "/v1/flows/later/runs", json, "{}").1;

    let (asked, mut stream) = request(&listener);
    stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").unwrap();
    let callback = asked.lines().find_map(|line| line.strip_prefix("flowline-callback-url: ")).unwrap();
    let path = callback.strip_prefix(&format!("http://{address}")).expect("it is reached where it listens");
    let (status, problem) = post(address, path, json, r#"{"result": 1, "fail": {"error": "both"}}"#);
    assert_eq!((status, &problem["code"]), (400, &"bad-body".into()));
    let (status, problem) = post(address, "/v1/callbacks/made-up", json, "{}");
    assert_eq!((status, &problem["code"]), (404, &"not-found".into()));
    let (status, done) = post(address, path, json, r#"{"result": {"label": 7}}"#);
    assert_eq!(
        (status, &done["changed"], &done["status"]),
        (200, &true.into(), &"completed".into()),
        "{done}"
    );
    assert_eq!(done["runId"], started["runId"]);
    assert_eq!(post(address, path, json, r#"{"result": {"label": 7}}"#).1["changed"], false);
    let (status, problem) = post(address, path, json, r#"{"fail": {"error": "late"}}"#);
    assert_eq!((status, &problem["code"]), (409, &"outcome-conflict".into()), "{problem}");
}
