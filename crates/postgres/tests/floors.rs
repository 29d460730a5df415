//! Looks begin where the last one ended, and miss nothing that appears below.

#[allow(dead_code)]
mod place;

use flowline_core::Time;
use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::conformance::{Fixture, given};
use flowline_store::{Commit, JobKey, NewJob, Others};

/// Two instances of one store; the first has looked for work before and found none.
async fn stage() -> (place::Schema, Fixture, Fixture) {
    let (url, schema) = place::fresh();
    let looking = Fixture::waiting(PostgresStore::open(&url, IfMissing::Make).await.expect("opens"));
    let writing = Fixture::waiting(PostgresStore::open(&url, IfMissing::Make).await.expect("opens"));
    // Makes the lane; whatever is due now is found by looking as far back as its time.
    let now = writing.now().await;
    let run = writing.started("first", vec![NewJob { due: now, ..given::step(0) }]).await;
    let job = looking.claim(given::claim(&[1])).await.jobs.remove(0);
    writing.commit(Commit { leases: vec![given::finish(&job)], ..given::next(&run, 1) }).await;
    for _ in 0..2 {
        assert_eq!(looking.claim(given::claim(&[2])).await.jobs, []);
        assert_eq!(looking.store.sweep(10).await.expect("sweeps").timers, []);
    }
    (schema, looking, writing)
}

async fn long_ago(f: &Fixture) -> Time {
    Time::from_millis(f.now().await.millis() - 3_600_000)
}

#[tokio::test]
async fn a_job_that_was_due_long_before_it_was_written_is_claimed_at_once() {
    let (_schema, looking, writing) = stage().await;
    let due = long_ago(&writing).await;
    writing.started("late", vec![NewJob { due, ..given::step(0) }]).await;
    assert_eq!(looking.claim(given::claim(&[3])).await.jobs.len(), 1);
}

#[tokio::test]
async fn jobs_and_timers_that_were_held_for_long_are_found_when_they_are_let_go() {
    let (_schema, looking, writing) = stage().await;
    let due = long_ago(&writing).await;
    let held = |job: NewJob| NewJob { held: true, ..job };
    let jobs = vec![held(NewJob { due, ..given::step(0) }), held(given::timer(0, due))];
    let run = writing.started("held", jobs).await;
    assert_eq!(looking.claim(given::claim(&[3])).await.jobs, []);
    assert_eq!(looking.store.sweep(10).await.expect("sweeps").timers, []);
    writing.commit(Commit { others: Others::Release, ..given::next(&run, 1) }).await;
    assert_eq!(looking.claim(given::claim(&[4])).await.jobs.len(), 1);
    let swept = looking.store.sweep(10).await.expect("sweeps");
    assert_eq!(swept.timers.iter().map(|timer| timer.key).collect::<Vec<_>>(), [JobKey::Timer(0)]);
}
