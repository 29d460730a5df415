//! The verbs of a move.

use async_trait::async_trait;
use flowline_core::Tenant;
use flowline_store::{CommitError, Filling, Restored, StoreError, Transfer};

use crate::PostgresStore;
use crate::code;
use crate::documents;
use crate::fault::PgFault;
use crate::pool::{PooledSession, timely};
use crate::schema;
use crate::session::Session;
use crate::write;

#[async_trait]
impl Transfer for PostgresStore {
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        let seat = self.pool.take().await?;
        timely(tenants(&seat)).await.map_err(PgFault::of_read)
    }

    async fn collections(&self) -> Result<Vec<String>, StoreError> {
        let seat = self.pool.take().await?;
        timely(documents::collections(&seat)).await.map_err(PgFault::of_read)
    }

    async fn begin_filling(&self) -> Result<Filling, StoreError> {
        let mut seat = self.pool.take().await?;
        let begun = begin_filling(&mut seat).await.map_err(PgFault::of_read)?;
        self.names.forget_definitions();
        Ok(begun)
    }

    async fn restore(&self, parts: Vec<Restored>) -> Result<(), CommitError> {
        let mut seat = self.pool.take().await?;
        write::restore(&mut seat, &self.names, &parts).await.map_err(PgFault::of_read)??;
        self.wake();
        Ok(())
    }

    async fn end_filling(&self) -> Result<(), StoreError> {
        let seat = self.pool.take().await?;
        let ended = timely(seat.execute("delete from cells where name = 'filling'", &[])).await;
        ended.map(drop).map_err(PgFault::of_read)
    }
}

async fn tenants(session: &Session) -> Result<Vec<Tenant>, PgFault> {
    let sql = "select tenant from definitions union select tenant from paused_queues
        union select tenant from state where scope in (2, 3) and (expires is null or expires > now_ms())";
    let rows = session.query(sql, &[]).await?;
    let mut found =
        rows.iter().map(|row| code::tenant(row.try_get(0)?)).collect::<Result<Vec<_>, PgFault>>()?;
    found.sort();
    Ok(found)
}

/// Lanes stay: they are only numbers of names, and instances remember them.
const EMPTY: &str = "
    truncate definitions, flow_runs, run_labels, run_counters, events, paused_queues, jobs, state, locks, documents,
        state_counters, receipts, reports";

async fn begin_filling(seat: &mut PooledSession<'_>) -> Result<Filling, PgFault> {
    seat.begin_long().await?;
    if schema::is_filling(seat).await? {
        seat.run(EMPTY).await?;
    } else if !(tenants(seat).await?.is_empty() && documents::collections(seat).await?.is_empty()) {
        seat.commit().await?;
        return Ok(Filling::NotEmpty);
    }
    seat.run("insert into cells values ('filling', 1) on conflict do nothing").await?;
    seat.commit().await?;
    Ok(Filling::Begun)
}
