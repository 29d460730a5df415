//! Key-value state.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::Arc;

use flowline_core::{Tenant, Time};

use super::rows::Memory;
use crate::state::{StateEdit, StateOwner, StatePage, StateQuery, StateSpace, StateValue};

impl Memory {
    pub fn states(&self, now: Time, space: &StateSpace, query: &StateQuery) -> StatePage {
        let Some(values) = self.states.get(space) else { return StatePage::default() };
        let from = match (&query.key, &query.after) {
            (Some(key), _) => Bound::Included(key.as_str()),
            (None, Some(after)) => Bound::Excluded(after.as_str()),
            (None, None) => Bound::Unbounded,
        };
        let to = query.key.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let live = values.range::<str, _>((from, to)).map(|(_, value)| value).filter(|value| value.live(now));
        StatePage::fill(live.cloned().map(Ok::<_, Infallible>), query.limit).unwrap_or_default()
    }

    pub fn scopes(&self, now: Time, tenant: &Tenant) -> Vec<Arc<str>> {
        let of_tenant = self.live_spaces(now).filter(|space| space.tenant == *tenant);
        let named = of_tenant.filter_map(|space| match &space.owner {
            StateOwner::Named(name) => Some(name.clone()),
            _ => None,
        });
        named.collect()
    }

    /// Those with a live value.
    pub(super) fn live_spaces(&self, now: Time) -> impl Iterator<Item = &StateSpace> {
        let live = move |values: &BTreeMap<_, StateValue>| values.values().any(|value| value.live(now));
        self.states.iter().filter(move |(_, values)| live(values)).map(|(space, _)| space)
    }

    pub fn change_state(&mut self, now: Time, space: &StateSpace, edit: StateEdit) {
        let StateEdit { key, value, ttl } = edit;
        let values = self.states.entry(space.clone()).or_default();
        match value {
            Some(value) => {
                let expires = ttl.map(|ttl| now + ttl);
                values.insert(key.clone(), StateValue { key, value, expires });
            }
            None => {
                values.remove(&key);
                if values.is_empty() {
                    self.states.remove(space);
                }
            }
        }
    }
}
