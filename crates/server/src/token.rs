//! API tokens: made once and shown once, kept as a hash.
//!
//! A token is `fl_` and 256 random bits. The store knows its SHA-256 alone, as the id of a document; whoever reads the
//! store cannot use what is there. The document expires with the token, by the store's clock.
//!
//! What else is known of a token is in documents beside it, because nothing but its making and its end may write the token
//! itself: a write that crosses a revocation would bring it back.

use std::collections::HashMap;
use std::time::Duration;

use flowline::core::ids::check_name;
use flowline::core::{Json, Tenant, Time};
use flowline::store::query::MAX_PAGE;
use flowline::store::{Document, DocumentQuery, NewDocument, Store, StoreError};
use flowline_api::access::{MadeToken, NewToken, RotateToken, TokenRow};
use sha2::{Digest, Sha256};

use crate::filter::duration;

/// The collection of the store that tokens are in.
const COLLECTION: &str = "tokens";
/// When tokens expire, by hash, for some time after they did: who sends one is told so.
const EXPIRING: &str = "expiring-tokens";
const REMEMBERED_EXPIRED: Duration = Duration::from_secs(30 * 24 * 3600);
/// Tokens that were revoked, by hash, for longer than a rotation takes.
const REVOKED: &str = "revoked-tokens";
const REMEMBERED_REVOKED: Duration = Duration::from_secs(24 * 3600);
/// How long the last use of a token is known.
const REMEMBERED_USE: Duration = Duration::from_secs(400 * 24 * 3600);
/// How long a rotated token stays valid unless told otherwise.
const OVERLAP: Duration = Duration::from_secs(3600);
/// Has a document once a token was made: from then on, no start of a server makes one.
const FIRST: &str = "first-token";
/// How often and how long an instance waits for another to make it.
const FIRST_TRIES: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
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
    check_expires(new.expires.as_deref())
}

/// What is wrong with it: the field and the reason.
pub fn check_rotation(rotate: &RotateToken) -> Result<(), (&'static str, String)> {
    let overlap = rotate.overlap.as_deref().map_or(Ok(OVERLAP), duration);
    overlap.map_err(|problem| ("overlap", problem))?;
    check_expires(rotate.expires.as_deref())
}

fn check_expires(expires: Option<&str>) -> Result<(), (&'static str, String)> {
    let lasts = expires.map(duration).transpose().map_err(|problem| ("expires", problem))?;
    if lasts.is_some_and(|lasts| lasts.is_zero()) {
        let wrong = "a token can't expire immediately; omit this for a token that never expires";
        return Err(("expires", wrong.to_owned()));
    }
    Ok(())
}

/// Makes a token and gives its secret, this once.
pub async fn create(store: &dyn Store, tenant: &Tenant, new: NewToken) -> Result<MadeToken, StoreError> {
    mark(store).await?;
    let lasts = new.expires.as_deref().and_then(|text| duration(text).ok());
    let row = TokenRow {
        id: String::new(),
        tenant: tenant.clone(),
        subject: new.subject,
        scopes: new.scopes,
        roles: new.roles,
        flows: new.flows,
        queues: new.queues,
        created_at: Time::default(),
        expires_at: None,
        last_used_at: None,
        replaced_by: None,
    };
    make(store, row, lasts, store.now().await?).await
}

/// Makes the first token of a store that never had one. Of several instances that start at once, one does, and the others
/// wait until it has. `None` if there is a token, or was.
pub async fn first(
    store: &dyn Store,
    tenant: &Tenant,
    new: NewToken,
) -> Result<Option<MadeToken>, StoreError> {
    let has_one = any(store).await?;
    // Also where there is one: an older build may have made it, which marked nothing.
    let is_new = mark(store).await?;
    if has_one {
        return Ok(None);
    }
    if is_new {
        return create(store, tenant, new).await.map(Some);
    }
    for _ in 0..FIRST_TRIES {
        if any(store).await? {
            break;
        }
        tokio::time::sleep(FIRST_PAUSE).await;
    }
    Ok(None)
}

/// Remembers for good that the store has or had a token. Whether that is new.
async fn mark(store: &dyn Store) -> Result<bool, StoreError> {
    let mark = NewDocument::new(FIRST, "made", Json::null(), None).if_absent();
    Ok(store.put_document(mark).await?.is_none())
}

/// Gives a token its id and its secret.
async fn make(
    store: &dyn Store,
    row: TokenRow,
    lasts: Option<Duration>,
    now: Time,
) -> Result<MadeToken, StoreError> {
    let secret = format!("{PREFIX}{}", random()?);
    let hash = hash(&secret);
    // Of the hash, so that the same id is never given twice.
    let id = hash[..16].to_owned();
    let row = TokenRow { id, created_at: now, expires_at: lasts.map(|lasts| now + lasts), ..row };
    write(store, &hash, &row, lasts).await?;
    Ok(MadeToken { row, token: secret })
}

/// Writes a token that lasts this long, and when it will expire before that: one that has can be told from others.
async fn write(
    store: &dyn Store,
    hash: &str,
    row: &TokenRow,
    lasts: Option<Duration>,
) -> Result<(), StoreError> {
    if let Some(lasts) = lasts {
        let body = json(&row.expires_at)?;
        let kept = Some(lasts.saturating_add(REMEMBERED_EXPIRED));
        store.put_document(NewDocument::new(EXPIRING, hash, body, kept)).await?;
    }
    store.put_document(NewDocument::new(COLLECTION, hash, json(row)?, lasts)).await.map(drop)
}

/// What came of a rotation.
#[derive(Debug)]
pub enum TokenRotation {
    Made(Box<MadeToken>),
    /// This tenant has no token of that id.
    Missing,
    /// It was rotated before, to the one with this id.
    Replaced(String),
}

/// Why a token can't be rotated again.
pub fn already_replaced(id: &str, by: &str) -> String {
    format!("token {id} was already replaced by {by}; rotate that one")
}

/// Makes a token that allows what another does, which stays valid for the overlap. The new one lasts as long as the old one
/// did from its creation, unless told otherwise.
pub async fn rotate(
    store: &dyn Store,
    tenant: &Tenant,
    id: &str,
    rotate: &RotateToken,
) -> Result<TokenRotation, StoreError> {
    let Some((hash, old)) = by_id(store, tenant, id).await? else { return Ok(TokenRotation::Missing) };
    if let Some(other) = old.replaced_by {
        return Ok(TokenRotation::Replaced(other));
    }
    let now = store.now().await?;
    let lasted = old.expires_at.map(|expires| expires.since(old.created_at));
    let lasts = rotate.expires.as_deref().and_then(|text| duration(text).ok()).or(lasted);
    let made = make(store, old.clone(), lasts, now).await?;
    let overlap = rotate.overlap.as_deref().and_then(|text| duration(text).ok()).unwrap_or(OVERLAP);
    let left = old.expires_at.map_or(overlap, |expires| expires.since(now).min(overlap));
    if left.is_zero() {
        revoke(store, tenant, id).await?;
        return Ok(TokenRotation::Made(Box::new(made)));
    }
    let replaced_by = Some(made.row.id.clone());
    let old = TokenRow { expires_at: Some(now + left), replaced_by, ..old };
    write(store, &hash, &old, Some(left)).await?;
    // A revocation marks the token before it deletes it: what isn't seen here deletes what was just written.
    if store.document(REVOKED, &hash).await?.is_some() {
        store.delete_document(COLLECTION, &hash).await?;
    }
    Ok(TokenRotation::Made(Box::new(made)))
}

/// 256 random bits, as hex.
pub fn random() -> Result<String, StoreError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        StoreError::Unavailable(format!("can't get random numbers from the system: {error}"))
    })?;
    Ok(hex(&bytes))
}

/// What a secret stands for.
#[derive(Debug)]
pub enum FoundToken<T> {
    Good(T),
    Expired(Time),
    /// Nothing, or no longer.
    Unknown,
}

/// What a secret with this hash stands for.
pub async fn find(store: &dyn Store, hash: &str) -> Result<FoundToken<TokenRow>, StoreError> {
    // The store found it by its index; nothing is granted on that alone.
    let is_it = |found: &Document| same(found.id.as_bytes(), hash.as_bytes());
    if let Some(found) = store.document(COLLECTION, hash).await?.filter(is_it) {
        return Ok(FoundToken::Good(read(&found.body)?));
    }
    let Some(expiring) = store.document(EXPIRING, hash).await?.filter(is_it) else {
        return Ok(FoundToken::Unknown);
    };
    let expires = expiring.body.to::<Time>().map_err(|error| damaged(&error))?;
    // An older build may have revoked it, without leaving this mark.
    if expires <= store.now().await? { Ok(FoundToken::Expired(expires)) } else { Ok(FoundToken::Unknown) }
}

/// Whether there is a live token, of any tenant.
pub async fn any(store: &dyn Store) -> Result<bool, StoreError> {
    let query = DocumentQuery { limit: 1, ..DocumentQuery::default() };
    Ok(!store.documents(COLLECTION, query).await?.items.is_empty())
}

/// The live tokens of a tenant, each with its last use.
pub async fn list(store: &dyn Store, tenant: &Tenant) -> Result<Vec<TokenRow>, StoreError> {
    let mut uses = HashMap::new();
    each(store, &used_by(tenant), |used| {
        uses.insert(used.id, used.body.to::<Time>().map_err(|error| damaged(&error))?);
        Ok(())
    })
    .await?;
    let mut rows = Vec::new();
    each(store, COLLECTION, |document| {
        let row = read(&document.body)?;
        if row.tenant == *tenant {
            rows.push(TokenRow { last_used_at: uses.get(&row.id).copied(), ..row });
        }
        Ok(())
    })
    .await?;
    rows.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    Ok(rows)
}

/// Hands over the documents of a collection. No more than a page of them is held at once.
async fn each(
    store: &dyn Store,
    collection: &str,
    mut take: impl FnMut(Document) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut query = DocumentQuery { limit: MAX_PAGE, ..DocumentQuery::default() };
    loop {
        let page = store.documents(collection, query.clone()).await?;
        let last = page.items.last().map(|last| last.id.clone());
        page.items.into_iter().try_for_each(&mut take)?;
        match last {
            Some(last) if page.more => query.after = Some(last),
            _ => return Ok(()),
        }
    }
}

/// Takes a token away. False where this tenant has none of that id.
pub async fn revoke(store: &dyn Store, tenant: &Tenant, id: &str) -> Result<bool, StoreError> {
    let Some((hash, _)) = by_id(store, tenant, id).await? else { return Ok(false) };
    let mark = NewDocument::new(REVOKED, &hash, Json::null(), Some(REMEMBERED_REVOKED));
    store.put_document(mark).await?;
    let revoked = store.delete_document(COLLECTION, &hash).await?;
    store.delete_document(EXPIRING, &hash).await?;
    store.delete_document(&used_by(tenant), id).await?;
    Ok(revoked)
}

/// Writes that a token is used.
pub async fn used(store: &dyn Store, tenant: &Tenant, id: &str, now: Time) -> Result<(), StoreError> {
    let body = json(&now)?;
    store.put_document(NewDocument::new(&used_by(tenant), id, body, Some(REMEMBERED_USE))).await.map(drop)
}

/// The collection of last uses.
fn used_by(tenant: &Tenant) -> String {
    format!("token-uses:{tenant}")
}

/// A token by its id, with its hash.
async fn by_id(
    store: &dyn Store,
    tenant: &Tenant,
    id: &str,
) -> Result<Option<(String, TokenRow)>, StoreError> {
    // An id is the beginning of its document's; the rest is read off the next one in order.
    if id.len() != 16 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(None);
    }
    let query = DocumentQuery { after: Some(id.to_owned()), limit: 1, ..DocumentQuery::default() };
    let page = store.documents(COLLECTION, query).await?;
    let Some(found) = page.items.into_iter().find(|found| found.id.starts_with(id)) else { return Ok(None) };
    let row = read(&found.body)?;
    Ok((row.tenant == *tenant).then_some((found.id, row)))
}

fn read(body: &Json) -> Result<TokenRow, StoreError> {
    body.to().map_err(|error| damaged(&error))
}

fn damaged(error: &impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("a token: {error}"))
}

fn json(value: &impl serde::Serialize) -> Result<Json, StoreError> {
    Json::of(value).map_err(|error| StoreError::Invalid(error.to_string()))
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
    use flowline::store::{Catalog as _, Clock, MemoryStore};
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
        assert!(matches!(find(&store, &hash(&one)).await.unwrap(), FoundToken::Good(_)));
        for wrong in ["", PREFIX, digits, &one[..one.len() - 1], &one.to_uppercase(), &hash(&one)] {
            assert!(matches!(find(&store, &hash(wrong)).await.unwrap(), FoundToken::Unknown), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_rotated_token_is_good_for_the_overlap_and_no_longer_than_it_was() {
        let clock = Clock::manual(Time::default());
        let store = MemoryStore::new(clock.clone());
        let tenant = Tenant::default();
        let find = async |secret: &str| find(&store, &hash(secret)).await.unwrap();
        let old =
            create(&store, &tenant, NewToken { expires: Some("1d".to_owned()), ..new() }).await.unwrap();
        clock.advance(Duration::from_secs(60));
        let TokenRotation::Made(made) =
            rotate(&store, &tenant, &old.row.id, &RotateToken::default()).await.unwrap()
        else {
            panic!("there is such a token")
        };
        assert_eq!((&made.row.subject, &made.row.scopes), (&old.row.subject, &old.row.scopes));
        assert_eq!(made.row.expires_at.unwrap().since(made.row.created_at), Duration::from_secs(24 * 3600));
        let again = rotate(&store, &tenant, &old.row.id, &RotateToken::default()).await.unwrap();
        assert!(matches!(again, TokenRotation::Replaced(by) if by == made.row.id));
        clock.advance(OVERLAP - Duration::from_millis(1));
        assert!(matches!(find(&old.token).await, FoundToken::Good(_)));
        clock.advance(Duration::from_millis(1));
        assert!(
            matches!(find(&old.token).await, FoundToken::Expired(_))
                && matches!(find(&made.token).await, FoundToken::Good(_))
        );
        // One that expires within the overlap is not prolonged by it, and with none it ends at once.
        let short =
            create(&store, &tenant, NewToken { expires: Some("1m".to_owned()), ..new() }).await.unwrap();
        rotate(&store, &tenant, &short.row.id, &RotateToken::default()).await.unwrap();
        clock.advance(Duration::from_secs(60));
        assert!(matches!(find(&short.token).await, FoundToken::Expired(_)));
        let at_once = RotateToken { overlap: Some("0s".to_owned()), expires: None };
        rotate(&store, &tenant, &made.row.id, &at_once).await.unwrap();
        assert!(matches!(find(&made.token).await, FoundToken::Unknown));
        let other = Tenant::new("other").unwrap();
        assert!(matches!(
            rotate(&store, &other, &old.row.id, &at_once).await.unwrap(),
            TokenRotation::Missing
        ));
    }

    #[tokio::test]
    async fn a_store_that_has_or_had_a_token_gets_no_first_one() {
        let tenant = Tenant::default();
        let store = MemoryStore::new(Clock::system());
        let made = create(&store, &tenant, new()).await.unwrap();
        // As an older build makes one, which marks nothing.
        assert!(store.delete_document(FIRST, "made").await.unwrap());
        assert!(first(&store, &tenant, new()).await.unwrap().is_none(), "it has one");
        assert!(revoke(&store, &tenant, &made.row.id).await.unwrap());
        assert!(first(&store, &tenant, new()).await.unwrap().is_none(), "it had one");
        let store = MemoryStore::new(Clock::system());
        assert!(first(&store, &tenant, new()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_tenant_lists_its_own_tokens_however_many_others_there_are() {
        let store = MemoryStore::new(Clock::system());
        let (tenant, other) = (Tenant::default(), Tenant::new("other").unwrap());
        let mut made = Vec::new();
        for number in 0..2 * MAX_PAGE + 10 {
            let of = if number % 500 == 0 { &tenant } else { &other };
            let id = create(&store, of, new()).await.unwrap().row.id;
            made.extend((of == &tenant).then_some(id));
        }
        let mut listed: Vec<String> =
            list(&store, &tenant).await.unwrap().into_iter().map(|row| row.id).collect();
        made.sort();
        listed.sort();
        assert!(made.len() > 1 && listed == made);
    }

    #[test]
    fn hashes_are_the_same_only_where_every_byte_is() {
        assert!(same(b"abc", b"abc") && same(b"", b""));
        for other in [&b"abd"[..], b"bbc", b"ab", b"abcd", b""] {
            assert!(!same(b"abc", other));
        }
    }
}
