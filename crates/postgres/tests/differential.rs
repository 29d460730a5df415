//! The PostgreSQL store and the in-memory one answer alike, whatever they are asked.
//!
//! Every change of the adapter is worth a thousand seeds: `SEEDS=1000 cargo test -p flowline-postgres --test differential`.

#[allow(dead_code)]
mod place;

use flowline_store::conformance::differential;

#[tokio::test]
async fn random_calls_are_answered_as_by_the_model() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(25);
    differential(place::fixture, 0..seeds).await;
}
