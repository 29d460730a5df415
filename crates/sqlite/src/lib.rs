//! Flowline's embedded store: one SQLite file.
//!
//! One engine per file writes, on one thread that puts everything pending into one durable transaction (`write`). Reads
//! run beside it on connections of their own (`read`), from any number of processes. The layout is in `schema`, explained
//! for people with `sqlite3` at hand in `docs/sqlite.md`.
//!
//! What this crate does not do: decide anything about flows, or share a file between engines.

pub mod baseline;
mod code;
mod fault;
mod file;
mod follow;
mod latest;
mod lock;
mod names;
mod pack;
mod private;
mod read;
mod schema;
mod store;
mod transfer;
mod write;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flowline_store::{Clock, StoreError};
use tokio::sync::watch;

pub use baseline::{Baseline, baseline};
pub use private::make_folder;

use follow::Follower;
use latest::Latest;
use lock::EngineLock;
use read::Readers;
use write::WriterThread;

/// How a file is opened.
#[derive(Debug, Clone)]
pub struct Options {
    pub clock: Clock,
    pub mode: OpenMode,
    pub durability: Durability,
    /// The most bytes that the file may grow to; writes beyond are refused as on a full disk. `None`: no bound but the
    /// disk. The write-ahead log beside the file comes on top.
    pub max_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            clock: Clock::system(),
            mode: OpenMode::Engine,
            durability: Durability::Full,
            max_bytes: None,
        }
    }
}

/// What the opener wants to do with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Read and write. One at a time: a second one is refused. Makes the file and its folder where they are missing.
    Engine,
    /// Read only, beside an engine or without one. Takes no lock; every write is refused.
    Client,
    /// Read only, and no engine meanwhile: the source of a move. Nothing in the file changes, leases neither.
    Still,
    /// As an engine, to be filled by a move: one that was broken off before does not matter.
    Receive,
}

/// What an acknowledged commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A crash of the machine: every transaction is synced.
    Full,
    /// A crash of the process. One of the machine may take the last transactions, whole ones, with it.
    Normal,
}

impl Durability {
    pub(crate) fn pragma(self) -> &'static str {
        match self {
            Durability::Full => "full",
            Durability::Normal => "normal",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Durability::Full => "an acknowledged commit survives a crash of the machine (synchronous=FULL)",
            Durability::Normal => {
                "an acknowledged commit survives a crash of the process; a crash of the machine may lose the last ones \
                 (synchronous=NORMAL)"
            }
        }
    }
}

/// One SQLite file as a Flowline store. Closed when the last reference goes, after all pending writes.
#[derive(Clone)]
pub struct SqliteStore {
    path: PathBuf,
    clock: Clock,
    durability: Durability,
    readers: Readers,
    latest: Latest,
    access: Arc<Access>,
}

enum Access {
    /// Fields go in this order: the writer ends before the lock is given up.
    // In the order in which they go: whoever watches hears of the end when the file is free.
    Engine { writer: WriterThread, _lock: EngineLock, changed: watch::Sender<u64> },
    Client {
        follower: Follower,
        /// Keeps engines away where that was asked for.
        _lock: Option<EngineLock>,
    },
}

impl SqliteStore {
    /// Opens a file. Blocks for as long as the disk does, some milliseconds.
    ///
    /// As an engine it ends the leases of the engine before, which is dead: they expire at once. Fails with `InUse` where
    /// another engine holds the file, and with `Incompatible`, leaving it untouched, where the file is not a store.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Arc<SqliteStore>, StoreError> {
        let path = file::plain(path.as_ref());
        let access = match options.mode {
            OpenMode::Engine | OpenMode::Receive => open_engine(&path, &options)?,
            OpenMode::Client | OpenMode::Still => {
                if !file::identify(&path)? {
                    return Err(StoreError::Unavailable(format!(
                        "{} doesn't exist; start a flow with this store first, or name another file",
                        path.display()
                    )));
                }
                file::refuse_half_moved(&path)?;
                let _lock = (options.mode == OpenMode::Still).then(|| EngineLock::take(&path)).transpose()?;
                Access::Client { follower: Follower::new(path.clone()), _lock }
            }
        };
        let readers = Readers::open(path.clone())?;
        let Options { clock, durability, .. } = options;
        let (latest, access) = (Latest::default(), Arc::new(access));
        Ok(Arc::new(SqliteStore { path, clock, durability, readers, latest, access }))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn writer(&self) -> Result<&WriterThread, StoreError> {
        match &*self.access {
            Access::Engine { writer, .. } => Ok(writer),
            Access::Client { .. } => Err(StoreError::Invalid(format!(
                "{} is open for reading only; open it as an engine to write",
                self.path.display()
            ))),
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

fn open_engine(path: &Path, options: &Options) -> Result<Access, StoreError> {
    // Before the lock file is made beside it: what is not ours is left as it is, its folder too.
    file::identify(path)?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_folder(folder)
            .map_err(|error| StoreError::CannotWrite(format!("{}: {error}", folder.display())))?;
    }
    let lock = EngineLock::take(path)?;
    if options.mode != OpenMode::Receive && file::identify(path)? {
        file::refuse_half_moved(path)?;
    }
    let conn = file::open_writer(path, options)?;
    let (changed, _) = watch::channel(0);
    let writer = WriterThread::start(conn, options.clock.clone(), changed.clone())?;
    Ok(Access::Engine { writer, changed, _lock: lock })
}
