//! The in-memory store with one planted fault.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey, Tenant, Time};
use flowline_store::row::{Pause, Repair, Retained, Retention};
use flowline_store::*;
use tokio::sync::watch;

#[derive(Debug, Clone, Copy)]
pub(crate) enum PlantedFault {
    /// A stale token does not stop a commit.
    DropsTheFence,
    /// A commit on an old version lands.
    IgnoresTheVersion,
    /// A live lease can be given up.
    ExpiresEarly,
    /// Lines sent again are written again.
    RepeatsLines,
    /// Says that every lease is held.
    ExtendsAll,
    ForgetsGrants,
    /// Waiting jobs of a paused run are claimed.
    ForgetsHolds,
    /// Jobs are left behind by a run that ended.
    ForgetsDrops,
    ForgetsPauses,
    /// A released lease looks lost.
    ForgetsReleases,
    /// One event of the feed is skipped.
    SkipsInTheFeed,
    /// A refused commit leaves its events behind.
    SplitsTheCommit,
    /// Key-value state outlives its run.
    ForgetsToClear,
    /// A lock is released without its token.
    ReleasesForAnyone,
    /// A deleted document is still there.
    KeepsDocuments,
    /// What became of an event is not written down.
    ForgetsReceipts,
    /// A second creator of a document is told that it was the first.
    CreatesTwice,
    /// What attempts reported is forgotten with the log.
    ForgetsReports,
}

impl PlantedFault {
    pub(crate) const ALL: [PlantedFault; 18] = [
        PlantedFault::DropsTheFence,
        PlantedFault::IgnoresTheVersion,
        PlantedFault::ExpiresEarly,
        PlantedFault::RepeatsLines,
        PlantedFault::ExtendsAll,
        PlantedFault::ForgetsGrants,
        PlantedFault::ForgetsHolds,
        PlantedFault::ForgetsDrops,
        PlantedFault::ForgetsPauses,
        PlantedFault::ForgetsReleases,
        PlantedFault::SkipsInTheFeed,
        PlantedFault::SplitsTheCommit,
        PlantedFault::ForgetsToClear,
        PlantedFault::ReleasesForAnyone,
        PlantedFault::KeepsDocuments,
        PlantedFault::ForgetsReceipts,
        PlantedFault::CreatesTwice,
        PlantedFault::ForgetsReports,
    ];
}

#[derive(Debug, Clone)]
pub(crate) struct Broken {
    pub(crate) store: MemoryStore,
    pub(crate) fault: PlantedFault,
}

impl Broken {
    async fn commit_one(&self, mut commit: Commit) -> Result<Result<Committed, CommitError>, StoreError> {
        match self.fault {
            PlantedFault::ForgetsHolds if commit.others == Others::Hold => commit.others = Others::Leave,
            PlantedFault::ForgetsDrops if commit.others == Others::Drop => commit.others = Others::Leave,
            PlantedFault::ForgetsToClear => commit.clear_state = false,
            PlantedFault::ForgetsReceipts => commit.receipts.retain(|change| change.opened.is_some()),
            PlantedFault::ExpiresEarly => {
                for lease in &mut commit.leases {
                    if let LeaseUse::Expired { key, attempt, token, .. } = *lease {
                        *lease = LeaseUse::Finish { key, attempt, token };
                    }
                }
            }
            _ => {}
        }
        let answer = self.store.commit(vec![commit.clone()]).await?.remove(0);
        match (self.fault, answer) {
            (PlantedFault::DropsTheFence, Err(CommitError::StaleLease(key))) => {
                commit.leases.retain(|lease| lease.key() != key);
                Ok(self.store.commit(vec![commit]).await?.remove(0))
            }
            (PlantedFault::IgnoresTheVersion, Err(CommitError::Conflict { found: Some(found), .. })) => {
                commit.base = Base::Version(found);
                Ok(self.store.commit(vec![commit]).await?.remove(0))
            }
            (PlantedFault::SplitsTheCommit, Err(error @ CommitError::StaleLease(_))) => {
                commit.leases.clear();
                commit.add.clear();
                self.store.commit(vec![commit]).await?;
                Ok(Err(error))
            }
            (PlantedFault::ForgetsGrants, Ok(landed)) => Ok(Ok(Committed { granted: vec![], ..landed })),
            (_, answer) => Ok(answer),
        }
    }
}

#[async_trait]
impl RunStore for Broken {
    async fn commit(&self, batch: Vec<Commit>) -> Result<Vec<Result<Committed, CommitError>>, StoreError> {
        let mut answers = Vec::new();
        for commit in batch {
            answers.push(self.commit_one(commit).await?);
        }
        Ok(answers)
    }
    async fn append(&self, mut batch: Vec<Append>) -> Result<Vec<Result<u32, AppendError>>, StoreError> {
        if let PlantedFault::RepeatsLines = self.fault {
            for append in &mut batch {
                let jobs = self.store.jobs(&append.run).await?;
                let there = jobs.iter().find(|job| job.key == append.key).map_or(0, |job| job.lines);
                append.from_line = append.from_line.max(there);
            }
        }
        self.store.append(batch).await
    }
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.store.claim(claim).await
    }
    async fn renew(&self, leases: Vec<Extend>, renewal: Renewal) -> Result<Vec<Extended>, StoreError> {
        let renewal = match (self.fault, renewal) {
            (PlantedFault::ForgetsReleases, Renewal::Release) => Renewal::Extend(Duration::ZERO),
            _ => renewal,
        };
        let mut answers = self.store.renew(leases, renewal).await?;
        if let PlantedFault::ExtendsAll = self.fault {
            answers.fill(Extended::Held);
        }
        Ok(answers)
    }
    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.store.sweep(limit).await
    }
    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        self.store.load(runs).await
    }
    async fn payloads(&self, asked: &[PayloadsAt]) -> Result<Vec<Vec<Option<Json>>>, StoreError> {
        self.store.payloads(asked).await
    }
    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError> {
        self.store.events(run, query).await
    }
    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError> {
        self.store.runs(query).await
    }
    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        self.store.receipts(query).await
    }
    async fn feed(&self, filter: FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError> {
        let mut page = self.store.feed(filter, cursor, limit).await?;
        if let PlantedFault::SkipsInTheFeed = self.fault {
            page.events.retain(|event| event.seq != 3);
        }
        Ok(page)
    }
    fn watch(&self) -> watch::Receiver<u64> {
        self.store.watch()
    }
    async fn now(&self) -> Result<Time, StoreError> {
        self.store.now().await
    }
}

#[async_trait]
impl Catalog for Broken {
    async fn put_definition(&self, definition: StoredDefinition) -> Result<bool, StoreError> {
        self.store.put_definition(definition).await
    }
    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError> {
        self.store.set_latest(tenant, flow, hash).await
    }
    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError> {
        self.store.definitions(tenant).await
    }
    async fn states(&self, space: &StateSpace, query: StateQuery) -> Result<StatePage, StoreError> {
        self.store.states(space, query).await
    }
    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError> {
        self.store.scopes(tenant).await
    }
    async fn change_state(&self, space: &StateSpace, edit: StateEdit) -> Result<(), StoreError> {
        self.store.change_state(space, edit).await
    }
    async fn queues(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError> {
        self.store.queues(tenant).await
    }
    async fn pause_queue(&self, tenant: &Tenant, queue: &str, pause: Pause) -> Result<(), StoreError> {
        match self.fault {
            PlantedFault::ForgetsPauses => Ok(()),
            _ => self.store.pause_queue(tenant, queue, pause).await,
        }
    }
    async fn acquire_lock(&self, request: LockRequest) -> Result<Acquired, StoreError> {
        self.store.acquire_lock(request).await
    }
    async fn renew_lock(&self, mut lock: LockProof, renewal: Renewal) -> Result<Option<Time>, StoreError> {
        if let (PlantedFault::ReleasesForAnyone, Renewal::Release) = (self.fault, renewal) {
            // Every token that the calls are made with.
            for token in 1..=3 {
                lock.token = Token(token);
                if let Some(end) = self.store.renew_lock(lock.clone(), renewal).await? {
                    return Ok(Some(end));
                }
            }
            return Ok(None);
        }
        self.store.renew_lock(lock, renewal).await
    }
    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        self.store.locks(tenant).await
    }
    async fn put_document(&self, mut document: NewDocument) -> Result<Option<Document>, StoreError> {
        if let PlantedFault::CreatesTwice = self.fault {
            document.existing = Existing::Replace;
        }
        self.store.put_document(document).await
    }
    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError> {
        self.store.documents(collection, query).await
    }
    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError> {
        match self.fault {
            PlantedFault::KeepsDocuments => Ok(self.store.document(collection, id).await?.is_some()),
            _ => self.store.delete_document(collection, id).await,
        }
    }
    async fn counters(&self) -> Result<Vec<Counter>, StoreError> {
        self.store.counters().await
    }
    async fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError> {
        self.store.jobs(run).await
    }
    async fn retain(&self, policy: Retention, limit: usize) -> Result<Retained, StoreError> {
        self.store.retain(policy, limit).await
    }
    async fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, StoreError> {
        let reports = self.store.reports(run).await?;
        Ok(reports.filter(|_| !matches!(self.fault, PlantedFault::ForgetsReports)))
    }

    async fn delete_runs(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError> {
        self.store.delete_runs(runs).await
    }
    async fn repair(&self, repair: Repair) -> Result<(), CommitError> {
        self.store.repair(repair).await
    }
    async fn check(&self) -> Result<Health, StoreError> {
        self.store.check().await
    }
}

#[async_trait]
impl Transfer for Broken {
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.store.tenants().await
    }
    async fn collections(&self) -> Result<Vec<String>, StoreError> {
        self.store.collections().await
    }
    async fn begin_filling(&self) -> Result<Filling, StoreError> {
        self.store.begin_filling().await
    }
    async fn restore(&self, parts: Vec<Restored>) -> Result<(), CommitError> {
        Transfer::restore(&self.store, parts).await
    }
    async fn end_filling(&self) -> Result<(), StoreError> {
        self.store.end_filling().await
    }
}
