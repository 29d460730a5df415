//! Limits of payloads as settings: raised, they let larger payloads through by every way in and on every store; lowered, they
//! refuse what is new with the name of the setting, and leave what runs hold alone.
//!
//! Needs the servers that `cargo xtask test` starts.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::kit::crowd::{Running, Server};
use crate::kit::place::Here;
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

/// Everything that carries a payload: an input, an event from outside, the emit and the result of a command, an HTTP answer,
/// a worker's result and emit, and a join of them all.
const FLOW: &str = "
flow: large
accepts: { told: null }
output: results.all
steps:
  command: { command: [cat, line], emits: [said] }
  http: { http: { get: 'URL' }, returns: answered }
  worker: { worker: depot, emits: [packed] }
  outside: { subscribes: [told], command: ['true'] }
  all: { subscribes: [said, answered, packed, told], command: [sh, -c, 'read -r step; echo \"{\\\"result\\\": ${#step}}\"'] }
";

const MACHINE: &str = "
machine: note
events: { write: }
context: { text: 'input.text' }
states: { open: { on: { write: { set: { text: payload.text } } } } }
";

fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

/// Answers every request with a JSON text of so many bytes.
fn answers(bytes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let body = json!(text(bytes)).to_string();
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
            let _ = stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes());
            let _ = stream.read(&mut [0]);
        }
    });
    url
}

fn on_server(variable: &str, place: &str) -> String {
    let url = std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set; run the tests with `cargo xtask test`, or start servers with `cargo xtask services start`")
    });
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}{place}=limits_{}", std::process::id())
}

/// A server with these flags, a worker whose results and emits have so many bytes, and the flow.
fn serve(here: &Here, store: &str, flags: &[&str], bytes: usize) -> (Server, Running) {
    here.write("line", &format!("{}\n", json!({ "emit": { "name": "said", "payload": text(bytes) } })));
    let emit = json!({ "emit": { "name": "packed", "payload": text(bytes) }, "result": text(bytes) });
    // A line has one payload and its envelope.
    let lines = [json!({ "emit": emit["emit"] }), json!({ "result": emit["result"] })];
    here.write("packed", &lines.map(|line| format!("{line}\n")).concat());
    here.write("large.yaml", &FLOW.replace("URL", &answers(bytes)));
    here.write("note.yaml", MACHINE);
    let folder = here.folder.path().to_str().unwrap();
    let common = ["--allow-commands", "--http-allow", "private", "--drain", "1s", "--flows", folder];
    for other in ["order.yaml", "approve.yaml", "doomed.yaml", "slow.yaml"] {
        let _ = std::fs::remove_file(here.path(other));
    }
    let server = Server::start(here, 0, store, &[&common[..], flags].concat());
    let url = server.url();
    let worker = Running::start(
        here,
        "worker",
        &["worker", "--server", &url, "--queue", "depot", "--", "cat", "packed"],
    );
    (server, worker)
}

fn step<'a>(row: &'a Value, name: &str) -> &'a Value {
    row["steps"].as_array().unwrap().iter().find(|step| step["name"] == name).unwrap()
}

fn raised_limits_let_large_payloads_through(store: &str) {
    let here = Here::new();
    let bytes = 2 * MIB;
    let (server, _worker) = serve(&here, store, &["--max-payload", "4MiB", "--max-context", "3MiB"], bytes);
    let run = server.begin("large", &json!(text(bytes)));
    let event = json!({ "name": "told", "payload": text(bytes) });
    let (status, answer) = server.post(&format!("/v1/runs/{run}/events"), &event);
    assert!(matches!(status, 200 | 202), "{answer}");
    let row = server.outcome(&run);
    assert_eq!(row["status"], "completed", "{}", row["error"]);
    assert!(row["result"].as_u64().unwrap() > 8 * MIB as u64, "the join was given all: {}", row["result"]);
    let (status, answer) = server.send(
        "PUT",
        "/v1/state/orders/big",
        "application/json",
        &json!({ "value": text(bytes) }).to_string(),
    );
    assert_eq!(status, 200, "{answer}");

    let note = server.begin("note", &json!({ "text": text(bytes) }));
    let event = json!({ "name": "write", "payload": { "text": text(bytes + 7) } });
    let (status, answer) = server.post(&format!("/v1/runs/{note}/events?wait=30s"), &event);
    assert_eq!((status, &answer["receipt"]["status"]), (200, &json!("completed")), "{answer}");

    // The limit goes back to what it was: what the store holds is read and retried, what is new is refused.
    drop(server);
    let (server, _worker) = serve(&here, store, &[], 7);
    let (status, again) = server.post(&format!("/v1/runs/{run}/retry"), &json!({ "from": "worker" }));
    assert_eq!(status, 201, "{again}");
    let row = server.outcome(again["runId"].as_str().unwrap());
    assert_eq!(row["status"], "completed", "{}", row["error"]);
    let event = json!({ "name": "write", "payload": { "text": "short" } });
    let (status, answer) = server.post(&format!("/v1/runs/{note}/events?wait=30s"), &event);
    assert_eq!((status, &answer["receipt"]["status"]), (200, &json!("completed")), "it shrinks: {answer}");
    let (status, answer) = server.post("/v1/flows/large/runs", &json!({ "input": text(MIB) }));
    assert_eq!((status, &answer["code"]), (413, &json!("too-large")));
    assert_eq!(answer["detail"], "the input is 1048578 bytes; the limit is 1048576 (setting max-payload)");
    assert_eq!(here.json(0, &["verify", "--server", &server.url()])["violations"], json!([]));
}

#[test]
fn raised_limits_let_large_payloads_through_on_sqlite_and_lowered_ones_leave_them() {
    raised_limits_let_large_payloads_through("sqlite:flowline.db");
}

#[test]
fn raised_limits_let_large_payloads_through_on_postgres_and_lowered_ones_leave_them() {
    raised_limits_let_large_payloads_through(&on_server("FLOWLINE_TEST_POSTGRES_URL", "schema"));
}

#[test]
fn raised_limits_let_large_payloads_through_on_redis_and_lowered_ones_leave_them() {
    raised_limits_let_large_payloads_through(&on_server("FLOWLINE_TEST_REDIS_URL", "prefix"));
}

#[test]
fn raised_limits_let_large_payloads_through_on_a_redis_cluster_and_lowered_ones_leave_them() {
    raised_limits_let_large_payloads_through(&on_server("FLOWLINE_TEST_REDIS_CLUSTER_URL", "prefix"));
}

#[test]
fn a_lowered_limit_refuses_payloads_by_every_way_in_and_names_the_setting() {
    let here = Here::new();
    let bytes = 5000;
    let (server, _worker) = serve(&here, "sqlite:flowline.db", &["--max-payload", "4KiB"], bytes);
    let named = |what: &str, answer: &Value| {
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert_eq!(answer["code"], "too-large", "{what}: {answer}");
        assert!(detail.contains("bytes; the limit is 4096 (setting max-payload)"), "{what}: {detail}");
    };
    let refused = |what: &str, path: &str, body: Value| {
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 413, "{what}: {answer}");
        named(what, &answer);
    };
    let run = server.begin("large", &json!(1));
    refused("start", "/v1/flows/large/runs", json!({ "input": text(bytes) }));
    refused("event", &format!("/v1/runs/{run}/events"), json!({ "name": "told", "payload": text(bytes) }));
    let note = server.begin("note", &json!({ "text": "a" }));
    let event = json!({ "name": "write", "payload": { "text": text(bytes) } });
    refused("event of a machine", &format!("/v1/runs/{note}/events"), event);
    let value = json!({ "value": text(bytes) }).to_string();
    let (status, answer) = server.send("PUT", "/v1/state/orders/big", "application/json", &value);
    assert_eq!(status, 413);
    named("state", &answer);

    server.post(&format!("/v1/runs/{run}/events"), &json!({ "name": "told", "payload": 1 }));
    let row = server.outcome(&run);
    assert_eq!(row["status"], "failed", "{row}");
    for name in ["command", "http", "worker"] {
        let step = step(&row, name);
        let error = step["error"].as_str().unwrap_or_default();
        assert_eq!(
            (&step["status"], &step["attempts"]),
            (&json!("failed"), &json!(1)),
            "{name}: not tried again"
        );
        assert!(error.contains("4096") && error.contains("(setting max-payload)"), "{name}: {error}");
    }
}

#[test]
fn a_body_grows_with_the_limit_of_payloads_and_is_refused_with_the_setting_named() {
    let here = Here::new();
    let (server, _worker) = serve(&here, "sqlite:flowline.db", &["--max-payload", "1536KiB"], 7);
    let input = |bytes: usize| json!({ "input": text(bytes) });
    let (status, answer) = server.post("/v1/flows/large/runs", &input(2 * MIB));
    assert_eq!(status, 413);
    let detail = "the input is 2097154 bytes; the limit is 1572864 (setting max-payload)";
    assert_eq!(answer["detail"], detail, "the body itself is taken");
    let (status, answer) = server.post("/v1/flows/large/runs", &input(3 * MIB));
    assert_eq!(status, 413);
    assert_eq!(
        answer["detail"],
        "the body is larger than 3145728 bytes, the limit here (setting max-payload)"
    );
}

#[test]
fn limits_are_settings_by_flag_environment_and_file_and_bad_ones_are_refused() {
    let here = Here::new();
    let shown = here.json(0, &["config"]);
    for (name, usual) in [("max-payload", "1MiB"), ("max-join", "16MiB"), ("max-context", "64KiB")] {
        assert_eq!(shown[name], json!({ "value": usual, "source": "default" }));
    }
    here.write("flowline.toml", "max-payload = \"20MiB\"\n");
    let shown = here.json(0, &["config"]);
    assert_eq!(
        (&shown["max-payload"]["value"], &shown["max-join"]["value"]),
        (&json!("20MiB"), &json!("40MiB"))
    );
    here.write("big.json", &json!(text(2 * MIB)).to_string());
    here.start(&["slow.yaml", "--input-file", "big.json"]);
    let with = |size: &str| {
        let mut command = here.command(&["start", "slow.yaml", "--input-file", "big.json"]);
        crate::kit::place::Said::of(command.env("FLOWLINE_MAX_PAYLOAD", size).output().unwrap())
    };
    with("1MiB").refused(2, &["big.json is larger than 2097152 bytes", "1048576 (setting max-payload)"]);
    with("1536KiB").refused(2, &["big.json is 2097154 bytes; the limit is 1572864 (setting max-payload)"]);
    for (size, texts) in [
        ("2MB", &["max-payload (from environment FLOWLINE_MAX_PAYLOAD)", "4MiB"][..]),
        ("1KiB", &["max-payload is 1KiB", "4KiB to 32MiB"]),
        ("33MiB", &["max-payload is 33MiB", "4KiB to 32MiB"]),
    ] {
        with(size).refused(2, texts);
    }
    here.write("go", "");
    let run = ["run", "slow.yaml", "--no-progress", "--max-payload"];
    here.flowline(&[&run[..], &["64KiB", "--input-file", "big.json"]].concat()).refused(2, &["max-payload"]);
    here.flowline(&[&run[..], &["8MiB", "--max-join", "9MiB", "--max-context", "2MiB"]].concat())
        .refused(2, &["max-join (9MiB) is too small for max-payload (8MiB)", "or more"]);
    here.flowline(&[&run[..], &["1MiB", "--max-context", "2MiB"]].concat())
        .refused(2, &["raise max-payload or lower max-context"]);
    here.json(0, &["run", "slow.yaml", "--max-payload", "3MiB", "--input-file", "big.json"]);
}
