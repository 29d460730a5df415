//! Names and identifiers, checked where they enter.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::limits;

/// Why a name was refused. The message names the rule, so that it can be shown as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {name:?} {problem}; names are letters, digits, '.', '_' and '-', start with a letter or digit, up to {} bytes",
    limits::NAME_BYTES
)]
pub struct NameError {
    what: &'static str,
    name: String,
    problem: &'static str,
}

/// Checks a flow, step, event, queue or tenant name: ASCII letters, digits, `.`, `_`, `-`, starting with a letter or
/// digit, up to [`limits::NAME_BYTES`]. `what` is the noun for the message ("step").
pub fn check_name(what: &'static str, name: &str) -> Result<(), NameError> {
    let fail = |problem| Err(NameError { what, name: name.chars().take(80).collect(), problem });
    let Some(first) = name.chars().next() else { return fail("is empty") };
    if name.len() > limits::NAME_BYTES {
        return fail("is too long");
    }
    if !first.is_ascii_alphanumeric() {
        return fail("starts with another character");
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return fail("has other characters");
    }
    Ok(())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_id! {
    /// Isolates its runs from those of other tenants. `default` if none is given.
    Tenant
}
text_id! {
    /// One execution of a definition: a UUIDv7, or derived from an idempotency key.
    RunId
}

impl Tenant {
    pub fn new(name: &str) -> Result<Tenant, NameError> {
        check_name("tenant", name)?;
        Ok(Tenant(name.into()))
    }
}

impl Default for Tenant {
    fn default() -> Tenant {
        Tenant("default".into())
    }
}

impl RunId {
    /// Takes an id as a user typed it. A run id is made by Flowline, so its characters are those of a name.
    pub fn new(id: &str) -> Result<RunId, NameError> {
        check_name("run id", id)?;
        Ok(RunId(id.into()))
    }

    /// The id of the run that an idempotency key names: a hash of tenant, flow and key, so that the primary key of
    /// every store is the guarantee that one key makes one run.
    pub fn from_key(tenant: &Tenant, flow: &str, key: &str) -> RunId {
        RunId::hashed(&[tenant.as_str(), flow, key])
    }

    /// As [`RunId::from_key`], for a key that a user chose: one that looks like the engine's own ([`is_own_key`]) names
    /// another run than the engine's, so nobody can take that one's place.
    pub fn from_user_key(tenant: &Tenant, flow: &str, key: &str) -> RunId {
        match is_own_key(key) {
            true => RunId::hashed(&[tenant.as_str(), flow, key, "user"]),
            false => RunId::from_key(tenant, flow, key),
        }
    }

    fn hashed(parts: &[&str]) -> RunId {
        let mut hash = Sha256::new();
        for part in parts {
            // Length first: no two lists hash the same bytes.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        RunId(format!("k{}", &hex(&hash.finalize())[..32]).into())
    }
}

/// Whether a key looks like one that the engine makes itself: for runs that are redriven or retried in bulk, and for what
/// steps start or send. Users' keys of this form live in a namespace of their own.
pub fn is_own_key(key: &str) -> bool {
    ["redrive:", "retry:", "step:"].iter().any(|prefix| key.starts_with(prefix))
}

/// A run's full address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    pub tenant: Tenant,
    pub run: RunId,
}

impl RunKey {
    pub fn new(tenant: Tenant, run: RunId) -> RunKey {
        RunKey { tenant, run }
    }
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.run)
    }
}

/// The id of one attempt, as events show it.
pub fn step_id(run: &RunId, step: &str, attempt: u32) -> String {
    format!("{run}__{step}__attempt-{attempt}")
}

/// Lower-case hex of a digest.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// SHA-256 of bytes in hex: the identity of definitions and of inputs.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_id_in_the_docs_is_this_one() {
        let page = include_str!("../../../docs/events.md");
        let (_, pattern) = page.split_once("`stepId` is `").expect("the page says what it is");
        let pattern = pattern.split('`').next().unwrap_or_default();
        let filled = pattern.replace("<runId>", "r").replace("<stepName>", "pack").replace("<n>", "7");
        assert_eq!(filled, step_id(&RunId::new("r").unwrap(), "pack", 7));
    }

    #[test]
    fn names_that_could_escape_a_key_or_a_path_are_refused() {
        for bad in
            ["", "../x", "a:b", "a{b}", "a b", "a\0b", "naïve", "\"q\"", ".hidden", "-x", &"x".repeat(129)]
        {
            assert!(check_name("step", bad).is_err(), "{bad:?} was taken");
        }
        for good in ["a", "order.placed", "step_2", "A-b.C", "9lives", &"x".repeat(128)] {
            assert_eq!(check_name("step", good), Ok(()));
        }
    }

    #[test]
    fn keys_that_concatenate_alike_make_different_runs() {
        let tenant = Tenant::default();
        assert_ne!(RunId::from_key(&tenant, "ab", "c"), RunId::from_key(&tenant, "a", "bc"));
        assert_eq!(RunId::from_key(&tenant, "a", "k"), RunId::from_key(&tenant, "a", "k"));
    }

    #[test]
    fn any_text_can_be_an_idempotency_key() {
        let tenant = Tenant::default();
        let ids =
            ["é", "\"", ":", "{}", "../", "\0", "a\u{202e}b"].map(|key| RunId::from_key(&tenant, "f", key));
        for (i, id) in ids.iter().enumerate() {
            assert!(RunId::new(id.as_str()).is_ok());
            assert!(!ids[..i].contains(id));
        }
    }
}
