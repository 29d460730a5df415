//! API tokens: made once and shown once, kept as a hash.
//!
//! A token is `fl_` and 256 random bits. The store knows its SHA-256 alone, as the id of a document; whoever reads the
//! store cannot use what is there.

use flowline::core::ids::check_name;
use flowline::core::{Json, Tenant};
use flowline::store::query::MAX_PAGE;
use flowline::store::{DocumentQuery, NewDocument, Store, StoreError};
use flowline_api::access::{MadeToken, NewToken, TokenRow};
use sha2::{Digest, Sha256};

use crate::filter::duration;

/// The collection of the store that tokens are in.
const COLLECTION: &str = "tokens";
const PREFIX: &str = "fl_";
/// Subjects and roles are names that people read.
const LONGEST_SUBJECT: usize = 256;

/// What is wrong with it: the field and the reason.
pub fn check(new: &NewToken) -> Result<(), (&'static str, String)> {
    if new.subject.is_empty()
        || new.subject.len() > LONGEST_SUBJECT
        || new.subject.chars().any(char::is_control)
    {
        return Err((
            "subject",
            format!("a subject must have 1 to {LONGEST_SUBJECT} bytes and no control characters"),
        ));
    }
    if new.scopes.is_empty() {
        return Err((
            "scopes",
            "a token needs a scope: read, start, work, operate, on_behalf or admin".to_owned(),
        ));
    }
    let names = |field: &'static str, kind: &'static str, names: &[String]| {
        let wrong = names.iter().find_map(|name| check_name(kind, name).err());
        wrong.map_or(Ok(()), |error| Err((field, error.to_string())))
    };
    names("roles", "role", &new.roles)?;
    names("flows", "flow", new.flows.as_deref().unwrap_or_default())?;
    names("queues", "queue", new.queues.as_deref().unwrap_or_default())?;
    if let Some(expires) = &new.expires {
        let lasts = duration(expires).map_err(|problem| ("expires", problem))?;
        if lasts.is_zero() {
            return Err((
                "expires",
                "a token can't expire at once; leave this out for one that never expires".to_owned(),
            ));
        }
    }
    Ok(())
}

/// Makes a token and gives its secret, this once.
pub async fn create(store: &dyn Store, tenant: &Tenant, new: NewToken) -> Result<MadeToken, StoreError> {
    let secret = format!("{PREFIX}{}", random()?);
    let hash = hash(&secret);
    let ttl = new.expires.as_deref().and_then(|text| duration(text).ok());
    let now = store.now().await?;
    let row = TokenRow {
        // Of the hash, so that the same id is never given twice.
        id: hash[..16].to_owned(),
        tenant: tenant.clone(),
        subject: new.subject,
        scopes: new.scopes,
        roles: new.roles,
        flows: new.flows,
        queues: new.queues,
        created_at: now,
        expires_at: ttl.map(|ttl| now + ttl),
    };
    let body = Json::of(&row).map_err(|error| StoreError::Invalid(error.to_string()))?;
    store.put_document(NewDocument::new(COLLECTION, &hash, body, ttl)).await?;
    Ok(MadeToken { row, token: secret })
}

/// 256 random bits, as hex.
pub fn random() -> Result<String, StoreError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        StoreError::Unavailable(format!("can't get random numbers from the system: {error}"))
    })?;
    Ok(hex(&bytes))
}

/// What a secret with this hash stands for; `None` where no live token has it.
pub async fn find(store: &dyn Store, hash: &str) -> Result<Option<TokenRow>, StoreError> {
    let found = store.document(COLLECTION, hash).await?;
    // The store found it by its index; nothing is granted on that alone.
    let found = found.filter(|found| same(found.id.as_bytes(), hash.as_bytes()));
    found.map(|found| read(&found.body)).transpose()
}

/// The live tokens of a tenant, or of all.
pub async fn list(store: &dyn Store, tenant: Option<&Tenant>) -> Result<Vec<TokenRow>, StoreError> {
    let mut query = DocumentQuery { limit: MAX_PAGE, ..DocumentQuery::default() };
    let mut rows = Vec::new();
    loop {
        let page = store.documents(COLLECTION, query.clone()).await?;
        for document in &page.items {
            let row = read(&document.body)?;
            if tenant.is_none_or(|tenant| row.tenant == *tenant) {
                rows.push(row);
            }
        }
        match page.items.last() {
            Some(last) if page.more => query.after = Some(last.id.clone()),
            _ => break,
        }
    }
    rows.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    Ok(rows)
}

/// Takes a token away. False where this tenant has none of that id.
pub async fn revoke(store: &dyn Store, tenant: &Tenant, id: &str) -> Result<bool, StoreError> {
    // An id is the beginning of its document's; the rest is read off the next one in order.
    if id.len() != 16 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(false);
    }
    let query = DocumentQuery { after: Some(id.to_owned()), limit: 1, ..DocumentQuery::default() };
    let page = store.documents(COLLECTION, query).await?;
    let Some(found) = page.items.first().filter(|found| found.id.starts_with(id)) else { return Ok(false) };
    if read(&found.body)?.tenant != *tenant {
        return Ok(false);
    }
    store.delete_document(COLLECTION, &found.id).await
}

fn read(body: &Json) -> Result<TokenRow, StoreError> {
    body.to().map_err(|error| StoreError::Damaged(format!("a token: {error}")))
}

/// What the store knows a secret by.
pub fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares in a time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline::store::{Clock, MemoryStore};
    use flowline_api::access::TokenScope;

    fn new() -> NewToken {
        NewToken { subject: "ci".to_owned(), scopes: vec![TokenScope::Read], ..NewToken::default() }
    }

    #[tokio::test]
    async fn a_secret_has_256_bits_and_only_the_whole_of_it_stands_for_anything() {
        let store = MemoryStore::new(Clock::system());
        let tenant = Tenant::default();
        let one = create(&store, &tenant, new()).await.unwrap().token;
        let other = create(&store, &tenant, new()).await.unwrap().token;
        assert_ne!(one, other);
        let digits = one.strip_prefix(PREFIX).unwrap();
        assert!(digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{one}");
        assert!(find(&store, &hash(&one)).await.unwrap().is_some());
        for wrong in ["", PREFIX, digits, &one[..one.len() - 1], &one.to_uppercase(), &hash(&one)] {
            assert!(find(&store, &hash(wrong)).await.unwrap().is_none(), "{wrong}");
        }
    }

    #[test]
    fn hashes_are_the_same_only_where_every_byte_is() {
        assert!(same(b"abc", b"abc") && same(b"", b""));
        for other in [&b"abd"[..], b"bbc", b"ab", b"abcd", b""] {
            assert!(!same(b"abc", other));
        }
    }
}
