//! Plans by tenant and hash: each definition is read and compiled once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flowline_core::definition::read_stored;
use flowline_core::{Plan, Tenant};
use flowline_store::{Store, StoreError, StoredDefinition};

use crate::aside::Aside;

#[derive(Debug, Default)]
pub struct Plans {
    by_hash: Mutex<HashMap<Arc<str>, Arc<Plan>>>,
    aside: Option<Arc<Aside>>,
}

impl Plans {
    /// Plans that are compiled where that holds up nobody. By default they are compiled on the spot.
    pub fn compiled_by(aside: Arc<Aside>) -> Plans {
        Plans { aside: Some(aside), ..Plans::default() }
    }

    /// What compiles them.
    pub(crate) fn aside(&self) -> Arc<Aside> {
        self.aside.clone().unwrap_or_default()
    }

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
        let plan = match &self.aside {
            Some(aside) => aside.run(tenant, move || compile(&stored)).await?,
            None => compile(&stored)?,
        };
        let plan = Arc::new(plan);
        self.put(plan.clone());
        Ok(plan)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Arc<Plan>>> {
        self.by_hash.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compile(stored: &StoredDefinition) -> Result<Plan, StoreError> {
    let damaged = |problem: String| StoreError::Damaged(format!("definition {}: {problem}", stored.hash));
    let definition = read_stored(&stored.flow, &stored.body).map_err(|error| damaged(error.to_string()))?;
    let plan = Plan::build(definition).map_err(|error| damaged(error.to_string()))?;
    match plan.hash == stored.hash {
        true => Ok(plan),
        false => Err(damaged("its content has another hash".to_owned())),
    }
}
