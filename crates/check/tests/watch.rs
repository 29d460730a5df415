//! A watch beside the in-memory store: what it is told is held against what it saw, call by call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_check::Invariant::*;
use flowline_check::{
    AttemptReport, Checker, ClientReply, ClientRequest, Effect, Effects, History, Invariant, RepeatedReport,
    ReportReply, Violation, Watch, WorkerSlots,
};
use flowline_core::definition::{Format, Priority, read};
use flowline_core::event::{EventType, NewEvent};
use flowline_core::{Json, RunId, RunKey, Status, Tenant, Time};
use flowline_store::row::Retention;
use flowline_store::{
    Append, Base, Claim, Commit, Extend, Handoff, Index, JobKey, Lane, LeaseUse, Line, Memory, NewJob,
    NewRun, Others, StoredDefinition, Token,
};
use serde_json::{Value, json};

const FLOW: &str = "flow: pair\nsteps:\n  a: { function: a, returns: a.done }\n  \
    b: { function: b, subscribes: [a.done] }\n";
const TTL: Duration = Duration::from_secs(30);

/// A store, the watch beside it, and the time.
struct Stage {
    memory: Memory,
    watch: Watch,
    now: Time,
    hash: Arc<str>,
}

fn lane() -> Lane {
    Lane { queue: "default".into(), need: "function".into() }
}

fn run(id: &str) -> RunKey {
    RunKey::new(Tenant::default(), RunId::new(id).unwrap())
}

fn event(kind: EventType, data: Value) -> NewEvent {
    NewEvent::run(kind, Some(Json::from(data)))
}

fn of(kind: EventType, step: &str, attempt: u32, data: Value) -> NewEvent {
    NewEvent::step(kind, &step.into(), attempt, Some(Json::from(data)))
}

fn job(step: u32, attempt: u32, due: Time) -> NewJob {
    NewJob {
        key: JobKey::Step(step),
        name: ["a", "b"][step as usize].into(),
        attempt,
        lane: lane(),
        priority: Priority::Normal,
        due,
        held: false,
        handoff: None,
    }
}

fn index(status: Status, completed: u32) -> Index {
    Index { status, state: None, completed_steps: completed, failed_steps: 0, retries: 0, failure: None }
}

impl Stage {
    fn new() -> Stage {
        let definition = read("pair.yaml", FLOW, Format::Yaml).unwrap().definition;
        let mut memory = Memory::new();
        let now = Time::from_millis(100_000);
        let hash: Arc<str> = definition.hash().into();
        let stored = StoredDefinition {
            tenant: Tenant::default(),
            flow: "pair".into(),
            hash: hash.clone(),
            body: definition.canonical(),
            origin: None,
            created_at: now,
            latest: true,
        };
        memory.put_definition(now, stored);
        Stage { memory, watch: Watch::new(Checker::default()), now, hash }
    }

    fn start(&self, id: &str) -> Commit {
        let new = NewRun {
            flow: "pair".into(),
            definition: self.hash.clone(),
            step_count: 2,
            labels: BTreeMap::new(),
            input_digest: String::new(),
            idempotency_key: None,
            retry_of: None,
            retain: None,
        };
        Commit {
            run: run(id),
            base: Base::New(new),
            leases: Vec::new(),
            events: vec![event(EventType::FlowStart, json!({"input": 1}))],
            state: Vec::new(),
            index: index(Status::Running, 0),
            others: Others::Leave,
            add: vec![job(0, 1, self.now)],
            receipts: Vec::new(),
            clear_state: false,
        }
    }

    /// `a` is done and triggers `b`.
    fn a_done(&self, version: u64, token: Token) -> Commit {
        let events = vec![
            of(EventType::StepStarted, "a", 1, json!({})),
            of(EventType::Emit, "a", 1, json!({"name": "a.done", "payload": 1})),
            of(EventType::StepCompleted, "a", 1, json!({"result": 1})),
        ];
        let finish = LeaseUse::Finish { key: JobKey::Step(0), attempt: 1, token };
        Commit {
            base: Base::Version(version),
            leases: vec![finish],
            events,
            index: index(Status::Running, 1),
            add: vec![job(1, 1, self.now)],
            ..self.start("r1")
        }
    }

    fn cancelled(&self, version: u64, completed: u32) -> Commit {
        Commit {
            base: Base::Version(version),
            events: vec![event(EventType::FlowCancelled, json!({}))],
            index: index(Status::Cancelled, completed),
            others: Others::Drop,
            add: Vec::new(),
            ..self.start("r1")
        }
    }

    /// Writes a commit, and tells the watch of it.
    fn commit(&mut self, commit: Commit) -> Vec<Violation> {
        let told = commit.clone();
        self.commit_telling(commit, told)
    }

    /// Writes one commit, and tells the watch of another.
    fn commit_telling(&mut self, commit: Commit, told: Commit) -> Vec<Violation> {
        let answer = self.memory.commit(self.now, vec![commit]).pop().unwrap();
        self.watch.committed(&self.memory, self.now, &told, &answer)
    }

    fn claim(&mut self, token: u128) -> (Claim, flowline_store::Claimed) {
        let claim = Claim {
            tenant: None,
            needs: vec!["function".into()],
            free: Vec::new(),
            free_elsewhere: 1,
            tokens: vec![Token(token)],
            ttl: TTL,
            worker: "w".into(),
        };
        let claimed = self.memory.claim(self.now, claim.clone());
        assert_eq!(claimed.jobs.len(), 1);
        (claim, claimed)
    }

    /// A run whose `a` is leased with token 7.
    fn leased() -> Stage {
        let mut stage = Stage::new();
        let start = stage.start("r1");
        assert_eq!(stage.commit(start), []);
        let (claim, claimed) = stage.claim(7);
        assert_eq!(stage.watch.claimed(stage.now, &claim, &claimed), []);
        stage
    }
}

#[track_caller]
fn only(found: &[Violation], invariant: Invariant) {
    assert!(!found.is_empty(), "nothing was found");
    assert!(found.iter().all(|violation| violation.invariant == invariant), "{found:#?}");
}

#[track_caller]
fn names(found: &[Violation], invariant: Invariant, text: &str) {
    let named = |v: &Violation| v.invariant == invariant && v.message.contains(text);
    assert!(found.iter().any(named), "{invariant} {text:?}: {found:#?}");
}

const HELD: Token = Token(7);

#[test]
fn an_undisturbed_run_holds() {
    let mut stage = Stage::leased();
    let done = stage.a_done(1, HELD);
    assert_eq!(stage.commit(done), []);
    assert_eq!(stage.watch.end(&stage.memory), []);
    assert_eq!(stage.watch.progress(stage.now, stage.now, TTL), []);
}

#[test]
fn a_refused_commit_leaves_nothing() {
    let mut stage = Stage::leased();
    let stale = stage.a_done(1, Token(8));
    assert_eq!(stage.commit(stale), []);
    let (done, late) = (stage.a_done(1, HELD), stage.a_done(1, HELD));
    assert_eq!(stage.commit(done), []);
    assert_eq!(stage.commit(late), []);
    // The store says no, and wrote all the same.
    let mut stage = Stage::leased();
    let done = stage.a_done(1, HELD);
    stage.memory.commit(stage.now, vec![done.clone()]);
    let refused = Err(flowline_store::CommitError::Exists);
    let found = stage.watch.committed(&stage.memory, stage.now, &done, &refused);
    names(&found, I8, "a refused commit wrote 3 events");
}

#[test]
fn a_stale_token_writes_nothing() {
    let mut stage = Stage::leased();
    let (done, told) = (stage.a_done(1, HELD), stage.a_done(1, Token(8)));
    only(&stage.commit_telling(done, told), I7);
    let mut stage = Stage::leased();
    let line = Line { event: of(EventType::StepStarted, "a", 1, json!({})), state: None };
    let append = |token| Append {
        run: run("r1"),
        key: JobKey::Step(0),
        attempt: 1,
        token,
        from_line: 0,
        lines: vec![line.clone()],
    };
    let answer = stage.memory.append(stage.now, vec![append(HELD)]).pop().unwrap();
    let told = stage.watch.clone().appended(&stage.memory, &append(HELD), &answer);
    assert_eq!(told, []);
    only(&stage.watch.appended(&stage.memory, &append(Token(8)), &answer), I7);
}

#[test]
fn a_lease_that_is_held_is_not_given_up() {
    let mut stage = Stage::leased();
    let held = vec![Extend { run: run("r1"), key: JobKey::Step(0), token: HELD }];
    stage.now = stage.now + TTL;
    let answers = stage.memory.extend(stage.now, held.clone(), TTL);
    assert_eq!(stage.watch.extended(stage.now, &held, TTL, &answers), []);
    let mut stale = held.clone();
    stale[0].token = Token(8);
    only(&stage.watch.extended(stage.now, &stale, TTL, &answers), I7);
    let expired = LeaseUse::Expired { key: JobKey::Step(0), attempt: 1, token: HELD, lines: 0 };
    let lost = Commit { leases: vec![expired], ..stage.a_done(1, HELD) };
    let done = stage.a_done(1, HELD);
    only(&stage.commit_telling(done, lost), I7);
}

#[test]
fn a_commit_lands_on_the_version_that_it_was_decided_on() {
    let mut stage = Stage::leased();
    let (done, told) = (stage.a_done(1, HELD), stage.a_done(5, HELD));
    only(&stage.commit_telling(done, told), I8);
}

#[test]
fn a_commit_is_written_whole() {
    let mut stage = Stage::leased();
    let (mut done, told) = (stage.a_done(1, HELD), stage.a_done(1, HELD));
    done.add.clear();
    names(&stage.commit_telling(done, told), I8, "has no job");
    let mut stage = Stage::leased();
    let (done, mut told) = (stage.a_done(1, HELD), stage.a_done(1, HELD));
    told.events.pop();
    only(&stage.commit_telling(done, told), I8);
}

#[test]
fn what_a_commit_triggers_gets_its_job_in_that_commit() {
    let mut stage = Stage::leased();
    let mut done = stage.a_done(1, HELD);
    done.add.clear();
    names(&stage.commit(done), I5, "the commit adds no job");
    let mut stage = Stage::new();
    let mut start = stage.start("r1");
    start.add.push(job(1, 1, stage.now));
    names(&stage.commit(start), I5, "nothing in the commit triggers it");
}

#[test]
fn an_attempt_gets_one_job() {
    let mut stage = Stage::leased();
    let mut done = stage.a_done(1, HELD);
    done.add[0].attempt = 2;
    names(&stage.commit(done), I2, "out of order");
}

#[test]
fn nothing_is_taken_before_it_is_due() {
    let mut stage = Stage::new();
    let mut start = stage.start("r1");
    start.add[0].due = stage.now + TTL;
    start.events[0] = event(EventType::FlowStart, json!({"input": 1, "startAt": "2100-01-01T00:00:00Z"}));
    start.index.status = Status::Waiting;
    assert_eq!(stage.commit(start), []);
    let early = stage.now;
    stage.now = stage.now + TTL;
    let (claim, claimed) = stage.claim(7);
    assert_eq!(stage.watch.clone().claimed(stage.now, &claim, &claimed), []);
    only(&stage.watch.claimed(early, &claim, &claimed), I10);
}

#[test]
fn a_paused_queue_hands_out_nothing() {
    let mut stage = Stage::new();
    let start = stage.start("r1");
    assert_eq!(stage.commit(start), []);
    stage.watch.queue_paused(&Tenant::default(), "default", true);
    let (claim, claimed) = stage.claim(7);
    only(&stage.watch.claimed(stage.now, &claim, &claimed), I17);
    let mut stage = Stage::new();
    stage.watch.queue_paused(&Tenant::default(), "default", true);
    let mut start = stage.start("r1");
    start.add[0].handoff = Some(Handoff { token: HELD, ttl: TTL, worker: "w".into() });
    only(&stage.commit(start), I17);
}

#[test]
fn a_claim_gets_what_it_asked_for() {
    let mut stage = Stage::new();
    let start = stage.start("r1");
    assert_eq!(stage.commit(start), []);
    let (claim, claimed) = stage.claim(7);
    let foreign = Claim { tenant: Some(Tenant::new("other").unwrap()), ..claim.clone() };
    only(&stage.watch.clone().claimed(stage.now, &foreign, &claimed), I14);
    let full = Claim { free_elsewhere: 0, ..claim.clone() };
    only(&stage.watch.clone().claimed(stage.now, &full, &claimed), I17);
    assert_eq!(stage.watch.claimed(stage.now, &claim, &claimed), []);
    only(&stage.watch.claimed(stage.now, &claim, &claimed), I7);
}

#[test]
fn a_step_that_is_over_is_not_leased_and_does_not_begin() {
    let mut stage = Stage::leased();
    let (claim, claimed) = {
        let mut other = Stage::new();
        let start = other.start("r1");
        other.commit(start);
        other.claim(9)
    };
    assert_eq!(stage.watch.began("w", &run("r1"), 0, 1), []);
    let done = stage.a_done(1, HELD);
    assert_eq!(stage.commit(done), []);
    names(&stage.watch.claimed(stage.now, &claim, &claimed), I16, "which is over");
    only(&stage.watch.began("w", &run("r1"), 0, 1), I16);
}

#[test]
fn a_log_does_not_change_and_a_run_does_not_vanish() {
    let mut stage = Stage::leased();
    let mut other = Stage::leased();
    let mut changed = other.a_done(1, HELD);
    changed.events[2] = of(EventType::StepCompleted, "a", 1, json!({"result": 2}));
    other.commit(changed);
    let done = stage.a_done(1, HELD);
    assert_eq!(stage.commit(done), []);
    only(&stage.watch.end(&other.memory), I4);
    only(&stage.watch.end(&Memory::new()), I3);
    let extra = stage.start("r2");
    stage.memory.commit(stage.now, vec![extra]);
    only(&stage.watch.end(&stage.memory), I3);
}

#[test]
fn retention_takes_only_what_is_old() {
    let mut stage = Stage::leased();
    let policy = Retention { events: TTL, runs: TTL * 2 };
    assert_eq!(stage.watch.retained(&stage.memory, stage.now, policy), []);
    only(&stage.watch.clone().retained(&Memory::new(), stage.now, policy), I3);
    let cancel = stage.cancelled(1, 0);
    assert_eq!(stage.commit(cancel), []);
    stage.now = stage.now + TTL;
    assert_eq!(stage.memory.retain(stage.now, policy, 10).trimmed, 1);
    assert_eq!(stage.watch.clone().retained(&stage.memory, stage.now, policy), []);
    let strict = Retention { events: TTL * 2, ..policy };
    only(&stage.watch.retained(&stage.memory, stage.now, strict), I4);
}

#[test]
fn what_is_due_gets_on() {
    let mut stage = Stage::new();
    let start = stage.start("r1");
    stage.commit(start);
    let bound = Duration::from_secs(2);
    let later = stage.now + bound + Duration::from_millis(1);
    assert_eq!(stage.watch.progress(stage.now + bound, stage.now, bound), []);
    only(&stage.watch.progress(later, stage.now, bound), I11);
    assert_eq!(stage.watch.progress(later, later, bound), []);
    let mut stage = Stage::leased();
    let later = stage.now + TTL + bound + Duration::from_millis(1);
    only(&stage.watch.progress(later, stage.now, bound), I11);
    stage.watch.released(stage.now, &[Extend { run: run("r1"), key: JobKey::Step(0), token: HELD }]);
    only(&stage.watch.progress(stage.now + bound * 2, stage.now, bound), I11);
}

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
