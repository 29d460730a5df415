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
use std::time::Duration;

use async_trait::async_trait;
use flowline_core::event::Slot;
use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey, Tenant, Time};
use tokio::sync::watch;

use crate::commit::{Append, AppendError, Commit, CommitError, Committed};
use crate::document::{Document, DocumentPage, DocumentQuery};
use crate::error::StoreError;
use crate::job::{Claim, Claimed, Extend, Extended, JobRow, Swept, Token};
use crate::lock::{Acquired, LockRequest, LockRow};
use crate::query::{EventPage, EventQuery, FeedFilter, FeedPage, RunPage, RunQuery};
use crate::receipt::{Receipt, ReceiptPage, ReceiptQuery};
use crate::row::{Counter, Health, Pause, QueueRow, Repair, Retained, Retention, Snapshot, StoredDefinition};
use crate::state::{StateOwner, StatePage, StateQuery, StateValue};
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

    async fn extend(&self, leases: Vec<Extend>, ttl: Duration) -> Result<Vec<Extended>, StoreError> {
        Ok(self.lock().extend(self.time(), leases, ttl))
    }

    async fn release(&self, leases: Vec<Extend>) -> Result<(), StoreError> {
        self.lock().release(self.time(), leases);
        self.wake();
        Ok(())
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        Ok(self.lock().sweep(self.time(), limit))
    }

    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        Ok(self.lock().load(runs))
    }

    async fn payloads(&self, run: &RunKey, slots: &[Slot]) -> Result<Vec<Option<Json>>, StoreError> {
        Ok(self.lock().payloads(run, slots))
    }

    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError> {
        Ok(self.lock().events(run, &query))
    }

    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError> {
        self.lock().runs(&query)
    }

    async fn receipt(&self, run: &RunKey, event_id: &str) -> Result<Option<Receipt>, StoreError> {
        Ok(self.lock().receipt(run, event_id))
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

    async fn definition(&self, tenant: &Tenant, hash: &str) -> Result<Option<StoredDefinition>, StoreError> {
        Ok(self.lock().definition(tenant, hash))
    }

    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError> {
        Ok(self.lock().set_latest(tenant, flow, hash))
    }

    async fn latest(&self, tenant: &Tenant, flow: &str) -> Result<Option<StoredDefinition>, StoreError> {
        Ok(self.lock().latest(tenant, flow))
    }

    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError> {
        Ok(self.lock().definitions(tenant))
    }

    async fn state(
        &self,
        tenant: &Tenant,
        owner: &StateOwner,
        key: &str,
    ) -> Result<Option<StateValue>, StoreError> {
        Ok(self.lock().state(self.time(), tenant, owner, key))
    }

    async fn states(
        &self,
        tenant: &Tenant,
        owner: &StateOwner,
        query: StateQuery,
    ) -> Result<StatePage, StoreError> {
        Ok(self.lock().states(self.time(), tenant, owner, &query))
    }

    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError> {
        Ok(self.lock().scopes(self.time(), tenant))
    }

    async fn change_state(
        &self,
        tenant: &Tenant,
        owner: &StateOwner,
        key: &str,
        value: Option<Json>,
        ttl: Option<Duration>,
    ) -> Result<(), StoreError> {
        owner.writable()?;
        self.lock().change_state(self.time(), tenant, owner, key, value, ttl);
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

    async fn extend_lock(
        &self,
        tenant: &Tenant,
        name: &str,
        token: Token,
        ttl: Duration,
    ) -> Result<Option<Time>, StoreError> {
        Ok(self.lock().extend_lock(self.time(), tenant, name, token, ttl))
    }

    async fn release_lock(&self, tenant: &Tenant, name: &str, token: Token) -> Result<bool, StoreError> {
        Ok(self.lock().release_lock(self.time(), tenant, name, token))
    }

    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        Ok(self.lock().locks(self.time(), tenant))
    }

    async fn put_document(
        &self,
        collection: &str,
        id: &str,
        body: Json,
        ttl: Option<Duration>,
    ) -> Result<(), StoreError> {
        self.lock().put_document(self.time(), collection, id, body, ttl)
    }

    async fn create_document(
        &self,
        collection: &str,
        id: &str,
        body: Json,
        ttl: Option<Duration>,
    ) -> Result<Option<Document>, StoreError> {
        self.lock().create_document(self.time(), collection, id, body, ttl)
    }

    async fn document(&self, collection: &str, id: &str) -> Result<Option<Document>, StoreError> {
        self.lock().document(self.time(), collection, id)
    }

    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError> {
        self.lock().documents(self.time(), collection, &query)
    }

    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError> {
        self.lock().delete_document(self.time(), collection, id)
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        self.lock().receipts(&query)
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

    fn is_shared(&self) -> bool {
        false
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
