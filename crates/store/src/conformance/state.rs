//! Key-value state: written with the line that records it, under the same lease.

use flowline_core::{Json, RunKey};

use super::{Fixture, given};
use crate::row::StateScope;
use crate::{Append, Base, Commit, LeasedJob, NewRun, Token};

fn value(text: &str) -> Json {
    given::json(text.into())
}

async fn set(f: &Fixture, job: &LeasedJob, from: u32, scope: StateScope, key: &str, text: &str) {
    let line = given::state_line(scope, key, Some(value(text)), None);
    f.append(given::append(job, from, vec![line])).await.expect("appends");
}

async fn get(f: &Fixture, run: &RunKey, scope: StateScope, key: &str) -> Option<Json> {
    f.store.state(run, scope, key).await.expect("the store reads state")
}

async fn all(f: &Fixture, run: &RunKey, scope: StateScope) -> Vec<(String, Json)> {
    f.store.states(run, scope).await.expect("the store lists state")
}

/// A second run of the same tenant, with its own lease.
async fn another(f: &Fixture, id: &str, flow: &str) -> LeasedJob {
    let run = given::run(id);
    let new = NewRun { flow: flow.into(), ..given::new_run() };
    f.commit(Commit { base: Base::New(new), add: vec![given::step(0)], ..given::start(&run) }).await;
    f.claim(given::claim(&[2])).await.jobs.remove(0)
}

pub async fn a_value_is_set_replaced_and_deleted(f: Fixture) {
    let (run, job) = f.leased("r").await;
    assert_eq!(get(&f, &run, StateScope::Run, "k").await, None);
    set(&f, &job, 0, StateScope::Run, "k", "one").await;
    assert_eq!(get(&f, &run, StateScope::Run, "k").await, Some(value("one")));
    set(&f, &job, 1, StateScope::Run, "k", "two").await;
    assert_eq!(get(&f, &run, StateScope::Run, "k").await, Some(value("two")));
    let delete = given::state_line(StateScope::Run, "k", None, None);
    f.append(given::append(&job, 2, vec![delete])).await.expect("appends");
    assert_eq!(get(&f, &run, StateScope::Run, "k").await, None);
    assert_eq!(f.log(&run).await.len(), 4, "every change is in the log");
}

pub async fn values_are_listed_by_key(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let mut keys: Vec<&str> = given::STRANGE.to_vec();
    keys.extend(["b", "a", "", "B", "é", "10", "9"]);
    for (n, key) in keys.iter().enumerate() {
        set(&f, &job, n as u32, StateScope::Run, key, key).await;
    }
    keys.sort_unstable();
    let expected: Vec<_> = keys.iter().map(|key| (key.to_string(), value(key))).collect();
    assert_eq!(all(&f, &run, StateScope::Run).await, expected);
    for key in keys {
        assert_eq!(get(&f, &run, StateScope::Run, key).await, Some(value(key)));
    }
}

pub async fn changes_of_one_append_apply_in_order(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = |text: Option<&str>| given::state_line(StateScope::Run, "k", text.map(value), None);
    f.append(given::append(&job, 0, vec![line(Some("a")), line(None), line(Some("b"))]))
        .await
        .expect("appends");
    assert_eq!(get(&f, &run, StateScope::Run, "k").await, Some(value("b")));
}

pub async fn scopes_are_apart_and_reach_as_far_as_they_say(f: Fixture) {
    let (run, job) = f.leased("r").await;
    set(&f, &job, 0, StateScope::Run, "k", "of the run").await;
    set(&f, &job, 1, StateScope::Flow, "k", "of the flow").await;
    set(&f, &job, 2, StateScope::Tenant, "k", "of the tenant").await;
    let same_flow = another(&f, "s", given::FLOW).await.run;
    let other_flow = another(&f, "t", "other-flow").await.run;
    for (from, expected) in [
        (&run, [Some("of the run"), Some("of the flow"), Some("of the tenant")]),
        (&same_flow, [None, Some("of the flow"), Some("of the tenant")]),
        (&other_flow, [None, None, Some("of the tenant")]),
    ] {
        for (scope, text) in [StateScope::Run, StateScope::Flow, StateScope::Tenant].into_iter().zip(expected)
        {
            assert_eq!(get(&f, from, scope, "k").await, text.map(value), "{scope:?} from {from}");
            assert_eq!(all(&f, from, scope).await.len(), text.iter().count());
        }
    }
}

pub async fn tenants_do_not_see_each_others_state(f: Fixture) {
    let (_, job) = f.leased("r").await;
    for (n, scope) in [StateScope::Run, StateScope::Flow, StateScope::Tenant].into_iter().enumerate() {
        set(&f, &job, n as u32, scope, "k", "secret").await;
    }
    let there = given::run_of(&given::tenant("other"), "r");
    f.define(&there).await;
    f.commit(given::start(&there)).await;
    for scope in [StateScope::Run, StateScope::Flow, StateScope::Tenant] {
        assert_eq!(get(&f, &there, scope, "k").await, None);
        assert_eq!(all(&f, &there, scope).await, []);
    }
}

pub async fn a_value_is_gone_when_its_time_is_over(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = |key: &str, ttl| given::state_line(StateScope::Run, key, Some(value("v")), ttl);
    let lines = vec![line("short", Some(given::SHORT)), line("long", Some(given::TTL)), line("ever", None)];
    f.append(given::append(&job, 0, lines)).await.expect("appends");
    f.pass(given::LATER).await;
    assert_eq!(get(&f, &run, StateScope::Run, "short").await, None);
    let left = [("ever".to_owned(), value("v")), ("long".to_owned(), value("v"))];
    assert_eq!(all(&f, &run, StateScope::Run).await, left);
    f.append(given::append(&job, 3, vec![line("short", None)])).await.expect("appends");
    assert_eq!(get(&f, &run, StateScope::Run, "short").await, Some(value("v")), "set again");
}

pub async fn a_value_set_again_lives_by_its_new_time(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = |ttl| given::state_line(StateScope::Run, "k", Some(value("v")), ttl);
    f.append(given::append(&job, 0, vec![line(Some(given::SHORT)), line(None)])).await.expect("appends");
    f.pass(given::LATER).await;
    assert_eq!(get(&f, &run, StateScope::Run, "k").await, Some(value("v")));
}

pub async fn a_stale_lease_changes_no_state(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = given::state_line(StateScope::Tenant, "k", Some(value("v")), None);
    let stale = Append { token: Token(2), ..given::append(&job, 0, vec![line]) };
    f.append(stale).await.expect_err("refused");
    assert_eq!(get(&f, &run, StateScope::Tenant, "k").await, None);
}

pub async fn a_line_sent_again_does_not_change_state_again(f: Fixture) {
    let (run, job) = f.leased("r").await;
    set(&f, &job, 0, StateScope::Run, "k", "one").await;
    set(&f, &job, 1, StateScope::Run, "k", "two").await;
    set(&f, &job, 0, StateScope::Run, "k", "one").await;
    assert_eq!(get(&f, &run, StateScope::Run, "k").await, Some(value("two")));
}

pub async fn clear_state_removes_the_runs_own_alone(f: Fixture) {
    let (run, job) = f.leased("r").await;
    for (n, scope) in [StateScope::Run, StateScope::Flow, StateScope::Tenant].into_iter().enumerate() {
        set(&f, &job, n as u32, scope, "k", "v").await;
    }
    let other = another(&f, "s", given::FLOW).await;
    set(&f, &other, 0, StateScope::Run, "k", "v").await;
    f.refused(Commit { clear_state: true, ..given::end(&run, 9) }).await;
    assert_eq!(all(&f, &run, StateScope::Run).await.len(), 1, "a refused commit clears nothing");
    f.commit(Commit { clear_state: true, ..given::end(&run, 1) }).await;
    assert_eq!(all(&f, &run, StateScope::Run).await, []);
    assert_eq!(get(&f, &run, StateScope::Flow, "k").await, Some(value("v")));
    assert_eq!(get(&f, &run, StateScope::Tenant, "k").await, Some(value("v")));
    assert_eq!(get(&f, &other.run, StateScope::Run, "k").await, Some(value("v")));
}
