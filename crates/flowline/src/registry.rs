//! The registry: which definition new runs of a flow use.
//!
//! A definition is identified by the hash of its content. One of them is its flow's latest, which new runs use.
//! Registering a definition makes it the latest, even if it was registered before. An instance that starts up can add a
//! new definition, but can't bring back an old one. A retired flow has no latest: its runs continue, but no new ones
//! start.

use std::sync::Arc;

use flowline_core::definition::Definition;
use flowline_core::{Binding, Plan, Tenant};
use flowline_store::job::REMOTE;
use flowline_store::{Store, StoredDefinition};

use crate::engine::{Engine, EngineError};

pub use flowline_api::flows::Unserved;

/// The fewest characters of a hash that stand for all of it.
const SHORT_HASH: usize = 6;

impl Engine {
    /// Checks and stores a definition and makes it its flow's latest, also when it was stored before. `origin` is the folder
    /// that its commands run in.
    pub async fn register(
        &self,
        definition: Definition,
        origin: Option<String>,
    ) -> Result<Arc<Plan>, EngineError> {
        self.register_plan(checked(definition)?, origin).await
    }

    /// Like [`Engine::register`], with an existing plan.
    pub async fn register_plan(
        &self,
        plan: Arc<Plan>,
        origin: Option<String>,
    ) -> Result<Arc<Plan>, EngineError> {
        self.register_plan_by(plan, origin, &Binding::default()).await
    }

    /// Like [`Engine::register_plan`], by an author with this binding. If the definition calls flows or uses
    /// queues that its author may not, it's refused; what only its runs know is checked when they do it.
    pub async fn register_plan_by(
        &self,
        plan: Arc<Plan>,
        origin: Option<String>,
        author: &Binding,
    ) -> Result<Arc<Plan>, EngineError> {
        let (store, tenant) = (self.store(), self.tenant());
        if !author.is_unbound() {
            self.set_author(&plan, author).await?;
        }
        let new = self.put(&plan, origin).await?;
        if author.is_unbound() {
            self.forget_author(&plan).await?;
        }
        if !new {
            let latest = store.latest(tenant, &plan.flow).await?;
            if latest.is_none_or(|latest| latest.hash != plan.hash) {
                store.set_latest(tenant, &plan.flow, Some(&plan.hash)).await?;
            }
        }
        Ok(plan)
    }

    /// Like [`Engine::register`], for an instance that starts up: new content becomes its flow's latest, content that the store
    /// has seen before changes nothing.
    pub async fn register_at_start(
        &self,
        definition: Definition,
        origin: Option<String>,
    ) -> Result<Arc<Plan>, EngineError> {
        let plan = checked(definition)?;
        self.put(&plan, origin).await?;
        self.forget_author(&plan).await?;
        Ok(plan)
    }

    /// Makes a version its flow's latest, which also brings back a retired flow. The hash can be abbreviated.
    pub async fn activate(&self, flow: &str, hash: &str) -> Result<StoredDefinition, EngineError> {
        activate(self.store(), self.tenant(), flow, hash).await
    }

    /// Retires a flow: its runs continue, but no new ones start until it's registered again or a version is activated.
    pub async fn retire(&self, flow: &str) -> Result<(), EngineError> {
        retire(self.store(), self.tenant(), flow).await
    }

    /// Whether this instance itself runs jobs that need this.
    pub fn serves(&self, need: &str) -> bool {
        self.shared.needs.iter().any(|served| **served == *need)
    }

    /// Refuses steps that this instance's own runners wouldn't run, such as those with a secret of another tenant.
    pub fn check_steps(&self, plan: &Plan) -> Result<(), EngineError> {
        for (step, planned) in plan.definition.steps.iter().zip(&plan.steps) {
            let Some(runner) = self.shared.runners.get(&planned.need) else { continue };
            runner.check(self.tenant(), step).map_err(|error| {
                EngineError::BeyondBinding(format!("step {:?}: {}", step.name, error.0.error))
            })?;
        }
        Ok(())
    }

    /// Steps that neither this instance nor a remote worker runs. Others on the same store may.
    pub fn unserved(&self, plan: &Plan) -> Vec<Unserved> {
        let mut found: Vec<Unserved> = Vec::new();
        for step in plan.steps.iter().filter(|step| *step.need != *REMOTE && !self.serves(&step.need)) {
            match found.iter_mut().find(|known| known.need == step.need) {
                Some(known) => known.steps.push(step.name.clone()),
                None => found.push(Unserved {
                    need: step.need.clone(),
                    steps: vec![step.name.clone()],
                    remedy: Unserved::remedy(&step.need, self.shared.store.is_shared()),
                }),
            }
        }
        found
    }

    /// True if the content is new, which makes it the flow's latest.
    async fn put(&self, plan: &Arc<Plan>, origin: Option<String>) -> Result<bool, EngineError> {
        let stored = StoredDefinition {
            tenant: self.tenant().clone(),
            flow: plan.flow.clone(),
            hash: plan.hash.clone(),
            body: plan.definition.canonical(),
            origin,
            created_at: flowline_core::Time::default(),
            latest: true,
        };
        let new = self.shared.store.put_definition(stored).await?;
        self.shared.plans.put(plan.clone());
        Ok(new)
    }
}

fn checked(definition: Definition) -> Result<Arc<Plan>, EngineError> {
    definition.validate().map_err(|diagnostics| EngineError::Definition(Box::new(diagnostics)))?;
    Ok(Arc::new(Plan::build(definition)?))
}

/// The definition that new runs of a flow use.
pub async fn latest(store: &dyn Store, tenant: &Tenant, flow: &str) -> Result<StoredDefinition, EngineError> {
    if let Some(latest) = store.latest(tenant, flow).await? {
        return Ok(latest);
    }
    of_flow(store, tenant, flow).await?;
    Err(EngineError::Retired(flow.to_owned()))
}

/// The definition to show of a flow: the latest, or the newest of a retired one.
pub async fn shown(store: &dyn Store, tenant: &Tenant, flow: &str) -> Result<StoredDefinition, EngineError> {
    match store.latest(tenant, flow).await? {
        Some(latest) => Ok(latest),
        None => Ok(of_flow(store, tenant, flow).await?.swap_remove(0)),
    }
}

/// All definitions of a flow, the newest first. There is one at least.
pub async fn of_flow(
    store: &dyn Store,
    tenant: &Tenant,
    flow: &str,
) -> Result<Vec<StoredDefinition>, EngineError> {
    let mut found = store.definitions(tenant).await?;
    found.retain(|definition| &*definition.flow == flow);
    if found.is_empty() { Err(EngineError::NoSuchFlow(flow.to_owned())) } else { Ok(found) }
}

/// Like [`Engine::activate`], without an engine.
pub async fn activate(
    store: &dyn Store,
    tenant: &Tenant,
    flow: &str,
    hash: &str,
) -> Result<StoredDefinition, EngineError> {
    let mut found = of_flow(store, tenant, flow).await?;
    found.retain(|known| &*known.hash == hash || hash.len() >= SHORT_HASH && known.hash.starts_with(hash));
    match &found[..] {
        [one] => {
            store.set_latest(tenant, flow, Some(&one.hash)).await?;
            Ok(StoredDefinition { latest: true, ..found.swap_remove(0) })
        }
        [] => Err(EngineError::NoSuchVersion { flow: flow.to_owned(), hash: hash.to_owned() }),
        _ => Err(EngineError::Invalid(format!(
            "{} versions of flow {flow:?} start with {hash}; use more characters of the hash",
            found.len()
        ))),
    }
}

/// Like [`Engine::retire`], without an engine.
pub async fn retire(store: &dyn Store, tenant: &Tenant, flow: &str) -> Result<(), EngineError> {
    match store.set_latest(tenant, flow, None).await? {
        true => Ok(()),
        false => Err(EngineError::NoSuchFlow(flow.to_owned())),
    }
}
