//! The seal on references that leave the engine: the lease of a remote worker, the address of a callback.
//!
//! A reference names a run, a step, an attempt and its lease's token, and says more that an instance believes, such as the
//! deadline. While the attempt holds its lease, the store confirms the token. Afterwards nobody can, but a report that is
//! repeated must still be answered as recorded. So a reference is sealed with a key that only the instances of a store know:
//! it's taken as it was given out, or not at all.
//!
//! The key is a document of the store. The first instance that needs it creates it; it stays for good, and moves with the store.

use flowline_core::{Json, Tenant};
use flowline_store::{NewDocument, Store, StoreError};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

const COLLECTION: &str = "keys";
const ID: &str = "references";

/// Half of a SHA-256. Nobody can try enough of them.
const BYTES: usize = 16;

/// The key of a store.
#[derive(Clone)]
pub(crate) struct Sealer(Hmac<Sha256>);

/// A text by which an instance knows that it, or another one of the same store, wrote the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seal([u8; BYTES]);

#[derive(Serialize, Deserialize)]
struct SealKey {
    key: String,
}

impl Sealer {
    /// The key of this store, made if there is none yet. Of several instances that make one, the first counts for all.
    pub(crate) async fn of(store: &dyn Store) -> Result<Sealer, StoreError> {
        let found = match store.document(COLLECTION, ID).await? {
            Some(found) => found.body,
            None => {
                let mut bytes = [0; 32];
                getrandom::fill(&mut bytes)
                    .map_err(|error| StoreError::Unavailable(format!("can't get random numbers: {error}")))?;
                let key = Json::of(&SealKey { key: to_hex(&bytes) }).map_err(damaged)?;
                let new = NewDocument::new(COLLECTION, ID, key.clone(), None).if_absent();
                let first = store.put_document(new).await?;
                first.map_or(key, |first| first.body)
            }
        };
        let SealKey { key } = found.to().map_err(damaged)?;
        let key = from_hex::<32>(&key).ok_or_else(|| damaged("it isn't 32 bytes in hex"))?;
        Ok(Sealer(Hmac::new_from_slice(&key).map_err(damaged)?))
    }

    /// The tenant is no part of a worker's reference, but one tenant's reference is nothing to another.
    pub(crate) fn seal(&self, tenant: &Tenant, text: &str) -> Seal {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(&self.mac(tenant, text).finalize().into_bytes()[..BYTES]);
        Seal(bytes)
    }

    /// Compared in constant time.
    pub(crate) fn is_sealed(&self, tenant: &Tenant, text: &str, Seal(seal): &Seal) -> bool {
        self.mac(tenant, text).verify_truncated_left(seal).is_ok()
    }

    fn mac(&self, tenant: &Tenant, text: &str) -> Hmac<Sha256> {
        // No tenant's name has a space in it.
        let mut mac = self.0.clone();
        mac.update(tenant.as_str().as_bytes());
        mac.update(b" ");
        mac.update(text.as_bytes());
        mac
    }
}

impl std::fmt::Display for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl Seal {
    /// `None` if the text isn't a seal.
    pub(crate) fn read(text: &str) -> Option<Seal> {
        from_hex(text).map(Seal)
    }
}

fn damaged(error: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("document {ID:?} of {COLLECTION:?} can't be read: {error}"))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use flowline_store::Clock;
    use flowline_store::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn every_instance_of_a_store_has_one_key_and_knows_what_another_sealed() {
        let (store, other) = (MemoryStore::new(Clock::system()), MemoryStore::new(Clock::system()));
        let (first, second) = (Sealer::of(&store).await.unwrap(), Sealer::of(&store).await.unwrap());
        let (ada, bob) = (Tenant::new("ada").unwrap(), Tenant::new("bob").unwrap());
        let seal = first.seal(&ada, "r-1 0 1");
        assert_eq!(Seal::read(&seal.to_string()), Some(seal));
        assert!(second.is_sealed(&ada, "r-1 0 1", &seal));
        assert!(!second.is_sealed(&ada, "r-1 0 2", &seal));
        assert!(!second.is_sealed(&bob, "r-1 0 1", &seal));
        assert!(!Sealer::of(&other).await.unwrap().is_sealed(&ada, "r-1 0 1", &seal));
    }

    #[test]
    fn what_is_no_seal_is_none() {
        for text in ["", "00", "g0000000000000000000000000000000", "é000000000000000000000000000000"] {
            assert_eq!(Seal::read(text), None, "{text:?}");
        }
    }
}
