//! Documents as the keys have them: nothing is left of one that is over or deleted.

#[allow(dead_code)]
#[path = "place/server.rs"]
mod server;

use std::time::Duration;

use flowline_core::Status;
use flowline_redis::{IfMissing, RedisStore};
use flowline_store::conformance::given;
use flowline_store::row::Retention;
use flowline_store::{Catalog, Commit, Document, Index, ReceiptQuery, Restored, RunStore, Transfer};
use server::Server;

fn keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = server.ask(&["KEYS", "*"]).split_whitespace().map(str::to_owned).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn a_store_of_the_format_before_is_read_as_it_is_and_brought_up_to_date_by_an_engine() {
    let server = Server::start(&[]);
    let store = RedisStore::open(&server.url(), IfMissing::Make).await.expect("the store opens");
    let f = flowline_store::conformance::Fixture::waiting(store.clone());
    let run = f.started("r", vec![]).await;
    let format = || server.ask(&["HGET", "{flowline:0}:meta", "format"]).trim().to_owned();
    server.ask(&["HSET", "{flowline:0}:meta", "format", "2"]);
    drop((store, f));

    let reader = RedisStore::open(&server.url(), IfMissing::Refuse).await.expect("the store opens");
    assert_eq!(reader.receipts(ReceiptQuery::of(run.tenant.clone())).await.expect("lists").items, []);
    assert_eq!(reader.counters().await.expect("counts").len(), 1);
    assert_eq!(format(), "2", "who reads changes nothing");
    let store = RedisStore::open(&server.url(), IfMissing::Make).await.expect("the store opens");
    assert_eq!(format(), "3");
    let index = Index { state: Some("review".into()), ..given::index(Status::Waiting) };
    let landed = store.commit(vec![Commit { index, ..given::next(&run, 1) }]).await.expect("answers");
    assert!(landed[0].is_ok(), "{landed:?}");
    let counted: Vec<_> =
        reader.counters().await.expect("counts").into_iter().map(|of| (of.status, of.state)).collect();
    assert_eq!(counted, [(Status::Waiting, Some("review".into()))]);
    server.ask(&["HSET", "{flowline:0}:meta", "format", "1"]);
    let error = RedisStore::open(&server.url(), IfMissing::Make).await.expect_err("is refused");
    assert!(error.to_string().contains("format 1"), "{error}");
}

#[tokio::test]
async fn no_key_is_left_of_documents_that_are_over_or_deleted() {
    let server = Server::start(&[]);
    let store = RedisStore::open(&server.url(), IfMissing::Make).await.expect("the store opens");
    let before = keys(&server);
    let put = async |collection: &str, id: &str, ttl| {
        store.put_document(collection, id, given::json("x".into()), ttl).await.expect("is stored");
    };
    // More than one part of a purge.
    let now = flowline_store::RunStore::now(&*store).await.expect("tells");
    let over = |n: usize| Document { id: n.to_string(), body: given::json("x".into()), expires: Some(now) };
    let parts =
        vec![Restored::Documents { collection: "audit".into(), documents: (0..1_200).map(over).collect() }];
    store.restore(parts).await.expect("restores");
    put("workers", "a b", Some(Duration::ZERO)).await;
    put("tokens", "deleted", Some(given::TTL)).await;
    put("tokens", "kept", Some(Duration::ZERO)).await;
    put("tokens", "kept", None).await;
    assert!(store.delete_document("tokens", "deleted").await.expect("answers"));
    store.retain(Retention::default(), 10).await.expect("retains");
    let mut expected = before.clone();
    expected.extend(["doc:tokens", "docs", "ids:tokens"].map(|key| format!("{{flowline:0}}:{key}")));
    expected.sort();
    assert_eq!(keys(&server), expected);
    assert_eq!(server.ask(&["ZRANGE", "{flowline:0}:ids:tokens", "0", "-1"]).trim(), "kept");

    assert!(store.delete_document("tokens", "kept").await.expect("answers"));
    assert_eq!(keys(&server), before);
}
