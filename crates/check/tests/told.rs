//! What clients and workers were told, held against what the store has.

use std::sync::Arc;
use std::time::Duration;

use flowline_check::Invariant::*;
use flowline_check::{
    AttemptReport, Checker, ClientReply, ClientRequest, Effect, Effects, History, RepeatedReport,
    ReportReply, WorkerSlots,
};
use flowline_core::event::EventType;
use flowline_core::{Json, RunId, Status, Tenant};
use flowline_store::Index;
use flowline_store::row::Retention;
use serde_json::{Value, json};

use crate::stage::*;

fn started(key: Option<&str>, id: &str, body: &str, outcome: ClientReply) -> History {
    let mut history = History::default();
    let act = ClientRequest::Start {
        run: Some(RunId::new(id).unwrap()),
        flow: "pair".into(),
        key: key.map(str::to_owned),
        body: Some(body.to_owned()),
    };
    history.push(&Tenant::default(), act, outcome);
    history
}

#[test]
fn what_clients_were_told_is_so() {
    let stage = Stage::leased();
    let check = |history: &History| history.check(Checker::default(), &stage.memory);
    let good = started(None, "r1", "1", ClientReply::Acknowledged);
    assert_eq!(check(&good), []);
    assert_eq!(check(&started(None, "r1", "1", ClientReply::Unknown)), []);
    names(&check(&started(None, "r1", "2", ClientReply::Acknowledged)), I3, "another input");
    names(&check(&started(None, "r1", "1", ClientReply::Refused)), I3, "every start of it was refused");
    names(
        &check(&started(None, "r9", "1", ClientReply::Acknowledged)),
        I3,
        "acknowledged, but the run doesn't exist",
    );
    names(&check(&started(Some("k"), "r1", "2", ClientReply::Acknowledged)), I9, "another input");
    let mut two = started(Some("k"), "r1", "1", ClientReply::Acknowledged);
    two.operations.extend(started(Some("k"), "r2", "1", ClientReply::Acknowledged).operations);
    names(&check(&two), I9, "started two runs, r1 and r2");
    for act in [
        ClientRequest::Send { run: RunId::new("r1").unwrap(), name: "x".into(), event_id: None },
        ClientRequest::Cancel { run: RunId::new("r1").unwrap() },
        ClientRequest::Pause { run: RunId::new("r1").unwrap() },
        ClientRequest::Resume { run: RunId::new("r1").unwrap() },
        ClientRequest::Finish { run: RunId::new("r1").unwrap() },
    ] {
        for (outcome, fine) in
            [(ClientReply::Acknowledged, false), (ClientReply::Refused, true), (ClientReply::Unknown, true)]
        {
            let mut history = good.clone();
            history.push(&Tenant::default(), act.clone(), outcome);
            let found = check(&history);
            assert_eq!(found.is_empty(), fine, "{act:?} {outcome:?}: {found:?}");
            found.iter().for_each(|violation| assert_eq!(violation.invariant, I3));
        }
    }
}

#[test]
fn who_is_told_that_a_run_is_paused_already_is_told_the_truth() {
    let stage = Stage::leased();
    let check = |act: fn(RunId) -> ClientRequest, asked, answered| {
        let mut history = started(None, "r1", "1", ClientReply::Acknowledged);
        let act = act(RunId::new("r1").unwrap());
        history.push(&Tenant::default(), act, ClientReply::Unchanged { asked, answered });
        history.check(Checker::default(), &stage.memory)
    };
    assert_eq!(check(|run| ClientRequest::Resume { run }, 1, 1), []);
    names(&check(|run| ClientRequest::Pause { run }, 1, 1), I3, "already paused, but it wasn't");
}

#[test]
fn what_workers_did_is_what_the_log_says() {
    let mut stage = Stage::leased();
    let done = stage.a_done(1, HELD);
    stage.commit(done);
    let began = |attempt| Effect::Began {
        worker: "w".into(),
        queue: "default".into(),
        run: run("r1"),
        step: "a".into(),
        attempt,
        input: None,
    };
    let ended = |reported| Effect::Ended {
        worker: "w".into(),
        queue: "default".into(),
        run: run("r1"),
        step: "a".into(),
        attempt: 1,
        reported,
    };
    let answered = |attempt, answer| Effect::Answered { run: run("r1"), step: "a".into(), attempt, answer };
    let check = |log: Vec<Effect>| {
        let slots = WorkerSlots { elsewhere: 1, ..WorkerSlots::default() };
        Effects { log, slots: [("w".into(), slots)].into() }.check(Checker::default(), &stage.memory)
    };
    let good = || vec![began(1), ended(AttemptReport::Done), answered(1, ReportReply::Acknowledged)];
    assert_eq!(check(good()), []);
    names(&check(vec![began(1), ended(AttemptReport::Nothing)]), I3, "the log has a completion");
    names(
        &check(vec![began(1), ended(AttemptReport::Done), answered(1, ReportReply::Refused)]),
        I7,
        "was refused",
    );
    names(&check([good(), vec![began(1)]].concat()), I2, "started twice");
    names(&check([vec![began(2)], good()].concat()), I17, "2 attempts");
    let crashed = vec![began(2), Effect::Crashed { worker: "w".into() }];
    assert_eq!(check([crashed, good()].concat()), []);
    let lost = vec![began(2), Effect::Crashed { worker: "w".into() }, answered(2, ReportReply::Acknowledged)];
    names(&check([lost, good()].concat()), I3, "isn't in the log");
    let again = |attempt, report, answer| {
        let again = Effect::AnsweredAgain { run: run("r1"), step: "a".into(), attempt, report, answer };
        check([good(), vec![again]].concat())
    };
    assert_eq!(again(1, RepeatedReport::Same, ReportReply::Acknowledged), []);
    assert_eq!(again(1, RepeatedReport::Other, ReportReply::Refused), []);
    assert_eq!(again(2, RepeatedReport::Same, ReportReply::Refused), []);
    names(&again(1, RepeatedReport::Same, ReportReply::Refused), I20, "is recorded, but was refused");
    names(&again(2, RepeatedReport::Same, ReportReply::Acknowledged), I20, "but isn't in the log");
    names(&again(1, RepeatedReport::Other, ReportReply::Acknowledged), I20, "differs from the recorded one");
}

#[test]
fn a_report_is_known_as_long_as_its_run_is_kept_and_its_log_need_not_be() {
    let mut stage = Stage::leased();
    let done = stage.a_done(1, HELD);
    stage.commit(done);
    let check = |stage: &Stage, first, report, answer| {
        let (run, step, attempt) = (run("r1"), Arc::<str>::from("a"), 1);
        let first = Effect::Answered { run: run.clone(), step: step.clone(), attempt, answer: first };
        let log = vec![first, Effect::AnsweredAgain { run, step, attempt, report, answer }];
        let mut found = Effects { log, ..Effects::default() }.check(Checker::default(), &stage.memory);
        found.retain(|violation| violation.invariant == I20);
        found
    };
    let cancel = stage.cancelled(2, 1);
    assert_eq!(stage.commit(cancel), []);
    let policy = Retention { events: Duration::ZERO, runs: TTL };
    assert_eq!(stage.memory.retain(stage.now, policy, 10).trimmed, 1);
    for (first, second) in
        [(ReportReply::Acknowledged, ReportReply::Acknowledged), (ReportReply::Refused, ReportReply::Refused)]
    {
        assert_eq!(check(&stage, first, RepeatedReport::Same, second), []);
    }
    let refused = check(&stage, ReportReply::Acknowledged, RepeatedReport::Same, ReportReply::Refused);
    names(&refused, I20, "is recorded, but was refused");
    names(
        &check(&stage, ReportReply::Refused, RepeatedReport::Same, ReportReply::Acknowledged),
        I20,
        "but was refused before",
    );
    names(
        &check(&stage, ReportReply::Acknowledged, RepeatedReport::Other, ReportReply::Acknowledged),
        I20,
        "differs from the recorded one",
    );
    stage.memory.delete_runs(&[run("r1")]);
    assert_eq!(
        check(&stage, ReportReply::Acknowledged, RepeatedReport::Same, ReportReply::Refused),
        [],
        "the run is gone"
    );
}

#[test]
fn an_emit_of_an_attempt_that_failed_was_asked_for_in_its_middle() {
    let mut stage = Stage::leased();
    let mut retry = stage.a_done(1, HELD);
    retry.events[2] = of(EventType::StepRetry, "a", 1, json!({"error": "no", "delayMs": 0}));
    retry.index = Index { retries: 1, ..index(Status::Running, 0) };
    retry.add.push(job(0, 2, stage.now));
    stage.commit(retry);
    let began = Effect::Began {
        worker: "w".into(),
        queue: "default".into(),
        run: run("r1"),
        step: "a".into(),
        attempt: 1,
        input: None,
    };
    let ended = Effect::Ended {
        worker: "w".into(),
        queue: "default".into(),
        run: run("r1"),
        step: "a".into(),
        attempt: 1,
        reported: AttemptReport::Failed,
    };
    let emitted = Effect::EmittedNow { run: run("r1"), step: "a".into(), attempt: 1, name: "a.done".into() };
    let check =
        |log: Vec<Effect>| Effects { log, ..Effects::default() }.check(Checker::default(), &stage.memory);
    assert_eq!(check(vec![began.clone(), emitted, ended.clone()]), []);
    names(&check(vec![began, ended]), I3, "its emit \"a.done\"");
}

#[test]
fn every_attempt_gets_the_input_that_its_step_was_triggered_with() {
    let mut stage = Stage::leased();
    let done = stage.a_done(1, HELD);
    stage.commit(done);
    let check = |attempt, input: Value| {
        let began = Effect::Began {
            worker: "w".into(),
            queue: "default".into(),
            run: run("r1"),
            step: "b".into(),
            attempt,
            input: Some(Json::from(input)),
        };
        let first = Effect::Ended {
            worker: "w".into(),
            queue: "default".into(),
            run: run("r1"),
            step: "a".into(),
            attempt: 1,
            reported: AttemptReport::Done,
        };
        Effects { log: vec![first, began], ..Effects::default() }.check(Checker::default(), &stage.memory)
    };
    assert_eq!(check(1, json!({"a.done": 1})), []);
    assert_eq!(check(2, json!({"a.done": 1})), []);
    names(&check(1, json!({"a.done": 2})), I19, "was triggered with {\"a.done\":1}");
    names(&check(2, json!({})), I19, "attempt 2 of step \"b\" got {}");
}
