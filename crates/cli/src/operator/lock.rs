//! A named lock, in a store or at a server.

use std::time::Duration;

use flowline::core::Time;
use flowline::lock::{LockError, LockGuard, NamedLock};
use flowline::store::Token;
use flowline_api::locks::{AcquireLockAnswer, HeldLock};
use flowline_client::{RemoteLock, RemoteLockGuard};
use flowline_server::api::left;

use crate::failure::{CliError, Exit};

#[derive(Debug)]
pub enum OperatorLock {
    Store(NamedLock),
    /// Boxed, since it is much larger than a store's.
    Server(Box<RemoteLock>),
}

/// A lock that is held. Dropped, it is released.
#[derive(Debug)]
pub enum HeldGuard {
    Store(LockGuard),
    Server(RemoteLockGuard),
}

impl OperatorLock {
    pub fn owner(self, owner: &str) -> OperatorLock {
        match self {
            OperatorLock::Store(lock) => OperatorLock::Store(lock.owner(owner)),
            OperatorLock::Server(lock) => OperatorLock::Server(Box::new(lock.owner(owner))),
        }
    }

    pub async fn grant(&self, token: Token, owner: &str) -> Result<AcquireLockAnswer, CliError> {
        let lock_token = format!("{:032x}", token.0);
        match self {
            OperatorLock::Server(lock) => Ok(lock.grant(Some(&lock_token)).await?),
            OperatorLock::Store(lock) => {
                let grant = lock.grant(token).await?;
                let (fence, since, until) = (grant.fence, grant.since, grant.until);
                let (name, owner) = (lock.name().to_owned(), owner.to_owned());
                let remaining_ms = left(until, since);
                let lock = HeldLock { name, owner, fence, since, until, remaining_ms };
                Ok(AcquireLockAnswer { lock, lock_token })
            }
        }
    }

    /// Until when it is held now.
    pub async fn extend(&self, token: &str, ttl: Duration) -> Result<(Time, u64), CliError> {
        match self {
            OperatorLock::Server(lock) => {
                let extended = lock.extend(token).await?;
                Ok((extended.until, extended.remaining_ms))
            }
            OperatorLock::Store(lock) => {
                let until = lock.extend(read_token(token)?).await?.ok_or_else(|| lost(lock.name()))?;
                Ok((until, u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
            }
        }
    }

    /// Whether the token held it.
    pub async fn release(&self, token: &str) -> Result<bool, CliError> {
        Ok(match self {
            OperatorLock::Server(lock) => lock.release(token).await?,
            OperatorLock::Store(lock) => lock.release(read_token(token)?).await?,
        })
    }

    pub async fn guard(&self, wait: Duration) -> Result<HeldGuard, CliError> {
        Ok(match self {
            OperatorLock::Store(lock) => HeldGuard::Store(lock.acquire_within(wait).await?),
            OperatorLock::Server(lock) => HeldGuard::Server(lock.acquire_within(wait).await?),
        })
    }
}

impl HeldGuard {
    pub fn fence(&self) -> u64 {
        match self {
            HeldGuard::Store(guard) => guard.fence(),
            HeldGuard::Server(guard) => guard.fence(),
        }
    }

    pub async fn lost(&self) {
        match self {
            HeldGuard::Store(guard) => guard.lost().await,
            HeldGuard::Server(guard) => guard.lost().await,
        }
    }

    pub async fn release(self) -> Result<bool, CliError> {
        Ok(match self {
            HeldGuard::Store(guard) => guard.release().await?,
            HeldGuard::Server(guard) => guard.release().await?,
        })
    }
}

fn read_token(text: &str) -> Result<Token, CliError> {
    let token = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
    token.map(Token).ok_or_else(|| {
        CliError::usage("--lock-token must be the 32 hex digits that `flowline locks acquire` printed")
    })
}

/// A lock that somebody else may hold by now.
pub fn lost(name: &str) -> CliError {
    CliError::new(Exit::Found, "lock-lost", format!("this token doesn't hold lock {name:?} any more"))
}

impl From<LockError> for CliError {
    fn from(error: LockError) -> CliError {
        let text = error.to_string();
        match error {
            LockError::Store(error) => error.into(),
            LockError::Held { .. } => CliError::new(Exit::Found, "lock-held", text),
            _ => CliError::usage(text),
        }
    }
}
