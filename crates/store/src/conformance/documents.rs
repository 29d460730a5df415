//! Documents: kept under collection and id, listed by id, gone when their time is over.

use std::time::Duration;

use flowline_core::{Json, limits};

use super::{Fixture, given};
use crate::document::NAME_BYTES;
use crate::row::Retention;
use crate::{Document, DocumentPage, DocumentQuery, NewDocument, Order, Restored, StoreError};

const TOKENS: &str = "tokens";

async fn put(f: &Fixture, id: &str, body: &str) {
    put_for(f, id, body, None).await;
}

async fn put_for(f: &Fixture, id: &str, body: &str, ttl: Option<Duration>) {
    f.put(TOKENS, id, json(body), ttl).await;
}

async fn get(f: &Fixture, collection: &str, id: &str) -> Option<Document> {
    f.store.document(collection, id).await.expect("the store answers")
}

/// What the body under an id says.
async fn said(f: &Fixture, id: &str) -> Option<String> {
    get(f, TOKENS, id).await.and_then(|document| document.body.to().ok())
}

async fn delete(f: &Fixture, id: &str) -> bool {
    f.store.delete_document(TOKENS, id).await.expect("the store answers")
}

async fn page(f: &Fixture, order: Order, after: Option<&str>, limit: usize) -> DocumentPage {
    let query = DocumentQuery { id: None, order, after: after.map(str::to_owned), limit };
    f.store.documents(TOKENS, query).await.expect("the store gives a page")
}

async fn ids(f: &Fixture, order: Order) -> Vec<String> {
    names(&page(f, order, None, 1_000).await)
}

fn names(page: &DocumentPage) -> Vec<String> {
    page.items.iter().map(|document| document.id.clone()).collect()
}

fn json(text: &str) -> Json {
    given::json(text.into())
}

/// Many at once, which single puts would take long for.
async fn fill(f: &Fixture, count: usize, expires: impl Fn(usize) -> Option<flowline_core::Time>) {
    let document = |n| Document { id: format!("d{n:05}"), body: json("x"), expires: expires(n) };
    let documents = (0..count).map(document).collect();
    let parts = vec![Restored::Documents { collection: TOKENS.to_owned(), documents }];
    f.store.restore(parts).await.expect("restores");
}

pub async fn a_document_comes_back_as_it_was_put(f: Fixture) {
    let body = Json::composed(r#"{"b": 1.50,  "a": [null, "\u0000é\u202e"], "b": 2}"#.to_owned());
    f.put(TOKENS, "t1", body.clone(), None).await;
    let expected = Document { id: "t1".into(), body, expires: None };
    assert_eq!(get(&f, TOKENS, "t1").await.as_ref(), Some(&expected), "byte for byte");
    let page = page(&f, Order::Ascending, None, 10).await;
    assert_eq!(page, DocumentPage { items: vec![expected], more: false });
}

pub async fn a_document_that_is_not_there_is_none(f: Fixture) {
    put(&f, "t1", "x").await;
    assert_eq!(get(&f, TOKENS, "t2").await, None);
    assert_eq!(get(&f, "other", "t1").await, None);
    assert!(!delete(&f, "t2").await);
    let query = DocumentQuery::default();
    let nothing = DocumentPage { items: vec![], more: false };
    assert_eq!(f.store.documents("other", query).await.expect("answers"), nothing);
}

pub async fn a_document_put_again_takes_the_place_of_the_one_before(f: Fixture) {
    put(&f, "t1", "first, and longer").await;
    put(&f, "t2", "other").await;
    put(&f, "t1", "second").await;
    assert_eq!(said(&f, "t1").await.as_deref(), Some("second"));
    assert_eq!(said(&f, "t2").await.as_deref(), Some("other"));
    assert_eq!(ids(&f, Order::Ascending).await, ["t1", "t2"]);
}

pub async fn a_deleted_document_is_gone(f: Fixture) {
    put(&f, "t1", "x").await;
    put(&f, "t2", "y").await;
    assert!(delete(&f, "t1").await);
    assert_eq!(get(&f, TOKENS, "t1").await, None);
    assert_eq!(ids(&f, Order::Ascending).await, ["t2"]);
    assert!(!delete(&f, "t1").await, "it is gone already");
    put(&f, "t1", "again").await;
    assert_eq!(said(&f, "t1").await.as_deref(), Some("again"));
    assert_eq!(ids(&f, Order::Ascending).await, ["t1", "t2"]);
}

pub async fn documents_are_listed_by_the_bytes_of_their_ids(f: Fixture) {
    let mut sorted =
        ["a", "A", "Z", "b", "10", "9", "aa", "a b", "a-b", "a_b", "é", "e\u{301}", "\u{1f600}", "z", "\\"];
    for id in sorted {
        put(&f, id, id).await;
    }
    sorted.sort_unstable();
    assert_eq!(ids(&f, Order::Ascending).await, sorted);
    sorted.reverse();
    assert_eq!(ids(&f, Order::Descending).await, sorted);
}

pub async fn pages_of_documents_join_without_gap_or_repeat(f: Fixture) {
    fill(&f, 24, |_| None).await;
    for order in [Order::Ascending, Order::Descending] {
        let all = ids(&f, order).await;
        assert_eq!(all.len(), 24);
        for limit in [1, 5, 8, 23, 24, 25] {
            let (mut seen, mut pages): (Vec<String>, usize) = (Vec::new(), 0);
            loop {
                let page = page(&f, order, seen.last().map(String::as_str), limit).await;
                assert_eq!(
                    page.items.len(),
                    limit.min(24 - seen.len()),
                    "a page is full while there is more"
                );
                seen.extend(names(&page));
                pages += 1;
                if !page.more {
                    break;
                }
            }
            assert_eq!((&seen, pages), (&all, 24usize.div_ceil(limit)));
        }
    }
    assert!(delete(&f, "d00010").await);
    let up = page(&f, Order::Ascending, Some("d00010"), 1).await;
    let down = page(&f, Order::Descending, Some("d00010"), 1).await;
    assert_eq!((names(&up), names(&down)), (vec!["d00011".to_owned()], vec!["d00009".to_owned()]));
}

pub async fn a_page_of_documents_is_bounded(f: Fixture) {
    fill(&f, 1_002, |_| None).await;
    for order in [Order::Ascending, Order::Descending] {
        let most = page(&f, order, None, 5_000).await;
        assert_eq!((most.items.len(), most.more), (1_000, true));
        let rest = page(&f, order, most.items.last().map(|last| last.id.as_str()), 5_000).await;
        assert_eq!((rest.items.len(), rest.more), (2, false));
        assert_eq!(page(&f, order, None, 0).await.items.len(), 1);
    }
}

pub async fn a_document_is_gone_when_its_time_is_over(f: Fixture) {
    let before = f.now().await;
    put_for(&f, "long", "x", Some(given::TTL)).await;
    let end = get(&f, TOKENS, "long").await.and_then(|document| document.expires).expect("it ends");
    assert!(before + given::TTL <= end && end <= f.now().await + given::TTL, "by the store's clock");
    for id in ["a", "b", "z"] {
        put_for(&f, id, "x", Some(given::SHORT)).await;
    }
    put(&f, "always", "x").await;
    put_for(&f, "at-once", "x", Some(Duration::ZERO)).await;
    assert_eq!(get(&f, TOKENS, "at-once").await, None);
    f.pass(given::LATER).await;
    for id in ["a", "b", "z"] {
        assert_eq!(get(&f, TOKENS, id).await, None);
    }
    assert_eq!(ids(&f, Order::Ascending).await, ["always", "long"]);
    assert_eq!(ids(&f, Order::Descending).await, ["long", "always"]);
    assert!(!page(&f, Order::Ascending, Some("always"), 1).await.more, "what is over is not more");
    assert!(!delete(&f, "a").await, "it was gone before");
    put(&f, "b", "again").await;
    assert_eq!(said(&f, "b").await.as_deref(), Some("again"));
}

pub async fn a_document_put_again_lives_by_its_new_time(f: Fixture) {
    put_for(&f, "longer", "x", Some(given::SHORT)).await;
    put_for(&f, "for-good", "x", Some(given::SHORT)).await;
    put(&f, "shorter", "x").await;
    put_for(&f, "longer", "y", Some(given::TTL)).await;
    put(&f, "for-good", "y").await;
    put_for(&f, "shorter", "y", Some(given::SHORT)).await;
    f.pass(given::LATER).await;
    retain(&f).await;
    assert_eq!(ids(&f, Order::Ascending).await, ["for-good", "longer"]);
    assert_eq!(get(&f, TOKENS, "for-good").await.and_then(|document| document.expires), None);
}

pub async fn a_time_to_live_beyond_all_measure_is_kept(f: Fixture) {
    put_for(&f, "t", "x", Some(Duration::MAX)).await;
    let found = get(&f, TOKENS, "t").await.expect("it is there");
    let years = Duration::from_secs(50 * 365 * 86_400);
    assert!(found.expires >= Some(f.now().await + years), "{:?}", found.expires);
    assert_eq!(ids(&f, Order::Ascending).await, ["t"]);
}

pub async fn pages_pass_over_any_number_of_documents_past_their_time(f: Fixture) {
    let now = f.now().await;
    fill(&f, 2_500, |n| (n % 1_200 != 7).then_some(now)).await;
    for order in [Order::Ascending, Order::Descending] {
        let mut expected = vec!["d00007", "d01207", "d02407"];
        if order == Order::Descending {
            expected.reverse();
        }
        assert_eq!(ids(&f, order).await, expected);
        let first = page(&f, order, None, 2).await;
        assert_eq!(
            (names(&first), first.more),
            (expected[..2].iter().map(ToString::to_string).collect(), true)
        );
        let last = page(&f, order, Some(expected[1]), 1).await;
        assert_eq!((names(&last), last.more), (vec![expected[2].to_owned()], false));
    }
}

pub async fn strange_names_are_kept_apart(f: Fixture) {
    let long = "é".repeat(NAME_BYTES / 2);
    let mut strange: Vec<&str> = given::STRANGE.iter().copied().filter(|name| !name.contains('\0')).collect();
    strange
        .extend(["{}", ":", "../", "a:b", "a/b", "a b", "\\0", "\\", "%", "null", "-", "(", "[", "+", &long]);
    for collection in &strange {
        for id in &strange {
            let body = json(&format!("{collection} {id}"));
            f.put(collection, id, body, Some(given::TTL)).await;
        }
    }
    strange.sort_unstable();
    for collection in &strange {
        let query = DocumentQuery { limit: 1_000, ..DocumentQuery::default() };
        let page = f.store.documents(collection, query).await.expect("lists");
        assert_eq!(names(&page), strange);
        for document in page.items {
            assert_eq!(document.body, json(&format!("{collection} {}", document.id)));
            assert_eq!(get(&f, collection, &document.id).await, Some(document));
        }
    }
    let (collection, id) = (strange[0], strange[1]);
    assert!(f.store.delete_document(collection, id).await.expect("answers"));
    assert_eq!(get(&f, collection, id).await, None);
    assert!(get(&f, id, collection).await.is_some());
}

pub async fn a_name_that_no_store_can_keep_is_refused(f: Fixture) {
    let long = "é".repeat(NAME_BYTES / 2) + "x";
    for bad in ["", "nul \0 inside", &long] {
        for (collection, id) in [(TOKENS, bad), (bad, "t1")] {
            let invalid = |error: StoreError| assert!(matches!(error, StoreError::Invalid(_)), "{error:?}");
            let new = NewDocument::new(collection, id, json("x"), None);
            invalid(f.store.put_document(new).await.expect_err("refused"));
            invalid(f.store.document(collection, id).await.expect_err("refused"));
            invalid(f.store.delete_document(collection, id).await.expect_err("refused"));
            let query = DocumentQuery { after: Some(id.to_owned()), ..DocumentQuery::default() };
            invalid(f.store.documents(collection, query).await.expect_err("refused"));
        }
    }
    assert_eq!(f.store.collections().await.expect("tells"), Vec::<String>::new(), "nothing was kept");
}

pub async fn a_body_is_as_large_as_a_payload_and_no_larger(f: Fixture) {
    let body = |bytes: usize| Json::composed(format!("\"{}\"", "x".repeat(bytes - 2)));
    let large = NewDocument::new(TOKENS, "large", body(limits::DOCUMENT_BYTES + 1), None);
    let large = f.store.put_document(large).await;
    let Err(StoreError::Invalid(text)) = large else { panic!("{large:?}") };
    assert!(text.contains("large") && text.contains("1048576"), "{text}");
    assert_eq!(get(&f, TOKENS, "large").await, None);
    for id in ["a", "b", "c"] {
        f.put(TOKENS, id, body(limits::DOCUMENT_BYTES), None).await;
    }
    let page = page(&f, Order::Descending, None, 10).await;
    assert_eq!((names(&page), page.more), (vec!["c".to_owned(), "b".to_owned(), "a".to_owned()], false));
    assert!(page.items.iter().all(|document| document.body == body(limits::DOCUMENT_BYTES)));
}

pub async fn collections_do_not_see_each_other(f: Fixture) {
    for collection in ["audit:a", "audit:b", "audit"] {
        for id in ["1", "2"] {
            f.put(collection, id, json(collection), None).await;
        }
    }
    assert_eq!(f.store.collections().await.expect("tells"), ["audit", "audit:a", "audit:b"]);
    assert!(f.store.delete_document("audit:a", "1").await.expect("answers"));
    for (collection, count) in [("audit:a", 1), ("audit:b", 2), ("audit", 2), ("audit:", 0)] {
        let page = f.store.documents(collection, DocumentQuery::default()).await.expect("lists");
        assert_eq!(page.items.len(), count);
        assert!(page.items.iter().all(|document| document.body == json(collection)));
    }
    assert!(f.store.delete_document("audit:a", "2").await.expect("answers"));
    assert_eq!(f.store.collections().await.expect("tells"), ["audit", "audit:b"]);
}

pub async fn of_racing_puts_of_one_document_one_stays_whole(f: Fixture) {
    let putting = |n: usize| {
        let f = f.clone();
        let body =
            Json::composed(format!("\"{}\"", char::from(b'a' + n as u8).to_string().repeat(1_000 * n)));
        let ttl = n.is_multiple_of(2).then_some(given::TTL);
        let put = body.clone();
        let racing = tokio::spawn(async move { f.put(TOKENS, "t", put, ttl).await });
        (racing, body, ttl)
    };
    let racing: Vec<_> = (1..=16).map(putting).collect();
    let mut sent = Vec::new();
    for (put, body, ttl) in racing {
        put.await.expect("no panic");
        sent.push((body, ttl.is_some()));
    }
    let found = page(&f, Order::Ascending, None, 10).await.items;
    assert_eq!(found.len(), 1);
    assert!(sent.contains(&(found[0].body.clone(), found[0].expires.is_some())), "body and end of one put");
    assert_eq!(get(&f, TOKENS, "t").await.as_ref(), Some(&found[0]));
}

pub async fn a_document_is_created_where_none_is_live(f: Fixture) {
    let create = async |id: &str, body: &str, ttl| {
        let new = NewDocument::new(TOKENS, id, json(body), ttl).if_absent();
        f.store.put_document(new).await.expect("the store answers")
    };
    assert_eq!(create("t", "first", Some(given::SHORT)).await, None);
    let there = create("t", "second", None).await.expect("one is there");
    assert_eq!((there.id.as_str(), &there.body), ("t", &json("first")));
    assert_eq!(there.expires, get(&f, TOKENS, "t").await.and_then(|document| document.expires));
    assert_eq!(said(&f, "t").await.as_deref(), Some("first"), "nothing was written");
    f.pass(given::LATER).await;
    assert_eq!(create("t", "third", None).await, None, "the first one's time is over");
    assert_eq!(said(&f, "t").await.as_deref(), Some("third"));
    assert_eq!(create("t", "fourth", None).await.map(|there| there.body), Some(json("third")));
    assert!(delete(&f, "t").await);
    assert_eq!(create("t", "fifth", None).await, None);
    put(&f, "t", "sixth").await;
    assert_eq!(create("t", "seventh", None).await.map(|there| there.body), Some(json("sixth")));
    assert_eq!(create("u", "other", None).await, None, "another id");
    assert_eq!(ids(&f, Order::Ascending).await, ["t", "u"]);
    let nameless = f.store.put_document(NewDocument::new(TOKENS, "", json("x"), None).if_absent()).await;
    assert!(matches!(nameless, Err(StoreError::Invalid(_))), "{nameless:?}");
}

pub async fn of_racing_creators_of_one_document_one_writes(f: Fixture) {
    for (round, stale) in [("fresh", false), ("stale", true)] {
        if stale {
            put_for(&f, round, "past its time", Some(Duration::ZERO)).await;
        }
        let creating = |n: usize| {
            let (f, body) = (f.clone(), json(&format!("creator {n}")));
            tokio::spawn(async move {
                let new = NewDocument::new(TOKENS, round, body.clone(), None).if_absent();
                let there = f.store.put_document(new).await;
                (body, there.expect("the store answers"))
            })
        };
        let racing: Vec<_> = (0..16).map(creating).collect();
        let (mut written, mut told) = (Vec::new(), Vec::new());
        for creator in racing {
            match creator.await.expect("no panic") {
                (body, None) => written.push(body),
                (_, Some(there)) => told.push(there.body),
            }
        }
        assert_eq!(written.len(), 1, "{round}: one writes");
        assert!(told.iter().all(|body| *body == written[0]), "{round}: and the others see that one");
        assert_eq!(get(&f, TOKENS, round).await.map(|document| document.body), Some(written.remove(0)));
    }
}

pub async fn retention_removes_documents_past_their_time_and_no_other(f: Fixture) {
    let now = f.now().await;
    fill(&f, 2_500, |_| Some(now + given::SHORT)).await;
    put(&f, "always", "x").await;
    put_for(&f, "long", "x", Some(given::TTL)).await;
    put_for(&f, "short", "x", Some(given::SHORT)).await;
    f.pass(given::LATER).await;
    let done = retain(&f).await;
    assert_eq!((done.trimmed, done.removed), (0, 0), "no runs");
    // Where the clock can be turned back, what is only hidden would show again.
    f.turn_back(given::LATER);
    assert_eq!(ids(&f, Order::Ascending).await, ["always", "long"]);
    assert_eq!(get(&f, TOKENS, "short").await, None);
    assert_eq!(f.store.collections().await.expect("tells"), [TOKENS]);
}

async fn retain(f: &Fixture) -> crate::row::Retained {
    f.store.retain(Retention::default(), 10).await.expect("retains")
}
