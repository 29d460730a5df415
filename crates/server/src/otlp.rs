//! Exports spans to a collector: OTLP over HTTP, in JSON.
//!
//! Written by hand, since it's one message of one signal, and the OpenTelemetry crates are dozens. Spans that the collector
//! doesn't accept in time are dropped and counted; nothing waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use flowline::core::{Status, Time};
use flowline::trace::{Span, SpanEnd, Spans};
use flowline_client::{Client, ClientError};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::exposition::Exposition;

/// Spans that wait for the collector; more are dropped.
const WAITING: usize = 20_000;
/// Spans in a request.
const BATCH: usize = 512;
/// How long to collect spans for a request.
const GATHER: Duration = Duration::from_secs(1);
/// How long a request may take; then its spans are dropped.
const PATIENCE: Duration = Duration::from_secs(5);

/// What happened to spans.
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
pub struct SpanSender {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl SpanSender {
    /// Sends what is there and ends.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(PATIENCE, self.task).await;
    }
}

/// Where spans are sent: `http://HOST:PORT` or `https://HOST`, with a path where the collector has one of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Up to the path.
    server: String,
    path: String,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.server, self.path)
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let wrong =
            || format!("{text:?} isn't http://HOST:PORT or https://HOST:PORT (http://127.0.0.1:4318)");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority = uri.authority().ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            return Err(format!("the URL contains a user name; send credentials with {HEADERS}"));
        }
        let server = match (uri.scheme_str(), authority.port_u16()) {
            // Where collectors listen.
            (Some("http"), None) => format!("http://{authority}:4318"),
            (Some(scheme @ ("http" | "https")), _) => format!("{scheme}://{authority}"),
            _ => return Err(wrong()),
        };
        if authority.host().is_empty() {
            return Err(wrong());
        }
        let path = match uri.path().trim_end_matches('/') {
            "" => "/v1/traces".to_owned(),
            path if path.ends_with("/v1/traces") => path.to_owned(),
            path => format!("{path}/v1/traces"),
        };
        Ok(Endpoint { server, path })
    }
}

/// The setting that [`Headers`] are.
const HEADERS: &str = "otlp-headers";

/// What a collector wants to see with every request, a key most of the time: `NAME=VALUE,NAME=VALUE`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

/// Values are secrets.
impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl std::str::FromStr for Headers {
    type Err = String;

    fn from_str(text: &str) -> Result<Headers, String> {
        // Whatever is wrong, the value is not repeated.
        let one = |(at, part): (usize, &str)| {
            let (name, value) = part.split_once('=').unwrap_or_default();
            let (name, value) = (name.trim(), value.trim());
            let fits = HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok();
            let wrong = || format!("part {} isn't NAME=VALUE (x-api-key=KEY,x-team=flows)", at + 1);
            fits.then(|| (name.to_owned(), value.to_owned())).ok_or_else(wrong)
        };
        let parts = text.split(',').filter(|part| !part.trim().is_empty()).enumerate();
        parts.map(one).collect::<Result<_, _>>().map(Headers)
    }
}

impl Export {
    /// Starts sending to a collector, on behalf of this instance.
    pub fn start(
        endpoint: Endpoint,
        headers: &Headers,
        instance: &str,
    ) -> Result<(Export, SpanSender), ClientError> {
        let client = Client::new(&endpoint.server)?;
        let client = headers.0.iter().try_fold(client, |client, (name, value)| client.header(name, value))?;
        let (spans, queue) = Spans::new(WAITING);
        let told = Arc::new(Told::default());
        let (stop, stopped) = oneshot::channel();
        let sending = send(client, endpoint, instance.to_owned(), queue, told.clone(), stopped);
        let sender = SpanSender { stop, task: tokio::spawn(sending) };
        Ok((Export { spans: Arc::new(spans), told }, sender))
    }

    pub fn write(&self, page: &mut Exposition) {
        page.counter(
            "flowline_spans_exported_total",
            "Spans that the collector accepted.",
            &self.told.exported,
        );
        let dropped = self.spans.dropped() + self.told.failed.load(Ordering::Relaxed);
        page.family(
            "flowline_spans_dropped_total",
            "counter",
            "Spans dropped because the buffer was full or the collector didn't accept them.",
            &[(&[], dropped)],
        );
    }
}

async fn send(
    client: Client,
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
            let body = request(&instance, &spans);
            let post = client.post::<IgnoredAny>(&endpoint.path, &body, Duration::ZERO);
            let failed = match tokio::time::timeout(PATIENCE, post).await {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no response within {}s", PATIENCE.as_secs())),
            };
            let meter = if failed.is_none() { &told.exported } else { &told.failed };
            meter.fetch_add(spans.len() as u64, Ordering::Relaxed);
            match (&failed, away) {
                (Some(why), false) => {
                    tracing::warn!(instanceId = instance, %endpoint, why, "the collector doesn't accept spans; dropping them");
                }
                (None, true) => {
                    tracing::info!(instanceId = instance, %endpoint, "the collector accepts spans again")
                }
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
        SpanEnd::Run(status) => {
            attributes.push(attribute("flowline.status", status.as_str()));
            if *status == Status::Failed { 2 } else { 1 }
        }
        SpanEnd::Completed => 1,
        SpanEnd::Failed(code) => {
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
    fn an_endpoint_is_a_collector_with_or_without_tls() {
        let read = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.to_string());
        for (text, shown) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://otel/x/", "http://otel:4318/x/v1/traces"),
            ("http://otel:1/v1/traces", "http://otel:1/v1/traces"),
            ("https://otel.example/otlp", "https://otel.example/otlp/v1/traces"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(shown));
        }
        for wrong in ["", "otel:4318", "http://", "http://user:secret@otel:1", "ftp://otel"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(!read("http://user:secret@otel:1").unwrap_err().contains("secret"));
    }

    #[test]
    fn headers_are_named_and_their_values_kept_secret() {
        let headers: Headers = "x-api-key=se=cret, x-team = flows".parse().unwrap();
        assert_eq!(headers.0[0], ("x-api-key".to_owned(), "se=cret".to_owned()));
        assert_eq!(format!("{headers:?}"), r#"["x-api-key", "x-team"]"#);
        assert_eq!("".parse::<Headers>(), Ok(Headers::default()));
        for wrong in ["secret", "x y=secret", "x=sec\nret", "=secret"] {
            let refused = wrong.parse::<Headers>().unwrap_err();
            assert!(refused.contains("part 1") && !refused.contains("sec"), "{refused}");
        }
    }
}
