//! The store as an instance or a client reaches it: every call is a request on its way, with a fate.
//!
//! A call takes effect at the moment it arrives, and the checker sees it then. Calls overtake each other, get lost before or
//! after they are carried out, arrive twice, or arrive after their sender has died.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowline_check::StoreSnapshot;
use flowline_core::event::{EventType, NewEvent};
use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey, Tenant, Time};
use flowline_store::row::{Pause, Repair, Retained, Retention};
use flowline_store::{
    Acquired, Append, AppendError, Catalog, Claim, Claimed, Commit, CommitError, Committed, Counter,
    Document, DocumentPage, DocumentQuery, EventPage, EventQuery, Extend, Extended, FeedFilter, FeedPage,
    Filling, Health, JobRow, LockProof, LockRequest, LockRow, Memory, NewDocument, PayloadsAt, QueueRow,
    ReceiptPage, ReceiptQuery, Renewal, Restored, RunPage, RunQuery, RunStore, Snapshot, StateEdit,
    StatePage, StateQuery, StateSpace, StoreError, StoredDefinition, Swept, Transfer,
};
use tokio::sync::watch;

use crate::mishap::{CallFate, CallKind};
use crate::shared::{Inner, SharedWorld, WaitPlace};
use crate::tell;

/// One sender's connection to the store.
#[derive(Clone)]
pub(crate) struct Wire {
    shared: Arc<SharedWorld>,
    who: Arc<str>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({})", self.who)
    }
}

impl Wire {
    pub(crate) fn new(shared: Arc<SharedWorld>, who: Arc<str>) -> Wire {
        Wire { shared, who }
    }

    /// Carries a request that changes the store, and its answer back. `act` is what the store does, and may be done twice.
    async fn cross<T: Send>(
        &self,
        kind: CallKind,
        what: &'static str,
        mut act: impl FnMut(&mut Inner, &str) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (fate, back) = self.send(kind, what).await;
        let answer = fate.arrives().then(|| {
            let mut inner = self.shared.lock();
            if fate == CallFate::Repeated {
                act(&mut inner, &self.who);
            }
            act(&mut inner, &self.who)
        });
        if let CallFate::Doubled(later) = fate {
            let (shared, who) = (self.shared.clone(), self.who.clone());
            let again = async move {
                shared.sleep(later, WaitPlace::Wire).await;
                let mut inner = shared.lock();
                inner.tell(|| who.to_string(), || format!("{what}: the second copy arrives"));
                act(&mut inner, &who);
            };
            self.shared.lock().spawned.push(Box::pin(again));
        }
        self.answer(fate, back, answer).await
    }

    /// A write that the checker doesn't watch.
    async fn write<T: Send>(
        &self,
        what: &'static str,
        mut write: impl FnMut(&mut Memory, Time) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let act = move |inner: &mut Inner, _: &str| {
            let now = inner.store_now();
            write(&mut inner.memory, now)
        };
        self.cross(CallKind::Write, what, act).await
    }

    async fn read<T: Send>(
        &self,
        what: &'static str,
        read: impl Fn(&Memory, Time) -> T + Send,
    ) -> Result<T, StoreError> {
        let (fate, back) = self.send(CallKind::Read, what).await;
        let answer = fate.arrives().then(|| {
            let inner = self.shared.lock();
            read(&inner.memory, inner.store_now())
        });
        self.answer(fate, back, answer).await
    }

    /// Sends a request on its way. Returns its fate, and how long the way back takes.
    async fn send(&self, kind: CallKind, what: &str) -> (CallFate, Duration) {
        let (fate, there, back) = {
            let mut inner = self.shared.lock();
            let Inner { rng, weather, .. } = &mut *inner;
            (weather.fate(rng, kind), weather.way(rng), weather.way(rng))
        };
        self.shared.sleep(there, WaitPlace::Wire).await;
        if fate != CallFate::Fine {
            self.shared.lock().tell(|| self.who.to_string(), || tell::fate(fate, what));
        }
        (fate, back)
    }

    async fn answer<T>(&self, fate: CallFate, back: Duration, answer: Option<T>) -> Result<T, StoreError> {
        self.shared.sleep(back, WaitPlace::Home).await;
        match (fate.error(), answer) {
            (None, Some(answer)) => Ok(answer),
            (error, _) => Err(error.unwrap_or_else(|| StoreError::Unavailable("no answer".to_owned()))),
        }
    }
}

#[async_trait]
impl RunStore for Wire {
    async fn commit(&self, batch: Vec<Commit>) -> Result<Vec<Result<Committed, CommitError>>, StoreError> {
        let hidden = |event: &NewEvent| matches!(event.kind, EventType::FlowPaused | EventType::FlowResumed);
        let hides = batch.iter().any(|commit| commit.events.iter().any(hidden));
        let kind = if hides { CallKind::FirstAnswer } else { CallKind::Write };
        let act = move |inner: &mut Inner, who: &str| {
            let (at, now) = (inner.now, inner.store_now());
            let answers = inner.memory.commit(now, batch.clone());
            for (commit, answer) in batch.iter().zip(&answers) {
                let Inner { story, memory, .. } = &mut *inner;
                story.tell(at, || who.to_owned(), || tell::commit(memory, commit, answer));
                let violations = inner.watch.committed(&inner.memory, now, commit, answer);
                inner.judge(violations);
            }
            answers
        };
        self.cross(kind, "commit", act).await
    }

    async fn append(&self, batch: Vec<Append>) -> Result<Vec<Result<u32, AppendError>>, StoreError> {
        let act = move |inner: &mut Inner, who: &str| {
            let now = inner.store_now();
            let answers = inner.memory.append(now, batch.clone());
            for (append, answer) in batch.iter().zip(&answers) {
                inner.tell(|| who.to_owned(), || tell::append(append, answer));
                let violations = inner.watch.appended(&inner.memory, append, answer);
                inner.judge(violations);
            }
            answers
        };
        self.cross(CallKind::Write, "append", act).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let act = move |inner: &mut Inner, who: &str| {
            let now = inner.store_now();
            let claimed = inner.memory.claim(now, claim.clone());
            for job in &claimed.jobs {
                inner.tell(|| who.to_owned(), || tell::claimed(job));
            }
            let violations = inner.watch.claimed(now, &claim, &claimed);
            inner.judge(violations);
            claimed
        };
        self.cross(CallKind::Write, "claim", act).await
    }

    async fn renew(&self, leases: Vec<Extend>, renewal: Renewal) -> Result<Vec<Extended>, StoreError> {
        let what = match renewal {
            Renewal::Extend(_) => "heartbeat",
            Renewal::Release => "release",
        };
        let act = move |inner: &mut Inner, who: &str| {
            let now = inner.store_now();
            let answers = inner.memory.renew(now, leases.clone(), renewal);
            match renewal {
                Renewal::Extend(ttl) => {
                    inner.tell(|| who.to_owned(), || tell::extended(&leases, &answers));
                    let violations = inner.watch.extended(now, &leases, ttl, &answers);
                    inner.judge(violations);
                }
                Renewal::Release => {
                    inner.tell(|| who.to_owned(), || format!("gives back {} leases", leases.len()));
                    inner.watch.released(now, &leases);
                }
            }
            answers
        };
        self.cross(CallKind::Write, what, act).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.read("sweep", |memory, now| memory.sweep(now, limit)).await
    }

    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        self.read("load", |memory, _| memory.load(runs)).await
    }

    async fn payloads(&self, asked: &[PayloadsAt]) -> Result<Vec<Vec<Option<Json>>>, StoreError> {
        let found = |memory: &Memory| asked.iter().map(|(run, slots)| memory.payloads(run, slots)).collect();
        self.read("payloads", |memory, _| found(memory)).await
    }

    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError> {
        self.read("events", |memory, _| memory.events(run, &query)).await
    }

    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError> {
        self.read("runs", |memory, _| memory.runs(&query)).await?
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        self.read("receipts", |memory, _| memory.receipts(&query)).await?
    }

    async fn feed(&self, filter: FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError> {
        self.read("feed", |memory, _| memory.feed(&filter, cursor, limit)).await?
    }

    /// Nothing in a simulation follows hints: reading is the truth.
    fn watch(&self) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }

    async fn now(&self) -> Result<Time, StoreError> {
        self.read("now", |_, now| now).await
    }
}

#[async_trait]
impl Catalog for Wire {
    async fn put_definition(&self, definition: StoredDefinition) -> Result<bool, StoreError> {
        let act = move |inner: &mut Inner, who: &str| {
            let now = inner.store_now();
            let new = inner.memory.put_definition(now, definition.clone());
            if new {
                inner.tell(|| who.to_owned(), || format!("registers flow {:?}", definition.flow));
            }
            new
        };
        self.cross(CallKind::Write, "put definition", act).await
    }

    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError> {
        let (tenant, flow, hash) = (tenant.clone(), flow.to_owned(), hash.map(str::to_owned));
        self.write("set latest", move |memory, _| memory.set_latest(&tenant, &flow, hash.as_deref())).await
    }

    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError> {
        self.read("definitions", |memory, _| memory.definitions(tenant)).await
    }

    async fn states(&self, space: &StateSpace, query: StateQuery) -> Result<StatePage, StoreError> {
        self.read("states", |memory, now| memory.states(now, space, &query)).await
    }

    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError> {
        self.read("scopes", |memory, now| memory.scopes(now, tenant)).await
    }

    async fn change_state(&self, space: &StateSpace, edit: StateEdit) -> Result<(), StoreError> {
        space.owner.writable()?;
        let space = space.clone();
        self.write("change state", move |memory, now| memory.change_state(now, &space, edit.clone())).await
    }

    async fn queues(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError> {
        self.read("queues", |memory, now| memory.queues(now, tenant)).await
    }

    async fn pause_queue(&self, tenant: &Tenant, queue: &str, pause: Pause) -> Result<(), StoreError> {
        let (tenant, queue) = (tenant.clone(), queue.to_owned());
        let act = move |inner: &mut Inner, who: &str| {
            inner.memory.pause_queue(&tenant, &queue, pause);
            inner.watch.queue_paused(&tenant, &queue, pause == Pause::Paused);
            inner.tell(|| who.to_owned(), || format!("queue {queue} is now {pause:?}"));
        };
        self.cross(CallKind::Write, "pause queue", act).await
    }

    async fn acquire_lock(&self, request: LockRequest) -> Result<Acquired, StoreError> {
        self.write("acquire lock", move |memory, now| memory.acquire_lock(now, request.clone())).await
    }

    async fn renew_lock(&self, lock: LockProof, renewal: Renewal) -> Result<Option<Time>, StoreError> {
        self.write("renew lock", move |memory, now| memory.renew_lock(now, lock.clone(), renewal)).await
    }

    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        self.read("locks", |memory, now| memory.locks(now, tenant)).await
    }

    async fn put_document(&self, document: NewDocument) -> Result<Option<Document>, StoreError> {
        self.write("put document", move |memory, now| memory.put_document(now, document.clone())).await?
    }

    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError> {
        self.read("documents", |memory, now| memory.documents(now, collection, &query)).await?
    }

    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError> {
        let (collection, id) = (collection.to_owned(), id.to_owned());
        self.write("delete document", move |memory, now| memory.delete_document(now, &collection, &id))
            .await?
    }

    async fn counters(&self) -> Result<Vec<Counter>, StoreError> {
        self.read("counters", |memory, _| memory.counters()).await
    }

    async fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError> {
        self.read("jobs", |memory, _| memory.jobs(run)).await
    }

    async fn retain(&self, policy: Retention, limit: usize) -> Result<Retained, StoreError> {
        let act = move |inner: &mut Inner, who: &str| {
            let now = inner.store_now();
            let before = StoreSnapshot::runs(&inner.memory, &Tenant::default());
            let retained = inner.memory.retain(now, policy, limit);
            let gone = before.into_iter().filter(|run| inner.memory.row(run).is_none());
            inner.history.removed.extend(gone.collect::<Vec<_>>());
            inner.tell(|| who.to_owned(), || tell::retained(retained));
            let violations = inner.watch.retained(&inner.memory, now, policy);
            inner.judge(violations);
            retained
        };
        self.cross(CallKind::Write, "retain", act).await
    }

    async fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, StoreError> {
        self.read("reports", |memory, _| memory.reports(run)).await
    }

    async fn delete_runs(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError> {
        let runs = runs.to_vec();
        let act = move |inner: &mut Inner, _: &str| {
            let gone = inner.memory.delete_runs(&runs);
            let removed = runs.iter().zip(&gone).filter(|(_, gone)| **gone).map(|(run, _)| run.clone());
            inner.history.removed.extend(removed);
            gone
        };
        self.cross(CallKind::Write, "delete runs", act).await
    }

    async fn repair(&self, repair: Repair) -> Result<(), CommitError> {
        self.write("repair", move |memory, now| memory.repair(now, repair.clone())).await?
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<Health, StoreError> {
        self.read("check", |memory, _| memory.check()).await
    }
}

/// Nobody moves a store within a world; the verbs are the memory's own.
#[async_trait]
impl Transfer for Wire {
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.read("tenants", |memory, now| memory.tenants(now)).await
    }

    async fn collections(&self) -> Result<Vec<String>, StoreError> {
        self.read("collections", |memory, now| memory.collections(now)).await
    }

    async fn begin_filling(&self) -> Result<Filling, StoreError> {
        self.write("begin filling", move |memory, now| memory.begin_filling(now)).await
    }

    async fn restore(&self, parts: Vec<Restored>) -> Result<(), CommitError> {
        self.write("restore", move |memory, _| memory.restore(parts.clone())).await?
    }

    async fn end_filling(&self) -> Result<(), StoreError> {
        self.write("end filling", |memory, _| memory.end_filling()).await
    }
}
