//! Questions to a store, and pages of answers. Lists are paged by key: a page costs the same wherever it lies.

use std::sync::Arc;

use flowline_core::{Event, EventType, Json, Status, Tenant, Time};
use serde::Serialize;

use crate::error::StoreError;
use crate::row::RunRow;

/// Items on a page where the caller names no number.
pub const PAGE: usize = 50;
/// The most items on a page.
pub const MAX_PAGE: usize = 1_000;
/// The most bytes of payloads on a page of events or of key-value state: what one answer can carry. A first item that has more
/// is a page of its own.
pub const PAGE_BYTES: usize = 16 << 20;
/// Filters that no counter answers are counted up to here; beyond it a total is a lower bound.
pub const EXACT_TOTAL: u64 = 10_000;

/// A page's size as a store honours it: at least one item, at most [`MAX_PAGE`].
pub fn page_size(limit: usize) -> usize {
    limit.clamp(1, MAX_PAGE)
}

/// The room that is left on a page of events or of key-value state.
#[derive(Debug, Clone, Copy)]
pub struct PageRoom {
    items: usize,
    /// Of the payloads that are on it.
    bytes: usize,
}

impl PageRoom {
    pub fn new(items: usize) -> PageRoom {
        PageRoom { items, bytes: 0 }
    }

    /// Takes an item with this payload in, if there is room for it.
    pub fn take(&mut self, payload: Option<&Json>) -> bool {
        let bytes = payload.map_or(0, |payload| payload.get().len());
        let fits = self.items > 0 && (self.bytes == 0 || self.bytes + bytes <= PAGE_BYTES);
        if fits {
            self.items -= 1;
            self.bytes += bytes;
        }
        fits
    }
}

#[derive(Debug, Clone)]
pub struct EventQuery {
    /// Only events with a greater number.
    pub after: u64,
    /// Only these types; empty for all.
    pub kinds: Vec<EventType>,
    pub step: Option<String>,
    pub attempt: Option<u32>,
    pub limit: usize,
}

impl Default for EventQuery {
    fn default() -> EventQuery {
        EventQuery { after: 0, kinds: Vec::new(), step: None, attempt: None, limit: MAX_PAGE }
    }
}

impl EventQuery {
    /// Whether every event passes, but for its place in the log.
    pub fn takes_all(&self) -> bool {
        self.kinds.is_empty() && self.step.is_none() && self.attempt.is_none()
    }

    pub fn matches(&self, event: &Event) -> bool {
        event.seq > self.after
            && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && self.step.as_deref().is_none_or(|step| event.step_name.as_deref() == Some(step))
            && self.attempt.is_none_or(|attempt| event.attempt == Some(attempt))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// Whether a further page has at least one event.
    pub more: bool,
}

/// Which runs. Every filter narrows.
#[derive(Debug, Clone)]
pub struct RunQuery {
    pub tenant: Tenant,
    pub flow: Option<String>,
    pub status: Option<Status>,
    /// The state that a machine is in. Only together with its flow.
    pub state: Option<String>,
    pub label: Option<(String, String)>,
    /// Created at or after.
    pub since: Option<Time>,
    /// Created before.
    pub until: Option<Time>,
    /// `next` of the page before.
    pub cursor: Option<String>,
    pub limit: usize,
    /// A total costs a count where no counter has it.
    pub total: WantTotal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantTotal {
    Yes,
    No,
}

impl RunQuery {
    pub fn of(tenant: Tenant) -> RunQuery {
        RunQuery {
            tenant,
            flow: None,
            status: None,
            state: None,
            label: None,
            since: None,
            until: None,
            cursor: None,
            limit: PAGE,
            total: WantTotal::Yes,
        }
    }

    pub fn matches(&self, row: &RunRow) -> bool {
        row.tenant == self.tenant
            && self.flow.as_deref().is_none_or(|flow| flow == &*row.flow_name)
            && self.status.is_none_or(|status| status == row.status)
            && self.state.as_deref().is_none_or(|state| row.state.as_deref() == Some(state))
            && self.label.as_ref().is_none_or(|(key, value)| row.labels.get(key) == Some(value))
            && self.since.is_none_or(|since| row.created_at >= since)
            && self.until.is_none_or(|until| row.created_at < until)
    }

    /// Refuses what no list is kept for.
    pub fn check(&self) -> Result<(), StoreError> {
        match (&self.state, &self.flow) {
            (Some(state), None) => {
                let why = format!("to list runs in state {state:?}, name the flow too");
                Err(StoreError::Invalid(why))
            }
            _ => Ok(()),
        }
    }

    /// Whether a counter has the total: only flow, status and state are asked for.
    pub fn counted(&self) -> bool {
        self.label.is_none() && self.since.is_none() && self.until.is_none()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunPage {
    /// Newest first.
    pub items: Vec<RunRow>,
    pub total: Option<Total>,
    /// The cursor of the next page; `None` on the last.
    pub next: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Total {
    Exact(u64),
    AtLeast(u64),
}

/// Which events of many runs.
#[derive(Debug, Clone, Default)]
pub struct FeedFilter {
    /// One tenant only, or any.
    pub tenant: Option<Tenant>,
    pub flow: Option<Arc<str>>,
    /// Only these types; empty for all.
    pub kinds: Vec<EventType>,
    /// With an empty cursor: give no events, only the cursor of the end.
    pub from_now: bool,
}

impl FeedFilter {
    pub fn matches(&self, event: &Event) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| *tenant == event.tenant)
            && self.flow.as_ref().is_none_or(|flow| *flow == event.flow_name)
            && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPage {
    pub events: Vec<Event>,
    /// For each event, where to go on right after it; opaque.
    pub cursors: Vec<String>,
    /// Where to go on after the page, past what the filter left out; opaque.
    pub cursor: String,
    /// Whether reading on at once would give more.
    pub more: bool,
}
