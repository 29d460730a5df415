//! Opening the file: is it ours, make it where it is missing, and the settings of each connection.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flowline_store::StoreError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::Options;
use crate::fault::Fault;
use crate::{private, schema};

/// How long a connection waits for a lock that another program holds.
const BUSY: Duration = Duration::from_secs(5);
/// Bytes of a page. Each page of the log is a write of its own, and a busy writer touches many; half this size was slower
/// in every pair of runs, and more makes single commits slower.
const PAGE_BYTES: u32 = 8192;
/// Pages of write-ahead log after which the writer copies them back: 64 MiB. What a busy writer touches is mostly the same
/// pages, so a longer log copies fewer of them.
const CHECKPOINT_PAGES: u32 = 8_000;
/// The log file is cut back to this after it has once grown longer.
const WAL_BYTES: u32 = 80 << 20;
/// Pages that the writer keeps in memory: 8 MiB. What it writes lies at the ends of tables, so more gains nothing.
const CACHE_KIB: i32 = 8 << 10;

/// The connection that writes. The caller holds the lock.
pub(crate) fn open_writer(path: &Path, options: &Options) -> Result<Connection, StoreError> {
    if !identify(path)? {
        create(path)?;
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = || -> Result<Connection, Fault> {
        let conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(BUSY)?;
        let format = schema::check(&conn, &path.display().to_string())?;
        conn.pragma_update(None, "journal_mode", "wal")?;
        conn.pragma_update(None, "synchronous", options.durability.pragma())?;
        if let Some(bytes) = options.max_bytes {
            let pages = i64::try_from(bytes / u64::from(PAGE_BYTES)).unwrap_or(i64::MAX);
            conn.pragma_update(None, "max_page_count", pages)?;
        }
        conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        conn.pragma_update(None, "journal_size_limit", WAL_BYTES)?;
        conn.pragma_update(None, "cache_size", -CACHE_KIB)?;
        conn.pragma_update(None, "temp_store", "memory")?;
        schema::migrate(&conn, format)?;
        keep_plans(&conn)?;
        Ok(conn)
    };
    open().map_err(|fault| named(path, fault.of_write()))
}

/// A statement keeps its plan, whatever it is asked for: otherwise each new value has it made anew.
fn keep_plans(conn: &Connection) -> Result<(), Fault> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// A connection that only reads.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |path: &Path, flags: OpenFlags| -> Result<Connection, Fault> {
        let conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(BUSY)?;
        conn.pragma_update(None, "query_only", true)?;
        conn.set_prepared_statement_cache_capacity(64);
        keep_plans(&conn)?;
        schema::check(&conn, &path.display().to_string())?;
        Ok(conn)
    };
    let opened = match open(path, flags) {
        Err(Fault::Sqlite(error)) if needs_no_log(path, &error) => {
            open(&as_it_stands(path), flags | OpenFlags::SQLITE_OPEN_URI)
        }
        other => other,
    };
    opened.map_err(|fault| named(path, fault.of_read()))
}

/// Refuses a file that a move has not filled to its end.
pub(crate) fn refuse_half_moved(path: &Path) -> Result<(), StoreError> {
    let conn = open_reader(path)?;
    match schema::is_filling(&conn).map_err(|fault| named(path, fault.of_read()))? {
        false => Ok(()),
        true => Err(StoreError::HalfMoved(format!(
            "{} is half moved: `flowline move` was interrupted while it filled this file; repeat that command, or delete \
             the file (the source store is unchanged)",
            path.display()
        ))),
    }
}

/// Whether only the log beside the file could not be made (read-only folder, full disk), and the file needs none: no
/// engine is at work, and the last one left nothing that is not in the file.
fn needs_no_log(path: &Path, error: &rusqlite::Error) -> bool {
    let no_room = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::DiskFull | ErrorCode::SystemIoFailure)
    );
    no_room && log_bytes(path) == 0
}

/// The file as a URI that keeps SQLite from looking for a log.
fn as_it_stands(path: &Path) -> PathBuf {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                uri.push(char::from(*byte))
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    PathBuf::from(uri + "?immutable=1")
}

/// Bytes of the log beside a file.
fn log_bytes(path: &Path) -> u64 {
    fs::metadata(with_suffix(path, "-wal")).map_or(0, |log| log.len())
}

/// Looks at the first bytes without writing any. False where there is no file, or an empty one.
pub(crate) fn identify(path: &Path) -> Result<bool, StoreError> {
    /// The header of a SQLite file; the application id is at byte 68.
    const HEADER: usize = 100;
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        other => other.map_err(|error| unreadable(path, &error))?,
    };
    let mut head = Vec::with_capacity(HEADER);
    file.take(HEADER as u64).read_to_end(&mut head).map_err(|error| unreadable(path, &error))?;
    if head.is_empty() {
        return Ok(false);
    }
    if head.len() < HEADER || !head.starts_with(b"SQLite format 3\0") {
        return Err(StoreError::Incompatible(format!(
            "{} isn't a SQLite file; name another file",
            path.display()
        )));
    }
    if head[68..72] != schema::APPLICATION_ID.to_be_bytes() {
        return Err(StoreError::Incompatible(format!(
            "{} is the SQLite database of another program; name another file",
            path.display()
        )));
    }
    match cut_off(path, &head) {
        Some(text) => Err(StoreError::Damaged(text)),
        None => Ok(true),
    }
}

/// Says so where a file is shorter than its header tells. SQLite itself would read zeros for what is missing of the
/// last page.
fn cut_off(path: &Path, head: &[u8]) -> Option<String> {
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let page = u64::from(u16::from_be_bytes([head[16], head[17]]));
    let told = u64::from(number(28)) * if page == 1 { 65_536 } else { page };
    let bytes = || fs::metadata(path).map_or(u64::MAX, |file| file.len());
    // While pages are copied back the log has what the file lacks; it goes when the file is whole, so look at the file
    // again after it.
    if bytes() >= told || log_bytes(path) > 0 || bytes() >= told {
        return None;
    }
    let path = path.display();
    Some(format!("{path} is truncated: it has {} of {told} bytes; restore a backup", bytes()))
}

/// Makes the file beside its place and moves it there whole: no crash leaves a half-made one.
fn create(path: &Path) -> Result<(), StoreError> {
    let beside = with_suffix(path, ".new");
    for stale in ["", "-journal"] {
        match fs::remove_file(with_suffix(&beside, stale)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::CannotWrite(format!("{}: {error}", beside.display())));
            }
            _ => {}
        }
    }
    private::new_file(&beside)
        .map_err(|error| StoreError::CannotWrite(format!("{}: {error}", beside.display())))?;
    let make = || -> Result<(), Fault> {
        let conn = Connection::open(&beside)?;
        conn.pragma_update(None, "page_size", PAGE_BYTES)?;
        // Pages that retention frees go back to the system a few at a time; a full VACUUM would block the writer.
        conn.pragma_update(None, "auto_vacuum", "incremental")?;
        conn.pragma_update(None, "application_id", schema::APPLICATION_ID)?;
        schema::migrate(&conn, 0)?;
        conn.close().map_err(|(_, error)| error)?;
        Ok(())
    };
    make().map_err(|fault| named(path, fault.of_write()))?;
    let place = || {
        fs::rename(&beside, path)?;
        sync_folder(path)
    };
    place().map_err(|error| StoreError::CannotWrite(format!("{}: {error}", path.display())))
}

/// Makes a new name in a folder durable.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        fs::File::open(folder)?.sync_all()?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn unreadable(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("can't read {}: {error}", path.display()))
}

/// A name that SQLite takes for nothing but a file: `file:x` would be a URI to it, and `:memory:` no file at all.
pub(crate) fn plain(path: &Path) -> PathBuf {
    let name = path.as_os_str().as_encoded_bytes();
    match name.starts_with(b"file:") || name.starts_with(b":") {
        true => Path::new(".").join(path),
        false => path.to_owned(),
    }
}

/// Names the file in an error.
pub(crate) fn named(path: &Path, error: StoreError) -> StoreError {
    let path = path.display();
    match error {
        StoreError::CannotWrite(text) => StoreError::CannotWrite(format!("{path}: {text}")),
        StoreError::Unavailable(text) => StoreError::Unavailable(format!("{path}: {text}")),
        StoreError::Damaged(text) => StoreError::Damaged(format!("{path}: {text}")),
        other => other,
    }
}
