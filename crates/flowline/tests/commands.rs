//! Command steps: what a program may say, and what becomes of it.

#![cfg(all(unix, feature = "command"))]

use std::time::Duration;

use flowline::core::definition::{Format, read};
use flowline::core::event::EventType;
use flowline::core::limits::Limits;
use flowline::core::{Json, Status};
use flowline::store::{EventQuery, RunRow};
use flowline::{Config, Engine, RunOutcome};
use serde_json::{Value, json};

use crate::kit::memory;

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
    run_with(definition, Config::default()).await
}

async fn run_with(definition: &str, config: Config) -> Told {
    let definition = read("flow.yaml", definition, Format::Yaml).expect("the definition is sound").definition;
    let engine = Engine::on(memory()).config(config).commands().start().await.unwrap();
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
        ("echo '{\"state\": {\"set\": \"k\", \"scope\": \"the moon\"}}'; sleep 60", "invalid_state_scope"),
        ("echo '{\"state\": {\"set\": \"\"}}'; sleep 60", "invalid_state_key"),
        ("echo '{\"state\": {\"set\": \"k\", \"delete\": \"k\"}}'; sleep 60", "protocol"),
        ("echo '{\"state\": {\"put\": \"k\", \"value\": 1}}'; sleep 60", "protocol"),
        ("echo '{\"state\": {\"set\": \"k\", \"ttl\": \"soon\"}}'; sleep 60", "protocol"),
        ("echo '{\"state\": {\"get\": \"k\"}}'; sleep 60", "protocol"),
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
    assert!(told.logs()[0].1.contains("retry.after \"soon\" isn't a duration"), "{:?}", told.logs());
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

/// What every state event says of itself.
fn state_events(told: &Told) -> Vec<&Value> {
    told.events.iter().filter(|(kind, _)| *kind == EventType::State).map(|(_, data)| data).collect()
}

#[tokio::test]
async fn a_shell_script_reads_state_of_every_scope_from_replies_on_stdin() {
    let script = r#"
        read -r input
        for scope in run flow tenant orders; do
            echo "{\"state\": {\"set\": \"k\", \"scope\": \"$scope\", \"value\": \"of $scope\"}}"
            echo "{\"state\": {\"get\": \"k\", \"scope\": \"$scope\"}}"
            read -r reply
            echo "$reply" | sed 's/^/said /'
        done
        echo '{"state": {"get": "none"}}'
        read -r reply
        printf '{"result": %s}\n' "$reply""#;
    let told =
        run(&format!("flow: asking\nsteps:\n  a: {{ command: [sh, -c, {}], stdin: open }}\n", json!(script)))
            .await;
    assert_eq!(told.outcome.status, Status::Completed, "{:?}", told.events);
    let reply =
        |scope: &str| format!(r#"said {{"state":{{"get":"k","scope":"{scope}","value":"of {scope}"}}}}"#);
    let said: Vec<String> = told.logs().iter().map(|(_, message)| (*message).to_owned()).collect();
    assert_eq!(said, ["run", "flow", "tenant", "orders"].map(reply));
    assert_eq!(
        told.outcome.result.as_ref().unwrap().value(),
        json!({ "a": { "state": { "get": "none", "scope": "run" } } }),
        "a key that is not set has no value"
    );
    let set = json!({ "operation": "set", "scope": "orders", "key": "k", "value": "of orders" });
    let get = json!({ "operation": "get", "scope": "orders", "key": "k" });
    assert_eq!(state_events(&told)[6..8], [&set, &get]);
}

#[tokio::test]
async fn a_python_program_counts_in_a_scope_that_other_runs_share() {
    let program = r#"
import json, sys

step = json.loads(sys.stdin.readline())

def say(**message):
    print(json.dumps(message), flush=True)

def get(key, scope="run"):
    say(state={"get": key, "scope": scope})
    return json.loads(sys.stdin.readline())["state"].get("value")

n = (get("n", scope="counters") or 0) + 1
say(state={"set": "n", "value": n, "scope": "counters", "ttl": "1h"})
say(result=[n, get("n", scope="counters")])
"#;
    let step = format!("command: [python3, -c, {}], stdin: open", json!(program));
    let told = run(&format!(
        "flow: counting\nsteps:\n  a: {{ {step} }}\n  b: {{ {step}, subscribes: ['step:a'] }}\n"
    ))
    .await;
    assert_eq!(told.outcome.status, Status::Completed, "{:?}", told.events);
    assert_eq!(told.outcome.result.as_ref().unwrap().value(), json!({ "b": [2, 2] }));
    let set = json!({ "operation": "set", "scope": "counters", "key": "n", "value": 2, "ttlMs": 3_600_000 });
    assert!(state_events(&told).contains(&&set), "{:?}", told.events);
}

#[tokio::test]
async fn a_program_that_reads_to_the_end_of_stdin_ends_where_it_is_not_kept_open() {
    let told = say("cat > /dev/null; echo '{\"result\": 1}'").await;
    assert_eq!(told.outcome.result.as_ref().unwrap().value(), json!({ "a": 1 }));
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

/// Runs a script until its time is up, and waits until nobody holds the pipe `$HELD` any more.
async fn killed_with_all_that_hold(script: &str) {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("held");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = pipe.clone();
    let let_go = tokio::task::spawn_blocking(move || std::fs::read(reader));
    let script = format!("HELD={}; {script}", pipe.display());
    let definition = format!(
        "flow: said\nsteps:\n  a: {{ command: [sh, -c, {}], timeout: 500ms, retry: {{ attempts: 1 }} }}\n",
        json!(script)
    );
    let told = run(&definition).await;
    assert_eq!(told.failure()["code"], json!("timeout"), "{script}");
    let let_go = tokio::time::timeout(SOON, let_go).await;
    let_go.unwrap_or_else(|_| panic!("something outlived its attempt: {script}")).unwrap().unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_process_that_left_the_group_dies_with_its_attempt_too() {
    // A session of its own; orphaned in a session of its own; with another environment.
    killed_with_all_that_hold("setsid sleep 61 > $HELD & wait").await;
    killed_with_all_that_hold("(setsid sh -c 'sleep 61 > '$HELD' & wait' &); sleep 61").await;
    killed_with_all_that_hold("env -i setsid sleep 61 > $HELD & wait").await;
}

#[tokio::test]
async fn an_attempt_ends_when_its_program_does_whoever_holds_its_output() {
    let began = std::time::Instant::now();
    // In the group; out of it, which is found; orphaned with another environment, which is not.
    for held in ["sleep 62 &", "(setsid sleep 62 &)", "(env -i setsid sleep 12 &)"] {
        let told = say(&format!("echo '{{\"result\": 1}}'; echo said >&2; {held}")).await;
        assert_eq!(told.outcome.status, Status::Completed, "{held}: {:?}", told.events);
        assert_eq!(told.outcome.result.as_ref().unwrap().value(), json!({ "a": 1 }), "{held}");
        assert_eq!(told.logs()[0], ("warn", "said"), "{held}");
    }
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_is_said_after_the_program_ended_is_heard_for_a_moment() {
    let told = say("(sleep 0.3; echo '{\"result\": 2}') & exit 0").await;
    assert_eq!(told.outcome.result.as_ref().unwrap().value(), json!({ "a": 2 }));
}

#[tokio::test]
async fn a_program_that_prints_without_end_fills_no_store() {
    let limits = Limits { log: 64 << 10, run_log: 100 << 10, ..Limits::default() };
    let noise = "yes $(printf %0200d 0) | head -n 9000";
    let flow = |script: &str| {
        let retry = "retry: { attempts: 3, backoff: fixed, delay: 1ms }";
        format!("flow: said\nsteps:\n  a: {{ command: [sh, -c, {}], {retry} }}\n", json!(script))
    };
    let told = run_with(&flow(&format!("{noise}; exit 1")), Config { limits, ..Config::default() }).await;
    let logged: usize = told.logs().iter().map(|(_, message)| message.len()).sum();
    assert!(logged < 100 << 10, "{logged}");
    let cuts: Vec<&str> =
        told.logs().iter().filter(|(level, _)| *level == "warn").map(|(_, text)| *text).collect();
    assert!(cuts[0].contains("64KiB") && cuts[0].contains("max-log"), "{cuts:?}");
    assert!(cuts[1..].iter().all(|cut| cut.contains("100KiB") && cut.contains("max-run-log")), "{cuts:?}");
    assert_eq!(cuts.len(), 3, "one line for each attempt: {cuts:?}");
    // Beyond the limit, what a program does still counts.
    let result = "echo '{\"result\": 7}'";
    let told = run_with(&flow(&format!("{noise}; {result}")), Config { limits, ..Config::default() }).await;
    assert_eq!(told.outcome.result.as_ref().expect("it completed").value(), json!({ "a": 7 }));
}

#[tokio::test]
async fn a_result_that_nobody_could_read_fails_the_step_and_is_not_lost_in_the_log() {
    for result in [r#"{"note": "\ud83d"}"#, "1e400"] {
        let told = say(&format!(r#"printf '%s\n' '{{"result": {result}}}'"#)).await;
        assert_eq!(told.outcome.status, Status::Failed, "{result}");
        assert_eq!(told.failure()["code"], json!("invalid_payload"), "{result}");
        assert!(told.failure()["error"].as_str().unwrap().contains("unreadable JSON"), "{result}");
    }
}
