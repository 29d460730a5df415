//! Every example runs as a reader of it would run it. The flows of the documentation run with their [pages](pages/mod.rs).

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Examples that run to their end by themselves: the file, the run's input, its result.
fn complete() -> Vec<(&'static str, Value, Value)> {
    let ship = |pay: &str, pack: &str| {
        let [(paid, by), (packed, with)] = [pay, pack].map(|pair| pair.split_once(' ').unwrap());
        json!({ "ship": { paid: { "did": by }, packed: { "did": with } } })
    };
    vec![
        (
            "order-fulfilment.yaml",
            json!({ "order": "A-1001", "total": 1900 }),
            json!({ "order": "A-1001", "receipt": "receipt-1900", "tracking": "PT-4711" }),
        ),
        (
            "parallel-branches.yaml",
            json!({ "orderId": "A-1001" }),
            json!({ "orderId": "A-1001", "payment": "paid", "inventory": "reserved", "completed": true }),
        ),
        ("sync-points.yaml", Value::Null, json!({ "announce": { "did": "announce" } })),
        ("flaky.toml", Value::Null, json!(3)),
        (
            "routes.yaml",
            json!({ "method": "card", "gift": true }),
            ship("paid.by-card card", "goods.wrapped wrap"),
        ),
        ("routes.yaml", json!({ "method": "invoice" }), ship("paid.by-invoice invoice", "goods.boxed box")),
        ("join-of-five.json", Value::Null, json!(5)),
        ("half-a-join.yaml", Value::Null, json!({ "ship": { "did": "ship" } })),
        ("long-chain.yaml", Value::Null, json!({ "step-20": { "count": 20 } })),
    ]
}

/// The one that waits for somebody.
const APPROVAL: &str = "approval.yaml";
/// The one that calls a server.
const CALL: &str = "call.yaml";

/// Machines, with the status and the state that the commands at their heads lead to, and the context or result then.
fn machines() -> [(&'static str, &'static str, &'static str, Value); 3] {
    let paid = json!({ "paid": 400, "approved_by": ["max"] });
    let again = json!({ "title": "the printer is out of paper", "owner": "ada", "reopened": 1, "why": "it is out again" });
    [
        ("expense.yaml", "completed", "approved", paid),
        ("order-payment.yaml", "completed", "shipped", json!({ "order": "A-1001", "paid": 1900 })),
        ("ticket.toml", "waiting", "working", again),
    ]
}

/// A folder for the store, so that nothing is written beside the examples.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(TempDir::new().unwrap())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).current_dir(root());
        for variable in ["TENANT", "SLOTS", "QUEUES", "LEASE", "DRAIN", "HTTP_ALLOW", "COLOR"] {
            command.env_remove(format!("FLOWLINE_{variable}"));
        }
        command.env("FLOWLINE_STORE", format!("sqlite:{}", self.0.path().join("flowline.db").display()));
        command
    }

    /// The answer of a command that must end with exit code 0.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(env!("CARGO_BIN_EXE_flowline")).args(arguments).arg("--json").output();
        let output = output.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", both(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn both(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat()
}

fn in_folder(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
}

#[test]
fn examples_run_to_their_results() {
    let place = Place::new();
    for (file, input, result) in complete() {
        let path = format!("examples/{file}");
        let answer = place.json(&["run", &path, "--input", &input.to_string()]);
        assert_eq!((&answer["status"], &answer["result"]), (&"completed".into(), &result), "{file}");
    }
}

#[test]
fn the_flaky_example_succeeds_at_its_third_attempt() {
    let place = Place::new();
    let run = place.json(&["run", "examples/flaky.toml"]);
    let shown = place.json(&["show", run["runId"].as_str().unwrap()]);
    assert_eq!((&shown["retries"], &shown["steps"][0]["attempts"]), (&2.into(), &3.into()));
}

#[test]
fn the_approval_example_waits_for_its_event_and_then_completes() {
    let place = Place::new();
    let waiting = place.json(&["run", "examples/approval.yaml", "--input", r#"{"amount": 1200}"#]);
    assert_eq!((&waiting["status"], &waiting["awaits"]), (&"waiting".into(), &json!(["approval.given"])));
    let run = waiting["runId"].as_str().unwrap();
    let sent = place.json(&["send", run, "approval.given", "--payload", r#"{"by": "ada"}"#]);
    assert_eq!(sent["changed"], true);
    place.json(&["work", "--until-idle"]);
    let shown = place.json(&["show", run]);
    assert_eq!((&shown["status"], &shown["result"]), (&"completed".into(), &true.into()));
}

#[test]
fn the_expense_example_stands_until_somebody_sends_an_event() {
    let place = Place::new();
    let input = r#"{"amount": 400, "by": "ada"}"#;
    let draft = place.json(&["run", "examples/expense.yaml", "--input", input]);
    assert_eq!((&draft["status"], &draft["awaits"]), (&"waiting".into(), &json!(["submit"])));
    let run = draft["runId"].as_str().unwrap();
    place.json(&["send", run, "submit", "--user", "ada"]);
    place.json(&["send", run, "approve", "--user", "max", "--role", "manager"]);
    place.json(&["work", "--until-idle"]);
    let shown = place.json(&["show", run]);
    assert_eq!((&shown["status"], &shown["state"]), (&"completed".into(), &"approved".into()));
    assert_eq!(shown["result"], json!({ "paid": 400, "approved_by": ["max"] }));
}

#[test]
fn machines_go_as_the_commands_at_their_heads_say() {
    let flowline = Path::new(env!("CARGO_BIN_EXE_flowline")).parent().unwrap().display().to_string();
    let path = format!("{flowline}:{}", std::env::var("PATH").unwrap());
    for (file, status, state, end) in machines() {
        let place = Place::new();
        let text = std::fs::read_to_string(root().join("examples").join(file)).unwrap();
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
        assert!(
            lines.len() > 2 && lines.iter().all(|line| line.starts_with("flowline ")),
            "{file}: {lines:?}"
        );
        let mut run = String::new();
        for line in lines {
            let mut shell = place.command("sh");
            let shell = shell.args(["-c", &line.replace("RUN", &run)]).env("PATH", &path);
            let output = shell.current_dir(root().join("examples")).output().unwrap();
            assert!(output.status.success(), "{file}: {line}: {}", both(&output));
            run = place.json(&["runs"])["items"][0]["runId"].as_str().unwrap().to_owned();
        }
        let shown = place.json(&["show", &run]);
        assert_eq!((&shown["status"], &shown["state"]), (&status.into(), &state.into()), "{file}: {shown}");
        let key = if status == "completed" { "result" } else { "context" };
        assert_eq!(shown[key], end, "{file}");
    }
}

#[test]
fn the_call_example_hands_on_what_a_server_answers() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let read = stream.read(&mut request).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\na page").unwrap();
        String::from_utf8_lossy(&request[..read]).into_owned()
    });
    let place = Place::new();
    let done = place.json(&["run", "examples/call.yaml", "--input", &json!({ "url": url }).to_string()]);
    assert_eq!(done["result"], json!({ "keep": { "page.fetched": "a page" } }));
    assert!(asked.join().unwrap().contains("\r\nx-asked-by: call\r\n"));
}

#[test]
fn every_example_is_among_those_that_run_here() {
    let run: BTreeSet<&str> = complete()
        .iter()
        .map(|(file, ..)| *file)
        .chain([APPROVAL, CALL])
        .chain(machines().map(|(file, ..)| file))
        .collect();
    let there: Vec<PathBuf> = in_folder("examples");
    let there: BTreeSet<&str> = there
        .iter()
        .filter_map(|path| path.file_name()?.to_str())
        .filter(|name| !name.ends_with(".md"))
        .collect();
    assert_eq!(there, run);
}
