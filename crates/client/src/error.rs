//! What can go wrong between a client and a server.

use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("{0:?} isn't a server address; write http://HOST:PORT or https://HOST:PORT")]
    Address(String),
    #[error("a token can only have printable ASCII characters")]
    Token,
    #[error(
        "the header {0:?} can't be sent: names are letters, digits and -, values printable ASCII characters"
    )]
    Header(String),
    /// The server couldn't be reached, so nothing was sent.
    #[error("can't reach {server}: {problem}")]
    Unconnected { server: String, problem: String },
    /// No answer: the server may or may not have done it.
    #[error("the connection to {server} was lost: {problem}")]
    Unreachable { server: String, problem: String },
    #[error("{server} didn't answer within {0}", flowline_types::time::show_duration(*.within))]
    Late { server: String, within: Duration },
    /// The server refused.
    #[error("{detail} ({status} {code})")]
    Refused {
        status: u16,
        /// Stable, for machines.
        code: String,
        detail: String,
        retry_after: Option<Duration>,
    },
    #[error("can't get random numbers from the system: {0}")]
    Randomness(String),
    #[error("{server} sent an unexpected response: {problem}")]
    Answer { server: String, problem: String },
}

impl ClientError {
    /// Whether a retry can help.
    pub fn is_transient(&self) -> bool {
        match self {
            ClientError::Unconnected { .. } | ClientError::Unreachable { .. } | ClientError::Late { .. } => {
                true
            }
            ClientError::Refused { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether the attempt that the request was about no longer belongs to this worker: stop working on it. Other
    /// conflicts (409) say nothing about the lease.
    pub fn is_stale(&self) -> bool {
        matches!(self, ClientError::Refused { code, .. } if code == "stale-lease")
    }

    /// Whether the attempt was already reported with another outcome, which counts.
    pub fn is_outcome_conflict(&self) -> bool {
        matches!(self, ClientError::Refused { code, .. } if code == "outcome-conflict")
    }

    /// Whether the attempt, or its run, has logged as much as it may.
    pub fn is_log_full(&self) -> bool {
        matches!(self, ClientError::Refused { code, .. } if code == "log-full")
    }

    /// Whether someone else holds the lock.
    pub fn is_held(&self) -> bool {
        matches!(self, ClientError::Refused { code, .. } if code == "lock-held")
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            ClientError::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> ClientError {
        ClientError::Refused { status, code: code.to_owned(), detail: String::new(), retry_after: None }
    }

    #[test]
    fn only_a_stale_lease_is_stale() {
        assert!(refused(409, "stale-lease").is_stale());
        for code in ["refused", "outcome-conflict", "run-ended", "key-conflict"] {
            assert!(!refused(409, code).is_stale(), "{code}");
        }
        assert!(refused(409, "outcome-conflict").is_outcome_conflict());
        assert!(!refused(409, "stale-lease").is_outcome_conflict());
    }
}
