//! Counters against a recount.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::{Status, Tenant};
use flowline_store::Counter;

use crate::invariant::Invariant::I6;
use crate::violation::{Checker, Subject, Violation};

/// Where a tenant's counters differ from its runs as they were counted.
pub fn miscounted(
    checker: Checker,
    tenant: &Tenant,
    counters: &[Counter],
    mut recount: BTreeMap<(Arc<str>, Status), u64>,
) -> Vec<Violation> {
    let mut found = checker.findings();
    let mut compare = |flow: &str, status: Status, says: u64, there: u64| {
        if says != there {
            let message = || format!("counter of flow {flow:?}, {status}: says {says}, there are {there}");
            found.say(I6, Subject::Counters, message);
        }
    };
    for counter in counters.iter().filter(|counter| counter.tenant == *tenant) {
        let there = recount.remove(&(counter.flow_name.clone(), counter.status)).unwrap_or(0);
        compare(&counter.flow_name, counter.status, counter.count, there);
    }
    for ((flow, status), there) in recount {
        compare(&flow, status, 0, there);
    }
    found.of_tenant(tenant)
}
