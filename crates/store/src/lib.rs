//! What Flowline asks of a store.
//!
//! A store makes decisions durable: [`RunStore::commit`] appends a run's events, replaces its state and index row,
//! takes finished jobs away and adds the next ones, all or nothing, guarded by the run's version and the lease tokens
//! that the commit names. Everything else reads, leases or tidies up. The contract is what the conformance suite
//! (`conformance`) checks, one named case each; adapters add nothing to it and cases never ask which adapter runs.
//!
//! A store decides nothing about flows. It numbers events, keeps time, and compares versions and tokens.

pub mod clock;
pub mod commit;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod document;
pub mod error;
pub mod job;
pub mod lock;
pub mod memory;
pub mod others;
pub mod query;
pub mod receipt;
pub mod row;
pub mod rule;
pub mod state;
pub mod transfer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowline_core::event::Slot;
use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey, Tenant, Time};
use tokio::sync::watch;

pub use clock::Clock;
pub use commit::{
    Append, AppendError, Base, Commit, CommitError, Committed, Index, LeaseUse, Line, NewRun, Others,
    StateChange,
};
pub use document::{Document, DocumentPage, DocumentQuery, Order};
pub use error::StoreError;
pub use job::{
    Claim, Claimed, DueTimer, ExpiredLease, Extend, Extended, Gone, Handoff, JobKey, JobRow, JobState, Lane,
    LeasedJob, NewJob, Swept, Token,
};
pub use lock::{Acquired, LockRequest, LockRow};
pub use memory::{Memory, MemoryStore};
pub use query::{EventPage, EventQuery, FeedFilter, FeedPage, RunPage, RunQuery, Total};
pub use receipt::{Opened, Receipt, ReceiptChange, ReceiptPage, ReceiptQuery, ReceiptStatus};
pub use row::{Counter, Failure, Health, QueueRow, RunRow, Snapshot, StoredDefinition};
pub use state::{StateOwner, StatePage, StateQuery, StateScope, StateValue};
pub use transfer::{Filling, Restored, RestoredEvent, RestoredRun, Transfer};

/// The part of a store that runs live by: about ten verbs.
#[async_trait]
pub trait RunStore: Send + Sync + 'static {
    /// Writes every commit of the batch that its guards allow, in one durable write, and answers for each in order.
    /// A refused commit leaves nothing behind and does not disturb the others. A batch holds a run at most once.
    /// Guards are checked in this order, and the first that fails is the answer: the base (`Exists` before
    /// `UnknownDefinition`), the leases, the keys of added jobs (a key that is there already, or twice, is a
    /// `StaleLease`); [`rule`] has them in full, and what becomes of jobs. `Err` means that the outcome of the whole batch is unknown, unless [`StoreError::nothing_written`] says so.
    async fn commit(&self, batch: Vec<Commit>) -> Result<Vec<Result<Committed, CommitError>>, StoreError>;

    /// Adds lines of running attempts (`step.started`, logs, state changes) to their runs' logs, fenced by the lease.
    /// `from_line` makes it idempotent: lines that are already there are skipped. Answers how many lines of the attempt
    /// are in the log now. A `from_line` beyond what is there is refused like a stale lease. The run's version and
    /// state do not change.
    async fn append(&self, batch: Vec<Append>) -> Result<Vec<Result<u32, AppendError>>, StoreError>;

    /// Leases due jobs of the lanes that the caller serves, most urgent first within a lane (then the one due first, then
    /// the one added first), rotating over lanes. Held jobs, paused queues and timers are passed over.
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError>;

    /// Moves the expiry of held leases to now + `ttl`, and says which are gone and why. A lease that ran out but that
    /// nobody gave up yet is still held; one that was released is not.
    async fn extend(&self, leases: Vec<Extend>, ttl: Duration) -> Result<Vec<Extended>, StoreError>;

    /// Gives leases back before their time: they expire now and do not count as lost.
    async fn release(&self, leases: Vec<Extend>) -> Result<(), StoreError>;

    /// Finds up to `limit` expired leases and as many due timers that are not held, the longest due first. Changes nothing of
    /// them: each becomes an input of its run. Succeeds only where the store takes writes, as far as it knows: after one was
    /// refused it tries another, so that an idle engine learns that the trouble is over.
    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError>;

    /// The present state of runs; `None` for one that does not exist.
    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError>;

    /// The `data` of the events at these addresses of a run; `None` where nothing is there.
    async fn payloads(&self, run: &RunKey, slots: &[Slot]) -> Result<Vec<Option<Json>>, StoreError>;

    /// A page of a run's log, in order, of at most [`query::PAGE_BYTES`]. Its cost does not grow with the place in the log, nor
    /// with what comes after the page.
    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError>;

    /// How many events of a run's log the filters of a query let through, wherever its page lies. Exact up to
    /// [`query::EXACT_TOTAL`].
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

    /// The receipt of an event that a run took in; `None` where there is none of that id.
    async fn receipt(&self, run: &RunKey, event_id: &str) -> Result<Option<Receipt>, StoreError>;

    /// A page of runs, newest first, with a total. `Invalid` for a state without its flow.
    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError>;

    /// Events of many runs from a cursor on: in order per run, and none skipped that commits late. An empty cursor
    /// starts at the oldest event kept; [`FeedFilter::from_now`] at the end.
    async fn feed(&self, filter: FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError>;

    /// Changes whenever something was committed, by this process or, sooner or later, by another. A hint.
    fn watch(&self) -> watch::Receiver<u64>;

    /// The store's clock.
    async fn now(&self) -> Result<Time, StoreError>;
}

/// Definitions, key-value state, queues, locks, documents, and what operators need.
#[async_trait]
pub trait Catalog: Send + Sync + 'static {
    /// Stores a definition. Only a hash never seen before becomes its flow's latest; an old one cannot turn it back.
    /// [`Catalog::set_latest`] can.
    /// `origin` (the folder that its commands run in) is replaced on every call. True where the hash was new.
    async fn put_definition(&self, definition: StoredDefinition) -> Result<bool, StoreError>;
    async fn definition(&self, tenant: &Tenant, hash: &str) -> Result<Option<StoredDefinition>, StoreError>;
    /// Makes a definition its flow's latest, whatever was put after it. Without a hash the flow is retired: it has no latest
    /// until a new definition is put or one is made the latest. False, and nothing changed, where the flow has no definition
    /// of that hash, or none at all.
    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError>;
    /// The latest definition of a flow; `None` where it has none or is retired.
    async fn latest(&self, tenant: &Tenant, flow: &str) -> Result<Option<StoredDefinition>, StoreError>;
    /// Every definition of a tenant, by flow name, newest first within a flow.
    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError>;

    /// One value of key-value state; `None` where it is absent or expired.
    async fn state(
        &self,
        tenant: &Tenant,
        owner: &StateOwner,
        key: &str,
    ) -> Result<Option<StateValue>, StoreError>;
    /// A page of an owner's live values, by key, of at most [`query::PAGE_BYTES`]. Costs what the page holds, and the values past
    /// their time among them.
    async fn states(
        &self,
        tenant: &Tenant,
        owner: &StateOwner,
        query: StateQuery,
    ) -> Result<StatePage, StoreError>;
    /// The named scopes of a tenant that hold a live value, by name.
    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError>;
    /// Sets a value from outside of any run, or with no value deletes it; with a `ttl` it is gone that long after now.
    /// `Invalid` for the state of a run, which its attempts alone write, each change with a line of the log.
    async fn change_state(
        &self,
        tenant: &Tenant,
        owner: &StateOwner,
        key: &str,
        value: Option<Json>,
        ttl: Option<Duration>,
    ) -> Result<(), StoreError>;

    /// Depths by lane of a tenant, by queue and need: the lanes that hold a job. Timers are not counted. A paused queue
    /// that holds none has one row of zeros, with an empty need.
    async fn queues(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError>;
    /// Stops or lets go on the claiming of a queue's jobs. Leased ones run on.
    async fn pause_queue(&self, tenant: &Tenant, queue: &str, pause: row::Pause) -> Result<(), StoreError>;

    /// Takes a lock that is free or whose time is over. Its holder's token is granted it again, as by
    /// [`Catalog::extend_lock`], so that a request may be repeated after an unknown outcome. `since` grows with every new
    /// grant of the store, whatever its clock does.
    async fn acquire_lock(&self, request: LockRequest) -> Result<Acquired, StoreError>;
    /// Moves the end of a held lock to now + `ttl` and gives it. `None` where this token does not hold it (any more).
    async fn extend_lock(
        &self,
        tenant: &Tenant,
        name: &str,
        token: Token,
        ttl: Duration,
    ) -> Result<Option<Time>, StoreError>;
    /// Gives a lock back. False, and nothing changed, where this token does not hold it (any more).
    async fn release_lock(&self, tenant: &Tenant, name: &str, token: Token) -> Result<bool, StoreError>;
    /// The held locks of a tenant, by name.
    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError>;

    /// Writes a document, in place of the one under its id. With a `ttl` it is gone that long after now. A collection is
    /// there as long as a document is. Names of collections and ids are texts of up to [`document::NAME_BYTES`] without NUL;
    /// `Invalid` otherwise, here and below, and for a body beyond the limit of a payload.
    async fn put_document(
        &self,
        collection: &str,
        id: &str,
        body: Json,
        ttl: Option<Duration>,
    ) -> Result<(), StoreError>;
    /// Writes a document where none is live under its id, and gives the one that is otherwise; `None` where it was written.
    /// Of those that race for an id one writes.
    async fn create_document(
        &self,
        collection: &str,
        id: &str,
        body: Json,
        ttl: Option<Duration>,
    ) -> Result<Option<Document>, StoreError>;
    /// One document; `None` where it is absent or expired.
    async fn document(&self, collection: &str, id: &str) -> Result<Option<Document>, StoreError>;
    /// A page of the live documents of a collection, by id. Its cost does not grow with the place in the collection.
    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError>;
    /// Takes a document away. False where it was absent or expired.
    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError>;

    /// A page of a tenant's receipts, newest first. Its cost grows neither with its place in the list nor with the receipts
    /// that status and worker leave out; with a run given, it grows with those of the run.
    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError>;

    /// Runs by (tenant, flow, status, state), as counted along with the commits. Zeros are left out.
    async fn counters(&self) -> Result<Vec<Counter>, StoreError>;
    /// The jobs of a run: waiting, held and leased. Steps by index, then timers by number.
    async fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError>;

    /// Removes what is older than the policy keeps ([`row::Retention::of`] where the run has a `retain`), up to `limit`
    /// runs (trimmed and removed together), those that ended first before others, and runs before events. Runs that have
    /// not ended are never touched. Its cost grows with what it removes and with how many different `retain` the ended
    /// runs have, not with the runs that it leaves. Key-value state, locks and documents past their time go along, however
    /// many.
    async fn retain(&self, policy: row::Retention, limit: usize) -> Result<row::Retained, StoreError>;
    /// What is left of the reports of a run whose log was trimmed: the digests of all its events, made before they went, in
    /// the same write that marks the run. `None` where the log is whole, and where an older build trimmed it.
    async fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, StoreError>;
    /// Removes runs that have ended with all that is theirs, whatever retention would keep, and says for each whether it did:
    /// not where the run has not ended or is not there. Events that a feed has not read yet go too.
    async fn delete_runs(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError>;
    /// Mends what `reconcile` found, guarded by the run's version, which goes up by one.
    async fn repair(&self, repair: row::Repair) -> Result<(), CommitError>;
    /// Whether several engines can work on it at once; otherwise it refuses a second one by itself.
    fn is_shared(&self) -> bool;
    /// A handle on the same store for threads that only serve readers. If reads block, it does a few of them on the calling
    /// thread, which saves handing them to another thread and back. `None` if reads don't block.
    fn in_place(&self) -> Option<Arc<dyn Store>> {
        None
    }
    /// What the store says of its own health.
    async fn check(&self) -> Result<Health, StoreError>;
}

/// A whole store.
pub trait Store: RunStore + Catalog + Transfer {}
impl<T: RunStore + Catalog + Transfer> Store for T {}
