//! Compares counters with a recount.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::{Status, Tenant};
use flowline_store::{Counter, RunRow};

use crate::Invariant::I6;
use crate::violation::{Checker, Subject, Violation};

/// What runs are counted by: flow, status and, for machines, state.
pub type CountKey = (Arc<str>, Status, Option<Arc<str>>);

/// What a run is counted under.
pub fn counted(row: &RunRow) -> CountKey {
    (row.flow_name.clone(), row.status, row.state.clone())
}

/// Where a tenant's counters differ from a count of its runs.
pub fn miscounted(
    checker: Checker,
    tenant: &Tenant,
    counters: &[Counter],
    mut recount: BTreeMap<CountKey, u64>,
) -> Vec<Violation> {
    let mut found = checker.findings();
    let mut compare = |(flow, status, state): &CountKey, says: u64, there: u64| {
        if says != there {
            let state = state.as_ref().map(|state| format!(" in state {state:?}")).unwrap_or_default();
            let message =
                format!("the counter of flow {flow:?}, {status}{state}, is {says}, but there are {there}");
            found.say(I6, Subject::Counters, message);
        }
    };
    for counter in counters.iter().filter(|counter| counter.tenant == *tenant) {
        let key = (counter.flow_name.clone(), counter.status, counter.state.clone());
        let there = recount.remove(&key).unwrap_or(0);
        compare(&key, counter.count, there);
    }
    for (key, there) in recount {
        compare(&key, 0, there);
    }
    found.of_tenant(tenant)
}
