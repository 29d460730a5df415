//! Reads documents page by page, and compares those of two stores.

use std::collections::VecDeque;

use flowline_store::{Document, DocumentQuery, Store, StoreError};

use super::{MoveError, differs};

/// Documents read at a time: each may be as large as a payload can be.
const PAGE: usize = 100;

/// The documents of a collection, read as they are asked for.
pub(super) struct Documents<'a> {
    store: &'a dyn Store,
    collection: &'a str,
    read: VecDeque<Document>,
    after: Option<String>,
    more: bool,
}

impl<'a> Documents<'a> {
    pub(super) fn of(store: &'a dyn Store, collection: &'a str) -> Documents<'a> {
        Documents { store, collection, read: VecDeque::new(), after: None, more: true }
    }

    /// The next page; an empty one after the last.
    pub(super) async fn page(&mut self) -> Result<Vec<Document>, StoreError> {
        if !self.more {
            return Ok(Vec::new());
        }
        let query = DocumentQuery { after: self.after.take(), limit: PAGE, ..DocumentQuery::default() };
        let page = self.store.documents(self.collection, query).await?;
        self.after = page.items.last().map(|last| last.id.clone());
        self.more = page.more;
        Ok(page.items)
    }

    /// The next one that does not end.
    async fn next_lasting(&mut self) -> Result<Option<Document>, StoreError> {
        loop {
            match self.read.pop_front() {
                Some(document) if document.expires.is_some() => {}
                None if self.more => self.read = self.page().await?.into(),
                found => return Ok(found),
            }
        }
    }
}

/// Both hold the same documents. Those that end are left out: one store's clock may have ended them meanwhile.
pub(super) async fn compare(source: &dyn Store, target: &dyn Store) -> Result<(), MoveError> {
    let mut collections = source.collections().await?;
    collections.extend(target.collections().await?);
    collections.sort();
    collections.dedup();
    for collection in &collections {
        let (mut here, mut there) = (Documents::of(source, collection), Documents::of(target, collection));
        loop {
            let document = here.next_lasting().await?;
            if document != there.next_lasting().await? {
                return Err(differs(format!("the list of documents in {collection:?}")));
            }
            if document.is_none() {
                break;
            }
        }
    }
    Ok(())
}
