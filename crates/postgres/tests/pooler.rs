//! Behind PgBouncer: by session all works, by transaction it is said so at the door. Each test starts one of its own.
#![cfg(unix)]

#[allow(dead_code)]
mod place;
#[path = "place/pooler.rs"]
mod pooler;

use std::time::Duration;

use flowline_core::{Tenant, Time};
use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::lock::{Acquired, LockRequest};
use flowline_store::{Catalog, RunStore, StoreError, Token};
use pooler::Pooler;

fn is_told(error: &StoreError) {
    let StoreError::Incompatible(text) = error else { panic!("{error:?}") };
    assert!(text.contains("transaction mode") && text.contains("pool_mode = session"), "{text}");
    assert!(text.contains("the server's own address"), "{text}");
}

#[tokio::test]
async fn behind_a_pooler_by_transaction_the_remedy_is_told() {
    let pooler = Pooler::start(&place::url(), "transaction", "");
    let schema = place::fresh().1;
    let name = &schema.name;
    for missing in [IfMissing::Make, IfMissing::Refuse, IfMissing::Ignore] {
        is_told(&PostgresStore::open(&pooler.url(name), missing).await.expect_err("refused"));
    }
    // Nothing was made, and nothing is left behind for others.
    let there = format!("select count(*) from pg_namespace where nspname = '{name}'");
    let direct = place::connect(&place::url()).await;
    assert_eq!(direct.query_one(&there, &[]).await.expect("counts").get::<_, i64>(0), 0);
    let others = place::connect(&pooler.url("public").replace("?schema=public", "")).await;
    for _ in 0..3 {
        let left =
            "select coalesce(current_setting('flowline.session', true), ''), current_setting('search_path')";
        let row = others.simple_query(left).await.expect("answers");
        let tokio_postgres::SimpleQueryMessage::Row(row) = &row[1] else { panic!("{row:?}") };
        assert_eq!((row.get(0), row.get(1)), (Some(""), Some("\"$user\", public")));
    }
}

#[tokio::test]
async fn a_pooler_by_transaction_that_takes_connections_in_turn_is_noticed_too() {
    let pooler = Pooler::start(&place::url(), "transaction", "server_round_robin = 1\nmin_pool_size = 5");
    let schema = place::fresh().1;
    is_told(&PostgresStore::open(&pooler.url(&schema.name), IfMissing::Make).await.expect_err("refused"));
}

#[tokio::test]
async fn behind_a_pooler_by_session_a_store_works() {
    let pooler = Pooler::start(&place::url(), "session", "");
    let schema = place::fresh().1;
    let one = PostgresStore::open(&pooler.url(&schema.name), IfMissing::Make).await.expect("opens");
    let other = PostgresStore::open(&pooler.url(&schema.name), IfMissing::Expect).await.expect("opens");
    assert!(one.now().await.expect("tells the time") > Time::from_millis(0));
    let ask = |token| LockRequest {
        tenant: Tenant::default(),
        name: "nightly".to_owned(),
        owner: "me".to_owned(),
        token: Token(token),
        ttl: Duration::from_secs(60),
    };
    assert!(matches!(one.acquire_lock(ask(1)).await.expect("answers"), Acquired::Granted { .. }));
    assert!(matches!(other.acquire_lock(ask(2)).await.expect("answers"), Acquired::Held { .. }));
    drop((one, other));
}
