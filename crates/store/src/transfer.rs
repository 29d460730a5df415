//! From one store into another: what moving needs beside the other verbs.
//!
//! What is restored is written as it was read, dates, numbers and versions included, and by nobody but the mover: a store
//! that is being filled is marked from before the first row until after the last, and whoever else opens it in between is
//! refused with [`StoreError::HalfMoved`]. So parts need not be atomic among each other, and a filling that was broken off
//! is begun anew, never gone on with.
//!
//! Lists, counters, lanes and the feed are not carried: a store makes its own of what is restored. Named locks stay behind.

use async_trait::async_trait;
use flowline_core::event::{AttemptOf, PayloadSlot};
use flowline_core::report::ReportDigests;
use flowline_core::{Event, NewEvent, RunKey, Tenant, Time};

use crate::commit::CommitError;
use crate::document::Document;
use crate::error::StoreError;
use crate::job::{JobRow, Token};
use crate::receipt::Receipt;
use crate::row::{RunRow, StoredDefinition};
use crate::state::{StateSpace, StateValue};

/// The verbs of a move. The source answers the first two, the target the others.
#[async_trait]
pub trait Transfer: Send + Sync + 'static {
    /// Tenants that have a definition, a paused queue, or a live value of their own or of a named scope, by name: all that
    /// have anything, for no run and no value of a flow is without a definition, and definitions never go. A store without
    /// any tenant or live document is empty.
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError>;

    /// Collections that hold a live document, by name.
    async fn collections(&self) -> Result<Vec<String>, StoreError>;

    /// Marks an empty store as being filled. What a filling left that was broken off goes first.
    async fn begin_filling(&self) -> Result<Filling, StoreError>;

    /// Writes parts in order. Runs and definitions are listed in the order in which they come, the last one as the newest; a
    /// definition is its flow's latest if it says so; events of a run come in order, after their run; so do its
    /// receipts. A run that is there is
    /// refused (`Exists`), and one without its definition (`UnknownDefinition`). After a failure the filling has to
    /// begin anew.
    async fn restore(&self, parts: Vec<Restored>) -> Result<(), CommitError>;

    /// Takes the mark away: the store is whole.
    async fn end_filling(&self) -> Result<(), StoreError>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filling {
    Begun,
    /// The store holds something of its own. Nothing was changed.
    NotEmpty,
}

/// A piece of a store's content.
#[derive(Debug, Clone)]
pub enum Restored {
    Definition(StoredDefinition),
    Run(Box<RestoredRun>),
    Events { run: RunKey, events: Vec<RestoredEvent> },
    Receipts { run: RunKey, receipts: Vec<Receipt> },
    Values { space: StateSpace, values: Vec<StateValue> },
    Documents { collection: String, documents: Vec<Document> },
}

/// A run without its events and receipts.
#[derive(Debug, Clone)]
pub struct RestoredRun {
    pub row: RunRow,
    /// The encoded run state.
    pub state: Vec<u8>,
    /// The date of the last event: the next ones are not dated before it.
    pub last: Time,
    pub jobs: Vec<JobRow>,
    /// What leases among the jobs are held by now. Nobody knows it, so they can only run out.
    pub token: Token,
    /// What is left of its log where that was trimmed.
    pub reports: Option<ReportDigests>,
}

#[derive(Debug, Clone)]
pub struct RestoredEvent {
    pub event: Event,
    /// Set where the payload must be found again by address.
    pub slot: Option<PayloadSlot>,
}

impl RestoredEvent {
    /// The event as it was before the store that it comes from numbered and dated it.
    pub fn undated(&self) -> NewEvent {
        let Event { kind, step_name, attempt, data, .. } = &self.event;
        let of =
            step_name.as_ref().map(|step| AttemptOf { step: step.clone(), attempt: attempt.unwrap_or(0) });
        NewEvent { kind: *kind, of, data: data.clone(), slot: self.slot }
    }

    /// Events in a row that share a date, as those of one commit do.
    pub fn by_date(events: &[RestoredEvent]) -> impl Iterator<Item = &[RestoredEvent]> {
        events.chunk_by(|a, b| a.event.ts == b.event.ts)
    }
}
