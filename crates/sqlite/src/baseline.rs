//! What the disk and SQLite give without Flowline: the yardstick for its own figures.

use std::path::Path;
use std::time::{Duration, Instant};

use flowline_store::StoreError;
use rusqlite::Connection;

use crate::fault::Fault;

/// Rows per transaction of the first measure, as many as a busy engine commits together.
const BATCH: i64 = 256;
/// How long each measure takes.
const FOR: Duration = Duration::from_millis(700);

/// Raw figures of one folder's disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Baseline {
    /// Rows of three small columns per second, 256 to a synced transaction.
    pub rows_per_second: f64,
    /// Synced transactions of one row per second.
    pub commits_per_second: f64,
}

/// Measures raw inserts into a database of its own in `dir`, which is removed again. Takes about 1.5 seconds.
pub fn baseline(dir: &Path) -> Result<Baseline, StoreError> {
    let folder = dir.join(format!(".flowline-baseline-{}", std::process::id()));
    crate::make_folder(&folder)
        .map_err(|error| StoreError::CannotWrite(format!("{}: {error}", folder.display())))?;
    let measured = measure(&folder.join("baseline.db"));
    // What was measured is worth more than a folder left behind in the rare case.
    let _ = std::fs::remove_dir_all(&folder);
    measured.map_err(Fault::of_write)
}

fn measure(path: &Path) -> Result<Baseline, Fault> {
    let conn = Connection::open(path)?;
    conn.pragma_update(None, "journal_mode", "wal")?;
    conn.pragma_update(None, "synchronous", "full")?;
    conn.execute_batch(
        "create table raw (id integer primary key, number integer not null, text text not null)",
    )?;
    Ok(Baseline { rows_per_second: rate(&conn, BATCH)?, commits_per_second: rate(&conn, 1)? })
}

fn rate(conn: &Connection, batch: i64) -> Result<f64, Fault> {
    let mut insert = conn.prepare("insert into raw (number, text) values (?1, ?2)")?;
    let (began, mut rows) = (Instant::now(), 0);
    while began.elapsed() < FOR {
        conn.execute_batch("begin immediate")?;
        for number in 0..batch {
            insert.execute((number, "a short text"))?;
        }
        conn.execute_batch("commit")?;
        rows += batch;
    }
    Ok(rows as f64 / began.elapsed().as_secs_f64())
}
