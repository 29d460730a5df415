//! What can go wrong with a store as a whole. What can go wrong with one commit is a `CommitError`.

/// A store that could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached or answered too late: the outcome is unknown.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store refused to write: disk full, read-only, out of memory. Nothing was written.
    #[error("the store can't write: {0}")]
    CannotWrite(String),
    /// The server is there, and no store on it: nobody has made one at this place yet.
    #[error("{0}")]
    Missing(String),
    /// Another engine holds the store.
    #[error("{0}")]
    InUse(String),
    /// What is there is not a Flowline store, or one of a format that this build does not read.
    #[error("{0}")]
    Incompatible(String),
    /// A move into the store was broken off: what is there is not whole.
    #[error("{0}")]
    HalfMoved(String),
    /// The store's content contradicts itself.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// The store holds less than this process has seen in it: an older copy was restored, or data was deleted. Writes
    /// halt until the process starts again.
    #[error("the store went back in time: {0}")]
    WentBack(String),
    /// The caller asked for something that makes no sense to a store (a cursor that is none).
    #[error("{0}")]
    Invalid(String),
}

impl StoreError {
    /// Whether trying again can help. This alone drives store retries.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Unavailable(_) | StoreError::CannotWrite(_))
    }

    /// Whether a failed write surely left nothing behind.
    pub fn nothing_written(&self) -> bool {
        !matches!(self, StoreError::Unavailable(_))
    }
}
