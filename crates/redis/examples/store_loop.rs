//! How fast the bare store is: step-commits of many runs in flight.
//!
//!     cargo run --release -p flowline-redis --example store_loop [URL] [SECONDS] [RUNS-IN-FLIGHT]

use std::time::Duration;

use flowline_redis::{IfMissing, RedisStore};
use flowline_store::conformance::{BoxError, keep_busy};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let seconds = args.next().map_or(Ok(3), |text| text.parse())?;
    let in_flight = args.next().map_or(Ok(256), |text| text.parse())?;
    let place = format!("{url}?prefix=store-loop-{}", uuid::Uuid::now_v7());
    let store = RedisStore::open(&place, IfMissing::Make).await?;
    println!("{}", keep_busy(store, in_flight, Duration::from_secs(seconds)).await?);
    Ok(())
}
