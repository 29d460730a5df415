//! Documents. An expired one counts as gone; retention removes it.

use std::ops::Bound;

use flowline_core::Time;

use super::rows::Memory;
use crate::document::{self, Document, DocumentPage, DocumentQuery, Existing, NewDocument, Order};
use crate::error::StoreError;
use crate::query::page_size;

impl Memory {
    pub fn put_document(&mut self, now: Time, new: NewDocument) -> Result<Option<Document>, StoreError> {
        new.check()?;
        let NewDocument { collection, id, body, ttl, existing } = new;
        let documents = self.documents.entry(collection).or_default();
        if existing == Existing::Keep
            && let Some(there) = documents.get(&id).filter(|there| there.is_live(now))
        {
            return Ok(Some(there.clone()));
        }
        documents.insert(id.clone(), Document { id, body, expires: ttl.map(|ttl| now + ttl) });
        Ok(None)
    }

    pub fn documents(
        &self,
        now: Time,
        collection: &str,
        query: &DocumentQuery,
    ) -> Result<DocumentPage, StoreError> {
        query.check(collection)?;
        let limit = page_size(query.limit);
        let mut found: Vec<&Document> = Vec::new();
        if let Some(documents) = self.documents.get(collection) {
            let seen = query.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let live = |document: &&Document| document.is_live(now);
            match (&query.id, query.order) {
                (Some(id), _) => found.extend(documents.get(id).filter(live)),
                (None, Order::Ascending) => {
                    let rest = documents.range::<str, _>((seen, Bound::Unbounded)).map(|(_, one)| one);
                    found.extend(rest.filter(live).take(limit + 1));
                }
                (None, Order::Descending) => {
                    let rest = documents.range::<str, _>((Bound::Unbounded, seen)).map(|(_, one)| one);
                    found.extend(rest.rev().filter(live).take(limit + 1));
                }
            }
        }
        Ok(DocumentPage::of(found.into_iter().cloned().collect(), limit))
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
