//! The SQLite store keeps the contract.

use flowline_core::Time;
use flowline_sqlite::{Options, SqliteStore};
use flowline_store::Clock;
use flowline_store::conformance::Fixture;

async fn open() -> Fixture {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Clock::manual(Time::from_millis(1_800_000_000_000));
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = SqliteStore::open(folder.path().join("flowline.db"), options).expect("the file opens");
    Fixture::manual(store, clock).keeping(folder)
}

flowline_store::conformance!(open);

#[tokio::test]
async fn payloads_of_the_largest_size_are_kept() {
    flowline_store::conformance::payloads_of_the_largest_size_are_kept(open().await).await;
}
