//! The store contract.
//!
//! A store makes decisions durable: [`RunStore::commit`] appends a run's events, replaces its state and index row,
//! removes finished jobs and adds the next ones, all or nothing, guarded by the run's version and the lease tokens that
//! the commit names. Everything else reads, leases or cleans up. The conformance suite (`conformance`) defines what the
//! contract means, one named case each; stores add nothing to it, and no case asks which store it runs on.
//!
//! A store decides nothing about flows. It numbers events, keeps time, and compares versions and tokens.
//!
//! In each trait the required methods come first. Those with a body are shorthand for them, or have a default that's
//! right for every store; override one only if your store can answer faster.

pub mod clock;
pub mod commit;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod document;
pub mod error;
pub mod job;
pub mod lock;
pub mod memory;
pub mod open;
pub mod others;
pub mod query;
pub mod receipt;
pub mod rotate;
pub mod row;
pub mod rule;
pub mod state;
pub mod transfer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowline_core::event::PayloadSlot;
use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey, Tenant, Time};
use tokio::sync::watch;

pub use clock::Clock;
pub use commit::{
    Append, AppendError, AppendLine, Base, Commit, CommitError, Committed, Index, LeaseUse, NewRun, Others,
    StateChange,
};
pub use document::{Document, DocumentPage, DocumentQuery, Existing, NewDocument, Order};
pub use error::StoreError;
pub use job::{
    Claim, Claimed, DueTimer, ExpiredLease, Extend, Extended, Gone, Handoff, JobKey, JobRow, JobState, Lane,
    LeasedJob, NewJob, Renewal, Swept, Token,
};
pub use lock::{Acquired, LockProof, LockRequest, LockRow};
pub use memory::{Memory, MemoryStore};
pub use open::IfMissing;
pub use query::{EventPage, EventQuery, FeedFilter, FeedPage, RunPage, RunQuery, Total};
pub use receipt::{Opened, Receipt, ReceiptChange, ReceiptPage, ReceiptQuery, ReceiptStatus};
pub use row::{Counter, Failure, Health, PayloadsAt, QueueRow, RunRow, Snapshot, StoredDefinition};
pub use state::{StateEdit, StateOwner, StatePage, StateQuery, StateScope, StateSpace, StateValue};
pub use transfer::{Filling, Restored, RestoredEvent, RestoredRun, Transfer};

/// What runs live by: commit, lease, read.
#[async_trait]
pub trait RunStore: Send + Sync + 'static {
    /// Writes every commit of the batch that its guards allow, in one durable write, and answers for each in order.
    /// A refused commit leaves nothing behind and doesn't affect the others. A batch names a run at most once.
    /// Guards are checked in this order, and the first that fails is the answer: the base (`Exists` before
    /// `UnknownDefinition`), the leases, the keys of added jobs (a duplicate key is a `StaleLease`). [`rule`] has them in
    /// full, and what happens to jobs. `Err` means that the outcome of the whole batch is unknown, unless
    /// [`StoreError::nothing_written`] says otherwise.
    async fn commit(&self, batch: Vec<Commit>) -> Result<Vec<Result<Committed, CommitError>>, StoreError>;

    /// Adds lines of running attempts (`step.started`, logs, state changes) to their runs' logs, fenced by the lease.
    /// `from_line` makes it idempotent: lines that are already there are skipped. Returns how many lines of the attempt
    /// the log has now. A `from_line` beyond that is refused like a stale lease. The run's version and state don't
    /// change.
    async fn append(&self, batch: Vec<Append>) -> Result<Vec<Result<u32, AppendError>>, StoreError>;

    /// Leases due jobs of the lanes that the caller serves: one of each lane in turn, within a lane the most urgent
    /// first (then by due time, then by age). Skips held jobs, paused queues and timers.
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError>;

    /// Extends or releases leases, and tells which are still held and why others are gone. An expired lease is held
    /// until somebody gives its attempt up; a released one isn't. Releasing doesn't count as losing the lease.
    async fn renew(&self, leases: Vec<Extend>, renewal: Renewal) -> Result<Vec<Extended>, StoreError>;

    /// Finds up to `limit` expired leases and as many due timers that aren't held, the longest due first. Doesn't change
    /// them: each becomes an input of its run. Fails while the store can't take writes, as far as it knows: after a
    /// refused write it tries another, so that an idle engine notices when the trouble is over.
    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError>;

    /// The current state of runs; `None` for one that doesn't exist.
    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError>;

    /// The `data` of the events at these addresses of runs, in order; `None` for an empty address. All of them in one
    /// read, whatever their number: a claim asks for what its jobs need.
    async fn payloads(&self, asked: &[PayloadsAt]) -> Result<Vec<Vec<Option<Json>>>, StoreError>;

    /// The `data` of the events at these addresses of one run.
    async fn payloads_of(
        &self,
        run: &RunKey,
        slots: &[PayloadSlot],
    ) -> Result<Vec<Option<Json>>, StoreError> {
        let asked = [(run.clone(), slots.to_vec())];
        Ok(self.payloads(&asked).await?.pop().unwrap_or_default())
    }

    /// A page of a run's log, in order, of at most [`query::PAGE_BYTES`]. Its cost grows neither with its position in
    /// the log nor with what follows it.
    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError>;

    /// A page of a tenant's receipts, newest first. Its cost grows neither with its position in the list nor with
    /// receipts that status and worker exclude. With `run` it may grow with the receipts of that run, with `event_id`
    /// it doesn't. `Invalid` for an event without its run.
    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError>;

    /// A page of runs, newest first, with a total. `Invalid` for a state without its flow.
    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError>;

    /// The runs of a tenant that [`runs`](RunStore::runs) would never find, because the store's lists were damaged. A store
    /// that finds runs by their rows has none.
    async fn unlisted(&self, _tenant: &Tenant) -> Result<Vec<RunRow>, StoreError> {
        Ok(Vec::new())
    }

    /// Events of many runs from a cursor on: in order per run, and none skipped that commits late. An empty cursor
    /// starts at the oldest event kept; [`FeedFilter::from_now`] at the end.
    async fn feed(&self, filter: FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError>;

    /// Changes whenever something was committed, by this process or, sooner or later, by another. A hint.
    fn watch(&self) -> watch::Receiver<u64>;

    /// The store's clock.
    async fn now(&self) -> Result<Time, StoreError>;

    /// How many events of a run's log match the filters of a query, on any page. Exact up to [`query::EXACT_TOTAL`].
    async fn count_events(&self, run: &RunKey, query: EventQuery) -> Result<Total, StoreError> {
        let mut query = EventQuery { after: 0, limit: query::MAX_PAGE, ..query };
        let mut count = 0;
        loop {
            let page = self.events(run, query.clone()).await?;
            count += page.events.len() as u64;
            match page.events.last() {
                Some(last) if page.more && count < query::EXACT_TOTAL => query.after = last.seq,
                _ if page.more => return Ok(Total::AtLeast(query::EXACT_TOTAL)),
                _ => return Ok(Total::Exact(count)),
            }
        }
    }

    /// The receipt of an event that a run received.
    async fn receipt(&self, run: &RunKey, event_id: &str) -> Result<Option<Receipt>, StoreError> {
        Ok(self.receipts(ReceiptQuery::only(run, event_id)).await?.items.pop())
    }

    async fn extend(&self, leases: Vec<Extend>, ttl: Duration) -> Result<Vec<Extended>, StoreError> {
        self.renew(leases, Renewal::Extend(ttl)).await
    }

    async fn release(&self, leases: Vec<Extend>) -> Result<(), StoreError> {
        self.renew(leases, Renewal::Release).await.map(drop)
    }
}

/// Definitions, key-value state, queues, locks, documents, and what operators need.
#[async_trait]
pub trait Catalog: Send + Sync + 'static {
    /// Stores a definition, and returns whether its hash is new. A new one becomes its flow's latest; a known one doesn't
    /// ([`Catalog::set_latest`] can do that). `origin` (the directory that its commands run in) is replaced every time.
    async fn put_definition(&self, definition: StoredDefinition) -> Result<bool, StoreError>;

    /// Makes a definition its flow's latest. With no hash the flow is retired: it has no latest until a new definition
    /// is put or one is made the latest. False, with nothing changed, if the flow has no definition of that hash, or none
    /// at all.
    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError>;

    /// All definitions of a tenant, by flow name, newest first within a flow.
    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError>;

    /// A page of an owner's live values, by key, of at most [`query::PAGE_BYTES`]. Costs as much as the values on it and
    /// the expired ones between them.
    async fn states(&self, space: &StateSpace, query: StateQuery) -> Result<StatePage, StoreError>;

    /// The named scopes of a tenant that have a live value, by name.
    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError>;

    /// Writes a value from outside any run. `Invalid` for the state of a run: only its attempts write that, and each
    /// change is in the log.
    async fn change_state(&self, space: &StateSpace, edit: StateEdit) -> Result<(), StoreError>;

    /// The depth of each lane of a tenant that has a job, by queue and need. Timers aren't counted. A paused queue with
    /// no jobs has one row of zeros with an empty need.
    async fn queues(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError>;

    /// Stops or resumes the claiming of a queue's jobs. Leased ones keep running.
    async fn pause_queue(&self, tenant: &Tenant, queue: &str, pause: row::Pause) -> Result<(), StoreError>;

    /// Takes a lock that's free or expired. If the token already holds it, it's extended, so that a request can be
    /// repeated after an unknown outcome. `since` grows with every new grant of the store, whatever its clock does.
    async fn acquire_lock(&self, request: LockRequest) -> Result<Acquired, StoreError>;

    /// Extends or releases a lock, and returns when it ends. `None`, with nothing changed, if this token doesn't hold it
    /// (any more).
    async fn renew_lock(&self, lock: LockProof, renewal: Renewal) -> Result<Option<Time>, StoreError>;

    /// The held locks of a tenant, by name.
    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError>;

    /// Writes a document; if it keeps an existing one, returns that. When several race for an id that way, one writes.
    /// A collection exists as long as it has a document. Names of collections and ids have up to
    /// [`document::NAME_BYTES`] and no NUL; anything else is `Invalid`, here and below, and so is a body over the limit.
    async fn put_document(&self, document: NewDocument) -> Result<Option<Document>, StoreError>;

    /// A page of the live documents of a collection, by id. Costs the same wherever it starts.
    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError>;

    /// Deletes a document. False if it's absent or expired.
    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError>;

    /// Runs by (tenant, flow, status, state), as counted by the commits. Without zeros.
    async fn counters(&self) -> Result<Vec<Counter>, StoreError>;

    /// The jobs of a run: waiting, held and leased. Steps by index, then timers by number.
    async fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError>;

    /// Removes what the policy ([`row::Retention::of`] if the run has a `retain`) no longer keeps, up to `limit` runs
    /// trimmed or removed: the earliest ended first, and runs before events. Never touches a run that hasn't ended. Its
    /// cost grows with what it removes and with the number of different `retain`, not with what it keeps. Expired
    /// key-value state, locks and documents are removed too, however many there are.
    async fn retain(&self, policy: row::Retention, limit: usize) -> Result<row::Retained, StoreError>;

    /// The digests of all reports of a run whose log was trimmed, made in the same write that trimmed it. `None` if the
    /// log is whole or was trimmed by an older version.
    async fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, StoreError>;

    /// Removes ended runs and everything that belongs to them, whatever retention would keep, even events that no feed
    /// has read yet. False for a run that hasn't ended or doesn't exist.
    async fn delete_runs(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError>;

    /// Applies a repair that `reconcile` asks for, guarded by the run's version, which goes up by one.
    async fn repair(&self, repair: row::Repair) -> Result<(), CommitError>;

    /// The store's own view of its health.
    async fn check(&self) -> Result<Health, StoreError>;

    /// Whether several engines can use the store at once. If not, it has to refuse a second one itself.
    fn is_shared(&self) -> bool {
        false
    }

    /// A handle on the same store for threads that only serve readers. If reads block, it does a few of them on the calling
    /// thread, which saves handing them to another thread and back. `None` if reads don't block.
    fn in_place(&self) -> Option<Arc<dyn Store>> {
        None
    }

    async fn definition(&self, tenant: &Tenant, hash: &str) -> Result<Option<StoredDefinition>, StoreError> {
        let mut all = self.definitions(tenant).await?.into_iter();
        Ok(all.find(|definition| &*definition.hash == hash))
    }

    /// The latest definition of a flow; `None` if it has none or is retired.
    async fn latest(&self, tenant: &Tenant, flow: &str) -> Result<Option<StoredDefinition>, StoreError> {
        let mut all = self.definitions(tenant).await?.into_iter();
        Ok(all.find(|definition| definition.latest && &*definition.flow == flow))
    }

    /// One live value.
    async fn state(&self, space: &StateSpace, key: &str) -> Result<Option<StateValue>, StoreError> {
        Ok(self.states(space, StateQuery::only(key)).await?.values.pop())
    }

    /// One live document.
    async fn document(&self, collection: &str, id: &str) -> Result<Option<Document>, StoreError> {
        Ok(self.documents(collection, DocumentQuery::only(id)).await?.items.pop())
    }
}

/// A whole store.
pub trait Store: RunStore + Catalog + Transfer {}
impl<T: RunStore + Catalog + Transfer> Store for T {}
