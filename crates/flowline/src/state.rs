//! Key-value state from outside of a step: [`Engine::state`].
//!
//! These reads and writes aren't in any run's log. The state of a run can be read here, but only its steps can write it,
//! so that its log tells the whole story.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::limits::{self, Limits};
use flowline_core::{Json, RunKey, Tenant};
use flowline_store::{
    StateEdit, StateOwner, StatePage, StateQuery, StateSpace, StateValue, Store, StoreError,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::{Engine, EngineError};

/// Values read at a time.
const VALUES: usize = 250;

/// The key-value state of one owner.
#[derive(Clone)]
pub struct StateHandle {
    store: Arc<dyn Store>,
    space: StateSpace,
    limits: Limits,
}

impl std::fmt::Debug for StateHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateHandle({} of {})", self.space.owner, self.space.tenant)
    }
}

impl Engine {
    /// Key-value state of this handle's tenant: `tenant`, `flow:FLOW`, `run:RUN`, or any other name, such as `orders`, which
    /// is shared by all flows.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine) -> Result<(), Box<dyn std::error::Error>> {
    /// let orders = engine.state("orders")?;
    /// orders.set("order-42", "paid").await?;
    /// let status: Option<String> = orders.get("order-42").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn state(&self, owner: &str) -> Result<StateHandle, EngineError> {
        let owner = StateOwner::parse(owner).map_err(EngineError::Invalid)?;
        let limits = self.shared.config.limits;
        Ok(StateHandle::new(self.store.clone(), self.tenant().clone(), owner, limits))
    }
}

impl StateHandle {
    /// A handle that takes new values within these limits.
    pub fn new(store: Arc<dyn Store>, tenant: Tenant, owner: StateOwner, limits: Limits) -> StateHandle {
        StateHandle { store, space: StateSpace { tenant, owner }, limits }
    }

    pub fn owner(&self) -> &StateOwner {
        &self.space.owner
    }

    /// `None` if the key isn't set or has expired.
    pub async fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, EngineError> {
        let Some(found) = self.find(key).await? else { return Ok(None) };
        let unfit = |error| EngineError::Invalid(format!("state {key:?} has another type: {error}"));
        found.value.to().map(Some).map_err(unfit)
    }

    /// A value with the end of its life.
    pub async fn find(&self, key: &str) -> Result<Option<StateValue>, EngineError> {
        check_key(key).map_err(EngineError::Invalid)?;
        Ok(self.store.state(&self.space, key).await?)
    }

    /// A page of values, by key.
    pub async fn list(&self, query: StateQuery) -> Result<StatePage, EngineError> {
        Ok(self.store.states(&self.space, query).await?)
    }

    /// Writes a value in place of the one that is there. Refused for the state of a run.
    pub async fn set(&self, key: &str, value: impl Serialize) -> Result<(), EngineError> {
        self.change(key, Some(self.json(key, &value)?), None).await
    }

    /// Like [`StateHandle::set`]; the value is gone after `ttl`.
    pub async fn set_for(&self, key: &str, value: impl Serialize, ttl: Duration) -> Result<(), EngineError> {
        self.change(key, Some(self.json(key, &value)?), Some(ttl)).await
    }

    /// Whether the key was set.
    pub async fn delete(&self, key: &str) -> Result<bool, EngineError> {
        let there = self.find(key).await?.is_some();
        self.change(key, None, None).await?;
        Ok(there)
    }

    async fn change(&self, key: &str, value: Option<Json>, ttl: Option<Duration>) -> Result<(), EngineError> {
        check_key(key).map_err(EngineError::Invalid)?;
        let refused = |error: StoreError| EngineError::Invalid(error.to_string());
        self.space.owner.writable().map_err(refused)?;
        if ttl.is_some_and(|ttl| ttl.is_zero()) {
            return Err(EngineError::Invalid("a TTL must be above zero".to_owned()));
        }
        if let StateOwner::Flow(flow) = &self.space.owner
            && self.store.latest(&self.space.tenant, flow).await?.is_none()
        {
            return Err(EngineError::NoSuchFlow(flow.to_string()));
        }
        Ok(self.store.change_state(&self.space, StateEdit::new(key, value, ttl)).await?)
    }

    fn json(&self, key: &str, value: &impl Serialize) -> Result<Json, EngineError> {
        let value =
            Json::of(value).and_then(|value| value.within(&format!("state {key:?}"), self.limits.payload()));
        value.map_err(|error| EngineError::Refused(error.into()))
    }
}

/// Refuses what cannot be a key of state.
pub fn check_key(key: &str) -> Result<(), String> {
    if key.is_empty() || key.len() > limits::KEY_BYTES || key.contains('\0') {
        return Err(format!("a state key must have 1 to {} bytes, without NUL", limits::KEY_BYTES));
    }
    Ok(())
}

/// All key-value state of a run, and its size; `None` if it's too much for an attempt, or more than `most`.
pub(crate) async fn of_run(
    store: &dyn Store,
    run: &RunKey,
    most: usize,
) -> Result<Option<(BTreeMap<String, Json>, usize)>, StoreError> {
    let (space, mut query) = (StateSpace::of_run(run), StateQuery::first(VALUES));
    let (mut all, mut bytes) = (BTreeMap::new(), 0);
    loop {
        let StatePage { values, more } = store.states(&space, query).await?;
        query = StateQuery { after: values.last().map(|last| last.key.clone()), ..StateQuery::first(VALUES) };
        for StateValue { key, value, .. } in values {
            bytes += key.len() + value.get().len() + 4;
            all.insert(key, value);
        }
        if bytes > limits::STATE_BYTES.min(most) {
            return Ok(None);
        }
        if !more {
            return Ok(Some((all, bytes)));
        }
    }
}
