//! Verify and reconcile on runs of machines: what is damaged is named, and what can be mended from the log is.

use flowline::core::RunKey;
use flowline::core::definition::{Format, read};
use flowline::core::event::EventType;
use flowline::reconcile::{Mode, reconcile};
use flowline::store::row::Repair;
use flowline::store::{EventQuery, JobKey};
use flowline::verify::verify;
use flowline::{Config, Engine, InstanceRole};
use serde_json::json;

use crate::kit::memory;

const MACHINE: &str = r#"
machine: order
events: [pay]
states:
  new: {on: {pay: paid}, after: {in: 1h, to: expired}}
  paid: {on: {pay: paid}, after: [{in: 2h, to: expired}, {in: 3h, to: expired}]}
  expired: {final: failed}
"#;

/// The job of the first timer of state `paid`.
const OF_PAID: JobKey = JobKey::Timer(3);

async fn paid() -> (Engine, RunKey) {
    let store = memory();
    let definition = read("order.yaml", MACHINE, Format::Yaml).unwrap().definition;
    let config = Config { role: InstanceRole::Operate, ..Config::default() };
    let engine = Engine::on(store).config(config).definition(definition, None).start().await.unwrap();
    let run = engine.run_named("order", flowline::core::Json::from(json!({}))).await.unwrap().await.unwrap();
    engine.send(run.key(), "pay", json!(1).into()).await.unwrap();
    (engine, run.key().clone())
}

async fn remove(engine: &Engine, run: &RunKey, key: JobKey) {
    let snapshot = engine.store().load(std::slice::from_ref(run)).await.unwrap().pop().flatten().unwrap();
    let version = snapshot.row.version;
    let damage = Repair::Jobs { run: run.clone(), version, add: Vec::new(), remove: vec![key] };
    engine.store().repair(damage).await.unwrap();
}

#[tokio::test]
async fn a_machine_that_waits_is_as_its_log_says() {
    let (engine, _) = paid().await;
    assert_eq!(verify(engine.store(), engine.plans(), None).await.unwrap().violations, []);
    engine.stop().await;
}

#[tokio::test]
async fn the_missing_job_of_a_timer_is_set_again_for_its_time() {
    let (engine, run) = paid().await;
    let before = engine.store().jobs(&run).await.unwrap();
    remove(&engine, &run, OF_PAID).await;
    let found = verify(engine.store(), engine.plans(), None).await.unwrap().violations;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].message, "timer Timer(3) is set, but has no job");
    let mended = reconcile(engine.store(), engine.plans(), None, Mode::Repair).await.unwrap();
    assert!(mended.findings.iter().all(|finding| finding.repaired), "{mended:?}");
    assert_eq!(engine.store().jobs(&run).await.unwrap(), before);
    let set = EventQuery { kinds: vec![EventType::TimerSet], ..EventQuery::default() };
    assert_eq!(
        engine.store().events(&run, set).await.unwrap().events.len(),
        3,
        "one of the first state, two of this"
    );
    engine.stop().await;
}

#[tokio::test]
async fn the_job_of_a_timer_that_is_not_set_goes() {
    let (engine, run) = paid().await;
    let snapshot = engine.store().load(std::slice::from_ref(&run)).await.unwrap().pop().flatten().unwrap();
    let other = engine.store().jobs(&run).await.unwrap().remove(0);
    let stray = flowline::store::NewJob {
        key: JobKey::Timer(2),
        name: "new".into(),
        attempt: 1,
        lane: flowline::store::Lane { queue: other.queue.clone(), need: other.need.clone() },
        priority: other.priority,
        due: other.due,
        held: false,
        handoff: None,
    };
    let version = snapshot.row.version;
    let damage = Repair::Jobs { run: run.clone(), version, add: vec![stray], remove: Vec::new() };
    engine.store().repair(damage).await.unwrap();
    let mended = reconcile(engine.store(), engine.plans(), None, Mode::Repair).await.unwrap();
    assert!(
        !mended.findings.is_empty() && mended.findings.iter().all(|finding| finding.repaired),
        "{mended:?}"
    );
    assert!(engine.store().jobs(&run).await.unwrap().iter().all(|job| job.key != JobKey::Timer(2)));
    engine.stop().await;
}

#[tokio::test]
async fn a_store_at_work_is_reconciled_without_a_false_alarm() {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use flowline::reconcile::Reconciling;
    use flowline::{Flow, Step, StepError};

    let talk = |step: Step, n: serde_json::Value| async move {
        for line in 0..20 {
            step.log(flowline::Level::Info, line);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, StepError>(n)
    };
    let flow = Flow::new("talk").step("one", talk).returns("said").step("two", talk).subscribes(["said"]);
    let flow = flow.build().unwrap();
    let every = Duration::from_secs(1);
    let config = Config { reconcile: Some(Reconciling { mode: Mode::Repair, every }), ..Config::default() };
    let store = memory();
    let engine = Engine::on(store).config(config).flow(&flow).start().await.unwrap();
    let passes = || engine.meters().reconciled.passes.load(Ordering::Relaxed);
    let mut runs = Vec::new();
    while passes() < 3 {
        runs.push(engine.run(&flow, json!(runs.len())).await.unwrap());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for run in runs {
        assert_eq!(run.wait().await.unwrap().status, flowline::core::Status::Completed);
    }
    assert_eq!(engine.meters().reconciled.found.load(Ordering::Relaxed), 0);
    assert!(engine.meters().reconciled.runs.load(Ordering::Relaxed) > 50);
    assert_eq!(verify(engine.store(), engine.plans(), None).await.unwrap().violations, []);
    engine.stop().await;
}
