//! The in-memory store keeps the contract.

use std::sync::Arc;

use flowline_core::Time;
use flowline_store::conformance::Fixture;
use flowline_store::{Clock, MemoryStore};

async fn open() -> Fixture {
    let clock = Clock::manual(Time::from_millis(1_800_000_000_000));
    Fixture::manual(Arc::new(MemoryStore::new(clock.clone())), clock)
}

flowline_store::conformance!(open);

#[tokio::test]
async fn payloads_of_the_largest_size_are_kept() {
    flowline_store::conformance::payloads_of_the_largest_size_are_kept(open().await).await;
}
