//! Named locks through a server, for remote workers and any other program.
//!
//! The guard works like the engine's: it extends the lock and reports when it's lost.

use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::ClientError;
use crate::verbs::part;
use flowline_api::locks::{
    AcquireLockAnswer, AcquireLockRequest, ExtendLockAnswer, ExtendLockRequest, HeldLock, LockList,
    ReleaseLockAnswer, ReleaseLockRequest,
};

/// How long a lock lasts after it was last extended, unless told otherwise.
pub const TTL: Duration = Duration::from_secs(30);
/// The first pause before a held lock is tried again; doubled up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a guard tries to release its lock.
const FAREWELL: Duration = Duration::from_secs(5);

/// A named lock of a server.
#[derive(Debug, Clone)]
pub struct RemoteLock {
    client: Client,
    name: String,
    owner: Option<String>,
    ttl: Duration,
}

impl Client {
    /// The lock of this name in the token's tenant: letters, digits, `.`, `_` and `-`, up to 128.
    pub fn lock(&self, name: impl Into<String>) -> RemoteLock {
        RemoteLock { client: self.clone(), name: name.into(), owner: None, ttl: TTL }
    }

    /// The locks that somebody holds, by name.
    pub async fn locks(&self) -> Result<Vec<HeldLock>, ClientError> {
        Ok(self.get::<LockList>("/v1/locks", Duration::ZERO).await?.items)
    }
}

impl RemoteLock {
    /// How long the lock lasts after it was last extended; a guard extends it every third of this. From 1 s to 24 h.
    pub fn ttl(mut self, ttl: Duration) -> RemoteLock {
        self.ttl = ttl;
        self
    }

    /// The owner that others are shown; the token's subject by default.
    pub fn owner(mut self, owner: impl Into<String>) -> RemoteLock {
        self.owner = Some(owner.into());
        self
    }

    /// Acquires the lock, or fails with an error that [is held](ClientError::is_held).
    pub async fn try_acquire(&self) -> Result<RemoteLockGuard, ClientError> {
        self.guard(&new_token()?).await
    }

    /// Waits for the lock as long as it takes.
    pub async fn acquire(&self) -> Result<RemoteLockGuard, ClientError> {
        self.acquire_until(None).await
    }

    /// Waits for the lock, then fails with an error that [is held](ClientError::is_held).
    pub async fn acquire_within(&self, patience: Duration) -> Result<RemoteLockGuard, ClientError> {
        self.acquire_until(Some(Instant::now() + patience)).await
    }

    async fn acquire_until(&self, until: Option<Instant>) -> Result<RemoteLockGuard, ClientError> {
        // One token throughout: where an answer got lost, the next request is granted what that one took.
        let token = new_token()?;
        let mut pause = PAUSE;
        loop {
            let next = Instant::now() + pause;
            match self.guard(&token).await {
                Err(error)
                    if (error.is_held() || error.is_transient())
                        && until.is_none_or(|until| next <= until) => {}
                answer => return answer,
            }
            tokio::time::sleep_until(next).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn guard(&self, token: &str) -> Result<RemoteLockGuard, ClientError> {
        let asked = Instant::now();
        let AcquireLockAnswer { lock, .. } = self.grant(Some(token)).await?;
        let (end, ended) = oneshot::channel();
        let (tell, held) = watch::channel(Some(asked + self.ttl));
        let keeper = tokio::spawn(keep(self.clone(), token.to_owned(), tell, ended));
        Ok(RemoteLockGuard { lock, held, end, keeper })
    }

    /// Acquires the lock for the holder of this token, without a guard. Without a token, the server makes one.
    pub async fn grant(&self, token: Option<&str>) -> Result<AcquireLockAnswer, ClientError> {
        let request = AcquireLockRequest {
            owner: self.owner.clone(),
            ttl_ms: Some(self.ttl_ms()),
            lock_token: token.map(str::to_owned),
        };
        self.client.post(&self.path(""), &request, Duration::ZERO).await
    }

    /// Makes the lock last until now + ttl. Refused with the code `lock-lost` if this token no longer holds it.
    pub async fn extend(&self, token: &str) -> Result<ExtendLockAnswer, ClientError> {
        let request = ExtendLockRequest { lock_token: token.to_owned(), ttl_ms: Some(self.ttl_ms()) };
        self.client.post_for(&self.path("/extend"), &request, self.ttl / 3).await
    }

    /// False if this token no longer holds it.
    pub async fn release(&self, token: &str) -> Result<bool, ClientError> {
        let request = ReleaseLockRequest { lock_token: token.to_owned() };
        let answer: ReleaseLockAnswer =
            self.client.post_for(&self.path("/release"), &request, FAREWELL).await?;
        Ok(answer.released)
    }

    fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX)
    }

    fn path(&self, act: &str) -> String {
        // Whatever is in the name, it stays one part of the path; the server says what it may hold.
        let name = part(&self.name);
        format!("/v1/locks/{name}{act}")
    }
}

/// 128 bits that nobody can guess.
fn new_token() -> Result<String, ClientError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| ClientError::Randomness(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// A lock that is held. It extends itself, and is released when it is dropped or by [`RemoteLockGuard::release`].
#[derive(Debug)]
pub struct RemoteLockGuard {
    lock: HeldLock,
    /// Until when it is held for sure; none once it is lost.
    held: watch::Receiver<Option<Instant>>,
    /// Dropped, it ends the extending and releases the lock.
    end: oneshot::Sender<()>,
    keeper: JoinHandle<Result<bool, ClientError>>,
}

impl RemoteLockGuard {
    pub fn name(&self) -> &str {
        &self.lock.name
    }

    /// Higher than that of every earlier holder. Whatever the holder writes to can refuse one lower than it has seen.
    pub fn fence(&self) -> u64 {
        self.lock.fence
    }

    /// Whether the lock is still this holder's. Errs on the safe side: false before the store's time is over.
    pub fn is_held(&self) -> bool {
        self.held.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until the lock is lost. Never returns as long as it can be extended.
    pub async fn lost(&self) {
        let mut held = self.held.clone();
        loop {
            let Some(until) = *held.borrow_and_update() else { return };
            tokio::select! {
                changed = held.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(until) => return,
            }
        }
    }

    /// Releases the lock. False if it was lost before.
    pub async fn release(self) -> Result<bool, ClientError> {
        drop(self.end);
        self.keeper.await.unwrap_or(Ok(false))
    }
}

/// Extends a lock until its guard is released or the lock is lost. True if it was still held at the end.
async fn keep(
    lock: RemoteLock,
    token: String,
    held: watch::Sender<Option<Instant>>,
    mut end: oneshot::Receiver<()>,
) -> Result<bool, ClientError> {
    let mut pause = lock.ttl / 3;
    loop {
        tokio::select! {
            _ = &mut end => return lock.release(&token).await,
            () = tokio::time::sleep(pause) => {}
        }
        let asked = Instant::now();
        let until = match lock.extend(&token).await {
            Ok(_) => {
                pause = lock.ttl / 3;
                Some(asked + lock.ttl)
            }
            Err(error) if error.is_transient() => {
                pause = (lock.ttl / 10).min(LONGEST_PAUSE);
                held.borrow().filter(|until| Instant::now() < *until)
            }
            Err(_) => None,
        };
        held.send_replace(until);
        if until.is_none() {
            return Ok(false);
        }
    }
}
