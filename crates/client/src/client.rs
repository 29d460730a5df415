//! The client: sends requests to a server, or to one of several that share a store, and retries if that can help.
//!
//! Every request of the worker protocol can be repeated, because the server recognizes what it has already done. So when
//! an answer is lost, the client asks again, if possible another server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, Uri};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::error::ClientError;
use crate::transport::{ApiRequest, Encrypted, Transport};
use flowline_api::work;

/// How long an answer may take beyond what was asked to wait for.
const ANSWER: Duration = Duration::from_secs(15);
const SHORTEST_ANSWER: Duration = Duration::from_secs(1);
/// The first pause before asking again; doubled up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const JSON: &str = "application/json";

/// A Flowline server, as its clients see it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    servers: Arc<[String]>,
    /// The server that answered last.
    at: Arc<AtomicUsize>,
    transport: Transport,
}

impl Client {
    /// A client of the server at this address: `http://HOST:PORT`. Several, separated by commas, are instances on one
    /// store: if one can't be reached, the next is asked.
    pub fn new(servers: &str) -> Result<Client, ClientError> {
        let servers: Vec<String> =
            servers.split(',').map(|server| server.trim().trim_end_matches('/').to_owned()).collect();
        for server in &servers {
            let uri: Option<Uri> = server.parse().ok();
            let scheme = uri.as_ref().and_then(Uri::scheme_str);
            if !matches!(scheme, Some("http" | "https")) || uri.as_ref().and_then(Uri::host).is_none() {
                return Err(ClientError::Address(server.clone()));
            }
        }
        let tls = servers.iter().any(|server| server.starts_with("https:"));
        let encrypted = if tls { Encrypted::Yes } else { Encrypted::No };
        // Not all workers at the first: which one does not matter.
        let at = Arc::new(AtomicUsize::new(fastrand::usize(..servers.len())));
        Ok(Client { servers: servers.into(), at, transport: Transport::new(encrypted) })
    }

    /// Sends this API token with every request.
    pub fn token(mut self, token: &str) -> Result<Client, ClientError> {
        self.transport.token(token)?;
        Ok(self)
    }

    /// Acts for this tenant, on a server that asks for no token.
    pub fn tenant(mut self, tenant: &str) -> Result<Client, ClientError> {
        self.transport.header("flowline-tenant", tenant)?;
        Ok(self)
    }

    /// Sends this header with every request. Debug output of the client doesn't show its value.
    pub fn header(mut self, name: &str, value: &str) -> Result<Client, ClientError> {
        self.transport.header(name, value)?;
        Ok(self)
    }

    /// Sends a request once.
    pub async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
        wait: Duration,
    ) -> Result<A, ClientError> {
        let asked = ApiRequest::new(Method::POST, path, Some((JSON, body(request)?)));
        self.try_once(&asked, wait + ANSWER).await
    }

    /// Sends a GET request, to several servers in turn until one answers.
    pub async fn get<A: DeserializeOwned>(&self, path: &str, wait: Duration) -> Result<A, ClientError> {
        self.request(Method::GET, path, None, wait).await
    }

    /// Sends a DELETE request.
    pub async fn delete<A: DeserializeOwned>(&self, path: &str, wait: Duration) -> Result<A, ClientError> {
        self.request(Method::DELETE, path, None, wait).await
    }

    /// Sends any request; a body comes with its media type. A server that can't be reached is passed over for the
    /// next; if an answer gets lost, only reads are repeated.
    pub async fn request<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<(&'static str, Vec<u8>)>,
        wait: Duration,
    ) -> Result<A, ClientError> {
        let looks = method == Method::GET;
        let body = body.map(|(kind, bytes)| (kind, Bytes::from(bytes)));
        let asked = ApiRequest::new(method, path, body);
        for _ in 1..self.servers.len() {
            match self.try_once(&asked, wait + ANSWER).await {
                Err(ClientError::Unconnected { .. }) => {}
                Err(error) if looks && error.is_transient() => {}
                answer => return answer,
            }
        }
        self.try_once(&asked, wait + ANSWER).await
    }

    /// Sends a request, and repeats it for this long if that can help.
    pub async fn post_for<A: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
        patience: Duration,
    ) -> Result<A, ClientError> {
        let asked = ApiRequest::new(Method::POST, path, Some((JSON, body(request)?)));
        let until = Instant::now() + patience;
        // A server that hangs leaves time to ask another.
        let within = (patience / 3).clamp(SHORTEST_ANSWER, ANSWER);
        let mut pauses = Pauses::default();
        loop {
            let error = match self.try_once(&asked, within).await {
                Err(error) if error.is_transient() => error,
                answer => return answer,
            };
            let pause = pauses.after(&error);
            if Instant::now() + pause > until {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn try_once<A: DeserializeOwned>(
        &self,
        asked: &ApiRequest,
        within: Duration,
    ) -> Result<A, ClientError> {
        let at = self.at.load(Ordering::Relaxed) % self.servers.len();
        let answer = self.transport.send(&self.servers[at], asked, within).await;
        self.pass_over(at, answer.as_ref().err());
        let answer = answer?;
        let answer = if answer.is_empty() { Bytes::from_static(b"null") } else { answer };
        let misread = |error: serde_json::Error| ClientError::Answer {
            server: self.servers[at].clone(),
            problem: error.to_string(),
        };
        serde_json::from_slice(&answer).map_err(misread)
    }

    /// Opens a stream at the server that answered last, whose address comes first. Fails after as many tries as there are
    /// servers.
    pub(crate) async fn open(&self, asked: &ApiRequest) -> Result<(String, Response<Incoming>), ClientError> {
        let mut left = self.servers.len();
        loop {
            let at = self.at.load(Ordering::Relaxed) % self.servers.len();
            let answer = self.transport.open(&self.servers[at], asked, ANSWER).await;
            self.pass_over(at, answer.as_ref().err());
            left -= 1;
            match answer {
                Err(error) if left > 0 && error.is_transient() => {}
                answer => return Ok((self.servers[at].clone(), answer?)),
            }
        }
    }

    /// After a failure that another server may not have, the next request goes to the next server. Only the first to notice
    /// moves on, or many at once would skip some.
    fn pass_over(&self, at: usize, error: Option<&ClientError>) {
        if error.is_some_and(ClientError::is_transient) {
            let next = (at + 1) % self.servers.len();
            let _ = self.at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Asks for work once.
    pub async fn claim(&self, request: &work::ClaimRequest) -> Result<work::ClaimAnswer, ClientError> {
        self.post("/v1/work/claim", request, Duration::from_millis(request.wait_ms)).await
    }

    /// Keeps leases alive, and hears which are gone.
    pub async fn heartbeat(
        &self,
        leases: Vec<String>,
        patience: Duration,
    ) -> Result<work::HeartbeatAnswer, ClientError> {
        self.post_for("/v1/work/heartbeat", &work::HeartbeatRequest { leases }, patience).await
    }

    /// Reports how attempts ended.
    pub async fn complete(
        &self,
        request: &work::CompleteRequest,
        patience: Duration,
    ) -> Result<work::CompleteAnswer, ClientError> {
        self.post_for("/v1/work/complete", request, patience).await
    }

    /// Adds lines to the log of an attempt.
    pub async fn append(
        &self,
        request: &work::AppendRequest,
        patience: Duration,
    ) -> Result<work::AppendAnswer, ClientError> {
        self.post_for("/v1/work/append", request, patience).await
    }

    /// Publishes an event in the middle of an attempt.
    pub async fn emit(
        &self,
        request: &work::EmitRequest,
        patience: Duration,
    ) -> Result<work::EmitAnswer, ClientError> {
        self.post_for("/v1/work/emit", request, patience).await
    }

    /// Gives attempts back.
    pub async fn release(&self, leases: Vec<String>, patience: Duration) -> Result<(), ClientError> {
        self.post_for("/v1/work/release", &work::ReleaseRequest { leases }, patience).await
    }
}

/// The pauses between tries: doubled from [`PAUSE`] to [`LONGEST_PAUSE`], with jitter.
#[derive(Debug)]
pub(crate) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses(PAUSE)
    }
}

impl Pauses {
    /// How long to wait after this error; at least as long as the server asked for.
    pub(crate) fn after(&mut self, error: &ClientError) -> Duration {
        let jittered = self.0.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
        jittered.max(error.retry_after().unwrap_or_default())
    }
}

pub(crate) fn body(request: &impl Serialize) -> Result<Bytes, ClientError> {
    let unfit = |error: serde_json::Error| ClientError::Answer {
        server: "this client".to_owned(),
        problem: error.to_string(),
    };
    serde_json::to_vec(request).map(Bytes::from).map_err(unfit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_checked_before_anything_is_asked() {
        for bad in ["", "localhost:7400", "ftp://a", "http://", "http://a,,http://b"] {
            assert!(matches!(Client::new(bad), Err(ClientError::Address(_))), "{bad:?}");
        }
        for good in ["http://localhost:7400", "https://a.example/", "http://a:1, http://b:2"] {
            assert!(Client::new(good).is_ok(), "{good:?}");
        }
    }
}
