//! `flowline worker`: a program does remotely what it does as a `command` step.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};

use crate::kit::crowd::{Running, Server};
use crate::kit::place::Here;

const FLOW: &str = "
flow: odd
steps:
  say: { worker: depot, returns: said, emits: [early, later] }
  see: { worker: depot, subscribes: [said] }
  flaky: { worker: depot, subscribes: [early], retry: { attempts: 2, delay: 1ms } }
  slow: { worker: depot, subscribes: [later], timeout: 300ms, on_failure: continue }
  hasty: { worker: depot, subscribes: [later], retry: { attempts: 5, delay: 1ms }, on_failure: continue }
  hopeless: { worker: depot, subscribes: [later], retry: { attempts: 5 }, on_failure: continue }
";

const JOB: &str = r#"
read -r job
case $FLOWLINE_STEP in
  say)
    echo plain
    echo '{"log": {"level": "warn", "message": "loud", "extra": 1}}'
    echo '{"resutl": 1}'
    echo '{"emit_now": {"name": "early", "payload": 1}}'
    echo '{"emit": {"name": "later", "payload": 2}}'
    echo '{"state": {"set": "colour", "value": "blue"}}'
    echo "{\"result\": \"$FLOWLINE_IDEMPOTENCY_KEY\"}" ;;
  see) echo "{\"result\": $job}" ;;
  flaky) [ "$FLOWLINE_ATTEMPT" = 2 ] || { echo broken >&2; exit 3; } ;;
  slow) sleep 30 ;;
  hasty) echo '{"emit_now": {"name": "nobody.knows", "payload": 1}}' ;;
  hopeless) echo '{"fail": {"error": "no way", "code": "no_way"}}' ;;
esac
"#;

#[test]
fn a_program_says_to_a_remote_worker_what_it_says_to_an_engine() {
    let here = Here::new();
    here.write("job.sh", JOB);
    let server = Server::start(&here, 0, "sqlite:flowline.db", &["--drain", "1s"]);
    server.learn(FLOW);
    let url = server.url();
    let arguments = ["worker", "--server", &url, "--queue", "depot", "--slots", "4", "--", "sh", "job.sh"];
    let mut worker = Running::start(&here, "worker", &arguments);
    let run = server.begin("odd", &json!({ "n": 1 }));
    let row = server.outcome(&run);
    assert_eq!(row["status"], "completed", "{row}");
    let log = server.log(&run);
    let of = |kind: &str, step: &str| -> Vec<Value> {
        let found = log.iter().filter(|(found, of, _)| found == kind && of == step);
        found.map(|(.., data)| data.clone()).collect()
    };
    let lines = of("log", "say");
    assert_eq!(lines[0], json!({ "level": "info", "message": "plain" }));
    assert_eq!(lines[1], json!({ "level": "warn", "message": "loud", "extra": 1 }));
    assert_eq!(lines[2]["level"], "warn", "a slip is named: {}", lines[2]);
    assert_eq!(of("state", "say")[0]["value"], "blue");
    assert_eq!(
        of("emit", "say").iter().map(|emit| &emit["name"]).collect::<Vec<_>>(),
        ["early", "later", "said"]
    );
    let seen = &of("step.completed", "see")[0]["result"];
    assert_eq!(seen["input"], json!({ "said": format!("{run}__say") }));
    assert_eq!(seen["state"], json!({ "colour": "blue" }));
    assert_eq!(seen["stepId"], format!("{run}__see__attempt-1"));
    assert_eq!(of("step.retry", "flaky")[0]["code"], "exit_3");
    assert!(of("step.retry", "flaky")[0]["error"].as_str().unwrap().ends_with("broken"));
    assert_eq!(of("step.failed", "slow")[0]["code"], "timeout");
    let hopeless = of("step.failed", "hopeless");
    assert_eq!((&hopeless[0]["error"], &hopeless[0]["code"]), (&json!("no way"), &json!("no_way")));
    assert_eq!(
        of("step.failed", "hasty")[0]["code"],
        "emit_refused",
        "an emit that was refused is not retried"
    );
    for step in ["say", "see", "slow", "hasty", "hopeless"] {
        assert_eq!(of("step.started", step).len(), 1, "{step}");
    }
    worker.signal("TERM");
    assert_eq!(worker.wait(), Some(0));
    assert_eq!(here.json(0, &["verify", "--store", "sqlite:flowline.db"])["violations"], json!([]));
}

/// A run that only workers can finish, on a store that a server can open while `run` waits.
fn a_run_says_which_workers_it_waits_for_and_ends_when_they_come(variable: &str, place: &str) {
    let here = Here::new();
    let url =
        std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set; see `cargo xtask test`"));
    let joint = if url.contains('?') { '&' } else { '?' };
    let store = format!("{url}{joint}{place}=awaited_{}", std::process::id());
    let flow = "flow: parcel\nsteps:\n  weigh: { worker: scales, returns: weighed }\n  pack: { worker: depot, subscribes: [weighed] }\n";
    here.write("parcel.yaml", flow);
    let mut run = here.spawn(&["run", "parcel.yaml", "--store", &store, "--json"]);
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = |line: &String| {
        line.contains("is waiting at step weigh for a worker on queue scales; start a server")
    };
    let told = lines.find(told).expect("it says what it waits for");
    assert!(
        told.contains("`flowline serve --store ") && told.contains("--queue scales -- COMMAND`"),
        "{told}"
    );

    let server = Server::start(&here, 0, &store, &["--drain", "1s"]);
    let url = server.url();
    let worker = |queue: &str| {
        let say = r#"read -r job; echo "{\"result\": \"$FLOWLINE_STEP\"}""#;
        Running::start(&here, queue, &["worker", "--server", &url, "--queue", queue, "--", "sh", "-c", say])
    };
    let _scales = worker("scales");
    let next = lines.find(|line| line.contains("is waiting at step pack for a worker on queue depot"));
    assert!(next.is_some(), "it says what it waits for next");
    let _depot = worker("depot");
    drop(lines);
    let said = run.wait_with_output().unwrap();
    let answer: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((said.status.code(), &answer["status"]), (Some(0), &json!("completed")), "{answer}");
    assert_eq!(answer["result"], json!({ "pack": "pack" }), "{answer}");
    assert_eq!(here.json(0, &["verify", "--store", &store])["violations"], json!([]));
}

#[test]
fn a_run_on_postgres_says_which_workers_it_waits_for_and_ends_when_they_come() {
    a_run_says_which_workers_it_waits_for_and_ends_when_they_come("FLOWLINE_TEST_POSTGRES_URL", "schema");
}

#[test]
fn a_run_on_redis_says_which_workers_it_waits_for_and_ends_when_they_come() {
    a_run_says_which_workers_it_waits_for_and_ends_when_they_come("FLOWLINE_TEST_REDIS_URL", "prefix");
}

#[test]
fn a_run_on_a_redis_cluster_says_which_workers_it_waits_for_and_ends_when_they_come() {
    a_run_says_which_workers_it_waits_for_and_ends_when_they_come(
        "FLOWLINE_TEST_REDIS_CLUSTER_URL",
        "prefix",
    );
}

#[test]
fn a_worker_that_is_told_nonsense_says_what_is_wrong() {
    let here = Here::new();
    let said = here.flowline(&["worker", "--server", "localhost", "--queue", "depot", "--", "true"]);
    said.refused(2, &["isn't a server address", "http://HOST:PORT"]);
    let said = here.flowline(&["worker", "--server", "http://localhost:1", "--", "true"]);
    assert_eq!(said.exit, 2, "{said:?}");
    assert!(said.err.contains("--queue"), "{said:?}");
}

#[test]
fn the_worker_in_python_of_the_guide_takes_a_job_to_its_end() {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/workers.md")).unwrap();
    let (_, block) = guide.split_once("```python\n").unwrap();
    let (program, _) = block.split_once("```").unwrap();
    let here = Here::new();
    let server = Server::start(&here, 0, "sqlite:flowline.db", &["--drain", "1s"]);
    server.learn("flow: parcel\nsteps:\n  pack: { worker: depot }\n");
    let mut python = std::process::Command::new("python3")
        .args(["-c", program])
        .env("FLOWLINE_SERVER", server.url())
        .spawn()
        .expect("python3 is installed");
    let run = server.begin("parcel", &json!({ "to": "north" }));
    let row = server.outcome(&run);
    python.kill().unwrap();
    python.wait().unwrap();
    assert_eq!(row["result"], json!({ "pack": { "packed": { "to": "north" } } }), "{row}");
}
