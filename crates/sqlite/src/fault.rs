//! What SQLite reports, in the words of the store contract.

use flowline_store::StoreError;
use rusqlite::ErrorCode;
use rusqlite::ffi;

/// A failure inside the adapter, before it becomes the caller's.
#[derive(Debug)]
pub(crate) enum Fault {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl Fault {
    pub(crate) fn damaged(what: &str) -> Fault {
        Fault::Store(StoreError::Damaged(what.to_owned()))
    }

    /// As the failure of a write that was rolled back.
    pub(crate) fn of_write(self) -> StoreError {
        let error = match self {
            Fault::Store(error) => return error,
            Fault::Sqlite(error) => error,
        };
        match (error.sqlite_error_code(), error.sqlite_extended_error_code()) {
            // The bytes were handed over and may be found again after a crash of the machine.
            (_, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)) => {
                StoreError::Unavailable(format!("the disk didn't confirm a write: {error}"))
            }
            (Some(code), _) => of_code(code, &error)
                .unwrap_or_else(|| StoreError::CannotWrite(format!("{error}; {}", remedy(code)))),
            (None, _) => StoreError::Damaged(error.to_string()),
        }
    }

    /// As the failure of a read.
    pub(crate) fn of_read(self) -> StoreError {
        let error = match self {
            Fault::Store(error) => return error,
            Fault::Sqlite(error) => error,
        };
        match error.sqlite_error_code() {
            Some(code) => of_code(code, &error).unwrap_or_else(|| StoreError::Unavailable(error.to_string())),
            None => StoreError::Damaged(error.to_string()),
        }
    }
}

/// What means the same for reads and writes.
fn of_code(code: ErrorCode, error: &rusqlite::Error) -> Option<StoreError> {
    match code {
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::TypeMismatch => {
            Some(StoreError::Damaged(format!(
                "{error}; restore a backup, or save what you can with `.recover` in sqlite3"
            )))
        }
        ErrorCode::ConstraintViolation => Some(StoreError::Damaged(error.to_string())),
        ErrorCode::TooBig => Some(StoreError::Invalid(error.to_string())),
        _ => None,
    }
}

fn remedy(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::DiskFull => "free some space; the engine then continues automatically",
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen => {
            "make the file and its directory writable for this user"
        }
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
            "another program holds a write lock on the file"
        }
        _ => "check the disk and the system log",
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Sqlite(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        Fault::Store(error)
    }
}
