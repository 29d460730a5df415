//! What PostgreSQL reports, in the words of the store contract.

use std::error::Error as _;

use flowline_store::StoreError;
use tokio_postgres::error::SqlState;

use crate::pooler;
use crate::target::ServerTarget;
use crate::witness;

/// What to do where the server takes no writes.
const READ_ONLY: &str = "the server is a standby or read-only: name the primary, or change the setting";

/// A failure inside the adapter, before it becomes the caller's.
#[derive(Debug)]
pub(crate) enum PgFault {
    Postgres(tokio_postgres::Error),
    Store(StoreError),
    /// Nothing came back in time.
    Late,
}

impl PgFault {
    pub(crate) fn damaged(what: &str) -> PgFault {
        PgFault::Store(StoreError::Damaged(what.to_owned()))
    }

    fn code(&self) -> Option<&SqlState> {
        match self {
            PgFault::Postgres(error) => error.code(),
            _ => None,
        }
    }

    /// Whether the transaction was rolled back for a reason that another try may not meet.
    pub(crate) fn try_again(&self) -> bool {
        self.code().is_some_and(|code| {
            [
                SqlState::T_R_SERIALIZATION_FAILURE,
                SqlState::T_R_DEADLOCK_DETECTED,
                SqlState::LOCK_NOT_AVAILABLE,
                SqlState::QUERY_CANCELED,
                // `expect` of the schema: what was locked is not what was read.
                SqlState::CHECK_VIOLATION,
            ]
            .contains(code)
        })
    }

    /// Whether the server said something, as opposed to a connection that broke.
    pub(crate) fn is_answer(&self) -> bool {
        match self {
            PgFault::Postgres(error) => error.as_db_error().is_some() && !self.is_shutdown(),
            PgFault::Store(_) => true,
            PgFault::Late => false,
        }
    }

    fn is_shutdown(&self) -> bool {
        self.code().is_some_and(|code| {
            [
                SqlState::ADMIN_SHUTDOWN,
                SqlState::CRASH_SHUTDOWN,
                SqlState::CANNOT_CONNECT_NOW,
                SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            ]
            .contains(code)
        })
    }

    /// As the failure of what surely wrote nothing.
    pub(crate) fn of_write(self) -> StoreError {
        let answered = self.is_answer();
        match self.of_read() {
            StoreError::Unavailable(text) if answered => StoreError::CannotWrite(text),
            other => other,
        }
    }

    /// As the failure of a read, or of a write whose outcome is unknown.
    pub(crate) fn of_read(self) -> StoreError {
        let text = match &self {
            PgFault::Store(error) => return error.clone(),
            PgFault::Late => "the server didn't answer in time".to_owned(),
            PgFault::Postgres(error) => words(error),
        };
        let Some(code) = self.code() else { return StoreError::Unavailable(text) };
        if code.code() == witness::BROKEN {
            return StoreError::WentBack(witness::words());
        }
        match *code {
            SqlState::READ_ONLY_SQL_TRANSACTION => {
                return StoreError::CannotWrite(format!("{text}; {READ_ONLY}"));
            }
            SqlState::INSUFFICIENT_PRIVILEGE => {
                return StoreError::CannotWrite(format!(
                    "{text}; grant the role the missing permissions (`flowline doctor` names them)"
                ));
            }
            _ => {}
        }
        if is_pooled(code) {
            return StoreError::Unavailable(format!("{text}; {}", pooler::words()));
        }
        match &code.code()[..2] {
            "22" | "23" | "42" => StoreError::Damaged(text),
            "53" | "25" => StoreError::CannotWrite(text),
            "XX" => StoreError::Damaged(text),
            _ => StoreError::Unavailable(text),
        }
    }

    /// As the failure to connect, with what to do about it.
    pub(crate) fn of_connect(self, target: &ServerTarget) -> StoreError {
        let (place, user) = (target.place(), target.user());
        let error = match self {
            PgFault::Store(error) => return error,
            PgFault::Late => {
                return StoreError::Unavailable(format!(
                    "{place} didn't answer in time; check host, port and firewall"
                ));
            }
            PgFault::Postgres(error) => error,
        };
        let text = words(&error);
        let Some(code) = error.code() else {
            return StoreError::Unavailable(unanswered(&place, &text));
        };
        if is_pooled(code) {
            return StoreError::Incompatible(format!("{place}: {text}; {}", pooler::words()));
        }
        match *code {
            SqlState::INVALID_PASSWORD => StoreError::Incompatible(format!(
                "{place} refused the password of user {user:?}; check user and password in the store URL"
            )),
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION => StoreError::Incompatible(format!(
                "{place} rejected user {user:?}: {text}; check the user, `sslmode` and the server's pg_hba.conf"
            )),
            SqlState::INVALID_CATALOG_NAME => StoreError::Incompatible(format!(
                "there is no database {:?} at {place}; create it (`createdb {0}`) or name another in the store URL",
                target.database()
            )),
            SqlState::INSUFFICIENT_PRIVILEGE => StoreError::Incompatible(format!(
                "user {user:?} may not use {place}: {text}; grant the role the missing permissions, or name another user in the store URL"
            )),
            SqlState::READ_ONLY_SQL_TRANSACTION => {
                StoreError::CannotWrite(format!("{place}: {text}; {READ_ONLY}"))
            }
            SqlState::TOO_MANY_CONNECTIONS => StoreError::Unavailable(format!(
                "{place} has no free connection: {text}; raise max_connections or run fewer instances"
            )),
            _ => StoreError::Unavailable(format!("{place}: {text}")),
        }
    }
}

/// Statements are prepared under names of this connection's own: only where it shares one do they clash or go missing.
fn is_pooled(code: &SqlState) -> bool {
    [SqlState::DUPLICATE_PSTATEMENT, SqlState::INVALID_SQL_STATEMENT_NAME].contains(code)
}

fn unanswered(place: &str, text: &str) -> String {
    let remedy = match text {
        _ if text.contains("TLS") && text.contains("support") => {
            "the server doesn't support TLS: use sslmode=disable or prefer, or turn ssl on there"
        }
        _ if text.contains("certificate") || text.contains("handshake") || text.contains("TLS") => {
            "check `sslmode` and `sslrootcert`, and that the certificate names this host"
        }
        _ if text.contains("password missing") => "put the password in the store URL",
        _ => "check host and port, and that the server is running",
    };
    format!("can't connect to {place}: {text}; {remedy}")
}

/// An error with its causes; the outermost alone says little.
fn words(error: &tokio_postgres::Error) -> String {
    if let Some(told) = error.as_db_error() {
        let detail = told.detail().map_or(String::new(), |detail| format!(" ({detail})"));
        return format!("{}{detail}", told.message());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}

impl From<tokio_postgres::Error> for PgFault {
    fn from(error: tokio_postgres::Error) -> PgFault {
        PgFault::Postgres(error)
    }
}

impl From<StoreError> for PgFault {
    fn from(error: StoreError) -> PgFault {
        PgFault::Store(error)
    }
}
