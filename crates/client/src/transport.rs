//! Requests and their answers over HTTP/1.1, with or without TLS, on connections that are reused.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::ClientError;
use flowline_api::ProblemDetails;
use flowline_types::error::with_causes;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection is kept for the next request. Servers close theirs sooner or later; this is sooner.
const KEEP: Duration = Duration::from_secs(20);
/// The largest answer that is read: jobs come with their inputs.
pub(crate) const ANSWER_BYTES: usize = 80 << 20;

type Pool = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// Whether any server is spoken to by TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encrypted {
    Yes,
    No,
}

/// A request to any server.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    /// With the query, if there is one.
    pub(crate) path: String,
    /// Its media type and the bytes.
    pub(crate) body: Option<(&'static str, Bytes)>,
    /// Headers of this request, besides those of every request.
    pub(crate) headers: HeaderMap,
}

impl ApiRequest {
    pub(crate) fn new(method: Method, path: &str, body: Option<(&'static str, Bytes)>) -> ApiRequest {
        ApiRequest { method, path: path.to_owned(), body, headers: HeaderMap::new() }
    }
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

    /// Sends a request to a server and reads the whole answer, within a time.
    pub(crate) async fn send(
        &self,
        server: &str,
        asked: &ApiRequest,
        within: Duration,
    ) -> Result<Bytes, ClientError> {
        let answer = async {
            let answer = self.exchange(server, asked).await?;
            whole(server, answer.into_body()).await
        };
        let late = |_| ClientError::Late { server: server.to_owned(), within };
        tokio::time::timeout(within, answer).await.map_err(late)?
    }

    /// Sends a request to a server and waits for the head of the answer, within a time. The body is the caller's to read.
    pub(crate) async fn open(
        &self,
        server: &str,
        asked: &ApiRequest,
        within: Duration,
    ) -> Result<Response<Incoming>, ClientError> {
        let late = |_| ClientError::Late { server: server.to_owned(), within };
        tokio::time::timeout(within, self.exchange(server, asked)).await.map_err(late)?
    }

    /// Fails unless the server answers with a success.
    async fn exchange(&self, server: &str, asked: &ApiRequest) -> Result<Response<Incoming>, ClientError> {
        let uri = format!("{server}{}", asked.path);
        let uri: Uri = uri.parse().map_err(|_| ClientError::Address(server.to_owned()))?;
        let (kind, body) = asked.body.clone().unzip();
        let mut request = Request::new(Full::new(body.unwrap_or_default()));
        *request.method_mut() = asked.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().extend(asked.headers.clone());
        if let Some(kind) = kind {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        let answer = self.pool.request(request).await.map_err(|error| match error.is_connect() {
            true => ClientError::Unconnected { server: server.to_owned(), problem: with_causes(&error) },
            false => ClientError::Unreachable { server: server.to_owned(), problem: with_causes(&error) },
        })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let seconds = answer.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
        let body = whole(server, answer.into_body()).await?;
        let problem: ProblemDetails = serde_json::from_slice(&body).unwrap_or_default();
        let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
        Err(ClientError::Refused {
            status: status.as_u16(),
            code: or(problem.code, "unknown"),
            detail: or(or(problem.detail, &problem.title), "the server refused"),
            retry_after: seconds.map(Duration::from_secs),
        })
    }
}

async fn whole(server: &str, body: Incoming) -> Result<Bytes, ClientError> {
    let body = Limited::new(body, ANSWER_BYTES).collect().await;
    let broken = |problem| ClientError::Unreachable { server: server.to_owned(), problem };
    Ok(body.map_err(|error| broken(with_causes(&*error)))?.to_bytes())
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
