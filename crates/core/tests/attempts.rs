//! What attempts of a step report: emits, results, failures, retries, lost leases.

use std::time::Duration;

use crate::scenario::{Came, EPOCH, Retained, Scenario, failure};
use flowline_core::decide::{AttemptFailure, DecideInput, Refusal, Retryable};
use flowline_core::limits::{self, Limits};
use flowline_core::run::{Phase, Status};
use flowline_core::{EventType, Json, Time};

const PAIR: &str = "
steps:
  a: {function: f, emits: {ea: {type: integer}, eb: null}, retry: {attempts: 3, jitter: false}}
  b: {function: f, subscribes: [ea]}
";

#[test]
fn emits_and_what_they_trigger_are_in_the_commit_of_the_completion() {
    let mut run = Scenario::started(PAIR, "{}");
    run.done("a", r#"{"r":1}"#, &[("ea", "7"), ("eb", "null")]);
    run.done("b", "2", &[]);
    assert_run!(run);
}

#[test]
fn the_first_emit_of_a_name_wins() {
    let mut run = Scenario::started(PAIR, "{}");
    run.done("a", "null", &[("ea", "1"), ("ea", "2")]);
    assert_eq!(run.data(EventType::Emit)["payload"], 1);
    assert_eq!(run.kinds().iter().filter(|kind| **kind == "emit").count(), 1);
}

#[test]
fn the_first_emit_wins_across_steps() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, emits: [e]}
  b: {function: f, emits: [e]}
  c: {function: f, subscribes: [e]}
",
        "{}",
    );
    run.done("b", "null", &[("e", "\"b\"")]);
    run.done("a", "null", &[("e", "\"a\"")]);
    run.done("c", "null", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_run!(run);
}

#[test]
fn an_undeclared_emit_fails_the_step_and_is_not_retried() {
    let mut run = Scenario::started(PAIR, "{}");
    run.done("a", "null", &[("ea", "1"), ("ec", "1")]);
    assert_eq!((run.phase("a"), run.phase("b")), (Phase::Failed, Phase::Skipped));
    assert_eq!(run.data(EventType::StepFailed)["code"], "undeclared_emit");
    assert_run!(run);
}

#[test]
fn an_emit_that_breaks_its_schema_fails_the_step_and_is_not_retried() {
    let mut run = Scenario::started(PAIR, "{}");
    run.done("a", "null", &[("ea", "\"one\"")]);
    assert_eq!((run.phase("a"), run.phase("b")), (Phase::Failed, Phase::Skipped));
    assert_eq!(run.data(EventType::StepFailed)["code"], "schema");
    assert_run!(run);
}

#[test]
fn a_result_or_emit_over_its_limit_fails_the_step_with_the_limit_named() {
    let big = format!("\"{}\"", "x".repeat(Limits::default().payload));
    let mut run = Scenario::started(PAIR, "{}");
    run.done("a", &big, &[]);
    let failed = run.data(EventType::StepFailed);
    assert_eq!(failed["code"], "too_large");
    assert_eq!(failed["error"], "the result is 1048578 bytes; the limit is 1048576 (setting max-payload)");
    let mut run = Scenario::started(PAIR, "{}");
    run.done("a", "null", &[("eb", &big)]);
    let failed = run.data(EventType::StepFailed);
    assert_eq!(failed["error"], "emit \"eb\" is 1048578 bytes; the limit is 1048576 (setting max-payload)");
}

#[test]
fn returns_emits_the_result() {
    let mut run = Scenario::started(
        "
steps:
  a: {function: f, returns: ea, emits: {ea: {type: integer}}}
  b: {function: f, subscribes: [ea]}
",
        "{}",
    );
    run.done("a", "7", &[]);
    assert_eq!(run.data(EventType::Emit)["payload"], 7);
    assert_eq!(run.live(), ["b"]);
    run.done("b", "null", &[]);
    assert_run!(run);
}

#[test]
fn a_result_that_breaks_the_schema_of_its_event_fails_the_step() {
    let flow = "steps:\n  a: {function: f, returns: ea, emits: {ea: {type: integer}}}\n";
    let mut run = Scenario::started(flow, "{}");
    run.done("a", "\"x\"", &[]);
    assert_eq!(run.data(EventType::StepFailed)["code"], "schema");
}

#[test]
fn emit_now_is_kept_when_its_attempt_fails_and_happens_once_per_name() {
    let mut run = Scenario::started(PAIR, "{}");
    run.emit_now("a", "ea", "1");
    assert_eq!(run.live(), ["a", "b"]);
    assert_eq!(run.emit_now("a", "ea", "2"), Came::Applied);
    run.fail("a", "x");
    run.emit_now("a", "ea", "3");
    run.done("a", "null", &[("ea", "4"), ("eb", "5")]);
    run.done("b", "null", &[]);
    assert_run!(run);
}

#[test]
fn emit_now_is_refused_where_it_is_undeclared_breaks_its_schema_or_comes_late() {
    let mut run = Scenario::started(PAIR, "{}");
    assert!(matches!(run.emit_now("a", "ec", "1"), Came::Refused(Refusal::Undeclared { .. })));
    assert!(matches!(run.emit_now("a", "ea", "\"x\""), Came::Refused(Refusal::Schema { .. })));
    run.done("a", "null", &[]);
    assert!(matches!(run.emit_now("a", "ea", "1"), Came::Refused(_)));
    assert_run!(run);
}

#[test]
fn a_failed_attempt_is_retried_and_its_step_completes() {
    let mut run = Scenario::started(PAIR, "{}");
    run.fail("a", "x");
    assert_eq!(run.status(), Status::Waiting, "only a delay is left");
    run.done("a", "null", &[("ea", "1")]);
    assert_eq!(run.state.retries, 1);
    run.done("b", "null", &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_run!(run);
}

#[test]
fn a_step_out_of_attempts_fails() {
    let mut run = Scenario::started(PAIR, "{}");
    for _ in 0..3 {
        assert!(matches!(run.phase("a"), Phase::Queued | Phase::Delayed));
        run.fail("a", "x");
    }
    assert_eq!((run.phase("a"), run.status()), (Phase::Failed, Status::Failed));
    assert_run!(run);
}

#[test]
fn only_listed_codes_are_retried() {
    let flow = "steps:\n  a: {function: f, retry: {attempts: 3, only: [busy]}}\n";
    for (code, phase) in
        [(Some("busy"), Phase::Delayed), (Some("gone"), Phase::Failed), (None, Phase::Failed)]
    {
        let mut run = Scenario::started(flow, "{}");
        run.fail_with("a", AttemptFailure { code: code.map(str::to_owned), ..failure("x") });
        assert_eq!(run.phase("a"), phase, "{code:?}");
    }
}

#[test]
fn excepted_codes_are_not_retried() {
    let flow = "steps:\n  a: {function: f, retry: {attempts: 3, except: [gone]}}\n";
    for (code, phase) in
        [(Some("busy"), Phase::Delayed), (Some("gone"), Phase::Failed), (None, Phase::Delayed)]
    {
        let mut run = Scenario::started(flow, "{}");
        run.fail_with("a", AttemptFailure { code: code.map(str::to_owned), ..failure("x") });
        assert_eq!(run.phase("a"), phase, "{code:?}");
    }
}

#[test]
fn an_attempt_may_forbid_or_delay_its_retry() {
    let mut run = Scenario::started(PAIR, "{}");
    run.fail_with("a", AttemptFailure { retry: Retryable::After(Duration::from_secs(90)), ..failure("x") });
    assert_eq!(run.jobs[&0].due, EPOCH + Duration::from_secs(90));
    run.fail_with("a", AttemptFailure { retry: Retryable::Never, ..failure("x") });
    assert_eq!(run.phase("a"), Phase::Failed);
    assert_run!(run);
}

#[test]
fn a_delay_beyond_the_calendar_is_held_at_its_end() {
    let mut run = Scenario::started(PAIR, "{}");
    run.fail_with("a", AttemptFailure { retry: Retryable::After(Duration::MAX), ..failure("x") });
    assert_eq!(run.phase("a"), Phase::Delayed);
    let retry = run.data(EventType::StepRetry);
    assert!(retry["delayMs"].as_u64().is_some(), "{retry}");
    assert!(Time::parse(retry["at"].as_str().unwrap()).is_some(), "{retry}");
}

/// The delays of a step's retries, in milliseconds.
fn delays(retry: &str, count: usize) -> Vec<u64> {
    let mut run = Scenario::started(&format!("steps:\n  a: {{function: f, retry: {{{retry}}}}}\n"), "{}");
    let one = |run: &mut Scenario| {
        run.fail("a", "x");
        let data = run.data(EventType::StepRetry);
        let delay = data["delayMs"].as_u64().unwrap();
        let due = run.now + Duration::from_millis(delay);
        assert_eq!((run.jobs[&0].due, data["at"].as_str().unwrap()), (due, &*due.to_string()));
        delay
    };
    (0..count).map(|_| one(&mut run)).collect()
}

#[test]
fn backoff_is_fixed_linear_or_exponential_up_to_its_cap() {
    let of = |backoff: &str| {
        delays(&format!("attempts: 9, delay: 1s, max_delay: 5s, jitter: false, backoff: {backoff}"), 4)
    };
    assert_eq!(of("fixed"), [1000, 1000, 1000, 1000]);
    assert_eq!(of("linear"), [1000, 2000, 3000, 4000]);
    assert_eq!(of("exponential"), [1000, 2000, 4000, 5000]);
    assert_eq!(delays("attempts: 100, jitter: false", 80)[70..], [60_000; 10]);
}

#[test]
fn jitter_takes_away_at_most_half_and_is_the_same_again() {
    let all = delays("attempts: 50, delay: 1s, backoff: fixed", 40);
    assert_eq!(all, delays("attempts: 50, delay: 1s, backoff: fixed", 40));
    assert!(all.iter().all(|delay| (500..=1000).contains(delay)), "{all:?}");
    let (low, high) = (all.iter().min().unwrap(), all.iter().max().unwrap());
    assert!(high - low > 250, "{all:?} hardly differ");
}

#[test]
fn jitter_of_a_very_long_delay_stays_within_half() {
    let all = delays("attempts: 50, delay: 300d, max_delay: 300d, backoff: fixed", 20);
    let day = 86_400_000;
    assert!(all.iter().all(|delay| (150 * day..=300 * day).contains(delay)), "{all:?}");
}

#[test]
fn a_retry_without_delay_is_queued_at_once() {
    let mut run = Scenario::started("steps:\n  a: {function: f, retry: {attempts: 2, delay: 0s}}\n", "{}");
    run.fail("a", "x");
    assert_eq!((run.phase("a"), run.status()), (Phase::Queued, Status::Running));
}

#[test]
fn a_delayed_attempt_runs_once_it_is_claimed() {
    let mut run = Scenario::started(PAIR, "{}");
    run.fail("a", "x");
    assert_eq!(run.status(), Status::Waiting);
    run.claim("a");
    assert_eq!((run.status(), run.phase("a")), (Status::Running, Phase::Queued));
}

#[test]
fn a_lost_lease_makes_an_attempt_outside_the_retry_budget_up_to_its_cap() {
    let mut run = Scenario::started("steps:\n  a: {function: f}\n", "{}");
    for lost in 1..=limits::LOST_LEASES {
        run.lose("a");
        assert_eq!((run.phase("a"), run.state.step(0).attempt), (Phase::Queued, lost + 1));
    }
    run.lose("a");
    assert_eq!(run.phase("a"), Phase::Failed);
    assert_eq!(run.data(EventType::StepFailed)["code"], "lease_lost");
    assert_run!(run);
}

#[test]
fn lost_leases_do_not_use_up_the_retry_budget() {
    let mut run = Scenario::started("steps:\n  a: {function: f, retry: {attempts: 2}}\n", "{}");
    run.lose("a");
    run.lose("a");
    run.fail("a", "x");
    assert_eq!(run.phase("a"), Phase::Delayed);
    run.lose("a");
    run.fail("a", "x");
    assert_eq!((run.phase("a"), run.state.step(0).attempt), (Phase::Failed, 5));
}

#[test]
fn a_lease_given_back_counts_against_nothing() {
    let mut run = Scenario::started("steps:\n  a: {function: f}\n", "{}");
    for _ in 0..20 {
        run.release("a");
        assert_eq!(run.phase("a"), Phase::Queued);
    }
    assert_eq!((run.state.step(0).tries, run.state.step(0).lost), (0, 0));
    run.done("a", "1", &[]);
    assert_eq!(run.status(), Status::Completed);
}

#[test]
fn a_step_that_reports_a_code_of_ours_is_charged_like_any_other() {
    for code in ["lease_lost", "released"] {
        let mut run = Scenario::started(PAIR, "{}");
        for _ in 0..3 {
            run.fail("a", code);
        }
        assert_eq!(run.phase("a"), Phase::Failed, "{code}");
        assert_eq!(run.data(EventType::StepFailed)["code"], code);
    }
}

#[test]
fn an_outcome_of_an_attempt_that_was_replaced_is_refused() {
    let mut run = Scenario::started(PAIR, "{}");
    run.lose("a");
    let came = run.done_at("a", 1, "null", &[("ea", "1")]);
    assert!(matches!(came, Came::Refused(Refusal::StaleAttempt { attempt: 1, .. })), "{came:?}");
    run.done("a", "null", &[("ea", "2")]);
    assert_eq!(run.done_at("a", 2, "null", &[("ea", "2")]), Came::Applied);
    assert!(matches!(run.done_at("a", 1, "null", &[]), Came::Refused(_)));
}

#[test]
fn a_long_error_is_cut_at_a_character() {
    let mut run = Scenario::started("steps:\n  a: {function: f}\n", "{}");
    run.fail_with("a", AttemptFailure { error: "é".repeat(limits::ERROR_BYTES), ..failure("x") });
    let error = run.data(EventType::StepFailed)["error"].as_str().unwrap().to_owned();
    assert!(error.len() <= limits::ERROR_BYTES && error.chars().all(|c| c == 'é'));
}

#[test]
fn a_stack_is_kept_with_the_failure() {
    let mut run = Scenario::started("steps:\n  a: {function: f}\n", "{}");
    run.fail_with("a", AttemptFailure { stack: Some("at charge".to_owned()), ..failure("x") });
    assert_eq!(run.data(EventType::StepFailed)["stack"], "at charge");
}

#[test]
fn the_priority_of_a_step_outranks_that_of_its_run() {
    use flowline_core::definition::Priority;
    let mut run = Scenario::of("steps:\n  a: {function: f, priority: urgent}\n  b: {function: f}\n");
    run.start_with(flowline_core::decide::Start {
        priority: Priority::Low,
        ..crate::scenario::start_of("{}")
    });
    assert_eq!((run.jobs[&0].priority, run.jobs[&1].priority), (Priority::Urgent, Priority::Low));
    assert_run!(run);
}

#[test]
fn a_late_failure_of_an_attempt_whose_lease_was_lost_is_refused() {
    let mut run = Scenario::started(PAIR, "{}");
    run.lose("a");
    for live in [true, false] {
        let late = DecideInput::Failed { step: 0, attempt: 1, failure: failure("late") };
        let came = run.apply(late);
        assert!(matches!(came, Came::Refused(Refusal::StaleAttempt { attempt: 1, .. })), "{live}: {came:?}");
        run.done("a", "null", &[("ea", "2")]);
    }
}

#[test]
fn a_recorded_report_is_known_however_many_attempts_came_after_it() {
    let mut run = Scenario::started("steps:\n  a: {function: f, retry: {attempts: 4}}\n", "{}");
    let failed = |attempt: u32, code: &str| DecideInput::Failed { step: 0, attempt, failure: failure(code) };
    run.fail("a", "x");
    run.fail("a", "y");
    assert_eq!(run.apply(failed(1, "x")), Came::Applied);
    assert_eq!(run.apply(failed(2, "y")), Came::Applied);
    run.done("a", r#"{"n":1, "m":[2]}"#, &[]);
    assert_eq!(run.status(), Status::Completed);
    assert_eq!(run.apply(failed(1, "x")), Came::Applied);
    assert_eq!(run.done_at("a", 3, r#"{"m": [2], "n": 1}"#, &[]), Came::Applied, "the same JSON");
}

#[test]
fn another_outcome_of_an_attempt_that_was_reported_is_refused_as_such() {
    let mut run = Scenario::started("steps:\n  a: {function: f, retry: {attempts: 2}}\n", "{}");
    run.fail("a", "x");
    run.done("a", "1", &[]);
    let other = |recorded: &str, attempt: u32| {
        Came::Refused(Refusal::OtherOutcome { step: "a".into(), attempt, recorded: recorded.to_owned() })
    };
    let failed = |attempt: u32, code: &str| DecideInput::Failed { step: 0, attempt, failure: failure(code) };
    assert_eq!(run.apply(failed(1, "y")), other("failed (broke with x)", 1));
    assert_eq!(run.done_at("a", 1, "1", &[]), other("failed (broke with x)", 1));
    assert_eq!(run.done_at("a", 2, "2", &[]), other("completed", 2));
    assert_eq!(run.apply(failed(2, "x")), other("completed", 2));
}

#[test]
fn an_attempt_that_ran_out_of_time_is_over_for_whatever_else_it_reports() {
    let mut run = Scenario::started(PAIR, "{}");
    run.fail("a", "timeout");
    assert_eq!(
        run.apply(DecideInput::Failed { step: 0, attempt: 1, failure: failure("timeout") }),
        Came::Applied
    );
    let came = run.done_at("a", 1, "null", &[("ea", "1")]);
    assert!(matches!(came, Came::Refused(Refusal::StaleAttempt { attempt: 1, .. })), "{came:?}");
}

#[test]
fn an_emit_is_known_after_its_attempt_is_over() {
    let mut run = Scenario::started(PAIR, "{}");
    run.emit_now("a", "ea", "1");
    run.lose("a");
    let emit = |payload: &str| DecideInput::EmitNow {
        step: 0,
        attempt: 1,
        name: "ea".to_owned(),
        payload: crate::scenario::json(payload),
    };
    assert_eq!(run.apply(emit("1")), Came::Applied);
    assert!(matches!(run.apply(emit("2")), Came::Refused(Refusal::StaleAttempt { .. })));
}

#[test]
fn an_emit_without_a_payload_is_known_after_its_attempt_is_over() {
    let mut run = Scenario::started("steps:\n  a: {function: f, emits: [ea], retry: {attempts: 2}}\n", "{}");
    run.claim("a");
    let emit = |payload| DecideInput::EmitNow { step: 0, attempt: 1, name: "ea".to_owned(), payload };
    run.apply(emit(Json::nothing()));
    run.lose("a");
    assert_eq!(run.apply(emit(Json::nothing())), Came::Applied);
    assert!(matches!(
        run.apply(emit(crate::scenario::json("1"))),
        Came::Refused(Refusal::StaleAttempt { .. })
    ));
}

#[test]
fn a_recorded_report_is_known_after_the_log_is_gone_and_no_other_is() {
    let mut run = Scenario::started("steps:\n  a: {function: f, emits: [ea], retry: {attempts: 9}}\n", "{}");
    run.fail("a", "x");
    run.emit_now("a", "ea", r#"{"n": 1}"#);
    run.lose("a");
    run.fail("a", "timeout");
    run.done("a", r#"{"n":1, "m":[2]}"#, &[]);
    let failed = |attempt: u32, code: &str| DecideInput::Failed { step: 0, attempt, failure: failure(code) };
    let emit = |name: &str, payload: &str| {
        let (name, payload) = (name.to_owned(), crate::scenario::json(payload));
        DecideInput::EmitNow { step: 0, attempt: 2, name, payload }
    };
    let other = |attempt, recorded: &str| {
        Came::Refused(Refusal::OtherOutcome { step: "a".into(), attempt, recorded: recorded.to_owned() })
    };
    for retained in [Retained::Log, Retained::Digests] {
        run.retained = retained;
        let stale = Came::Refused(Refusal::Ended(Status::Completed));
        let (broke, words) = match retained {
            Retained::Log => ("failed (broke with x)", "in words"),
            _ => ("failed", "what it said is gone with the log"),
        };
        assert_eq!(run.apply(failed(1, "x")), Came::Applied, "{retained:?}");
        assert_eq!(run.apply(failed(1, "y")), other(1, broke), "{words}");
        assert_eq!(run.done_at("a", 1, "1", &[]), other(1, broke));
        assert_eq!(run.apply(emit("ea", r#"{"n":1}"#)), Came::Applied, "{retained:?}");
        assert_eq!(run.apply(emit("ea", r#"{"n":2}"#)), stale);
        assert_eq!(run.apply(emit("eb", r#"{"n":1}"#)), stale);
        assert_eq!(run.apply(failed(2, "x")), stale, "its lease was lost");
        assert_eq!(run.apply(failed(3, "timeout")), Came::Applied, "{retained:?}");
        assert_eq!(run.apply(failed(3, "x")), stale, "the clock has ended it");
        assert_eq!(run.done_at("a", 3, "1", &[]), stale);
        assert_eq!(run.done_at("a", 4, r#"{"m": [2], "n": 1}"#, &[]), Came::Applied, "{retained:?}");
        assert_eq!(run.done_at("a", 4, r#"{"m": [2], "n": 2}"#, &[]), other(4, "completed"));
        assert_eq!(run.apply(failed(4, "x")), other(4, "completed"));
        assert_eq!(run.apply(failed(5, "x")), stale, "there was none");
    }
}

#[test]
fn a_report_that_comes_again_after_an_older_build_has_removed_the_log_is_refused_and_says_why() {
    let mut run = Scenario::started("steps:\n  a: {function: f, retry: {attempts: 2}}\n", "{}");
    run.fail("a", "x");
    run.done("a", "1", &[]);
    run.retained = Retained::Nothing;
    let trimmed = |attempt| Came::Refused(Refusal::ReportsTrimmed { step: "a".into(), attempt });
    for result in ["1", "2"] {
        assert_eq!(run.done_at("a", 2, result, &[]), trimmed(2), "nobody can say whether it said {result}");
    }
    for attempt in [1, 2] {
        let came = run.apply(DecideInput::Failed { step: 0, attempt, failure: failure("x") });
        assert_eq!(came, trimmed(attempt));
    }
}

#[test]
fn a_report_of_the_current_attempt_asks_for_nothing() {
    let mut run = Scenario::started("steps:\n  a: {function: f, retry: {attempts: 2}}\n", "{}");
    run.fail("a", "x");
    run.done("a", "1", &[]);
    assert_eq!(run.asked, []);
}
