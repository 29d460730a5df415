//! How steps are wired: joins, branches, conditions, failures, and how a run ends.

use crate::scenario::{Came, Scenario, json};
use flowline_core::EventType;
use flowline_core::decide::{Missing, Refusal};
use flowline_core::event::PayloadSlot;
use flowline_core::run::{Phase, Status};

const DIAMOND: &str = "
steps:
  place: {function: f, emits: [order.placed]}
  charge: {function: f, subscribes: [order.placed], emits: [order.charged]}
  reserve: {function: f, subscribes: [order.placed], emits: [order.reserved]}
  ship: {function: f, subscribes: [order.charged, order.reserved]}
";

#[test]
fn a_diamond_joins_once_both_branches_are_done() {
    let mut run = Scenario::started(DIAMOND, r#"{"total":5}"#);
    run.done("place", "null", &[("order.placed", "1")]);
    assert_eq!(run.live(), ["charge", "reserve"]);
    run.done("charge", "null", &[("order.charged", "2")]);
    assert_eq!(run.live(), ["reserve"]);
    run.done("reserve", "null", &[("order.reserved", "3")]);
    assert_eq!(run.live(), ["ship"]);
    run.wait(1500);
    run.done("ship", r#"{"label":"L1"}"#, &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_run!(run);
}

#[test]
fn racing_branches_trigger_the_join_once_in_either_order() {
    for order in [["charge", "reserve"], ["reserve", "charge"]] {
        let mut run = Scenario::started(DIAMOND, "{}");
        run.done("place", "null", &[("order.placed", "1")]);
        for step in order {
            run.claim(step);
        }
        for step in order {
            let event = if step == "charge" { "order.charged" } else { "order.reserved" };
            run.done(step, "null", &[(event, "1")]);
        }
        assert_eq!(run.live(), ["ship"]);
        run.done("ship", "7", &[]);
        assert_eq!(run.data(EventType::FlowCompleted)["result"], serde_json::json!({"ship": 7}));
        assert_eq!(run.kinds().iter().filter(|kind| **kind == "flow.completed").count(), 1);
    }
}

#[test]
fn a_join_of_five_waits_for_the_last() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, emits: [ea]}
  b: {function: f, emits: [eb]}
  c: {function: f, emits: [ec]}
  d: {function: f, emits: [ed]}
  e: {function: f, emits: [ee]}
  join: {function: f, subscribes: [ea, eb, ec, ed, ee]}
",
        "{}",
    );
    for step in ["c", "a", "e", "b"] {
        run.done(step, "null", &[(&format!("e{step}"), "1")]);
        assert_eq!(run.phase("join"), Phase::Idle);
    }
    run.done("d", "null", &[("ed", "1")]);
    assert_eq!(run.live(), ["join"]);
}

#[test]
fn several_points_of_synchronisation_follow_each_other() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, emits: [ea]}
  b: {function: f, emits: [eb]}
  first: {function: f, subscribes: [ea, eb], returns: both}
  c: {function: f, subscribes: [both], returns: ec}
  d: {function: f, subscribes: [both], returns: ed}
  second: {function: f, subscribes: [ec, ed, ea]}
",
        "{}",
    );
    run.done("b", "null", &[("eb", "1")]);
    run.done("a", "null", &[("ea", "1")]);
    run.done("first", "1", &[]);
    run.done("d", "2", &[]);
    run.done("c", "3", &[]);
    run.done("second", "4", &[]);
    assert_run!(run);
}

#[test]
fn a_failed_branch_leaves_its_join_unsatisfied_and_the_run_failed() {
    let mut run = Scenario::started(DIAMOND, "{}");
    run.done("place", "null", &[("order.placed", "1")]);
    run.fail("charge", "declined");
    assert_eq!((run.status(), run.live()), (Status::Running, vec!["reserve".to_owned()]));
    run.done("reserve", "null", &[("order.reserved", "1")]);
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(run.phase("ship"), Phase::Skipped);
    assert_run!(run);
}

#[test]
fn independent_branches_go_on_after_a_failure() {
    let mut run = Scenario::started(
        "
steps:
  bad: {function: f}
  a: {function: f, returns: ea}
  b: {function: f, subscribes: [ea]}
",
        "{}",
    );
    run.fail("bad", "x");
    run.done("a", "1", &[]);
    run.done("b", "2", &[]);
    assert_eq!(run.steps(Phase::Completed), ["a", "b"]);
    let failed = run.data(EventType::FlowFailed);
    assert_eq!((&failed["error"], &failed["step"]), (&"broke with x".into(), &"bad".into()));
    assert!(
        run.asked.contains(&Missing::Payloads(vec![PayloadSlot::Error(0)])),
        "the first error is looked up"
    );
}

#[test]
fn the_branch_not_taken_is_skipped_and_the_run_completes() {
    let mut run = Scenario::started(
        "
steps:
  check: {function: f, emits: [paid, refused]}
  ship: {function: f, subscribes: [paid]}
  tell: {function: f, subscribes: [refused], emits: [told]}
  close: {function: f, subscribes: [told]}
",
        "{}",
    );
    run.done("check", "null", &[("paid", "1")]);
    run.done("ship", "1", &[]);
    assert_eq!(run.steps(Phase::Skipped), ["tell", "close"]);
    assert_run!(run);
}

#[test]
fn any_is_satisfied_by_the_first_and_triggers_once() {
    let flow = "
steps:
  a: {function: f, emits: [ea]}
  b: {function: f, emits: [eb]}
  c: {function: f, subscribes: {any: [ea, eb]}}
";
    for order in [["a", "b"], ["b", "a"]] {
        let mut run = Scenario::started(flow, "{}");
        run.done(order[0], "null", &[(&format!("e{}", order[0]), "1")]);
        assert_eq!(run.phase("c"), Phase::Queued);
        run.done("c", "1", &[]);
        run.done(order[1], "null", &[(&format!("e{}", order[1]), "1")]);
        assert_eq!(run.status(), Status::Completed);
        assert_eq!(run.kinds().iter().filter(|kind| **kind == "step.started").count(), 3);
    }
}

#[test]
fn any_and_all_nest() {
    let flow = "
accepts: {a: null, b: null, c: null, d: null}
steps:
  first: {function: f}
  join: {function: f, subscribes: [a, {any: [b, [c, d]]}]}
";
    for (events, expected) in [
        (&["a", "b"][..], true),
        (&["b", "a"], true),
        (&["a", "c", "d"], true),
        (&["d", "c", "a"], true),
        (&["b", "c", "d"], false),
        (&["a", "c"], false),
    ] {
        let mut run = Scenario::started(flow, "{}");
        for (at, event) in events.iter().enumerate() {
            assert_eq!(run.phase("join"), Phase::Idle, "{events:?} after {at}");
            run.send(event, "1");
        }
        assert_eq!(run.phase("join") == Phase::Queued, expected, "{events:?}");
    }
}

#[test]
fn step_is_satisfied_by_completion_and_adds_no_input_key() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, returns: ea}
  b: {function: f}
  c: {function: f, subscribes: [ea, 'step:b']}
",
        "{}",
    );
    run.done("a", "1", &[]);
    assert_eq!(run.phase("c"), Phase::Idle);
    run.done("b", "2", &[]);
    assert_eq!(run.phase("c"), Phase::Queued);
    assert_eq!(run.input("c"), json(r#"{"ea":1}"#));
    assert_run!(run);
}

#[test]
fn an_entry_step_gets_the_input_and_any_other_its_events() {
    let mut run = Scenario::started(DIAMOND, r#"{"total":7}"#);
    assert_eq!(run.input("place"), json(r#"{"total":7}"#));
    run.done("place", "null", &[("order.placed", "1")]);
    run.done("reserve", "null", &[("order.reserved", "2")]);
    run.done("charge", "null", &[("order.charged", "3")]);
    assert_eq!(run.input("ship"), json(r#"{"order.charged":3,"order.reserved":2}"#));
}

const CONTINUED: &str = "
steps:
  a: {function: f, emits: [ea], on_failure: continue}
  b: {function: f, subscribes: ['step:a']}
  c: {function: f, subscribes: [ea]}
";

#[test]
fn a_failure_under_continue_satisfies_step_and_the_run_completes() {
    let mut run = Scenario::started(CONTINUED, "{}");
    run.fail("a", "x");
    assert_eq!(run.live(), ["b"]);
    run.done("b", "1", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_run!(run);
}

#[test]
fn step_is_never_satisfied_by_a_skip() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, if: 'input.go', on_failure: continue}
  b: {function: f, subscribes: ['step:a']}
",
        r#"{"go":false}"#,
    );
    assert_eq!(run.steps(Phase::Skipped), ["a", "b"]);
    assert_eq!(run.status(), Status::Completed);
    run.start(r#"{"go":false}"#);
    assert_run!(run);
}

#[test]
fn step_is_not_satisfied_by_a_failure_that_fails_the_run() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f}
  b: {function: f, subscribes: ['step:a']}
",
        "{}",
    );
    run.fail("a", "x");
    assert_eq!((run.status(), run.phase("b")), (Status::Failed, Phase::Skipped));
}

const CONDITIONAL: &str = "
steps:
  place: {function: f, emits: [placed]}
  other: {function: f, emits: [noted]}
  ship:
    function: f
    subscribes: [placed, noted]
    if: 'input.total > 0 && events.placed.ok && events.noted == 1'
";

#[test]
fn a_condition_asks_once_for_all_that_it_reads() {
    let mut run = Scenario::started(CONDITIONAL, r#"{"total":5}"#);
    run.done("place", "null", &[("placed", r#"{"ok":true}"#)]);
    assert_eq!(run.asked, []);
    run.done("other", "null", &[("noted", "1")]);
    assert_eq!(run.live(), ["ship"]);
    let placed = PayloadSlot::Emit(run.plan.event_index("placed").unwrap());
    assert_eq!(
        run.asked[0],
        Missing::Payloads(vec![PayloadSlot::Input, placed]),
        "what is at hand is not asked for"
    );
    run.done("ship", "1", &[]);
    assert_run!(run);
}

#[test]
fn a_false_condition_skips_the_step() {
    let mut run = Scenario::started(CONDITIONAL, r#"{"total":0}"#);
    run.done("place", "null", &[("placed", r#"{"ok":true}"#)]);
    run.done("other", "null", &[("noted", "1")]);
    assert_eq!(run.phase("ship"), Phase::Skipped);
    assert_eq!(run.data(EventType::StepSkipped)["reason"], "condition");
    assert_eq!(run.status(), Status::Completed);
}

#[test]
fn a_condition_that_errs_fails_the_step_without_a_retry() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, if: 'input.missing > 0', retry: {attempts: 3}}
",
        "{}",
    );
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(run.data(EventType::StepFailed)["code"], "condition");
    run.start("{}");
    assert_run!(run);
}

#[test]
fn an_entry_step_whose_condition_errs_gets_no_job() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, if: 'input.missing > 0'}
  b: {function: f}
",
        "{}",
    );
    assert_eq!(run.live(), ["b"]);
    run.done("b", "1", &[]);
    assert_eq!(run.status(), Status::Failed);
    assert_run!(run);
}

#[test]
fn a_condition_that_errs_under_continue_lets_the_run_go_on() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, if: 'input.missing > 0', on_failure: continue}
  b: {function: f, subscribes: ['step:a'], if: 'input.missing > 0', on_failure: continue}
  c: {function: f, subscribes: ['step:b']}
",
        "{}",
    );
    assert_eq!(run.live(), ["c"]);
    run.done("c", "1", &[]);
    assert_run!(run);
}

#[test]
fn a_condition_over_any_sees_only_what_was_emitted() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, emits: [ea]}
  b: {function: f, emits: [eb]}
  c: {function: f, subscribes: {any: [ea, eb]}, if: 'has(events.ea)'}
",
        "{}",
    );
    run.done("b", "null", &[("eb", "1")]);
    assert_eq!(run.phase("c"), Phase::Skipped);
}

const FAST: &str = "
fail_fast: true
steps:
  a: {function: f}
  b: {function: f, emits: [eb]}
  c: {function: f}
  d: {function: f, subscribes: [eb]}
";

#[test]
fn fail_fast_drops_what_is_queued_and_waits_for_what_runs() {
    let mut run = Scenario::started(FAST, "{}");
    run.claim("b");
    run.fail("a", "x");
    assert_eq!(run.asked, [Missing::Leases]);
    assert_eq!(run.live(), ["b"]);
    run.done("b", "null", &[("eb", "1")]);
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(run.steps(Phase::Skipped), ["c", "d"]);
    assert_run!(run);
}

#[test]
fn fail_fast_does_not_repeat_what_was_running() {
    let mut run = Scenario::started(
        "
fail_fast: true
steps:
  a: {function: f}
  b: {function: f, retry: {attempts: 5}}
  c: {function: f, retry: {attempts: 5}}
",
        "{}",
    );
    run.fail("c", "x");
    run.claim("b");
    run.fail("a", "x");
    run.fail("b", "y");
    assert_eq!(run.steps(Phase::Failed), ["a", "b"]);
    assert_eq!(run.steps(Phase::Skipped), ["c"], "a retry that waits is dropped");
    assert_eq!(run.data(EventType::FlowFailed)["step"], "a");
    assert_run!(run);
}

#[test]
fn fail_fast_does_not_strike_under_continue() {
    let mut run = Scenario::started(&CONTINUED.replace("steps:", "fail_fast: true\nsteps:"), "{}");
    run.fail("a", "x");
    assert_eq!(run.live(), ["b"]);
    assert_eq!(run.asked, []);
}

#[test]
fn fail_fast_by_a_condition_drops_what_the_same_decision_triggered() {
    let mut run = Scenario::started(
        "
fail_fast: true
steps:
  a: {function: f, emits: [ea]}
  b: {function: f, subscribes: [ea], if: 'events.ea.missing'}
  c: {function: f, subscribes: [ea]}
",
        "{}",
    );
    run.done("a", "null", &[("ea", "{}")]);
    assert_eq!(run.status(), Status::Failed);
    assert_eq!(run.steps(Phase::Skipped), ["c"]);
    assert_run!(run);
}

#[test]
fn the_default_result_is_that_of_completed_leaf_steps() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, returns: ea}
  b: {function: f, subscribes: [ea]}
  c: {function: f, subscribes: [ea], on_failure: continue}
  d: {function: f, subscribes: [ea], if: 'false && input.x'}
  e: {function: f, subscribes: [ea], emits: [unread]}
",
        "{}",
    );
    run.done("a", "1", &[]);
    run.done("b", "2", &[]);
    run.fail("c", "x");
    run.done("e", "5", &[("unread", "0")]);
    assert_eq!(run.data(EventType::FlowCompleted)["result"], serde_json::json!({"b": 2, "e": 5}));
}

#[test]
fn output_reads_input_events_and_results() {
    let mut run = Scenario::started(
        "
output: '{\"id\": input.id, \"paid\": events.paid.cents, \"label\": results.ship.label}'
steps:
  pay: {function: f, emits: [paid]}
  ship: {function: f, subscribes: [paid]}
",
        r#"{"id":7}"#,
    );
    run.done("pay", "null", &[("paid", r#"{"cents":100}"#)]);
    run.done("ship", r#"{"label":"L"}"#, &[]);
    let result = run.data(EventType::FlowCompleted)["result"].clone();
    assert_eq!(result, serde_json::json!({"id": 7, "paid": 100, "label": "L"}));
    assert_run!(run);
}

#[test]
fn an_output_that_errs_fails_the_run() {
    let mut run = Scenario::started("output: 'results.a.missing.deep'\nsteps:\n  a: {function: f}\n", "{}");
    run.done("a", "{}", &[]);
    assert_eq!(run.status(), Status::Failed);
    assert!(run.data(EventType::FlowFailed)["error"].as_str().unwrap().starts_with("`output`: "));
    assert_eq!(run.data(EventType::FlowFailed).get("step"), None);
}

#[test]
fn a_run_whose_entries_are_all_skipped_ends_in_its_first_commit() {
    let run = Scenario::started(
        "timeout: 1h\nsteps:\n  a: {function: f, if: 'input.go'}\n  b: {function: f, subscribes: ['step:a']}\n",
        r#"{"go":false}"#,
    );
    assert_eq!(run.kinds(), ["flow.start", "step.skipped", "step.skipped", "flow.completed"]);
    assert_run!(run);
}

const APPROVAL: &str = "
accepts: {approval.given: {type: object, required: [by]}}
steps:
  ask: {function: f}
  ship: {function: f, subscribes: ['step:ask', approval.given]}
";

#[test]
fn a_run_waits_for_an_event_from_outside() {
    let mut run = Scenario::started(APPROVAL, "{}");
    assert_eq!(run.status(), Status::Running);
    run.done("ask", "1", &[]);
    assert_eq!(run.status(), Status::Waiting);
    run.send("approval.given", r#"{"by":"ann"}"#);
    assert_eq!((run.status(), run.live()), (Status::Running, vec!["ship".to_owned()]));
    run.send("approval.given", r#"{"by":"bob"}"#);
    run.done("ship", "2", &[]);
    run.send("approval.given", r#"{"by":"cid"}"#);
    assert_run!(run);
}

#[test]
fn an_event_may_come_before_it_is_waited_for() {
    let mut run = Scenario::started(APPROVAL, "{}");
    run.send("approval.given", r#"{"by":"ann"}"#);
    run.done("ask", "1", &[]);
    assert_eq!(run.live(), ["ship"]);
}

#[test]
fn an_event_that_is_not_accepted_or_breaks_its_schema_is_refused() {
    let mut run = Scenario::started(APPROVAL, "{}");
    let before = run.log.len();
    assert!(matches!(run.send("approval", "{}"), Came::Refused(Refusal::NotAccepted { .. })));
    assert!(matches!(run.send("approval.given", "{}"), Came::Refused(Refusal::Schema { .. })));
    assert_eq!(run.log.len(), before);
    assert_run!(run);
}

#[test]
fn an_event_for_an_ended_run_is_refused() {
    let mut run = Scenario::started(APPROVAL, "{}");
    run.cancel();
    let came = run.send("approval.given", r#"{"by":"ann"}"#);
    assert_eq!(came, Came::Refused(Refusal::Ended(Status::Cancelled)));
}

#[test]
fn a_run_does_not_wait_for_an_event_that_could_trigger_nothing() {
    let mut run = Scenario::started(APPROVAL, "{}");
    run.fail("ask", "x");
    assert_eq!(run.status(), Status::Failed, "ship can never run: ask failed");
    assert_eq!(run.phase("ship"), Phase::Skipped);
}

#[test]
fn a_flow_can_begin_with_an_event_from_outside() {
    let mut run =
        Scenario::started("accepts: {go: null}\nsteps:\n  a: {function: f, subscribes: [go]}\n", "{}");
    assert_eq!((run.status(), run.live().len()), (Status::Waiting, 0));
    run.start("{}");
    run.send("go", "1");
    run.done("a", "1", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_run!(run);
}

#[test]
fn what_one_commit_may_trigger_is_limited_and_the_place_named() {
    use flowline_core::definition::{Definition, Runner, StepDefinition, Subscribes};
    let plan = |source: &str| {
        let mut flow = Definition::new("wide");
        flow.accepts.insert("go".to_owned(), None);
        let mut first = StepDefinition::new("first", Runner::Function("f".to_owned()));
        first.emits.insert("out".to_owned(), None);
        flow.steps.push(first);
        for at in 0..=flowline_core::limits::TRIGGERS {
            let mut step = StepDefinition::new(&format!("s{at}"), Runner::Function("f".to_owned()));
            step.subscribes = Some(Subscribes::Event(source.to_owned()));
            flow.steps.push(step);
        }
        flowline_core::Plan::build(flow).unwrap_err().to_string()
    };
    let remedy = "triggers more than 1000 steps at once; put a step in between";
    assert_eq!(plan("go"), format!("flow \"wide\", accepts.go: {remedy}"));
    assert_eq!(plan("out"), format!("flow \"wide\", steps.first: {remedy}"));
}
