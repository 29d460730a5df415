//! The store and the in-memory model answer the same to the same calls.
//!
//! Few seeds by default; `FLOWLINE_SEEDS=1000 cargo test -p flowline-redis --release --test differential` runs more.

mod place;

use flowline_store::conformance::differential;

/// A number of seeds, or a range of them (`250..500`) to share the work.
fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("FLOWLINE_SEEDS").unwrap_or_else(|_| "20".to_owned());
    let (from, to) = text.split_once("..").unwrap_or(("0", &text));
    let number = |text: &str| text.parse().expect("FLOWLINE_SEEDS is a number or a range");
    number(from)..number(to)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_answers_like_the_model() {
    differential(|| place::open("FLOWLINE_TEST_REDIS_URL"), seeds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_answers_like_the_model() {
    differential(|| place::open("FLOWLINE_TEST_REDIS_CLUSTER_URL"), seeds()).await;
}
