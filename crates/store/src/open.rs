//! How a store on a server is opened.

/// What to do if there is no store yet, or one of an older format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfMissing {
    /// Make one, or bring it up to date.
    Make,
    /// Refuse, and write nothing: for readers.
    Refuse,
    /// Refuse: for writers that expect one.
    Expect,
    /// Make one that a move will fill, whether or not an earlier move was interrupted.
    Receive,
    /// Open what there is as it is, and write nothing: to look at the server.
    Ignore,
}

impl IfMissing {
    /// Whether whoever opens it this way will write.
    pub fn writes(self) -> bool {
        matches!(self, IfMissing::Make | IfMissing::Expect | IfMissing::Receive)
    }
}
