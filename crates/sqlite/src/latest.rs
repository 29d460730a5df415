//! The newest definitions, kept in mind by the one engine that can change them: a start by name reads no file.
//!
//! What is kept is forgotten after every transaction that may have changed a definition, before anyone is told of it; and
//! what was read before such a transaction ended is not kept. So nobody who was told of a registration is given the
//! definition before it. Processes that only read keep nothing: others write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowline_core::Tenant;
use flowline_store::StoredDefinition;

/// Flows that are kept; beyond that all are read again.
const KEPT: usize = 1_000;

#[derive(Debug, Clone, Default)]
pub(crate) struct Latest(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// How often all was forgotten.
    age: u64,
    count: usize,
    flows: HashMap<Tenant, HashMap<Arc<str>, StoredDefinition>>,
}

/// Forgets all when it is dropped: it goes with the request to the writer, which outlives its transaction.
#[derive(Debug)]
pub(crate) struct Forget(Latest);

impl Latest {
    /// The definition, or the age to keep it with once it is read.
    pub(crate) fn get(&self, tenant: &Tenant, flow: &str) -> Result<StoredDefinition, u64> {
        let known = self.lock();
        known.flows.get(tenant).and_then(|flows| flows.get(flow)).cloned().ok_or(known.age)
    }

    pub(crate) fn keep(&self, age: u64, definition: &StoredDefinition) {
        let mut known = self.lock();
        if known.age != age {
            return;
        }
        if known.count >= KEPT {
            known.forget();
        }
        let flows = known.flows.entry(definition.tenant.clone()).or_default();
        if flows.insert(definition.flow.clone(), definition.clone()).is_none() {
            known.count += 1;
        }
    }

    pub(crate) fn forget(&self) -> Forget {
        Forget(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn forget(&mut self) {
        *self = Known { age: self.age + 1, ..Known::default() };
    }
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.0.lock().forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline_core::Time;

    fn definition(hash: &str) -> StoredDefinition {
        StoredDefinition {
            tenant: Tenant::default(),
            flow: "f".into(),
            hash: hash.into(),
            body: "{}".to_owned(),
            origin: None,
            created_at: Time::default(),
            latest: true,
        }
    }

    #[test]
    fn what_was_read_before_a_registration_ended_is_not_kept() {
        let latest = Latest::default();
        let get = || latest.get(&Tenant::default(), "f").map(|found| found.hash);
        let age = get().unwrap_err();
        let registration = latest.forget();
        latest.keep(age, &definition("old"));
        assert_eq!(get(), Ok("old".into()), "it is the truth until the registration ends");
        drop(registration);
        assert!(get().is_err());
        latest.keep(age, &definition("old"));
        let age = get().unwrap_err();
        latest.keep(age, &definition("new"));
        assert_eq!(get(), Ok("new".into()));
    }
}
