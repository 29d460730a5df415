//! One engine per file, by a lock of the operating system on `FILE.lock`.
//!
//! The lock goes with the process, however it ends; what is written in the lock file only tells people who holds it.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use flowline_core::Time;
use flowline_store::StoreError;

use crate::private;

/// How long a lock may be held by nobody who means it.
const PASSING: Duration = Duration::from_millis(250);

/// Held for as long as the engine lives.
#[derive(Debug)]
pub(crate) struct EngineLock {
    _file: File,
}

impl EngineLock {
    pub(crate) fn take(database: &Path) -> Result<EngineLock, StoreError> {
        let path = lock_path(database);
        let mut file = private::open_or_make(&path).map_err(|error| refused(&path, &error))?;
        match lock_soon(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(database, &mut file)),
            Err(TryLockError::Error(error)) => {
                return Err(StoreError::CannotWrite(format!("can't lock {}: {error}", path.display())));
            }
        }
        if !is_ours(&mut file) {
            return Err(StoreError::CannotWrite(format!(
                "{} isn't a lock file of Flowline; move it away, or name another store",
                path.display()
            )));
        }
        sign(&mut file).map_err(|error| StoreError::CannotWrite(format!("{}: {error}", path.display())))?;
        Ok(EngineLock { _file: file })
    }
}

/// A program that a killed engine was just about to start holds the engine's lock until it is started: that passes.
fn lock_soon(file: &File) -> Result<(), TryLockError> {
    let until = Instant::now() + PASSING;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(5))
            }
            other => return other,
        }
    }
}

/// Why a lock file can't be opened.
fn refused(path: &Path, error: &std::io::Error) -> StoreError {
    let link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    let path = path.display();
    StoreError::CannotWrite(match link {
        true => format!("{path} is a symbolic link, and a lock isn't written through one; delete the link"),
        false => format!("{path}: {error}"),
    })
}

/// Whether the file holds a signature (or the beginning of one) and nothing else. A hard link could have put another
/// file in its place, and signing would overwrite it.
fn is_ours(file: &mut File) -> bool {
    /// Two numbers, a space and the end of the line.
    const SIGNATURE: u64 = 64;
    let mut text = Vec::new();
    let read = Read::by_ref(file).take(SIGNATURE + 1).read_to_end(&mut text);
    read.is_ok()
        && text.len() as u64 <= SIGNATURE
        && text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b' ' | b'\n'))
}

/// `FILE.lock`.
fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

fn sign(file: &mut File) -> std::io::Result<()> {
    let now = flowline_store::Clock::system().now();
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{} {}", std::process::id(), now.millis())
}

fn in_use(database: &Path, file: &mut File) -> StoreError {
    let mut text = String::new();
    // Who holds it is a courtesy; that it is held is certain.
    let _ = file.read_to_string(&mut text);
    let mut words = text.split_whitespace();
    let holder = match (words.next(), words.next().and_then(|ms| ms.parse().ok())) {
        (Some(pid), Some(ms)) => format!("process {pid} since {}", Time::from_millis(ms)),
        _ => "another process".to_owned(),
    };
    StoreError::InUse(format!(
        "{} is in use by {holder}; stop it first, or name another file \
         (commands that only read still work)",
        database.display()
    ))
}
