//! Named locks: one holder at a time, by token, until its time is over.

use std::time::Duration;

use flowline_core::{Tenant, Time};

use super::{Fixture, given};
use crate::lock::{Acquired, LockRequest, LockRow};
use crate::row::Retention;
use crate::{LockProof, Renewal, Token};

const NAME: &str = "nightly";

fn request(owner: &str, token: u128, ttl: Duration) -> LockRequest {
    LockRequest {
        tenant: Tenant::default(),
        name: NAME.to_owned(),
        owner: owner.to_owned(),
        token: Token(token),
        ttl,
    }
}

async fn acquire(f: &Fixture, request: LockRequest) -> Acquired {
    f.store.acquire_lock(request).await.expect("the store answers")
}

async fn granted(f: &Fixture, request: LockRequest) -> flowline_core::Time {
    match acquire(f, request).await {
        Acquired::Granted { until, .. } => until,
        held => panic!("not granted: {held:?}"),
    }
}

async fn locks(f: &Fixture) -> Vec<LockRow> {
    f.store.locks(&Tenant::default()).await.expect("the store lists locks")
}

async fn release(f: &Fixture, token: u128) -> bool {
    renew(f, "default", NAME, token, Renewal::Release).await.is_some()
}

async fn extend(f: &Fixture, tenant: &str, name: &str, token: u128) -> Option<Time> {
    renew(f, tenant, name, token, Renewal::Extend(given::TTL)).await
}

async fn renew(f: &Fixture, tenant: &str, name: &str, token: u128, renewal: Renewal) -> Option<Time> {
    let lock = LockProof::new(&given::tenant(tenant), name, Token(token));
    f.store.renew_lock(lock, renewal).await.expect("the store answers")
}

pub async fn a_free_lock_is_granted_and_listed(f: Fixture) {
    let before = f.now().await;
    let until = granted(&f, request("a", 1, given::TTL)).await;
    assert!(until >= before + given::TTL && until <= f.now().await + given::TTL);
    let found = locks(&f).await;
    assert!(found[0].since >= before);
    let row = LockRow { name: NAME.into(), owner: "a".into(), since: found[0].since, until };
    assert_eq!(found, [row]);
}

pub async fn a_held_lock_is_refused_and_names_its_holder(f: Fixture) {
    let until = granted(&f, request("a", 1, given::TTL)).await;
    let before = locks(&f).await;
    // Who asks under the holder's name is no holder: the token is.
    for (owner, token) in [("b", 2), ("a", 3), ("a", 1 << 64 | 1)] {
        let answer = acquire(&f, request(owner, token, given::TTL)).await;
        assert_eq!(answer, Acquired::Held { owner: "a".into(), until });
    }
    assert_eq!(locks(&f).await, before);
}

pub async fn a_holder_that_asks_again_is_granted_again(f: Fixture) {
    granted(&f, request("a", 1, given::SHORT)).await;
    let since = locks(&f).await[0].since;
    let until = granted(&f, request("a", 1, given::TTL)).await;
    let found = locks(&f).await;
    assert_eq!((found.len(), found[0].since, found[0].until), (1, since, until));
}

pub async fn every_new_grant_is_later_than_those_before(f: Fixture) {
    let mut last = None;
    // Faster than the clock, under several names, released and run out.
    for n in 1..=50_u128 {
        let name = if n % 3 == 0 { "other" } else { NAME };
        let ttl = if n % 20 == 0 { given::SHORT } else { given::TTL };
        let asked = LockRequest { name: name.into(), ..request("a", n, ttl) };
        let Acquired::Granted { since, .. } = acquire(&f, asked.clone()).await else {
            panic!("{name} is free")
        };
        assert!(Some(since) > last, "{since:?} after {last:?}");
        last = Some(since);
        let Acquired::Granted { since: again, .. } = acquire(&f, asked).await else {
            panic!("{name} is its holder's")
        };
        assert_eq!(again, since, "a repeated request is no new grant");
        let listed = locks(&f).await;
        let row = listed.iter().find(|row| row.name == name).expect("it is listed");
        assert_eq!(row.since, since);
        if n % 20 == 0 {
            f.pass(given::LATER).await;
        } else {
            assert!(renew(&f, "default", name, n, Renewal::Release).await.is_some());
        }
    }
}

pub async fn a_released_lock_is_free_at_once(f: Fixture) {
    granted(&f, request("a", 1, given::TTL)).await;
    assert!(release(&f, 1).await);
    assert_eq!(locks(&f).await, []);
    assert!(!release(&f, 1).await, "once is enough");
    granted(&f, request("b", 2, given::TTL)).await;
}

pub async fn a_lock_is_not_released_by_another(f: Fixture) {
    granted(&f, request("a", 1, given::TTL)).await;
    for token in [0, 2, 1 << 127 | 1] {
        assert!(!release(&f, token).await);
    }
    assert_eq!(renew(&f, "other", NAME, 1, Renewal::Release).await, None);
    assert_eq!(locks(&f).await.len(), 1);
}

pub async fn an_extended_lock_lives_on(f: Fixture) {
    granted(&f, request("a", 1, given::SHORT)).await;
    let now = f.now().await;
    let until = extend(&f, "default", NAME, 1).await;
    assert!(until >= Some(now + given::TTL));
    f.pass(given::LATER).await;
    let answer = acquire(&f, request("b", 2, given::TTL)).await;
    assert_eq!(Some(answer), until.map(|until| Acquired::Held { owner: "a".into(), until }));
}

pub async fn a_lock_is_not_extended_by_another(f: Fixture) {
    let until = granted(&f, request("a", 1, given::TTL)).await;
    for (tenant, name, token) in [("default", NAME, 2), ("other", NAME, 1), ("default", "other", 1)] {
        assert_eq!(extend(&f, tenant, name, token).await, None);
    }
    assert_eq!(locks(&f).await[0].until, until);
}

pub async fn a_lock_whose_time_is_over_is_free(f: Fixture) {
    granted(&f, request("a", 1, given::SHORT)).await;
    f.pass(given::LATER).await;
    assert_eq!(locks(&f).await, []);
    let late = extend(&f, "default", NAME, 1).await;
    assert_eq!(late, None, "its holder may not count on it any more");
    assert!(!release(&f, 1).await);
    granted(&f, request("b", 2, given::TTL)).await;
    assert_eq!(locks(&f).await[0].owner, "b");
    assert!(!release(&f, 1).await, "what it was is not what it is");
    assert_eq!(locks(&f).await.len(), 1);
}

pub async fn of_those_that_race_for_a_lock_one_gets_it(f: Fixture) {
    for round in 0..5 {
        let ask = |n: u128| {
            let f = f.clone();
            tokio::spawn(async move { acquire(&f, request(&n.to_string(), n, given::TTL)).await })
        };
        let racing: Vec<_> = (1..=16).map(|n| ask(round * 100 + n)).collect();
        let mut winners = 0;
        for answer in racing {
            winners += usize::from(matches!(answer.await.expect("no panic"), Acquired::Granted { .. }));
        }
        assert_eq!(winners, 1);
        let owner: u128 = locks(&f).await[0].owner.parse().expect("a number");
        assert!(release(&f, owner).await);
    }
}

pub async fn tenants_and_names_are_apart(f: Fixture) {
    let other = given::tenant("other");
    granted(&f, request("a", 1, given::TTL)).await;
    granted(&f, LockRequest { tenant: other.clone(), ..request("b", 2, given::TTL) }).await;
    let mut names: Vec<String> = given::STRANGE.iter().map(ToString::to_string).collect();
    for name in &names {
        granted(&f, LockRequest { name: name.clone(), ..request(name, 3, given::TTL) }).await;
    }
    names.push(NAME.to_owned());
    names.sort_unstable();
    let found = locks(&f).await;
    assert_eq!(found.iter().map(|lock| lock.name.clone()).collect::<Vec<_>>(), names, "listed by name");
    assert!(found.iter().all(|lock| lock.name == NAME || lock.owner == lock.name));
    let there: Vec<_> = f.store.locks(&other).await.expect("lists").into_iter().map(|l| l.owner).collect();
    assert_eq!(there, ["b"]);
}

pub async fn retention_leaves_held_locks_alone(f: Fixture) {
    granted(&f, request("a", 1, given::TTL)).await;
    let over = LockRequest { name: "over".into(), ..request("b", 2, given::SHORT) };
    granted(&f, over).await;
    f.pass(given::LATER).await;
    f.store.retain(Retention { events: Duration::ZERO, runs: Duration::ZERO }, 10).await.expect("retains");
    assert_eq!(locks(&f).await.len(), 1);
}
