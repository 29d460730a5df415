//! When tokens were last used. A request only notes it, in memory; it's written in the background, so that it costs no
//! request anything, and rarely, so that it costs the store nothing that counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flowline::core::Tenant;
use flowline::store::{Store, StoreError};

use super::access::Principal;
use crate::token;

/// How often this instance looks whether there's something to write.
const LOOK: Duration = Duration::from_secs(2);
/// How often it writes the same token.
const WRITE: Duration = Duration::from_secs(5 * 60);
/// How long a server that stops tries to write the rest.
const PATIENCE: Duration = Duration::from_secs(1);

/// Uses of tokens at this instance.
#[derive(Debug, Default)]
pub struct TokenUses(Mutex<HashMap<Arc<str>, Use>>);

#[derive(Debug)]
struct Use {
    tenant: Tenant,
    /// Since it was last written.
    again: bool,
    written: Option<Instant>,
}

impl TokenUses {
    /// Notes that a token is used.
    pub fn note(&self, principal: &Principal) {
        let Some(id) = &principal.token_id else { return };
        let tenant = || principal.tenant.clone();
        let mut uses = self.lock();
        uses.entry(id.clone())
            .or_insert_with(|| Use { tenant: tenant(), again: true, written: None })
            .again = true;
    }

    /// Writes what was noted, for as long as it's polled.
    pub async fn keep(&self, store: &dyn Store) {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Err(error) = self.write(store, WRITE).await {
                tracing::debug!(%error, "could not write when tokens were last used");
            }
        }
    }

    /// Writes the rest, before the end.
    pub async fn finish(&self, store: &dyn Store) {
        let _ = tokio::time::timeout(PATIENCE, self.write(store, Duration::ZERO)).await;
    }

    /// Writes the tokens that were used and not written for this long.
    async fn write(&self, store: &dyn Store, age: Duration) -> Result<(), StoreError> {
        let due: Vec<(Arc<str>, Tenant)> = {
            let mut uses = self.lock();
            let is_due = |noted: &Use| noted.written.is_none_or(|at| at.elapsed() >= age);
            uses.retain(|_, noted| noted.again || !is_due(noted));
            let due = uses.iter().filter(|(_, noted)| noted.again && is_due(noted));
            due.map(|(id, noted)| (id.clone(), noted.tenant.clone())).collect()
        };
        if due.is_empty() {
            return Ok(());
        }
        let now = store.now().await?;
        for (id, tenant) in due {
            token::used(store, &tenant, &id, now).await?;
            if let Some(noted) = self.lock().get_mut(&id) {
                (noted.again, noted.written) = (false, Some(Instant::now()));
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline::store::{Clock, MemoryStore};
    use flowline_api::access::{NewToken, TokenScope};

    #[tokio::test]
    async fn a_use_is_written_once_in_a_while_however_often_the_token_is_used() {
        let clock = Clock::manual(flowline::core::Time::default());
        let (store, tenant) = (MemoryStore::new(clock.clone()), Tenant::default());
        let new = NewToken { subject: "ci".into(), scopes: vec![TokenScope::Read], ..NewToken::default() };
        let made = token::create(&store, &tenant, new).await.unwrap();
        let principal = Principal { token_id: Some(made.row.id.into()), ..Principal::anyone(tenant.clone()) };
        let used = async || token::list(&store, &tenant).await.unwrap()[0].last_used_at;
        let uses = TokenUses::default();
        uses.write(&store, WRITE).await.unwrap();
        assert_eq!(used().await, None);
        clock.advance(Duration::from_secs(10));
        uses.note(&principal);
        uses.write(&store, WRITE).await.unwrap();
        let first = used().await;
        assert_eq!(first, Some(clock.now()));
        clock.advance(Duration::from_secs(10));
        uses.note(&principal);
        uses.write(&store, WRITE).await.unwrap();
        assert_eq!(used().await, first);
        // What is left at the end is written all the same, and then nothing is remembered.
        uses.finish(&store).await;
        assert_eq!(used().await, Some(clock.now()));
        uses.write(&store, Duration::ZERO).await.unwrap();
        assert!(uses.lock().is_empty());
    }
}
