//! Named locks.

use flowline_types::Time;
use serde::{Deserialize, Serialize};

/// A lock that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeldLock {
    pub name: String,
    /// Who holds it.
    pub owner: String,
    /// Higher than the fence of every earlier holder.
    pub fence: u64,
    pub since: Time,
    /// When it expires unless it's extended.
    pub until: Time,
    /// Time until then, by the store's clock.
    pub remaining_ms: u64,
}

/// Locks by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockList {
    pub items: Vec<HeldLock>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "AcquireLock"))]
pub struct AcquireLockRequest {
    /// Name to show as the holder; the token's subject by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256)))]
    pub owner: Option<String>,
    /// How long the lock lasts from now, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1_000, max = 86_400_000), extend("x-default" = 30_000)))]
    pub ttl_ms: Option<u64>,
    /// The holder's secret, needed to extend and release the lock. The server generates one if you leave it
    /// out; with your own, the request is safe to repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = LOCK_TOKEN)))]
    pub lock_token: Option<String>,
}

/// The pattern of a lock's secret: 32 hexadecimal digits.
pub const LOCK_TOKEN: &str = "^[0-9a-fA-F]{32}$";

/// A lock that you now hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "AcquiredLock"))]
pub struct AcquireLockAnswer {
    #[serde(flatten)]
    pub lock: HeldLock,
    /// The holder's secret, needed to extend and release the lock.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = LOCK_TOKEN)))]
    pub lock_token: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ExtendLock"))]
pub struct ExtendLockRequest {
    /// The holder's secret.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = LOCK_TOKEN)))]
    pub lock_token: String,
    /// How long the lock lasts from now, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1_000, max = 86_400_000), extend("x-default" = 30_000)))]
    pub ttl_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ExtendedLock"))]
pub struct ExtendLockAnswer {
    pub name: String,
    pub until: Time,
    /// Time until then, by the store's clock.
    pub remaining_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReleaseLock"))]
pub struct ReleaseLockRequest {
    /// The holder's secret.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = LOCK_TOKEN)))]
    pub lock_token: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReleasedLock"))]
pub struct ReleaseLockAnswer {
    pub name: String,
    /// False if this `lockToken` didn't hold the lock any more.
    pub released: bool,
}
