//! Documents: small records kept beside the runs, such as API tokens, audit log entries, and when a worker was last seen.
//!
//! A document is a JSON body under a collection and an id. The store doesn't read the body and knows no tenants here:
//! whoever keeps something per tenant puts the tenant into the collection's name (`audit:TENANT`). A document is written
//! whole, the last write wins, and no commit looks at one.

use std::time::Duration;

use flowline_core::{Json, Time, limits};

use crate::error::StoreError;
use crate::query::PAGE;

/// The longest name of a collection and the longest id, in bytes.
pub const NAME_BYTES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub id: String,
    pub body: Json,
    /// When it expires by the store's clock; `None` for never.
    pub expires: Option<Time>,
}

impl Document {
    pub fn is_live(&self, now: Time) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// A document to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDocument {
    pub collection: String,
    pub id: String,
    pub body: Json,
    /// How long it lives; `None` for ever.
    pub ttl: Option<Duration>,
    pub existing: Existing,
}

/// What a write does to a live document with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Replace,
    /// It stays, and nothing is written.
    Keep,
}

impl NewDocument {
    pub fn new(collection: &str, id: &str, body: Json, ttl: Option<Duration>) -> NewDocument {
        let (collection, id) = (collection.to_owned(), id.to_owned());
        NewDocument { collection, id, body, ttl, existing: Existing::Replace }
    }

    /// Writes only if no live document has the id.
    pub fn if_absent(self) -> NewDocument {
        NewDocument { existing: Existing::Keep, ..self }
    }

    /// `Invalid` if no store could keep it.
    pub fn check(&self) -> Result<(), StoreError> {
        check_address(&self.collection, &self.id)?;
        match self.body.get().len() {
            0..=limits::DOCUMENT_BYTES => Ok(()),
            bytes => Err(StoreError::Invalid(format!(
                "the body of document {:?} has {bytes} bytes; the limit is {}",
                self.id,
                limits::DOCUMENT_BYTES
            ))),
        }
    }
}

/// Which documents of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentQuery {
    /// Only this id, wherever the page starts.
    pub id: Option<String>,
    pub order: Order,
    /// The last id seen: only what comes after it in this order. It needn't exist any more.
    pub after: Option<String>,
    pub limit: usize,
}

impl Default for DocumentQuery {
    fn default() -> DocumentQuery {
        DocumentQuery { id: None, order: Order::Ascending, after: None, limit: PAGE }
    }
}

impl DocumentQuery {
    pub fn only(id: &str) -> DocumentQuery {
        DocumentQuery { id: Some(id.to_owned()), limit: 1, ..DocumentQuery::default() }
    }

    /// `Invalid` for names that no document can have.
    pub fn check(&self, collection: &str) -> Result<(), StoreError> {
        check_name("collection", collection)?;
        self.id.iter().chain(&self.after).try_for_each(|id| check_name("id", id))
    }
}

/// Ids are ordered by their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Ascending,
    Descending,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentPage {
    pub items: Vec<Document>,
    /// Whether there's another page with at least one document.
    pub more: bool,
}

impl DocumentPage {
    /// A page of what was found, if up to `limit + 1` were asked for.
    pub fn of(mut found: Vec<Document>, limit: usize) -> DocumentPage {
        let more = found.len() > limit;
        found.truncate(limit);
        DocumentPage { items: found, more }
    }
}

fn check_name(what: &str, name: &str) -> Result<(), StoreError> {
    let wrong = match name {
        "" => "is empty".to_owned(),
        name if name.len() > NAME_BYTES => format!("has {} bytes; the limit is {NAME_BYTES}", name.len()),
        name if name.contains('\0') => "has a NUL in it".to_owned(),
        _ => return Ok(()),
    };
    Err(StoreError::Invalid(format!("the {what} of a document {wrong}")))
}

/// `Invalid` for an address that no document can have.
pub fn check_address(collection: &str, id: &str) -> Result<(), StoreError> {
    check_name("collection", collection)?;
    check_name("id", id)
}
