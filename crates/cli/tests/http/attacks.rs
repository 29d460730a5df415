//! Attacks that the server was found open to, each end to end: the process stays up, small and of use to others.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::http::access::{flowline, token};
use crate::kit::served::{Reply, Served};

/// What the server may take while it's attacked, in MiB.
const MEMORY: u64 = 300;
/// Runs of the quiet tenant meanwhile.
const QUIET: usize = 10;

fn ask(served: &Served, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let bearer = format!("Bearer {token}");
    let body = if method == "GET" { String::new() } else { body.to_string() };
    served.send(method, path, &[("authorization", &bearer), ("content-type", "application/json")], &body)
}

/// How an attack asks: method, path, body.
type Ask<'a> = dyn Fn(&str, &str, &Value) -> Reply + 'a;

/// Attacks as one tenant, over and over on some connections, while another starts runs and sees them end. The server's memory
/// stays within its bound.
fn another_tenant_goes_on(attack: &(dyn Fn(&Ask<'_>) + Sync), prepare: &[Value]) {
    let folder = tempfile::tempdir().unwrap();
    let noisy = token(folder.path(), "noisy", &["--scope", "admin"]);
    let quiet = token(folder.path(), "quiet", &["--scope", "admin"]);
    let served =
        Served::start(folder.path(), &["--auth", "tokens", "--allow-commands", "--max-log", "64KiB"]);
    for definition in prepare {
        let reply = ask(&served, &noisy, "POST", "/v1/flows", definition);
        assert_eq!(reply.status, 201, "{reply:?}");
    }
    let flow = json!({ "flow": "quiet", "steps": { "a": { "worker": "q" } } });
    assert_eq!(ask(&served, &quiet, "POST", "/v1/flows", &flow).status, 201);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    attack(&|method, path, body| ask(&served, &noisy, method, path, body));
                }
            });
        }
        let runs = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..QUIET {
                let started = ask(&served, &quiet, "POST", "/v1/flows/quiet/runs", &json!({ "input": 1 }));
                assert_eq!(started.status, 201, "{started:?}");
                let claim = json!({ "worker": "w", "queues": ["q"], "waitMs": 30_000 });
                let claimed = ask(&served, &quiet, "POST", "/v1/work/claim", &claim).json();
                let outcome = json!({ "lease": claimed["jobs"][0]["lease"], "complete": { "result": 1 } });
                let done =
                    ask(&served, &quiet, "POST", "/v1/work/complete", &json!({ "outcomes": [outcome] }));
                assert_eq!(done.status, 200, "{done:?}");
            }
        }));
        over.store(true, Ordering::Relaxed);
        runs.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let ended = ask(&served, &quiet, "GET", "/v1/runs?status=completed", &Value::Null).json();
    assert_eq!(ended["total"], QUIET);
    assert!(served.peak_memory() < MEMORY << 20, "{} MiB", served.peak_memory() >> 20);
}

fn doubling(levels: usize) -> Value {
    let mut defs = serde_json::Map::new();
    for level in 0..levels {
        let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
        defs.insert(format!("d{level}"), json!({ "anyOf": [next, next] }));
    }
    defs.insert(format!("d{levels}"), json!({ "type": "string" }));
    json!({ "$defs": defs, "$ref": "#/$defs/d0" })
}

#[test]
fn attack_1_schemas_and_patterns_that_explode_are_refused_and_nobody_notices() {
    let pattern = |at: usize| json!({ "pattern": format!("^(\\w{{1,50}}[\\p{{L}}a{at}]){{50}}$") });
    let patterns: serde_json::Map<String, Value> =
        (0..1_300).map(|at| (format!("p{at}"), pattern(at))).collect();
    let steps = json!({ "a": { "worker": "nobody" } });
    let bomb = json!({ "flow": "bomb", "input": { "properties": patterns }, "steps": steps });
    let few: serde_json::Map<String, Value> = (0..100).map(|at| (format!("p{at}"), pattern(at))).collect();
    let small = json!({ "flow": "bomb", "input": { "properties": few }, "steps": steps });
    let doubles = json!({ "flow": "doubles", "input": doubling(21), "steps": steps });
    another_tenant_goes_on(
        &|ask| {
            for bomb in [&bomb, &small] {
                let answer = ask("POST", "/v1/flows/validate", bomb);
                assert_eq!((answer.status, &answer.json()["valid"]), (200, &json!(false)));
            }
            let refused = ask("POST", "/v1/flows/doubles/runs", &json!({ "input": 1 }));
            assert_eq!((refused.status, refused.code()), (400, "too-costly".to_owned()));
        },
        std::slice::from_ref(&doubles),
    );
}

/// The parser takes each of these for part of the one before, however few brackets are open.
#[test]
fn attack_1_an_expression_that_makes_no_sense_does_not_end_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let chain = format!("input.l{}", ".filter(y, )".repeat(160));
    let bomb = json!({ "flow": "bomb", "steps": { "a": { "worker": "q", "if": chain } } });
    for path in ["/v1/flows/validate", "/v1/flows"] {
        let answer = served.post(path, &bomb);
        assert!(answer.body.contains("bad-expression"), "{path} {answer:?}");
    }
    assert_eq!(served.get("/livez").status, 200);
}

#[test]
fn attack_2_expressions_without_end_fail_their_runs_and_nobody_notices() {
    let nested = "input.l.all(a, input.l.all(b, input.l.all(c, input.l.all(d, a + b + c + d >= 0))))";
    let grows = format!("({}).size() > 0", vec!["input.s"; 200].join("+"));
    let flow = |name: &str, condition: &str| {
        let step = json!({ "worker": "nobody", "if": condition, "retry": { "attempts": 5 } });
        json!({ "flow": name, "steps": { "a": step } })
    };
    let list = json!({ "input": { "l": (0..55).collect::<Vec<_>>() } });
    let text = json!({ "input": { "s": "x".repeat(1_000_000) } });
    another_tenant_goes_on(
        &|ask| {
            for (flow, input) in [("nested", &list), ("grows", &text)] {
                let started = ask("POST", &format!("/v1/flows/{flow}/runs"), input);
                assert_eq!((started.status, &started.json()["status"]), (201, &json!("failed")));
            }
        },
        &[flow("nested", nested), flow("grows", &grows)],
    );
}

#[test]
fn attack_10_a_program_that_prints_without_end_is_cut_and_nobody_notices() {
    let step = json!({ "command": ["yes"], "timeout": "1s" });
    let flow = json!({ "flow": "prints", "steps": { "a": step } });
    another_tenant_goes_on(
        &|ask| {
            let run = ask("POST", "/v1/flows/prints/runs", &json!({ "input": 1 })).json();
            let run = run["runId"].as_str().unwrap();
            let ended = ask("GET", &format!("/v1/runs/{run}/result?wait=60s"), &Value::Null).json();
            assert_eq!(ended["status"], "failed", "{ended}");
            // 64 KiB of short lines, and what else is in the log of a run.
            let events = ask("GET", &format!("/v1/runs/{run}"), &Value::Null).json()["events"].clone();
            assert!(events.as_u64().unwrap() < 4_000, "{events}");
        },
        std::slice::from_ref(&flow),
    );
}

/// A database trigger rejects entries of the audit log, and nothing else.
#[test]
fn attack_3_nothing_is_done_that_the_audit_log_cannot_record() {
    let folder = tempfile::tempdir().unwrap();
    let flow = json!({ "flow": "wait", "steps": { "a": { "worker": "nobody" } } });
    let served = Served::start(folder.path(), &["--store", "sqlite:store.db"]);
    assert_eq!(served.post("/v1/flows", &flow).status, 201);
    let run = served.post("/v1/flows/wait/runs", &json!({ "input": 1 })).json();
    let run = run["runId"].as_str().unwrap().to_owned();
    let entries = served.get("/v1/audit").json()["items"].as_array().unwrap().len();
    served.stop();
    let sql = |text: &str| {
        let done = Command::new("sqlite3").arg(folder.path().join("store.db")).arg(text).status();
        assert!(done.expect("sqlite3 is installed").success());
    };
    sql("create trigger unwritable before insert on documents when new.collection like 'audit:%' \
         begin select raise(abort, 'the audit log is full'); end");
    let served = Served::start(folder.path(), &["--store", "sqlite:store.db"]);
    let other = json!({ "flow": "other", "steps": { "a": { "worker": "nobody" } } });
    for (path, body) in [
        (format!("/v1/runs/{run}/cancel"), json!({})),
        ("/v1/tokens".to_owned(), json!({ "subject": "s", "scopes": ["read"] })),
        ("/v1/flows".to_owned(), other.clone()),
        ("/v1/queues/q/pause".to_owned(), json!({})),
    ] {
        let reply = served.post(&path, &body);
        assert_eq!((reply.status, reply.code()), (503, "unavailable".to_owned()), "{path} {reply:?}");
    }
    assert_eq!(served.get(&format!("/v1/runs/{run}")).json()["status"], "running");
    assert_eq!(served.get("/v1/tokens").json()["items"], json!([]));
    assert_eq!(served.get("/v1/flows/other").status, 404);
    assert_eq!(served.get("/v1/audit").json()["items"].as_array().unwrap().len(), entries);
    served.stop();
    sql("drop trigger unwritable");
    let served = Served::start(folder.path(), &["--store", "sqlite:store.db"]);
    assert_eq!(served.post(&format!("/v1/runs/{run}/cancel"), &json!({})).status, 200);
}

#[test]
fn attack_6_a_user_cannot_take_the_place_of_a_run_that_a_redrive_will_start() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let flow = json!({ "flow": "wait", "steps": { "a": { "worker": "depot" } } });
    assert_eq!(served.post("/v1/flows", &flow).status, 201);
    let run = served.post("/v1/flows/wait/runs", &json!({ "input": 1 })).json()["runId"].clone();
    let claim = json!({ "worker": "w", "queues": ["depot"], "waitMs": 30_000 });
    let lease = served.post("/v1/work/claim", &claim).json()["jobs"][0]["lease"].clone();
    let failed = json!({ "outcomes": [{ "lease": lease, "fail": { "error": "broken", "retry": "never" } }] });
    assert_eq!(served.post("/v1/work/complete", &failed).status, 200);
    let key = format!("redrive:{}", run.as_str().unwrap());
    let headers = [("content-type", "application/json"), ("idempotency-key", key.as_str())];
    let squatter = served.send("POST", "/v1/flows/wait/runs", &headers, r#"{"input": 1}"#);
    assert_eq!(squatter.status, 201, "{squatter:?}");
    let redriven = served.post("/v1/queues/depot/redrive", &json!({}));
    assert_eq!(redriven.status, 200, "{redriven:?}");
    let runs = served.get("/v1/runs").json();
    let again: Vec<&Value> =
        runs["items"].as_array().unwrap().iter().filter(|found| found["retryOf"] == run).collect();
    assert_eq!(again.len(), 1, "{runs}");
    assert_ne!(again[0]["runId"], squatter.json()["runId"]);
}

#[test]
fn attack_11_a_server_makes_no_token_for_a_store_whose_own_are_all_revoked() {
    let folder = tempfile::tempdir().unwrap();
    for scope in ["admin", "read"] {
        token(folder.path(), "default", &["--scope", scope]);
    }
    let made = flowline(folder.path(), &["token", "list"])["items"].as_array().unwrap().clone();
    assert_eq!(made.len(), 2, "{made:?}");
    for one in &made {
        flowline(folder.path(), &["token", "revoke", one["id"].as_str().unwrap()]);
    }
    assert_eq!(flowline(folder.path(), &["token", "list"])["items"], json!([]));
    let said = Served::command(folder.path(), &["serve", "--listen", "0.0.0.0:0"]).err();
    let said = said.expect("it is refused");
    assert!(said.contains("flowline token create") && !said.contains("fl_"), "{said}");
}
