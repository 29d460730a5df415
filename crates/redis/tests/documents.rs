//! Documents as the keys have them: nothing is left of one that is over or deleted.

#[allow(dead_code)]
#[path = "place/server.rs"]
mod server;

use std::time::Duration;

use flowline_redis::{IfMissing, RedisStore};
use flowline_store::conformance::given;
use flowline_store::row::Retention;
use flowline_store::{Catalog, Document, NewDocument, Restored, Transfer};
use server::Server;

fn keys(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = server.ask(&["KEYS", "*"]).split_whitespace().map(str::to_owned).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn no_key_is_left_of_documents_that_are_over_or_deleted() {
    let server = Server::start(&[]);
    let store = RedisStore::open(&server.url(), IfMissing::Make).await.expect("the store opens");
    let before = keys(&server);
    let put = async |collection: &str, id: &str, ttl| {
        store
            .put_document(NewDocument::new(collection, id, given::json("x".into()), ttl))
            .await
            .expect("is stored");
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
