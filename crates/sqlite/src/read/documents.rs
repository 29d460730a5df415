//! Documents by id, and in the order of their ids. A file that no engine of this build has opened yet has none.

use flowline_core::Time;
use flowline_store::query::page_size;
use flowline_store::{Document, DocumentPage, DocumentQuery, Order};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Reader;
use crate::code;
use crate::fault::Fault;
use crate::schema;

impl Reader<'_> {
    pub(crate) fn documents(
        &self,
        collection: &str,
        query: &DocumentQuery,
        now: Time,
    ) -> Result<DocumentPage, Fault> {
        let mut found = Vec::new();
        let limit = page_size(query.limit);
        if !self.has(schema::WITH_DOCUMENTS)? {
            return Ok(DocumentPage::of(found, limit));
        }
        if let Some(id) = &query.id {
            found.extend(live(self.conn, collection, id, now)?);
        } else {
            let mut statement = self.conn.prepare_cached(&page_sql(query))?;
            let (now, most) = (now.millis(), limit as i64 + 1);
            let mut rows = match &query.after {
                Some(after) => statement.query(params![collection, now, most, after])?,
                None => statement.query(params![collection, now, most])?,
            };
            while let Some(row) = rows.next()? {
                found.push(read(row)?);
            }
        }
        Ok(DocumentPage::of(found, limit))
    }

    /// Goes from the first document of a collection to that of the next: how many a collection holds does not matter.
    pub(crate) fn collections(&self, now: Time) -> Result<Vec<String>, Fault> {
        if !self.has(schema::WITH_DOCUMENTS)? {
            return Ok(Vec::new());
        }
        let mut statement = self.conn.prepare_cached(
            "with recursive every (name) as (
                select min(collection) from documents
                union all
                select (select min(collection) from documents where collection > name) from every
                    where name is not null)
             select name from every where exists (select 1 from documents
                where collection = name and (expires is null or expires > ?1)) order by name",
        )?;
        let found = statement.query_map([now.millis()], |row| row.get(0))?;
        Ok(found.collect::<Result<_, _>>()?)
    }
}

/// The document under an id whose time is not over.
pub(crate) fn live(
    conn: &Connection,
    collection: &str,
    id: &str,
    now: Time,
) -> Result<Option<Document>, Fault> {
    let mut statement = conn.prepare_cached(
        "select id, body, expires from documents
         where collection = ?1 and id = ?2 and (expires is null or expires > ?3)",
    )?;
    let found = statement.query_row(params![collection, id, now.millis()], |row| Ok(read(row)));
    found.optional()?.transpose()
}

pub(super) fn page_sql(query: &DocumentQuery) -> String {
    let (compare, order) = match query.order {
        Order::Ascending => (">", "asc"),
        Order::Descending => ("<", "desc"),
    };
    let after = query.after.as_ref().map(|_| format!("and id {compare} ?4")).unwrap_or_default();
    format!(
        "select id, body, expires from documents where collection = ?1
            and (expires is null or expires > ?2) {after} order by id {order} limit ?3"
    )
}

fn read(row: &Row<'_>) -> Result<Document, Fault> {
    Ok(Document {
        id: row.get(0)?,
        body: code::json(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?)?,
        expires: row.get::<_, Option<i64>>(2)?.map(Time::from_millis),
    })
}
