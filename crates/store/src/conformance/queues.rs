//! Queues as operators see them.

use flowline_core::{Tenant, Time};

use super::{Fixture, given};
use crate::row::Pause;
use crate::{Commit, NewJob, QueueRow};

async fn queues(f: &Fixture) -> Vec<QueueRow> {
    f.store.queues(&Tenant::default()).await.expect("the store lists queues")
}

fn empty(queue: &str, need: &str) -> QueueRow {
    QueueRow {
        queue: queue.into(),
        need: need.into(),
        ready: 0,
        delayed: 0,
        held: 0,
        leased: 0,
        oldest: None,
        paused: false,
    }
}

pub async fn depths_are_counted_by_lane(f: Fixture) {
    let now = f.now().await.millis();
    let (past, far) = (Time::from_millis(now - 5_000), Time::from_millis(now + 3_600_000));
    let jobs = vec![
        given::step(0),
        NewJob { due: past, ..given::step(1) },
        NewJob { due: Time::from_millis(now - 1_000), ..given::step(2) },
        NewJob { due: far, ..given::step(3) },
        NewJob { held: true, ..given::step(4) },
        NewJob { due: far, lane: given::lane("default", "http"), ..given::step(5) },
        NewJob { lane: given::lane("b", "http"), handoff: given::handoff(9), ..given::step(6) },
        given::timer(0, past),
    ];
    f.started("r", jobs).await;
    f.claim(given::claim(&[1])).await;
    let expected = [
        QueueRow { leased: 1, ..empty("b", "http") },
        QueueRow {
            ready: 2,
            delayed: 1,
            held: 1,
            leased: 1,
            oldest: Some(past),
            ..empty("default", "command")
        },
        QueueRow { delayed: 1, ..empty("default", "http") },
    ];
    assert_eq!(queues(&f).await, expected);
}

pub async fn a_lane_without_jobs_is_not_listed(f: Fixture) {
    let run = f.started("r", vec![given::step(0)]).await;
    assert_eq!(queues(&f).await.len(), 1);
    f.commit(given::end(&run, 1)).await;
    assert_eq!(queues(&f).await, []);
}

pub async fn a_delayed_job_becomes_ready_with_time(f: Fixture) {
    let due = f.now().await + given::SHORT;
    f.started("r", vec![NewJob { due, ..given::step(0) }]).await;
    f.pass(given::LATER).await;
    assert_eq!(queues(&f).await, [QueueRow { ready: 1, oldest: Some(due), ..empty("default", "command") }]);
}

pub async fn a_paused_queue_says_so_in_every_lane(f: Fixture) {
    let http = NewJob { lane: given::lane("default", "http"), ..given::step(1) };
    let other = NewJob { lane: given::lane("other", "http"), ..given::step(2) };
    f.started("r", vec![given::step(0), http, other]).await;
    let paused = |rows: Vec<QueueRow>| rows.into_iter().map(|row| row.paused).collect::<Vec<_>>();
    for _ in 0..2 {
        f.store.pause_queue(&Tenant::default(), "default", Pause::Paused).await.expect("pauses");
        assert_eq!(paused(queues(&f).await), [true, true, false]);
    }
    for _ in 0..2 {
        f.store.pause_queue(&Tenant::default(), "default", Pause::Open).await.expect("opens");
        assert_eq!(paused(queues(&f).await), [false, false, false]);
    }
}

pub async fn a_paused_queue_without_jobs_is_listed(f: Fixture) {
    f.started("r", vec![given::step(0)]).await;
    for queue in ["a", "z"] {
        f.store.pause_queue(&Tenant::default(), queue, Pause::Paused).await.expect("pauses");
    }
    let paused = |queue| QueueRow { paused: true, ..empty(queue, "") };
    let oldest = Some(Time::from_millis(0));
    let jobs = QueueRow { ready: 1, oldest, ..empty("default", "command") };
    assert_eq!(queues(&f).await, [paused("a"), jobs.clone(), paused("z")]);
    for queue in ["a", "z"] {
        f.store.pause_queue(&Tenant::default(), queue, Pause::Open).await.expect("opens");
    }
    assert_eq!(queues(&f).await, [jobs]);
}

pub async fn tenants_do_not_see_each_others_queues(f: Fixture) {
    let there = given::run_of(&given::tenant("other"), "r");
    f.define(&there).await;
    f.commit(Commit { add: vec![given::step(0)], ..given::start(&there) }).await;
    f.store.pause_queue(&there.tenant, "default", Pause::Paused).await.expect("pauses");
    assert_eq!(queues(&f).await, []);
    f.started("r", vec![given::step(0)]).await;
    let oldest = Some(Time::from_millis(0));
    assert_eq!(queues(&f).await, [QueueRow { ready: 1, oldest, ..empty("default", "command") }]);
}

pub async fn a_leased_job_on_a_paused_queue_runs_on(f: Fixture) {
    let (run, job) = f.leased("r").await;
    f.store.pause_queue(&run.tenant, "default", Pause::Paused).await.expect("pauses");
    let held = f.store.extend(vec![given::hold(&job)], given::TTL).await.expect("extends");
    assert_eq!(held, [crate::Extended::Held]);
    f.commit(Commit { leases: vec![given::finish(&job)], ..given::next(&run, 1) }).await;
}
