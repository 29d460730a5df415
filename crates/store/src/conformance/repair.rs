//! Mends by reconciling, and what a store says of itself.

use flowline_core::{EventType, NewEvent, RunKey, Status, Time};

use super::{Fixture, given};
use crate::row::Repair;
use crate::{
    Commit, CommitError, Failure, Index, JobKey, JobState, NewJob, RunQuery, RunRow, Snapshot, Total,
};

async fn snapshot(f: &Fixture, run: &RunKey) -> Snapshot {
    f.store.load(std::slice::from_ref(run)).await.expect("loads").remove(0).expect("is there")
}

fn repairs(run: &RunKey, version: u64) -> [Repair; 3] {
    let (run, state, index) = (run.clone(), b"mended".to_vec(), given::index(Status::Failed));
    [
        Repair::Row {
            run: run.clone(),
            version,
            state: state.clone(),
            index: index.clone(),
            created_at: Time::from_millis(1),
            started_at: None,
            completed_at: None,
            events: 1,
            seen: 1,
        },
        Repair::Events { run: run.clone(), version, events: given::log_events(1), state, index },
        Repair::Jobs { run, version, add: vec![given::step(5)], remove: vec![JobKey::Step(0)] },
    ]
}

pub async fn a_repair_on_another_version_changes_nothing(f: Fixture) {
    let run = f.started("r", vec![given::step(0)]).await;
    let before = (snapshot(&f, &run).await, f.log(&run).await, f.jobs(&run).await);
    for repair in repairs(&run, 2) {
        let answer = f.store.repair(repair).await;
        assert_eq!(answer, Err(CommitError::Conflict { expected: 2, found: Some(1) }));
    }
    assert_eq!((snapshot(&f, &run).await, f.log(&run).await, f.jobs(&run).await), before);
    for repair in repairs(&given::run("none"), 1) {
        let answer = f.store.repair(repair).await;
        assert_eq!(answer, Err(CommitError::Conflict { expected: 1, found: None }));
    }
}

pub async fn a_mended_row_is_what_the_repair_says(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let wrong = Failure { error: "wrong".into(), step: None };
    let index = Index { failure: Some(wrong), ..given::index(Status::Running) };
    f.commit(Commit { index, events: given::log_events(2), ..given::next(&run, 1) }).await;
    let before = f.row(&run).await;
    let at = |ms| Time::from_millis(before.created_at.millis() - 10_000 + ms);
    let index = Index { completed_steps: 2, failed_steps: 1, retries: 5, ..given::index(Status::Completed) };
    let repair = Repair::Row {
        run: run.clone(),
        version: 2,
        state: b"mended".to_vec(),
        index,
        created_at: at(0),
        started_at: Some(at(10)),
        completed_at: Some(at(500)),
        events: 3,
        seen: 3,
    };
    f.store.repair(repair).await.expect("mends");
    let row = RunRow {
        status: Status::Completed,
        created_at: at(0),
        started_at: Some(at(10)),
        completed_at: Some(at(500)),
        duration: Some(500),
        completed_steps: 2,
        failed_steps: 1,
        retries: 5,
        failure: None,
        version: 3,
        ..before
    };
    assert_eq!(snapshot(&f, &run).await, Snapshot { row, state: b"mended".to_vec() });
    let query = RunQuery { status: Some(Status::Completed), ..RunQuery::of(run.tenant.clone()) };
    let page = f.store.runs(query).await.expect("lists");
    assert_eq!((page.items.len(), page.total), (1, Some(Total::Exact(1))), "lists and counters follow");
    let stale = f.refused(given::next(&run, 2)).await;
    assert_eq!(stale, CommitError::Conflict { expected: 2, found: Some(3) });
}

pub async fn a_row_that_lines_were_added_to_since_it_was_looked_at_is_left_alone(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let looked_at = f.row(&run).await;
    let lines = vec![given::line(EventType::StepStarted), given::log_line("hello")];
    f.append(given::append(&job, 0, lines)).await.expect("the lease is held");
    let before = (snapshot(&f, &run).await, f.log(&run).await);
    assert_eq!(before.0.row.version, looked_at.version, "lines make no new version");
    let mut late = repairs(&run, looked_at.version)[0].clone();
    if let Repair::Row { events, seen, .. } = &mut late {
        (*events, *seen) = (looked_at.events, looked_at.events);
    }
    let (expected, found) = (looked_at.version, Some(looked_at.version));
    assert_eq!(f.store.repair(late).await, Err(CommitError::Conflict { expected, found }));
    assert_eq!((snapshot(&f, &run).await, f.log(&run).await), before, "no number is given twice");
}

pub async fn missing_events_are_added_at_the_end(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let before = f.row(&run).await;
    let repair = Repair::Events {
        run: run.clone(),
        version: 1,
        events: vec![NewEvent::run(EventType::FlowFailed, None)],
        state: b"mended".to_vec(),
        index: given::index(Status::Failed),
    };
    f.store.repair(repair).await.expect("mends");
    let log = f.log(&run).await;
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
    let row = RunRow {
        status: Status::Failed,
        // It ended before anything of it began.
        started_at: Some(before.created_at),
        completed_at: Some(log[1].ts),
        duration: Some(log[1].ts.since(before.created_at).as_millis() as u64),
        version: 2,
        events: 2,
        ..before
    };
    assert_eq!(snapshot(&f, &run).await, Snapshot { row, state: b"mended".to_vec() });
    let shown: Vec<_> =
        f.store.counters().await.expect("counts").iter().map(|c| (c.status, c.count)).collect();
    assert_eq!(shown, [(Status::Failed, 1)]);
    let fed = f.store.feed(crate::FeedFilter::default(), "", 10).await.expect("feeds").events;
    assert_eq!(fed, log);
}

pub async fn missing_jobs_are_added_and_others_go(f: Fixture) {
    let (run, _) = f.leased("r").await;
    let now = f.now().await;
    f.commit(Commit { add: vec![given::timer(0, now), given::step(1)], ..given::next(&run, 1) }).await;
    let handed = NewJob { attempt: 2, handoff: given::handoff(9), ..given::step(0) };
    let repair = Repair::Jobs {
        run: run.clone(),
        version: 2,
        add: vec![handed, given::step(3)],
        remove: vec![JobKey::Step(0), JobKey::Timer(0), JobKey::Step(77)],
    };
    f.store.repair(repair).await.expect("mends");
    let jobs: Vec<_> = f.jobs(&run).await.into_iter().map(|job| (job.key, job.attempt, job.state)).collect();
    let expected = [
        (JobKey::Step(0), 2, JobState::Waiting),
        (JobKey::Step(1), 1, JobState::Waiting),
        (JobKey::Step(3), 1, JobState::Waiting),
    ];
    assert_eq!(jobs, expected);
    assert_eq!(f.row(&run).await.version, 3);
    assert_eq!(f.claimed_names(&[1, 2, 3, 4]).await.len(), 3);
}

pub async fn a_mend_that_adds_a_job_that_is_there_is_refused(f: Fixture) {
    let run = f.started("r", vec![given::step(0), given::step(1)]).await;
    let before = (snapshot(&f, &run).await, f.jobs(&run).await);
    let repair = Repair::Jobs {
        run: run.clone(),
        version: 1,
        add: vec![given::step(2), given::step(1)],
        remove: vec![JobKey::Step(0)],
    };
    assert_eq!(f.store.repair(repair).await, Err(CommitError::StaleLease(JobKey::Step(1))));
    assert_eq!((snapshot(&f, &run).await, f.jobs(&run).await), before);
}

pub async fn counting_again_gives_the_same_where_nothing_is_wrong(f: Fixture) {
    for id in ["a", "b", "c"] {
        f.started(id, vec![]).await;
    }
    f.commit(given::end(&given::run("b"), 1)).await;
    let there = given::run_of(&given::tenant("other"), "r");
    f.define(&there).await;
    f.commit(given::start(&there)).await;
    let sorted = |mut counters: Vec<crate::Counter>| {
        counters.sort();
        counters
    };
    let before = sorted(f.store.counters().await.expect("counts"));
    assert_eq!(before.len(), 3);
    f.store.repair(Repair::Counters { tenant: given::tenant("default") }).await.expect("mends");
    assert_eq!(sorted(f.store.counters().await.expect("counts")), before);
    f.store.repair(Repair::Counters { tenant: given::tenant("nobody") }).await.expect("mends");
    assert_eq!(sorted(f.store.counters().await.expect("counts")), before);
}

pub async fn a_fresh_store_is_healthy_and_says_what_it_survives(f: Fixture) {
    let health = f.store.check().await.expect("checks");
    assert_eq!(health.problems, Vec::<String>::new());
    assert!(!health.kind.is_empty() && !health.durability.is_empty() && health.format >= 1);
}

pub async fn the_stores_time_does_not_stand_still(f: Fixture) {
    let before = f.now().await;
    f.pass(given::SHORT).await;
    assert!(f.now().await >= before + given::SHORT);
}
