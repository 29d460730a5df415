//! The differential test agrees with itself, and catches stores that break the contract.

mod broken;

use std::sync::Arc;

use broken::{Broken, PlantedFault};
use flowline_core::Time;
use flowline_store::conformance::{Fixture, compare, differential};
use flowline_store::{Clock, MemoryStore};

/// A planted fault must show within this many seeds.
const SEEDS: u64 = 30;

fn memory() -> (MemoryStore, Clock) {
    let clock = Clock::manual(Time::from_millis(1_800_000_000_000));
    (MemoryStore::new(clock.clone()), clock)
}

#[tokio::test]
async fn the_in_memory_store_agrees_with_itself() {
    let open = || async {
        let (store, clock) = memory();
        Fixture::manual(Arc::new(store), clock)
    };
    differential(open, 0..100).await;
}

#[tokio::test]
async fn a_store_with_its_own_clock_can_be_compared() {
    let open = || async { Fixture::waiting(Arc::new(MemoryStore::new(Clock::system()))) };
    differential(open, 0..30).await;
}

#[tokio::test]
async fn a_seed_makes_the_same_calls_every_time() {
    let history = || async {
        for seed in 0..SEEDS {
            let (store, clock) = memory();
            let broken = Broken { store, fault: PlantedFault::DropsTheFence };
            if let Err(mismatch) = compare(Fixture::manual(Arc::new(broken), clock), seed).await {
                return mismatch.to_string();
            }
        }
        String::new()
    };
    let first = history().await;
    assert!(first.starts_with("seed "), "{first}");
    assert_eq!(first, history().await);
}

#[tokio::test]
async fn every_planted_fault_is_caught() {
    for fault in PlantedFault::ALL {
        let mut caught = None;
        for seed in 0..SEEDS {
            let (store, clock) = memory();
            let fixture = Fixture::manual(Arc::new(Broken { store, fault }), clock);
            if compare(fixture, seed).await.is_err() {
                caught = Some(seed);
                break;
            }
        }
        assert!(caught.is_some(), "{fault:?} was not caught by {SEEDS} seeds");
    }
}
