//! The verbs of a move.

use async_trait::async_trait;
use flowline_core::{Tenant, Time};
use flowline_store::{CommitError, Filling, Restored, StateOwner, StateValue, StoreError, Transfer};

use crate::PostgresStore;
use crate::code;
use crate::documents;
use crate::fault::Fault;
use crate::pool::{Seat, timely};
use crate::schema;
use crate::session::Session;
use crate::write;

#[async_trait]
impl Transfer for PostgresStore {
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        let seat = self.pool.take().await?;
        timely(tenants(&seat)).await.map_err(Fault::of_read)
    }

    async fn values(&self, tenant: &Tenant, owner: &StateOwner) -> Result<Vec<StateValue>, StoreError> {
        let seat = self.pool.take().await?;
        timely(values(&seat, tenant, owner)).await.map_err(Fault::of_read)
    }

    async fn collections(&self) -> Result<Vec<String>, StoreError> {
        let seat = self.pool.take().await?;
        timely(documents::collections(&seat)).await.map_err(Fault::of_read)
    }

    async fn begin_filling(&self) -> Result<Filling, StoreError> {
        let mut seat = self.pool.take().await?;
        let begun = begin_filling(&mut seat).await.map_err(Fault::of_read)?;
        self.names.forget_definitions();
        Ok(begun)
    }

    async fn restore(&self, parts: Vec<Restored>) -> Result<(), CommitError> {
        let mut seat = self.pool.take().await?;
        write::restore(&mut seat, &self.names, &parts).await.map_err(Fault::of_read)??;
        self.wake();
        Ok(())
    }

    async fn end_filling(&self) -> Result<(), StoreError> {
        let seat = self.pool.take().await?;
        let ended = timely(seat.execute("delete from cells where name = 'filling'", &[])).await;
        ended.map(drop).map_err(Fault::of_read)
    }
}

async fn tenants(session: &Session) -> Result<Vec<Tenant>, Fault> {
    let sql = "select tenant from definitions union select tenant from paused_queues";
    let rows = session.query(sql, &[]).await?;
    let mut found =
        rows.iter().map(|row| code::tenant(row.try_get(0)?)).collect::<Result<Vec<_>, Fault>>()?;
    found.sort();
    Ok(found)
}

async fn values(session: &Session, tenant: &Tenant, owner: &StateOwner) -> Result<Vec<StateValue>, Fault> {
    let sql = "select key, value, expires from state where tenant = $1 and scope = $2 and owner = $3
        and (expires is null or expires > now_ms())";
    let name = match owner {
        StateOwner::Run(run) => run.as_str(),
        StateOwner::Flow(flow) => flow,
        StateOwner::Tenant => "",
    };
    let mut found = Vec::new();
    for row in session.query(sql, &[&tenant.as_str(), &code::scope_number(owner.scope()), &name]).await? {
        found.push(StateValue {
            key: code::open(row.try_get(0)?),
            value: flowline_core::Json::composed(row.try_get(1)?),
            expires: row.try_get::<_, Option<i64>>(2)?.map(Time::from_millis),
        });
    }
    // By the bytes of the keys themselves, which columns may hold otherwise.
    found.sort_by(|a: &StateValue, b| a.key.cmp(&b.key));
    Ok(found)
}

/// Lanes stay: they are only numbers of names, and instances remember them.
const EMPTY: &str = "
    truncate definitions, flow_runs, run_labels, run_counters, events, paused_queues, jobs, state, locks, documents,
        state_counters, receipts";

async fn begin_filling(seat: &mut Seat<'_>) -> Result<Filling, Fault> {
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
