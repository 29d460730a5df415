//! What is left of a run's reports when its log is trimmed.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::report::ReportDigests;
use flowline_core::{EventType, NewEvent, RunKey};
use serde_json::json;

use super::{Fixture, given};
use crate::Commit;
use crate::row::Retention;

const DAY: Duration = Duration::from_secs(86_400);
const TRIM: Retention = Retention { events: given::SHORT, runs: DAY };
const REMOVE: Retention = Retention { events: given::SHORT, runs: given::SHORT };

fn event(kind: EventType, step: &str, attempt: u32, data: serde_json::Value) -> NewEvent {
    NewEvent::step(kind, &Arc::from(step), attempt, Some(given::json(data)))
}

/// A report of every kind, and what makes none.
fn reports(step: &str, text: &str) -> Vec<NewEvent> {
    let run = |kind| NewEvent::run(kind, Some(given::json(json!({"name": text, "payload": text}))));
    vec![
        event(EventType::StepStarted, step, 1, json!({})),
        event(EventType::Emit, step, 1, json!({"name": text, "payload": {"b": [1, 0.5], "a": text}})),
        event(EventType::StepRetry, step, 1, json!({"error": text, "code": "x"})),
        event(EventType::StepRetry, step, 2, json!({"error": "gone", "cause": "lease-lost"})),
        event(EventType::StepRetry, step, 3, json!({"error": "late", "code": "timeout"})),
        event(EventType::Emit, step, 4, json!({"name": text})),
        event(EventType::StepCompleted, step, 4, json!({"result": {"text": text}})),
        NewEvent::step(EventType::StepCompleted, &Arc::from(step), 5, None),
        run(EventType::Emit),
        run(EventType::Log),
    ]
}

/// A run that has ended, with what its log says of its reports.
async fn reported(f: &Fixture, id: &str) -> (RunKey, ReportDigests) {
    let run = f.started(id, vec![]).await;
    let texts = given::STRANGE.iter();
    for (version, text) in (1..).zip(texts) {
        let events = reports(text, text);
        f.commit(Commit { events, ..given::next(&run, version) }).await;
    }
    f.commit(given::end(&run, 1 + given::STRANGE.len() as u64)).await;
    let digests = ReportDigests::of(&f.log(&run).await);
    assert_ne!(digests, ReportDigests::default());
    (run, digests)
}

async fn digests(f: &Fixture, run: &RunKey) -> Option<ReportDigests> {
    f.store.reports(run).await.expect("the store answers")
}

pub async fn a_trimmed_run_keeps_a_digest_of_each_report(f: Fixture) {
    let (run, expected) = reported(&f, "r").await;
    let (other, _) = reported(&f, "other").await;
    let none = f.started("none", vec![]).await;
    f.commit(given::end(&none, 1)).await;
    f.pass(given::LATER).await;
    assert_eq!(f.store.retain(TRIM, 10).await.expect("retains").trimmed, 3);
    assert_eq!(f.log(&run).await, []);
    assert_eq!(digests(&f, &run).await, Some(expected.clone()));
    assert_eq!(digests(&f, &other).await, Some(expected), "runs that say the same");
    assert_eq!(digests(&f, &none).await, Some(ReportDigests::default()), "it had none, and that is known");
}

pub async fn a_run_whose_log_is_whole_has_no_digests(f: Fixture) {
    let (run, _) = reported(&f, "r").await;
    assert_eq!(digests(&f, &run).await, None);
    assert_eq!(digests(&f, &given::run("nobody")).await, None);
    f.store.retain(Retention { events: DAY, runs: DAY }, 10).await.expect("retains");
    assert_eq!(digests(&f, &run).await, None);
}

pub async fn a_log_of_many_pages_is_digested_whole(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let mut version = 1;
    for part in 0..5u32 {
        let report = |n| event(EventType::StepCompleted, "a", part * 500 + n, json!({"result": n}));
        let events = (1..=500).map(report).collect();
        f.commit(Commit { events, ..given::next(&run, version) }).await;
        version += 1;
    }
    f.commit(given::end(&run, version)).await;
    let expected = ReportDigests::of(&f.log(&run).await);
    f.pass(given::LATER).await;
    f.store.retain(TRIM, 10).await.expect("retains");
    assert_eq!(digests(&f, &run).await, Some(expected));
}

pub async fn digests_go_with_their_run(f: Fixture) {
    let (removed, _) = reported(&f, "removed").await;
    f.pass(given::LATER).await;
    f.store.retain(TRIM, 10).await.expect("retains");
    assert_eq!(f.store.retain(REMOVE, 10).await.expect("retains").removed, 1);
    let (deleted, _) = reported(&f, "deleted").await;
    f.pass(given::LATER).await;
    f.store.retain(TRIM, 10).await.expect("retains");
    assert_eq!(f.store.delete_runs(std::slice::from_ref(&deleted)).await.expect("deletes"), [true]);
    for run in [removed, deleted] {
        assert_eq!(digests(&f, &run).await, None);
        f.commit(given::start(&run)).await;
        assert_eq!(digests(&f, &run).await, None, "a new run under its id knows nothing of it");
    }
}
