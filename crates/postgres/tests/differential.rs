//! The PostgreSQL store and the in-memory one answer alike, whatever they are asked.
//!
//! Every change of the adapter is worth a thousand seeds: `FLOWLINE_SEEDS=1000 cargo test -p flowline-postgres --test differential`.

#[allow(dead_code)]
mod place;

use flowline_store::conformance::differential;

#[tokio::test]
async fn random_calls_are_answered_as_by_the_model() {
    let seeds: u64 = std::env::var("FLOWLINE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    // Side by side, each in a schema of its own: most of the time is spent waiting for the server.
    let part = seeds.div_ceil(4);
    let run = |n: u64| differential(place::fixture, n * part..((n + 1) * part).min(seeds));
    tokio::join!(run(0), run(1), run(2), run(3));
}
