//! The processing record of an event that a machine took in.

use std::sync::Arc;

use crate::json::Json;
use crate::words;

words! {
    /// How far an event has come. What moves it on: a `pending` one waits for its turn, a `processing` one for the actions
    /// that it set off. The others are ends.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum ReceiptStatus {
        Pending = "pending",
        Processing = "processing",
        Completed = "completed",
        Failed = "failed",
    }
}

/// What is written once, when an event comes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    pub event_id: Arc<str>,
    pub name: Arc<str>,
    pub sender: Option<Json>,
}

/// What a commit does to the receipt of an event of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptChange {
    /// Events of a run count from 1.
    pub number: u32,
    /// Set where the receipt is new. No receipt of the run has its number or its event's id: the caller decided on a
    /// version of the run that says so.
    pub opened: Option<Opened>,
    pub status: ReceiptStatus,
    /// `None` keeps what is there.
    pub worker: Option<Arc<str>>,
    /// `None` keeps what is there.
    pub outcome: Option<Json>,
}

impl ReceiptStatus {
    /// Whether the event was taken up, at some time.
    pub fn is_started(self) -> bool {
        self != ReceiptStatus::Pending
    }

    pub fn is_end(self) -> bool {
        matches!(self, ReceiptStatus::Completed | ReceiptStatus::Failed)
    }
}

impl ReceiptChange {
    pub fn new(number: u32, status: ReceiptStatus) -> ReceiptChange {
        ReceiptChange { number, opened: None, status, worker: None, outcome: None }
    }

    /// Merges a later change into this one.
    pub fn then(&mut self, later: ReceiptChange) {
        self.status = later.status;
        self.opened = self.opened.take().or(later.opened);
        self.worker = later.worker.or(self.worker.take());
        self.outcome = later.outcome.or(self.outcome.take());
    }
}
