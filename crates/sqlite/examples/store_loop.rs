//! How fast the bare store is: step-commits of many runs in flight, against raw inserts into the same folder.
//!
//!     cargo run --release -p flowline-sqlite --example store_loop [FOLDER] [SECONDS]

use std::path::PathBuf;
use std::time::Duration;

use flowline_sqlite::{Options, SqliteStore, baseline};
use flowline_store::conformance::{BoxError, keep_busy};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds = args.next().map_or(Ok(3), |text| text.parse())?;
    let place = tempfile::Builder::new().prefix("store-loop").tempdir_in(&folder)?;

    let raw = baseline(place.path())?;
    println!("raw rows/s, 256 to a commit    {:>10.0}", raw.rows_per_second);
    println!("raw commits/s of one row       {:>10.0}", raw.commits_per_second);
    let store = SqliteStore::open(place.path().join("flowline.db"), Options::default())?;
    let busy = keep_busy(store.clone(), 256, Duration::from_secs(seconds)).await?;
    println!("{busy}");
    if let Some(time) = writer_time() {
        println!("writer's time per step, in µs   {:>9.1}", time.as_secs_f64() * 1e6 / busy.steps as f64);
    }
    println!("a step in raw rows             {:>10.1}", raw.rows_per_second / busy.per_second);
    println!("ratio                          {:>10.3}", busy.per_second / raw.rows_per_second);
    Ok(())
}

/// Processor time of the writer's thread so far, where the system tells.
fn writer_time() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let writer = threads.flatten().map(|thread| thread.path()).find(|thread| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == "flowline-sqlite")
    })?;
    let spent = std::fs::read_to_string(writer.join("schedstat")).ok()?;
    spent.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
