//! Documents. One whose time is over counts as gone; its row is replaced, or goes with the next retention.

use flowline_store::{Document, Existing, NewDocument};
use rusqlite::{OptionalExtension, params};

use super::Writer;
use crate::fault::Fault;
use crate::read;

const PUT: &str = "insert or replace into documents (collection, id, body, expires) values (?1, ?2, ?3, ?4)";

impl Writer<'_> {
    /// The live document that it keeps; `None` if this one was written.
    pub(crate) fn put_document(&mut self, new: &NewDocument) -> Result<Option<Document>, Fault> {
        let NewDocument { collection, id, body, ttl, existing } = new;
        let now = self.clock.now();
        if *existing == Existing::Keep
            && let Some(there) = read::documents::live(self.conn, collection, id, now)?
        {
            return Ok(Some(there));
        }
        let expires = ttl.map(|ttl| (now + ttl).millis());
        self.conn.prepare_cached(PUT)?.execute(params![collection, id, body.get(), expires])?;
        Ok(None)
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
