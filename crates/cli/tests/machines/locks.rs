//! Locks: acquired, released, extended and contended, by name and as the leases of actions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use flowline::core::{Tenant, Time};
use flowline::lock::{LockError, NamedLock};
use flowline::store::{Acquired, LockProof, LockRequest, Renewal, Store, Token};
use serde_json::json;

use crate::kit::wait_for;
use crate::machines::site::{Kind, Site};

const LONG: Duration = Duration::from_secs(60);

fn ask(owner: &str, token: u128, ttl: Duration) -> LockRequest {
    let (tenant, name) = (Tenant::default(), "nightly".to_owned());
    LockRequest { tenant, name, owner: owner.to_owned(), token: Token(token), ttl }
}

async fn extend(store: &dyn Store, token: u128, ttl: Duration) -> Option<Time> {
    let lock = LockProof::new(&Tenant::default(), "nightly", Token(token));
    store.renew_lock(lock, Renewal::Extend(ttl)).await.unwrap()
}

async fn release(store: &dyn Store, token: u128) -> bool {
    let lock = LockProof::new(&Tenant::default(), "nightly", Token(token));
    store.renew_lock(lock, Renewal::Release).await.unwrap().is_some()
}

/// What the test does with a store, by two connections where it takes more than one.
fn with_stores(kind: Kind, test: impl AsyncFnOnce(&dyn Store, &dyn Store)) {
    let site = Site::bare(kind);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let one = site.open().await;
        let other = if kind == Kind::Sqlite { one.clone() } else { site.open().await };
        test(&*one, &*other).await;
    });
}

pub fn a_lock_is_acquired_once(kind: Kind) {
    with_stores(kind, async |one, other| {
        let Acquired::Granted { until, .. } = one.acquire_lock(ask("a", 1, LONG)).await.unwrap() else {
            panic!("it is free")
        };
        let held = other.acquire_lock(ask("b", 2, LONG)).await.unwrap();
        assert_eq!(held, Acquired::Held { owner: "a".to_owned(), until });
        let mine = one.acquire_lock(ask("a", 1, LONG)).await.unwrap();
        assert!(matches!(mine, Acquired::Granted { .. }), "its holder may ask again");
    });
}

pub fn a_lock_is_released_by_its_holder_alone(kind: Kind) {
    with_stores(kind, async |one, other| {
        one.acquire_lock(ask("a", 1, LONG)).await.unwrap();
        assert!(!release(other, 2).await, "not by another");
        assert!(release(one, 1).await);
        assert!(!release(one, 1).await, "once");
        let next = other.acquire_lock(ask("b", 2, LONG)).await.unwrap();
        assert!(matches!(next, Acquired::Granted { .. }), "then it is free");
    });
}

pub fn a_lock_is_extended_by_its_holder_alone(kind: Kind) {
    with_stores(kind, async |one, other| {
        let short = Duration::from_millis(200);
        one.acquire_lock(ask("a", 1, short)).await.unwrap();
        assert_eq!(extend(other, 2, LONG).await, None, "not by another");
        let until = extend(one, 1, LONG).await.unwrap();
        tokio::time::sleep(2 * short).await;
        let held = other.acquire_lock(ask("b", 2, LONG)).await.unwrap();
        assert_eq!(held, Acquired::Held { owner: "a".to_owned(), until }, "it lasts beyond its first time");
        extend(one, 1, short).await;
        tokio::time::sleep(2 * short).await;
        let taken = other.acquire_lock(ask("b", 2, LONG)).await.unwrap();
        assert!(matches!(taken, Acquired::Granted { .. }), "and ends by itself");
        assert_eq!(extend(one, 1, LONG).await, None, "too late");
    });
}

pub fn a_contended_lock_has_one_holder_at_a_time(kind: Kind) {
    with_stores(kind, async |one, other| {
        let (inside, turns) = (AtomicU32::new(0), AtomicU32::new(0));
        let contend = async |store: &dyn Store, token: u128| {
            let owner = token.to_string();
            for _ in 0..5 {
                while !matches!(
                    store.acquire_lock(ask(&owner, token, LONG)).await.unwrap(),
                    Acquired::Granted { .. }
                ) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                tokio::time::sleep(Duration::from_millis(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                turns.fetch_add(1, Ordering::SeqCst);
                assert!(release(store, token).await);
            }
        };
        tokio::join!(contend(one, 1), contend(other, 2), contend(one, 3), contend(other, 4));
        assert_eq!(turns.into_inner(), 20);
    });
}

pub fn a_guard_extends_its_lock_until_it_is_lost_or_released(kind: Kind) {
    let short = Duration::from_secs(1);
    let site = Site::bare(kind);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let one = site.open().await;
        let other = if kind == Kind::Sqlite { one.clone() } else { site.open().await };
        let lock = |store: &Arc<dyn Store>, owner: &str| {
            NamedLock::new(store.clone(), Tenant::default(), "nightly").ttl(short).owner(owner)
        };
        let mine = lock(&one, "a").try_acquire().await.unwrap();
        let until = tokio::time::Instant::now() + 3 * short;
        while tokio::time::Instant::now() < until {
            let held = lock(&other, "b").try_acquire().await.unwrap_err();
            assert!(matches!(&held, LockError::Held { owner, .. } if owner == "a"), "{held}");
            tokio::time::sleep(short / 10).await;
        }
        assert!(mine.is_held());
        // Another waits, and gets it when it is released.
        let waiting = lock(&other, "b");
        let (theirs, released) = tokio::join!(waiting.acquire(), mine.release());
        let theirs = theirs.unwrap();
        assert!(released.unwrap() && theirs.is_held());
        // Taken away behind its back: its holder is told at the next extension.
        assert!(release(&*one, theirs.token().0).await);
        let third = lock(&one, "c").try_acquire().await.unwrap();
        assert!(third.fence() > theirs.fence(), "{} after {}", third.fence(), theirs.fence());
        tokio::time::timeout(LONG, theirs.lost()).await.expect("it is told");
        assert!(!theirs.is_held());
        assert!(!theirs.release().await.unwrap(), "nothing is left to release");
        drop(third);
        lock(&other, "d").acquire_within(LONG).await.expect("a dropped guard gives its lock back");
    });
}

pub fn the_lease_of_an_action_is_extended_while_it_runs(kind: Kind) {
    let site = Site::new(kind, 2);
    site.register(
        "machine: slow\nevents: { go: }\nstates:\n  a: { on: { go: { to: a, actions: [wait] } } }\nactions:\n  wait: { command: [sh, -c, 'while [ ! -e go ]; do sleep 0.02; done'] }\n",
    );
    let run = site.begin("slow");
    let event = site.send(&run, json!({ "name": "go" }));
    let until = || site.receipt(&run, &event)["lockedUntil"].as_str().map(str::to_owned);
    wait_for("its action is leased", || until().is_some());
    let first = until();
    // Both instances look for leases that ran out meanwhile.
    wait_for("its lease is extended", || until() > first);
    let second = until();
    wait_for("its lease is extended again", || until() > second);
    site.here.write("go", "");
    let receipt = site.done(&run, &event);
    assert_eq!(
        (&receipt["status"], &receipt["tries"]),
        (&json!("completed"), &json!(1)),
        "nobody took it away"
    );
    assert_eq!(site.log(&run, "step.started").len(), 1);
}
