//! Key-value state: written with the line that records it, under the same lease.

use std::time::Duration;

use flowline_core::{Json, RunKey, Tenant};

use super::{Fixture, given};
use crate::row::Retention;
use crate::{
    Append, Base, Commit, LeasedJob, NewRun, StateEdit, StateOwner, StatePage, StateQuery, StateScope,
    StateSpace, StoreError, Token,
};

fn value(text: &str) -> Json {
    given::json(text.into())
}

const SCOPES: [&str; 5] = ["run", "flow", "tenant", "order", "orders"];

async fn set(f: &Fixture, job: &LeasedJob, from: u32, scope: impl Into<StateScope>, key: &str, text: &str) {
    let line = given::state_line(scope.into(), key, Some(value(text)), None);
    f.append(given::append(job, from, vec![line])).await.expect("appends");
}

/// Whose state a scope means, seen from a run. One that is gone was of the usual flow.
async fn space(f: &Fixture, run: &RunKey, scope: &StateScope) -> StateSpace {
    let row = f.try_row(run).await;
    let owner = scope.of(&run.run, &row.map_or_else(|| given::FLOW.into(), |row| row.flow_name));
    StateSpace::new(&run.tenant, owner)
}

async fn get(f: &Fixture, run: &RunKey, scope: impl Into<StateScope>, key: &str) -> Option<Json> {
    let space = space(f, run, &scope.into()).await;
    let found = f.store.state(&space, key).await.expect("the store reads state");
    found.map(|found| {
        assert_eq!(found.key, key);
        found.value
    })
}

pub(super) async fn all(f: &Fixture, run: &RunKey, scope: &StateScope) -> Vec<(String, Json)> {
    let page = f.store.states(&space(f, run, scope).await, StateQuery::first(1_000)).await;
    let StatePage { values, more } = page.expect("the store lists state");
    assert!(!more);
    values.into_iter().map(|value| (value.key, value.value)).collect()
}

/// A change from outside of any run, in the usual tenant.
async fn change(f: &Fixture, owner: &StateOwner, key: &str, text: Option<&str>, ttl: Option<Duration>) {
    let space = StateSpace::new(&Tenant::default(), owner.clone());
    let changed = f.store.change_state(&space, StateEdit::new(key, text.map(value), ttl)).await;
    changed.expect("the store changes state");
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
    assert_eq!(all(&f, &run, &StateScope::Run).await, expected);
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
    for (n, scope) in SCOPES.into_iter().enumerate() {
        set(&f, &job, n as u32, scope, "k", scope).await;
    }
    let same_flow = another(&f, "s", given::FLOW).await.run;
    let other_flow = another(&f, "t", "other-flow").await.run;
    for (from, absent) in [(&run, &[][..]), (&same_flow, &["run"]), (&other_flow, &["run", "flow"])] {
        for scope in SCOPES {
            let expected = (!absent.contains(&scope)).then(|| value(scope));
            assert_eq!(get(&f, from, scope, "k").await, expected, "{scope} from {from}");
            let listed = all(&f, from, &scope.into()).await;
            assert_eq!(listed, Vec::from_iter(expected.map(|value| ("k".to_owned(), value))));
        }
    }
}

pub async fn tenants_do_not_see_each_others_state(f: Fixture) {
    let (_, job) = f.leased("r").await;
    for (n, scope) in SCOPES.into_iter().enumerate() {
        set(&f, &job, n as u32, scope, "k", "secret").await;
    }
    let there = given::run_of(&given::tenant("other"), "r");
    f.define(&there).await;
    f.commit(given::start(&there)).await;
    for scope in SCOPES {
        assert_eq!(get(&f, &there, scope, "k").await, None);
        assert_eq!(all(&f, &there, &scope.into()).await, []);
    }
    assert_eq!(f.store.scopes(&there.tenant).await.expect("lists"), []);
}

pub async fn named_scopes_are_listed_while_they_hold_a_value(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = |scope: &str, ttl| given::state_line(scope.into(), "k/k", Some(value("v")), ttl);
    let lines = vec![line("orders", None), line("b", Some(given::SHORT)), line("order", None)];
    f.append(given::append(&job, 0, lines)).await.expect("appends");
    change(&f, &StateOwner::Named("stock".into()), "k", Some("v"), None).await;
    f.pass(given::LATER).await;
    let listed = async || f.store.scopes(&run.tenant).await.expect("lists");
    assert_eq!(listed().await, ["order", "orders", "stock"].map(Into::into));
    change(&f, &StateOwner::Named("orders".into()), "k/k", None, None).await;
    assert_eq!(listed().await, ["order", "stock"].map(Into::into));
}

pub async fn values_are_listed_page_by_page(f: Fixture) {
    let tenant = Tenant::default();
    for owner in [StateOwner::Tenant, StateOwner::Named("orders".into())] {
        for n in 0..25 {
            let ttl = (n % 5 == 0).then_some(given::SHORT);
            change(&f, &owner, &format!("k{n:02}"), Some("v"), ttl).await;
        }
        // Neighbours of its name, before and after.
        change(&f, &StateOwner::Named("order".into()), "k", Some("v"), None).await;
        change(&f, &StateOwner::Named("orders-".into()), "k", Some("v"), None).await;
        change(&f, &owner, "k24", None, None).await;
    }
    f.pass(given::LATER).await;
    for owner in [StateOwner::Tenant, StateOwner::Named("orders".into())] {
        let (mut query, mut keys, mut pages) = (StateQuery::first(3), Vec::new(), 0);
        loop {
            let space = StateSpace::new(&tenant, owner.clone());
            let page = f.store.states(&space, query.clone()).await.expect("lists");
            assert!(page.values.len() == 3 || !page.more, "a page that is not the last is full");
            keys.extend(page.values.into_iter().map(|value| value.key));
            pages += 1;
            if !page.more {
                break;
            }
            query.after = keys.last().cloned();
        }
        let expected: Vec<String> = (0..24).filter(|n| n % 5 != 0).map(|n| format!("k{n:02}")).collect();
        assert_eq!((keys, pages), (expected, 7), "{owner}");
    }
}

pub async fn a_change_from_outside_is_seen_by_runs_and_the_other_way_round(f: Fixture) {
    let (run, job) = f.leased("r").await;
    for (n, scope) in SCOPES[1..].iter().enumerate() {
        let owner = space(&f, &run, &(*scope).into()).await.owner;
        change(&f, &owner, "k", Some("from outside"), None).await;
        assert_eq!(get(&f, &run, *scope, "k").await, Some(value("from outside")), "{scope}");
        set(&f, &job, n as u32, *scope, "k", "from the run").await;
        assert_eq!(get(&f, &run, *scope, "k").await, Some(value("from the run")), "{scope}");
        change(&f, &owner, "k", None, None).await;
        assert_eq!(get(&f, &run, *scope, "k").await, None, "{scope}");
    }
}

pub async fn the_last_change_counts_whoever_made_it(f: Fixture) {
    let mut jobs = vec![f.leased("r").await.1];
    for n in 1..6 {
        jobs.push(another(&f, &format!("r{n}"), given::FLOW).await);
    }
    let named = StateOwner::Named("orders".into());
    for round in 0..2 {
        for (n, job) in jobs.iter().enumerate() {
            let text = format!("{round} {n}");
            set(&f, job, round, "orders", "k", &text).await;
            assert_eq!(get(&f, &job.run, "orders", "k").await, Some(value(&text)));
            change(&f, &named, "k", (n % 2 == 0).then_some("outside"), None).await;
            assert_eq!(get(&f, &job.run, "orders", "k").await, (n % 2 == 0).then(|| value("outside")));
        }
    }
}

pub async fn a_change_from_outside_is_gone_when_its_time_is_over(f: Fixture) {
    let (run, _) = f.leased("r").await;
    let named = StateOwner::Named("orders".into());
    change(&f, &named, "short", Some("v"), Some(given::SHORT)).await;
    change(&f, &named, "long", Some("v"), Some(given::TTL)).await;
    f.pass(given::LATER).await;
    assert_eq!(get(&f, &run, "orders", "short").await, None);
    assert_eq!(all(&f, &run, &"orders".into()).await, [("long".to_owned(), value("v"))]);
    f.store.retain(Retention::default(), 10).await.expect("retains");
    assert_eq!(get(&f, &run, "orders", "short").await, None, "nothing older comes back");
    assert_eq!(get(&f, &run, "orders", "long").await, Some(value("v")));
}

pub async fn the_state_of_a_run_is_not_changed_from_outside(f: Fixture) {
    let (run, job) = f.leased("r").await;
    set(&f, &job, 0, "run", "k", "v").await;
    for text in [Some(value("other")), None] {
        let edit = StateEdit::new("k", text, None);
        let refused = f.store.change_state(&StateSpace::of_run(&run), edit).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(get(&f, &run, "run", "k").await, Some(value("v")));
}

pub async fn a_value_is_gone_when_its_time_is_over(f: Fixture) {
    let (run, job) = f.leased("r").await;
    let line = |key: &str, ttl| given::state_line(StateScope::Run, key, Some(value("v")), ttl);
    let lines = vec![line("short", Some(given::SHORT)), line("long", Some(given::TTL)), line("ever", None)];
    f.append(given::append(&job, 0, lines)).await.expect("appends");
    f.pass(given::LATER).await;
    assert_eq!(get(&f, &run, StateScope::Run, "short").await, None);
    let left = [("ever".to_owned(), value("v")), ("long".to_owned(), value("v"))];
    assert_eq!(all(&f, &run, &StateScope::Run).await, left);
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
    for (n, scope) in SCOPES.into_iter().enumerate() {
        set(&f, &job, n as u32, scope, "k", "v").await;
    }
    let other = another(&f, "s", given::FLOW).await;
    set(&f, &other, 0, StateScope::Run, "k", "v").await;
    f.refused(Commit { clear_state: true, ..given::end(&run, 9) }).await;
    assert_eq!(all(&f, &run, &StateScope::Run).await.len(), 1, "a refused commit clears nothing");
    f.commit(Commit { clear_state: true, ..given::end(&run, 1) }).await;
    assert_eq!(all(&f, &run, &StateScope::Run).await, []);
    for scope in &SCOPES[1..] {
        assert_eq!(get(&f, &run, *scope, "k").await, Some(value("v")));
    }
    assert_eq!(get(&f, &other.run, StateScope::Run, "k").await, Some(value("v")));
}

pub async fn a_page_of_values_is_bounded_by_its_bytes(f: Fixture) {
    let space = StateSpace::new(&Tenant::default(), StateOwner::Named("orders".into()));
    for (n, size) in [9, 9, 17, 0, 1].into_iter().enumerate() {
        let value = Some(given::json("x".repeat(size << 20).into()));
        f.set(&space, &n.to_string(), value).await;
    }
    let (mut query, mut pages) = (StateQuery::first(1_000), Vec::new());
    loop {
        let page = f.store.states(&space, query.clone()).await.expect("the store gives a page");
        let keys: Vec<String> = page.values.into_iter().map(|value| value.key).collect();
        query.after = Some(keys.last().expect("a page with something on it").clone());
        pages.push(keys.concat());
        if !page.more {
            break;
        }
    }
    assert_eq!(pages, ["0", "1", "2", "34"]);
}
