//! Retention: counted from the end of a run, and never before it.

use std::time::Duration;

use flowline_core::event::Slot;
use flowline_core::{EventType, NewEvent, RunKey, Status, Tenant};

use super::{Fixture, given};
use crate::row::{Retained, Retention};
use crate::{Commit, FeedFilter, RunQuery, RunRow, StateScope, Total};

const DAY: Duration = Duration::from_secs(86_400);
/// Events go soon, rows stay.
const TRIM: Retention = Retention { events: given::SHORT, runs: DAY };
/// Everything goes soon.
const REMOVE: Retention = Retention { events: given::SHORT, runs: given::SHORT };

async fn ended(f: &Fixture, id: &str) -> RunKey {
    let run = f.started(id, vec![]).await;
    f.commit(given::end(&run, 1)).await;
    run
}

async fn retain(f: &Fixture, policy: Retention, limit: usize) -> (u64, u64) {
    let Retained { trimmed, removed } = f.store.retain(policy, limit).await.expect("the store retains");
    (trimmed, removed)
}

pub async fn a_run_that_has_not_ended_is_never_touched(f: Fixture) {
    let run = f.started("r", vec![given::step(0)]).await;
    f.pass(given::LATER).await;
    let before = (f.row(&run).await, f.log(&run).await, f.jobs(&run).await);
    assert_eq!(retain(&f, REMOVE, 10).await, (0, 0));
    assert_eq!((f.row(&run).await, f.log(&run).await, f.jobs(&run).await), before);
}

pub async fn a_run_that_ended_lately_is_kept(f: Fixture) {
    let run = f.started("r", vec![]).await;
    f.pass(given::LATER).await;
    f.commit(given::end(&run, 1)).await;
    let policy = Retention { events: DAY, runs: DAY };
    assert_eq!(retain(&f, policy, 10).await, (0, 0), "the age counts from the end");
    assert_eq!(f.log(&run).await.len(), 2);
}

pub async fn trimmed_events_leave_a_marked_row(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let start = NewEvent::run(EventType::FlowStart, Some(given::json(1.into()))).at(Slot::Input);
    f.commit(Commit { events: vec![start], ..given::start(&run) }).await;
    f.commit(given::end(&run, 1)).await;
    let before = f.row(&run).await;
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, TRIM, 10).await, (1, 0));
    assert_eq!(f.row(&run).await, RunRow { events_trimmed: true, ..before });
    assert_eq!(f.log(&run).await, []);
    assert_eq!(f.store.payloads(&run, &[Slot::Input]).await.expect("answers"), [None]);
    assert_eq!(retain(&f, TRIM, 10).await, (0, 0), "once is enough");
    let page = f.store.runs(RunQuery::of(Tenant::default())).await.expect("lists");
    assert_eq!((page.items.len(), page.total), (1, Some(Total::Exact(1))));
}

pub async fn the_feed_goes_on_past_trimmed_events(f: Fixture) {
    let filter = FeedFilter::default;
    let run = f.started("live", vec![]).await;
    ended(&f, "r").await;
    let page = f.store.feed(filter(), "", 1).await.expect("feeds");
    f.pass(given::LATER).await;
    retain(&f, TRIM, 10).await;
    f.commit(Commit { events: given::log_events(1), ..given::next(&run, 1) }).await;
    let rest = f.store.feed(filter(), &page.cursor, 10).await.expect("feeds");
    assert_eq!(rest.events, f.log(&run).await[1..]);
    let all = f.store.feed(filter(), "", 10).await.expect("feeds");
    assert_eq!(all.events, f.log(&run).await);
}

pub async fn a_removed_run_leaves_nothing_behind(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = |scope| given::state_line(scope, "k", Some(given::json(1.into())), None);
    let lines = vec![line(StateScope::Run), line(StateScope::Flow)];
    f.append(given::append(&job, 0, lines)).await.expect("appends");
    f.commit(given::end(&run, 1)).await;
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, REMOVE, 10).await, (0, 1));
    assert_eq!((f.try_row(&run).await, f.log(&run).await, f.jobs(&run).await), (None, vec![], vec![]));
    assert_eq!(f.store.counters().await.expect("counts"), []);
    assert_eq!(f.store.feed(FeedFilter::default(), "", 10).await.expect("feeds").events, []);
    let page = f.store.runs(RunQuery::of(run.tenant.clone())).await.expect("lists");
    assert_eq!((page.items, page.total), (vec![], Some(Total::Exact(0))));
    assert_eq!(super::state::all(&f, &run, &StateScope::Run).await, []);

    f.commit(given::start(&run)).await;
    assert_eq!((f.row(&run).await.version, f.log(&run).await.len()), (1, 1), "its id is free");
    assert_eq!(super::state::all(&f, &run, &StateScope::Run).await, []);
    assert_eq!(super::state::all(&f, &run, &StateScope::Flow).await.len(), 1, "the flow's state stays");
}

pub async fn a_deleted_run_leaves_nothing_behind_and_its_id_is_free(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = |scope| given::state_line(scope, "k", Some(given::json(1.into())), None);
    let lines = vec![line(StateScope::Run), line(StateScope::Flow)];
    f.append(given::append(&job, 0, lines)).await.expect("appends");
    f.commit(given::end(&run, 1)).await;
    let trimmed = ended(&f, "trimmed").await;
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, TRIM, 10).await, (2, 0));
    let lately = ended(&f, "lately").await;
    let all = [run.clone(), trimmed, lately.clone()];
    assert_eq!(f.store.delete_runs(&all).await.expect("deletes"), [true; 3]);
    for run in &all {
        assert_eq!((f.try_row(run).await, f.log(run).await, f.jobs(run).await), (None, vec![], vec![]));
    }
    assert_eq!(f.store.counters().await.expect("counts"), []);
    assert_eq!(f.store.feed(FeedFilter::default(), "", 10).await.expect("feeds").events, []);
    let page = f.store.runs(RunQuery::of(run.tenant.clone())).await.expect("lists");
    assert_eq!((page.items, page.total), (vec![], Some(Total::Exact(0))));
    assert_eq!(super::state::all(&f, &run, &StateScope::Run).await, []);
    assert_eq!(f.store.delete_runs(&all).await.expect("deletes"), [false; 3], "they are gone");

    f.commit(given::start(&run)).await;
    assert_eq!((f.row(&run).await.version, f.log(&run).await.len()), (1, 1), "its id is free");
    assert_eq!(super::state::all(&f, &run, &StateScope::Run).await, []);
    assert_eq!(super::state::all(&f, &run, &StateScope::Flow).await.len(), 1, "the flow's state stays");
}

pub async fn only_an_ended_run_of_the_tenant_is_deleted(f: Fixture) {
    let live = f.started("live", vec![given::step(0)]).await;
    let run = ended(&f, "r").await;
    let there = given::run_of(&given::tenant("other"), "r");
    let before = (f.row(&live).await, f.log(&live).await, f.jobs(&live).await);
    let asked = [live.clone(), there, given::run("none"), run.clone(), run.clone()];
    let gone = f.store.delete_runs(&asked).await.expect("deletes");
    assert_eq!(gone, [false, false, false, true, false]);
    assert_eq!((f.row(&live).await, f.log(&live).await, f.jobs(&live).await), before);
    assert_eq!(f.try_row(&run).await, None);
    assert_eq!(f.claimed_names(&[1]).await.len(), 1, "what is live goes on");
    assert_eq!(f.store.delete_runs(&[]).await.expect("deletes"), Vec::<bool>::new());
}

pub async fn jobs_left_by_an_ended_run_go_with_it(f: Fixture) {
    let now = f.now().await;
    let run = f.started("r", vec![given::step(0), given::timer(0, now)]).await;
    f.commit(Commit { others: crate::Others::Leave, ..given::end(&run, 1) }).await;
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, REMOVE, 10).await, (0, 1));
    assert_eq!(f.claimed_names(&[1]).await, Vec::<String>::new());
    assert_eq!(f.store.sweep(10).await.expect("sweeps").timers, []);
    assert_eq!(f.store.queues(&run.tenant).await.expect("lists"), []);
}

pub async fn every_ended_status_is_retained_and_no_other(f: Fixture) {
    for status in Status::ALL {
        let run = f.started(status.as_str(), vec![]).await;
        let events = match status {
            Status::Completed => vec![NewEvent::run(EventType::FlowCompleted, None)],
            Status::Failed => vec![NewEvent::run(EventType::FlowFailed, None)],
            Status::Cancelled => vec![NewEvent::run(EventType::FlowCancelled, None)],
            _ => vec![],
        };
        f.commit(Commit { events, index: given::index(status), ..given::next(&run, 1) }).await;
    }
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, REMOVE, 10).await, (0, 3));
    let page = f.store.runs(RunQuery::of(Tenant::default())).await.expect("lists");
    let left: Vec<_> = page.items.iter().map(|row| row.status).collect();
    assert_eq!(left, [Status::Paused, Status::Waiting, Status::Running]);
}

pub async fn at_most_limit_runs_go_at_once_those_that_ended_first(f: Fixture) {
    let mut runs = Vec::new();
    for id in ["c", "a", "b"] {
        runs.push(ended(&f, id).await);
        f.pass(Duration::from_millis(5)).await;
    }
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, TRIM, 2).await, (2, 0));
    let trimmed = |row: RunRow| row.events_trimmed;
    assert!(trimmed(f.row(&runs[0]).await) && trimmed(f.row(&runs[1]).await));
    assert!(!trimmed(f.row(&runs[2]).await));
    assert_eq!(retain(&f, REMOVE, 1).await, (0, 1));
    assert_eq!(f.try_row(&runs[0]).await, None);
    assert_eq!(retain(&f, REMOVE, 10).await, (0, 2), "a removed run is not counted as trimmed");
    assert_eq!(retain(&f, REMOVE, 10).await, (0, 0));
}

pub async fn retention_keeps_counters_true(f: Fixture) {
    ended(&f, "a").await;
    f.started("b", vec![]).await;
    f.pass(given::LATER).await;
    retain(&f, REMOVE, 10).await;
    let counters = f.store.counters().await.expect("counts");
    let shown: Vec<_> = counters.iter().map(|counter| (counter.status, counter.count)).collect();
    assert_eq!(shown, [(Status::Running, 1)]);
}
