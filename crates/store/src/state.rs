//! Key-value state: whose it is, and how it is read.
//!
//! A step names a [`StateScope`], which means something as seen from its run. Everything else names a [`StateOwner`], which
//! needs no run to be understood. A value past its time counts as absent everywhere.

use std::fmt;
use std::sync::Arc;

use flowline_core::ids::{NameError, check_name};
use flowline_core::{Json, RunId, Time};

use crate::error::StoreError;
use crate::query::PageRoom;

/// Whose key-value state, as a step says it.
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

    /// Refuses what is no name.
    pub fn check(&self) -> Result<(), NameError> {
        check_name("scope", self.as_str())
    }

    /// Whose it is, seen from a run.
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

/// Whose key-value state, named without a run that would tell.
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

    /// Refuses the state of a run, which its attempts alone write.
    pub fn writable(&self) -> Result<(), StoreError> {
        match self {
            StateOwner::Run(run) => Err(StoreError::Invalid(format!(
                "only the steps of run {run} can write its state, so that its log has every change"
            ))),
            _ => Ok(()),
        }
    }

    /// Reads what [`StateOwner`] shows itself as: `tenant`, `flow:FLOW`, `run:RUN`, or any other name.
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

/// Which page of an owner's values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateQuery {
    /// Keys after this one; `None` from the first on.
    pub after: Option<String>,
    pub limit: usize,
}

impl StateQuery {
    pub fn first(limit: usize) -> StateQuery {
        StateQuery { after: None, limit }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatePage {
    pub values: Vec<StateValue>,
    /// Whether there may be values after the last one.
    pub more: bool,
}

impl StatePage {
    /// A page of as many of these values as there is room for. Reads one more than that, where there is one.
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
