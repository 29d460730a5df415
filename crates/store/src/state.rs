//! Key-value state: whose it is, how it's read and changed.
//!
//! A step names a [`StateScope`], relative to its run. Everything else names a [`StateOwner`] within a tenant, a
//! [`StateSpace`]. A value past its time counts as absent everywhere.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::ids::{NameError, check_name};
use flowline_core::{Json, RunId, RunKey, Tenant, Time};

use crate::error::StoreError;
use crate::query::PageRoom;

/// Whose key-value state, relative to a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StateScope {
    Run,
    /// All runs of the run's flow.
    Flow,
    Tenant,
    /// Shared within the tenant under this name, such as `orders`. Made by `StateScope::from`.
    Named(Arc<str>),
}

impl StateScope {
    pub fn as_str(&self) -> &str {
        match self {
            StateScope::Run => "run",
            StateScope::Flow => "flow",
            StateScope::Tenant => "tenant",
            StateScope::Named(name) => name,
        }
    }

    pub fn check(&self) -> Result<(), NameError> {
        check_name("scope", self.as_str())
    }

    /// What it means for this run.
    pub fn of(&self, run: &RunId, flow: &Arc<str>) -> StateOwner {
        match self {
            StateScope::Run => StateOwner::Run(run.clone()),
            StateScope::Flow => StateOwner::Flow(flow.clone()),
            StateScope::Tenant => StateOwner::Tenant,
            StateScope::Named(name) => StateOwner::Named(name.clone()),
        }
    }
}

impl From<&str> for StateScope {
    fn from(text: &str) -> StateScope {
        match text {
            "run" => StateScope::Run,
            "flow" => StateScope::Flow,
            "tenant" => StateScope::Tenant,
            name => StateScope::Named(name.into()),
        }
    }
}

/// Whose key-value state within a tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateOwner {
    Run(RunId),
    Flow(Arc<str>),
    Tenant,
    /// All of the tenant, under this name.
    Named(Arc<str>),
}

impl StateOwner {
    pub fn scope(&self) -> StateScope {
        match self {
            StateOwner::Run(_) => StateScope::Run,
            StateOwner::Flow(_) => StateScope::Flow,
            StateOwner::Tenant => StateScope::Tenant,
            StateOwner::Named(name) => StateScope::Named(name.clone()),
        }
    }

    /// `Invalid` for the state of a run, which only its attempts write.
    pub fn writable(&self) -> Result<(), StoreError> {
        match self {
            StateOwner::Run(run) => Err(StoreError::Invalid(format!(
                "only the steps of run {run} can write its state, so that its log has every change"
            ))),
            _ => Ok(()),
        }
    }

    /// Parses what `Display` writes: `tenant`, `flow:FLOW`, `run:RUN`, or any other name.
    pub fn parse(text: &str) -> Result<StateOwner, String> {
        let name = |what, name: &str| match check_name(what, name) {
            Ok(()) => Ok(Arc::from(name)),
            Err(error) => Err(error.to_string()),
        };
        match text.split_once(':') {
            Some(("flow", flow)) => name("flow", flow).map(StateOwner::Flow),
            Some(("run", run)) => RunId::new(run).map(StateOwner::Run).map_err(|error| error.to_string()),
            None if text == "tenant" => Ok(StateOwner::Tenant),
            None if text == "flow" => Err("scope `flow` needs a flow: write `flow:FLOW`".to_owned()),
            None if text == "run" => Err("scope `run` needs a run: write `run:RUN`".to_owned()),
            _ => name("scope", text).map(StateOwner::Named),
        }
    }
}

impl fmt::Display for StateOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateOwner::Run(run) => write!(f, "run:{run}"),
            StateOwner::Flow(flow) => write!(f, "flow:{flow}"),
            StateOwner::Tenant => f.write_str("tenant"),
            StateOwner::Named(name) => f.write_str(name),
        }
    }
}

/// The key-value state of one owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateSpace {
    pub tenant: Tenant,
    pub owner: StateOwner,
}

impl StateSpace {
    pub fn new(tenant: &Tenant, owner: StateOwner) -> StateSpace {
        StateSpace { tenant: tenant.clone(), owner }
    }

    pub fn of_run(run: &RunKey) -> StateSpace {
        StateSpace::new(&run.tenant, StateOwner::Run(run.run.clone()))
    }
}

/// A write of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateEdit {
    pub key: String,
    /// `None` deletes the key.
    pub value: Option<Json>,
    /// How long the value lives; `None` for ever.
    pub ttl: Option<Duration>,
}

impl StateEdit {
    pub fn new(key: &str, value: Option<Json>, ttl: Option<Duration>) -> StateEdit {
        StateEdit { key: key.to_owned(), value, ttl }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateValue {
    pub key: String,
    pub value: Json,
    pub expires: Option<Time>,
}

impl StateValue {
    pub fn live(&self, now: Time) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// Which values of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateQuery {
    /// Only this key, wherever the page starts.
    pub key: Option<String>,
    /// Keys after this one; `None` starts at the first.
    pub after: Option<String>,
    pub limit: usize,
}

impl StateQuery {
    pub fn first(limit: usize) -> StateQuery {
        StateQuery { limit, ..StateQuery::default() }
    }

    pub fn only(key: &str) -> StateQuery {
        StateQuery { key: Some(key.to_owned()), ..StateQuery::first(1) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatePage {
    pub values: Vec<StateValue>,
    /// Whether there may be values after the last one.
    pub more: bool,
}

impl StatePage {
    /// Fills a page with as many values as fit. Reads one more, if there is one.
    pub fn fill<E>(
        values: impl IntoIterator<Item = Result<StateValue, E>>,
        limit: usize,
    ) -> Result<StatePage, E> {
        let (mut page, mut room) = (StatePage::default(), PageRoom::new(limit));
        for value in values {
            let value = value?;
            if !room.take(Some(&value.value)) {
                page.more = true;
                break;
            }
            page.values.push(value);
        }
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_reads_back_what_it_shows() {
        for text in ["tenant", "orders", "flow:fulfil-order", "run:r-1"] {
            assert_eq!(StateOwner::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_bad_owner_is_refused_with_the_remedy() {
        assert!(StateOwner::parse("flow").unwrap_err().contains("flow:FLOW"));
        assert!(StateOwner::parse("run").unwrap_err().contains("run:RUN"));
        for text in ["", "a b", "flow:", "queue:x", "flow:a/b"] {
            assert!(StateOwner::parse(text).is_err(), "{text:?}");
        }
    }
}
