//! Documents: small records that surfaces keep beside the runs, such as API tokens, lines of the audit log, and when a
//! worker was last seen.
//!
//! A document is a JSON body under a collection and an id. The store neither reads the body nor knows tenants here: who
//! keeps something for a tenant puts its name into the collection's (`audit:TENANT`). A document is written as a whole,
//! and the last write counts; no commit looks at one.

use flowline_core::{Json, Time, limits};

use crate::error::StoreError;
use crate::query::PAGE;

/// The longest name of a collection and the longest id, in bytes.
pub const NAME_BYTES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub id: String,
    pub body: Json,
    /// When it is gone by the store's clock; `None`: when it is deleted.
    pub expires: Option<Time>,
}

impl Document {
    pub fn is_live(&self, now: Time) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// Which documents of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentQuery {
    pub order: Order,
    /// The id of the last one seen: only what comes after it in this order. It need not be there any more.
    pub after: Option<String>,
    pub limit: usize,
}

impl Default for DocumentQuery {
    fn default() -> DocumentQuery {
        DocumentQuery { order: Order::Ascending, after: None, limit: PAGE }
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
    /// Whether a further page has at least one document.
    pub more: bool,
}

impl DocumentPage {
    /// A page of what was found with one more than `limit` asked for.
    pub fn of(mut found: Vec<Document>, limit: usize) -> DocumentPage {
        let more = found.len() > limit;
        found.truncate(limit);
        DocumentPage { items: found, more }
    }
}

/// Refuses the name of a collection, or an id, that a store cannot keep.
pub fn check_name(what: &str, name: &str) -> Result<(), StoreError> {
    let wrong = match name {
        "" => "is empty".to_owned(),
        name if name.len() > NAME_BYTES => format!("has {} bytes; the limit is {NAME_BYTES}", name.len()),
        name if name.contains('\0') => "has a NUL in it".to_owned(),
        _ => return Ok(()),
    };
    Err(StoreError::Invalid(format!("the {what} of a document {wrong}")))
}

/// Refuses an address that no document can have.
pub fn check_address(collection: &str, id: &str) -> Result<(), StoreError> {
    check_name("collection", collection)?;
    check_name("id", id)
}

/// Refuses what cannot be asked for.
pub fn check_query(collection: &str, query: &DocumentQuery) -> Result<(), StoreError> {
    check_name("collection", collection)?;
    query.after.as_deref().map_or(Ok(()), |after| check_name("id", after))
}

/// Refuses a document that a store cannot keep.
pub fn check_document(collection: &str, id: &str, body: &Json) -> Result<(), StoreError> {
    check_address(collection, id)?;
    match body.get().len() {
        0..=limits::DOCUMENT_BYTES => Ok(()),
        bytes => Err(StoreError::Invalid(format!(
            "the body of document {id:?} has {bytes} bytes; the limit is {}",
            limits::DOCUMENT_BYTES
        ))),
    }
}
