//! Named locks for users: one holder at a time among all instances, steps and clients of a tenant.
//!
//! A lock expires by the store's clock if its holder stops extending it. So it can be lost, because the process hung or
//! the store was unreachable. [`LockGuard`] extends the lock and reports its loss. To keep a late holder from writing,
//! check the [fence](LockGuard::fence), which grows with every grant. The engine's correctness doesn't depend on locks.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::ids::{NameError, check_name};
use flowline_core::{Tenant, Time};
use flowline_store::lock::fence;
use flowline_store::{Acquired, LockProof, LockRequest, LockRow, Renewal, Store, StoreError, Token};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::slots::Tokens;

/// How long a lock lasts after it was last extended, unless told otherwise.
pub const TTL: Duration = Duration::from_secs(30);
/// Below this, a busy machine loses locks that it holds.
pub const SHORTEST_TTL: Duration = Duration::from_secs(1);
pub const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);
/// The longest name of an owner, in bytes.
pub const OWNER_BYTES: usize = 256;
/// What the names of the engine's own locks begin with. No user's lock has a `/` in its name.
const OWN: &str = "flowline/";
/// The first pause before a held lock is tried again; doubled up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    #[error("lock {name:?} is held by {owner} until {until}")]
    Held { name: String, owner: String, until: Time },
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What proves that a lock is its holder's. Nobody can guess one.
pub fn new_token() -> Token {
    Tokens::random().next()
}

/// A lock to be taken.
#[derive(Clone)]
pub struct NamedLock {
    store: Arc<dyn Store>,
    tenant: Tenant,
    name: String,
    owner: String,
    ttl: Duration,
    /// Whether it is one of the engine's own.
    own: bool,
}

impl std::fmt::Debug for NamedLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NamedLock({}/{})", self.tenant, self.name)
    }
}

/// What the store granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockGrant {
    /// Higher than that of every earlier holder.
    pub fence: u64,
    pub since: Time,
    pub until: Time,
}

impl Engine {
    /// The lock of this name in the engine's tenant: letters, digits, `.`, `_` and `-`, up to 128.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// let lock = engine.lock("nightly-report").acquire().await?;
    /// tokio::select! {
    ///     () = lock.lost() => eprintln!("someone else may hold it now"),
    ///     () = async { /* the work; pass lock.fence() on to what it writes to */ } => {}
    /// }
    /// lock.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, name: impl Into<String>) -> NamedLock {
        NamedLock::new(self.shared.store.clone(), self.tenant().clone(), name)
            .owner(&*self.shared.config.instance)
    }

    /// The tenant's locks that somebody holds, by name.
    pub async fn locks(&self) -> Result<Vec<LockRow>, StoreError> {
        held_locks(self.store(), self.tenant()).await
    }
}

/// The locks of users that somebody holds, by name.
pub async fn held_locks(store: &dyn Store, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
    let mut rows = store.locks(tenant).await?;
    rows.retain(|row| !row.name.starts_with(OWN));
    Ok(rows)
}

impl NamedLock {
    pub fn new(store: Arc<dyn Store>, tenant: Tenant, name: impl Into<String>) -> NamedLock {
        let (name, owner) = (name.into(), "unknown".to_owned());
        NamedLock { store, tenant, name, owner, ttl: TTL, own: false }
    }

    /// A lock of the engine's own: who does this for the store.
    pub(crate) fn own(store: Arc<dyn Store>, what: &str) -> NamedLock {
        NamedLock { own: true, ..NamedLock::new(store, Tenant::default(), format!("{OWN}{what}")) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// How long the lock lasts after it was last extended; a guard extends it every third of this. From 1 s to 24 h.
    pub fn ttl(mut self, ttl: Duration) -> NamedLock {
        self.ttl = ttl;
        self
    }

    /// The owner that others are shown.
    pub fn owner(mut self, owner: impl Into<String>) -> NamedLock {
        self.owner = owner.into();
        self
    }

    /// Acquires the lock, or fails with [`LockError::Held`].
    pub async fn try_acquire(&self) -> Result<LockGuard, LockError> {
        self.guard(new_token()).await
    }

    /// Waits for the lock as long as it takes.
    pub async fn acquire(&self) -> Result<LockGuard, LockError> {
        self.acquire_until(None).await
    }

    /// Waits for the lock, then fails with [`LockError::Held`].
    pub async fn acquire_within(&self, patience: Duration) -> Result<LockGuard, LockError> {
        self.acquire_until(Some(Instant::now() + patience)).await
    }

    async fn acquire_until(&self, until: Option<Instant>) -> Result<LockGuard, LockError> {
        // One token throughout: where an answer got lost, the next request is granted what that one took.
        let token = new_token();
        let mut pause = PAUSE;
        loop {
            let next = Instant::now() + pause;
            match self.guard(token).await {
                Err(LockError::Held { .. }) if until.is_none_or(|until| next <= until) => {}
                Err(LockError::Store(error))
                    if error.is_transient() && until.is_none_or(|until| next <= until) => {}
                answer => return answer,
            }
            tokio::time::sleep_until(next).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn guard(&self, token: Token) -> Result<LockGuard, LockError> {
        let asked = Instant::now();
        let grant = self.grant(token).await?;
        Ok(LockGuard::keep(self.clone(), token, grant, asked + self.ttl))
    }

    /// Acquires the lock for the holder of this token, without a guard.
    pub async fn grant(&self, token: Token) -> Result<LockGrant, LockError> {
        check_name("lock", self.name.strip_prefix(OWN).filter(|_| self.own).unwrap_or(&self.name))?;
        check_ttl(self.ttl)?;
        if self.owner.is_empty() || self.owner.len() > OWNER_BYTES {
            return Err(LockError::Invalid(format!(
                "the owner of a lock must have 1 to {OWNER_BYTES} bytes"
            )));
        }
        let request = LockRequest {
            tenant: self.tenant.clone(),
            name: self.name.clone(),
            owner: self.owner.clone(),
            token,
            ttl: self.ttl,
        };
        match self.store.acquire_lock(request).await? {
            Acquired::Granted { since, until } => Ok(LockGrant { fence: fence(since), since, until }),
            Acquired::Held { owner, until } => Err(LockError::Held { name: self.name.clone(), owner, until }),
        }
    }

    /// Makes the lock last until now + ttl. `None` if this token no longer holds it.
    pub async fn extend(&self, token: Token) -> Result<Option<Time>, LockError> {
        check_ttl(self.ttl)?;
        Ok(self.renew(token, Renewal::Extend(self.ttl)).await?)
    }

    /// False if this token no longer holds it.
    pub async fn release(&self, token: Token) -> Result<bool, StoreError> {
        Ok(self.renew(token, Renewal::Release).await?.is_some())
    }

    async fn renew(&self, token: Token, renewal: Renewal) -> Result<Option<Time>, StoreError> {
        self.store.renew_lock(LockProof::new(&self.tenant, &self.name, token), renewal).await
    }
}

fn check_ttl(ttl: Duration) -> Result<(), LockError> {
    if (SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
        return Ok(());
    }
    Err(LockError::Invalid("the TTL of a lock must be 1 s to 24 h".to_owned()))
}

/// A lock that is held. It extends itself, and is released when it is dropped or by [`LockGuard::release`].
#[derive(Debug)]
pub struct LockGuard {
    name: String,
    token: Token,
    grant: LockGrant,
    /// Until when it is held for sure; none once it is lost.
    held: watch::Receiver<Option<Instant>>,
    /// Ends the extending. Dropped, it releases the lock.
    end: oneshot::Sender<Duration>,
    keeper: JoinHandle<Result<bool, StoreError>>,
}

impl LockGuard {
    fn keep(lock: NamedLock, token: Token, grant: LockGrant, until: Instant) -> LockGuard {
        let name = lock.name.clone();
        let (end, ended) = oneshot::channel();
        let (tell, held) = watch::channel(Some(until));
        let keeper = tokio::spawn(keep(lock, token, tell, ended));
        LockGuard { name, token, grant, held, end, keeper }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Higher than that of every earlier holder. Whatever the holder writes to can refuse one lower than it has seen.
    pub fn fence(&self) -> u64 {
        self.grant.fence
    }

    /// What proves that the lock is held by this guard.
    pub fn token(&self) -> Token {
        self.token
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
    pub async fn release(self) -> Result<bool, StoreError> {
        drop(self.end);
        self.keeper.await.unwrap_or(Ok(false))
    }

    /// Stops extending, and leaves the lock to end by itself after this long.
    pub(crate) async fn leave(self, ttl: Duration) -> Result<bool, StoreError> {
        if ttl.is_zero() {
            return self.release().await;
        }
        let _ = self.end.send(ttl);
        self.keeper.await.unwrap_or(Ok(false))
    }
}

/// Extends a lock until its guard is released or the lock is lost. True if it was still held at the end.
async fn keep(
    lock: NamedLock,
    token: Token,
    held: watch::Sender<Option<Instant>>,
    mut end: oneshot::Receiver<Duration>,
) -> Result<bool, StoreError> {
    let extend = async |ttl| lock.renew(token, Renewal::Extend(ttl)).await;
    let mut pause = lock.ttl / 3;
    loop {
        tokio::select! {
            ended = &mut end => return match ended {
                Ok(ttl) => Ok(extend(ttl).await?.is_some()),
                Err(_) => lock.release(token).await,
            },
            () = tokio::time::sleep(pause) => {}
        }
        let asked = Instant::now();
        let until = match extend(lock.ttl).await {
            Ok(Some(_)) => {
                pause = lock.ttl / 3;
                Some(asked + lock.ttl)
            }
            Ok(None) => None,
            // The store may be back before the time is over.
            Err(_) => {
                pause = (lock.ttl / 10).min(LONGEST_PAUSE);
                held.borrow().filter(|until| Instant::now() < *until)
            }
        };
        held.send_replace(until);
        if until.is_none() {
            return Ok(false);
        }
    }
}
