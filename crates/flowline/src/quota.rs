//! Quotas: how many runs a tenant may have that haven't ended, and how many it may start per second.
//!
//! They cost a start nothing that counts. Runs are counted from the counters that the store keeps anyway, read at most once a
//! second for all tenants, and what this instance starts in between is added. So with several instances a tenant can be over
//! by what the others start in a second. Starts per second are counted by each instance for itself. A start that starts no
//! run counts for neither.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flowline_core::Tenant;
use flowline_store::{Store, StoreError};

use crate::engine::EngineError;

/// How long a count of runs is believed, and that there is none because the store failed.
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
    /// Held by the one that counts; the others believe the last count, or wait for the first.
    counting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct QuotaCounts {
    counted: Option<Instant>,
    /// When the store couldn't be asked, and why.
    failed: Option<(Instant, StoreError)>,
    /// Runs that haven't ended: those that were counted, and those that were started here since.
    runs: BTreeMap<Tenant, u64>,
    /// Those of them that were started since the last count began, which may not be in it.
    since: BTreeMap<Tenant, u64>,
    /// Starts that were let through and aren't done yet.
    under_way: BTreeMap<Tenant, u64>,
    /// When a tenant will have its whole second of starts back.
    full_at: BTreeMap<Tenant, Instant>,
}

/// A start that was let through. When this is dropped, it's given back unless it started a run.
#[derive(Debug)]
pub(crate) struct AdmittedStart<'a> {
    used: &'a QuotaUse,
    tenant: Tenant,
    quota: Quota,
    /// Whether it started a run, or still may.
    pub started: bool,
}

impl Drop for AdmittedStart<'_> {
    fn drop(&mut self) {
        self.used.done(&self.tenant, self.quota, self.started);
    }
}

impl QuotaUse {
    pub fn new(quotas: Quotas) -> QuotaUse {
        QuotaUse { quotas, ..QuotaUse::default() }
    }

    /// Counts a start, or refuses it. `None` where there are no quotas.
    pub async fn admit(
        &self,
        store: &dyn Store,
        tenant: &Tenant,
    ) -> Result<Option<AdmittedStart<'_>>, EngineError> {
        if self.quotas.is_empty() {
            return Ok(None);
        }
        let quota = self.quotas.of(tenant);
        if quota.runs.is_some() {
            self.count(store).await?;
        }
        self.take(tenant, quota, Instant::now())?;
        Ok(Some(AdmittedStart { used: self, tenant: tenant.clone(), quota, started: false }))
    }

    fn take(&self, tenant: &Tenant, quota: Quota, now: Instant) -> Result<(), EngineError> {
        let mut known = self.lock();
        let of_tenant = |runs: &BTreeMap<Tenant, u64>| runs.get(tenant).copied().unwrap_or_default();
        let runs = of_tenant(&known.runs) + of_tenant(&known.under_way);
        if let Some(most) = quota.runs.filter(|most| runs >= *most) {
            let detail = format!("tenant {tenant} has {most} runs that haven't ended, its quota (runs)");
            return Err(EngineError::Quota { detail, retry_after: None });
        }
        if let Some(most) = quota.starts {
            let share = share(most);
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
            *known.under_way.entry(tenant.clone()).or_default() += 1;
        }
        Ok(())
    }

    /// A start that was let through is done.
    fn done(&self, tenant: &Tenant, quota: Quota, started: bool) {
        let mut guard = self.lock();
        let known = &mut *guard;
        if quota.runs.is_some() {
            if let Some(under_way) = known.under_way.get_mut(tenant) {
                *under_way = under_way.saturating_sub(1);
            }
            known.under_way.retain(|_, under_way| *under_way > 0);
            if started {
                *known.runs.entry(tenant.clone()).or_default() += 1;
                *known.since.entry(tenant.clone()).or_default() += 1;
            }
        }
        if let (false, Some(most), Some(full_at)) = (started, quota.starts, known.full_at.get_mut(tenant)) {
            *full_at = full_at.checked_sub(share(most)).unwrap_or(*full_at);
        }
    }

    /// Counts the runs of all tenants, unless that was done just now.
    async fn count(&self, store: &dyn Store) -> Result<(), StoreError> {
        if let Some(last) = self.last() {
            return last;
        }
        let was_counted = self.lock().counted.is_some();
        let _turn = match self.counting.try_lock() {
            Ok(turn) => turn,
            Err(_) if was_counted => return Ok(()),
            Err(_) => self.counting.lock().await,
        };
        if let Some(last) = self.last() {
            return last;
        }
        self.lock().since.clear();
        let counted = store.counters().await;
        let now = Instant::now();
        let mut guard = self.lock();
        let known = &mut *guard;
        known.full_at.retain(|_, full_at| *full_at > now);
        let counters = match counted {
            Ok(counters) => counters,
            Err(error) => {
                known.failed = Some((now, error.clone()));
                return Err(error);
            }
        };
        let mut runs = known.since.clone();
        for counter in counters.iter().filter(|counter| !counter.status.is_terminal()) {
            *runs.entry(counter.tenant.clone()).or_default() += counter.count;
        }
        (known.counted, known.failed, known.runs) = (Some(now), None, runs);
        Ok(())
    }

    /// What the last count came to, if it was just now.
    fn last(&self) -> Option<Result<(), StoreError>> {
        let known = self.lock();
        if known.counted.is_some_and(|at| at.elapsed() < BELIEVED) {
            return Some(Ok(()));
        }
        let (at, error) = known.failed.as_ref()?;
        (at.elapsed() < BELIEVED).then(|| Err(error.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, QuotaCounts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one start takes of a second, where there may be this many.
fn share(most: u64) -> Duration {
    SECOND / u32::try_from(most.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use flowline_store::{Clock, MemoryStore};

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

    #[tokio::test]
    async fn a_start_that_starts_nothing_is_given_back_and_one_under_way_outlasts_a_count() {
        let store = MemoryStore::new(Clock::system());
        let quotas = Quotas { each: Quota { runs: Some(1), starts: Some(1) }, ..Quotas::default() };
        let (used, tenant) = (QuotaUse::new(quotas), Tenant::default());
        let first = used.admit(&store, &tenant).await.unwrap();
        used.lock().counted = None;
        assert!(used.admit(&store, &tenant).await.is_err());
        drop(first);
        let mut second = used.admit(&store, &tenant).await.unwrap().unwrap();
        second.started = true;
        drop(second);
        assert!(used.admit(&store, &tenant).await.is_err());
        assert!(used.lock().under_way.is_empty());
    }

    #[tokio::test]
    async fn while_one_counts_the_others_believe_the_last_count() {
        let store = MemoryStore::new(Clock::system());
        let used = QuotaUse::default();
        used.count(&store).await.unwrap();
        let _slow = used.counting.lock().await;
        used.lock().counted = Instant::now().checked_sub(2 * BELIEVED);
        assert_eq!(used.count(&store).await, Ok(()));
        let error = StoreError::Unavailable("gone".to_owned());
        used.lock().failed = Some((Instant::now(), error.clone()));
        assert_eq!(used.count(&store).await, Err(error));
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
