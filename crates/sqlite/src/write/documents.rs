//! Documents. One whose time is over counts as gone; its row is replaced, or goes with the next retention.

use std::time::Duration;

use flowline_core::Json;
use flowline_store::Document;
use rusqlite::{OptionalExtension, params};

use super::Writer;
use crate::fault::Fault;
use crate::read;

const PUT: &str = "insert or replace into documents (collection, id, body, expires) values (?1, ?2, ?3, ?4)";

impl Writer<'_> {
    pub(crate) fn put_document(
        &mut self,
        collection: &str,
        id: &str,
        body: &Json,
        ttl: Option<Duration>,
    ) -> Result<(), Fault> {
        let expires = ttl.map(|ttl| (self.clock.now() + ttl).millis());
        self.conn.prepare_cached(PUT)?.execute(params![collection, id, body.get(), expires])?;
        Ok(())
    }

    /// The document that is live under the id, or `None` where this one was written.
    pub(crate) fn create_document(
        &mut self,
        collection: &str,
        id: &str,
        body: &Json,
        ttl: Option<Duration>,
    ) -> Result<Option<Document>, Fault> {
        let there = read::documents::live(self.conn, collection, id, self.clock.now())?;
        if there.is_none() {
            self.put_document(collection, id, body, ttl)?;
        }
        Ok(there)
    }

    pub(crate) fn restore_documents(
        &mut self,
        collection: &str,
        documents: &[Document],
    ) -> Result<(), Fault> {
        let mut put = self.conn.prepare_cached(PUT)?;
        for Document { id, body, expires } in documents {
            put.execute(params![collection, id, body.get(), expires.map(|time| time.millis())])?;
        }
        Ok(())
    }

    /// True where it was there and its time was not over.
    pub(crate) fn delete_document(&mut self, collection: &str, id: &str) -> Result<bool, Fault> {
        let delete = "delete from documents where collection = ?1 and id = ?2
            returning expires is null or expires > ?3";
        let mut delete = self.conn.prepare_cached(delete)?;
        let gone = delete.query_row(params![collection, id, self.clock.now().millis()], |row| row.get(0));
        Ok(gone.optional()?.unwrap_or(false))
    }
}
