//! What was written once is read for ever: see `golden/README.md`.

// Tests read the files that they are about; the crate itself never does.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::scenario::{Scenario, start_of};
use flowline_core::definition::{Format, Priority, read};
use flowline_core::event::{EVENT_VERSION, seq_of_id};
use flowline_core::ids::hex;
use flowline_core::{Event, EventType, Plan, RunState};

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(golden(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_type_of_event_has_a_fixture_that_round_trips() {
    let mut found = BTreeSet::new();
    for file in golden("event-v1").read_dir().unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let event: Event = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(&event).unwrap(), value, "{}", path.display());
        assert_eq!(path.file_stem().unwrap().to_str().unwrap(), event.kind.as_str());
        assert_eq!(seq_of_id(&event.id), Some(event.seq));
        found.insert(event.kind);
    }
    assert_eq!(found, EventType::ALL.iter().copied().collect());
    assert_eq!(EVENT_VERSION, 1, "a new version needs its own folder of fixtures");
}

#[test]
fn every_type_of_event_has_a_row_in_the_docs() {
    let page = fs::read_to_string(golden("../../../../docs/events.md")).unwrap();
    let first_cells: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    for kind in EventType::written() {
        let name = format!("`{kind}`");
        assert!(
            first_cells.iter().any(|cell| cell.split(", ").any(|one| one == name)),
            "{kind} in docs/events.md"
        );
    }
}

#[test]
fn what_a_later_version_adds_to_an_event_is_passed_over() {
    let mut value: serde_json::Value = serde_json::from_str(&text("event-v1/emit.json")).unwrap();
    value["later"] = 1.into();
    assert!(serde_json::from_value::<Event>(value).is_ok());
}

fn plan() -> Plan {
    Plan::build(read("flow.yaml", &text("run-v1/flow.yaml"), Format::Yaml).unwrap().definition).unwrap()
}

/// The run whose log is kept, paused at the moments whose states are kept.
fn replay() -> (Scenario, Vec<(&'static str, RunState)>) {
    let mut run = Scenario::planned(plan().into());
    let mut states = vec![("0-new", run.state.clone())];
    run.start_with(flowline_core::decide::Start {
        priority: Priority::High,
        ..start_of(r#"{"refund":true}"#)
    });
    states.push(("1-started", run.state.clone()));
    run.fail("place", "busy");
    states.push(("2-retry-waits", run.state.clone()));
    run.lose("place");
    run.done("place", "null", &[("order.placed", r#"{"cents":1900}"#)]);
    run.pause();
    states.push(("3-paused", run.state.clone()));
    run.resume();
    run.wait(40);
    run.fail("refund", "gone");
    run.done("charge", r#"{"receipt":"r-7"}"#, &[]);
    run.done("report", "1", &[]);
    states.push(("4-awaits-approval", run.state.clone()));
    run.send("approval.given", r#"{"by":"ann"}"#);
    run.fail("ship", "no_van");
    states.push(("5-failed", run.state.clone()));
    (run, states)
}

#[test]
fn the_log_of_a_run_is_still_written_as_it_was() {
    let (run, _) = replay();
    let written: Vec<serde_json::Value> =
        run.log.iter().map(|event| serde_json::to_value(event).unwrap()).collect();
    assert_eq!(written, lines().iter().map(|line| line.parse().unwrap()).collect::<Vec<serde_json::Value>>());
}

#[test]
fn the_log_of_a_run_folds_to_the_bytes_that_it_had() {
    let log: Vec<Event> = lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let state = RunState::fold(&plan(), &log).unwrap();
    assert_eq!(hex(&state.encode()), text("state-v1/5-failed.hex").trim());
}

#[test]
fn the_log_of_a_machine_put_where_another_stood_folds_to_the_bytes_that_it_had() {
    let definition = read("machine.yaml", &text("stood-v1/machine.yaml"), Format::Yaml).unwrap().definition;
    let log = text("stood-v1/log.jsonl");
    let log: Vec<Event> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let state = RunState::fold(&Plan::build(definition).unwrap(), &log).unwrap();
    let machine = state.of_machine();
    assert_eq!((machine.state, machine.transition, machine.received), (0, 2, 2));
    assert_eq!((machine.inbox.len(), machine.armed.len()), (1, 1));
    assert_eq!(hex(&state.encode()), text("stood-v1/state.hex").trim());
}

#[test]
fn run_states_keep_their_bytes() {
    let plan = plan();
    let mut kept = 0;
    for (name, state) in replay().1 {
        let file = format!("state-v1/{name}.hex");
        assert_eq!(hex(&state.encode()), text(&file).trim(), "{name}");
        assert_eq!(RunState::decode(&plan, &bytes(text(&file).trim())), Ok(state), "{name}");
        kept += 1;
    }
    assert_eq!(kept, golden("state-v1").read_dir().unwrap().count());
}

#[test]
fn the_definition_keeps_its_hash() {
    assert_eq!(&*plan().hash, text("run-v1/hash").trim());
}

fn lines() -> Vec<String> {
    text("run-v1/log.jsonl").lines().map(str::to_owned).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}
