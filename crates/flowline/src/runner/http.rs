//! HTTP steps: one request per attempt, whose response is the step's result.
//!
//! Each attempt opens its own connection, to an address that was resolved and checked for it. Redirects aren't followed
//! and proxies aren't used. Requests are HTTP/1.1. What a response means is in `answer`, which addresses are allowed in
//! [`address`], signatures in `sign`.

pub mod address;
mod answer;
mod connect;
mod exchange;
mod sign;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flowline_core::definition::{HttpRequest, Runner as Run, StepDefinition};
use flowline_core::limits::Limit;
use flowline_core::request::Rendered;
use flowline_core::time::format_duration;
use flowline_core::{Json, Tenant, ids};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Uri};

use super::{Runner, StepFuture};
use crate::step::{Step, StepError, unrendered};
use answer::HttpOutcome;
use connect::{Connector, HttpTarget};

pub use address::Allow;
pub use sign::Secrets;

/// How an engine runs `http` steps.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Which addresses may be called besides public ones.
    pub allow: Allow,
    /// What requests are signed with, by name.
    pub secrets: Secrets,
    /// Where this engine's callbacks are reached from outside (`https://flows.example`); without it a step with
    /// `callback: true` fails.
    pub callbacks: Option<String>,
    /// How long a response may take if the step has no `timeout`, or waits for its callback afterwards.
    pub patience: Duration,
}

impl Default for HttpConfig {
    fn default() -> HttpConfig {
        HttpConfig {
            allow: Allow::default(),
            secrets: Secrets::default(),
            callbacks: None,
            patience: Duration::from_secs(30),
        }
    }
}

/// Runs `http` steps.
#[derive(Debug)]
pub struct Http(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connector: Connector,
    secrets: Secrets,
    callbacks: Option<String>,
    patience: Duration,
}

impl Http {
    pub fn new(config: HttpConfig) -> Http {
        let HttpConfig { allow, secrets, callbacks, patience } = config;
        let callbacks = callbacks.map(|base| base.trim_end_matches('/').to_owned());
        Http(Arc::new(Shared { connector: Connector::new(allow), secrets, callbacks, patience }))
    }
}

impl Runner for Http {
    fn run(&self, step: Step, input: Json) -> StepFuture {
        let shared = self.0.clone();
        Box::pin(async move { shared.attempt(step, input).await })
    }

    fn check(&self, tenant: &Tenant, step: &StepDefinition) -> Result<(), StepError> {
        let Run::Http(HttpRequest { url, secret: Some(secret), .. }) = &step.runner else { return Ok(()) };
        self.0.secrets.check(secret, tenant, fixed_host(url))
    }
}

/// The host of a URL, unless only a run knows it.
fn fixed_host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let host = match host.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((host, port)) if !port.contains(']') => host,
        _ => host,
    };
    (!authority.contains("${")).then_some(host)
}

impl Shared {
    async fn attempt(&self, step: Step, input: Json) -> Result<Json, StepError> {
        let plan = step.live.attempt.plan.clone();
        let definition = plan.step_definition(step.live.attempt.step);
        let rendered = step.rendered(&input, |planned, given, budget| {
            planned.request.as_ref().map(|template| template.render(given, budget))
        });
        let (Run::Http(request), Some(rendered)) = (&definition.runner, rendered.await) else {
            return Err(StepError::fatal("this step has no HTTP request"));
        };
        let rendered = rendered.map_err(unrendered)?;
        drop(input);
        let target = HttpTarget::of(&rendered.url)?;
        let message = self.message(&step, request, rendered, &target.uri).await?;
        if request.callback {
            // The outcome may come from elsewhere before this attempt has said that it began.
            step.live.flush().await?;
        }
        let limit = match definition.timeout {
            // The whole attempt is timed already.
            Some(_) if !request.callback => None,
            _ => Some(self.patience),
        };
        let payload = step.live.limits.payload();
        let asked = self.ask(&target, message, request, payload);
        let answer = match limit {
            None => asked.await?,
            Some(limit) => tokio::time::timeout(limit, asked).await.map_err(|_| {
                let text = format!("{target} didn't respond within {}", format_duration(limit));
                StepError::new(text).code("timeout")
            })??,
        };
        match answer::judge(&answer, &target, request, payload)? {
            HttpOutcome::Done(result) => Ok(result),
            // Whoever brings the outcome takes the lease with it, which ends this attempt; or its time is up.
            HttpOutcome::Later => std::future::pending().await,
        }
    }

    async fn ask(
        &self,
        target: &HttpTarget,
        message: Request<Full<Bytes>>,
        request: &HttpRequest,
        limit: Limit,
    ) -> Result<exchange::StepResponse, StepError> {
        let stream = self.connector.connect(target).await?;
        exchange::exchange(stream, message, target, request, limit).await
    }

    async fn message(
        &self,
        step: &Step,
        request: &HttpRequest,
        rendered: Rendered,
        uri: &Uri,
    ) -> Result<Request<Full<Bytes>>, StepError> {
        let body = rendered.body.unwrap_or_default();
        let mut headers = Headers(HeaderMap::new());
        headers.put("user-agent", concat!("flowline/", env!("CARGO_PKG_VERSION")))?;
        headers.put("accept", "application/json, */*;q=0.5")?;
        headers.put("idempotency-key", &step.idempotency_key())?;
        if rendered.json && !body.is_empty() {
            headers.put("content-type", "application/json")?;
        }
        for (name, value) in &rendered.headers {
            headers.put(name, value)?;
        }
        headers.put("host", uri.authority().map_or("", |authority| authority.as_str()))?;
        // One request a connection: whoever answers need not keep it open.
        headers.put("connection", "close")?;
        headers.put("traceparent", &step.traceparent())?;
        headers.put("flowline-run-id", step.run_id().as_str())?;
        headers.put("flowline-step", step.name())?;
        headers.put("flowline-attempt", &step.attempt().to_string())?;
        if request.has_body() {
            headers.put("content-length", &body.len().to_string())?;
        }
        if request.callback {
            headers.put("flowline-callback-url", &self.callback_url(step).await?)?;
        }
        if let Some(name) = &request.secret {
            // The same for every attempt: whoever receives it twice knows that it is one message.
            let id = format!("msg_{}", &ids::digest(step.idempotency_key().as_bytes())[..32]);
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
            headers.put(
                "webhook-signature",
                &self.secrets.sign(
                    name,
                    (step.tenant(), uri.host().unwrap_or_default()),
                    (&id, now),
                    body.as_bytes(),
                )?,
            )?;
            headers.put("webhook-id", &id)?;
            headers.put("webhook-timestamp", &now.to_string())?;
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let message = Request::builder().method(request.method.as_str()).uri(path);
        let mut message = message
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| unfit(&format!("the request: {error}")))?;
        *message.headers_mut() = headers.0;
        Ok(message)
    }

    async fn callback_url(&self, step: &Step) -> Result<String, StepError> {
        let Some(base) = &self.callbacks else {
            let text = "the step has `callback: true`, but this engine has no URL for callbacks; use an \
                        engine that has one (HttpConfig::callbacks), or remove `callback`";
            return Err(StepError::fatal(text).code("no_callback_url"));
        };
        let reference = step.live.lease_ref().await.map_err(StepError::new)?;
        Ok(format!("{base}/v1/callbacks/{reference}"))
    }
}

struct Headers(HeaderMap);

impl Headers {
    /// Sets a header, in place of what was set before.
    fn put(&mut self, name: &str, value: &str) -> Result<(), StepError> {
        let known = HeaderName::from_bytes(name.as_bytes());
        let known = known.map_err(|_| unfit(&format!("{name:?} isn't a valid header name")))?;
        let value = HeaderValue::from_bytes(value.as_bytes());
        let value =
            value.map_err(|_| unfit(&format!("header {name:?} has a character that HTTP doesn't allow")))?;
        self.0.insert(known, value);
        Ok(())
    }
}

fn unfit(what: &str) -> StepError {
    StepError::fatal(format!("can't send the request: {what}")).code("template")
}
