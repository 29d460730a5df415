//! Named locks: for users, and for what one instance at a time should do (schedules, retention).
//!
//! A lock is a promise among those who ask for it, and it ends by the store's clock whether or not its holder knows. So
//! it saves double work and never guards correctness: no commit looks at one.

use std::time::Duration;

use flowline_core::{Tenant, Time};
use serde::Serialize;

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
        until: Time,
    },
    /// Another token has it.
    Held {
        owner: String,
        until: Time,
    },
}

/// A lock that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LockRow {
    pub name: String,
    pub owner: String,
    /// When the present holder got it.
    pub since: Time,
    pub until: Time,
}
