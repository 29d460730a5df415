//! Documents as the tables have them: in a schema of the format before, by index, and gone for good.
//!
//! Needs the server that `cargo xtask test` starts and names in `FLOWLINE_TEST_POSTGRES_URL`.

#[allow(dead_code)]
mod place;

use std::time::Duration;

use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::conformance::given;
use flowline_store::row::Retention;
use flowline_store::{Catalog, StoreError};

#[tokio::test]
async fn a_schema_of_the_format_before_is_brought_up_to_date_by_an_engine_alone() {
    let (url, schema) = place::fresh();
    drop(PostgresStore::open(&url, IfMissing::Make).await.expect("opens"));
    let client = place::connect(&schema.url).await;
    let name = &schema.name;
    let back =
        format!("drop table {name}.documents; update {name}.cells set value = 1 where name = 'format'");
    client.batch_execute(&back).await.expect("goes back");

    let error = PostgresStore::open(&url, IfMissing::Refuse).await.expect_err("refused");
    let StoreError::Unavailable(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("format 1") && text.contains("flowline work"), "{text}");
    let store = PostgresStore::open(&url, IfMissing::Make).await.expect("opens");
    assert_eq!(store.check().await.expect("answers").format, 2);
    store.put_document("tokens", "t", given::json("x".into()), None).await.expect("is stored");
    assert!(store.document("tokens", "t").await.expect("answers").is_some());
}

#[tokio::test]
async fn retention_leaves_no_row_of_a_document_past_its_time() {
    let (store, schema) = place::open().await;
    let put = async |id: &str, ttl| {
        store.put_document("audit", id, given::json("x".into()), ttl).await.expect("is stored");
    };
    put("over", Some(Duration::ZERO)).await;
    put("again", Some(Duration::ZERO)).await;
    put("again", None).await;
    store.retain(Retention::default(), 10).await.expect("retains");
    let client = place::connect(&schema.url).await;
    let rows = client.query(&format!("select id from {}.documents", schema.name), &[]).await.expect("reads");
    let left: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["again"]);
}
