//! Leases: who holds the token may write, nobody else, and expiry is decided in the commit.

use flowline_core::{EventType, Time};

use super::{Fixture, given};
use crate::row::Pause;
use crate::{
    Append, AppendError, Claim, Commit, CommitError, ExpiredLease, Extend, Extended, Gone, JobKey, JobState,
    LeaseUse, LeasedJob, NewJob, Others, Token,
};

const STALE: CommitError = CommitError::StaleLease(JobKey::Step(0));

pub async fn finish_takes_the_job_away(f: Fixture) {
    let (run, job) = f.leased("r").await;
    f.commit(Commit { leases: vec![given::finish(&job)], ..given::next(&run, 1) }).await;
    assert_eq!(f.jobs(&run).await, []);
    let again = Commit { leases: vec![given::finish(&job)], ..given::next(&run, 2) };
    assert_eq!(f.refused(again).await, STALE);
}

pub async fn a_wrong_token_commits_nothing(f: Fixture) {
    let (run, job) = f.leased_for("r", given::SHORT).await;
    f.pass(given::LATER).await;
    let (key, attempt) = (job.key, job.attempt);
    for token in [Token(0), Token(2), Token(u128::MAX), Token(1 << 64 | 1), Token(1 << 127 | 1)] {
        for lease in [
            LeaseUse::Finish { key, attempt, token },
            LeaseUse::Whole { key, attempt, token },
            LeaseUse::Keep { key, attempt, token, lines: 1 },
            LeaseUse::Expired { key, attempt, token, lines: 0 },
        ] {
            let leases = vec![lease];
            let commit = Commit { leases, events: given::log_events(1), ..given::next(&run, 1) };
            assert_eq!(f.refused(commit).await, STALE);
        }
    }
}

pub async fn a_wrong_attempt_commits_nothing(f: Fixture) {
    let (run, job) = f.leased_for("r", given::SHORT).await;
    f.pass(given::LATER).await;
    let (key, token, attempt) = (job.key, job.token, 2);
    for lease in [
        LeaseUse::Finish { key, attempt, token },
        LeaseUse::Whole { key, attempt, token },
        LeaseUse::Keep { key, attempt, token, lines: 1 },
        LeaseUse::Expired { key, attempt, token, lines: 0 },
    ] {
        assert_eq!(f.refused(Commit { leases: vec![lease], ..given::next(&run, 1) }).await, STALE);
    }
}

pub async fn tokens_are_compared_in_all_their_bits(f: Fixture) {
    let run = f.started("r", vec![given::step(0)]).await;
    let token = Token(0xfedc_ba98_7654_3210_8000_0000_0000_0001);
    let claim = Claim { tokens: vec![token], ..given::claim(&[]) };
    let job = f.claim(claim).await.jobs.remove(0);
    assert_eq!(job.token, token);
    f.commit(Commit { leases: vec![given::finish(&job)], ..given::next(&run, 1) }).await;
}

pub async fn an_unleased_job_cannot_be_finished(f: Fixture) {
    let run = f.started("r", vec![given::step(0)]).await;
    let lease = LeaseUse::Finish { key: JobKey::Step(0), attempt: 1, token: Token(0) };
    assert_eq!(f.refused(Commit { leases: vec![lease], ..given::next(&run, 1) }).await, STALE);
}

pub async fn one_stale_lease_among_good_ones_refuses_the_commit(f: Fixture) {
    let run = f.started("r", vec![given::step(0), given::step(1)]).await;
    let jobs = f.claim(given::claim(&[1, 2])).await.jobs;
    let stale = LeaseUse::Finish { key: JobKey::Step(1), attempt: 1, token: Token(9) };
    let commit = Commit { leases: vec![given::finish(&jobs[0]), stale], ..given::next(&run, 1) };
    assert_eq!(f.refused(commit).await, CommitError::StaleLease(JobKey::Step(1)));
}

pub async fn the_whole_of_an_attempt_is_committed_only_if_no_line_of_it_is_in_the_log(f: Fixture) {
    let line = || given::line(EventType::StepStarted);
    let (run, job) = f.leased("r").await;
    let whole =
        |job: &LeasedJob| vec![LeaseUse::Whole { key: job.key, attempt: job.attempt, token: job.token }];
    assert_eq!(f.append(given::append(&job, 0, vec![line()])).await, Ok(1));
    let commit = Commit { leases: whole(&job), events: vec![line().event], ..given::next(&run, 1) };
    assert_eq!(f.refused(commit).await, STALE);
    f.commit(Commit { leases: vec![given::finish(&job)], ..given::next(&run, 1) }).await;

    let (run, job) = f.leased("silent").await;
    f.commit(Commit { leases: whole(&job), events: vec![line().event], ..given::next(&run, 1) }).await;
    assert_eq!(f.jobs(&run).await, []);
    let again = Commit { leases: whole(&job), ..given::next(&run, 2) };
    assert_eq!(f.refused(again).await, STALE);
}

pub async fn a_lease_is_given_up_only_with_the_lines_that_are_in_the_log(f: Fixture) {
    let (run, job) = f.leased_for("r", given::SHORT).await;
    let line = given::line(flowline_core::EventType::StepStarted);
    assert_eq!(f.append(given::append(&job, 0, vec![line])).await, Ok(1));
    f.pass(given::LATER).await;
    // Whoever looked before the line was there would write it again.
    let lost = |lines| Commit { leases: vec![given::expired(&job, lines)], ..given::next(&run, 1) };
    assert_eq!(f.refused(lost(0)).await, STALE);
    assert_eq!(f.refused(lost(2)).await, STALE);
    f.commit(lost(1)).await;
    assert_eq!(f.jobs(&run).await, []);
}

pub async fn expired_lease_cannot_complete_job(f: Fixture) {
    let (run, job) = f.leased_for("r", given::SHORT).await;
    f.pass(given::LATER).await;
    f.give_up(&job).await;
    let late = || Commit { leases: vec![given::finish(&job)], ..given::next(&run, 2) };
    assert_eq!(f.refused(late()).await, STALE);
    let again = f.claim(given::claim(&[2])).await.jobs;
    assert_eq!((again[0].attempt, again[0].token), (2, Token(2)));
    assert_eq!(f.refused(late()).await, STALE);
    let keep = Commit { leases: vec![given::keep(&job, 1)], ..given::next(&run, 2) };
    assert_eq!(f.refused(keep).await, STALE);
    f.commit(Commit { leases: vec![given::finish(&again[0])], ..given::next(&run, 2) }).await;
}

pub async fn a_lease_that_ran_out_completes_until_it_is_given_up(f: Fixture) {
    let (run, job) = f.leased_for("r", given::SHORT).await;
    f.pass(given::LATER).await;
    f.commit(Commit { leases: vec![given::finish(&job)], ..given::next(&run, 1) }).await;
    let late = Commit { leases: vec![given::expired(&job, 0)], ..given::next(&run, 2) };
    assert_eq!(f.refused(late).await, STALE);
}

pub async fn a_lease_that_has_not_run_out_cannot_be_given_up(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let early = Commit { leases: vec![given::expired(&job, 0)], ..given::next(&run, 1) };
    assert_eq!(f.refused(early).await, STALE);
}

pub async fn keep_leaves_the_lease_and_counts_its_lines(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let events = given::log_events(3);
    let leases = vec![given::keep(&job, 3)];
    f.commit(Commit { leases, events, ..given::next(&run, 1) }).await;
    let rows = f.jobs(&run).await;
    assert_eq!((rows[0].state, rows[0].lines), (JobState::Leased, 3));
    let appended = f.append(given::append(&job, 3, vec![given::log_line("fourth")])).await;
    assert_eq!(appended, Ok(4));
    f.commit(Commit { leases: vec![given::finish(&job)], ..given::next(&run, 2) }).await;
}

pub async fn due_takes_a_timer_that_is_due_and_no_other(f: Fixture) {
    let now = f.now().await;
    let (soon, far) = (now + given::SHORT, Time::from_millis(now.millis() + 3_600_000));
    let held = NewJob { held: true, ..given::timer(2, now) };
    let run = f.started("r", vec![given::timer(0, soon), given::timer(1, far), held]).await;
    let due = |n: u32, attempt: u32| Commit {
        leases: vec![LeaseUse::Due { key: JobKey::Timer(n), attempt }],
        ..given::next(&run, 1)
    };
    f.pass(given::LATER).await;
    for (commit, n) in [(due(1, 1), 1), (due(2, 1), 2), (due(3, 1), 3), (due(0, 2), 0)] {
        assert_eq!(f.refused(commit).await, CommitError::StaleLease(JobKey::Timer(n)));
    }
    f.commit(due(0, 1)).await;
    let keys: Vec<_> = f.jobs(&run).await.into_iter().map(|job| job.key).collect();
    assert_eq!(keys, [JobKey::Timer(1), JobKey::Timer(2)]);
}

pub async fn a_timer_fires_once(f: Fixture) {
    let now = f.now().await;
    let run = f.started("r", vec![given::timer(0, now)]).await;
    let fire = |version| Commit {
        leases: vec![LeaseUse::Due { key: JobKey::Timer(0), attempt: 1 }],
        ..given::next(&run, version)
    };
    f.commit(fire(1)).await;
    assert_eq!(f.refused(fire(2)).await, CommitError::StaleLease(JobKey::Timer(0)));
}

pub async fn due_does_not_take_a_leased_job(f: Fixture) {
    let (run, _) = f.leased("r").await;
    let due = LeaseUse::Due { key: JobKey::Step(0), attempt: 1 };
    assert_eq!(f.refused(Commit { leases: vec![due], ..given::next(&run, 1) }).await, STALE);
}

pub async fn unleased_takes_what_waits_or_is_held_and_nothing_leased(f: Fixture) {
    let far = Time::from_millis(f.now().await.millis() + 3_600_000);
    let jobs = vec![
        given::step(0),
        NewJob { held: true, ..given::step(1) },
        NewJob { due: far, ..given::step(2) },
        given::timer(0, far),
    ];
    let run = f.started("r", jobs).await;
    f.claim(given::claim(&[1])).await;
    let unleased = |key, attempt| LeaseUse::Unleased { key, attempt };
    let leased = Commit { leases: vec![unleased(JobKey::Step(0), 1)], ..given::next(&run, 1) };
    assert_eq!(f.refused(leased).await, STALE);
    let other = Commit { leases: vec![unleased(JobKey::Step(1), 2)], ..given::next(&run, 1) };
    assert_eq!(f.refused(other).await, CommitError::StaleLease(JobKey::Step(1)));
    let leases =
        vec![unleased(JobKey::Step(1), 1), unleased(JobKey::Step(2), 1), unleased(JobKey::Timer(0), 1)];
    f.commit(Commit { leases, ..given::next(&run, 1) }).await;
    let keys: Vec<_> = f.jobs(&run).await.into_iter().map(|job| job.key).collect();
    assert_eq!(keys, [JobKey::Step(0)]);
}

pub async fn extend_moves_the_expiry(f: Fixture) {
    let (run, job) = f.leased_for("r", given::SHORT).await;
    let held = f.store.extend(vec![given::hold(&job)], given::TTL).await.expect("extends");
    assert_eq!(held, [Extended::Held]);
    f.pass(given::LATER).await;
    assert_eq!(f.store.sweep(10).await.expect("sweeps").expired, []);
    let early = Commit { leases: vec![given::expired(&job, 0)], ..given::next(&run, 1) };
    assert_eq!(f.refused(early).await, STALE);
    assert!(f.jobs(&run).await[0].expires > Some(f.now().await));
}

pub async fn a_lease_that_ran_out_can_be_extended_until_it_is_given_up(f: Fixture) {
    let (_, job) = f.leased_for("r", given::SHORT).await;
    f.pass(given::LATER).await;
    let held = f.store.extend(vec![given::hold(&job)], given::SHORT).await.expect("extends");
    assert_eq!(held, [Extended::Held]);
    f.pass(given::LATER).await;
    f.give_up(&job).await;
    let gone = f.store.extend(vec![given::hold(&job)], given::TTL).await.expect("extends");
    assert_eq!(gone, [Extended::Gone(Gone::Lost)]);
}

pub async fn extend_tells_each_lease_apart(f: Fixture) {
    let ended = f.started("ended", vec![given::step(0)]).await;
    let in_ended = f.claim(given::claim(&[9])).await.jobs.remove(0);
    f.commit(given::end(&ended, 1)).await;
    let (run, job) = f.leased("r").await;
    let with = |token| Extend { run: run.clone(), key: JobKey::Step(0), token: Token(token) };
    let missing = Extend { run: run.clone(), key: JobKey::Step(8), token: Token(1) };
    let leases = vec![given::hold(&in_ended), with(7), given::hold(&job), missing];
    let answers = f.store.extend(leases, given::TTL).await.expect("extends");
    let lost = Extended::Gone(Gone::Lost);
    assert_eq!(answers, [Extended::Gone(Gone::RunEnded), lost, Extended::Held, lost]);
}

pub async fn a_released_lease_is_swept_at_once_and_not_as_lost(f: Fixture) {
    let (run, job) = f.leased("r").await;
    f.append(given::append(&job, 0, vec![given::line(EventType::StepStarted)])).await.expect("appends");
    f.store.release(vec![given::hold(&job)]).await.expect("releases");
    let swept = f.store.sweep(10).await.expect("sweeps");
    let expired = ExpiredLease {
        run: run.clone(),
        key: JobKey::Step(0),
        name: "step-0".into(),
        attempt: 1,
        token: Token(1),
        worker: "me".into(),
        lines: 1,
        released: true,
    };
    assert_eq!(swept.expired, [expired]);
    f.give_up(&job).await;
    assert_eq!(f.store.sweep(10).await.expect("sweeps").expired, []);
}

pub async fn a_released_lease_is_not_extended(f: Fixture) {
    let (_, job) = f.leased("r").await;
    f.store.release(vec![given::hold(&job)]).await.expect("releases");
    let answers = f.store.extend(vec![given::hold(&job)], given::TTL).await.expect("extends");
    assert_eq!(answers, [Extended::Gone(Gone::Lost)]);
    assert_eq!(f.store.sweep(10).await.expect("sweeps").expired.len(), 1);
}

pub async fn a_lease_is_released_by_its_token_alone(f: Fixture) {
    let (run, _) = f.leased("r").await;
    let stranger = Extend { run: run.clone(), key: JobKey::Step(0), token: Token(2) };
    let nowhere = Extend { run: given::run("none"), key: JobKey::Step(0), token: Token(1) };
    let before = f.jobs(&run).await;
    f.store.release(vec![stranger, nowhere]).await.expect("releases");
    assert_eq!(f.jobs(&run).await, before);
    assert_eq!(f.store.sweep(10).await.expect("sweeps").expired, []);
}

pub async fn a_granted_handoff_is_a_lease(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let now = f.now().await;
    let job = NewJob { handoff: given::handoff(7), ..given::step(0) };
    let committed = f.commit(Commit { add: vec![job, given::step(1)], ..given::start(&run) }).await;
    assert_eq!(committed.granted, [JobKey::Step(0)]);
    assert_eq!(f.claimed_names(&[8, 9]).await, ["step-1"]);
    let rows = f.jobs(&run).await;
    assert_eq!((rows[0].state, rows[0].worker.as_deref(), rows[0].lines), (JobState::Leased, Some("me"), 0));
    assert!(rows[0].expires >= Some(now + given::TTL) && rows[0].leased_at >= Some(now));
    let finish = LeaseUse::Finish { key: JobKey::Step(0), attempt: 1, token: Token(7) };
    f.commit(Commit { leases: vec![finish], ..given::next(&run, 1) }).await;
}

pub async fn handoff_on_a_paused_queue_is_not_granted(f: Fixture) {
    let run = f.started("r", vec![]).await;
    f.store.pause_queue(&run.tenant, "default", Pause::Paused).await.expect("pauses");
    let open = NewJob { lane: given::lane("open", "command"), handoff: given::handoff(8), ..given::step(1) };
    let add = vec![NewJob { handoff: given::handoff(7), ..given::step(0) }, open];
    let committed = f.commit(Commit { add, ..given::next(&run, 1) }).await;
    assert_eq!(committed.granted, [JobKey::Step(1)]);
    assert_eq!(f.jobs(&run).await[0].state, JobState::Waiting);
    f.store.pause_queue(&run.tenant, "default", Pause::Open).await.expect("opens");
    assert_eq!(f.claimed_names(&[9]).await, ["step-0"]);
}

pub async fn handoff_of_a_held_or_future_job_or_a_timer_is_not_granted(f: Fixture) {
    let now = f.now().await;
    let far = Time::from_millis(now.millis() + 3_600_000);
    let held = NewJob { held: true, handoff: given::handoff(1), ..given::step(0) };
    let future = NewJob { due: far, handoff: given::handoff(2), ..given::step(1) };
    let timer = NewJob { handoff: given::handoff(3), ..given::timer(0, now) };
    let run = given::run("r");
    f.define(&run).await;
    let committed = f.commit(Commit { add: vec![held, future, timer], ..given::start(&run) }).await;
    assert_eq!(committed.granted, []);
    let states: Vec<_> = f.jobs(&run).await.into_iter().map(|job| job.state).collect();
    assert_eq!(states, [JobState::Held, JobState::Waiting, JobState::Waiting]);
}

pub async fn a_lease_by_handoff_runs_out_too(f: Fixture) {
    let short = given::handoff(7).map(|handoff| crate::Handoff { ttl: given::SHORT, ..handoff });
    let run = f.started("r", vec![NewJob { handoff: short, ..given::step(0) }]).await;
    f.pass(given::LATER).await;
    let expired = f.store.sweep(10).await.expect("sweeps").expired;
    let found: Vec<_> = expired.iter().map(|lease| (&lease.run, lease.token, lease.lines)).collect();
    assert_eq!(found, [(&run, Token(7), 0)]);
}

pub async fn sweep_finds_what_ran_out_and_changes_nothing(f: Fixture) {
    f.started("live", vec![given::step(0)]).await;
    f.claim(given::claim(&[2])).await;
    // Last, so that a busy server has its whole time before it is looked for.
    let (run, _) = f.leased_for("r", given::SHORT).await;
    assert_eq!(f.store.sweep(10).await.expect("sweeps").expired, []);
    f.pass(given::LATER).await;
    let before = f.jobs(&run).await;
    let expired = ExpiredLease {
        run: run.clone(),
        key: JobKey::Step(0),
        name: "step-0".into(),
        attempt: 1,
        token: Token(1),
        worker: "me".into(),
        lines: 0,
        released: false,
    };
    for _ in 0..2 {
        assert_eq!(f.store.sweep(10).await.expect("sweeps").expired, std::slice::from_ref(&expired));
    }
    assert_eq!(f.jobs(&run).await, before);
}

pub async fn sweep_finds_due_timers_that_are_not_held(f: Fixture) {
    let now = f.now().await;
    let far = Time::from_millis(now.millis() + 3_600_000);
    let held = NewJob { held: true, ..given::timer(1, now) };
    let due = NewJob { attempt: 3, ..given::timer(0, now) };
    let run = f.started("r", vec![due, held, given::timer(2, far), given::step(0)]).await;
    let swept = f.store.sweep(10).await.expect("sweeps");
    assert_eq!(swept.timers, [crate::DueTimer { run, key: JobKey::Timer(0), attempt: 3, due: now }]);
    assert_eq!(swept.expired, []);
    assert!(swept.now >= now);
}

pub async fn sweep_gives_at_most_its_limit_of_each_the_longest_due_first(f: Fixture) {
    let now = f.now().await.millis();
    let timers = [3, 1, 4, 2].map(|n| given::timer(n, Time::from_millis(now - 10_000 + i64::from(n))));
    let short = |n: u128| given::handoff(n).map(|handoff| crate::Handoff { ttl: given::SHORT, ..handoff });
    let steps = [1, 2, 3].map(|n| NewJob { handoff: short(n.into()), ..given::step(n) });
    f.started("r", timers.into_iter().chain(steps).collect()).await;
    f.pass(given::LATER).await;
    let swept = f.store.sweep(2).await.expect("sweeps");
    let timers: Vec<_> = swept.timers.iter().map(|timer| timer.key).collect();
    assert_eq!(timers, [JobKey::Timer(1), JobKey::Timer(2)]);
    assert_eq!(swept.expired.len(), 2);
    let all = f.store.sweep(100).await.expect("sweeps");
    assert_eq!((all.timers.len(), all.expired.len()), (4, 3));
}

pub async fn sweep_tells_when_something_will_be_due_next(f: Fixture) {
    let next = async || {
        let swept = f.store.sweep(10).await.expect("sweeps");
        (swept.next_timer, swept.next_lease)
    };
    assert_eq!(next().await, (None, None));
    let now = f.now().await;
    let (near, far) =
        (Time::from_millis(now.millis() + 1_000_000), Time::from_millis(now.millis() + 2_000_000));
    let run = f.started("r", vec![given::timer(0, far), given::timer(1, now)]).await;
    assert_eq!(next().await, (Some(far), None));
    let held = NewJob { held: true, ..given::timer(3, Time::from_millis(now.millis() + 500_000)) };
    f.commit(Commit { add: vec![given::timer(2, near), held], ..given::next(&run, 1) }).await;
    assert_eq!(next().await, (Some(near), None));
    f.commit(Commit { add: vec![given::step(0)], ..given::next(&run, 2) }).await;
    let lease = f.claim(given::claim(&[1])).await.jobs.remove(0);
    assert_eq!(next().await, (Some(near), Some(lease.expires)));
}

pub async fn of_two_that_give_up_one_lease_one_lands(f: Fixture) {
    let (run, job) = f.leased_for("r", given::SHORT).await;
    f.pass(given::LATER).await;
    let give_up = |version| Commit { leases: vec![given::expired(&job, 0)], ..given::next(&run, version) };
    f.commit(give_up(1)).await;
    assert_eq!(f.refused(give_up(1)).await, CommitError::Conflict { expected: 1, found: Some(2) });
    assert_eq!(f.refused(give_up(2)).await, STALE);
}

pub async fn a_lease_of_an_ended_run_writes_nothing(f: Fixture) {
    let (run, job) = f.leased("r").await;
    f.commit(Commit { others: Others::Drop, ..given::end(&run, 1) }).await;
    let log = f.log(&run).await;
    let late = given::append(&job, 0, vec![given::log_line("late")]);
    assert_eq!(f.append(late).await, Err(AppendError::StaleLease(JobKey::Step(0))));
    assert_eq!(f.log(&run).await, log);
}

pub async fn a_lease_of_another_tenant_writes_nothing(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let there = given::run_of(&given::tenant("other"), "r");
    f.define(&there).await;
    f.commit(given::start(&there)).await;
    let foreign = Append { run: there.clone(), ..given::append(&job, 0, vec![given::log_line("x")]) };
    assert_eq!(f.append(foreign).await, Err(AppendError::StaleLease(JobKey::Step(0))));
    let commit = Commit { leases: vec![given::finish(&job)], ..given::next(&there, 1) };
    assert_eq!(f.refused(commit).await, STALE);
    assert_eq!((f.log(&there).await.len(), f.jobs(&run).await.len()), (1, 1));
}
