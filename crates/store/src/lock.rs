//! Named locks: for users ([`Catalog::locks`](crate::Catalog::locks) lists them), and for work that one engine at a time
//! should do (retention, reconciliation).
//!
//! A lock ends by the store's clock, whether or not its holder has noticed. So it saves duplicate work but doesn't guard
//! correctness: no commit looks at one. A holder that must not write late passes its [`fence`] along, and the target
//! refuses lower ones.

use std::time::Duration;

use flowline_core::{Tenant, Time};

use crate::job::Token;

/// Asks for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRequest {
    pub tenant: Tenant,
    /// Any text.
    pub name: String,
    /// Who asks, as shown to others.
    pub owner: String,
    /// Proves later that the lock is the caller's. Never shown to others.
    pub token: Token,
    pub ttl: Duration,
}

/// A lock, as its holder names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockProof {
    pub tenant: Tenant,
    pub name: String,
    pub token: Token,
}

impl LockProof {
    pub fn new(tenant: &Tenant, name: &str, token: Token) -> LockProof {
        LockProof { tenant: tenant.clone(), name: name.to_owned(), token }
    }
}

/// The answer to a [`LockRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    Granted {
        since: Time,
        until: Time,
    },
    /// Another token has it.
    Held {
        owner: String,
        until: Time,
    },
}

/// A lock that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow {
    pub name: String,
    pub owner: String,
    /// When the present holder got it. Later than every earlier grant of the store, even if the clock was set back.
    pub since: Time,
    pub until: Time,
}

/// The fencing token of a lock held since then: higher than that of every earlier holder.
pub fn fence(since: Time) -> u64 {
    u64::try_from(since.millis()).unwrap_or_default()
}
