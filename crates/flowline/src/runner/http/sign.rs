//! Signatures per Standard Webhooks, so that the receiver can verify a request's origin, content and age.
//!
//! Secrets are referred to by name. Their values come from the environment and are never shown.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flowline_core::Tenant;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::step::StepError;

/// How the variables are named that hold secrets.
const VARIABLE: &str = "FLOWLINE_SECRET_";
/// What may stand before a secret.
const PREFIX: &str = "whsec_";

/// Secrets by name. The text of each is words with spaces between: keys in base64, with or without `whsec_` before them;
/// `host=HOST` for each host that it may sign requests to (`*.shop.example` for all below it, `*` for any); and `tenant=NAME`
/// for each tenant whose steps may use it (`*` for all). Of several keys, each signs every request, so that a receiver can
/// change from one to the other.
///
/// A signature is a way to speak as its owner, so a secret that names no host signs nothing, and one that names no tenant is
/// for the default tenant.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, Secret>);

#[derive(Clone, Default)]
struct Secret {
    keys: Vec<String>,
    hosts: Vec<String>,
    tenants: Vec<String>,
}

impl Secret {
    fn read(text: &str) -> Secret {
        let mut secret = Secret::default();
        for word in text.split_whitespace() {
            // No base64 has these in it.
            match (word.strip_prefix("host="), word.strip_prefix("tenant=")) {
                (Some(host), _) => secret.hosts.push(host.to_ascii_lowercase()),
                (_, Some(tenant)) => secret.tenants.push(tenant.to_owned()),
                _ => secret.keys.push(word.to_owned()),
            }
        }
        secret
    }

    fn is_of(&self, tenant: &Tenant) -> bool {
        match self.tenants.is_empty() {
            true => *tenant == Tenant::default(),
            false => self.tenants.iter().any(|known| known == "*" || known == tenant.as_str()),
        }
    }

    fn is_for(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let below = |known: &str| {
            known.strip_prefix('*').is_some_and(|end| end.starts_with('.') && host.ends_with(end))
        };
        self.hosts.iter().any(|known| known == "*" || *known == host || below(known))
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl FromIterator<(String, String)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(secrets: I) -> Secrets {
        Secrets(secrets.into_iter().map(|(name, text)| (name, Secret::read(&text))).collect())
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

    /// The variables of secrets that name no host, and so sign nothing.
    pub fn hostless(&self) -> impl Iterator<Item = String> {
        self.0
            .iter()
            .filter(|(_, secret)| secret.hosts.is_empty())
            .map(|(name, _)| format!("{VARIABLE}{name}"))
    }

    /// What a definition asks of a secret, as far as it's known: the host may be known only to its runs, and the secret only to
    /// another process. Another tenant's secret is as unknown as one that isn't set, so that nobody can ask which names there
    /// are.
    pub(super) fn check(&self, name: &str, tenant: &Tenant, host: Option<&str>) -> Result<(), StepError> {
        match host.filter(|_| self.of(name, tenant).is_ok()) {
            Some(host) => self.find(name, tenant, host).map(drop),
            None => Ok(()),
        }
    }

    /// Another tenant's secret doesn't exist.
    fn of(&self, name: &str, tenant: &Tenant) -> Result<&Secret, StepError> {
        let text = || {
            format!(
                "secret {name:?} isn't set for tenant {tenant}; set {VARIABLE}{name} in the environment of the process that runs the step, with tenant={tenant} in it"
            )
        };
        let found = self.0.get(name).filter(|secret| secret.is_of(tenant));
        found.ok_or_else(|| StepError::fatal(text()).code("no_secret"))
    }

    fn find(&self, name: &str, tenant: &Tenant, host: &str) -> Result<&Secret, StepError> {
        let secret = self.of(name, tenant)?;
        if secret.is_for(host) {
            return Ok(secret);
        }
        let text = format!(
            "secret {name:?} doesn't sign requests to {host}; if it should, add host={host} to {VARIABLE}{name}"
        );
        Err(StepError::fatal(text).code("secret_refused"))
    }

    /// The value of `webhook-signature` for a message to a host, by a step of a tenant.
    pub(super) fn sign(
        &self,
        name: &str,
        (tenant, host): (&Tenant, &str),
        (id, seconds): (&str, u64),
        body: &[u8],
    ) -> Result<String, StepError> {
        let secret = self.find(name, tenant, host)?;
        let mut signatures = Vec::new();
        for secret in &secret.keys {
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
        Secrets::from_iter([("STOCK".to_owned(), format!("{value} host=*"))])
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
        let sign = |secret: &str| {
            secrets(secret).sign(
                "STOCK",
                (&Tenant::default(), "h"),
                ("msg_2b7e151628aed2a6", 1_763_200_000),
                body,
            )
        };
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
            let error = secrets(secret).sign("STOCK", (&Tenant::default(), "h"), ("m", 1), b"").unwrap_err();
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
        let missing = secrets("x").sign("OTHER", (&Tenant::default(), "h"), ("m", 1), b"").unwrap_err();
        assert!(missing.0.error.contains("set FLOWLINE_SECRET_OTHER"));
    }

    #[test]
    fn attack_5_a_secret_signs_for_its_tenants_and_hosts_alone() {
        let code = |text: &str, tenant: &str, host: &str| {
            let secrets = Secrets::from_iter([("STOCK".to_owned(), text.to_owned())]);
            let signed = secrets.sign("STOCK", (&Tenant::new(tenant).unwrap(), host), ("m", 1), b"");
            signed.map_or_else(|error| error.0.code.unwrap_or_default().to_string(), |_| "signed".to_owned())
        };
        let shop = "c2VjcmV0 host=shop.example host=*.Hooks.example";
        for host in ["shop.example", "SHOP.example", "shop.example.", "eu.hooks.example", "a.b.hooks.example"]
        {
            assert_eq!(code(shop, "default", host), "signed", "{host}");
        }
        for host in [
            "evil.example",
            "hooks.example",
            "shop.example.evil.example",
            "evilshop.example",
            "xhooks.example",
            "",
        ] {
            assert_eq!(code(shop, "default", host), "secret_refused", "{host}");
        }
        assert_eq!(code("c2VjcmV0", "default", "shop.example"), "secret_refused", "a host has to be named");
        assert_eq!(code("c2VjcmV0 host=*", "default", "anything"), "signed");
        assert_eq!(code("c2VjcmV0 host=*", "acme", "anything"), "no_secret", "it's the default tenant's");
        assert_eq!(code("c2VjcmV0 host=* tenant=acme", "acme", "anything"), "signed");
        assert_eq!(code("c2VjcmV0 host=* tenant=acme", "default", "anything"), "no_secret");
        assert_eq!(code("c2VjcmV0 host=* tenant=*", "acme", "anything"), "signed");
        let secrets = secrets("c2VjcmV0");
        assert_eq!(secrets.hostless().count(), 0);
        let acme = Tenant::new("acme").unwrap();
        let checked = |name: &str, host| secrets.check(name, &acme, host).is_ok();
        assert!([None, Some("h")].into_iter().all(|host| checked("STOCK", host) && checked("UNSET", host)));
        assert_eq!(
            Secrets::from_iter([("A".to_owned(), "x".to_owned())]).hostless().collect::<Vec<_>>(),
            ["FLOWLINE_SECRET_A"]
        );
    }
}
