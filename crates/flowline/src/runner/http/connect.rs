//! Opens a connection to a URL: resolves the name, checks the addresses, connects to one of them, adds TLS.
//!
//! It connects to the address that was checked; the name isn't resolved again.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flowline_core::time::format_duration;
use hyper::Uri;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::Allow;
use crate::step::StepError;

/// For the look-up, the connection and TLS together.
const CONNECT: Duration = Duration::from_secs(5);
/// Addresses of a name that are tried, each with its share of the time.
const TRIED: usize = 4;

/// A connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Where a request goes.
#[derive(Debug)]
pub(super) struct HttpTarget {
    pub(super) uri: Uri,
    host: String,
    port: u16,
    tls: bool,
}

/// As errors name it: without the query, which may hold what is nobody's business.
impl fmt::Display for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        write!(f, "{scheme}://{authority}{}", self.uri.path())
    }
}

impl HttpTarget {
    pub(super) fn of(url: &str) -> Result<HttpTarget, StepError> {
        let wrong = |why: &str| StepError::fatal(format!("the URL of the request {why}")).code("bad_url");
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("can't be read: {error}")))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("doesn't start with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("contains a user name; send credentials in a header"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong("names no host"));
        }
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Ok(HttpTarget { host, port, tls, uri })
    }
}

pub(super) struct Connector {
    allow: Allow,
    /// Made with the first request that needs it: the machine's certificates have to be read.
    tls: OnceLock<Arc<ClientConfig>>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("allow", &self.allow).finish_non_exhaustive()
    }
}

impl Connector {
    pub(super) fn new(allow: Allow) -> Connector {
        Connector { allow, tls: OnceLock::new() }
    }

    pub(super) async fn connect(&self, target: &HttpTarget) -> Result<Box<dyn Stream>, StepError> {
        let connected = tokio::time::timeout(CONNECT, self.open(target)).await;
        connected.unwrap_or_else(|_| {
            Err(failed(target, &format!("it took longer than {}", format_duration(CONNECT))))
        })
    }

    async fn open(&self, target: &HttpTarget) -> Result<Box<dyn Stream>, StepError> {
        let addresses = self.permitted(target).await?;
        let tcp = dial(target, &addresses).await?;
        // Requests are small and each is answered before the next.
        let _ = tcp.set_nodelay(true);
        if !target.tls {
            return Ok(Box::new(tcp));
        }
        let name = ServerName::try_from(target.host.clone())
            .map_err(|_| failed(target, "this isn't a name that a TLS certificate can have"))?;
        let tls = TlsConnector::from(self.tls(target)?).connect(name, tcp).await;
        Ok(Box::new(tls.map_err(|error| failed(target, &format!("TLS: {error}")))?))
    }

    /// The addresses behind the target's name that may be called.
    async fn permitted(&self, target: &HttpTarget) -> Result<Vec<SocketAddr>, StepError> {
        let HttpTarget { host, port, .. } = target;
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, *port)],
            Err(_) => tokio::net::lookup_host((host.as_str(), *port))
                .await
                .map_err(|error| failed(target, &error.to_string()))?
                .collect(),
        };
        if found.is_empty() {
            return Err(failed(target, "the host name has no address"));
        }
        let permitted = |address: &SocketAddr| self.allow.permits(host, address.ip());
        let permitted: Vec<SocketAddr> = found.into_iter().filter(permitted).take(TRIED).collect();
        if permitted.is_empty() {
            // Not which address: that would map the network behind this server, name by name.
            let text = format!(
                "{target} doesn't have a public address; allow it with the setting `http-allow` (now: {})",
                self.allow
            );
            return Err(StepError::fatal(text).code("address_refused"));
        }
        Ok(permitted)
    }

    fn tls(&self, target: &HttpTarget) -> Result<Arc<ClientConfig>, StepError> {
        if let Some(config) = self.tls.get() {
            return Ok(config.clone());
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = trusting(roots).map_err(|error| failed(target, &format!("TLS: {error}")))?;
        Ok(self.tls.get_or_init(|| config).clone())
    }
}

fn trusting(roots: RootCertStore) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// Connects to the first address that answers.
async fn dial(target: &HttpTarget, addresses: &[SocketAddr]) -> Result<TcpStream, StepError> {
    let share = CONNECT / addresses.len().max(1) as u32;
    let mut why = String::new();
    for address in addresses {
        why = match tokio::time::timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => format!("{error} ({address})"),
            Err(_) => format!("no answer within {} ({address})", format_duration(share)),
        };
    }
    Err(failed(target, &why))
}

fn failed(target: &HttpTarget, why: &str) -> StepError {
    StepError::new(format!("can't connect to {target}: {why}")).code("connect")
}

#[cfg(test)]
mod tests;
