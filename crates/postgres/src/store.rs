//! The contract's verbs, each handed to the writers or to a connection of its own.

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
    ReceiptQuery, Renewal, RunPage, RunQuery, RunStore, Snapshot, StateEdit, StatePage, StateQuery,
    StateSpace, StoreError, StoredDefinition, Swept,
};
use tokio::sync::watch;

use crate::fault::PgFault;
use crate::pool::timely;
use crate::write::{CHUNK, TRIES, pause};
use crate::{PostgresStore, catalog, documents, feed, lease, read, receipts, retain, state};

/// Runs a read on a connection of the pool.
macro_rules! reading {
    ($store:expr, |$session:ident| $work:expr) => {
        in_time(async {
            let mut $session = $store.pool.take().await?;
            let done = timely($work).await;
            if let Err(PgFault::Late) = done {
                $session.give_up();
            }
            done.map_err(PgFault::of_read)
        })
        .await
    };
}

/// Runs a write of one statement on a connection of the pool, again where it was rolled back for a passing reason.
macro_rules! writing {
    ($store:expr, |$session:ident| $work:expr) => {
        in_time(async {
            let mut $session = $store.pool.take().await?;
            let mut tries = 0;
            loop {
                match timely($work).await {
                    Err(fault) if fault.try_again() && tries < TRIES => {
                        pause(tries).await;
                        tries += 1;
                    }
                    Err(PgFault::Late) => {
                        $session.give_up();
                        break Err(PgFault::Late.of_write());
                    }
                    done => break done.map_err(PgFault::of_write),
                }
            }
        })
        .await
    };
}

/// The whole of it: waiting for a connection, making one, asking. Whatever is wrong is told within five seconds.
const ANSWER: Duration = Duration::from_millis(4_500);

async fn in_time<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(ANSWER, work).await.unwrap_or_else(|_| Err(PgFault::Late.of_read()))
}

#[async_trait]
impl RunStore for PostgresStore {
    async fn commit(
        &self,
        mut batch: Vec<Commit>,
    ) -> Result<Vec<Result<Committed, CommitError>>, StoreError> {
        let mut answers = Vec::with_capacity(batch.len());
        while !batch.is_empty() {
            let rest = batch.split_off(batch.len().min(CHUNK));
            answers.extend(self.writers.commit(std::mem::replace(&mut batch, rest)).await?);
        }
        Ok(answers)
    }

    async fn append(&self, batch: Vec<Append>) -> Result<Vec<Result<u32, AppendError>>, StoreError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.writers.append(batch).await
    }

    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        writing!(self, |session| self.rotation.claim(&session, &self.floors, &claim))
    }

    async fn renew(&self, leases: Vec<Extend>, renewal: Renewal) -> Result<Vec<Extended>, StoreError> {
        let answers = writing!(self, |session| lease::renew(&session, &leases, renewal))?;
        if renewal == Renewal::Release {
            self.wake();
        }
        Ok(answers)
    }

    async fn sweep(&self, limit: usize) -> Result<Swept, StoreError> {
        let attended = reading!(self, |session| self.witness.attend(&session));
        self.pool.halt.heed(attended)?;
        reading!(self, |session| lease::sweep(&session, &self.floors, limit))
    }

    async fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, StoreError> {
        reading!(self, |session| read::load(&session, runs))
    }

    async fn payloads(&self, asked: &[PayloadsAt]) -> Result<Vec<Vec<Option<Json>>>, StoreError> {
        reading!(self, |session| read::payloads(&session, asked))
    }

    async fn events(&self, run: &RunKey, query: EventQuery) -> Result<EventPage, StoreError> {
        reading!(self, |session| read::events(&session, run, &query))
    }

    async fn runs(&self, query: RunQuery) -> Result<RunPage, StoreError> {
        reading!(self, |session| read::runs(&session, &query))
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptPage, StoreError> {
        reading!(self, |session| receipts::page(&session, &query))
    }

    async fn feed(&self, filter: FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, StoreError> {
        reading!(self, |session| feed::feed(&session, &filter, cursor, limit))
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    async fn now(&self) -> Result<Time, StoreError> {
        let row = reading!(self, |session| session.query_one("select now_ms()", &[]))?;
        let ms = row.try_get(0).map_err(|error| PgFault::from(error).of_read())?;
        Ok(Time::from_millis(ms))
    }
}

#[async_trait]
impl Catalog for PostgresStore {
    async fn put_definition(&self, definition: StoredDefinition) -> Result<bool, StoreError> {
        writing!(self, |session| catalog::put_definition(&session, &definition))
    }

    async fn definition(&self, tenant: &Tenant, hash: &str) -> Result<Option<StoredDefinition>, StoreError> {
        reading!(self, |session| catalog::definition(&session, tenant, hash))
    }

    async fn set_latest(&self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> Result<bool, StoreError> {
        writing!(self, |session| catalog::set_latest(&session, tenant, flow, hash))
    }

    async fn latest(&self, tenant: &Tenant, flow: &str) -> Result<Option<StoredDefinition>, StoreError> {
        reading!(self, |session| catalog::latest(&session, tenant, flow))
    }

    async fn definitions(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError> {
        reading!(self, |session| catalog::definitions(&session, tenant))
    }

    async fn states(&self, space: &StateSpace, query: StateQuery) -> Result<StatePage, StoreError> {
        reading!(self, |session| state::states(&session, space, &query))
    }

    async fn scopes(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError> {
        reading!(self, |session| state::scopes(&session, tenant))
    }

    async fn change_state(&self, space: &StateSpace, edit: StateEdit) -> Result<(), StoreError> {
        space.owner.writable()?;
        writing!(self, |session| state::change(&session, space, &edit))
    }

    async fn queues(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError> {
        reading!(self, |session| catalog::queues(&session, tenant))
    }

    async fn pause_queue(&self, tenant: &Tenant, queue: &str, pause: Pause) -> Result<(), StoreError> {
        writing!(self, |session| catalog::pause_queue(&session, tenant, queue, pause))?;
        self.wake();
        Ok(())
    }

    async fn acquire_lock(&self, request: LockRequest) -> Result<Acquired, StoreError> {
        writing!(self, |session| catalog::acquire_lock(&session, &request))
    }

    async fn renew_lock(&self, lock: LockProof, renewal: Renewal) -> Result<Option<Time>, StoreError> {
        writing!(self, |session| catalog::renew_lock(&session, &lock, renewal))
    }

    async fn locks(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        reading!(self, |session| catalog::locks(&session, tenant))
    }

    async fn put_document(&self, document: NewDocument) -> Result<Option<Document>, StoreError> {
        document.check()?;
        writing!(self, |session| documents::put(&session, &document))
    }

    async fn documents(&self, collection: &str, query: DocumentQuery) -> Result<DocumentPage, StoreError> {
        query.check(collection)?;
        reading!(self, |session| documents::page(&session, collection, &query))
    }

    async fn delete_document(&self, collection: &str, id: &str) -> Result<bool, StoreError> {
        document::check_address(collection, id)?;
        writing!(self, |session| documents::delete(&session, collection, id))
    }

    async fn counters(&self) -> Result<Vec<Counter>, StoreError> {
        reading!(self, |session| catalog::counters(&session))
    }

    async fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, StoreError> {
        reading!(self, |session| catalog::jobs(&session, run))
    }

    async fn retain(&self, policy: Retention, limit: usize) -> Result<Retained, StoreError> {
        let mut seat = self.pool.take().await?;
        retain::retain(&mut seat, policy, limit).await.map_err(PgFault::of_read)
    }

    async fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, StoreError> {
        reading!(self, |session| retain::reports(&session, run))
    }

    async fn delete_runs(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError> {
        let mut seat = self.pool.take().await?;
        retain::delete(&mut seat, runs).await.map_err(PgFault::of_read)
    }

    async fn repair(&self, repair: Repair) -> Result<(), CommitError> {
        if let Repair::Counters { tenant } = &repair {
            let mut seat = self.pool.take().await?;
            return Ok(retain::recount(&mut seat, tenant).await.map_err(PgFault::of_read)?);
        }
        self.writers.repair(repair).await
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<Health, StoreError> {
        reading!(self, |session| catalog::check(&session, &self.target))
    }
}
