//! Reading, on connections of its own that never wait for the writer.
//!
//! Every read is one short read transaction: what it sees is one moment, and it does not keep the write-ahead log from
//! being copied back.

pub(crate) mod catalog;
pub(crate) mod documents;
pub(crate) mod events;
pub(crate) mod feed;
pub(crate) mod leases;
pub(crate) mod locks;
#[cfg(test)]
mod plans;
pub(crate) mod receipts;
pub(crate) mod rows;
pub(crate) mod runs;
pub(crate) mod state;
pub(crate) mod transfer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use flowline_core::{RunKey, Tenant};
use flowline_store::StoreError;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::Semaphore;

use crate::fault::Fault;
use crate::file;
use crate::schema;

/// Reads at the same time. More would only wait for the same disk and cores.
const READERS: usize = 4;
/// How many of them may block the thread that asks, so that it isn't kept from answering others.
const IN_PLACE: usize = 2;

#[derive(Debug, Clone)]
pub(crate) struct Readers {
    pool: Arc<Pool>,
    on: ReadOn,
}

/// The thread that a read blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadOn {
    /// One that tokio keeps for calls that block.
    Another,
    /// The caller's, unless [`IN_PLACE`] others do that already.
    Callers,
}

#[derive(Debug)]
struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    seats: Semaphore,
    in_place: Semaphore,
    /// The format that the file was last seen to have. It only grows.
    format: AtomicU32,
}

/// What a read works with.
pub(crate) struct Reader<'a> {
    pub(crate) conn: &'a Connection,
    format: &'a AtomicU32,
}

impl Readers {
    pub(crate) fn open(path: PathBuf) -> Result<Readers, StoreError> {
        let first = file::open_reader(&path)?;
        let (seats, in_place) = (Semaphore::new(READERS), Semaphore::new(IN_PLACE));
        let pool = Pool { path, idle: Mutex::new(vec![first]), seats, in_place, format: AtomicU32::new(0) };
        Ok(Readers { pool: Arc::new(pool), on: ReadOn::Another })
    }

    /// The same readers for a thread that may wait for its reads.
    pub(crate) fn in_place(&self) -> Readers {
        Readers { pool: self.pool.clone(), on: ReadOn::Callers }
    }

    pub(crate) async fn read<T, F>(&self, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Reader<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let _seat =
            self.pool.seats.acquire().await.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let pool = self.pool.clone();
        let read = move || {
            let conn = pool.take()?;
            let answer = in_one_moment(&conn, &pool.format, read);
            let answer = answer.map_err(|fault| file::named(&pool.path, fault.of_read()));
            pool.give_back(conn);
            answer
        };
        if self.on == ReadOn::Callers
            && let Ok(_place) = self.pool.in_place.try_acquire()
        {
            return read();
        }
        let done = tokio::task::spawn_blocking(read);
        done.await.map_err(|error| StoreError::Unavailable(format!("a read was interrupted: {error}")))?
    }
}

impl Pool {
    fn take(&self) -> Result<Connection, StoreError> {
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        idle.map_or_else(|| file::open_reader(&self.path), Ok)
    }

    fn give_back(&self, conn: Connection) {
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(conn);
        }
    }
}

fn in_one_moment<T>(
    conn: &Connection,
    format: &AtomicU32,
    read: impl FnOnce(&Reader<'_>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let moment = conn.unchecked_transaction()?;
    let answer = read(&Reader { conn, format })?;
    moment.finish()?;
    Ok(answer)
}

impl Reader<'_> {
    /// Whether the file has what came with a format: no engine of this build may have opened it yet.
    pub(crate) fn has(&self, format: u32) -> Result<bool, Fault> {
        if self.format.load(Ordering::Relaxed) < format {
            self.format.store(schema::format(self.conn)?.unwrap_or(0), Ordering::Relaxed);
        }
        Ok(self.format.load(Ordering::Relaxed) >= format)
    }

    pub(crate) fn tenant(&self, tenant: &Tenant) -> Result<Option<i64>, Fault> {
        let mut statement = self.conn.prepare_cached("select id from tenants where name = ?1")?;
        Ok(statement.query_row([tenant.as_str()], |row| row.get(0)).optional()?)
    }

    pub(crate) fn run(&self, run: &RunKey) -> Result<Option<i64>, Fault> {
        let Some(tenant) = self.tenant(&run.tenant)? else { return Ok(None) };
        let mut statement =
            self.conn.prepare_cached("select id from runs where tenant = ?1 and run_id = ?2")?;
        Ok(statement.query_row(params![tenant, run.run.as_str()], |row| row.get(0)).optional()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::current;

    #[tokio::test]
    async fn only_a_handle_for_that_reads_in_place_and_not_all_reads_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.db");
        drop(crate::SqliteStore::open(&path, crate::Options::default()).unwrap());
        let readers = Readers::open(path).unwrap();
        let reads_here =
            async |readers: &Readers| readers.read(|_| Ok(current().id())).await.unwrap() == current().id();
        assert!(!reads_here(&readers).await);
        let in_place = readers.in_place();
        assert!(reads_here(&in_place).await);
        let _others = readers.pool.in_place.try_acquire_many(IN_PLACE as u32).unwrap();
        assert!(!reads_here(&in_place).await);
    }
}
