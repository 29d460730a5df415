//! Key-value state.

use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::{Json, Tenant, Time};

use super::rows::Memory;
use crate::state::{StateOwner, StatePage, StateQuery, StateValue};

impl Memory {
    pub fn state(&self, now: Time, tenant: &Tenant, owner: &StateOwner, key: &str) -> Option<StateValue> {
        let found = self.states.get(&(tenant.clone(), owner.clone()))?.get(key)?;
        found.live(now).then(|| found.clone())
    }

    pub fn states(&self, now: Time, tenant: &Tenant, owner: &StateOwner, query: &StateQuery) -> StatePage {
        let Some(values) = self.states.get(&(tenant.clone(), owner.clone())) else {
            return StatePage::default();
        };
        let after = query.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let later = values.range::<str, _>((after, Bound::Unbounded)).map(|(_, value)| value);
        let live = later.filter(|value| value.live(now)).cloned();
        StatePage::fill(live.map(Ok::<_, Infallible>), query.limit).unwrap_or_default()
    }

    pub fn scopes(&self, now: Time, tenant: &Tenant) -> Vec<Arc<str>> {
        let named =
            |((of, owner), values): (&(Tenant, StateOwner), &std::collections::BTreeMap<_, StateValue>)| {
                match owner {
                    StateOwner::Named(name) if of == tenant => {
                        values.values().any(|value| value.live(now)).then(|| name.clone())
                    }
                    _ => None,
                }
            };
        self.states.iter().filter_map(named).collect()
    }

    pub fn change_state(
        &mut self,
        now: Time,
        tenant: &Tenant,
        owner: &StateOwner,
        key: &str,
        value: Option<Json>,
        ttl: Option<Duration>,
    ) {
        let owner = (tenant.clone(), owner.clone());
        let values = self.states.entry(owner.clone()).or_default();
        match value {
            Some(value) => {
                let expires = ttl.map(|ttl| now + ttl);
                let key = key.to_owned();
                values.insert(key.clone(), StateValue { key, value, expires });
            }
            None => {
                values.remove(key);
                if values.is_empty() {
                    self.states.remove(&owner);
                }
            }
        }
    }
}
