//! Named locks. One whose time is over is as good as gone; the next that asks for it takes its place.

use std::time::Duration;

use flowline_core::{Tenant, Time};

use super::rows::{Lock, Memory};
use crate::job::Token;
use crate::lock::{Acquired, LockRequest, LockRow};

impl Memory {
    pub fn acquire_lock(&mut self, now: Time, request: LockRequest) -> Acquired {
        let LockRequest { tenant, name, owner, token, ttl } = request;
        let until = now + ttl;
        let key = (tenant, name);
        let mut since = now.max(Time::from_millis(self.last_lock.millis() + 1));
        if let Some(held) = self.locks.get(&key).filter(|held| now < held.until) {
            if held.token != token {
                return Acquired::Held { owner: held.owner.clone(), until: held.until };
            }
            since = held.since;
        }
        self.last_lock = self.last_lock.max(since);
        self.locks.insert(key, Lock { owner, token, since, until });
        Acquired::Granted { since, until }
    }

    pub fn extend_lock(
        &mut self,
        now: Time,
        tenant: &Tenant,
        name: &str,
        token: Token,
        ttl: Duration,
    ) -> Option<Time> {
        let held = self.locks.get_mut(&(tenant.clone(), name.to_owned()))?;
        if held.token != token || held.until <= now {
            return None;
        }
        held.until = now + ttl;
        Some(held.until)
    }

    pub fn release_lock(&mut self, now: Time, tenant: &Tenant, name: &str, token: Token) -> bool {
        let key = (tenant.clone(), name.to_owned());
        let held = self.locks.get(&key).is_some_and(|held| held.token == token && now < held.until);
        if held {
            self.locks.remove(&key);
        }
        held
    }

    pub fn locks(&self, now: Time, tenant: &Tenant) -> Vec<LockRow> {
        let of_tenant = self.locks.iter().filter(|((of, _), held)| of == tenant && now < held.until);
        let row = |((_, name), held): (&(Tenant, String), &Lock)| LockRow {
            name: name.clone(),
            owner: held.owner.clone(),
            since: held.since,
            until: held.until,
        };
        of_tenant.map(row).collect()
    }
}
