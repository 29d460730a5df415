//! A commit to a row that its process knows leaves what one to a row that it has to ask for leaves, and is not taken where
//! another has written since.

#[path = "place/dump.rs"]
mod dump;
#[allow(dead_code)]
#[path = "place/server.rs"]
mod server;

use std::sync::Arc;

use dump::dump;
use flowline_core::definition::Retain;
use flowline_core::event::AttemptOf;
use flowline_core::{EventType, NewEvent, RunKey, Status};
use flowline_redis::{IfMissing, RedisStore};
use flowline_store::conformance::{Fixture, given};
use flowline_store::row::Pause;
use flowline_store::{
    Base, Catalog, Commit, CommitError, Committed, JobKey, LeaseUse, NewJob, RunStore, Token,
};
use server::Server;

async fn open(server: &Server, prefix: &str) -> Arc<RedisStore> {
    let url = format!("{}?prefix={prefix}", server.url());
    RedisStore::open(&url, IfMissing::Make).await.expect("the store opens")
}

/// Calls of the script that commits, each of which looks once for paused queues.
fn calls(server: &Server) -> u32 {
    let said = server.ask(&["INFO", "commandstats"]);
    let line = said.lines().find_map(|line| line.strip_prefix("cmdstat_smembers:calls="));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn handed(step: u32) -> NewJob {
    NewJob { handoff: given::handoff(u128::from(step) + 1), ..given::step(step) }
}

fn finish(step: u32) -> LeaseUse {
    LeaseUse::Finish { key: JobKey::Step(step), attempt: 1, token: Token(u128::from(step) + 1) }
}

fn done(step: u32) -> Vec<NewEvent> {
    let of = Some(AttemptOf { step: format!("step-{step}").into(), attempt: 1 });
    let event = |kind| NewEvent { kind, of: of.clone(), data: None, slot: None };
    vec![event(EventType::StepStarted), event(EventType::StepCompleted)]
}

/// A diamond: 0, then 1 and 2, then 3, with which the run ends.
fn diamond(run: &RunKey) -> Vec<Commit> {
    let after = |step, version, add: &[u32]| Commit {
        leases: vec![finish(step)],
        events: done(step),
        add: add.iter().copied().map(handed).collect(),
        ..given::next(run, version)
    };
    let mut last = after(3, 4, &[]);
    last.events.push(NewEvent::run(EventType::FlowCompleted, None));
    last.index = given::index(Status::Completed);
    vec![
        Commit { add: vec![handed(0)], ..given::start(run) },
        after(0, 1, &[1, 2]),
        after(1, 2, &[]),
        after(2, 3, &[3]),
        last,
    ]
}

async fn land(store: &RedisStore, commit: Commit) -> Committed {
    let mut answers = store.commit(vec![commit]).await.expect("the store answers");
    answers.remove(0).expect("lands")
}

#[tokio::test]
async fn a_commit_to_a_known_row_leaves_what_one_to_a_forgotten_row_leaves() {
    let server = Server::start(&[]);
    let knows = open(&server, "knows").await;
    let (run, kept) = (given::run("r"), given::run("kept"));
    Fixture::waiting(knows.clone()).define(&run).await;
    Fixture::waiting(open(&server, "forgets").await).define(&run).await;
    let mut commits = diamond(&run);
    commits.extend(diamond(&kept));
    if let Base::New(new) = &mut commits[5].base {
        new.retain = Some(Retain::runs(given::TTL));
    }
    let dated = |prefix: &str| {
        let shown = dump(&server, prefix);
        let digits = |part: &str| part.len() == 13 && part.bytes().all(|byte| byte.is_ascii_digit());
        let dated = |part| if digits(part) { "DATE" } else { part };
        let apart = |sign: char| !sign.is_ascii_digit();
        shown
            .split_inclusive(apart)
            .map(|part| {
                let word = part.trim_end_matches(apart);
                format!("{}{}", dated(word), &part[word.len()..])
            })
            .collect::<String>()
    };
    for (n, commit) in commits.into_iter().enumerate() {
        let before = calls(&server);
        let one = land(&knows, commit.clone()).await;
        assert_eq!(calls(&server) - before, 1, "commit {n} takes one call");
        // A process that begins anew knows nothing.
        let forgets = open(&server, "forgets").await;
        let other = land(&forgets, commit).await;
        assert_eq!(
            (one.version, one.first_seq, one.granted),
            (other.version, other.first_seq, other.granted)
        );
        assert_eq!(dated("knows"), dated("forgets"), "after commit {n}");
    }
}

#[tokio::test]
async fn a_row_that_another_has_written_since_is_not_replaced_unseen() {
    let server = Server::start(&[]);
    let (one, other) = (open(&server, "flowline").await, open(&server, "flowline").await);
    let f = Fixture::waiting(one.clone());
    let run = given::run("r");
    f.define(&run).await;
    let mut commits = diamond(&run).into_iter();
    let mut next = || commits.next().expect("there are five");
    land(&one, next()).await;

    // A line of a log changes the row, and not its version.
    let theirs = Fixture::waiting(other.clone());
    let job = f.jobs(&run).await.remove(0);
    assert_eq!(job.key, JobKey::Step(0));
    let append = flowline_store::Append {
        run: run.clone(),
        key: job.key,
        attempt: 1,
        token: Token(1),
        from_line: 0,
        lines: vec![given::log_line("x")],
    };
    theirs.append(append).await.expect("appends");
    let landed = land(&one, next()).await;
    assert_eq!((landed.version, landed.first_seq), (2, 3));

    // A queue that is paused takes no hand-off.
    other.pause_queue(&run.tenant, "default", Pause::Paused).await.expect("pauses");
    land(&one, next()).await;
    let landed = land(&one, next()).await;
    assert_eq!((landed.version, landed.granted), (4, vec![]));
    other.pause_queue(&run.tenant, "default", Pause::Open).await.expect("goes on");

    // A commit of another is a conflict; so is the lease that it took.
    theirs.commit(given::next(&run, 4)).await;
    let refused = f.refused(given::next(&run, 4)).await;
    assert_eq!(refused, CommitError::Conflict { expected: 4, found: Some(5) });
    let stale = Commit { leases: vec![finish(2)], events: done(2), ..given::next(&run, 5) };
    assert_eq!(f.refused(stale).await, CommitError::StaleLease(JobKey::Step(2)));
    let numbers: Vec<u64> = f.log(&run).await.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
}
