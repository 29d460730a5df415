//! `run` and `work`.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;

use crate::kit::place::{Here, Said};

#[test]
fn a_run_works_to_its_end_and_prints_its_result() {
    let here = Here::new();
    let said = here.flowline(&["run", "order.yaml", "--input", r#"{"total": 19}"#]);
    assert_eq!(said.exit, 0, "{said:?}");
    let result: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(result, serde_json::json!({ "ok": true }));
    assert!(said.err.contains("→ order.charged"), "{said:?}");
    assert!(said.err.contains("ship    | shipping"), "{said:?}");
    assert!(said.err.contains("2 steps"), "{said:?}");
}

#[test]
fn a_run_answers_in_one_json_object() {
    let here = Here::new();
    let answer = here.json(0, &["run", "order.yaml", "--input", r#"{"total": 19}"#]);
    assert_eq!(answer["status"], "completed");
    assert_eq!(answer["flowName"], "order");
    assert_eq!(answer["result"]["ok"], true);
    assert!(answer["error"].is_null());
    assert!(answer["duration"].is_u64());
    let steps = answer["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2);
    assert_eq!(
        (&steps[0]["name"], &steps[0]["status"], &steps[0]["attempts"]),
        (&"charge".into(), &"completed".into(), &1.into())
    );
    assert!(steps[0]["durationMs"].is_u64());
}

/// What a short step says is written with its outcome, so the dates of its lines don't say when it began.
#[test]
fn a_run_started_when_its_first_attempt_did_and_its_row_and_its_last_event_agree() {
    let here = Here::new();
    here.write("short.yaml", "flow: short\nsteps:\n  a: { command: [sleep, '0.03'] }\n");
    let run = here.start(&["short.yaml"]);
    let created = here.json(0, &["show", &run]);
    assert!(created["startedAt"].is_null(), "{created}");
    here.json(0, &["work", "--until-idle"]);
    let row = here.json(0, &["show", &run]);
    let events = here.flowline(&["events", &run, "--json"]).out;
    let events: Vec<serde_json::Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
    let at = |value: &serde_json::Value| -> i64 {
        let text = value.as_str().unwrap_or_else(|| panic!("{value} in {row}"));
        flowline::core::Time::parse(text).unwrap().millis()
    };
    let (began, ended) = (at(&row["startedAt"]), at(&row["completedAt"]));
    assert_eq!(began, at(&of("step.started")["data"]["at"]), "{row}");
    assert!(at(&row["createdAt"]) < began && began + 30 <= ended, "{row}");
    let last = &of("flow.completed")["data"];
    assert_eq!((&last["duration"], &last["stepCount"]), (&row["duration"], &row["stepCount"]));
    assert_eq!(row["duration"], ended - at(&row["createdAt"]));
}

#[test]
fn a_machine_counts_its_actions_alike_in_its_row_and_in_its_last_event() {
    let here = Here::new();
    let text = "machine: door\nstates:\n  \
        open: { entry: [creak], after: [{ in: 1ms, to: shut }, { in: 1h, to: shut, actions: [click] }] }\n  \
        shut: { final: true }\nactions:\n  creak: { command: ['true'] }\n  click: { command: ['true'] }\n";
    here.write("door.yaml", text);
    let run = here.json(0, &["run", "door.yaml"])["runId"].as_str().unwrap().to_owned();
    let row = here.json(0, &["show", &run]);
    let events = here.flowline(&["events", &run, "--json"]).out;
    let last: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!((&row["completedSteps"], &row["stepCount"]), (&1.into(), &2.into()), "{row}");
    assert_eq!((&last["type"], &last["data"]["stepCount"]), (&"flow.completed".into(), &2.into()), "{last}");
}

#[test]
fn a_failed_run_ends_with_exit_code_1_and_says_why() {
    let here = Here::new();
    let said = here.flowline(&["run", "doomed.yaml"]);
    assert_eq!(said.exit, 1, "{said:?}");
    assert!(said.err.contains("no luck") && said.err.contains("flowline retry"), "{said:?}");
    let answer = here.json(1, &["run", "doomed.yaml", "--no-progress"]);
    assert_eq!(answer["status"], "failed");
    assert!(answer["error"].as_str().unwrap().contains("exited with code 4"));
}

#[test]
fn a_run_that_waits_for_an_event_is_left_waiting_and_goes_on_when_it_comes() {
    let here = Here::new();
    let answer = here.json(0, &["run", "approve.yaml"]);
    assert_eq!((&answer["status"], &answer["awaits"][0]), (&"waiting".into(), &"approval.given".into()));
    let run = answer["runId"].as_str().unwrap();
    let sent = here.json(0, &["send", run, "approval.given", "--payload", "{}"]);
    assert_eq!((&sent["changed"], &sent["status"]), (&true.into(), &"running".into()));
    assert_eq!(here.json(0, &["send", run, "approval.given", "--payload", "{}"])["changed"], false);
    let done = here.json(0, &["work", "--until-idle"]);
    assert_eq!((&done["runs"]["completed"], &done["steps"]["completed"]), (&1.into(), &1.into()));
    assert_eq!(here.json(0, &["show", run])["status"], "completed");
}

#[test]
fn one_idempotency_key_makes_one_run() {
    let here = Here::new();
    let run = |total: &str, exit| {
        here.json(exit, &["run", "order.yaml", "--input", total, "--idempotency-key", "order-42"])
    };
    let (first, again) = (run(r#"{"total":1,"to":"PT"}"#, 0), run(r#"{"to": "PT", "total": 1}"#, 0));
    assert_eq!(first["runId"], again["runId"]);
    assert_eq!(again["result"]["ok"], true);
    assert_eq!(run(r#"{"total":2}"#, 2)["error"]["code"], "key-conflict");
    assert_eq!(here.json(0, &["runs"])["total"], 1);
}

#[test]
fn input_is_read_from_a_file_and_from_stdin() {
    let here = Here::new();
    here.write("in.json", "{\"total\": 1}\n");
    assert_eq!(here.json(0, &["run", "order.yaml", "--input-file", "in.json"])["status"], "completed");
    let file = std::fs::File::open(here.path("in.json")).unwrap();
    let said =
        Said::of(here.command(&["run", "order.yaml", "--input-file", "-"]).stdin(file).output().unwrap());
    assert_eq!(said.exit, 0, "{said:?}");
}

#[test]
fn a_run_that_needs_workers_is_not_called_fine_and_says_how_to_start_them() {
    let here = Here::new();
    here.write("remote.yaml", "flow: remote\nsteps:\n  a: { worker: depot }\n  b: { worker: docks }\n");
    let said = here.flowline(&["run", "remote.yaml"]);
    assert_eq!(said.exit, 3, "{said:?}");
    for text in [
        "is waiting at steps a, b for a worker on queue depot, docks",
        "flowline serve --store sqlite:.flowline/flowline.db",
        "flowline worker --server http://127.0.0.1:7400 --queue depot --queue docks -- COMMAND",
    ] {
        assert!(said.err.contains(text), "{text:?} is missing: {said:?}");
    }
    assert_eq!(here.json(3, &["run", "remote.yaml"])["status"], "running");
    let worked = here.flowline(&["work", "--until-idle"]);
    assert_eq!(worked.exit, 0, "{worked:?}");
    for text in ["4 jobs wait for a worker on queue depot, docks", "--queue depot --queue docks -- COMMAND"] {
        assert!(worked.err.contains(text), "{text:?} is missing: {worked:?}");
    }
}

#[test]
fn only_named_variables_reach_commands() {
    let here = Here::new();
    here.write("env.yaml", "flow: env\nsteps:\n  a: { command: [sh, -c, 'echo seen=$SECRET'] }\n");
    let run = |flags: &[&str]| {
        let mut command = here.command(&[&["run", "env.yaml"], flags].concat());
        Said::of(command.env("SECRET", "s3").output().unwrap()).err
    };
    assert!(run(&[]).contains("| seen=\n"));
    assert!(run(&["--env", "SECRET"]).contains("| seen=s3\n"));
}

#[cfg(unix)]
#[test]
fn a_signal_stops_a_run_which_goes_on_later() {
    let here = Here::new();
    let mut child = here.spawn(&["run", "slow.yaml", "--drain", "50ms"]);
    wait_for(&mut child, "| here");
    signal(&child, "INT");
    let said = Said::of(child.wait_with_output().unwrap());
    assert_eq!(said.exit, 130, "{said:?}");
    here.write("go", "");
    let done = here.json(0, &["work", "--until-idle"]);
    assert_eq!(done["runs"]["completed"], 1);
}

#[cfg(unix)]
#[test]
fn a_long_wait_is_told_and_can_be_left() {
    let here = Here::new();
    let mut child = here.spawn(&["run", "approve.yaml", "--delay", "1h"]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.find(|line| line.contains("is due at")).expect("the wait is told");
    assert!(told.contains("flowline work"), "{told}");
    signal(&child, "INT");
    let last = lines.last().unwrap();
    assert!(last.contains("continue with `flowline work`; its next step is due at"), "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[cfg(unix)]
#[test]
fn a_worker_for_ever_stops_at_a_signal_with_exit_code_0() {
    let here = Here::new();
    here.start(&["slow.yaml"]);
    let mut child = here.spawn(&["work", "--drain", "50ms"]);
    wait_for(&mut child, "| here");
    signal(&child, "TERM");
    assert_eq!(Said::of(child.wait_with_output().unwrap()).exit, 0);
}

#[test]
fn a_second_engine_on_the_file_is_refused_while_readers_read() {
    let here = Here::new();
    let mut child = here.spawn(&["run", "slow.yaml"]);
    wait_for(&mut child, "| here");
    here.flowline(&["run", "order.yaml", "--input", r#"{"total": 1}"#])
        .refused(3, &["is in use", "stop it first", "help"]);
    assert_eq!(here.json(3, &["start", "approve.yaml"])["error"]["code"], "store-in-use");
    let runs = here.json(0, &["runs", "--status", "running"]);
    assert_eq!(runs["total"], 1);
    let run = runs["items"][0]["runId"].as_str().unwrap();
    assert_eq!(here.json(0, &["show", run])["jobs"][0]["state"], "leased");
    assert!(here.flowline(&["doctor"]).out.contains("is working on this store"));
    let mut follower = here.spawn(&["events", run, "--follow", "--json"]);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("flow.start"));
    here.write("go", "");
    assert_eq!(Said::of(child.wait_with_output().unwrap()).exit, 0);
    let last = lines.map(Result::unwrap).last().unwrap();
    assert!(last.contains("flow.completed"), "{last}");
    assert!(follower.wait().unwrap().success());
}

/// Reads stderr up to a text. The rest is drained, so that the child never blocks on it.
fn wait_for(child: &mut Child, text: &str) {
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.contains(text) {
            std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
            return;
        }
        line.clear();
    }
    panic!("it ended without {text:?}");
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    let sent = std::process::Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn an_instance_is_called_what_it_is_told_and_a_step_says_what_its_input_was_made_of() {
    let here = Here::new();
    let told = ["run", "order.yaml", "--input", r#"{"total": 19}"#, "--instance-name", "blue"];
    let answer = here.json(0, &told);
    assert!(answer["steps"][0]["inputEvents"].is_null(), "an entry step gets the input of the run");
    assert_eq!(answer["steps"][1]["inputEvents"], serde_json::json!(["order.charged"]));
    let events = here.flowline(&["events", answer["runId"].as_str().unwrap(), "--json"]).out;
    assert!(events.contains(r#""instance":"blue-"#), "{events}");
}

#[test]
fn an_emit_without_a_payload_leaves_no_key_in_the_input_of_the_next_step() {
    let here = Here::new();
    here.write(
        "ping.yaml",
        r#"
flow: ping
steps:
  a: { command: [sh, -c, 'echo "{\"emit\": {\"name\": \"go\"}}"'], emits: [go] }
  b: { subscribes: go, command: [sh, -c, 'grep -q "\"input\":{}" && echo "{\"result\": \"empty\"}"'] }
"#,
    );
    assert_eq!(here.json(0, &["run", "ping.yaml"])["result"]["b"], "empty");
}
