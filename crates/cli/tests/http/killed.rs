//! Clients that are killed in the middle of what they ask for: what was done and the audit log agree, one to one (I21).
//!
//! `FLOWLINE_TEST_ACTS` says how many acts to cut off; `FLOWLINE_TEST_ACTS=1000` is the large run.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kit::dice::Dice;
use crate::kit::served::Served;
use crate::kit::server::{Kind, Place};

const FLOW: &str = "flow: NAME\naccepts: { go: }\nsteps:\n  a: { subscribes: [go], worker: depot }\n";
/// Acts cut off unless told otherwise.
const ACTS: usize = 200;

/// One act on an object of its own.
struct Act {
    kind: &'static str,
    method: &'static str,
    path: String,
    body: Value,
    /// What is looked at afterwards.
    object: String,
}

const KINDS: [&str; 16] = [
    "start", "send", "cancel", "pause", "resume", "fail", "retry", "delete", "token", "revoke", "register",
    "retire", "queue", "bulk", "state", "lock",
];

fn acts() -> usize {
    std::env::var("FLOWLINE_TEST_ACTS").ok().and_then(|count| count.parse().ok()).unwrap_or(ACTS)
}

fn started(served: &Served, flow: &str, labels: Value) -> String {
    let reply = served.post(&format!("/v1/flows/{flow}/runs"), &json!({ "input": 1, "labels": labels }));
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()["runId"].as_str().unwrap().to_owned()
}

/// Makes the object of an act, and says what the client will ask.
fn prepare(served: &Served, kind: &'static str, at: usize) -> Act {
    let run = || started(served, "wait", json!({ "of": format!("b{at}") }));
    let steer = |run: &str, act: &str| {
        assert_eq!(served.post(&format!("/v1/runs/{run}/{act}"), &json!({})).status, 200);
    };
    let (method, path, body, object) = match kind {
        "start" => {
            let body = json!({ "input": 1, "labels": { "start": format!("s{at}") } });
            ("POST", "/v1/flows/wait/runs".to_owned(), body, format!("s{at}"))
        }
        "send" => {
            let run = run();
            let body = json!({ "name": "go", "payload": 1 });
            ("POST", format!("/v1/runs/{run}/events"), body, run)
        }
        "cancel" | "pause" => {
            let run = run();
            ("POST", format!("/v1/runs/{run}/{kind}"), json!({}), run)
        }
        "fail" => {
            let run = run();
            ("POST", format!("/v1/runs/{run}/fail"), json!({ "error": "e" }), run)
        }
        "resume" => {
            let run = run();
            steer(&run, "pause");
            ("POST", format!("/v1/runs/{run}/resume"), json!({}), run)
        }
        "retry" | "delete" => {
            let run = run();
            steer(&run, "cancel");
            match kind {
                "retry" => ("POST", format!("/v1/runs/{run}/retry"), json!({}), run),
                _ => ("DELETE", format!("/v1/runs/{run}"), Value::Null, run),
            }
        }
        "token" => {
            let body = json!({ "subject": format!("t{at}"), "scopes": ["read"] });
            ("POST", "/v1/tokens".to_owned(), body, format!("t{at}"))
        }
        "revoke" => {
            let body = json!({ "subject": format!("r{at}"), "scopes": ["read"] });
            let id = served.post("/v1/tokens", &body).json()["id"].as_str().unwrap().to_owned();
            ("DELETE", format!("/v1/tokens/{id}"), Value::Null, id)
        }
        "register" => {
            let steps = json!({ "a": { "worker": "depot" } });
            let flow = format!("f{at}");
            ("POST", "/v1/flows".to_owned(), json!({ "flow": flow, "steps": steps }), flow)
        }
        "retire" => {
            let flow = format!("g{at}");
            served.register(&FLOW.replace("NAME", &flow));
            ("POST", format!("/v1/flows/{flow}/retire"), json!({}), flow)
        }
        "queue" => ("POST", format!("/v1/queues/q{at}/pause"), json!({}), format!("q{at}")),
        "bulk" => {
            let run = run();
            let filter = json!({ "label": [format!("of=b{at}")] });
            ("POST", "/v1/runs/bulk".to_owned(), json!({ "action": "cancel", "filter": filter }), run)
        }
        "state" => ("PUT", format!("/v1/state/orders/k{at}"), json!({ "value": at }), format!("k{at}")),
        _ => (
            "POST",
            format!("/v1/locks/l{at}"),
            json!({ "owner": "me", "ttlMs": 3_600_000 }),
            format!("l{at}"),
        ),
    };
    Act { kind, method, path, body, object }
}

/// A client in a process of its own, killed after a moment.
fn cut_off(served: &Served, act: &Act, after: Duration) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--request", act.method, "--header", "content-type: application/json"]);
    if !act.body.is_null() {
        command.args(["--data", &act.body.to_string()]);
    }
    command.arg(format!("http://{}{}", served.address, act.path));
    let mut client = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("curl is installed");
    std::thread::sleep(after);
    client.kill().expect("it is ours");
    client.wait().expect("it is ours");
}

/// All entries of the log, once every act in it is done.
fn entries(served: &Served) -> Vec<Value> {
    let until = Instant::now() + Duration::from_secs(60);
    let mut before = 0;
    loop {
        let (mut log, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = served.get(&format!("/v1/audit?limit=1000{cursor}")).json();
            log.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        if log.len() == before && log.iter().all(|entry| entry["status"] != 0) {
            return log;
        }
        assert!(Instant::now() < until, "an act is not done: {log:?}");
        before = log.len();
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Whether an act was carried out, by what it left.
fn was_done(served: &Served, act: &Act) -> bool {
    let status = || served.get(&format!("/v1/runs/{}", act.object)).json()["status"].clone();
    let listed = |path: &str, name: &str| {
        let items = served.get(path).json()["items"].as_array().unwrap().clone();
        items.iter().filter(|item| item[name] == act.object).cloned().collect::<Vec<_>>()
    };
    match act.kind {
        "start" => served.get(&format!("/v1/runs?label=start={}", act.object)).json()["total"] == 1,
        "send" => status() == "running",
        "cancel" | "bulk" => status() == "cancelled",
        "pause" => status() == "paused",
        "resume" => status() != "paused",
        "fail" => status() == "failed",
        "retry" => !listed("/v1/runs?limit=1000", "retryOf").is_empty(),
        "delete" => served.get(&format!("/v1/runs/{}", act.object)).status == 404,
        "token" => !listed("/v1/tokens", "subject").is_empty(),
        "revoke" => listed("/v1/tokens", "id").is_empty(),
        "register" => served.get(&format!("/v1/flows/{}", act.object)).status == 200,
        "retire" => served.post(&format!("/v1/flows/{}/runs", act.object), &json!({})).status != 201,
        "queue" => listed("/v1/queues", "queue").iter().any(|queue| queue["paused"] == true),
        "state" => served.get(&format!("/v1/state/orders/{}", act.object)).status == 200,
        _ => !listed("/v1/locks", "name").is_empty(),
    }
}

/// Whether this entry is of this act.
fn is_of(entry: &Value, act: &Act) -> bool {
    let same = entry["path"] == act.path && entry["method"] == act.method;
    let asked = &entry["asked"];
    same && match act.kind {
        "token" => asked["subject"] == act.object,
        "register" => asked["flow"] == act.object,
        "bulk" => asked["filter"] == act.body["filter"],
        _ => true,
    }
}

fn clients_are_killed(served: &Served) {
    served.register(&FLOW.replace("NAME", "wait"));
    let mut dice = Dice(18);
    let acts: Vec<Act> = (0..acts())
        .map(|at| {
            let act = prepare(served, KINDS[at % KINDS.len()], at);
            // Some are killed before they have asked, some while it is done, some after.
            cut_off(served, &act, Duration::from_micros(dice.roll(20_000)));
            act
        })
        .collect();
    let log = entries(served);
    let mut done: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for act in &acts {
        let was_done = was_done(served, act);
        let (count, of) = done.entry(act.kind).or_default();
        (*count, *of) = (*count + usize::from(was_done), *of + 1);
        // What a start or an event did is in the log of its run.
        if ["start", "send"].contains(&act.kind) {
            continue;
        }
        let succeeded =
            |entry: &&Value| is_of(entry, act) && (200..300).contains(&entry["status"].as_u64().unwrap());
        let entries = log.iter().filter(succeeded).count();
        assert_eq!(entries, usize::from(was_done), "{} of {}: {done:?}", act.kind, act.object);
    }
    let all: usize = done.values().map(|(count, _)| count).sum();
    assert!(all > 0 && all < acts.len(), "nothing was cut off in the middle: {done:?}");
}

#[test]
fn acts_and_audit_entries_agree_though_clients_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    clients_are_killed(&Served::start(folder.path(), &[]));
}

#[test]
fn acts_and_audit_entries_agree_though_clients_are_killed_on_redis() {
    let folder = tempfile::tempdir().unwrap();
    let store = Place::shared(Kind::Redis).url;
    clients_are_killed(&Served::start(folder.path(), &["--store", &store]));
}

#[test]
fn acts_and_audit_entries_agree_though_clients_are_killed_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let store = Place::shared(Kind::Postgres).url;
    clients_are_killed(&Served::start(folder.path(), &["--store", &store]));
}
