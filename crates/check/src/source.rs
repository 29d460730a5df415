//! How a checker next to a store reads it.

use std::collections::BTreeMap;

use flowline_core::{Event, RunKey, Tenant, Time};
use flowline_store::query::WantTotal;
use flowline_store::{
    Counter, EventQuery, JobRow, Memory, Receipt, ReceiptQuery, RunQuery, RunRow, StateQuery, StateSpace,
    StateValue,
};

use crate::counters::{CountKey, counted};

/// A store at a moment when nothing changes it.
pub trait StoreSnapshot {
    fn row(&self, run: &RunKey) -> Option<RunRow>;
    /// The events with a greater number, in order.
    fn events(&self, run: &RunKey, after: u64) -> Vec<Event>;
    fn jobs(&self, run: &RunKey) -> Vec<JobRow>;
    /// The receipts of the run's events.
    fn receipts(&self, run: &RunKey) -> Vec<Receipt>;
    /// The run's own key-value state, by key. It may include expired values.
    fn state(&self, run: &RunKey) -> Vec<StateValue>;
    /// The stored text of a definition.
    fn definition(&self, tenant: &Tenant, hash: &str) -> Option<String>;
    fn counters(&self) -> Vec<Counter>;
    /// Every run of a tenant.
    fn runs(&self, tenant: &Tenant) -> Vec<RunKey>;
}

impl StoreSnapshot for Memory {
    fn row(&self, run: &RunKey) -> Option<RunRow> {
        self.load(std::slice::from_ref(run)).pop().flatten().map(|snapshot| snapshot.row)
    }

    fn events(&self, run: &RunKey, after: u64) -> Vec<Event> {
        let mut all = Vec::new();
        let mut query = EventQuery { after, ..EventQuery::default() };
        loop {
            let page = Memory::events(self, run, &query);
            all.extend(page.events);
            match all.last() {
                Some(last) if page.more => query.after = last.seq,
                _ => return all,
            }
        }
    }

    fn jobs(&self, run: &RunKey) -> Vec<JobRow> {
        Memory::jobs(self, run)
    }

    fn receipts(&self, run: &RunKey) -> Vec<Receipt> {
        let of_run = ReceiptQuery { run: Some(run.run.clone()), ..ReceiptQuery::of(run.tenant.clone()) };
        let mut query = ReceiptQuery { limit: usize::MAX, ..of_run };
        let mut all = Vec::new();
        while let Ok(page) = Memory::receipts(self, &query) {
            all.extend(page.items);
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        all
    }

    fn state(&self, run: &RunKey) -> Vec<StateValue> {
        self.states(Time::default(), &StateSpace::of_run(run), &StateQuery::first(usize::MAX - 1)).values
    }

    fn definition(&self, tenant: &Tenant, hash: &str) -> Option<String> {
        Memory::definition(self, tenant, hash).map(|definition| definition.body)
    }

    fn counters(&self) -> Vec<Counter> {
        Memory::counters(self)
    }

    fn runs(&self, tenant: &Tenant) -> Vec<RunKey> {
        let mut query = RunQuery { limit: usize::MAX, total: WantTotal::No, ..RunQuery::of(tenant.clone()) };
        let mut all = Vec::new();
        while let Ok(page) = Memory::runs(self, &query) {
            all.extend(page.items.iter().map(RunRow::key));
            match page.next {
                Some(next) => query.cursor = Some(next),
                None => break,
            }
        }
        all
    }
}

/// A tenant's runs by flow and status, counted.
pub(crate) fn recount(source: &dyn StoreSnapshot, tenant: &Tenant) -> BTreeMap<CountKey, u64> {
    let mut counts = BTreeMap::new();
    for row in source.runs(tenant).iter().filter_map(|run| source.row(run)) {
        *counts.entry(counted(&row)).or_default() += 1;
    }
    counts
}
