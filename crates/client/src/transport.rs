//! One request, one answer: JSON over HTTP/1.1, with or without TLS, on connections that are kept.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::ClientError;
use flowline_api::ProblemDetails;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection is kept for the next request. Servers close theirs sooner or later; this is sooner.
const KEEP: Duration = Duration::from_secs(20);
/// The largest answer that is read: jobs come with their inputs.
const ANSWER_BYTES: usize = 80 << 20;

type Pool = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Whether any server is spoken to by TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encrypted {
    Yes,
    No,
}

/// A request, but for whom it is sent to.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    /// With the query, if there is one.
    pub(crate) path: String,
    /// Its media type and the bytes.
    pub(crate) body: Option<(&'static str, Bytes)>,
}

/// There is no answer.
enum Lost {
    /// Nothing was sent.
    Before(String),
    Since(String),
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    pool: Pool,
    headers: HeaderMap,
}

impl Transport {
    pub(crate) fn new(encrypted: Encrypted) -> Transport {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT));
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls(encrypted));
        let connector = builder.https_or_http().enable_http1().wrap_connector(http);
        let pool = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(KEEP)
            .build(connector);
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, application/problem+json"));
        Transport { pool, headers }
    }

    pub(crate) fn token(&mut self, token: &str) -> Result<(), ClientError> {
        self.header(AUTHORIZATION.as_str(), &format!("Bearer {token}")).map_err(|_| ClientError::Token)
    }

    pub(crate) fn header(&mut self, name: &str, value: &str) -> Result<(), ClientError> {
        let wrong = || ClientError::Header(name.to_owned());
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        self.headers.insert(HeaderName::try_from(name).map_err(|_| wrong())?, value);
        Ok(())
    }

    /// Sends a request to a server and reads the answer, within a time.
    pub(crate) async fn send(
        &self,
        server: &str,
        asked: &ApiRequest,
        within: Duration,
    ) -> Result<Bytes, ClientError> {
        let server = || server.to_owned();
        let uri = format!("{}{}", server(), asked.path);
        let uri: Uri = uri.parse().map_err(|_| ClientError::Address(server()))?;
        let (kind, body) = asked.body.clone().unzip();
        let mut request = Request::new(Full::new(body.unwrap_or_default()));
        *request.method_mut() = asked.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        if let Some(kind) = kind {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        let answer = tokio::time::timeout(within, self.exchange(request)).await;
        let (status, headers, body) = answer
            .map_err(|_| ClientError::Late { server: server(), within })?
            .map_err(|lost| match lost {
                Lost::Before(problem) => ClientError::Unconnected { server: server(), problem },
                Lost::Since(problem) => ClientError::Unreachable { server: server(), problem },
            })?;
        if status.is_success() {
            return Ok(body);
        }
        let problem: ProblemDetails = serde_json::from_slice(&body).unwrap_or_default();
        let seconds = headers.get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
        Err(ClientError::Refused {
            status: status.as_u16(),
            code: or(problem.code, "unknown"),
            detail: or(or(problem.detail, &problem.title), "the server refused"),
            retry_after: seconds.map(Duration::from_secs),
        })
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, HeaderMap, Bytes), Lost> {
        let answer = self.pool.request(request).await.map_err(|error| match error.is_connect() {
            true => Lost::Before(chain(&error)),
            false => Lost::Since(chain(&error)),
        })?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| Lost::Since(chain(&*error)))?;
        Ok((parts.status, parts.headers, body.to_bytes()))
    }
}

/// Trusts what the system trusts; `SSL_CERT_FILE` names other certificates.
fn tls(encrypted: Encrypted) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    if encrypted == Encrypted::Yes {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    // unwrap: ring speaks both versions of TLS that are safe; the build decides that, not the user.
    versions.expect("ring speaks TLS 1.2 and 1.3").with_root_certificates(roots).with_no_client_auth()
}

/// Everything that led to an error, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
