//! Each rule about machines: undamaged a run holds, damaged it names exactly its invariant.

use crate::scene::Scene;
use flowline_check::Invariant::*;
use flowline_core::Time;
use flowline_core::event::EventType::*;
use flowline_store::{JobKey, JobState, Receipt, ReceiptStatus};
use serde_json::{Value, json};

/// Draft, review and an end; actions on the way, a timer in review.
const MACHINE: &str = r#"
machine: scene
events: [submit, approve, note]
states:
  draft: {on: {submit: {to: review, actions: [tell]}, note: {}}}
  review:
    entry: [assign]
    on: {approve: {to: approved, role: boss}}
    after: {in: 10s, to: draft, missed: restart}
  approved: {final: true}
actions:
  tell: {function: f, retry: {attempts: 2, delay: 1s}}
  assign: {function: f}
"#;

/// The timer is set for this moment.
const DUE: i64 = 20_000;

fn start() -> Scene {
    let scene = Scene::new(MACHINE).start();
    scene.run(StateChanged, json!({"to": "draft", "transition": 1, "context": {}}))
}

fn received(scene: Scene, number: u32, name: &str, roles: Value) -> Scene {
    let data = json!({"name": name, "payload": 1, "eventId": format!("e{number}"), "number": number, "roles": roles});
    scene.run(EventReceived, data)
}

/// The event that moved the machine.
fn moved(number: u32, event: &str, from: &str, to: &str, transition: u32) -> Value {
    json!({
        "from": from, "to": to, "event": event, "eventId": format!("e{number}"), "number": number,
        "transition": transition,
    })
}

fn set(scene: Scene) -> Scene {
    scene.run(TimerSet, json!({"timer": 0, "state": "review", "at": Time::from_millis(DUE).to_string()}))
}

/// In review, with the transition's own action at work.
fn submitted() -> Scene {
    let scene = received(start(), 1, "submit", json!([]));
    set(scene.run(StateChanged, moved(1, "submit", "draft", "review", 2)))
}

/// In review, and nothing to do.
fn reviewed() -> Scene {
    submitted().done("tell", 1, &[]).done("assign", 1, &[])
}

fn timer(mut scene: Scene, number: u32) -> Scene {
    scene = scene.job("tell", number, JobState::Waiting);
    if let Some(job) = scene.jobs.last_mut() {
        (job.key, job.name, job.due) = (JobKey::Timer(2), "review".into(), Time::from_millis(DUE));
    }
    scene
}

fn left(scene: Scene) -> Scene {
    scene.run(TimerCancelled, json!({"timer": 0, "state": "review", "reason": "left"}))
}

fn approved() -> Scene {
    let scene = left(received(reviewed(), 2, "approve", json!(["boss"])));
    let scene = scene.run(StateChanged, moved(2, "approve", "review", "approved", 3));
    scene.run(FlowCompleted, json!({"result": {}, "state": "approved"}))
}

#[test]
fn undamaged_machines_hold() {
    start().settled().holds();
    timer(submitted(), 1).job("tell", 1, JobState::Leased).settled().holds();
    timer(reviewed(), 1).settled().holds();
    approved().settled().holds();
    received(start(), 1, "approve", json!(["boss"]))
        .run(EventRejected, json!({"name": "approve", "number": 1, "state": "draft", "code": "wrong_state"}))
        .settled()
        .holds();
}

#[test]
fn an_event_is_taken_in_once() {
    let twice = received(start(), 1, "note", json!([]));
    let twice = twice.run(StateChanged, json!({
        "from": "draft", "to": "draft", "event": "note", "eventId": "e1", "number": 1, "transition": 2, "stays": true,
    }));
    let twice = twice.run(EventReceived, json!({"name": "note", "eventId": "e1", "number": 2, "payload": 1}));
    let twice = twice.run(StateChanged, json!({
        "from": "draft", "to": "draft", "event": "note", "eventId": "e1", "number": 2, "transition": 3, "stays": true,
    }));
    twice.settled().breaks(I3, "a second time");
}

#[test]
fn events_have_their_turns_in_order_and_one_at_a_time() {
    let two = received(received(submitted(), 2, "approve", json!(["boss"])), 3, "note", json!([]));
    let late = |scene: Scene| {
        scene.run(EventRejected, json!({"number": 3, "state": "review", "code": "wrong_state"}))
    };
    let done = |scene: Scene| scene.done("tell", 1, &[]).done("assign", 1, &[]);
    let ended = |scene: Scene| {
        left(scene)
            .run(StateChanged, moved(2, "approve", "review", "approved", 3))
            .run(FlowCompleted, json!({"result": {}}))
    };
    ended(late(done(two.clone()))).settled().breaks(I5, "is first in line");
    timer(done(two), 1).settled().breaks(I5, "is waiting although the machine is idle");
    let overlap = received(timer(submitted(), 1), 2, "note", json!([]))
        .run(EventRejected, json!({"number": 2, "state": "review", "code": "wrong_state"}));
    let overlap = overlap.done("tell", 1, &[]).settled();
    assert!(
        overlap
            .found()
            .iter()
            .any(|found| found.message.contains("while actions of the previous turn are running"))
    );
}

#[test]
fn a_transition_is_open_to_those_who_may_take_it() {
    let scene = left(received(reviewed(), 2, "approve", json!(["clerk"])));
    let scene = scene.run(StateChanged, moved(2, "approve", "review", "approved", 3));
    scene.run(FlowCompleted, json!({"result": {}})).settled().breaks(I5, "the sender has");
    let open = received(timer(reviewed(), 1), 2, "approve", json!(["boss"]));
    let open = open.run(EventRejected, json!({"number": 2, "state": "review", "code": "forbidden"}));
    open.settled().breaks(I5, "transitions are open");
}

#[test]
fn a_transition_leads_where_the_definition_says() {
    let scene = received(start(), 1, "submit", json!([]));
    let scene = scene.run(StateChanged, moved(1, "submit", "draft", "draft", 2));
    scene.job("tell", 1, JobState::Waiting).settled().breaks(I5, "the definition says");
}

#[test]
fn actions_wait_for_those_before_them() {
    let early = timer(submitted(), 1).step(StepStarted, "assign", 1, json!({}));
    early.job("tell", 1, JobState::Leased).settled().breaks(I5, "before the step was triggered");
}

#[test]
fn an_action_that_was_asked_for_is_not_dropped() {
    let next = |scene: Scene| {
        let scene = received(timer(scene, 1), 2, "note", json!([]));
        scene.run(EventRejected, json!({"number": 2, "state": "review", "code": "wrong_state"})).settled()
    };
    let dropped = submitted().skip("tell", "not_triggered").skip("assign", "not_triggered");
    next(dropped.clone()).breaks(I18, "drops action \"tell\"");
    let half = timer(submitted().done("tell", 1, &[]).skip("assign", "not_triggered"), 1);
    half.settled().breaks(I18, "drops action \"assign\"");
    let failed = submitted()
        .step(StepStarted, "tell", 1, json!({}))
        .step(StepFailed, "tell", 1, json!({"error": "no", "code": "x"}))
        .skip("assign", "not_triggered")
        .run(FlowFailed, json!({"error": "no", "step": "tell"}));
    failed.settled().holds();
}

#[test]
fn timers_go_with_their_state_and_come_in_their_time() {
    let scene = received(reviewed(), 2, "approve", json!(["boss"]));
    let kept = scene.run(StateChanged, moved(2, "approve", "review", "approved", 3));
    kept.run(FlowCompleted, json!({"result": {}})).settled().breaks(I10, "leaves the state");

    let moved_by_timer = json!({"from": "review", "to": "draft", "timer": 0, "transition": 3});
    let fired = |mut scene: Scene, at: i64| {
        scene.now = at;
        scene
            .run(TimerFired, json!({"timer": 0, "state": "review"}))
            .run(StateChanged, moved_by_timer.clone())
    };
    fired(reviewed(), DUE).settled().holds();
    fired(reviewed(), DUE - 1_000).settled().breaks(I10, "before it's due");

    let again = fired(reviewed(), DUE).run(TimerFired, json!({"timer": 0, "state": "review"}));
    let again = again.run(TimerCancelled, json!({"timer": 0, "reason": "guard"}));
    again.settled().breaks(I10, "the machine isn't in that state");
    left(timer(reviewed(), 1)).run(FlowCancelled, json!({})).settled();
    let unset = received(start(), 1, "submit", json!([]));
    let unset = unset.run(StateChanged, moved(1, "submit", "draft", "review", 2)).done("tell", 1, &[]);
    unset.job("assign", 1, JobState::Waiting).settled().breaks(I10, "were set");
}

#[test]
fn a_timer_that_is_set_has_its_job() {
    reviewed().settled().breaks(I8, "is set, but has no job");
    timer(reviewed(), 2).settled().breaks(I15, "has job number 2");
    timer(start(), 1).settled().breaks(I15, "but the log asks for None");
}

#[test]
fn a_delayed_machine_waits_for_its_time() {
    let scene = || {
        Scene::new(MACHINE)
            .run(FlowStart, json!({"input": {}, "startAt": Time::from_millis(DUE).to_string()}))
    };
    scene().settled().breaks(I8, "is set, but has no job");
    let mut waits = timer(scene(), 1);
    waits.jobs[0].key = JobKey::Timer(1);
    waits.settled().holds();
}

#[test]
fn a_machine_ends_in_a_final_state_and_with_an_empty_inbox() {
    reviewed().run(FlowCompleted, json!({"result": {}})).settled().breaks(I1, "isn't in a final state");
    let waiting = received(submitted(), 2, "note", json!([])).run(FlowCancelled, json!({}));
    waiting.settled().breaks(I3, "events in its inbox");
    let told = received(submitted(), 2, "note", json!([]));
    let told = told.run(EventRejected, json!({"number": 2, "code": "ended"})).run(FlowCancelled, json!({}));
    told.settled().holds();
    let mut unfinished = approved();
    unfinished.events.pop();
    unfinished.settled().breaks(I1, "no terminal event");
}

#[test]
fn the_row_says_which_state_it_is() {
    let mut scene = timer(reviewed(), 1).settled();
    scene.row.state = Some("draft".into());
    scene.breaks(I6, "state is Some(\"draft\")");
}

fn receipt(scene: &Scene, number: u32, status: ReceiptStatus) -> Receipt {
    let date = Time::from_millis(1_000);
    Receipt {
        event_id: format!("e{number}").into(),
        run_id: scene.row.run_id.clone(),
        flow_name: "scene".into(),
        tenant: Default::default(),
        number,
        name: "x".into(),
        sender: None,
        status,
        worker: None,
        received_at: date,
        started_at: status.is_started().then_some(date),
        completed_at: status.is_end().then_some(date),
        outcome: None,
    }
}

#[test]
fn receipts_say_what_the_log_says() {
    use ReceiptStatus::*;
    let at_work =
        received(timer(submitted(), 1).job("tell", 1, JobState::Leased), 2, "note", json!([])).settled();
    let of = |statuses: &[ReceiptStatus]| -> Vec<Receipt> {
        statuses.iter().enumerate().map(|(at, status)| receipt(&at_work, at as u32 + 1, *status)).collect()
    };
    let says = |receipts: &[Receipt]| -> Vec<String> {
        at_work
            .found_with(receipts)
            .into_iter()
            .map(|found| format!("{}: {}", found.invariant, found.message))
            .collect()
    };
    assert_eq!(says(&of(&[Processing, Pending])), [""; 0]);
    assert_eq!(says(&of(&[Completed, Pending])).len(), 1);
    assert_eq!(says(&of(&[Processing, Failed])).len(), 1);
    assert_eq!(says(&of(&[Processing])), ["I6: event 2 was accepted, but has no receipt"]);
    assert_eq!(says(&of(&[Processing, Pending, Pending])).len(), 2, "nobody sent the third");
    let mut other = of(&[Processing, Pending]);
    other[1].event_id = "e1".into();
    assert_eq!(says(&other).len(), 1);
}

#[test]
fn a_machine_that_is_tried_again_stands_where_another_stood() {
    let begun = || Scene::new(MACHINE).run(FlowStart, json!({"input": {}, "retryOf": "r0"}));
    let past = |scene: Scene, status: &str| {
        let data =
            json!({"name": "submit", "eventId": "e1", "number": 1, "inherited": true, "status": status});
        scene.run(EventReceived, data)
    };
    let stood = |scene: Scene, to: &str| {
        scene.run(StateChanged, json!({"to": to, "transition": 2, "context": {}, "inherited": true}))
    };
    timer(set(stood(past(begun(), "completed"), "review")), 1).settled().holds();
    stood(past(begun(), "pending"), "review").settled().breaks(I3, "inherits an event");
    let first = Scene::new(MACHINE).start();
    stood(first, "review").settled().breaks(I5, "puts the machine");
    let ended = stood(past(begun(), "completed"), "approved");
    let ended = ended.run(FlowCompleted, json!({"result": {}, "state": "approved"}));
    ended.settled().breaks(I5, "puts the machine");
    // What it takes over stands at the head of its log.
    let late = received(stood(past(begun(), "completed"), "review"), 2, "note", json!([]));
    let turned_down = json!({"name": "note", "number": 2, "state": "review", "code": "wrong_state"});
    let late = set(late.run(EventRejected, turned_down));
    timer(late, 1).settled().breaks(I10, "which nothing set");
}
