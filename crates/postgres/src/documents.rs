//! Documents. An expired one counts as gone; its row is replaced, or removed by the next retention.
//!
//! Names have no NUL in them, so the columns hold them as they are, and sort them by their bytes.

use std::time::Duration;

use flowline_core::{Json, Time};
use flowline_store::query::page_size;
use flowline_store::{Document, DocumentPage, DocumentQuery, Existing, NewDocument, Order};
use tokio_postgres::Row;

use crate::fault::PgFault;
use crate::session::Session;

/// Rows that go in one statement: short, so that nobody waits long for what it locks.
const PART: i64 = 1_000;

/// The live document that it keeps; `None` if this one was written. A write that waits for another one sees what that wrote.
pub(crate) async fn put(session: &Session, new: &NewDocument) -> Result<Option<Document>, PgFault> {
    let put = "insert into documents (collection, id, body, expires) values ($1, $2, $3, now_ms() + $4)
        on conflict (collection, id) do update set body = excluded.body, expires = excluded.expires
        where $5 or documents.expires <= now_ms() returning 1";
    let NewDocument { collection, id, body, ttl, existing } = new;
    let (ttl, replaces) = (millis(*ttl), *existing == Existing::Replace);
    loop {
        if session.query_opt(put, &[collection, id, &body.get(), &ttl, &replaces]).await?.is_some() {
            return Ok(None);
        }
        // If it was deleted or expired since, the id is free again.
        if let Some(there) = get(session, collection, id).await? {
            return Ok(Some(there));
        }
    }
}

async fn get(session: &Session, collection: &str, id: &str) -> Result<Option<Document>, PgFault> {
    let sql = "select id, body, expires from documents
        where collection = $1 and id = $2 and (expires is null or expires > now_ms())";
    session.query_opt(sql, &[&collection, &id]).await?.as_ref().map(read).transpose()
}

pub(crate) async fn page(
    session: &Session,
    collection: &str,
    query: &DocumentQuery,
) -> Result<DocumentPage, PgFault> {
    let limit = page_size(query.limit);
    if let Some(id) = &query.id {
        let found = get(session, collection, id).await?;
        return Ok(DocumentPage::of(found.into_iter().collect(), limit));
    }
    let (compare, order) = match query.order {
        Order::Ascending => (">", "asc"),
        Order::Descending => ("<", "desc"),
    };
    let after = query.after.as_ref().map(|_| format!("and id {compare} $3")).unwrap_or_default();
    let sql = format!(
        "select id, body, expires from documents where collection = $1
            and (expires is null or expires > now_ms()) {after} order by id {order} limit $2"
    );
    let most = limit as i64 + 1;
    let rows = match &query.after {
        Some(after) => session.query(&sql, &[&collection, &most, after]).await?,
        None => session.query(&sql, &[&collection, &most]).await?,
    };
    let found = rows.iter().map(read).collect::<Result<_, PgFault>>()?;
    Ok(DocumentPage::of(found, limit))
}

/// True where it was there and its time was not over.
pub(crate) async fn delete(session: &Session, collection: &str, id: &str) -> Result<bool, PgFault> {
    let sql = "delete from documents where collection = $1 and id = $2
        returning expires is null or expires > now_ms()";
    let gone = session.query_opt(sql, &[&collection, &id]).await?;
    Ok(gone.map(|row| row.try_get(0)).transpose()?.unwrap_or(false))
}

/// Goes from the first document of a collection to that of the next: how many a collection holds does not matter.
pub(crate) async fn collections(session: &Session) -> Result<Vec<String>, PgFault> {
    let sql = "with recursive every (name) as (
            select min(collection) from documents
            union all
            select (select min(collection) from documents where collection > name) from every where name is not null)
        select name from every where exists (select 1 from documents
            where collection = name and (expires is null or expires > now_ms())) order by name";
    let rows = session.query(sql, &[]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Writes documents with the end that they have.
pub(crate) async fn restore(
    session: &Session,
    collection: &str,
    documents: &[Document],
) -> Result<(), PgFault> {
    let sql = "insert into documents (collection, id, body, expires)
        select $1, u.* from unnest($2::text[], $3::text[], $4::bigint[]) u
        on conflict (collection, id) do update set body = excluded.body, expires = excluded.expires";
    let ids: Vec<&str> = documents.iter().map(|document| document.id.as_str()).collect();
    let bodies: Vec<&str> = documents.iter().map(|document| document.body.get()).collect();
    let ends: Vec<Option<i64>> =
        documents.iter().map(|document| document.expires.map(|time| time.millis())).collect();
    session.execute(sql, &[&collection, &ids, &bodies, &ends]).await.map(drop)
}

/// Deletes those whose time is over. One that is put anew meanwhile stays: a row that had to be waited for is looked at
/// again by the outer condition.
pub(crate) async fn forget_expired(session: &Session) -> Result<(), PgFault> {
    let sql = "delete from documents where expires <= now_ms() and (collection, id) in
        (select collection, id from documents where expires <= now_ms() order by expires limit $1)";
    while session.execute(sql, &[&PART]).await? == PART as u64 {}
    Ok(())
}

fn millis(ttl: Option<Duration>) -> Option<i64> {
    ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4))
}

fn read(row: &Row) -> Result<Document, PgFault> {
    Ok(Document {
        id: row.try_get(0)?,
        body: Json::composed(row.try_get(1)?),
        expires: row.try_get::<_, Option<i64>>(2)?.map(Time::from_millis),
    })
}
