//! Plans by tenant and hash: each definition is read and compiled once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flowline_core::definition::read_stored;
use flowline_core::{Plan, Tenant};
use flowline_store::{Store, StoreError};

#[derive(Debug, Default)]
pub struct Plans {
    by_hash: Mutex<HashMap<Arc<str>, Arc<Plan>>>,
}

impl Plans {
    pub fn put(&self, plan: Arc<Plan>) {
        self.lock().insert(plan.hash.clone(), plan);
    }

    pub fn cached(&self, hash: &str) -> Option<Arc<Plan>> {
        self.lock().get(hash).cloned()
    }

    /// The plan of a stored definition. What is stored was checked before, so anything wrong with it is damage.
    pub async fn get(
        &self,
        store: &dyn Store,
        tenant: &Tenant,
        hash: &Arc<str>,
    ) -> Result<Arc<Plan>, StoreError> {
        if let Some(plan) = self.lock().get(hash) {
            return Ok(plan.clone());
        }
        let stored = store.definition(tenant, hash).await?;
        let stored = stored.ok_or_else(|| StoreError::Damaged(format!("definition {hash} is missing")))?;
        let damaged = |problem: String| StoreError::Damaged(format!("definition {hash}: {problem}"));
        let definition =
            read_stored(&stored.flow, &stored.body).map_err(|error| damaged(error.to_string()))?;
        let plan = Plan::build(definition).map_err(|error| damaged(error.to_string()))?;
        if *plan.hash != **hash {
            return Err(damaged("its content has another hash".to_owned()));
        }
        let plan = Arc::new(plan);
        self.put(plan.clone());
        Ok(plan)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Arc<Plan>>> {
        self.by_hash.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
