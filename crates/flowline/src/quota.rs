//! Quotas: how many runs a tenant may have that haven't ended, and how many it may start per second.
//!
//! They cost a start nothing that counts. Runs are counted from the counters that the store keeps anyway, read at most once a
//! second for all tenants, and what this instance starts in between is added. So with several instances a tenant can be over
//! by what the others start in a second. Starts per second are counted by each instance for itself.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flowline_core::Tenant;
use flowline_store::{Store, StoreError};

use crate::engine::EngineError;

/// How long a count of runs is believed.
const BELIEVED: Duration = Duration::from_secs(1);
const SECOND: Duration = Duration::from_secs(1);

/// What one tenant may have at most; no limit where it's `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Runs that haven't ended.
    pub runs: Option<u64>,
    /// Starts per second.
    pub starts: Option<u64>,
}

/// The quotas of all tenants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Of each tenant that `tenants` says nothing else of.
    pub each: Quota,
    pub tenants: BTreeMap<Tenant, Quota>,
}

impl Quotas {
    pub fn of(&self, tenant: &Tenant) -> Quota {
        let own = self.tenants.get(tenant).copied().unwrap_or_default();
        Quota { runs: own.runs.or(self.each.runs), starts: own.starts.or(self.each.starts) }
    }

    fn is_empty(&self) -> bool {
        self.each == Quota::default() && self.tenants.is_empty()
    }
}

/// What tenants use of their quotas, as far as this instance knows.
#[derive(Debug, Default)]
pub(crate) struct QuotaUse {
    quotas: Quotas,
    known: Mutex<QuotaCounts>,
    /// Held by the one that counts; the others wait for its count.
    counting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct QuotaCounts {
    counted: Option<Instant>,
    /// Runs that haven't ended.
    runs: BTreeMap<Tenant, u64>,
    /// When a tenant will have its whole second of starts back.
    full_at: BTreeMap<Tenant, Instant>,
}

impl QuotaUse {
    pub fn new(quotas: Quotas) -> QuotaUse {
        QuotaUse { quotas, ..QuotaUse::default() }
    }

    /// Counts a start, or refuses it.
    pub async fn admit(&self, store: &dyn Store, tenant: &Tenant) -> Result<(), EngineError> {
        if self.quotas.is_empty() {
            return Ok(());
        }
        let quota = self.quotas.of(tenant);
        if quota.runs.is_some() {
            self.count(store).await?;
        }
        self.take(tenant, quota, Instant::now())
    }

    fn take(&self, tenant: &Tenant, quota: Quota, now: Instant) -> Result<(), EngineError> {
        let mut known = self.lock();
        let runs = known.runs.get(tenant).copied().unwrap_or_default();
        if let Some(most) = quota.runs.filter(|most| runs >= *most) {
            let detail = format!("tenant {tenant} has {most} runs that haven't ended, its quota (runs)");
            return Err(EngineError::Quota { detail, retry_after: None });
        }
        if let Some(most) = quota.starts {
            let share = SECOND / u32::try_from(most.max(1)).unwrap_or(u32::MAX);
            let full_at = known.full_at.get(tenant).copied().unwrap_or(now).max(now);
            let wait = (full_at + share).saturating_duration_since(now + SECOND);
            if !wait.is_zero() {
                let detail =
                    format!("tenant {tenant} started {most} runs within a second, its quota (starts)");
                return Err(EngineError::Quota { detail, retry_after: Some(wait) });
            }
            known.full_at.insert(tenant.clone(), full_at + share);
        }
        if quota.runs.is_some() {
            *known.runs.entry(tenant.clone()).or_default() += 1;
        }
        Ok(())
    }

    /// Counts the runs of all tenants, unless that was done just now.
    async fn count(&self, store: &dyn Store) -> Result<(), StoreError> {
        let is_known = || self.lock().counted.is_some_and(|at| at.elapsed() < BELIEVED);
        if is_known() {
            return Ok(());
        }
        let _turn = self.counting.lock().await;
        if is_known() {
            return Ok(());
        }
        let mut runs = BTreeMap::<Tenant, u64>::new();
        for counter in store.counters().await?.iter().filter(|counter| !counter.status.is_terminal()) {
            *runs.entry(counter.tenant.clone()).or_default() += counter.count;
        }
        let now = Instant::now();
        let mut known = self.lock();
        known.full_at.retain(|_, full_at| *full_at > now);
        (known.counted, known.runs) = (Some(now), runs);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, QuotaCounts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_starts_so_many_runs_a_second_and_another_as_many() {
        let (ours, theirs) = (Tenant::default(), Tenant::new("theirs").unwrap());
        let quotas = Quotas { each: Quota { runs: None, starts: Some(10) }, ..Quotas::default() };
        let (used, now) = (QuotaUse::new(quotas.clone()), Instant::now());
        let take = |tenant: &Tenant, at: Instant| used.take(tenant, quotas.of(tenant), at);
        assert!((0..10).all(|_| take(&ours, now).is_ok()));
        let Err(EngineError::Quota { retry_after: Some(wait), .. }) = take(&ours, now) else {
            panic!("refused")
        };
        assert_eq!(wait, SECOND / 10);
        assert!(take(&theirs, now).is_ok());
        assert!(take(&ours, now + wait).is_ok() && take(&ours, now + wait).is_err());
    }

    #[test]
    fn what_is_said_of_a_tenant_comes_before_what_is_said_of_each() {
        let acme = Tenant::new("acme").unwrap();
        let each = Quota { runs: Some(10), starts: Some(5) };
        let tenants = BTreeMap::from([(acme.clone(), Quota { runs: Some(3), starts: None })]);
        let quotas = Quotas { each, tenants };
        assert_eq!(quotas.of(&acme), Quota { runs: Some(3), starts: Some(5) });
        assert_eq!(quotas.of(&Tenant::default()), each);
    }
}
