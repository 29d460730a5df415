//! The in-memory store: the contract at its plainest, and the model that other stores are compared with.
//!
//! [`Memory`] is the content and the verbs, plain and synchronous; [`MemoryStore`] puts it behind a mutex and a clock. The
//! mutex is never held across an await. Nothing survives the process, and nothing is shared with another one.

mod catalog;
mod commit;
mod documents;
mod lease;
mod locks;
mod read;
mod receipts;
mod retain;
mod rows;
mod state;
mod transfer;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey, Tenant, Time};
use tokio::sync::watch;

use crate::commit::{Append, AppendError, Commit, CommitError, Committed};
use crate::document::{Document, DocumentPage, DocumentQuery, NewDocument};
use crate::error::StoreError;
use crate::job::{Claim, Claimed, Extend, Extended, JobRow, Renewal, Swept};
use crate::lock::{Acquired, LockProof, LockRequest, LockRow};
use crate::query::{EventPage, EventQuery, FeedFilter, FeedPage, RunPage, RunQuery};
use crate::receipt::{ReceiptPage, ReceiptQuery};
use crate::row::{
    Counter, Health, Pause, PayloadsAt, QueueRow, Repair, Retained, Retention, Snapshot, StoredDefinition,
};
use crate::state::{StateEdit, StatePage, StateQuery, StateSpace};
use crate::transfer::{Filling, Restored, Transfer};
use crate::{Catalog, Clock, RunStore};

pub use rows::Memory;

/// A store that lives in this process. Clones are the same store.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    memory: Mutex<Memory>,
    clock: Clock,
    changed: watch::Sender<u64>,
}

impl MemoryStore {
    pub fn new(clock: Clock) -> MemoryStore {
        let memory = Mutex::new(Memory::new());
        MemoryStore(Arc::new(Shared { memory, clock, changed: watch::Sender::new(0) }))
    }

    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// A copy of the whole content.
    pub fn snapshot(&self) -> Memory {
        self.lock().clone()
    }

    /// Goes back, or over, to another content.
    pub fn restore(&self, memory: Memory) {
        *self.lock() = memory;
        self.wake();
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        // Every method leaves the content whole, or panics on a bug of its own: a poisoned lock adds nothing to that.
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self) -> Time {
        self.0.clock.now()
    }

    fn wake(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("clock", &self.0.clock).finish_non_exhaustive()
    }
}

#[async_trait]
impl RunStore for MemoryStore {
    async fn commit(&self, batch: Vec<Commit>) -> Result<Vec<Result<Committed, CommitError>>, StoreError> {
        let answers = self.lock().commit(self.time(), batch);
        self.wake();
        Ok(answers)
    }

    async fn append(&self, batch: Vec<Append>) -> Result<Vec<Result<u32, AppendError>>, StoreError> {
        let answers = self.lock().append(self.time(), batch);
        self.wake();
        Ok(answers)
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        Ok(self.lock().claim(self.time(), claim))
    }

    async fn renew(&self, leases: Vec<Extend>, renewal: Renewal) -> Result<Vec<Extended>, StoreError> {
        let answers = self.lock().renew(self.time(), leases, renewal);
        if renewal == Renewal::Release {
            self.wake();
        }
        Ok(answers)
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        Ok(self.lock().sweep(self.time(), limit))
    }

    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        Ok(self.lock().load(runs))
    }

    async fn payloads(&self, asked: &[PayloadsAt]) -> Result<Vec<Vec<Option<Json>>>, StoreError> {
        let memory = self.lock();
        Ok(asked.iter().map(|(run, slots)| memory.payloads(run, slots)).collect())
    }

    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError> {
        Ok(self.lock().events(run, &query))
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        self.lock().receipts(&query)
    }

    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError> {
        self.lock().runs(&query)
    }

    async fn feed(&self, filter: FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError> {
        self.lock().feed(&filter, cursor, limit)
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    async fn now(&self) -> Result<Time, StoreError> {
        Ok(self.time())
    }
}

#[async_trait]
impl Catalog for MemoryStore {
    async fn put_definition(&self, definition: StoredDefinition) -> Result<bool, StoreError> {
        Ok(self.lock().put_definition(self.time(), definition))
    }

    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError> {
        Ok(self.lock().set_latest(tenant, flow, hash))
    }

    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError> {
        Ok(self.lock().definitions(tenant))
    }

    async fn states(&self, space: &StateSpace, query: StateQuery) -> Result<StatePage, StoreError> {
        Ok(self.lock().states(self.time(), space, &query))
    }

    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError> {
        Ok(self.lock().scopes(self.time(), tenant))
    }

    async fn change_state(&self, space: &StateSpace, edit: StateEdit) -> Result<(), StoreError> {
        space.owner.writable()?;
        self.lock().change_state(self.time(), space, edit);
        Ok(())
    }

    async fn queues(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError> {
        Ok(self.lock().queues(self.time(), tenant))
    }

    async fn pause_queue(&self, tenant: &Tenant, queue: &str, pause: Pause) -> Result<(), StoreError> {
        self.lock().pause_queue(tenant, queue, pause);
        self.wake();
        Ok(())
    }

    async fn acquire_lock(&self, request: LockRequest) -> Result<Acquired, StoreError> {
        Ok(self.lock().acquire_lock(self.time(), request))
    }

    async fn renew_lock(&self, lock: LockProof, renewal: Renewal) -> Result<Option<Time>, StoreError> {
        Ok(self.lock().renew_lock(self.time(), lock, renewal))
    }

    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        Ok(self.lock().locks(self.time(), tenant))
    }

    async fn put_document(&self, document: NewDocument) -> Result<Option<Document>, StoreError> {
        self.lock().put_document(self.time(), document)
    }

    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError> {
        self.lock().documents(self.time(), collection, &query)
    }

    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError> {
        self.lock().delete_document(self.time(), collection, id)
    }

    async fn counters(&self) -> Result<Vec<Counter>, StoreError> {
        Ok(self.lock().counters())
    }

    async fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError> {
        Ok(self.lock().jobs(run))
    }

    async fn retain(&self, policy: Retention, limit: usize) -> Result<Retained, StoreError> {
        Ok(self.lock().retain(self.time(), policy, limit))
    }

    async fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, StoreError> {
        Ok(self.lock().reports(run))
    }

    async fn delete_runs(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError> {
        Ok(self.lock().delete_runs(runs))
    }

    async fn repair(&self, repair: Repair) -> Result<(), CommitError> {
        self.lock().repair(self.time(), repair)?;
        self.wake();
        Ok(())
    }

    async fn check(&self) -> Result<Health, StoreError> {
        Ok(self.lock().check())
    }
}

#[async_trait]
impl Transfer for MemoryStore {
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        Ok(self.lock().tenants(self.time()))
    }

    async fn collections(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.lock().collections(self.time()))
    }

    async fn begin_filling(&self) -> Result<Filling, StoreError> {
        Ok(self.lock().begin_filling(self.time()))
    }

    async fn restore(&self, parts: Vec<Restored>) -> Result<(), CommitError> {
        self.lock().restore(parts)?;
        self.wake();
        Ok(())
    }

    async fn end_filling(&self) -> Result<(), StoreError> {
        self.lock().end_filling();
        Ok(())
    }
}
