//! What workers report late, twice or not at all: how it is answered, counted and logged.

use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flowline::core::decide::Refusal;
use flowline::core::event::EventType;
use flowline::remote::{Assignment, AttemptEnding, Beat, Said, WorkRequest};
use flowline::store::row::Retention;
use flowline::{Config, EngineError, Level, StepError};
use serde_json::json;
use std::time::Duration;

use super::{FLOW, Json, Place, asks, is_stale};

/// Reports a failure; whether that changed anything.
async fn fail(place: &Place, job: &Assignment, error: &str) -> Result<bool, EngineError> {
    let outcome = Err(StepError::new(error).code("tape"));
    let ending = AttemptEnding { lease: job.lease.clone(), outcome, emits: Vec::new() };
    place.engine.remote().complete(vec![ending]).await.remove(0).map(|reported| reported.changed)
}

fn is_other<T: std::fmt::Debug>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::Refused(Refusal::OtherOutcome { .. })))
}

#[tokio::test]
async fn a_late_failure_is_refused_as_a_late_completion_is() {
    let place = Place::new().await;
    let run = place.start().await;
    let lost = place.claim_one("w1").await;
    assert_eq!(place.beat(&lost).await, Beat::Held);
    place.outlive(Config::default().lease).await;
    let taken = place.claim_one("w2").await;
    let before = place.log(&run).await;
    assert!(is_stale(fail(&place, &lost, "late").await));
    assert!(is_stale(place.complete(&lost, json!("late")).await));
    assert_eq!(place.log(&run).await, before);
    assert!(place.complete(&taken, json!(1)).await.unwrap());
    assert!(is_stale(fail(&place, &lost, "later still").await));
    place.engine.stop().await;
}

#[tokio::test]
async fn a_report_is_answered_as_recorded_after_later_attempts_and_the_end_of_the_run() {
    let place = Place::new().await;
    let run = place.start().await;
    let first = place.claim_one("w1").await;
    assert!(fail(&place, &first, "no tape").await.unwrap());
    let second = place.claim_one("w1").await;
    assert!(!fail(&place, &first, "no tape").await.unwrap(), "the next attempt is under way");
    assert!(is_other(&fail(&place, &first, "no parcel").await));
    assert!(is_other(&place.complete(&first, json!(1)).await));
    assert!(place.complete(&second, json!({"weight": 3})).await.unwrap());
    assert!(!fail(&place, &first, "no tape").await.unwrap());
    let send = place.claim_one("w1").await;
    assert!(place.complete(&send, json!(null)).await.unwrap());
    place.engine.wait(&run).await.unwrap();
    for _ in 0..2 {
        assert!(!fail(&place, &first, "no tape").await.unwrap());
        assert!(!place.complete(&second, json!({"weight": 3})).await.unwrap());
        assert!(is_other(&place.complete(&second, json!({"weight": 4})).await));
        assert!(!place.complete(&send, json!(null)).await.unwrap());
    }
    place.engine.stop().await;
}

/// The same job under references in which one word is another each.
fn forged(job: &Assignment) -> Vec<Assignment> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(&job.lease).unwrap()).unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    let other = |word: &str| match word.strip_prefix('1') {
        Some(rest) => format!("2{rest}"),
        None => format!("1{}", &word[1..]),
    };
    let forged = |at: usize| {
        let words =
            words.iter().enumerate().map(|(n, word)| if n == at { other(word) } else { (*word).into() });
        let lease = URL_SAFE_NO_PAD.encode(words.collect::<Vec<_>>().join(" "));
        Assignment { lease, ..job.clone() }
    };
    (0..words.len()).map(forged).collect()
}

/// The run, its step, its attempt, the token, when it was claimed, its deadline, its worker: nothing is believed that was not
/// given out, and nothing of what is recorded is confirmed to whoever makes it up.
#[tokio::test]
async fn a_reference_with_any_word_changed_is_refused_before_and_after_the_report() {
    let place = Place::with(&FLOW.replace("returns:", "timeout: 1h\n    returns:")).await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    assert_eq!(place.beat(&pack).await, Beat::Held);
    let before = place.log(&run).await;
    assert!(forged(&pack).len() >= 10);
    for forged in forged(&pack) {
        assert_eq!(place.beat(&forged).await, Beat::Lost);
        assert!(is_stale(place.complete(&forged, json!(1)).await));
        place.engine.remote().release(std::slice::from_ref(&forged.lease)).await.unwrap();
    }
    assert_eq!(place.log(&run).await, before);
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    for forged in forged(&pack) {
        assert!(is_stale(place.complete(&forged, json!(1)).await), "nothing is confirmed");
        assert!(is_stale(place.complete(&forged, json!(2)).await), "nor denied");
    }
    assert!(!place.complete(&pack, json!(1)).await.unwrap(), "whoever held it is told");
    place.engine.stop().await;
}

#[tokio::test]
async fn lines_that_were_written_are_known_after_their_attempt_is_over() {
    let place = Place::new().await;
    let run = place.start().await;
    let pack = place.claim_one("w1").await;
    let remote = place.engine.remote();
    let log = |message: &str| {
        vec![Said::Log { level: Level::Info, message: message.to_owned(), fields: Default::default() }]
    };
    assert_eq!(remote.append(&pack.lease, 0, log("a")).await.unwrap().lines, 1);
    assert_eq!(remote.append(&pack.lease, 1, log("b")).await.unwrap().lines, 2);
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    let before = place.log(&run).await;
    assert_eq!(remote.append(&pack.lease, 0, log("a")).await.unwrap().lines, 2);
    assert_eq!(remote.append(&pack.lease, 1, log("b")).await.unwrap().lines, 2);
    assert!(is_stale(remote.append(&pack.lease, 1, log("c")).await), "another line");
    assert!(is_stale(remote.append(&pack.lease, 2, log("c")).await), "a further line");
    assert!(is_stale(remote.append(&pack.lease, 9, log("a")).await), "lines before it are missing");
    assert_eq!(place.log(&run).await, before);
    place.engine.stop().await;
}

#[tokio::test]
async fn a_recorded_report_is_known_after_its_log_was_trimmed_and_no_other_is() {
    let place = Place::new().await;
    let run = place.start().await;
    let first = place.claim_one("w1").await;
    assert!(fail(&place, &first, "no tape").await.unwrap());
    let second = place.claim_one("w1").await;
    assert!(place.complete(&second, json!({"weight": 1, "to": null})).await.unwrap());
    let send = place.claim_one("w1").await;
    assert!(place.complete(&send, json!(2)).await.unwrap());
    place.engine.wait(&run).await.unwrap();
    place.store.clock().advance(Duration::from_secs(60));
    let policy = Retention { events: Duration::from_secs(1), runs: Duration::from_secs(86_400) };
    assert_eq!(place.engine.store().retain(policy, 10).await.unwrap().trimmed, 1);
    for _ in 0..2 {
        assert!(!fail(&place, &first, "no tape").await.unwrap());
        assert!(is_other(&fail(&place, &first, "no glue").await));
        assert!(!place.complete(&second, json!({"to": null, "weight": 1})).await.unwrap());
        assert!(is_other(&place.complete(&second, json!({"weight": 3, "to": null})).await));
        assert!(!place.complete(&send, json!(2)).await.unwrap());
        assert!(is_other(&fail(&place, &send, "no tape").await));
    }
    place.engine.stop().await;
}

#[tokio::test]
async fn an_assignment_that_is_given_back_unheard_in_a_paused_run_never_started() {
    let place = Place::new().await;
    let run = place.start().await;
    let unheard = place.claim_one("w1").await;
    place.engine.pause(&run).await.unwrap();
    place.engine.remote().release(std::slice::from_ref(&unheard.lease)).await.unwrap();
    while place.count(&run, EventType::StepRetry).await == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(place.count(&run, EventType::StepStarted).await, 0);
    place.engine.resume(&run).await.unwrap();
    let pack = place.claim_one("w2").await;
    assert_eq!(pack.attempt, 2);
    assert!(place.complete(&pack, json!(1)).await.unwrap());
    let (store, plans) = (place.engine.store(), place.engine.plans());
    let found = flowline::verify::verify_run(store, plans, &run).await.unwrap();
    assert_eq!(found.violations, [], "{found:?}");
    place.engine.stop().await;
}

#[tokio::test]
async fn a_late_report_counts_as_stale_and_a_repeated_start_as_one_whose_run_exists() {
    let place = Place::new().await;
    let counted = || {
        let meters = place.engine.meters();
        [&meters.repeated, &meters.existed, &meters.stale].map(|meter| meter.load(Ordering::Relaxed))
    };
    for _ in 0..2 {
        let request = place.engine.run_named("parcel", Json::null()).await.unwrap();
        request.idempotency_key("one").await.unwrap();
    }
    assert_eq!(counted(), [0, 1, 0], "the second start finds the run");
    let lost = place.claim_one("w1").await;
    assert_eq!(place.beat(&lost).await, Beat::Held);
    place.outlive(Config::default().lease).await;
    let taken = place.claim_one("w2").await;
    assert!(is_stale(place.complete(&lost, json!("late")).await));
    assert_eq!(counted(), [0, 1, 1]);
    assert!(place.complete(&taken, json!(1)).await.unwrap());
    assert!(!place.complete(&taken, json!(1)).await.unwrap());
    assert_eq!(counted(), [1, 1, 1]);
    let other = place.complete(&taken, json!(2)).await;
    assert!(matches!(other, Err(EngineError::Refused(Refusal::OtherOutcome { .. }))), "{other:?}");
    assert_eq!(counted(), [1, 1, 2]);
    place.engine.stop().await;
}

#[tokio::test]
async fn a_claim_leaves_out_the_state_that_would_make_it_too_large() {
    let place = Place::new().await;
    let (runs, bytes) = (20, 900_000);
    for _ in 0..runs {
        place.start().await;
    }
    let mut packed = 0;
    while packed < runs {
        for pack in place.claim("w1").await {
            let value = Json::from(json!("x".repeat(bytes)));
            let set =
                Said::Set { scope: flowline::StateScope::Run, key: "label".to_owned(), value, ttl: None };
            place.engine.remote().append(&pack.lease, 0, vec![set]).await.unwrap();
            assert!(place.complete(&pack, json!(1)).await.unwrap());
            packed += 1;
        }
    }
    let with_state = WorkRequest { with_state: true, limit: 100, ..asks("w1", &["depot"]) };
    let jobs = place.engine.remote().claim(with_state).await.unwrap();
    assert_eq!(jobs.len(), runs, "each is handed out");
    let with: usize = jobs.iter().filter(|job| job.state.is_some()).count();
    assert_eq!(with, (16 << 20) / bytes, "as many as there is room for have their state");
    assert!(jobs.iter().all(|job| job.state_omitted == job.state.is_none()));
    place.engine.stop().await;
}
