//! Definitions: known by their hash, latest by being new or by being made so.

use flowline_core::Tenant;

use super::{Fixture, given};
use crate::StoredDefinition;

async fn put(f: &Fixture, definition: StoredDefinition) -> bool {
    f.store.put_definition(definition).await.expect("the definition is stored")
}

fn of(flow: &str, hash: &str) -> StoredDefinition {
    given::definition(&Tenant::default(), flow, hash)
}

async fn latest(f: &Fixture, flow: &str) -> Option<String> {
    let found = f.store.latest(&Tenant::default(), flow).await.expect("the store answers");
    found.map(|definition| definition.hash.to_string())
}

pub async fn a_definition_comes_back_as_it_was_put(f: Fixture) {
    let before = f.now().await;
    let body = format!("{{\"flow\":{}}}", given::json(given::STRANGE.concat().into()));
    let origin = Some(given::STRANGE.concat());
    assert!(put(&f, StoredDefinition { body: body.clone(), origin: origin.clone(), ..of("x", "h1") }).await);
    let found = f.store.definition(&Tenant::default(), "h1").await.expect("answers").expect("is there");
    assert!(found.created_at >= before && found.created_at <= f.now().await, "the store dates it");
    let expected =
        StoredDefinition { body, origin, created_at: found.created_at, latest: true, ..of("x", "h1") };
    assert_eq!(found, expected);
    assert_eq!(f.store.latest(&Tenant::default(), "x").await.expect("answers"), Some(expected));
}

pub async fn a_definition_that_is_not_there_is_none(f: Fixture) {
    put(&f, of("x", "h1")).await;
    assert_eq!(f.store.definition(&Tenant::default(), "h2").await.expect("answers"), None);
    assert_eq!(f.store.definition(&given::tenant("other"), "h1").await.expect("answers"), None);
    assert_eq!(latest(&f, "y").await, None);
    assert_eq!(f.store.latest(&given::tenant("other"), "x").await.expect("answers"), None);
    assert_eq!(f.store.definitions(&given::tenant("other")).await.expect("answers"), []);
}

pub async fn a_new_hash_becomes_the_latest_and_an_old_one_cannot_turn_it_back(f: Fixture) {
    assert!(put(&f, of("x", "h1")).await);
    assert!(put(&f, of("x", "h2")).await);
    assert!(put(&f, of("y", "h3")).await);
    assert_eq!(latest(&f, "x").await.as_deref(), Some("h2"));
    assert!(!put(&f, of("x", "h1")).await, "the hash was known");
    assert_eq!(latest(&f, "x").await.as_deref(), Some("h2"));
    let old = f.store.definition(&Tenant::default(), "h1").await.expect("answers").expect("is there");
    assert!(!old.latest);
    assert_eq!(latest(&f, "y").await.as_deref(), Some("h3"));
}

async fn set(f: &Fixture, flow: &str, hash: Option<&str>) -> bool {
    f.store.set_latest(&Tenant::default(), flow, hash).await.expect("the store answers")
}

pub async fn a_definition_seen_before_can_be_made_the_latest_again(f: Fixture) {
    for hash in ["h1", "h2", "h3"] {
        put(&f, of("x", hash)).await;
    }
    put(&f, of("y", "h4")).await;
    for hash in ["h1", "h2", "h1"] {
        assert!(set(&f, "x", Some(hash)).await);
        assert_eq!(latest(&f, "x").await.as_deref(), Some(hash));
        let listed = f.store.definitions(&Tenant::default()).await.expect("answers");
        let order: Vec<_> = listed.iter().map(|d| (&*d.hash, d.latest)).collect();
        let expected = ["h3", "h2", "h1"].map(|known| (known, known == hash));
        assert_eq!(order, [&expected[..], &[("h4", true)]].concat(), "the list keeps its order");
    }
    put(&f, of("x", "h5")).await;
    assert_eq!(latest(&f, "x").await.as_deref(), Some("h5"));
}

pub async fn a_retired_flow_has_no_latest_until_one_is_made_it(f: Fixture) {
    put(&f, of("x", "h1")).await;
    put(&f, of("x", "h2")).await;
    assert!(set(&f, "x", None).await);
    assert_eq!(latest(&f, "x").await, None);
    assert!(set(&f, "x", None).await, "it can be retired again");
    let listed = f.store.definitions(&Tenant::default()).await.expect("answers");
    assert_eq!(
        listed.iter().map(|d| (&*d.hash, d.latest)).collect::<Vec<_>>(),
        [("h2", false), ("h1", false)]
    );
    assert!(!put(&f, of("x", "h2")).await);
    assert_eq!(latest(&f, "x").await, None, "what is known does not bring it back");
    assert!(set(&f, "x", Some("h1")).await);
    assert_eq!(latest(&f, "x").await.as_deref(), Some("h1"));
    assert!(set(&f, "x", None).await);
    assert!(put(&f, of("x", "h3")).await);
    assert_eq!(latest(&f, "x").await.as_deref(), Some("h3"), "what is new does");
}

pub async fn what_is_not_a_definition_of_the_flow_cannot_be_made_its_latest(f: Fixture) {
    let other = given::tenant("other");
    put(&f, of("x", "h1")).await;
    put(&f, of("y", "h2")).await;
    put(&f, given::definition(&other, "x", "h3")).await;
    for (flow, hash) in
        [("x", Some("h2")), ("x", Some("h3")), ("x", Some("h9")), ("z", Some("h1")), ("z", None)]
    {
        assert!(!set(&f, flow, hash).await, "{flow} {hash:?}");
    }
    assert!(!f.store.set_latest(&given::tenant("third"), "x", None).await.expect("answers"));
    assert_eq!(latest(&f, "x").await.as_deref(), Some("h1"));
    assert!(f.store.set_latest(&other, "x", None).await.expect("answers"));
    assert_eq!(latest(&f, "x").await.as_deref(), Some("h1"));
}

pub async fn the_origin_is_replaced_on_every_call_and_nothing_else(f: Fixture) {
    put(&f, StoredDefinition { origin: Some("/a".into()), ..of("x", "h1") }).await;
    let before = f.store.definition(&Tenant::default(), "h1").await.expect("answers").expect("is there");
    f.pass(given::SHORT).await;
    for origin in [Some("/b".to_owned()), None] {
        let again = StoredDefinition { origin: origin.clone(), ..of("x", "h1") };
        assert!(!put(&f, again).await);
        let found = f.store.definition(&Tenant::default(), "h1").await.expect("answers");
        assert_eq!(found, Some(StoredDefinition { origin, ..before.clone() }));
    }
}

pub async fn one_hash_in_two_tenants_is_two_definitions(f: Fixture) {
    let other = given::tenant("other");
    assert!(put(&f, of("x", "h1")).await);
    assert!(
        put(&f, StoredDefinition { origin: Some("/there".into()), ..given::definition(&other, "x", "h1") })
            .await
    );
    let here = f.store.definition(&Tenant::default(), "h1").await.expect("answers").expect("is there");
    assert_eq!(here.origin, None);
    assert_eq!(f.store.definitions(&other).await.expect("answers").len(), 1);
}

pub async fn definitions_are_listed_by_flow_and_newest_first(f: Fixture) {
    for (flow, hash) in [("b", "h1"), ("a", "h9"), ("b", "h0"), ("c", "h5"), ("a", "h2"), ("b", "h7")] {
        put(&f, of(flow, hash)).await;
    }
    put(&f, of("b", "h1")).await;
    let listed = f.store.definitions(&Tenant::default()).await.expect("answers");
    let shown: Vec<_> = listed.iter().map(|d| (&*d.flow, &*d.hash, d.latest)).collect();
    let expected = [
        ("a", "h2", true),
        ("a", "h9", false),
        ("b", "h7", true),
        ("b", "h0", false),
        ("b", "h1", false),
        ("c", "h5", true),
    ];
    assert_eq!(shown, expected);
}
