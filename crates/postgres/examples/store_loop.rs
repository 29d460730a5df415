//! How fast the bare store is: step-commits of many runs in flight. Hold the figure against what
//! `pgbench -N -c 16 -j 2 -T 10` gives on the same server.
//!
//!     cargo run --release -p flowline-postgres --example store_loop URL [SECONDS] [RUNS-IN-FLIGHT]

use std::time::Duration;

use flowline_postgres::{IfMissing, PostgresStore};
use flowline_store::conformance::{BoxError, keep_busy};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("name a store: postgres://USER@HOST/DATABASE?schema=NAME")?;
    let seconds = args.next().map_or(Ok(5), |text| text.parse())?;
    let in_flight = args.next().map_or(Ok(256), |text| text.parse())?;
    let store = PostgresStore::open(&url, IfMissing::Make).await?;
    println!("{}", keep_busy(store, in_flight, Duration::from_secs(seconds)).await?);
    Ok(())
}
