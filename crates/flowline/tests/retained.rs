//! How long runs are kept where their definition says so: from the builder to what retention removes.

use std::sync::Arc;
use std::time::Duration;

use flowline::core::ids::digest;
use flowline::core::{Json, RunKey, Status, definition};
use flowline::machine::to;
use flowline::retain::retain_all;
use flowline::store::RunStore;
use flowline::store::memory::MemoryStore;
use flowline::store::row::{Retained, Retention};
use flowline::{Config, Engine, Flow, Machine, Retain, RunHandle, RunOutcome};
use serde_json::json;

use crate::kit::{pass, standing};

const HOUR: Duration = Duration::from_secs(3_600);

fn flow(version: u32, retain: Option<Retain>) -> Flow {
    let flow = Flow::new("order").description(&format!("version {version}")).step("a", pass);
    match retain {
        Some(retain) => flow.retain(retain),
        None => flow,
    }
    .build()
    .unwrap()
}

async fn engine(store: &Arc<MemoryStore>, flow: &Flow) -> Engine {
    let config = Config { retention: None, ..Config::default() };
    Engine::on(store.clone()).config(config).flow(flow).start().await.unwrap()
}

/// Waits for the end of a run. The engine's clock goes on, and a job may be due a moment after where the store's stands.
async fn ended(store: &MemoryStore, run: &RunHandle) -> RunOutcome {
    store.clock().advance(Duration::from_secs(1));
    run.wait().await.unwrap()
}

/// What is left of a run: its row, and whether its events are.
async fn left(store: &MemoryStore, run: &RunKey) -> Option<bool> {
    let found = store.load(std::slice::from_ref(run)).await.unwrap().remove(0)?;
    Some(!found.row.events_trimmed)
}

#[tokio::test]
async fn a_run_is_kept_as_the_version_that_it_runs_under_says() {
    let store = standing();
    let mut runs = Vec::new();
    for (version, retain) in
        [(1, Some(Retain::runs(HOUR))), (2, Some(Retain::events(HOUR).and_runs(HOUR * 3))), (3, None)]
    {
        let flow = flow(version, retain);
        let engine = engine(&store, &flow).await;
        let run = engine.run(&flow, json!(version)).await.unwrap();
        ended(&store, &run).await;
        runs.push(run.key().clone());
        engine.stop().await;
    }
    store.clock().advance(HOUR * 2);
    let done = retain_all(&*store, Retention::default()).await.unwrap();
    assert_eq!(done, Retained { trimmed: 1, removed: 1 });
    assert_eq!(left(&store, &runs[0]).await, None);
    assert_eq!(left(&store, &runs[1]).await, Some(false));
    assert_eq!(left(&store, &runs[2]).await, Some(true), "the latest version says nothing");
    let short = Retention { events: HOUR, runs: HOUR };
    assert_eq!(retain_all(&*store, short).await.unwrap(), Retained { trimmed: 0, removed: 1 });
    assert_eq!(left(&store, &runs[1]).await, Some(false), "longer than the engine keeps runs");
}

#[tokio::test]
async fn a_machine_says_how_long_its_runs_are_kept_too() {
    let machine = Machine::new("door")
        .events(["close"])
        .retain(Retain::events(HOUR))
        .state("open")
        .on("close", to("closed"))
        .state("closed")
        .completes()
        .build()
        .unwrap();
    let store = standing();
    let engine = engine(&store, &machine).await;
    let run = engine.run(&machine, json!({})).await.unwrap();
    let open = engine.run(&machine, json!({})).await.unwrap();
    engine.send(run.key(), "close", Json::from(json!(null))).await.unwrap();
    ended(&store, &run).await;
    store.clock().advance(HOUR * 2);
    let done = retain_all(&*store, Retention::default()).await.unwrap();
    assert_eq!(done, Retained { trimmed: 1, removed: 0 });
    assert_eq!((left(&store, run.key()).await, left(&store, open.key()).await), (Some(false), Some(true)));
    engine.stop().await;
}

#[test]
fn times_that_make_no_sense_are_an_error_of_build() {
    for (retain, text) in [
        (Retain::events(HOUR * 2).and_runs(HOUR), "keep runs for at least as long as their events"),
        (Retain::runs(Duration::ZERO), "`runs` of `retain` is zero"),
        (Retain::runs(Duration::from_micros(1_500)), "whole milliseconds"),
        (Retain::default(), "{events: 1d, runs: 7d}"),
    ] {
        let error = Flow::new("order").step("a", pass).retain(retain).build().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn the_times_are_part_of_what_a_definition_is_known_by() {
    let text = |retain: &str| format!("flow: f\n{retain}steps:\n  a: {{ function: a }}\n");
    let read = |retain: &str| definition::read("f.yaml", &text(retain), definition::Format::Yaml).unwrap();
    let hashes = ["", "retain: { events: 1d }\n", "retain: { runs: 1d }\n", "retain: { runs: 24h }\n"]
        .map(|retain| read(retain).definition.hash());
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
    assert_eq!(hashes[2], hashes[3]);
}

#[tokio::test]
async fn a_step_that_waits_for_a_run_whose_result_is_gone_fails_instead_of_getting_null() {
    let store = standing();
    let child = Flow::new("child").step("a", pass).retain(Retain::events(HOUR)).build().unwrap();
    let text = "flow: parent\nsteps:\n  call: { start: { flow: child } }\n";
    let parent = definition::read("parent.yaml", text, definition::Format::Yaml).unwrap().definition;
    let config = Config { retention: None, ..Config::default() };
    let engine =
        Engine::on(store.clone()).config(config).flow(&child).definition(parent, None).start().await.unwrap();
    let waits = engine.run_named("parent", Json::null()).await.unwrap().delay(HOUR * 3).await.unwrap();
    let key = digest(format!("{}__call", waits.id()).as_bytes());
    let done =
        engine.run_named("child", Json::null()).await.unwrap().own_key(format!("step:{key}")).await.unwrap();
    assert!(!ended(&store, &done).await.trimmed);
    store.clock().advance(HOUR * 2);
    let policy = Retention { events: HOUR * 24, runs: HOUR * 48 };
    assert_eq!(retain_all(&*store, policy).await.unwrap().trimmed, 1);
    assert!(done.wait().await.unwrap().trimmed);
    store.clock().advance(HOUR * 2);
    let outcome = ended(&store, &waits).await;
    assert_eq!(outcome.status, Status::Failed);
    assert!(outcome.error.unwrap().contains("retention has removed its result"));
    engine.stop().await;
}
