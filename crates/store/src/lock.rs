//! Named locks: for users ([`Catalog::locks`](crate::Catalog::locks) lists them), and for what one engine at a time should
//! do: retention and reconciliation.
//!
//! A lock ends by the store's clock, whether or not its holder has noticed. So it saves double work and never guards
//! correctness by itself: no commit looks at one. A holder that must not write late passes its [`fence`] on, and whatever
//! it writes to refuses a lower one.

use std::time::Duration;

use flowline_core::{Tenant, Time};

use crate::job::Token;

/// Asks for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRequest {
    pub tenant: Tenant,
    /// Any text.
    pub name: String,
    /// Who asks, in words that others are shown.
    pub owner: String,
    /// Proves later that the lock is the asker's. Others are never shown it.
    pub token: Token,
    pub ttl: Duration,
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
