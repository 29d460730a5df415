//! Key-value state, read, and written from outside of any run. Attempts write it with their lines (`write`).

use std::sync::Arc;

use flowline_core::{Json, Tenant, Time};
use flowline_store::query::PAGE_BYTES;
use flowline_store::{StateEdit, StatePage, StateQuery, StateSpace, StateValue};
use tokio_postgres::Row;

use crate::code;
use crate::fault::PgFault;
use crate::session::Session;

macro_rules! page_sql {
    ($beyond:literal) => {
        concat!(
            "select key, case when fits then value end, expires, fits
            from (select *, bytes <= $6 or bytes = octet_length(value) as fits
                from (select *, sum(octet_length(value)) over (order by key) as bytes
                    from (select key, value, expires from state where tenant = $1 and scope = $2 and owner = $3 and key ",
            $beyond,
            " $4 and (expires is null or expires > now_ms()) order by key limit $5) s) s) s order by key"
        )
    };
}

/// A range of the primary key. The column sorts keys by their bytes, and `shut` keeps that order for keys without NUL.
pub(crate) async fn states(
    session: &Session,
    space: &StateSpace,
    query: &StateQuery,
) -> Result<StatePage, PgFault> {
    let (sql, key) = match (&query.key, &query.after) {
        (Some(key), _) => (page_sql!("="), key.as_str()),
        (None, Some(after)) => (page_sql!(">"), after.as_str()),
        (None, None) => (page_sql!(">="), ""),
    };
    let (tenant, scope, name) = columns(space);
    let key = code::shut(key);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX - 1) + 1;
    let bytes = PAGE_BYTES as i64;
    let rows = session.query(sql, &[&tenant, &scope, &name, &key, &limit, &bytes]).await?;
    let fits = |row: &&Row| row.try_get(3).unwrap_or(false);
    let values = rows.iter().take(query.limit).take_while(fits).map(value).collect::<Result<Vec<_>, _>>()?;
    Ok(StatePage { more: rows.len() > values.len(), values })
}

fn value(row: &Row) -> Result<StateValue, PgFault> {
    Ok(StateValue {
        key: code::open(row.try_get(0)?),
        value: Json::composed(row.try_get(1)?),
        expires: row.try_get::<_, Option<i64>>(2)?.map(Time::from_millis),
    })
}

pub(crate) async fn scopes(session: &Session, tenant: &Tenant) -> Result<Vec<Arc<str>>, PgFault> {
    // From name to name by the primary key, whatever number of values each has.
    let sql = "with recursive named(owner) as (
            (select owner from state where tenant = $1 and scope = $2 order by owner limit 1)
            union all
            select (select s.owner from state s where s.tenant = $1 and s.scope = $2 and s.owner > named.owner
                order by s.owner limit 1) from named where named.owner is not null)
        select owner from named where owner is not null and exists (select 1 from state s where s.tenant = $1
            and s.scope = $2 and s.owner = named.owner and (s.expires is null or s.expires > now_ms()))";
    let rows = session.query(sql, &[&tenant.as_str(), &code::NAMED]).await?;
    let mut found = Vec::new();
    for row in &rows {
        found.push(Arc::from(row.try_get::<_, &str>(0)?));
    }
    found.sort();
    Ok(found)
}

pub(crate) async fn change(session: &Session, space: &StateSpace, edit: &StateEdit) -> Result<(), PgFault> {
    let StateEdit { key, value, ttl } = edit;
    let ((tenant, scope, name), key) = (columns(space), code::shut(key));
    let Some(value) = value else {
        let sql = "delete from state where tenant = $1 and scope = $2 and owner = $3 and key = $4";
        return session.execute(sql, &[&tenant, &scope, &name, &key]).await.map(drop);
    };
    let sql = "insert into state (tenant, scope, owner, key, value, expires)
        values ($1, $2, $3, $4, $5, now_ms() + $6)
        on conflict (tenant, scope, owner, key) do update set value = excluded.value, expires = excluded.expires";
    let ttl = ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 4));
    session.execute(sql, &[&tenant, &scope, &name, &key, &value.get(), &ttl]).await.map(drop)
}

fn columns(space: &StateSpace) -> (&str, i16, &str) {
    (space.tenant.as_str(), code::scope_number(&space.owner), code::owner_name(&space.owner))
}
