//! The SQLite store and the in-memory one answer alike, whatever they are asked.
//!
//! `FLOWLINE_SEEDS=1000 cargo test -p flowline-sqlite --test differential` asks more.

use flowline_core::Time;
use flowline_sqlite::{Durability, Options, SqliteStore};
use flowline_store::Clock;
use flowline_store::conformance::{Fixture, differential};

/// Not synced: what is compared here does not depend on it, and the test is many times faster.
async fn open() -> Fixture {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Clock::manual(Time::from_millis(1_800_000_000_000));
    let options = Options { clock: clock.clone(), durability: Durability::Normal, ..Options::default() };
    let store = SqliteStore::open(folder.path().join("flowline.db"), options).expect("the file opens");
    Fixture::manual(store, clock).keeping(folder)
}

#[tokio::test]
async fn random_calls_are_answered_as_by_the_model() {
    let seeds = std::env::var("FLOWLINE_SEEDS").ok().and_then(|text| text.parse().ok());
    differential(open, 0..seeds.unwrap_or(200)).await;
}
