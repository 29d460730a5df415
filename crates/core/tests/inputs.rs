//! What a step is given: fixed when it is triggered, the same for every attempt.

use crate::scenario::{Scenario, json, start_of};
use flowline_core::decide::{DecideInput, Start};
use flowline_core::run::Phase;
use flowline_core::{Json, RunId, RunState};

const FIRST: &str = "
accepts: {ec: null}
steps:
  a: {function: f, emits: [ea]}
  b: {function: f, emits: [eb]}
  first: {function: f, subscribes: {any: [ea, eb, ec]}, retry: {attempts: 3, jitter: false}}
";

#[test]
fn an_any_join_keeps_the_input_that_it_was_triggered_with() {
    let mut run = Scenario::started(FIRST, "{}");
    run.done("b", "null", &[("eb", "2")]);
    assert_eq!(run.input("first"), json(r#"{"eb":2}"#));
    run.done("a", "null", &[("ea", "1")]);
    assert_eq!(run.input("first"), json(r#"{"eb":2}"#), "claimed after another alternative came");
    run.lose("first");
    run.send("ec", "3");
    assert_eq!(run.input("first"), json(r#"{"eb":2}"#), "the attempt after a lost lease");
    run.fail("first", "busy");
    assert_eq!(run.input("first"), json(r#"{"eb":2}"#), "a retry");
}

#[test]
fn emits_of_one_completion_come_in_their_order_and_a_condition_sees_what_its_step_is_given() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, emits: [ea, eb]}
  first: {function: f, subscribes: {any: [ea, eb]}}
  both: {function: f, subscribes: [ea, {any: [eb, 'step:first']}]}
  asks: {function: f, subscribes: {any: [ea, eb]}, if: 'has(events.ea)'}
",
        "{}",
    );
    run.done("a", "null", &[("eb", "2"), ("ea", "1")]);
    assert_eq!(run.input("first"), json(r#"{"eb":2}"#));
    assert_eq!(run.input("both"), json(r#"{"ea":1,"eb":2}"#));
    assert_eq!(run.phase("asks"), Phase::Skipped);
}

#[test]
fn an_event_inside_a_nested_join_counts_once_the_step_is_triggered_and_not_after() {
    let flow = "
accepts: {a: null, b: null, c: null, d: null}
steps:
  first: {function: f}
  join: {function: f, subscribes: [a, {any: [b, [c, d]]}]}
";
    for (events, expected) in [
        (["c", "b", "a", "d"], r#"{"a":0,"b":0,"c":0}"#),
        (["a", "c", "d", "b"], r#"{"a":0,"c":0,"d":0}"#),
        (["b", "a", "c", "d"], r#"{"a":0,"b":0}"#),
    ] {
        let mut run = Scenario::started(flow, "{}");
        for event in events {
            run.send(event, "0");
        }
        assert_eq!(run.input("join"), json(expected), "{events:?}");
    }
}

#[test]
fn a_repeated_run_triggers_an_any_join_with_the_event_that_came_first_before() {
    let mut run = Scenario::started(FIRST, "{}");
    run.emit_now("a", "ea", "1");
    run.done("b", "null", &[("eb", "2")]);
    run.send("ec", "3");
    run.done("a", "null", &[]);
    for _ in 0..3 {
        run.fail("first", "broken");
    }
    let mut again = Scenario::planned(run.plan.clone());
    let retry_of = Some(RunId::new("run-0").unwrap());
    again.start_with(Start { retry_of, inherited: run.inheritance(), ..start_of("{}") });
    assert_eq!(again.steps(Phase::Completed), ["a", "b"]);
    assert_eq!(again.input("first"), run.input("first"));
    assert_eq!(again.input("first"), json(r#"{"ea":1}"#));
}

#[test]
fn an_event_without_a_payload_triggers_and_leaves_no_key() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, emits: [ea, eb]}
  join: {function: f, subscribes: [ea, eb]}
  asks: {function: f, subscribes: [ea, eb], if: 'has(events.ea) || !has(events.eb)'}
",
        "{}",
    );
    let attempt = run.claim("a");
    let emits = vec![("ea".to_owned(), Json::nothing()), ("eb".to_owned(), Json::null())];
    run.apply(DecideInput::Done { step: run.index("a"), attempt, result: Json::null(), emits });
    let data: Vec<serde_json::Value> =
        run.log.iter().filter_map(|event| Some(event.data.as_ref()?.value())).collect();
    assert!(data.contains(&serde_json::json!({"name": "ea"})), "{data:?}");
    assert!(data.contains(&serde_json::json!({"name": "eb", "payload": null})), "{data:?}");
    assert_eq!(run.input("join"), json(r#"{"eb":null}"#));
    assert_eq!(run.phase("asks"), Phase::Skipped);
}

/// A run that had `ea` and `eb` when an older build wrote its state.
fn begun_before() -> (Scenario, Vec<u8>) {
    let mut run = Scenario::started(FIRST, "{}");
    run.done("a", "null", &[("ea", "1")]);
    run.done("b", "null", &[("eb", "2")]);
    let old = RunState { chosen: None, ..run.state.clone() }.encode();
    (run, old)
}

#[test]
fn a_run_that_an_older_build_began_keeps_its_format_and_goes_on() {
    let (mut run, old) = begun_before();
    assert_eq!(old[0], 1);
    let state = RunState::decode(&run.plan, &old).unwrap();
    assert_eq!(state.encode(), old);
    assert!(run.state.is_encoded_in(&old) && run.state.is_encoded_in(&run.state.encode()));
    let other = RunState { paused: true, ..state.clone() };
    assert!(!run.state.is_encoded_in(&other.encode()));
    run.state = state;
    assert_eq!(run.input("first"), json(r#"{"ea":1,"eb":2}"#));
    run.state.apply(&run.plan, flowline_core::run::Fact::Paused);
    assert_eq!(run.state.encode()[0], 1);
}

#[test]
fn the_choice_of_a_join_keeps_its_bytes() {
    let (run, _) = begun_before();
    let hex: String = run.state.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("golden/state-v3/chosen.hex").trim());
    let bytes = run.state.encode();
    for cut in 0..bytes.len() {
        assert!(RunState::decode(&run.plan, &bytes[..cut]).is_err(), "{cut}");
    }
    let mut beyond = bytes.clone();
    *beyond.last_mut().unwrap() = 0b1000;
    assert!(RunState::decode(&run.plan, &beyond).is_err(), "it waits for three events");
}
