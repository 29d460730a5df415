//! The store and the in-memory model answer the same to the same calls.
//!
//! Few seeds by default; `FLOWLINE_SEEDS=1000 cargo test -p flowline-redis --release --test differential` runs more.

mod place;

use flowline_store::conformance::differential;

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("FLOWLINE_SEEDS").ok().and_then(|text| text.parse().ok());
    0..count.unwrap_or(20)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_answers_like_the_model() {
    differential(|| place::open("FLOWLINE_TEST_REDIS_URL"), seeds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_answers_like_the_model() {
    differential(|| place::open("FLOWLINE_TEST_REDIS_CLUSTER_URL"), seeds()).await;
}
