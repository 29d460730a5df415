//! Signatures per Standard Webhooks, so that the receiver can verify a request's origin, content and age.
//!
//! Secrets are referred to by name. Their values come from the environment and are never shown.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::step::StepError;

/// How the variables are named that hold secrets.
const VARIABLE: &str = "FLOWLINE_SECRET_";
/// What may stand before a secret.
const PREFIX: &str = "whsec_";

/// Secrets by name. Each is base64, with or without `whsec_` before it; several with spaces between sign each request
/// once each, so that a receiver can change from one to the other.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl FromIterator<(String, String)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(secrets: I) -> Secrets {
        Secrets(secrets.into_iter().collect())
    }
}

impl Secrets {
    /// Those of this process's environment: `FLOWLINE_SECRET_STOCK` is `STOCK`.
    pub fn from_env() -> Secrets {
        let named = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.to_str()?.strip_prefix(VARIABLE)?.to_owned(), value.into_string().ok()?))
        };
        std::env::vars_os().filter_map(named).collect()
    }

    /// The value of `webhook-signature` for a message.
    pub(super) fn sign(&self, name: &str, id: &str, seconds: u64, body: &[u8]) -> Result<String, StepError> {
        let Some(value) = self.0.get(name) else {
            let text = format!(
                "secret {name:?} isn't set; set {VARIABLE}{name} in the environment of the process that runs the step"
            );
            return Err(StepError::fatal(text).code("no_secret"));
        };
        let mut signatures = Vec::new();
        for secret in value.split_whitespace() {
            let key = STANDARD.decode(secret.strip_prefix(PREFIX).unwrap_or(secret)).ok();
            let mac =
                key.filter(|key| !key.is_empty()).and_then(|key| Hmac::<Sha256>::new_from_slice(&key).ok());
            let Some(mut mac) = mac else { return Err(unreadable(name)) };
            mac.update(format!("{id}.{seconds}.").as_bytes());
            mac.update(body);
            signatures.push(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())));
        }
        if signatures.is_empty() {
            return Err(unreadable(name));
        }
        Ok(signatures.join(" "))
    }
}

fn unreadable(name: &str) -> StepError {
    let text =
        format!("secret {name:?} ({VARIABLE}{name}) isn't base64, with or without the prefix {PREFIX}");
    StepError::fatal(text).code("no_secret")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(value: &str) -> Secrets {
        Secrets::from_iter([("STOCK".to_owned(), value.to_owned())])
    }

    /// From another implementation:
    ///
    /// ```python
    /// import base64, hmac
    /// key = base64.b64decode("Zmxvd2xpbmUtdGVzdC1zZWNyZXQtMDEyMzQ1Njc4OQ==")
    /// message = b"msg_2b7e151628aed2a6." + b"1763200000." + '{"total":19,"name":"é"}'.encode()
    /// print("v1," + base64.b64encode(hmac.digest(key, message, "sha256")).decode())
    /// ```
    const GOLDEN: &str = "v1,SzyLHpH7JSWKgIhkaj9nwTUxNlzbEhATviLq2bftWT8=";

    #[test]
    fn a_signature_is_what_another_implementation_makes() {
        let body = "{\"total\":19,\"name\":\"é\"}".as_bytes();
        let sign = |secret: &str| secrets(secret).sign("STOCK", "msg_2b7e151628aed2a6", 1_763_200_000, body);
        let key = "Zmxvd2xpbmUtdGVzdC1zZWNyZXQtMDEyMzQ1Njc4OQ==";
        assert_eq!(sign(key).unwrap(), GOLDEN);
        assert_eq!(sign(&format!("whsec_{key}")).unwrap(), GOLDEN);
        let two = sign(&format!("{key} whsec_b2xk")).unwrap();
        assert_eq!(two.split(' ').next(), Some(GOLDEN));
        assert!(two.split(' ').nth(1).is_some_and(|second| second.starts_with("v1,") && second != GOLDEN));
    }

    #[test]
    fn a_secret_is_never_shown() {
        let shown = |secret: &str| {
            let error = secrets(secret).sign("STOCK", "m", 1, b"").unwrap_err();
            format!("{error:?} {:?}", secrets(secret))
        };
        for secret in ["Open! Sesame! 77", "whsec_%%hidden%%", ""] {
            let shown = shown(secret);
            assert!(shown.contains("FLOWLINE_SECRET_STOCK"), "{shown}");
            assert!(
                secret.split(' ').filter(|word| word.len() > 3).all(|word| !shown.contains(word)),
                "{shown}"
            );
        }
        let missing = secrets("x").sign("OTHER", "m", 1, b"").unwrap_err();
        assert!(missing.0.error.contains("set FLOWLINE_SECRET_OTHER"));
    }
}
