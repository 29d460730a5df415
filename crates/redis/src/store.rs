//! The contract's verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowline_core::report::ReportDigests;
use flowline_core::{Json, RunKey, Tenant, Time};
use flowline_store::document;
use flowline_store::row::{Pause, Repair, Retained, Retention};
use flowline_store::{
    Acquired, Append, AppendError, Catalog, Claim, Claimed, Commit, CommitError, Committed, Counter,
    Document, DocumentPage, DocumentQuery, EventPage, EventQuery, Extend, Extended, FeedFilter, FeedPage,
    Health, JobRow, LockProof, LockRequest, LockRow, NewDocument, PayloadsAt, QueueRow, ReceiptPage,
    ReceiptQuery, Renewal, RunPage, RunQuery, RunRow, RunStore, Snapshot, StateEdit, StatePage, StateQuery,
    StateSpace, StoreError, StoredDefinition, Swept,
};
use tokio::sync::{oneshot, watch};

use crate::commit::{self, CommitAnswer, CommitKind, Landing, PackedCommit};
use crate::encode;
use crate::known::KnownRow;
use crate::names;
use crate::write::WriteReply;
use crate::{RedisStore, hash};

/// A commit in the queue: its place in the batch, itself and the run that it is of, and what is known of it if it lands.
struct Waiting {
    place: usize,
    commit: Box<Commit>,
    run: String,
    landing: Option<Landing>,
    answer: oneshot::Receiver<WriteReply>,
}

impl RedisStore {
    async fn write(
        &self,
        batch: Vec<Commit>,
        kind: CommitKind,
    ) -> Result<Vec<Result<Committed, CommitError>>, StoreError> {
        let mut answers: Vec<_> = batch.iter().map(|_| None).collect();
        let mut failed = None;
        // All are asked before the first is waited for, and all are waited for before one's failure is told.
        let mut waiting = Vec::with_capacity(batch.len());
        for (place, commit) in batch.into_iter().enumerate() {
            let run = names::run(&commit.run);
            let known = self.known.take(&run);
            waiting.push(self.ask(place, Box::new(commit), run, kind, known.as_ref())?);
        }
        while !waiting.is_empty() {
            let mut again = Vec::new();
            for Waiting { place, commit, run, landing, answer } in waiting {
                let (answer, now) = match received(answer).await {
                    Ok(answer) => answer,
                    Err(error) => {
                        failed = Some(worse(failed, error));
                        continue;
                    }
                };
                match commit::read(&answer, now, &commit.base, landing)? {
                    CommitAnswer::Landed(committed, known) => {
                        self.known.keep(run, known);
                        answers[place] = Some(Ok(committed));
                    }
                    CommitAnswer::Refused(refused) => answers[place] = Some(Err(refused)),
                    CommitAnswer::Changed(known) => {
                        again.push(self.ask(place, commit, run, kind, Some(&known))?);
                    }
                }
            }
            waiting = again;
        }
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        match failed {
            // Some may have landed: what is known of the others does not count.
            Some(error) if !answers.is_empty() && error.nothing_written() => {
                Err(StoreError::Unavailable(format!("part of a batch failed: {error}")))
            }
            Some(error) => Err(error),
            None => Ok(answers),
        }
    }

    /// Puts a commit into its queue.
    fn ask(
        &self,
        place: usize,
        commit: Box<Commit>,
        run: String,
        kind: CommitKind,
        known: Option<&KnownRow>,
    ) -> Result<Waiting, StoreError> {
        let hint = self.hint(commit.add.len());
        let PackedCommit { args, commands, landing } = commit::pack(&commit, &run, kind, known, hint)?;
        let answer = self.commits[self.shard_number(&run)].push(hash(&run), args, commands);
        Ok(Waiting { place, commit, run, landing, answer })
    }

    /// Where the numbers of a write and its `parts` begin. None with one shard: its own order is enough.
    pub(crate) fn hint(&self, parts: usize) -> u64 {
        match self.shards.len() {
            1 => 0,
            _ => self.shared.hint(1 + parts as u64),
        }
    }

    pub(crate) async fn write_one(
        &self,
        commit: Commit,
        kind: CommitKind,
    ) -> Result<Result<Committed, CommitError>, StoreError> {
        let answer = self.write(vec![commit], kind).await?.pop();
        answer.ok_or_else(|| StoreError::Unavailable("no answer came".to_owned()))
    }
}

/// How long callers wait for their answer, in the queue and beyond: then what became of it is not known.
const ANSWER: Duration = Duration::from_millis(4_500);

async fn received(answer: oneshot::Receiver<WriteReply>) -> WriteReply {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(answer) => {
            answer.unwrap_or_else(|_| Err(StoreError::Unavailable("the writer is gone".to_owned())))
        }
        Err(_) => Err(StoreError::Unavailable("the server didn't answer in time".to_owned())),
    }
}

/// Of two failures the one that promises less.
fn worse(known: Option<StoreError>, new: StoreError) -> StoreError {
    known.filter(|known| !known.nothing_written()).unwrap_or(new)
}

#[async_trait]
impl RunStore for RedisStore {
    async fn commit(&self, batch: Vec<Commit>) -> Result<Vec<Result<Committed, CommitError>>, StoreError> {
        self.write(batch, CommitKind::Commit).await
    }

    async fn append(&self, batch: Vec<Append>) -> Result<Vec<Result<u32, AppendError>>, StoreError> {
        let mut waiting = Vec::with_capacity(batch.len());
        for append in &batch {
            let run = names::run(&append.run);
            let (args, commands) = encode::append(append, self.hint(append.lines.len()));
            let writer = &self.appends[self.shard_number(&run)];
            waiting.push((writer.push(hash(&run), args, commands), append.key));
        }
        let (mut answers, mut failed) = (Vec::with_capacity(waiting.len()), None);
        for (answer, key) in waiting {
            match received(answer).await {
                Ok((answer, _)) => answers.push(encode::appended(&answer, key)?),
                Err(error) => failed = Some(worse(failed, error)),
            }
        }
        failed.map_or(Ok(answers), Err)
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.claim_jobs(claim).await
    }

    async fn renew(&self, leases: Vec<Extend>, renewal: Renewal) -> Result<Vec<Extended>, StoreError> {
        let answers = self.hold(leases, renewal).await?;
        if renewal == Renewal::Release {
            self.wake();
        }
        Ok(answers)
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        self.sweep_due(limit).await
    }

    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        self.load_runs(runs).await
    }

    async fn payloads(&self, asked: &[PayloadsAt]) -> Result<Vec<Vec<Option<Json>>>, StoreError> {
        self.payloads_at(asked).await
    }

    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError> {
        self.page_of_events(run, &query).await
    }

    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError> {
        self.page_of_runs(&query).await
    }

    async fn unlisted(&self, tenant: &Tenant) -> Result<Vec<RunRow>, StoreError> {
        self.unlisted_runs(tenant).await
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        self.page_of_receipts(&query).await
    }

    async fn feed(&self, filter: FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError> {
        self.page_of_feed(&filter, cursor, limit).await
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    async fn now(&self) -> Result<Time, StoreError> {
        self.time().await
    }
}

#[async_trait]
impl Catalog for RedisStore {
    async fn put_definition(&self, definition: StoredDefinition) -> Result<bool, StoreError> {
        self.define(definition).await
    }

    async fn definition(&self, tenant: &Tenant, hash: &str) -> Result<Option<StoredDefinition>, StoreError> {
        self.definition_of(tenant, hash).await
    }

    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError> {
        self.make_latest(tenant, flow, hash).await
    }

    async fn latest(&self, tenant: &Tenant, flow: &str) -> Result<Option<StoredDefinition>, StoreError> {
        self.latest_of(tenant, flow).await
    }

    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError> {
        self.definitions_of(tenant).await
    }

    async fn states(&self, space: &StateSpace, query: StateQuery) -> Result<StatePage, StoreError> {
        self.page_of_values(space, &query).await
    }

    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError> {
        self.scopes_of(tenant).await
    }

    async fn change_state(&self, space: &StateSpace, edit: StateEdit) -> Result<(), StoreError> {
        space.owner.writable()?;
        self.set_value(space, &edit).await
    }

    async fn queues(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError> {
        self.queues_of(tenant).await
    }

    async fn pause_queue(&self, tenant: &Tenant, queue: &str, pause: Pause) -> Result<(), StoreError> {
        self.pause(tenant, queue, pause).await
    }

    async fn acquire_lock(&self, request: LockRequest) -> Result<Acquired, StoreError> {
        self.take_lock(request).await
    }

    async fn renew_lock(&self, lock: LockProof, renewal: Renewal) -> Result<Option<Time>, StoreError> {
        self.keep_lock(&lock, renewal).await
    }

    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        self.locks_of(tenant).await
    }

    async fn put_document(&self, document: NewDocument) -> Result<Option<Document>, StoreError> {
        document.check()?;
        self.keep_document(&document).await
    }

    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError> {
        query.check(collection)?;
        self.page_of_documents(collection, query).await
    }

    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError> {
        document::check_address(collection, id)?;
        self.drop_document(collection, id).await
    }

    async fn counters(&self) -> Result<Vec<Counter>, StoreError> {
        self.count_runs().await
    }

    async fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError> {
        self.jobs_of(run).await
    }

    async fn retain(&self, policy: Retention, limit: usize) -> Result<Retained, StoreError> {
        self.retain_by(policy, limit).await
    }

    async fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, StoreError> {
        self.reports_of(run).await
    }

    async fn delete_runs(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError> {
        self.delete(runs).await
    }

    async fn repair(&self, repair: Repair) -> Result<(), CommitError> {
        self.mend(repair).await
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<Health, StoreError> {
        self.examine().await
    }
}
