//! Documents. One whose time is over is as good as gone; retention takes it away.

use std::ops::Bound;
use std::time::Duration;

use flowline_core::{Json, Time};

use super::rows::Memory;
use crate::document::{self, Document, DocumentPage, DocumentQuery, Order};
use crate::error::StoreError;
use crate::query::page_size;

impl Memory {
    pub fn put_document(
        &mut self,
        now: Time,
        collection: &str,
        id: &str,
        body: Json,
        ttl: Option<Duration>,
    ) -> Result<(), StoreError> {
        document::check_document(collection, id, &body)?;
        let document = Document { id: id.to_owned(), body, expires: ttl.map(|ttl| now + ttl) };
        self.documents.entry(collection.to_owned()).or_default().insert(id.to_owned(), document);
        Ok(())
    }

    pub fn create_document(
        &mut self,
        now: Time,
        collection: &str,
        id: &str,
        body: Json,
        ttl: Option<Duration>,
    ) -> Result<Option<Document>, StoreError> {
        document::check_document(collection, id, &body)?;
        let there = self.document(now, collection, id)?;
        if there.is_none() {
            self.put_document(now, collection, id, body, ttl)?;
        }
        Ok(there)
    }

    pub fn document(&self, now: Time, collection: &str, id: &str) -> Result<Option<Document>, StoreError> {
        document::check_address(collection, id)?;
        let found = self.documents.get(collection).and_then(|documents| documents.get(id));
        Ok(found.filter(|document| document.is_live(now)).cloned())
    }

    pub fn documents(
        &self,
        now: Time,
        collection: &str,
        query: &DocumentQuery,
    ) -> Result<DocumentPage, StoreError> {
        document::check_query(collection, query)?;
        let Some(documents) = self.documents.get(collection) else {
            return Ok(DocumentPage { items: Vec::new(), more: false });
        };
        let seen = query.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let limit = page_size(query.limit);
        let live = |(_, document): &(&String, &Document)| document.is_live(now);
        let found: Vec<Document> = match query.order {
            Order::Ascending => {
                let rest = documents.range::<str, _>((seen, Bound::Unbounded));
                rest.filter(live).take(limit + 1).map(|(_, document)| document.clone()).collect()
            }
            Order::Descending => {
                let rest = documents.range::<str, _>((Bound::Unbounded, seen)).rev();
                rest.filter(live).take(limit + 1).map(|(_, document)| document.clone()).collect()
            }
        };
        Ok(DocumentPage::of(found, limit))
    }

    pub fn delete_document(&mut self, now: Time, collection: &str, id: &str) -> Result<bool, StoreError> {
        document::check_address(collection, id)?;
        let Some(documents) = self.documents.get_mut(collection) else { return Ok(false) };
        let gone = documents.remove(id);
        if documents.is_empty() {
            self.documents.remove(collection);
        }
        Ok(gone.is_some_and(|document| document.is_live(now)))
    }

    pub fn collections(&self, now: Time) -> Vec<String> {
        let live = self.documents.iter().filter(|(_, of)| of.values().any(|document| document.is_live(now)));
        live.map(|(collection, _)| collection.clone()).collect()
    }

    pub(super) fn forget_expired_documents(&mut self, now: Time) {
        self.documents.retain(|_, documents| {
            documents.retain(|_, document| document.is_live(now));
            !documents.is_empty()
        });
    }
}
