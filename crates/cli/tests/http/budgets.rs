//! Definitions and payloads that cost too much, over HTTP: they are refused or fail, and hold nobody up.

use serde_json::{Value, json};

use crate::kit::served::Served;

const NESTED: &str = "input.l.all(a, input.l.all(b, input.l.all(c, input.l.all(d, a + b + c + d >= 0))))";

fn validate(served: &Served, definition: &Value) -> Value {
    let reply = served.post("/v1/flows/validate", definition);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn ended(served: &Served, run: &str) -> Value {
    for _ in 0..600 {
        let shown = served.get(&format!("/v1/runs/{run}")).json();
        if !["running", "waiting", "pending"].contains(&shown["status"].as_str().unwrap_or_default()) {
            return shown;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("run {run} doesn't end");
}

#[test]
fn a_bomb_of_patterns_is_refused_with_its_line_and_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let patterns: serde_json::Map<String, Value> = (0..1_300)
        .map(|at| (format!("p{at}"), json!({ "pattern": format!("^(\\w{{1,50}}[\\p{{L}}a{at}]){{50}}$") })))
        .collect();
    let bomb =
        json!({ "flow": "bomb", "input": { "properties": patterns }, "steps": { "a": { "worker": "q" } } });
    assert!(bomb.to_string().len() > 60_000);
    let answer = validate(&served, &bomb);
    assert_eq!(answer["valid"], false);
    let problem = answer["diagnostics"][0].to_string();
    assert!(problem.contains("bad-schema") && problem.contains("1300 patterns"), "{problem}");
    let reply = served.post("/v1/flows", &bomb);
    assert_eq!((reply.status, reply.code()), (400, "definition".to_owned()), "{}", reply.body);
}

#[test]
fn an_input_whose_check_is_too_costly_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let mut defs = serde_json::Map::new();
    for level in 0..21 {
        let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
        defs.insert(format!("d{level}"), json!({ "anyOf": [next, next] }));
    }
    defs.insert("d21".to_owned(), json!({ "type": "string" }));
    let input = json!({ "$defs": defs, "$ref": "#/$defs/d0" });
    let flow = json!({ "flow": "doubling", "input": input, "steps": { "a": { "worker": "q" } } });
    assert_eq!(served.post("/v1/flows", &flow).status, 201);
    let reply = served.post("/v1/flows/doubling/runs", &json!({ "input": 1 }));
    assert_eq!((reply.status, reply.code()), (400, "too-costly".to_owned()), "{}", reply.body);
}

/// The run comes back after every restart, and must not hold anyone up again.
#[test]
fn a_run_whose_guard_is_too_costly_ends_failed_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &[]);
    let steps = json!({
        "first": { "worker": "q", "returns": "done" },
        "second": { "subscribes": ["done"], "worker": "q", "if": NESTED, "retry": { "attempts": 5 } },
    });
    assert_eq!(served.post("/v1/flows", &json!({ "flow": "slow", "steps": steps })).status, 201);
    let input = json!({ "l": (0..55).collect::<Vec<_>>() });
    let run = served.post("/v1/flows/slow/runs", &json!({ "input": input })).json()["runId"]
        .as_str()
        .unwrap()
        .to_owned();
    drop(served);

    let served = Served::start(folder.path(), &[]);
    let claimed = served.post("/v1/work/claim", &json!({ "worker": "w", "queues": ["q"] })).json();
    let lease = claimed["jobs"][0]["lease"].clone();
    let outcome = json!({ "outcomes": [{ "lease": lease, "complete": { "result": 1 } }] });
    assert_eq!(served.post("/v1/work/complete", &outcome).status, 200);
    assert_eq!(ended(&served, &run)["status"], "failed");
    let events = served.get(&format!("/v1/runs/{run}/events")).json();
    let events = events["items"].as_array().unwrap();
    let failed: Vec<&Value> = events.iter().filter(|event| event["type"] == "step.failed").collect();
    assert_eq!(failed.len(), 1, "{events:?}");
    assert_eq!(failed[0]["data"]["code"], "too_costly");
    assert_eq!(events.iter().filter(|event| event["type"] == "flow.failed").count(), 1);
    drop(served);

    let served = Served::start(folder.path(), &[]);
    assert_eq!(ended(&served, &run)["status"], "failed");
    let again = served.get(&format!("/v1/runs/{run}/events")).json();
    assert_eq!(again["items"].as_array().unwrap().len(), events.len(), "nothing is tried again");
}
