//! Command steps: what a program may say, and what becomes of it.

#![cfg(all(unix, feature = "command"))]

use std::sync::Arc;
use std::time::Duration;

use flowline::core::definition::{Format, read};
use flowline::core::event::EventType;
use flowline::core::{Json, Status};
use flowline::store::clock::Clock;
use flowline::store::memory::MemoryStore;
use flowline::store::{EventQuery, RunRow};
use flowline::{Engine, RunOutcome};
use serde_json::{Value, json};

/// Longer than any attempt here may take, shorter than the programs that must not be awaited.
const SOON: Duration = Duration::from_secs(20);

/// How a run ended, and its log.
struct Told {
    outcome: RunOutcome,
    row: RunRow,
    events: Vec<(EventType, Value)>,
}

impl Told {
    /// Level and message of every log line.
    fn logs(&self) -> Vec<(&str, &str)> {
        let logs = self.events.iter().filter(|(kind, _)| *kind == EventType::Log);
        logs.map(|(_, data)| (data["level"].as_str().unwrap(), data["message"].as_str().unwrap())).collect()
    }

    fn failure(&self) -> &Value {
        let failed = self.events.iter().find(|(kind, _)| *kind == EventType::StepFailed);
        &failed.expect("a step failed").1
    }
}

/// Runs a definition to its end.
async fn run(definition: &str) -> Told {
    let definition = read("flow.yaml", definition, Format::Yaml).expect("the definition is sound").definition;
    let store = Arc::new(MemoryStore::new(Clock::system()));
    let engine = Engine::on(store).commands().start().await.unwrap();
    let plan = engine.register(definition, None).await.unwrap();
    let run = engine.run_plan(plan, Json::null()).await.unwrap();
    let outcome = tokio::time::timeout(SOON, run.wait()).await.expect("the run ends soon").unwrap();
    let row = engine.row(run.key()).await.unwrap();
    let page = engine.store().events(run.key(), EventQuery::default()).await.unwrap();
    engine.stop().await;
    let data = |data: Option<Json>| data.map_or(Value::Null, |data| data.value());
    Told {
        outcome,
        row,
        events: page.events.into_iter().map(|event| (event.kind, data(event.data))).collect(),
    }
}

/// Runs a flow of one step, a shell script.
async fn say(script: &str) -> Told {
    run(&format!("flow: said\nsteps:\n  a: {{ command: [sh, -c, {}] }}\n", json!(script))).await
}

#[tokio::test]
async fn a_program_whose_message_is_refused_is_killed_at_once() {
    for (script, code) in [
        ("echo '{\"emit_now\": {\"name\": \"undeclared\"}}'; sleep 60", "emit_refused"),
        ("echo '{\"state\": {\"set\": \"k\", \"scope\": \"moon\"}}'; sleep 60", "protocol"),
        ("head -c 1100000 /dev/zero; sleep 60", "too_large"),
        ("head -c 1100000 /dev/zero >&2; sleep 60", "too_large"),
    ] {
        let told = say(script).await;
        assert_eq!(told.outcome.status, Status::Failed, "{script}");
        assert_eq!(told.failure()["code"], code, "{script}");
        assert_eq!(told.row.retries, 0, "{script}");
    }
}

#[tokio::test]
async fn a_line_that_is_nearly_a_message_is_kept_with_what_is_wrong() {
    let told = say(r#"echo '  {"result": 7}'; echo '{"resutl": 1}'; echo plain; echo '{"emit": '"#).await;
    assert_eq!(told.outcome.result.as_ref().unwrap().value(), json!({ "a": 7 }));
    let logs = told.logs();
    let near = r#"not a message (unknown key "resutl"; did you mean "result"?): {"resutl": 1}"#;
    assert_eq!(logs[..2], [("warn", near), ("info", "plain")]);
    assert!(logs[2].0 == "warn" && logs[2].1.starts_with("not a message (not JSON"), "{logs:?}");
}

#[tokio::test]
async fn a_failure_that_is_badly_said_is_no_success() {
    let told = say(r#"echo '{"fail": "boom"}'"#).await;
    assert_eq!(told.failure()["code"], "protocol");
    let told = say(r#"echo '{"retry": {"error": "busy", "code": "full", "after": "soon"}}'"#).await;
    assert_eq!((&told.failure()["error"], &told.failure()["code"]), (&"busy".into(), &"full".into()));
    assert!(told.logs()[0].1.contains("retry.after \"soon\" is no duration"), "{:?}", told.logs());
}

#[tokio::test]
async fn a_command_reads_the_state_that_earlier_steps_wrote() {
    let put = |key: &str, value: &str| format!("{{\"state\": {{\"set\": \"{key}\", \"value\": {value}}}}}");
    let write = format!("echo '{}'; echo '{}'", put("n", "[1]"), put("strange \u{e9}", "null"));
    // Says the envelope back as its result.
    let echo = "read -r line; printf '{\"result\": %s}\\n' \"$line\"";
    let told = run(&format!(
        "flow: kept\nsteps:\n  a: {{ command: [sh, -c, {}] }}\n  \
         b: {{ subscribes: ['step:a'], command: [sh, -c, {}] }}\n",
        json!(write),
        json!(echo)
    ))
    .await;
    let envelope = &told.outcome.result.as_ref().expect("it completed").value()["b"];
    assert_eq!(envelope["state"], json!({ "n": [1], "strange \u{e9}": null }));
    assert!(envelope.get("stateOmitted").is_none());
}

#[tokio::test]
async fn state_over_the_limit_is_left_out_and_said_to_be() {
    let half = "echo \"{\\\"state\\\": {\\\"set\\\": \\\"$key\\\", \\\"value\\\": \\\"$(head -c 600000 /dev/zero | tr '\\0' x)\\\"}}\"";
    let told = run(&format!(
        "flow: kept\nsteps:\n  a: {{ command: [sh, -c, {}] }}\n  \
         b: {{ subscribes: ['step:a'], command: [sh, -c, {}] }}\n",
        json!(format!("for key in a b; do {half}; done")),
        json!("read -r line; printf '{\"result\": %s}\\n' \"$line\"")
    ))
    .await;
    let envelope = &told.outcome.result.as_ref().expect("it completed").value()["b"];
    assert_eq!((envelope.get("state"), &envelope["stateOmitted"]), (None, &json!(true)));
}

#[tokio::test]
async fn arguments_are_handed_on_as_they_are_and_no_shell_sees_them() {
    let argument = r#"{"result": "$HOME `id` $(id); * > /dev/null"}"#;
    let told = run(&format!("flow: said\nsteps:\n  a: {{ command: [echo, {}] }}\n", json!(argument))).await;
    let result = told.outcome.result.expect("it completed").value();
    assert_eq!(result, json!({ "a": "$HOME `id` $(id); * > /dev/null" }));
}

#[tokio::test]
async fn whatever_a_program_started_dies_with_its_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("held");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Its end is read when nobody holds the pipe any more: the child's child would, for a minute.
    let reader = pipe.clone();
    let let_go = tokio::task::spawn_blocking(move || std::fs::read(reader));
    let script = format!("sleep 60 > {} & echo begun; wait", pipe.display());
    let definition = format!(
        "flow: said\nsteps:\n  a: {{ command: [sh, -c, {}], timeout: 500ms, retry: {{ attempts: 1 }} }}\n",
        json!(script)
    );
    let told = run(&definition).await;
    assert_eq!((told.logs(), &told.failure()["code"]), (vec![("info", "begun")], &json!("timeout")));
    tokio::time::timeout(SOON, let_go).await.expect("the whole group was killed").unwrap().unwrap();
}

#[tokio::test]
async fn a_result_that_nobody_could_read_fails_the_step_and_is_not_lost_in_the_log() {
    for result in [r#"{"note": "\ud83d"}"#, "1e400"] {
        let told = say(&format!(r#"printf '%s\n' '{{"result": {result}}}'"#)).await;
        assert_eq!(told.outcome.status, Status::Failed, "{result}");
        assert_eq!(told.failure()["code"], json!("invalid_payload"), "{result}");
        assert!(told.failure()["error"].as_str().unwrap().contains("cannot be read"), "{result}");
    }
}
