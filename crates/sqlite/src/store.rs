//! The contract's verbs, each handed to the writer or to a reader.

use std::sync::Arc;

use async_trait::async_trait;
use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey, Tenant, Time};
use flowline_store::document;
use flowline_store::row::{Pause, Repair, Retained, Retention};
use flowline_store::{
    Acquired, Append, AppendError, Catalog, Claim, Claimed, Commit, CommitError, Committed, Counter,
    Document, DocumentPage, DocumentQuery, EventPage, EventQuery, Extend, Extended, FeedFilter, FeedPage,
    Health, JobRow, LockProof, LockRequest, LockRow, NewDocument, PayloadsAt, QueueRow, ReceiptPage,
    ReceiptQuery, Renewal, RunPage, RunQuery, RunStore, Snapshot, StateEdit, StatePage, StateQuery,
    StateSpace, Store, StoreError, StoredDefinition, Swept,
};
use tokio::sync::watch;

use crate::write::Writer;
use crate::write::retain::{self, More};
use crate::{Access, SqliteStore};

#[async_trait]
impl RunStore for SqliteStore {
    async fn commit(&self, batch: Vec<Commit>) -> Result<Vec<Result<Committed, CommitError>>, StoreError> {
        self.writer()?.ask(move |writer| writer.commit(&batch)).await
    }

    async fn append(&self, batch: Vec<Append>) -> Result<Vec<Result<u32, AppendError>>, StoreError> {
        self.writer()?.ask(move |writer| writer.append(&batch)).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.writer()?.ask(move |writer| writer.claim(&claim)).await
    }

    async fn renew(&self, leases: Vec<Extend>, renewal: Renewal) -> Result<Vec<Extended>, StoreError> {
        self.writer()?.ask(move |writer| writer.renew(&leases, renewal)).await
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        if let Ok(writer) = self.writer()
            && writer.trouble().is_some()
        {
            writer.ask(|writer| writer.try_out()).await?;
        }
        let clock = self.clock.clone();
        self.readers.read(move |reader| reader.sweep(clock.now(), limit)).await
    }

    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        let runs = runs.to_vec();
        self.readers.read(move |reader| reader.load(&runs)).await
    }

    async fn payloads(&self, asked: &[PayloadsAt]) -> Result<Vec<Vec<Option<Json>>>, StoreError> {
        let asked = asked.to_vec();
        let found = self
            .readers
            .read(move |reader| asked.iter().map(|(run, slots)| reader.payloads(run, slots)).collect());
        found.await
    }

    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError> {
        let run = run.clone();
        self.readers.read(move |reader| reader.events(&run, &query)).await
    }

    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError> {
        self.readers.read(move |reader| reader.runs(&query)).await
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        self.readers.read(move |reader| reader.receipts(&query)).await
    }

    async fn feed(&self, filter: FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError> {
        let cursor = cursor.to_owned();
        self.readers.read(move |reader| reader.feed(&filter, &cursor, limit)).await
    }

    fn watch(&self) -> watch::Receiver<u64> {
        match &*self.access {
            Access::Engine { changed, .. } => changed.subscribe(),
            Access::Client { follower, .. } => follower.watch(),
        }
    }

    async fn now(&self) -> Result<Time, StoreError> {
        Ok(self.clock.now())
    }
}

#[async_trait]
impl Catalog for SqliteStore {
    async fn put_definition(&self, definition: StoredDefinition) -> Result<bool, StoreError> {
        let forget = self.latest.forget();
        let put = move |writer: &mut Writer<'_>| {
            let _ends_with_this = &forget;
            writer.put_definition(&definition)
        };
        self.writer()?.ask(put).await
    }

    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError> {
        let (tenant, flow, hash) = (tenant.clone(), flow.to_owned(), hash.map(str::to_owned));
        let forget = self.latest.forget();
        let set = move |writer: &mut Writer<'_>| {
            let _ends_with_this = &forget;
            writer.set_latest(&tenant, &flow, hash.as_deref())
        };
        self.writer()?.ask(set).await
    }

    async fn definition(&self, tenant: &Tenant, hash: &str) -> Result<Option<StoredDefinition>, StoreError> {
        let (tenant, hash) = (tenant.clone(), hash.to_owned());
        self.readers.read(move |reader| reader.definition(&tenant, &hash)).await
    }

    async fn latest(&self, tenant: &Tenant, flow: &str) -> Result<Option<StoredDefinition>, StoreError> {
        let age = match &*self.access {
            Access::Engine { .. } => match self.latest.get(tenant, flow) {
                Ok(found) => return Ok(Some(found)),
                Err(age) => Some(age),
            },
            Access::Client { .. } => None,
        };
        let (tenant, flow) = (tenant.clone(), flow.to_owned());
        let found = self.readers.read(move |reader| reader.latest(&tenant, &flow)).await?;
        if let (Some(age), Some(found)) = (age, &found) {
            self.latest.keep(age, found);
        }
        Ok(found)
    }

    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError> {
        let tenant = tenant.clone();
        self.readers.read(move |reader| reader.definitions(&tenant)).await
    }

    async fn states(&self, space: &StateSpace, query: StateQuery) -> Result<StatePage, StoreError> {
        let (space, now) = (space.clone(), self.clock.now());
        self.readers.read(move |reader| reader.states(&space, &query, now)).await
    }

    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError> {
        let (tenant, now) = (tenant.clone(), self.clock.now());
        self.readers.read(move |reader| reader.scopes(&tenant, now)).await
    }

    async fn change_state(&self, space: &StateSpace, edit: StateEdit) -> Result<(), StoreError> {
        space.owner.writable()?;
        let space = space.clone();
        self.writer()?.ask(move |writer| writer.change_state_of(&space, &edit)).await
    }

    async fn queues(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError> {
        let (tenant, now) = (tenant.clone(), self.clock.now());
        self.readers.read(move |reader| reader.queues(&tenant, now)).await
    }

    async fn pause_queue(&self, tenant: &Tenant, queue: &str, pause: Pause) -> Result<(), StoreError> {
        let (tenant, queue) = (tenant.clone(), queue.to_owned());
        self.writer()?.ask(move |writer| writer.pause_queue(&tenant, &queue, pause)).await
    }

    async fn acquire_lock(&self, request: LockRequest) -> Result<Acquired, StoreError> {
        self.writer()?.ask(move |writer| writer.acquire_lock(&request)).await
    }

    async fn renew_lock(&self, lock: LockProof, renewal: Renewal) -> Result<Option<Time>, StoreError> {
        self.writer()?.ask(move |writer| writer.renew_lock(&lock, renewal)).await
    }

    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        let (tenant, now) = (tenant.clone(), self.clock.now());
        self.readers.read(move |reader| reader.locks(&tenant, now)).await
    }

    async fn put_document(&self, document: NewDocument) -> Result<Option<Document>, StoreError> {
        document.check()?;
        self.writer()?.ask(move |writer| writer.put_document(&document)).await
    }

    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError> {
        query.check(collection)?;
        let (collection, now) = (collection.to_owned(), self.clock.now());
        self.readers.read(move |reader| reader.documents(&collection, &query, now)).await
    }

    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError> {
        document::check_address(collection, id)?;
        let (collection, id) = (collection.to_owned(), id.to_owned());
        self.writer()?.ask(move |writer| writer.delete_document(&collection, &id)).await
    }

    async fn counters(&self) -> Result<Vec<Counter>, StoreError> {
        self.readers.read(|reader| reader.counters()).await
    }

    async fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError> {
        let run = run.clone();
        self.readers.read(move |reader| reader.jobs(&run)).await
    }

    /// Each part is a short transaction of its own, so that commits get in between.
    async fn retain(&self, policy: Retention, limit: usize) -> Result<Retained, StoreError> {
        let writer = self.writer()?;
        let mut done = Retained::default();
        let left = |done: Retained| limit.saturating_sub((done.trimmed + done.removed) as usize);
        loop {
            let most = left(done);
            match writer.ask(move |writer| writer.remove_due(policy, most)).await? {
                0 => break,
                removed => done.removed += removed,
            }
        }
        loop {
            let most = left(done);
            let due = writer.ask(move |writer| writer.due_to_trim(policy, most)).await?;
            let digested = self.readers.read(move |reader| reader.digest(&due)).await?;
            match writer.ask(move |writer| writer.trim(&digested)).await? {
                0 => break,
                trimmed => done.trimmed += trimmed,
            }
        }
        while writer.ask(|writer| writer.expire()).await? == More::Yes {}
        while writer.ask(|writer| writer.purge()).await? == More::Yes {}
        while writer.ask(|writer| writer.shrink()).await? == More::Yes {}
        Ok(done)
    }

    async fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, StoreError> {
        let run = run.clone();
        self.readers.read(move |reader| reader.reports(&run)).await
    }

    async fn delete_runs(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError> {
        let writer = self.writer()?;
        let mut done = Vec::with_capacity(runs.len());
        for part in runs.chunks(retain::RUNS) {
            let part = part.to_vec();
            done.extend(writer.ask(move |writer| writer.delete_runs(&part)).await?);
        }
        while writer.ask(|writer| writer.purge()).await? == More::Yes {}
        Ok(done)
    }

    async fn repair(&self, repair: Repair) -> Result<(), CommitError> {
        self.writer()?.ask(move |writer| writer.repair(&repair)).await?
    }

    /// Reads the whole file to check its pages: for operators, not for every request.
    fn in_place(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(SqliteStore { readers: self.readers.in_place(), ..self.clone() }))
    }

    async fn check(&self) -> Result<Health, StoreError> {
        let (bytes, format, mut problems) = self.readers.read(|reader| reader.examine()).await?;
        for problem in &mut problems {
            problem.push_str("; restore a backup, or save what you can with `.recover` in sqlite3");
        }
        if let Access::Engine { writer, .. } = &*self.access {
            problems.extend(writer.trouble().map(|why| format!("the last write failed: {why}")));
        }
        Ok(Health {
            kind: "sqlite",
            version: rusqlite::version().to_owned(),
            format,
            bytes: Some(bytes),
            durability: self.durability.words().to_owned(),
            unwritable: None,
            problems,
        })
    }
}
