//! `http` steps of flows that are run from files.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::place::Here;

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
    assert!(why.ends_with("it needs flowline work"), "{why}");
    here.json(0, &["work", "--until-idle"]);
    assert_eq!(here.json(0, &["show", run])["status"], "completed");
}
