//! Spans on their way to a collector: OTLP over HTTP, in JSON.
//!
//! Written by hand, for one message of one signal over one connection: the OpenTelemetry crates would be dozens more to
//! build. What the collector does not take in time is dropped and counted; nothing waits for it. TLS is left to a collector
//! on the same machine or network, as collectors are usually run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Uri;
use flowline::core::{Status, Time};
use flowline::trace::{End, Span, Spans};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::exposition::Exposition;

/// Spans that wait for the collector; those beyond are dropped.
const WAITING: usize = 20_000;
/// Spans in a request.
const BATCH: usize = 512;
/// How long spans are gathered.
const GATHER: Duration = Duration::from_secs(1);
/// How long a request may take; then its spans are dropped.
const PATIENCE: Duration = Duration::from_secs(5);

/// What becomes of spans.
#[derive(Debug)]
pub struct Export {
    pub spans: Arc<Spans>,
    told: Arc<Told>,
}

#[derive(Debug, Default)]
struct Told {
    exported: AtomicU64,
    failed: AtomicU64,
}

/// The task that sends, to be stopped with its server.
#[derive(Debug)]
pub struct Sender {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Sender {
    /// Sends what is there and ends.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(PATIENCE, self.task).await;
    }
}

/// Where spans are sent: `http://HOST:PORT`, with a path where the collector has one of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    authority: String,
    address: String,
    path: String,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let wrong = || format!("{text:?} is not http://HOST:PORT (http://127.0.0.1:4318)");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        if uri.scheme_str() == Some("https") {
            return Err(
                "https is not spoken to a collector; run one beside this server (http://127.0.0.1:4318) \
                        that sends on over TLS"
                    .to_owned(),
            );
        }
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(wrong());
        }
        let path = match uri.path().trim_end_matches('/') {
            "" => "/v1/traces".to_owned(),
            path if path.ends_with("/v1/traces") => path.to_owned(),
            path => format!("{path}/v1/traces"),
        };
        let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(4318));
        Ok(Endpoint { authority: authority.to_string(), address, path })
    }
}

impl Export {
    /// Starts sending to a collector, on behalf of this instance.
    pub fn start(endpoint: Endpoint, instance: &str) -> (Export, Sender) {
        let (spans, queue) = Spans::new(WAITING);
        let told = Arc::new(Told::default());
        let (stop, stopped) = oneshot::channel();
        let sending = send(endpoint, instance.to_owned(), queue, told.clone(), stopped);
        let sender = Sender { stop, task: tokio::spawn(sending) };
        (Export { spans: Arc::new(spans), told }, sender)
    }

    pub fn write(&self, page: &mut Exposition) {
        page.counter("flowline_spans_exported_total", "Spans that the collector took.", &self.told.exported);
        let dropped = self.spans.dropped() + self.told.failed.load(Ordering::Relaxed);
        page.family(
            "flowline_spans_dropped_total",
            "counter",
            "Spans that found no room or that the collector did not take.",
            &[(&[], dropped)],
        );
    }
}

async fn send(
    endpoint: Endpoint,
    instance: String,
    mut queue: mpsc::Receiver<Span>,
    told: Arc<Told>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut away = false;
    loop {
        let last = tokio::select! {
            () = tokio::time::sleep(GATHER) => false,
            _ = &mut stopped => true,
        };
        while !queue.is_empty() {
            let mut spans = Vec::with_capacity(BATCH);
            queue.recv_many(&mut spans, BATCH).await;
            let taken = tokio::time::timeout(PATIENCE, post(&endpoint, &request(&instance, &spans))).await;
            let failed = match taken {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(why),
                Err(_) => Some(format!("no answer within {}s", PATIENCE.as_secs())),
            };
            let meter = if failed.is_none() { &told.exported } else { &told.failed };
            meter.fetch_add(spans.len() as u64, Ordering::Relaxed);
            match (&failed, away) {
                (Some(why), false) => {
                    tracing::warn!(instanceId = instance, %endpoint, why, "spans are not taken, and dropped");
                }
                (None, true) => tracing::info!(instanceId = instance, %endpoint, "spans are taken again"),
                _ => {}
            }
            // A collector that is away is asked again after a while; the queue bounds what waits for it.
            away = failed.is_some();
            if away {
                break;
            }
        }
        if last {
            return;
        }
    }
}

async fn post(endpoint: &Endpoint, body: &Value) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(&endpoint.address).await.map_err(|error| text(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
    let request = hyper::Request::post(&endpoint.path)
        .header("host", &endpoint.authority)
        .header("content-type", "application/json")
        .header("connection", "close")
        .body(Full::new(Bytes::from(body.to_string())))
        .map_err(|error| text(&error))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| text(&error))?;
        let status = response.status();
        // Read to its end, so that the collector sees a clean close.
        let _ = response.into_body().collect().await;
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    };
    tokio::pin!(connection, answer);
    tokio::select! {
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

/// An `ExportTraceServiceRequest`.
fn request(instance: &str, spans: &[Span]) -> Value {
    let resource = [
        attribute("service.name", "flowline"),
        attribute("service.version", env!("CARGO_PKG_VERSION")),
        attribute("service.instance.id", instance),
    ];
    let spans: Vec<Value> = spans.iter().map(span_json).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "flowline" }, "spans": spans }],
    }] })
}

fn span_json(span: &Span) -> Value {
    let mut attributes = vec![
        attribute("flowline.run.id", span.run.run.as_str()),
        attribute("flowline.flow.name", &span.flow),
        attribute("flowline.tenant", span.run.tenant.as_str()),
    ];
    let name = match &span.attempt {
        None => span.flow.to_string(),
        Some((step, attempt)) => {
            attributes.push(attribute("flowline.step.name", step));
            attributes
                .push(json!({ "key": "flowline.attempt", "value": { "intValue": attempt.to_string() } }));
            format!("{}/{step}", span.flow)
        }
    };
    // Codes of the protocol: 1 is fine, 2 an error.
    let code = match &span.end {
        End::Run(status) => {
            attributes.push(attribute("flowline.status", status.as_str()));
            if *status == Status::Failed { 2 } else { 1 }
        }
        End::Completed => 1,
        End::Failed(code) => {
            attributes.push(attribute("error.type", code.as_deref().unwrap_or("_OTHER")));
            2
        }
    };
    let mut span_json = json!({
        "traceId": span.trace,
        "spanId": span.id,
        "name": name,
        // Internal.
        "kind": 1,
        "startTimeUnixNano": nanos(span.began),
        "endTimeUnixNano": nanos(span.ended.max(span.began)),
        "attributes": attributes,
        "status": { "code": code },
    });
    if let Some(parent) = &span.parent {
        span_json["parentSpanId"] = json!(parent);
    }
    span_json
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// 64-bit numbers are texts in the protocol's JSON.
fn nanos(time: Time) -> String {
    format!("{}000000", time.millis().max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_collector_over_plain_http() {
        let read =
            |text: &str| text.parse::<Endpoint>().map(|endpoint| (endpoint.to_string(), endpoint.address));
        let of = |shown: &str, address: &str| Ok((shown.to_owned(), address.to_owned()));
        assert_eq!(read("http://127.0.0.1:4318"), of("http://127.0.0.1:4318/v1/traces", "127.0.0.1:4318"));
        assert_eq!(read("http://otel/x/"), of("http://otel/x/v1/traces", "otel:4318"));
        assert_eq!(read("http://otel:1/v1/traces"), of("http://otel:1/v1/traces", "otel:1"));
        for wrong in ["", "otel:4318", "https://otel", "http://", "http://user:secret@otel:1", "ftp://otel"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(read("https://otel").unwrap_err().contains("run one beside"));
    }
}
