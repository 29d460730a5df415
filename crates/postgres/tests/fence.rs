//! A stale worker is refused even where it waited for a lock while its job went to another.

#[allow(dead_code)]
mod place;

use std::time::Duration;

use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::conformance::{Fixture, given};
use flowline_store::{Commit, CommitError, JobKey, LeasedJob, NewJob, Token};
use place::Schema;
use tokio_postgres::Client;

struct Stage {
    schema: Schema,
    /// The instance of the stale worker, and another.
    stale: Fixture,
    other: Fixture,
    /// Somebody who holds a lock.
    holder: Client,
    job: LeasedJob,
}

async fn stage() -> Stage {
    let (url, schema) = place::fresh();
    let stale = Fixture::waiting(PostgresStore::open(&url, IfMissing::Make).await.expect("opens"));
    let other = Fixture::waiting(PostgresStore::open(&url, IfMissing::Make).await.expect("opens"));
    let (_, job) = stale.leased_for("r", given::SHORT).await;
    let holder = place::connect(&schema.url).await;
    holder.batch_execute(&format!("set search_path to {}", schema.name)).await.expect("sets");
    Stage { schema, stale, other, holder, job }
}

fn finish(job: &LeasedJob, version: u64) -> Commit {
    let events = given::log_events(1);
    Commit { leases: vec![given::finish(job)], events, ..given::next(&job.run, version) }
}

/// Waits until `count` sessions wait for the holder, or for somebody who does.
async fn wait_for_waiters(stage: &Stage, count: i64) {
    let look = place::connect(&stage.schema.url).await;
    let holder: i32 = stage.holder.query_one("select pg_backend_pid()", &[]).await.expect("answers").get(0);
    let sql =
        "with recursive waiting(pid) as (select $1::int union select a.pid from pg_stat_activity a, waiting w
        where w.pid = any(pg_blocking_pids(a.pid))) select count(*) - 1 from waiting";
    for _ in 0..1_000 {
        let found: i64 = look.query_one(sql, &[&holder]).await.expect("answers").get(0);
        if found >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nobody waits");
}

#[tokio::test]
async fn a_commit_that_waited_for_the_run_sees_that_its_job_was_given_up() {
    let stage = stage().await;
    stage.stale.pass(given::LATER).await;
    stage.holder.batch_execute("begin; select 1 from flow_runs for update").await.expect("locks");

    // The other instance gives the lease up and leases the next attempt to itself; both it and the stale worker wait.
    let again = NewJob { attempt: 2, handoff: given::handoff(2), ..given::step(0) };
    let give_up = Commit {
        leases: vec![given::expired(&stage.job, 0)],
        add: vec![again],
        ..given::next(&stage.job.run, 1)
    };
    let other = stage.other.clone();
    let give_up = tokio::spawn(async move { other.try_commit(give_up).await });
    wait_for_waiters(&stage, 1).await;
    // It even guesses the version that will be there: only its token is stale.
    let (stale, late) = (stage.stale.clone(), finish(&stage.job, 2));
    let late = tokio::spawn(async move { stale.try_commit(late).await });
    wait_for_waiters(&stage, 2).await;
    stage.holder.batch_execute("commit").await.expect("lets go");

    let landed = give_up.await.expect("no panic").expect("lands");
    assert_eq!((landed.version, landed.granted), (2, vec![JobKey::Step(0)]));
    assert_eq!(late.await.expect("no panic"), Err(CommitError::StaleLease(JobKey::Step(0))));
    assert_eq!(stage.other.log(&stage.job.run).await.len(), 1, "not even a log line");
    let next = LeasedJob { attempt: 2, token: Token(2), ..stage.job.clone() };
    stage.other.commit(finish(&next, 2)).await;
}

#[tokio::test]
async fn a_commit_that_waited_for_the_job_sees_its_new_token() {
    let stage = stage().await;
    // Somebody leases the job again by hand, without touching the run: its version tells nothing.
    let relet = format!("begin; update jobs set token = '\\x{:032x}', attempt = 1", 2);
    stage.holder.batch_execute(&relet).await.expect("updates");
    let (stale, late) = (stage.stale.clone(), finish(&stage.job, 1));
    let late = tokio::spawn(async move { stale.try_commit(late).await });
    let (stale, line) = (stage.stale.clone(), given::append(&stage.job, 0, vec![given::log_line("late")]));
    let line = tokio::spawn(async move { stale.append(line).await });
    wait_for_waiters(&stage, 1).await;
    stage.holder.batch_execute("commit").await.expect("lets go");

    assert_eq!(late.await.expect("no panic"), Err(CommitError::StaleLease(JobKey::Step(0))));
    line.await.expect("no panic").expect_err("not even a log line");
    let row = stage.other.row(&stage.job.run).await;
    assert_eq!((row.version, row.events), (1, 1));
}

#[tokio::test]
async fn a_claim_passes_over_what_another_transaction_holds() {
    let stage = stage().await;
    stage.stale.started("second", vec![given::step(0), given::step(1)]).await;
    stage.holder.batch_execute("begin; select 1 from jobs where key = 0 for update").await.expect("locks");
    let claimed = stage.other.claim(given::claim(&[7, 8])).await;
    let names: Vec<_> = claimed.jobs.iter().map(|job| &*job.name).collect();
    assert_eq!(names, ["step-1"]);
    stage.holder.batch_execute("commit").await.expect("lets go");
    assert_eq!(stage.other.claimed_names(&[9]).await, ["step-0"]);
}

#[tokio::test]
async fn an_instance_hears_of_what_another_commits() {
    let stage = stage().await;
    let mut watch = stage.other.store.watch();
    let beyond = Duration::from_secs(5);
    for version in 1..4 {
        watch.borrow_and_update();
        stage.stale.commit(given::next(&stage.job.run, version)).await;
        tokio::time::timeout(beyond, watch.changed()).await.expect("hears").expect("lives");
    }
}

#[tokio::test]
async fn a_late_commit_is_not_skipped_by_the_feed() {
    let stage = stage().await;
    let feed =
        async |cursor: &str| stage.other.store.feed(Default::default(), cursor, 100).await.expect("feeds");
    let start = feed("").await;
    assert_eq!(start.events.len(), 1);
    // A writer that drew a number and has not ended, as a batch does between its events and its commit.
    let hold =
        "begin; select pg_advisory_xact_lock_shared(hashtext('flowline feed'), hashtext(current_schema()));
        insert into events (run, seq, ms, type) select id, 2, ms, 'log' from flow_runs;
        update flow_runs set seq = 2";
    stage.holder.batch_execute(hold).await.expect("writes");
    let second = stage.stale.started("second", vec![]).await;
    let reading = tokio::spawn({
        let (store, cursor) = (stage.other.store.clone(), start.cursor.clone());
        async move { store.feed(Default::default(), &cursor, 100).await.expect("feeds") }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!reading.is_finished(), "what is not decided is waited for");
    stage.holder.batch_execute("commit").await.expect("commits");
    let page = reading.await.expect("no panic");
    let read: Vec<_> = page.events.iter().map(|event| (event.run_id.clone(), event.seq)).collect();
    assert_eq!(read, [(stage.job.run.run.clone(), 2), (second.run, 1)]);
}

#[tokio::test]
async fn a_lost_connection_is_replaced() {
    let stage = stage().await;
    let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = $1";
    let name = format!("flowline {}", stage.schema.name);
    let gone: i64 = stage.holder.query_one(cut, &[&name]).await.expect("cuts").get(0);
    assert!(gone > 2, "there was something to cut");
    // A connection whose end has not been noticed yet may cost one call its answer, never its truth.
    for _ in 0..50 {
        if stage.stale.store.load(std::slice::from_ref(&stage.job.run)).await.is_ok() {
            break;
        }
    }
    let _ = stage.stale.store.commit(vec![given::next(&stage.job.run, 1)]).await;
    if stage.stale.row(&stage.job.run).await.version == 1 {
        stage.stale.commit(given::next(&stage.job.run, 1)).await;
    }
    assert_eq!(stage.other.row(&stage.job.run).await.version, 2);
}
