//! A watch beside the in-memory store: what it is told is held against what it saw, call by call.

use std::time::Duration;

use flowline_check::Invariant::*;
use flowline_core::event::EventType;
use flowline_core::{Status, Tenant};
use flowline_store::row::Retention;
use flowline_store::{
    Append, AppendLine, Claim, Commit, Extend, Handoff, JobKey, LeaseUse, Memory, Renewal, Token,
};
use serde_json::json;

use crate::stage::*;

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
    let line = AppendLine { event: of(EventType::StepStarted, "a", 1, json!({})), state: None };
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
    let answers = stage.memory.renew(stage.now, held.clone(), Renewal::Extend(TTL));
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
