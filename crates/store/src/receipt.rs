//! Receipts: what became of the events that runs took in.
//!
//! A receipt is opened by the commit that puts an event into its run's inbox, and changed by the commits that take the
//! event up and finish with it, so it never says anything that the run's log does not. It belongs to its run: it goes when
//! the run's row goes, and is carried with it. A store keeps and lists receipts; it reads nothing out of them but their
//! status and worker.

use std::sync::Arc;

use flowline_core::{Json, RunId, RunKey, Tenant, Time};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::query::PAGE;

pub use flowline_core::receipt::{Opened, ReceiptChange, ReceiptStatus};

/// A receipt as it is read. Its JSON is a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    pub event_id: Arc<str>,
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    pub tenant: Tenant,
    pub number: u32,
    pub name: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Json>,
    pub status: ReceiptStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
    /// Date of the commit that opened it.
    pub received_at: Time,
    /// Date of the first commit that left it other than pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// Date of the first commit that left it completed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Json>,
}

impl Receipt {
    /// Goes on to what a commit of this date says.
    pub fn change(&mut self, ts: Time, change: ReceiptChange) {
        let ReceiptChange { status, worker, outcome, .. } = change;
        self.status = status;
        if status.is_started() {
            self.started_at.get_or_insert(ts);
        }
        if status.is_end() {
            self.completed_at.get_or_insert(ts);
        }
        self.worker = worker.or(self.worker.take());
        self.outcome = outcome.or(self.outcome.take());
    }
}

/// Which receipts of a tenant. Every filter narrows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptQuery {
    pub tenant: Tenant,
    pub run: Option<RunId>,
    /// Only this event's. Requires `run`.
    pub event_id: Option<String>,
    pub status: Option<ReceiptStatus>,
    pub worker: Option<String>,
    /// `next` of the page before.
    pub after: Option<String>,
    pub limit: usize,
}

impl ReceiptQuery {
    pub fn of(tenant: Tenant) -> ReceiptQuery {
        ReceiptQuery {
            tenant,
            run: None,
            event_id: None,
            status: None,
            worker: None,
            after: None,
            limit: PAGE,
        }
    }

    /// The receipt of one event.
    pub fn only(run: &RunKey, event_id: &str) -> ReceiptQuery {
        ReceiptQuery {
            run: Some(run.run.clone()),
            event_id: Some(event_id.to_owned()),
            limit: 1,
            ..ReceiptQuery::of(run.tenant.clone())
        }
    }

    /// `Invalid` for a filter that no list is kept for.
    pub fn check(&self) -> Result<(), StoreError> {
        match (&self.event_id, &self.run) {
            (Some(event), None) => {
                Err(StoreError::Invalid(format!("to look up the receipt of event {event:?}, name its run")))
            }
            _ => Ok(()),
        }
    }

    pub fn matches(&self, receipt: &Receipt) -> bool {
        receipt.tenant == self.tenant
            && self.run.as_ref().is_none_or(|run| *run == receipt.run_id)
            && self.event_id.as_deref().is_none_or(|event| *event == *receipt.event_id)
            && self.status.is_none_or(|status| status == receipt.status)
            && self.worker.as_deref().is_none_or(|worker| receipt.worker.as_deref() == Some(worker))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptPage {
    /// Those that came in last stand first: of one run by number, otherwise by date. Among those of one date the order is
    /// the store's own, and stays.
    pub items: Vec<Receipt>,
    /// The cursor of the next page; `None` on the last.
    pub next: Option<String>,
}

/// A receipt's place in the lists of a store that numbers its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceiptPlace {
    pub received: Time,
    pub run: u64,
    pub number: u32,
}

impl ReceiptPlace {
    pub fn cursor(self) -> String {
        format!("{}.{}.{}", self.received.millis(), self.run, self.number)
    }

    pub fn parse(cursor: &str) -> Result<ReceiptPlace, StoreError> {
        let parts = || {
            let mut parts = cursor.split('.');
            let (received, run, number) = (parts.next()?, parts.next()?, parts.next()?);
            let received = Time::from_millis(received.parse().ok()?);
            let place = ReceiptPlace { received, run: run.parse().ok()?, number: number.parse().ok()? };
            parts.next().is_none().then_some(place)
        };
        parts().ok_or_else(|| {
            let why = format!("cursor {cursor:?} doesn't come from this store; start without a cursor");
            StoreError::Invalid(why)
        })
    }
}

impl ReceiptPage {
    /// A page of what was found with one more than `limit` asked for.
    pub fn of(mut found: Vec<(ReceiptPlace, Receipt)>, limit: usize) -> ReceiptPage {
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|(place, _)| place.cursor());
        ReceiptPage { items: found.into_iter().map(|(_, receipt)| receipt).collect(), next }
    }
}
