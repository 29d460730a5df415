//! Retention: counted from the end of a run, and never before it.

use std::time::Duration;

use flowline_core::definition::Retain;
use flowline_core::event::PayloadSlot;
use flowline_core::{EventType, NewEvent, RunKey, Status, Tenant, Time};

use super::{Fixture, given};
use crate::row::{Repair, Retained, Retention};
use crate::{Base, Commit, FeedFilter, NewRun, RunQuery, RunRow, StateScope, Total};

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
    let start = NewEvent::run(EventType::FlowStart, Some(given::json(1.into()))).at(PayloadSlot::Input);
    f.commit(Commit { events: vec![start], ..given::start(&run) }).await;
    f.commit(given::end(&run, 1)).await;
    let before = f.row(&run).await;
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, TRIM, 10).await, (1, 0));
    assert_eq!(f.row(&run).await, RunRow { events_trimmed: true, ..before });
    assert_eq!(f.log(&run).await, []);
    assert_eq!(f.store.payloads_of(&run, &[PayloadSlot::Input]).await.expect("answers"), [None]);
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

/// A live run of a definition that says how long its runs are kept.
async fn started_with(f: &Fixture, id: &str, retain: Retain) -> RunKey {
    let run = given::run(id);
    f.define(&run).await;
    let new = NewRun { retain: Some(retain), ..given::new_run() };
    f.commit(Commit { base: Base::New(new), ..given::start(&run) }).await;
    run
}

async fn ended_with(f: &Fixture, id: &str, retain: Retain) -> RunKey {
    let run = started_with(f, id, retain).await;
    f.commit(given::end(&run, 1)).await;
    run
}

/// What is left of a run: nothing, its row, or its events too.
async fn left(f: &Fixture, run: &RunKey) -> &'static str {
    match f.try_row(run).await {
        None => "nothing",
        Some(row) if row.events_trimmed => "row",
        Some(_) => "events",
    }
}

pub async fn what_a_definition_says_comes_before_the_policy_be_it_shorter_or_longer(f: Fixture) {
    let trimmed = ended_with(&f, "trimmed", Retain::events(given::SHORT).and_runs(DAY)).await;
    let removed = ended_with(&f, "removed", Retain::events(given::SHORT).and_runs(given::SHORT)).await;
    let kept = ended_with(&f, "kept", Retain::events(DAY).and_runs(DAY)).await;
    let usual = ended(&f, "usual").await;
    f.pass(given::LATER).await;
    let long = Retention { events: DAY, runs: DAY };
    assert_eq!(retain(&f, long, 10).await, (1, 1), "shorter than the policy");
    for (run, says) in [(&trimmed, "row"), (&removed, "nothing"), (&kept, "events"), (&usual, "events")] {
        assert_eq!(left(&f, run).await, says, "{run}");
    }
    assert_eq!(f.log(&trimmed).await, []);
    assert_eq!(retain(&f, REMOVE, 10).await, (0, 1), "longer than the policy");
    for (run, says) in [(&trimmed, "row"), (&kept, "events"), (&usual, "nothing")] {
        assert_eq!(left(&f, run).await, says, "{run}");
    }
    assert_eq!(f.log(&kept).await.len(), 2);
    assert_eq!((retain(&f, REMOVE, 10).await, retain(&f, long, 10).await), ((0, 0), (0, 0)));
}

pub async fn what_a_definition_leaves_out_is_as_the_policy_says(f: Fixture) {
    let events_soon = ended_with(&f, "events-soon", Retain::events(given::SHORT)).await;
    let runs_soon = ended_with(&f, "runs-soon", Retain::runs(given::SHORT)).await;
    let events_late = ended_with(&f, "events-late", Retain::events(DAY)).await;
    let runs_late = ended_with(&f, "runs-late", Retain::runs(DAY)).await;
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, Retention { events: DAY, runs: DAY }, 10).await, (1, 1));
    assert_eq!((left(&f, &events_soon).await, left(&f, &runs_soon).await), ("row", "nothing"));
    assert_eq!((left(&f, &events_late).await, left(&f, &runs_late).await), ("events", "events"));
    assert_eq!(retain(&f, REMOVE, 10).await, (1, 2), "no event outlives its run");
    assert_eq!((left(&f, &events_soon).await, left(&f, &events_late).await), ("nothing", "nothing"));
    assert_eq!(left(&f, &runs_late).await, "row");
}

pub async fn a_run_goes_in_two_steps_by_its_own_times(f: Fixture) {
    let own = Retain::events(Duration::from_millis(1)).and_runs(given::SHORT);
    let live = started_with(&f, "live", own).await;
    let run = ended_with(&f, "r", own).await;
    let before = f.row(&run).await;
    f.pass(Duration::from_millis(10)).await;
    let policy = Retention { events: DAY, runs: DAY };
    assert_eq!(retain(&f, policy, 10).await, (1, 0));
    assert_eq!(f.row(&run).await, RunRow { events_trimmed: true, ..before });
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, policy, 10).await, (0, 1));
    assert_eq!((f.try_row(&run).await, retain(&f, policy, 10).await), (None, (0, 0)));
    assert_eq!((left(&f, &live).await, f.log(&live).await.len()), ("events", 1), "it has not ended");

    f.commit(given::start(&run)).await;
    assert_eq!(f.row(&run).await.retain, None, "a new run under its id is kept as its definition says");
}

pub async fn the_limit_holds_for_all_retentions_together_those_that_ended_first_go_first(f: Fixture) {
    let soon = |ms| Retain::events(Duration::from_millis(ms)).and_runs(Duration::from_millis(ms + 1));
    let mut runs = Vec::new();
    for (id, own) in [("d", Some(soon(3))), ("a", None), ("c", Some(soon(1))), ("b", Some(soon(2)))] {
        runs.push(match own {
            Some(own) => ended_with(&f, id, own).await,
            None => ended(&f, id).await,
        });
        f.pass(Duration::from_millis(5)).await;
    }
    f.pass(given::LATER).await;
    for left in (0..4).rev() {
        assert_eq!(retain(&f, REMOVE, 1).await, (0, 1));
        let page = f.store.runs(RunQuery::of(Tenant::default())).await.expect("lists");
        assert_eq!(page.items.len(), left);
        assert_eq!(f.try_row(&runs[3 - left]).await, None, "those that ended first go first");
    }
}

pub async fn a_run_with_times_of_its_own_ends_by_a_step_and_is_retained(f: Fixture) {
    let own = Retain::events(given::SHORT).and_runs(DAY);
    let run = given::run("r");
    f.define(&run).await;
    let new = NewRun { retain: Some(own), ..given::new_run() };
    f.commit(Commit { base: Base::New(new), add: vec![given::step(0)], ..given::start(&run) }).await;
    for version in 1..4 {
        let job = f.claim(given::claim(&[version.into()])).await.jobs.remove(0);
        let (events, add) = (vec![given::line(EventType::StepStarted).event], vec![given::step(0)]);
        f.commit(Commit { leases: vec![given::finish(&job)], events, add, ..given::next(&run, version) })
            .await;
    }
    let job = f.claim(given::claim(&[9])).await.jobs.remove(0);
    f.commit(Commit { leases: vec![given::finish(&job)], ..given::end(&run, 4) }).await;
    assert_eq!(f.row(&run).await.retain, Some(own));
    f.pass(given::LATER).await;
    assert_eq!(retain(&f, Retention { events: DAY, runs: DAY }, 10).await, (1, 0));
    assert_eq!(f.row(&run).await.retain, Some(own), "a trimmed run still knows");
}

pub async fn a_run_with_times_of_its_own_is_deleted_and_mended_like_any_other(f: Fixture) {
    let own = Retain::runs(Duration::from_secs(5));
    let policy = Retention { events: DAY, runs: DAY };
    let deleted = ended_with(&f, "deleted", own).await;
    let (mended, late) = (started_with(&f, "mended", own).await, ended_with(&f, "late", own).await);
    assert_eq!(f.store.delete_runs(std::slice::from_ref(&deleted)).await.expect("deletes"), [true]);
    assert_eq!(retain(&f, policy, 10).await, (0, 0), "the others are not due");
    for (run, version) in [(&mended, 1), (&late, 2)] {
        let row = f.row(run).await;
        let ended = Time::from_millis(row.created_at.millis() - 6_000);
        let repair = Repair::Row {
            run: run.clone(),
            version,
            state: b"mended".to_vec(),
            index: given::index(Status::Completed),
            created_at: ended,
            started_at: Some(ended),
            completed_at: Some(ended),
            events: row.events,
            seen: row.events,
        };
        f.store.repair(repair).await.expect("mends");
        assert_eq!(f.row(run).await.retain, Some(own));
    }
    assert_eq!(retain(&f, policy, 10).await, (0, 2), "it counts from the end that the log tells");
    let by_events = started_with(&f, "by-events", Retain::runs(Duration::from_millis(1))).await;
    let repair = Repair::Events {
        run: by_events.clone(),
        version: 1,
        events: vec![NewEvent::run(EventType::FlowFailed, None)],
        state: b"mended".to_vec(),
        index: given::index(Status::Failed),
    };
    f.store.repair(repair).await.expect("mends");
    f.pass(Duration::from_millis(10)).await;
    assert_eq!(retain(&f, policy, 10).await, (0, 1));
    assert_eq!(f.try_row(&by_events).await, None);
}
