//! Named locks. An expired one counts as gone; the next request replaces it.

use std::collections::btree_map::Entry;

use flowline_core::{Tenant, Time};

use super::rows::{Lock, Memory};
use crate::job::Renewal;
use crate::lock::{Acquired, LockProof, LockRequest, LockRow};

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

    pub fn renew_lock(&mut self, now: Time, lock: LockProof, renewal: Renewal) -> Option<Time> {
        let LockProof { tenant, name, token } = lock;
        let Entry::Occupied(mut held) = self.locks.entry((tenant, name)) else { return None };
        if held.get().token != token || held.get().until <= now {
            return None;
        }
        match renewal {
            Renewal::Extend(ttl) => {
                held.get_mut().until = now + ttl;
                Some(now + ttl)
            }
            Renewal::Release => {
                held.remove();
                Some(now)
            }
        }
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
