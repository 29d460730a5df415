//! What can go wrong between a client and a server.

use std::time::Duration;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("{0:?} is no address of a server; write http://HOST:PORT or https://HOST:PORT")]
    Address(String),
    #[error("a token has printable ASCII characters only")]
    Token,
    #[error(
        "the header {0:?} cannot be sent: names are letters, digits and -, values printable ASCII characters"
    )]
    Header(String),
    /// Nobody was there, so nothing was asked.
    #[error("{server} cannot be reached: {problem}")]
    Unconnected { server: String, problem: String },
    /// No answer: whether the server did what it was asked is unknown.
    #[error("{server} broke off: {problem}")]
    Unreachable { server: String, problem: String },
    #[error("{server} did not answer within {0}", flowline_core::time::show_duration(*.within))]
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
    #[error("{server} answered with something that is not of this protocol: {problem}")]
    Answer { server: String, problem: String },
}

impl ClientError {
    /// Whether asking again can help.
    pub fn is_transient(&self) -> bool {
        match self {
            ClientError::Unconnected { .. } | ClientError::Unreachable { .. } | ClientError::Late { .. } => {
                true
            }
            ClientError::Refused { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether the attempt that the request was about is not this worker's any more.
    pub fn is_stale(&self) -> bool {
        matches!(self, ClientError::Refused { status: 409, .. })
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            ClientError::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
