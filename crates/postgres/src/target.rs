//! A `postgres://` URL, read: where the server is, which schema is ours, how much TLS must prove.
//!
//! What the URL does not say is as for other clients of PostgreSQL. Passwords never leave this type in a message.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use flowline_store::StoreError;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// How long a connection may take to come about: a wrong address is told within this.
const CONNECT: Duration = Duration::from_secs(4);
/// A peer that vanished is noticed after this long without an answer.
const SILENCE: Duration = Duration::from_secs(10);
/// The schema of a URL that names none.
pub const SCHEMA: &str = "flowline";

/// Where a store is.
#[derive(Clone)]
pub(crate) struct ServerTarget {
    pub(crate) config: Config,
    pub(crate) schema: String,
    pub(crate) trust: Trust,
}

/// What TLS must prove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust {
    /// `require`, `prefer`, `disable`: whoever answers. Encrypted at best.
    Anyone,
    /// `verify-full`: a certificate for this host, signed by the system's roots or by those of a file.
    Roots(Option<PathBuf>),
}

impl ServerTarget {
    pub(crate) fn read(url: &str) -> Result<ServerTarget, StoreError> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut schema = SCHEMA.to_owned();
        let (mut mode, mut roots) = (None, None);
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = checked_schema(name)?,
                Some(("sslmode", word)) => mode = Some(word),
                Some(("sslrootcert", path)) => roots = Some(PathBuf::from(decoded(path))),
                _ => others.push(pair),
            }
        }
        let plain = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        let mut config: Config = plain.parse().map_err(|error: tokio_postgres::Error| {
            let why = std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
            invalid(format!(
                "the store URL isn't valid{why}; write postgres://USER:PASSWORD@HOST:PORT/DATABASE"
            ))
        })?;
        let (ssl, trust) = match (mode, roots) {
            (Some("disable"), _) => (SslMode::Disable, Trust::Anyone),
            (Some("require"), None) => (SslMode::Require, Trust::Anyone),
            (Some("verify-full" | "require"), roots) => (SslMode::Require, Trust::Roots(roots)),
            (Some("prefer") | None, None) => (SslMode::Prefer, Trust::Anyone),
            (None, roots) => (SslMode::Require, Trust::Roots(roots)),
            (Some(word), _) => {
                return Err(invalid(format!(
                    "sslmode={word} isn't supported; use disable, prefer, require or verify-full"
                )));
            }
        };
        config.ssl_mode(ssl).application_name(format!("flowline {schema}")).connect_timeout(CONNECT);
        config.keepalives_idle(SILENCE).tcp_user_timeout(SILENCE);
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        if config.get_user().is_none() {
            return Err(invalid("the store URL has no user; write postgres://USER@HOST/DATABASE".to_owned()));
        }
        Ok(ServerTarget { config, schema, trust })
    }

    /// The server and database, without the password.
    pub(crate) fn place(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        format!("{host}:{port}/{}", self.database())
    }

    pub(crate) fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }

    pub(crate) fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or_else(|| self.user())
    }
}

impl fmt::Debug for ServerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerTarget({}, schema {})", self.place(), self.schema)
    }
}

/// A schema's name stands in SQL text, so it is held to what needs no quotes.
fn checked_schema(name: &str) -> Result<String, StoreError> {
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if name.is_empty() || name.len() > 63 || !plain || name.as_bytes()[0].is_ascii_digit() {
        return Err(invalid(format!(
            "schema={name} isn't a valid name; use up to 63 lower-case letters, digits and _, not starting with a digit"
        )));
    }
    Ok(name.to_owned())
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn invalid(text: String) -> StoreError {
    StoreError::Invalid(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_tells_server_schema_and_trust() {
        let target = ServerTarget::read("postgres://me:secret@db.example:5433/flows?schema=team_a&sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem").unwrap();
        assert_eq!((target.place().as_str(), target.schema.as_str()), ("db.example:5433/flows", "team_a"));
        assert_eq!(target.trust, Trust::Roots(Some("/etc/ca.pem".into())));
        assert!(!format!("{target:?}").contains("secret"));
        let plain = ServerTarget::read("postgresql://me@localhost").unwrap();
        assert_eq!(
            (plain.schema.as_str(), plain.trust, plain.config.get_ssl_mode()),
            (SCHEMA, Trust::Anyone, SslMode::Prefer)
        );
    }

    #[test]
    fn what_cannot_be_a_store_is_refused() {
        for bad in [
            "postgres://localhost/x",
            "postgres://me@localhost/x?schema=A%22B",
            "postgres://me@localhost/x?schema=1a",
            "postgres://me@localhost/x?sslmode=maybe",
            "postgres://me@localhost:port/x",
            "postgres://me@localhost/x?nonsense=1",
        ] {
            assert!(matches!(ServerTarget::read(bad), Err(StoreError::Invalid(_))), "{bad}");
        }
    }
}
