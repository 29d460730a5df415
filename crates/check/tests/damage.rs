//! Each rule of a look at one run: undamaged it holds, damaged it names exactly its invariant.

use std::time::Duration;

use crate::scene::{FLOW, Scene};
use flowline_check::Invariant::*;
use flowline_check::{Checker, miscounted};
use flowline_core::definition::Retain;
use flowline_core::event::EventType::*;
use flowline_core::{Json, RunId, Status, Tenant, Time};
use flowline_store::{Counter, Failure, JobState, StateValue};
use serde_json::json;

/// A run that has ended: the join ran, its follower was skipped, nobody approved.
fn ended() -> Scene {
    let scene = half_way().done("b", 1, &["b.done"]).done("join", 1, &[]).skip("maybe", "condition");
    scene.run(Emit, json!({"name": "approved", "payload": 1, "eventId": "e1"})).done("late", 1, &[])
}

fn end(scene: Scene) -> Scene {
    scene.run(FlowCompleted, json!({"result": 1})).settled()
}

/// `a` is done after a retry and a lost lease; `b` is at work.
fn half_way() -> Scene {
    let scene = Scene::new(FLOW).start();
    let scene = scene.step(StepStarted, "a", 1, json!({})).step(
        StepRetry,
        "a",
        1,
        json!({"error": "no", "delayMs": 1000}),
    );
    let scene = scene
        .step(StepStarted, "a", 2, json!({}))
        .step(Log, "a", 2, json!({"level": "info", "message": "m"}))
        .step(StepRetry, "a", 2, json!({"error": "gone", "delayMs": 0, "cause": "lease_lost"}));
    scene.done("a", 3, &["a.done"])
}

/// [`half_way`] with the jobs that go with it.
fn waiting() -> Scene {
    half_way().job("b", 1, JobState::Leased).settled()
}

#[test]
fn undamaged_runs_hold() {
    end(ended()).holds();
    waiting().holds();
    Scene::new(FLOW).start().job("a", 1, JobState::Waiting).job("b", 1, JobState::Waiting).settled().holds();
    let cancelled = waiting().run(FlowCancelled, json!({})).settled();
    Scene { jobs: Vec::new(), ..cancelled }.holds();
    let timed_out = waiting().run(FlowFailed, json!({"error": "late", "code": "timeout"})).settled();
    Scene { jobs: Vec::new(), ..timed_out }.holds();
}

#[test]
fn a_run_ends_once_and_then_nothing_follows() {
    end(ended()).run(FlowCancelled, json!({})).settled().breaks(I1, "follows flow.completed");
    let mut later = end(ended());
    later = later.step(Log, "late", 1, json!({"message": "m"}));
    later.row.events += 1;
    assert!(later.found().iter().any(|violation| violation.invariant == I1));
}

#[test]
fn a_job_after_the_end_is_one_too_many() {
    end(ended()).job("late", 1, JobState::Leased).breaks(I1, "left over after the end");
}

#[test]
fn a_run_with_nothing_left_to_do_has_ended() {
    ended().settled().breaks(I1, "no terminal event");
}

#[test]
fn a_run_does_not_end_while_a_step_is_at_work_or_was_not_told_of() {
    let scene = half_way().run(FlowCompleted, json!({"result": 1})).settled();
    scene.breaks(I1, "while step \"b\"");
    let scene = half_way().done("b", 1, &["b.done"]).done("join", 1, &[]).skip("maybe", "condition");
    end(scene.clone()).breaks(I1, "while step \"late\" is Idle");
    end(scene.skip("late", "not_triggered")).breaks(I1, "which an external event could still trigger");
}

#[test]
fn a_run_is_not_completed_after_a_failure_nor_failed_by_another_step() {
    let failing = || {
        let scene = half_way().step(StepStarted, "b", 1, json!({}));
        scene.step(StepFailed, "b", 1, json!({"error": "no"})).skip("join", "not_triggered")
    };
    let rest = |scene: Scene| {
        let scene = scene.skip("maybe", "not_triggered");
        scene.run(Emit, json!({"name": "approved", "payload": 1})).done("late", 1, &[])
    };
    end(rest(failing())).breaks(I1, "a step failed");
    rest(failing()).run(FlowFailed, json!({"error": "no", "step": "b"})).settled().holds();
    let other = rest(failing()).run(FlowFailed, json!({"error": "no", "step": "a"})).settled();
    other.breaks(I1, "blames step \"a\"");
}

#[test]
fn attempts_follow_one_another() {
    let gap = Scene::new(FLOW).start().step(StepStarted, "a", 2, json!({}));
    gap.job("a", 1, JobState::Waiting).job("b", 1, JobState::Waiting).settled().breaks(I2, "at attempt 1");
}

#[test]
fn only_an_attempt_that_was_given_back_need_not_have_started() {
    let unstarted = |data: serde_json::Value| {
        let scene = Scene::new(FLOW).start().step(StepRetry, "a", 1, data);
        scene.job("a", 2, JobState::Waiting).job("b", 1, JobState::Waiting).settled()
    };
    unstarted(json!({"error": "given back", "delayMs": 0, "cause": "released"})).holds();
    unstarted(json!({"error": "gone", "delayMs": 0, "cause": "lease_lost"})).breaks(I8, "never started");
    unstarted(json!({"error": "no", "delayMs": 0})).breaks(I8, "never started");
}

#[test]
fn failed_tries_and_lost_leases_keep_within_their_caps() {
    let mut scene = Scene::new(FLOW).start();
    for attempt in 1..=3 {
        scene = scene.step(StepStarted, "a", attempt, json!({}));
        scene = scene.step(StepRetry, "a", attempt, json!({"error": "no", "delayMs": 0}));
    }
    let scene = scene.job("a", 4, JobState::Waiting).job("b", 1, JobState::Waiting).settled();
    scene.breaks(I2, "failed attempts");
    let mut scene = Scene::new(FLOW).start();
    for attempt in 1..=6 {
        scene = scene.step(StepStarted, "a", attempt, json!({}));
        scene = scene.step(StepRetry, "a", attempt, json!({"error": "no", "cause": "lease_lost"}));
    }
    let scene = scene.job("a", 7, JobState::Waiting).job("b", 1, JobState::Waiting).settled();
    scene.breaks(I2, "6 lost leases");
}

#[test]
fn a_job_has_the_number_of_its_attempt() {
    let mut scene = waiting();
    scene.jobs[0].attempt = 2;
    scene.breaks(I2, "its job is at attempt 2");
}

#[test]
fn an_event_is_emitted_once_by_who_may() {
    let twice = half_way().step(StepStarted, "b", 1, json!({}));
    let twice = twice.step(Emit, "b", 1, json!({"name": "b.done"})).job("b", 1, JobState::Leased);
    let twice = twice.step(Emit, "b", 1, json!({"name": "b.done"})).job("join", 1, JobState::Waiting);
    twice.settled().breaks(I3, "emits \"b.done\" again");
    let foreign = Scene::new(FLOW).start().step(StepStarted, "b", 1, json!({}));
    let foreign = foreign.step(Emit, "b", 1, json!({"name": "a.done"}));
    let foreign = foreign.job("a", 1, JobState::Waiting).job("b", 1, JobState::Leased).settled();
    foreign.breaks(I3, "its sender may not emit");
}

#[test]
fn numbers_and_dates_go_up() {
    let mut gap = waiting();
    gap.events.remove(4);
    gap.breaks(I4, "event 6 (step.retry) follows event 4");
    let mut back = waiting();
    back.events[3].ts = Time::from_millis(1);
    back.breaks(I4, "event 4 (step.started) has the id");
    let mut renamed = waiting();
    renamed.events[2].step_id = Some("other".into());
    renamed.breaks(I4, "step id");
    let mut moved = waiting();
    moved.events[2].run_id = RunId::new("r2").unwrap();
    moved.events[2].step_id = None;
    moved.breaks(I4, "belongs to run r2");
}

#[test]
fn a_step_runs_only_after_what_it_waits_for() {
    let scene = half_way().done("join", 1, &[]).settled();
    let found = scene.job("b", 1, JobState::Leased).found();
    assert!(
        found.iter().any(|v| v.invariant == I5 && v.message.contains("before the step was triggered")),
        "{found:?}"
    );
    let scene = half_way().done("b", 1, &["b.done"]).done("join", 1, &[]).skip("maybe", "condition");
    scene.step(StepStarted, "maybe", 1, json!({})).settled().breaks(I5, "but the step was skipped");
    waiting().skip("join", "condition").settled().breaks(I5, "which is Idle");
}

#[test]
fn fail_fast_triggers_and_repeats_nothing() {
    const FAST: &str = "flow: fast\nfail_fast: true\nsteps:\n  a: { function: a }\n  \
        b: { function: b, retry: { attempts: 3 } }\n  c: { function: c, subscribes: ['step:b'] }\n";
    let failed = || {
        let scene = Scene::new(FAST).start().step(StepStarted, "b", 1, json!({}));
        scene.step(StepStarted, "a", 1, json!({})).step(StepFailed, "a", 1, json!({"error": "no"}))
    };
    let again = failed().step(StepRetry, "b", 1, json!({"error": "no", "delayMs": 0}));
    again.job("b", 2, JobState::Waiting).settled().breaks(I5, "after fail_fast");
    let after = failed().step(StepCompleted, "b", 1, json!({})).step(StepStarted, "c", 1, json!({}));
    let found = after.settled().found();
    assert!(found.iter().any(|violation| violation.invariant == I5), "{found:?}");
}

#[test]
fn a_row_says_what_the_log_says() {
    type Damage = (&'static str, fn(&mut Scene));
    let damages: [Damage; 9] = [
        ("status", |scene| scene.row.status = Status::Failed),
        ("completedSteps", |scene| scene.row.completed_steps += 1),
        ("failedSteps", |scene| scene.row.failed_steps += 1),
        ("retries", |scene| scene.row.retries += 1),
        ("stepCount", |scene| scene.row.step_count += 1),
        ("createdAt", |scene| scene.row.created_at = Time::from_millis(1)),
        ("startedAt", |scene| scene.row.started_at = None),
        ("completedAt", |scene| scene.row.completed_at = Some(Time::from_millis(1))),
        ("events", |scene| scene.row.events += 1),
    ];
    for (field, damage) in damages {
        let mut scene = waiting();
        damage(&mut scene);
        scene.breaks(I6, field);
    }
    let mut scene = waiting();
    scene.row.failure = Some(Failure { error: "x".into(), step: None });
    scene.breaks(I6, "failure");
}

#[test]
fn counters_equal_a_recount() {
    let tenant = Tenant::default();
    let counter =
        |status, count| Counter { tenant: tenant.clone(), flow_name: "f".into(), status, state: None, count };
    let recount = || [(("f".into(), Status::Completed, None), 2)].into();
    let checker = Checker::default();
    assert_eq!(miscounted(checker, &tenant, &[counter(Status::Completed, 2)], recount()), []);
    for wrong in [
        vec![counter(Status::Completed, 3)],
        vec![],
        vec![counter(Status::Paused, 1), counter(Status::Completed, 2)],
    ] {
        let found = miscounted(checker, &tenant, &wrong, recount());
        assert_eq!(found.iter().map(|v| (v.invariant, v.run_id.clone())).collect::<Vec<_>>(), [(I6, None)]);
    }
}

#[test]
fn an_attempt_that_is_over_writes_nothing() {
    waiting().step(Log, "a", 2, json!({"message": "m"})).settled().breaks(I7, "which is over");
    waiting().step(Log, "a", 3, json!({"message": "m"})).settled().breaks(I7, "which is over");
}

#[test]
fn what_a_commit_writes_is_there_whole_and_once() {
    let scene = waiting();
    Scene { jobs: Vec::new(), ..scene }.breaks(I8, "has no job");
    let twice = waiting().step(StepCompleted, "a", 3, json!({}));
    twice.settled().breaks(I8, "is already in the log");
    let silent = Scene::new(FLOW).start().done("a", 1, &[]).job("b", 1, JobState::Waiting).settled();
    silent.breaks(I8, "without emitting what it returns");
    let unstarted = Scene::new(FLOW).start().step(StepRetry, "a", 1, json!({"error": "no", "delayMs": 0}));
    let unstarted = unstarted.job("a", 2, JobState::Waiting).job("b", 1, JobState::Waiting).settled();
    unstarted.breaks(I8, "never started");
    let again = waiting().step(StepStarted, "b", 1, json!({})).step(StepStarted, "b", 1, json!({}));
    again.settled().breaks(I8, "had already started");
    let paused = waiting().run(FlowPaused, json!({})).run(FlowPaused, json!({}));
    paused.settled().breaks(I8, "applied twice");
}

#[test]
fn the_timer_of_a_time_out_is_there() {
    let text = "flow: timed\ntimeout: 1h\nsteps:\n  a: { function: a }\n";
    let scene = Scene::new(text).start().job("a", 1, JobState::Waiting).settled();
    scene.breaks(I8, "timeout is missing");
}

#[test]
fn a_key_names_its_run() {
    let mut scene = waiting();
    scene.row.idempotency_key = Some("k".into());
    scene.breaks(I9, "belongs to another run");
}

#[test]
fn a_job_is_held_while_its_run_is_paused_and_no_longer() {
    let scene = half_way().job("b", 1, JobState::Held).settled();
    scene.breaks(I11, "the run isn't paused");
    let scene = half_way().run(FlowPaused, json!({})).job("b", 1, JobState::Waiting).settled();
    scene.breaks(I17, "the run is paused");
    half_way().run(FlowPaused, json!({})).job("b", 1, JobState::Held).settled().holds();
    half_way().run(FlowPaused, json!({})).job("b", 1, JobState::Leased).settled().holds();
}

#[test]
fn a_run_is_pinned_to_its_definition() {
    let mut scene = waiting();
    scene.row.definition = "0000".into();
    scene.breaks(I12, "has the hash");
    let mut scene = waiting();
    scene.row.retain = Some(Retain::events(Duration::from_secs(60)));
    scene.breaks(I12, "retain is");
    waiting()
        .step(StepStarted, "stranger", 1, json!({}))
        .settled()
        .breaks(I12, "which isn't in the definition");
    let stranger = waiting().run(Emit, json!({"name": "stranger"})).settled();
    stranger.breaks(I12, "which isn't in the definition");
}

#[test]
fn events_belong_to_the_tenant_of_their_run() {
    let mut scene = waiting();
    scene.events[2].tenant = Tenant::new("other").unwrap();
    scene.breaks(I14, "belongs to tenant other");
}

#[test]
fn a_job_that_nothing_asks_for_is_left_over() {
    waiting().job("late", 1, JobState::Waiting).breaks(I15, "left over");
    waiting().job("a", 3, JobState::Waiting).breaks(I15, "left over");
    waiting().job("a", 3, JobState::Leased).breaks(I16, "the step is completed");
}

#[test]
fn a_repeated_run_begins_with_what_it_inherits() {
    let scene = Scene::new(FLOW).run(FlowStart, json!({"input": 1, "retryOf": "r0"}));
    let scene = scene.step(Emit, "a", 2, json!({"name": "a.done", "payload": 1}));
    let scene = scene.step(StepCompleted, "a", 2, json!({"result": 1, "inherited": true}));
    scene.clone().job("b", 1, JobState::Waiting).settled().holds();
    // Only at the head: later an emit is of the attempt that its step is at.
    let later = scene.step(StepStarted, "b", 1, json!({})).step(Emit, "b", 4, json!({"name": "b.done"}));
    let found = later.job("b", 1, JobState::Leased).job("join", 1, JobState::Waiting).settled().found();
    assert!(found.iter().any(|violation| violation.invariant == I2), "{found:?}");
}

#[test]
fn what_cannot_be_read_is_reported_and_does_not_stop_the_look() {
    let mut scene = waiting();
    scene.events[1].data = Some(Json::composed("{not json".into()));
    scene.events[2].data = None;
    scene.events[2].step_name = None;
    let found = scene.found();
    assert!(found.iter().any(|v| v.invariant == I12 && v.message.contains("has no step")), "{found:?}");
}

/// [`FLOW`] with a rule for its key-value state.
fn with_state(rule: &str) -> Scene {
    Scene::new(&format!("state: {rule}\n{}", FLOW.trim_start())).start().step(StepStarted, "a", 1, json!({}))
}

fn set(scene: Scene, key: &str, value: u32) -> Scene {
    scene.step(State, "a", 1, json!({"operation": "set", "scope": "run", "key": key, "value": value}))
}

fn value(key: &str, value: impl Into<Option<u32>>, expires: Option<i64>) -> StateValue {
    let value = Json::from(json!(value.into()));
    StateValue { key: key.to_owned(), value, expires: expires.map(Time::from_millis) }
}

#[track_caller]
fn state_breaks(scene: &Scene, values: &[StateValue], text: &str) {
    let found = scene.found_with_state(values);
    let said: Vec<_> = found.iter().map(|of| (of.invariant, of.message.as_str())).collect();
    assert_eq!(said, [(I6, text)]);
}

#[test]
fn key_values_of_a_run_are_what_its_log_set_them_to() {
    let working = |scene: Scene| scene.job("a", 1, JobState::Leased).job("b", 1, JobState::Waiting).settled();
    let twice = || set(set(set(with_state("never"), "k", 1), "k", 2), "l", 3);
    let other = json!({"operation": "set", "scope": "orders", "key": "m", "value": 1});
    let scene = working(twice().step(State, "a", 1, other));
    assert_eq!(scene.found_with_state(&[value("k", 2, None), value("l", 3, None)]), []);
    state_breaks(
        &scene,
        &[value("k", 1, None), value("l", 3, None)],
        r#"state "k" isn't what the log set it to"#,
    );
    state_breaks(&scene, &[value("k", 2, None)], r#"state "l" is set according to the log, but is missing"#);
    let more = [value("k", 2, None), value("l", 3, None), value("m", 1, None)];
    state_breaks(&scene, &more, r#"state "m" is set, but no line of the log set it"#);
    let null = json!({"operation": "set", "scope": "run", "key": "k", "value": null});
    let scene = working(twice().step(State, "a", 1, null));
    assert_eq!(scene.found_with_state(&[value("k", None, None), value("l", 3, None)]), []);
    state_breaks(&scene, &more[..2], r#"state "k" isn't what the log set it to"#);
    let gone = json!({"operation": "delete", "scope": "run", "key": "k"});
    let read = json!({"operation": "get", "scope": "run", "key": "l"});
    let scene = working(twice().step(State, "a", 1, gone).step(State, "a", 1, read));
    assert_eq!(scene.found_with_state(&[value("l", 3, None)]), []);
    state_breaks(&scene, &more[..2], r#"state "k" is set, but no line of the log set it"#);
}

#[test]
fn a_value_may_go_with_its_time_and_not_outlive_it() {
    let line = json!({"operation": "set", "scope": "run", "key": "k", "value": 1, "ttlMs": 500});
    let own = with_state("never").step(State, "a", 1, line);
    for scene in [own, set(with_state("{ ttl: 500ms }"), "k", 1)] {
        let end = scene.now + 500;
        let scene = scene.job("a", 1, JobState::Leased).job("b", 1, JobState::Waiting).settled();
        for values in [&[][..], &[value("k", 1, Some(end))], &[value("k", 1, Some(end - 20))]] {
            assert_eq!(scene.found_with_state(values), []);
        }
        let late = r#"state "k" expires later than the log says"#;
        state_breaks(&scene, &[value("k", 1, Some(end + 1))], late);
        let alone = r#"state "k" has a time to live in the store or in the log, but not in both"#;
        state_breaks(&scene, &[value("k", 1, None)], alone);
        state_breaks(&scene, &[value("k", 2, Some(end))], r#"state "k" isn't what the log set it to"#);
    }
}

#[test]
fn key_values_that_go_with_the_end_of_a_run_are_gone_after_it() {
    for (rule, left) in [("on-complete", false), ("never", true)] {
        let scene = set(with_state(rule), "k", 1).run(FlowCancelled, json!({})).settled();
        let (there, absent) = (scene.found_with_state(&[value("k", 1, None)]), scene.found_with_state(&[]));
        let (fine, wrong) = if left { (there, absent) } else { (absent, there) };
        assert_eq!(fine, []);
        assert!(wrong.len() == 1 && wrong[0].invariant == I6, "{wrong:?}");
    }
}

#[test]
fn a_terminal_event_says_how_long_its_run_took() {
    let ending = |said: serde_json::Value| {
        let started = json!({"worker": "w", "at": "1970-01-01T00:00:01Z"});
        let scene = Scene::new(FLOW).start().step(StepStarted, "a", 1, started);
        scene.run(FlowCancelled, said).settled()
    };
    ending(json!({"duration": 20})).holds();
    ending(json!({"duration": 19})).breaks(I6, "says that the run took Some(19)");
    ending(json!({})).breaks(I6, "says that the run took None");
    // Builds that did not say when an attempt began could only guess.
    let older = Scene::new(FLOW).start().step(StepStarted, "a", 1, json!({"worker": "w"}));
    older.run(FlowCancelled, json!({"duration": 19})).settled().holds();
}
