//! Claims: the right job to one caller, in the right order.

use std::sync::Arc;

use flowline_core::Time;
use flowline_core::definition::Priority;

use super::{Fixture, given};
use crate::row::Pause;
use crate::{Claim, Commit, JobKey, LeasedJob, NewJob, Others, Token};

fn named(key: u32, name: &str) -> NewJob {
    NewJob { name: name.into(), ..given::step(key) }
}

pub async fn a_claim_tells_all_of_its_lease(f: Fixture) {
    let before = f.now().await;
    let (run, job) = f.leased("r").await;
    let expected = LeasedJob {
        run: run.clone(),
        key: JobKey::Step(0),
        name: "step-0".into(),
        attempt: 1,
        lane: given::lane("default", "command"),
        due: f.jobs(&run).await.remove(0).due,
        token: Token(1),
        expires: job.expires,
    };
    assert_eq!(job, expected);
    assert!(job.expires >= before + given::TTL && job.expires <= f.now().await + given::TTL);
    let row = f.jobs(&run).await.remove(0);
    assert_eq!((row.expires, row.worker.as_deref(), row.lines), (Some(job.expires), Some("me"), 0));
    assert!(row.leased_at >= Some(before));
    assert_eq!(f.row(&run).await.version, 1, "a claim touches only the job");
}

pub async fn urgent_jobs_go_first_then_those_due_first_then_those_added_first(f: Fixture) {
    let now = f.now().await.millis();
    let job =
        |key, name, priority, ago| NewJob { priority, due: Time::from_millis(now - ago), ..named(key, name) };
    let jobs = vec![
        job(0, "low", Priority::Low, 9_000),
        job(1, "normal-late", Priority::Normal, 10),
        job(2, "normal-early", Priority::Normal, 5_000),
        job(3, "high", Priority::High, 0),
        job(4, "urgent-second", Priority::Urgent, 7),
        job(5, "urgent-third", Priority::Urgent, 7),
        job(6, "urgent-first", Priority::Urgent, 8),
    ];
    f.started("r", jobs).await;
    let tied = job(0, "urgent-fourth", Priority::Urgent, 7);
    f.started("later", vec![tied]).await;
    let order = [
        "urgent-first",
        "urgent-second",
        "urgent-third",
        "urgent-fourth",
        "high",
        "normal-early",
        "normal-late",
        "low",
    ];
    assert_eq!(f.claimed_names(&[1, 2, 3]).await, order[..3]);
    assert_eq!(f.claimed_names(&[4, 5, 6, 7, 8, 9]).await, order[3..]);
}

pub async fn a_job_is_not_claimed_before_it_is_due(f: Fixture) {
    let due = f.now().await + given::SHORT;
    f.started("r", vec![NewJob { due, ..given::step(0) }]).await;
    let early = f.claim(given::claim(&[1])).await;
    if early.now >= due {
        // A store with a clock of its own, on a machine that took long to ask it.
        assert_eq!(early.jobs.len(), 1);
        return;
    }
    assert_eq!((early.jobs, early.next_due), (vec![], Some(due)));
    f.pass(given::LATER).await;
    let claimed = f.claim(given::claim(&[2])).await;
    assert!(claimed.now >= due);
    assert_eq!((claimed.jobs.len(), claimed.next_due), (1, None));
}

pub async fn next_due_looks_at_served_lanes_alone(f: Fixture) {
    let now = f.now().await.millis();
    let at = |seconds: i64| Time::from_millis(now + seconds * 1_000);
    let job = |key, seconds, queue, need| NewJob {
        due: at(seconds),
        lane: given::lane(queue, need),
        ..given::step(key)
    };
    let jobs = vec![
        job(0, 500, "default", "command"),
        job(1, 300, "default", "http"),
        job(2, 200, "paused", "command"),
        job(3, 100, "full", "command"),
        NewJob { held: true, ..job(4, 50, "default", "command") },
        given::timer(0, at(40)),
        NewJob { priority: Priority::Low, ..job(5, 400, "default", "command") },
    ];
    let run = f.started("r", jobs).await;
    f.store.pause_queue(&run.tenant, "paused", Pause::Paused).await.expect("pauses");
    let claimed = f.claim(Claim { free: vec![("full".into(), 0)], ..given::claim(&[1]) }).await;
    assert_eq!((claimed.jobs, claimed.next_due), (vec![], Some(at(400))));
}

pub async fn a_held_job_is_not_claimed(f: Fixture) {
    f.started("r", vec![NewJob { held: true, ..given::step(0) }, given::step(1)]).await;
    assert_eq!(f.claimed_names(&[1, 2]).await, ["step-1"]);
}

pub async fn a_released_hold_keeps_its_place(f: Fixture) {
    let run = f.started("r", vec![NewJob { held: true, ..given::step(0) }]).await;
    f.started("later", vec![named(0, "later")]).await;
    f.commit(Commit { others: Others::Release, ..given::next(&run, 1) }).await;
    assert_eq!(f.claimed_names(&[1, 2]).await, ["step-0", "later"]);
}

pub async fn a_paused_queue_is_passed_over_until_it_is_open(f: Fixture) {
    let other = NewJob { lane: given::lane("other", "command"), ..given::step(1) };
    let run = f.started("r", vec![given::step(0), other]).await;
    f.store.pause_queue(&run.tenant, "default", Pause::Paused).await.expect("pauses");
    assert_eq!(f.claimed_names(&[1, 2]).await, ["step-1"]);
    f.store.pause_queue(&run.tenant, "default", Pause::Open).await.expect("opens");
    assert_eq!(f.claimed_names(&[1, 2]).await, ["step-0"]);
}

pub async fn a_queue_is_paused_for_its_tenant_alone(f: Fixture) {
    let there = given::run_of(&given::tenant("other"), "r");
    f.define(&there).await;
    f.commit(Commit { add: vec![named(0, "there")], ..given::start(&there) }).await;
    f.started("r", vec![named(0, "here")]).await;
    f.store.pause_queue(&given::tenant("default"), "default", Pause::Paused).await.expect("pauses");
    assert_eq!(f.claimed_names(&[1, 2]).await, ["there"]);
}

pub async fn a_timer_is_not_claimed(f: Fixture) {
    let now = f.now().await;
    f.started("r", vec![given::timer(0, now)]).await;
    let claimed = f.claim(given::claim(&[1])).await;
    assert_eq!((claimed.jobs, claimed.next_due), (vec![], None));
}

pub async fn only_what_the_caller_can_run_is_claimed(f: Fixture) {
    let job = |key, need: &str| NewJob {
        name: need.into(),
        lane: given::lane("default", need),
        ..given::step(key)
    };
    f.started("r", vec![job(0, "command"), job(1, "http"), job(2, "function:f"), job(3, "function:g")]).await;
    let needs: Vec<Arc<str>> = vec!["http".into(), "function:g".into(), "function:{}\0".into()];
    let claimed = f.claim(Claim { needs, ..given::claim(&[1, 2, 3, 4]) }).await;
    let mut names: Vec<_> = claimed.jobs.iter().map(|job| &*job.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["function:g", "http"]);
    let nothing = f.claim(Claim { needs: vec![], ..given::claim(&[5]) }).await;
    assert_eq!(nothing.jobs, []);
}

pub async fn a_claim_of_one_tenant_sees_no_other(f: Fixture) {
    for name in ["a", "b", "c"] {
        let run = given::run_of(&given::tenant(name), "r");
        f.define(&run).await;
        f.commit(Commit { add: vec![named(0, name)], ..given::start(&run) }).await;
    }
    let claim = Claim { tenant: Some(given::tenant("b")), ..given::claim(&[1, 2, 3]) };
    let names: Vec<_> = f.claim(claim.clone()).await.jobs.into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["b".into()]);
    assert_eq!(f.claim(claim).await.jobs, []);
    let mut names = f.claimed_names(&[4, 5, 6]).await;
    names.sort_unstable();
    assert_eq!(names, ["a", "c"]);
}

pub async fn a_claim_takes_no_more_than_it_has_tokens(f: Fixture) {
    f.started("r", (0..5).map(given::step).collect()).await;
    assert_eq!(f.claimed_names(&[]).await, Vec::<String>::new());
    let claimed = f.claim(given::claim(&[7, 8])).await;
    let tokens: Vec<_> = claimed.jobs.iter().map(|job| job.token).collect();
    assert_eq!(tokens, [Token(7), Token(8)]);
    assert_eq!(f.claimed_names(&[1, 2, 3, 4, 5]).await.len(), 3);
}

pub async fn a_claim_takes_no_more_of_a_queue_than_is_free(f: Fixture) {
    let job = |key, queue: &str, need: &str| NewJob {
        name: format!("{queue}-{key}").into(),
        lane: given::lane(queue, need),
        ..given::step(key)
    };
    let jobs = vec![
        job(0, "a", "command"),
        job(1, "a", "http"),
        job(2, "a", "command"),
        job(3, "b", "command"),
        job(4, "b", "command"),
        job(5, "c", "command"),
    ];
    f.started("r", jobs).await;
    let claim = Claim {
        needs: vec!["command".into(), "http".into()],
        free: vec![("a".into(), 2), ("c".into(), 0)],
        free_elsewhere: 1,
        ..given::claim(&[1, 2, 3, 4, 5, 6])
    };
    let claimed = f.claim(claim).await;
    let of = |queue: &str| claimed.jobs.iter().filter(|job| &*job.lane.queue == queue).count();
    assert_eq!((of("a"), of("b"), of("c")), (2, 1, 0));
}

pub async fn a_leased_job_is_not_claimed_again_even_after_its_expiry(f: Fixture) {
    let (_, job) = f.leased_for("r", given::SHORT).await;
    assert_eq!(f.claimed_names(&[2]).await, Vec::<String>::new());
    f.pass(given::LATER).await;
    assert_eq!(f.claimed_names(&[3]).await, Vec::<String>::new(), "expiry is an input, not a claim");
    f.give_up(&job).await;
    assert_eq!(f.claimed_names(&[4]).await, ["step-0"]);
}

pub async fn racing_claims_never_share_a_job(f: Fixture) {
    f.started("r", (0..40).map(given::step).collect()).await;
    let claim = |n: u128| {
        let f = f.clone();
        tokio::spawn(async move {
            let tokens: Vec<u128> = (0..5).map(|k| n * 100 + k).collect();
            f.claim(given::claim(&tokens)).await.jobs
        })
    };
    let racing: Vec<_> = (1..=10).map(claim).collect();
    let mut keys = Vec::new();
    for claimed in racing {
        keys.extend(claimed.await.expect("no panic").into_iter().map(|job| job.key));
    }
    keys.sort_unstable();
    assert_eq!(keys, (0..40).map(JobKey::Step).collect::<Vec<_>>());
}

fn lane_jobs(queue: &str, keys: std::ops::Range<u32>) -> impl Iterator<Item = NewJob> {
    let lane = given::lane(queue, "command");
    keys.map(move |key| NewJob { lane: lane.clone(), ..given::step(key) })
}

pub async fn a_claim_rotates_over_lanes(f: Fixture) {
    let jobs = lane_jobs("a", 0..20).chain(lane_jobs("b", 20..22)).chain(lane_jobs("c", 22..24));
    f.started("r", jobs.collect()).await;
    let claimed = f.claim(given::claim(&[1, 2, 3, 4, 5, 6])).await;
    let of = |queue: &str| claimed.jobs.iter().filter(|job| &*job.lane.queue == queue).count();
    assert_eq!((of("a"), of("b"), of("c")), (2, 2, 2));
}

pub async fn claims_of_one_job_each_rotate_over_lanes(f: Fixture) {
    let jobs = lane_jobs("a", 0..20).chain(lane_jobs("b", 20..23)).chain(lane_jobs("c", 23..26));
    f.started("r", jobs.collect()).await;
    let mut queues = Vec::new();
    for token in 1..=9 {
        let claimed = f.claim(given::claim(&[token])).await;
        queues.push(claimed.jobs[0].lane.queue.to_string());
    }
    queues.sort_unstable();
    assert_eq!(queues, ["a", "a", "a", "b", "b", "b", "c", "c", "c"]);
}

pub async fn a_tenant_with_many_jobs_does_not_starve_another(f: Fixture) {
    f.started("r", (0..100).map(given::step).collect()).await;
    let there = given::run_of(&given::tenant("other"), "r");
    f.define(&there).await;
    f.commit(Commit { add: vec![given::step(0)], ..given::start(&there) }).await;
    let mut tenants = Vec::new();
    for token in 1..=2 {
        tenants.push(f.claim(given::claim(&[token])).await.jobs[0].run.tenant.to_string());
    }
    tenants.sort_unstable();
    assert_eq!(tenants, ["default", "other"]);
}

pub async fn a_flood_of_one_tenant_leaves_each_other_tenant_its_turn(f: Fixture) {
    f.define(&given::run("r")).await;
    let flood = (0..100).map(|n| {
        let run = given::run(&format!("r{n:03}"));
        Commit { add: (0..100).map(given::step).collect(), ..given::start(&run) }
    });
    f.store.commit(flood.collect()).await.expect("the store answers");
    // It has been served alone for a while when the others come, whose jobs are younger than all 10,000.
    assert_eq!(f.claim(given::claim(&(1..=50).collect::<Vec<_>>())).await.jobs.len(), 50);
    let quiet = ["quiet", "silent"].map(given::tenant);
    for tenant in &quiet {
        let there = given::run_of(tenant, "r");
        f.define(&there).await;
        f.commit(Commit { add: (0..3).map(given::step).collect(), ..given::start(&there) }).await;
    }
    // One at a time, all that they have is among the next nine: each tenant has every third turn.
    let mut served = Vec::new();
    for token in 101..=109 {
        served.push(f.claim(given::claim(&[token])).await.jobs[0].run.tenant.clone());
    }
    for tenant in &quiet {
        assert_eq!(served.iter().filter(|one| *one == tenant).count(), 3, "{served:?}");
    }
    // Who comes back has not lost its turn, and a claim of many has room for it.
    let there = given::run_of(&quiet[0], "again");
    f.commit(Commit { add: vec![given::step(0)], ..given::start(&there) }).await;
    let many: Vec<u128> = (201..=220).collect();
    let claimed = f.claim(given::claim(&many)).await.jobs;
    assert_eq!(claimed.len(), 20);
    assert_eq!(claimed.iter().filter(|job| job.run.tenant == quiet[0]).count(), 1);
}

pub async fn a_deep_queue_is_claimed_in_order_to_its_end(f: Fixture) {
    f.define(&given::run("r")).await;
    let starts = (0..2_000).map(|n| {
        let run = given::run(&format!("r{n:04}"));
        Commit { add: vec![named(0, &format!("{n:04}"))], ..given::start(&run) }
    });
    f.store.commit(starts.collect()).await.expect("the store answers");
    let mut names = Vec::new();
    for round in 0..21u128 {
        let tokens: Vec<u128> = (0..100).map(|n| round * 1_000 + n + 1).collect();
        names.extend(f.claimed_names(&tokens).await);
    }
    assert_eq!(names, (0..2_000).map(|n| format!("{n:04}")).collect::<Vec<_>>());
}
