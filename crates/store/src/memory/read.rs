//! Reading runs and their logs.

use std::ops::Bound;

use flowline_core::event::PayloadSlot;
use flowline_core::{Json, RunKey};

use super::rows::{Listing, Memory, StoredRun};
use crate::error::StoreError;
use crate::query::{
    EXACT_TOTAL, EventPage, EventQuery, FeedFilter, FeedPage, PageRoom, RunPage, RunQuery, Total, WantTotal,
    page_size,
};
use crate::row::Snapshot;

impl Memory {
    pub fn load(&self, runs: &[RunKey]) -> Vec<Option<Snapshot>> {
        let snapshot = |run: &StoredRun| Snapshot { row: run.row.clone(), state: run.state.clone() };
        runs.iter().map(|key| self.runs.get(key).map(snapshot)).collect()
    }

    pub fn payloads(&self, run: &RunKey, slots: &[PayloadSlot]) -> Vec<Option<Json>> {
        let run = self.runs.get(run);
        let payload = |slot: &PayloadSlot| {
            let run = run?;
            run.log.get(run.slots.get(slot)?)?.event.data.clone()
        };
        slots.iter().map(payload).collect()
    }

    pub fn events(&self, run: &RunKey, query: &EventQuery) -> EventPage {
        let mut page = EventPage { events: Vec::new(), more: false };
        let Some(run) = self.runs.get(run) else { return page };
        let later = run.log.range((Bound::Excluded(query.after), Bound::Unbounded));
        let mut room = PageRoom::new(page_size(query.limit));
        for event in later.map(|(_, logged)| &logged.event).filter(|event| query.matches(event)) {
            if !room.take(event.data.as_ref()) {
                page.more = true;
                break;
            }
            page.events.push(event.clone());
        }
        page
    }

    /// Walks the list that flow and status choose; labels and dates are looked at on the way.
    pub fn runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        query.check()?;
        let before = match &query.cursor {
            Some(cursor) => number(cursor)?,
            None => u64::MAX,
        };
        let listing = Listing {
            tenant: query.tenant.clone(),
            flow: query.flow.as_deref().map(Into::into),
            status: query.status,
            state: query.state.as_deref().map(Into::into),
        };
        let below = |end: u64| {
            self.listed
                .range((listing.clone(), 0)..(listing.clone(), end))
                .rev()
                .filter_map(|(_, number)| self.runs.get(self.by_number.get(number)?))
                .filter(|run| query.matches(&run.row))
        };
        let size = page_size(query.limit);
        let mut found: Vec<&StoredRun> = below(before).take(size + 1).collect();
        let more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| more).map(|run| run.number.to_string());
        let total = (query.total == WantTotal::Yes).then(|| {
            if query.counted() {
                return Total::Exact(self.count(query));
            }
            match below(u64::MAX).take(EXACT_TOTAL as usize + 1).count() as u64 {
                count if count > EXACT_TOTAL => Total::AtLeast(EXACT_TOTAL),
                count => Total::Exact(count),
            }
        });
        Ok(RunPage { items: found.into_iter().map(|run| run.row.clone()).collect(), total, next })
    }

    pub fn feed(&self, filter: &FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError> {
        let end = self.last_event;
        let after = match cursor {
            "" if filter.from_now => end,
            "" => 0,
            cursor => number(cursor)?,
        };
        if after > end {
            return Err(unknown(cursor));
        }
        let size = page_size(limit);
        let cursor = end.to_string();
        let mut page = FeedPage { events: Vec::new(), cursors: Vec::new(), cursor, more: false };
        for (number, (run, seq)) in self.feed.range((Bound::Excluded(after), Bound::Unbounded)) {
            let Some(logged) = self.runs.get(run).and_then(|run| run.log.get(seq)) else { continue };
            if !filter.matches(&logged.event) {
                continue;
            }
            if page.events.len() == size {
                page.more = true;
                break;
            }
            page.events.push(logged.event.clone());
            page.cursors.push(number.to_string());
        }
        if page.more {
            page.cursor = page.cursors.last().cloned().unwrap_or_default();
        }
        Ok(page)
    }

    fn count(&self, query: &RunQuery) -> u64 {
        self.counters
            .iter()
            .filter(|((tenant, flow, status, state), _)| {
                *tenant == query.tenant
                    && query.flow.as_deref().is_none_or(|wanted| wanted == &**flow)
                    && query.status.is_none_or(|wanted| wanted == *status)
                    && query.state.as_deref().is_none_or(|wanted| state.as_deref() == Some(wanted))
            })
            .map(|(_, count)| count)
            .sum()
    }
}

fn number(cursor: &str) -> Result<u64, StoreError> {
    cursor.parse().map_err(|_| unknown(cursor))
}

fn unknown(cursor: &str) -> StoreError {
    StoreError::Invalid(format!("cursor {cursor:?} doesn't come from this store; start without a cursor"))
}
