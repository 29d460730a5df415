//! One commit: all or nothing, on the version that it was decided on.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::definition::Retain;
use flowline_core::{Event, EventType, Json, NewEvent, Status, Time};

use super::{Fixture, given};
use crate::{
    AppendLine, Base, Commit, CommitError, Committed, Counter, Failure, Index, JobKey, JobState, LeaseUse,
    NewJob, NewRun, Others, RunRow, Snapshot,
};

pub async fn a_new_run_gets_version_one_and_its_events_from_one(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let now = f.now().await;
    let committed = f.commit(given::start(&run)).await;
    assert!(committed.ts >= now);
    assert_eq!(committed, Committed { version: 1, first_seq: 1, ts: committed.ts, granted: vec![] });
    let start = given::start(&run).events.remove(0);
    let flow = Arc::from(given::FLOW);
    let event = Event::stored(&run.run, &flow, &run.tenant, 1, committed.ts.millis(), start);
    assert_eq!(f.log(&run).await, [event]);
}

pub async fn a_row_tells_what_its_start_said(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let labels: BTreeMap<String, String> =
        given::STRANGE.iter().map(|text| (format!("key {text}"), text.to_string())).collect();
    let new = NewRun {
        labels: labels.clone(),
        input_digest: "abc".into(),
        idempotency_key: Some(given::STRANGE.concat()),
        retry_of: Some(given::run("before").run),
        retain: Some(Retain::events(given::SHORT)),
        ..given::new_run()
    };
    let index = Index { completed_steps: 1, failed_steps: 2, retries: 3, ..given::index(Status::Waiting) };
    let commit = Commit { base: Base::New(new), index, state: b"\0\xff raw".to_vec(), ..given::start(&run) };
    let committed = f.commit(commit).await;
    let row = RunRow {
        run_id: run.run.clone(),
        flow_name: given::FLOW.into(),
        tenant: run.tenant.clone(),
        definition: given::HASH.into(),
        status: Status::Waiting,
        state: None,
        created_at: committed.ts,
        started_at: None,
        completed_at: None,
        duration: None,
        step_count: 3,
        completed_steps: 1,
        failed_steps: 2,
        retries: 3,
        failure: None,
        labels,
        idempotency_key: Some(given::STRANGE.concat()),
        retry_of: Some(given::run("before").run),
        retain: Some(Retain::events(given::SHORT)),
        version: 1,
        events: 1,
        events_trimmed: false,
        input_digest: "abc".into(),
    };
    let loaded = f.store.load(&[given::run("none"), run.clone(), run]).await.expect("loads");
    let found = Some(Snapshot { row, state: b"\0\xff raw".to_vec() });
    assert_eq!(loaded, [None, found.clone(), found]);
}

pub async fn a_commit_on_the_right_version_replaces_state_and_index(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let before = f.row(&run).await;
    let index = Index { completed_steps: 2, failed_steps: 1, retries: 4, ..given::index(Status::Paused) };
    let events = vec![NewEvent::run(EventType::FlowPaused, None)];
    let committed = f.commit(Commit { index, events, ..given::next(&run, 1) }).await;
    assert_eq!(committed, Committed { version: 2, first_seq: 2, ts: committed.ts, granted: vec![] });
    let row = RunRow {
        status: Status::Paused,
        completed_steps: 2,
        failed_steps: 1,
        retries: 4,
        version: 2,
        events: 2,
        ..before
    };
    let loaded = f.store.load(&[run]).await.expect("loads");
    assert_eq!(loaded, [Some(Snapshot { row, state: b"state 2".to_vec() })]);
}

pub async fn a_commit_on_another_version_is_refused(f: Fixture) {
    let run = f.started("r", vec![given::step(0)]).await;
    f.commit(given::next(&run, 1)).await;
    for wrong in [0, 1, 3, u64::from(u32::MAX)] {
        let commit = Commit {
            events: given::log_events(2),
            add: vec![given::step(7)],
            others: Others::Drop,
            ..given::next(&run, wrong)
        };
        assert_eq!(f.refused(commit).await, CommitError::Conflict { expected: wrong, found: Some(2) });
    }
}

pub async fn a_commit_on_a_run_that_is_not_there_is_a_conflict(f: Fixture) {
    let error = f.refused(given::next(&given::run("none"), 1)).await;
    assert_eq!(error, CommitError::Conflict { expected: 1, found: None });
}

pub async fn a_run_that_exists_is_not_started_again(f: Fixture) {
    let run = f.started("r", vec![]).await;
    assert_eq!(f.refused(given::start(&run)).await, CommitError::Exists);
    f.commit(given::end(&run, 1)).await;
    let unknown = NewRun { definition: "unknown".into(), ..given::new_run() };
    let again = Commit { base: Base::New(unknown), ..given::start(&run) };
    assert_eq!(
        f.refused(again).await,
        CommitError::Exists,
        "an ended run exists too, whatever else is wrong"
    );
}

pub async fn an_unknown_definition_is_refused(f: Fixture) {
    let run = given::run("r");
    let error = f.refused(given::start(&run)).await;
    assert_eq!(error, CommitError::UnknownDefinition(given::HASH.into()));
}

pub async fn a_definition_of_another_tenant_is_unknown(f: Fixture) {
    f.define(&given::run("r")).await;
    let elsewhere = given::run_of(&given::tenant("other"), "r");
    let error = f.refused(given::start(&elsewhere)).await;
    assert_eq!(error, CommitError::UnknownDefinition(given::HASH.into()));
}

pub async fn a_conflict_of_one_run_fails_that_run_alone(f: Fixture) {
    let (a, b, c) =
        (f.started("a", vec![]).await, f.started("b", vec![]).await, f.started("c", vec![]).await);
    let stale = LeaseUse::Unleased { key: JobKey::Step(9), attempt: 1 };
    let batch = vec![
        Commit { events: given::log_events(1), ..given::next(&a, 1) },
        Commit { events: given::log_events(1), ..given::next(&b, 5) },
        Commit { leases: vec![stale], ..given::next(&c, 1) },
        given::start(&a),
        given::start(&given::run("d")),
    ];
    let answers = f.store.commit(batch).await.expect("the store answers");
    let versions: Vec<_> = answers.into_iter().map(|answer| answer.map(|landed| landed.version)).collect();
    let expected = [
        Ok(2),
        Err(CommitError::Conflict { expected: 5, found: Some(1) }),
        Err(CommitError::StaleLease(JobKey::Step(9))),
        Err(CommitError::Exists),
        Ok(1),
    ];
    assert_eq!(versions, expected);
    assert_eq!(f.log(&a).await.len(), 2);
    assert_eq!((f.log(&b).await.len(), f.row(&b).await.version), (1, 1));
    assert_eq!((f.log(&c).await.len(), f.row(&c).await.version), (1, 1));
}

pub async fn an_empty_batch_is_answered_with_nothing(f: Fixture) {
    assert_eq!(f.store.commit(vec![]).await.expect("answers"), vec![]);
    assert_eq!(f.store.append(vec![]).await.expect("answers"), vec![]);
}

pub async fn a_large_batch_lands_whole_and_is_answered_in_order(f: Fixture) {
    f.define(&given::run("r")).await;
    let runs: Vec<_> = (0..200).map(|n| given::run(&format!("r{n}"))).collect();
    let batch = runs.iter().enumerate().map(|(n, run)| {
        let events = given::log_events(n % 5 + 1);
        Commit { events, add: vec![given::step(n as u32)], ..given::start(run) }
    });
    let answers = f.store.commit(batch.collect()).await.expect("the store answers");
    for (n, answer) in answers.into_iter().enumerate() {
        let landed = answer.expect("lands");
        assert_eq!((landed.version, landed.first_seq), (1, 1));
        assert_eq!(f.log(&runs[n]).await.len(), n % 5 + 1);
        let keys: Vec<_> = f.jobs(&runs[n]).await.iter().map(|job| job.key).collect();
        assert_eq!(keys, [JobKey::Step(n as u32)]);
    }
}

pub async fn events_of_one_commit_share_one_date_that_never_goes_back(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let mut last = Time::from_millis(0);
    for version in 1..6 {
        let committed = f.commit(Commit { events: given::log_events(3), ..given::next(&run, version) }).await;
        assert!(committed.ts >= last);
        last = committed.ts;
        let log = f.log(&run).await;
        let tail: Vec<_> = log[log.len() - 3..].iter().map(|event| (event.seq, event.ts)).collect();
        let first = committed.first_seq;
        assert_eq!(tail, [(first, last), (first + 1, last), (first + 2, last)]);
        f.pass(std::time::Duration::from_millis(2)).await;
    }
}

pub async fn a_clock_that_goes_back_does_not_take_dates_back(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let before = f.row(&run).await.created_at;
    f.turn_back(given::SHORT);
    f.append(given::append(&job, 0, vec![given::log_line("x")])).await.expect("appends");
    let committed = f.commit(given::end(&run, 1)).await;
    assert!(committed.ts >= before);
    let log = f.log(&run).await;
    assert!(log.windows(2).all(|pair| pair[0].ts <= pair[1].ts), "{log:?}");
    assert_eq!(f.row(&run).await.completed_at, Some(committed.ts));
}

pub async fn a_commit_without_events_counts_the_version_up(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let committed = f.commit(given::next(&run, 1)).await;
    assert_eq!((committed.version, committed.first_seq), (2, 2));
    let row = f.row(&run).await;
    assert_eq!((row.version, row.events), (2, 1));
}

pub async fn started_at_is_the_date_of_the_first_step_started(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let started = vec![given::of_step(EventType::StepStarted, None)];
    f.pass(given::SHORT).await;
    let first = f.commit(Commit { events: started.clone(), ..given::next(&run, 1) }).await;
    f.pass(given::SHORT).await;
    f.commit(Commit { events: started, ..given::next(&run, 2) }).await;
    assert_eq!(f.row(&run).await.started_at, Some(first.ts));
}

/// A `step.started` of an attempt that began this long after its run was created.
fn begun(row: &RunRow, after: u64) -> NewEvent {
    let at = row.created_at + std::time::Duration::from_millis(after);
    given::of_step(EventType::StepStarted, Some(given::json(serde_json::json!({"worker": "w", "at": at}))))
}

pub async fn a_run_began_when_its_first_attempt_did_however_late_that_is_written(f: Fixture) {
    let (run, job) = f.leased("by-append").await;
    let row = f.row(&run).await;
    f.pass(given::SHORT).await;
    let line = |event| AppendLine { event, state: None };
    f.append(given::append(&job, 0, vec![line(begun(&row, 7)), line(begun(&row, 9))])).await.unwrap();
    assert_eq!(f.row(&run).await.started_at, begun(&row, 7).begins(Time::default()));
    for id in ["by-commit", "with-its-end"] {
        let run = f.started(id, vec![]).await;
        let row = f.row(&run).await;
        f.pass(given::SHORT).await;
        let began = row.created_at + std::time::Duration::from_millis(5);
        let events = vec![begun(&row, 5)];
        let commit = match id {
            "by-commit" => Commit { events, ..given::next(&run, 1) },
            _ => {
                let end = given::end(&run, 1);
                Commit { events: [events, end.events].concat(), ..end }
            }
        };
        f.commit(commit).await;
        assert_eq!(f.row(&run).await.started_at, Some(began), "{id}");
    }
}

pub async fn a_machine_begins_with_its_first_state_and_a_run_that_never_began_counts_from_its_start(
    f: Fixture,
) {
    let run = f.started("machine", vec![]).await;
    let row = f.row(&run).await;
    f.pass(given::SHORT).await;
    let entered = vec![NewEvent::run(EventType::StateChanged, None), begun(&row, 1)];
    let first = f.commit(Commit { events: entered, ..given::next(&run, 1) }).await;
    assert_eq!(f.row(&run).await.started_at, Some(first.ts));
    let run = f.started("idle", vec![]).await;
    assert_eq!(f.row(&run).await.started_at, None);
    f.pass(given::SHORT).await;
    f.commit(given::end(&run, 1)).await;
    let row = f.row(&run).await;
    assert_eq!(row.started_at, Some(row.created_at));
    f.commit(Commit { events: vec![begun(&row, 3)], ..given::next(&run, 2) }).await;
    assert_eq!(f.row(&run).await.started_at, Some(row.created_at), "a late line changes nothing");
}

pub async fn a_terminal_event_says_the_same_duration_as_the_row(f: Fixture) {
    for (id, guess) in [("a", "5"), ("b", "123456789"), ("c", "0")] {
        let run = f.started(id, vec![]).await;
        f.pass(given::SHORT).await;
        let data = format!(r#"{{"result":{{"duration":7}},"duration":{guess}}}"#);
        let events = vec![NewEvent::run(EventType::FlowCompleted, Some(Json::parse(&data).unwrap()))];
        f.commit(Commit { events, ..given::end(&run, 1) }).await;
        let duration = f.row(&run).await.duration.unwrap();
        let expected = format!(r#"{{"result":{{"duration":7}},"duration":{duration}}}"#);
        let last = f.log(&run).await.pop().unwrap();
        assert_eq!(last.data.unwrap().get(), expected);
    }
}

pub async fn the_terminal_event_dates_the_end_and_the_duration(f: Fixture) {
    for (id, kind, status) in [
        ("a", EventType::FlowCompleted, Status::Completed),
        ("b", EventType::FlowFailed, Status::Failed),
        ("c", EventType::FlowCancelled, Status::Cancelled),
    ] {
        let run = f.started(id, vec![]).await;
        let before = f.row(&run).await;
        f.pass(given::SHORT).await;
        let events = vec![NewEvent::run(kind, None)];
        let end = f.commit(Commit { events, index: given::index(status), ..given::end(&run, 1) }).await;
        let row = RunRow {
            status,
            started_at: Some(before.created_at),
            completed_at: Some(end.ts),
            duration: Some(end.ts.since(before.created_at).as_millis() as u64),
            version: 2,
            events: 2,
            ..before
        };
        assert!(row.duration >= Some(given::SHORT.as_millis() as u64));
        assert_eq!(f.row(&run).await, row);
    }
}

pub async fn a_failure_once_set_stays_until_another_is_given(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let failure = |error: &str| Some(Failure { error: error.to_owned(), step: Some("step-0".into()) });
    let failing = |error| Index { failure: failure(error), ..given::index(Status::Running) };
    f.commit(Commit { index: failing("first \0 \"one\""), ..given::next(&run, 1) }).await;
    f.commit(given::next(&run, 2)).await;
    assert_eq!(f.row(&run).await.failure, failure("first \0 \"one\""));
    f.commit(Commit { index: failing("second"), ..given::next(&run, 3) }).await;
    assert_eq!(f.row(&run).await.failure, failure("second"));
}

pub async fn counters_move_with_the_commits(f: Fixture) {
    let (a, b) = (f.started("a", vec![]).await, f.started("b", vec![]).await);
    let other = given::run_of(&given::tenant("other"), "a");
    f.define(&other).await;
    f.commit(given::start(&other)).await;
    f.commit(given::end(&a, 1)).await;
    f.refused(given::end(&b, 7)).await;
    let counter = |tenant: &str, status| Counter {
        tenant: given::tenant(tenant),
        flow_name: given::FLOW.into(),
        status,
        state: None,
        count: 1,
    };
    let mut counters = f.store.counters().await.expect("counts");
    counters.sort();
    let expected = [
        counter("default", Status::Running),
        counter("default", Status::Completed),
        counter("other", Status::Running),
    ];
    assert_eq!(counters, expected);
}

pub async fn the_state_of_a_machine_is_replaced_and_counted(f: Fixture) {
    let at = |status, state: &str| Index { state: Some(state.into()), ..given::index(status) };
    let (a, b) = (given::run("a"), given::run("b"));
    f.define(&a).await;
    for run in [&a, &b] {
        f.commit(Commit { index: at(Status::Waiting, "draft"), ..given::start(run) }).await;
    }
    f.started("flow", vec![]).await;
    assert_eq!(f.row(&a).await.state.as_deref(), Some("draft"));
    f.commit(Commit { index: at(Status::Waiting, "review"), ..given::next(&a, 1) }).await;
    f.refused(Commit { index: at(Status::Waiting, "paid"), ..given::next(&b, 7) }).await;
    assert_eq!(f.row(&a).await.state.as_deref(), Some("review"));
    let counted = async |f: &Fixture| {
        let mut counters = f.store.counters().await.expect("counts");
        counters.sort();
        let shown =
            |counter: Counter| (counter.status, counter.state.as_deref().map(str::to_owned), counter.count);
        counters.into_iter().map(shown).collect::<Vec<_>>()
    };
    let state = |name: &str| Some(name.to_owned());
    let expected = vec![
        (Status::Running, None, 1),
        (Status::Waiting, state("draft"), 1),
        (Status::Waiting, state("review"), 1),
    ];
    assert_eq!(counted(&f).await, expected);
    f.commit(Commit { index: at(Status::Completed, "paid"), ..given::end(&a, 2) }).await;
    f.commit(Commit { index: at(Status::Running, "draft"), ..given::next(&b, 1) }).await;
    let expected = vec![
        (Status::Running, None, 1),
        (Status::Running, state("draft"), 1),
        (Status::Completed, state("paid"), 1),
    ];
    assert_eq!(counted(&f).await, expected);
}

pub async fn a_job_under_a_key_that_is_taken_is_refused(f: Fixture) {
    let run = f.started("r", vec![given::step(0), NewJob { held: true, ..given::step(1) }]).await;
    f.claim(given::claim(&[1])).await;
    for key in [0, 1] {
        let again = NewJob { attempt: 2, ..given::step(key) };
        let commit =
            Commit { events: given::log_events(1), add: vec![given::step(5), again], ..given::next(&run, 1) };
        assert_eq!(f.refused(commit).await, CommitError::StaleLease(JobKey::Step(key)));
    }
}

pub async fn a_job_added_twice_in_one_commit_is_refused(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let commit = Commit { add: vec![given::step(3), given::step(3)], ..given::next(&run, 1) };
    assert_eq!(f.refused(commit).await, CommitError::StaleLease(JobKey::Step(3)));
}

pub async fn a_key_is_free_in_the_commit_that_takes_its_job_away(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let again = NewJob { attempt: 2, ..given::step(0) };
    f.commit(Commit { leases: vec![given::finish(&job)], add: vec![again], ..given::next(&run, 1) }).await;
    let dropped = Commit {
        others: Others::Drop,
        add: vec![NewJob { attempt: 3, ..given::step(0) }],
        ..given::next(&run, 2)
    };
    f.commit(dropped).await;
    let jobs: Vec<_> = f.jobs(&run).await.into_iter().map(|job| (job.key, job.attempt, job.state)).collect();
    assert_eq!(jobs, [(JobKey::Step(0), 3, JobState::Waiting)]);
}

pub async fn a_job_is_listed_as_it_was_added(f: Fixture) {
    let due = Time::from_millis(f.now().await.millis() + 3_600_000);
    let step = NewJob {
        name: "pack".into(),
        attempt: 7,
        lane: given::lane("depot", "function:pack"),
        priority: flowline_core::definition::Priority::High,
        due,
        held: true,
        ..given::step(4)
    };
    let run = f.started("r", vec![given::timer(2, due), step, given::timer(0, due), given::step(1)]).await;
    let waiting = crate::JobRow {
        key: JobKey::Step(1),
        name: "step-1".into(),
        attempt: 1,
        queue: "default".into(),
        need: "command".into(),
        priority: flowline_core::definition::Priority::Normal,
        due: Time::from_millis(0),
        state: JobState::Waiting,
        worker: None,
        leased_at: None,
        expires: None,
        lines: 0,
        released: false,
    };
    let timer = |n: u32| crate::JobRow {
        key: JobKey::Timer(n),
        name: format!("timer-{n}").into(),
        due,
        ..waiting.clone()
    };
    let held = crate::JobRow {
        key: JobKey::Step(4),
        name: "pack".into(),
        attempt: 7,
        queue: "depot".into(),
        need: "function:pack".into(),
        priority: flowline_core::definition::Priority::High,
        due,
        state: JobState::Held,
        ..waiting.clone()
    };
    assert_eq!(f.jobs(&run).await, [waiting.clone(), held, timer(0), timer(2)]);
    assert_eq!(f.jobs(&given::run("none")).await, []);
}

pub async fn drop_leaves_no_job_and_no_lease_of_the_run(f: Fixture) {
    let due = f.now().await;
    let held = NewJob { held: true, ..given::step(1) };
    let run = f.started("r", vec![given::step(0), held, given::timer(0, due)]).await;
    let other = f.started("other", vec![given::step(0)]).await;
    let leased = f.claim(given::claim(&[1])).await.jobs;
    assert_eq!(leased[0].run, run);
    f.commit(given::end(&run, 1)).await;
    assert_eq!(f.jobs(&run).await, []);
    assert_eq!(f.jobs(&other).await.len(), 1);
    let stale = Commit { leases: vec![given::finish(&leased[0])], ..given::next(&run, 2) };
    assert_eq!(f.refused(stale).await, CommitError::StaleLease(JobKey::Step(0)));
}

pub async fn hold_keeps_waiting_jobs_and_timers_back_until_release(f: Fixture) {
    let due = f.now().await;
    let (run, job) = f.leased("r").await;
    let add = vec![given::step(1), given::timer(0, due)];
    f.commit(Commit { add, ..given::next(&run, 1) }).await;
    f.commit(Commit { others: Others::Hold, ..given::next(&run, 2) }).await;
    let states = |jobs: Vec<crate::JobRow>| jobs.into_iter().map(|job| job.state).collect::<Vec<_>>();
    assert_eq!(states(f.jobs(&run).await), [JobState::Leased, JobState::Held, JobState::Held]);
    assert_eq!(f.claimed_names(&[2]).await, Vec::<String>::new());
    assert_eq!(f.store.sweep(10).await.expect("sweeps").timers, []);

    let finish = Commit { leases: vec![given::finish(&job)], ..given::next(&run, 3) };
    f.commit(finish).await;
    f.commit(Commit { others: Others::Release, ..given::next(&run, 4) }).await;
    assert_eq!(states(f.jobs(&run).await), [JobState::Waiting, JobState::Waiting]);
    assert_eq!(f.store.sweep(10).await.expect("sweeps").timers.len(), 1);
    assert_eq!(f.claimed_names(&[2]).await, ["step-1"]);
}

pub async fn hold_does_not_touch_what_the_same_commit_adds_or_names(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let leases = vec![given::keep(&job, 0)];
    f.commit(Commit { leases, others: Others::Hold, add: vec![given::step(1)], ..given::next(&run, 1) })
        .await;
    let states: Vec<_> = f.jobs(&run).await.into_iter().map(|job| job.state).collect();
    assert_eq!(states, [JobState::Leased, JobState::Waiting]);
}

pub async fn of_racing_commits_on_one_version_one_lands(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let commit = |_| {
        let (f, run) = (f.clone(), run.clone());
        tokio::spawn(async move {
            f.try_commit(Commit { events: given::log_events(1), ..given::next(&run, 1) }).await
        })
    };
    let racing: Vec<_> = (0..16).map(commit).collect();
    let mut landed = 0;
    for answer in racing {
        match answer.await.expect("no panic") {
            Ok(_) => landed += 1,
            Err(error) => assert_eq!(error, CommitError::Conflict { expected: 1, found: Some(2) }),
        }
    }
    assert_eq!(landed, 1);
    assert_eq!(f.log(&run).await.len(), 2);
}

pub async fn of_racing_starts_of_one_run_one_lands(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let start = |_| {
        let (f, run) = (f.clone(), run.clone());
        tokio::spawn(async move { f.try_commit(given::start(&run)).await })
    };
    let racing: Vec<_> = (0..16).map(start).collect();
    let mut landed = 0;
    for answer in racing {
        match answer.await.expect("no panic") {
            Ok(_) => landed += 1,
            Err(error) => assert_eq!(error, CommitError::Exists),
        }
    }
    assert_eq!((landed, f.row(&run).await.version, f.log(&run).await.len()), (1, 1, 1));
}

pub async fn racing_commits_of_many_runs_all_land(f: Fixture) {
    f.define(&given::run("r")).await;
    let start = |n: usize| {
        let f = f.clone();
        tokio::spawn(async move { f.commit(given::start(&given::run(&format!("r{n}")))).await.version })
    };
    let racing: Vec<_> = (0..50).map(start).collect();
    for answer in racing {
        assert_eq!(answer.await.expect("no panic"), 1);
    }
}

pub async fn the_watch_changes_with_a_commit_and_with_an_append(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let mut watch = f.store.watch();
    let limit = std::time::Duration::from_secs(5);
    watch.borrow_and_update();
    f.commit(given::next(&run, 1)).await;
    tokio::time::timeout(limit, watch.changed()).await.expect("in time").expect("the store lives");
    watch.borrow_and_update();
    f.append(given::append(&job, 0, vec![given::line(EventType::StepStarted)])).await.expect("appends");
    tokio::time::timeout(limit, watch.changed()).await.expect("in time").expect("the store lives");
}

pub async fn the_same_run_id_in_two_tenants_is_two_runs(f: Fixture) {
    let here = f.started("r", vec![given::step(0)]).await;
    let there = given::run_of(&given::tenant("other"), "r");
    assert_eq!(f.try_row(&there).await, None);
    assert_eq!((f.log(&there).await, f.jobs(&there).await), (vec![], vec![]));
    f.define(&there).await;
    f.commit(given::start(&there)).await;
    f.commit(given::end(&there, 1)).await;
    assert_eq!((f.row(&here).await.version, f.row(&there).await.version), (1, 2));
    assert_eq!((f.jobs(&here).await.len(), f.log(&here).await.len()), (1, 1));
}
