//! A store of its own on a server that tests share: in a schema that nobody else has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::conformance::Fixture;

const VARIABLE: &str = "FLOWLINE_TEST_POSTGRES_URL";

/// The URL that `cargo xtask services start` hands over.
pub fn url() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!("{VARIABLE} is not set; run the tests with `cargo xtask test`, or start servers with `cargo xtask services start`")
    })
}

/// That URL with a schema of its own, which goes with the second part of the answer.
pub fn fresh() -> (String, Schema) {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let name = format!("test_{}_{}_{number}", std::process::id(), fastrand::u32(..));
    let base = url();
    let joint = if base.contains('?') { '&' } else { '?' };
    (format!("{base}{joint}schema={name}"), Schema { url: base, name })
}

/// Goes with the test.
pub struct Schema {
    pub url: String,
    pub name: String,
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let client = connect(&url).await;
                let drop = format!("drop schema if exists {name} cascade");
                client.batch_execute(&drop).await.expect("the schema goes");
            });
        });
        // What is left of a test that failed is worth less than its message.
        let _ = removed.join();
    }
}

/// A plain connection, beside the store.
pub async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

pub async fn open() -> (Arc<PostgresStore>, Schema) {
    let (url, schema) = fresh();
    (PostgresStore::open(&url, IfMissing::Make).await.expect("the store opens"), schema)
}

pub async fn fixture() -> Fixture {
    let (store, schema) = open().await;
    Fixture::waiting(store).keeping(schema)
}
