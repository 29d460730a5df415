//! A store of its own on a server that tests share: under a prefix that nobody else has.

use flowline_redis::{IfMissing, RedisStore};
use flowline_store::conformance::Fixture;

/// The URL that `cargo xtask services start` hands over.
pub fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set; run the tests with `cargo xtask test`, or start servers with `cargo xtask services start`")
    })
}

/// That URL with a prefix of its own.
pub fn fresh(variable: &str) -> String {
    format!("{}?prefix=test-{}", url(variable), uuid::Uuid::now_v7())
}

pub async fn open(variable: &str) -> Fixture {
    Fixture::waiting(RedisStore::open(&fresh(variable), IfMissing::Make).await.expect("the store opens"))
}
