//! Everything that the API does, a method each. Requests and answers are the types of [`crate::api`].
//!
//! ```no_run
//! use flowline_client::Client;
//! use flowline_client::api::runs::RunStart;
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:7400")?;
//! let start = RunStart { idempotency_key: Some("order-42".to_owned()), ..RunStart::default() };
//! let started = client.start("fulfil-order", &start, None).await?;
//! let ended = client.result(started.run_id.as_str(), Some(Duration::from_secs(30))).await?;
//! println!("{}: {:?}", ended.status, ended.result);
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use flowline_api::access::{AuditList, MadeToken, NewToken, RotateToken, TokenList, Whoami};
use flowline_api::events::{EventSend, ReceiptList, ReceiptView, SentView, StartOrSend};
use flowline_api::explain::{Explanation, VerifyReport};
use flowline_api::flows::{Activate, FlowChanged, FlowDefinition, FlowList, Registered, Validated};
use flowline_api::queues::{DeadLetters, QueueChanged, QueueList, Redrive, Redriven, WorkerList};
use flowline_api::runs::{
    BatchStart, BatchStarted, BulkDone, BulkRequest, CancelRun, CompleteRun, EventList, FailRun, Retried,
    RetryRun, RunChanged, RunList, RunResult, RunStart, RunView, Started,
};
use flowline_api::state::{RunValues, StateChanged, StateEntry, StateList, StateScopes, StateWrite};
use flowline_api::stats::{InstanceHealth, Stats};
use flowline_types::graph::Graph;
use flowline_types::time::format_duration;
use hyper::Method;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;

use crate::client::Client;
use crate::error::ClientError;

/// How long an answer may take beyond what was asked to wait for: as long as a server works on it.
const PATIENCE: Duration = Duration::from_secs(90);

/// Parameters of a query by name, as docs/openapi.json lists them.
pub type Parameters<'a> = &'a [(&'a str, &'a str)];

/// A part of a path or a query, whatever is in it.
pub(crate) fn part(text: &str) -> String {
    let mut part = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => part.push(char::from(byte)),
            other => part.push_str(&format!("%{other:02X}")),
        }
    }
    part
}

pub(crate) fn with_query(path: &str, parameters: Parameters<'_>) -> String {
    let pairs: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{}={}", part(name), part(value))).collect();
    if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
}

/// Starts and looks.
impl Client {
    /// Starts a run. With `wait`, answers when it has ended, or after that time with the run as it is then.
    pub async fn start(
        &self,
        flow: &str,
        start: &RunStart,
        wait: Option<Duration>,
    ) -> Result<Started, ClientError> {
        self.send_json(Method::POST, &waiting(&format!("/v1/flows/{}/runs", part(flow)), wait), start).await
    }

    /// Starts many runs; each is refused or started on its own.
    pub async fn start_batch(&self, batch: &BatchStart) -> Result<BatchStarted, ClientError> {
        self.send_json(Method::POST, "/v1/runs/batch", batch).await
    }

    /// Lists runs, newest first: `flow`, `status`, `state`, `label`, `since`, `until`, `cursor`, `limit`, `total`.
    pub async fn runs(&self, parameters: Parameters<'_>) -> Result<RunList, ClientError> {
        self.find("/v1/runs", parameters).await
    }

    pub async fn show(&self, run: &str) -> Result<RunView, ClientError> {
        self.find(&of_run(run, ""), &[]).await
    }

    /// Reads a page of a run's log: `after`, `type`, `step`, `attempt`, `limit`.
    pub async fn events(&self, run: &str, parameters: Parameters<'_>) -> Result<EventList, ClientError> {
        self.find(&of_run(run, "/events"), parameters).await
    }

    /// How a run ended, if it has. With `wait`, waits for that.
    pub async fn result(&self, run: &str, wait: Option<Duration>) -> Result<RunResult, ClientError> {
        self.find(&waiting(&of_run(run, "/result"), wait), &[]).await
    }

    pub async fn explain(&self, run: &str) -> Result<Explanation, ClientError> {
        self.find(&of_run(run, "/explain"), &[]).await
    }

    /// Checks a run against its log.
    pub async fn verify(&self, run: &str) -> Result<VerifyReport, ClientError> {
        self.find(&of_run(run, "/verify"), &[]).await
    }

    /// Checks all runs of the tenant against their logs.
    pub async fn verify_all(&self) -> Result<VerifyReport, ClientError> {
        self.send_json(Method::POST, "/v1/verify", &json!({})).await
    }

    /// Counts and durations: `flow`, `since`, `bucket`, `steps`.
    pub async fn stats(&self, parameters: Parameters<'_>) -> Result<Stats, ClientError> {
        self.find("/v1/stats", parameters).await
    }

    /// Whether the server can reach its store.
    pub async fn health(&self) -> Result<InstanceHealth, ClientError> {
        self.find("/readyz", &[]).await
    }

    /// Remote workers that were seen lately: `limit`, `cursor`.
    pub async fn workers(&self, parameters: Parameters<'_>) -> Result<WorkerList, ClientError> {
        self.find("/v1/workers", parameters).await
    }
}

/// External events.
impl Client {
    /// Sends an event to a run. With `wait`, answers when a machine has handled it.
    pub async fn send_event(
        &self,
        run: &str,
        event: &EventSend,
        wait: Option<Duration>,
    ) -> Result<SentView, ClientError> {
        self.send_json(Method::POST, &waiting(&of_run(run, "/events"), wait), event).await
    }

    /// Sends an event to the run with a business key, which is started if needed.
    pub async fn start_or_send(
        &self,
        flow: &str,
        event: &StartOrSend,
        wait: Option<Duration>,
    ) -> Result<SentView, ClientError> {
        self.send_json(Method::POST, &waiting(&format!("/v1/flows/{}/events", part(flow)), wait), event).await
    }

    /// Receipts of all machines, newest first: `status`, `worker`, `cursor`, `limit`.
    pub async fn receipts(&self, parameters: Parameters<'_>) -> Result<ReceiptList, ClientError> {
        self.find("/v1/receipts", parameters).await
    }

    /// The same of one run.
    pub async fn receipts_of(
        &self,
        run: &str,
        parameters: Parameters<'_>,
    ) -> Result<ReceiptList, ClientError> {
        self.find(&of_run(run, "/receipts"), parameters).await
    }

    /// What happened to an event. With `wait`, answers when the machine has handled it.
    pub async fn receipt(
        &self,
        run: &str,
        event: &str,
        wait: Option<Duration>,
    ) -> Result<ReceiptView, ClientError> {
        self.find(&waiting(&of_run(run, &format!("/receipts/{}", part(event))), wait), &[]).await
    }
}

/// Steering runs.
impl Client {
    pub async fn cancel(&self, run: &str, cancel: &CancelRun) -> Result<RunChanged, ClientError> {
        self.send_json(Method::POST, &of_run(run, "/cancel"), cancel).await
    }

    pub async fn pause(&self, run: &str) -> Result<RunChanged, ClientError> {
        self.send_json(Method::POST, &of_run(run, "/pause"), &json!({})).await
    }

    pub async fn resume(&self, run: &str) -> Result<RunChanged, ClientError> {
        self.send_json(Method::POST, &of_run(run, "/resume"), &json!({})).await
    }

    /// Ends a run as completed.
    pub async fn complete_run(&self, run: &str, complete: &CompleteRun) -> Result<RunChanged, ClientError> {
        self.send_json(Method::POST, &of_run(run, "/complete"), complete).await
    }

    /// Ends a run as failed.
    pub async fn fail_run(&self, run: &str, fail: &FailRun) -> Result<RunChanged, ClientError> {
        self.send_json(Method::POST, &of_run(run, "/fail"), fail).await
    }

    /// Retries an ended run as a new one.
    pub async fn retry(&self, run: &str, retry: &RetryRun) -> Result<Retried, ClientError> {
        self.send_json(Method::POST, &of_run(run, "/retry"), retry).await
    }

    /// Deletes an ended run with its events, state and receipts.
    pub async fn delete_run(&self, run: &str) -> Result<(), ClientError> {
        self.delete::<IgnoredAny>(&of_run(run, ""), PATIENCE).await.map(drop)
    }

    /// Does the same to many runs.
    pub async fn bulk(&self, request: &BulkRequest) -> Result<BulkDone, ClientError> {
        self.send_json(Method::POST, "/v1/runs/bulk", request).await
    }
}

/// Definitions.
impl Client {
    /// Registers a definition: its text, and its media type, such as `application/yaml`.
    pub async fn register(&self, kind: &'static str, text: &str) -> Result<Registered, ClientError> {
        self.request(Method::POST, "/v1/flows", Some((kind, text.into())), PATIENCE).await
    }

    /// Checks a definition without registering it.
    pub async fn validate(&self, kind: &'static str, text: &str) -> Result<Validated, ClientError> {
        self.request(Method::POST, "/v1/flows/validate", Some((kind, text.into())), PATIENCE).await
    }

    /// Lists flows; with `versions=true`, every version.
    pub async fn flows(&self, parameters: Parameters<'_>) -> Result<FlowList, ClientError> {
        self.find("/v1/flows", parameters).await
    }

    /// A flow's definition: the latest, or that of `version`.
    pub async fn flow(&self, flow: &str, parameters: Parameters<'_>) -> Result<FlowDefinition, ClientError> {
        self.find(&format!("/v1/flows/{}", part(flow)), parameters).await
    }

    pub async fn versions(&self, flow: &str) -> Result<FlowList, ClientError> {
        self.find(&format!("/v1/flows/{}/versions", part(flow)), &[]).await
    }

    pub async fn graph(&self, flow: &str, parameters: Parameters<'_>) -> Result<Graph, ClientError> {
        self.find(&format!("/v1/flows/{}/graph", part(flow)), parameters).await
    }

    /// Chooses the version that new runs use.
    pub async fn activate(&self, flow: &str, version: &str) -> Result<FlowChanged, ClientError> {
        let body = Activate { version: version.to_owned() };
        self.send_json(Method::POST, &format!("/v1/flows/{}/activate", part(flow)), &body).await
    }

    /// Retires a flow: no new runs start.
    pub async fn retire(&self, flow: &str) -> Result<FlowChanged, ClientError> {
        self.send_json(Method::POST, &format!("/v1/flows/{}/retire", part(flow)), &json!({})).await
    }
}

/// Queues and key-value state.
impl Client {
    pub async fn queues(&self) -> Result<QueueList, ClientError> {
        self.find("/v1/queues", &[]).await
    }

    pub async fn queue(&self, queue: &str) -> Result<QueueList, ClientError> {
        self.find(&format!("/v1/queues/{}", part(queue)), &[]).await
    }

    pub async fn pause_queue(&self, queue: &str) -> Result<QueueChanged, ClientError> {
        self.send_json(Method::POST, &format!("/v1/queues/{}/pause", part(queue)), &json!({})).await
    }

    pub async fn resume_queue(&self, queue: &str) -> Result<QueueChanged, ClientError> {
        self.send_json(Method::POST, &format!("/v1/queues/{}/resume", part(queue)), &json!({})).await
    }

    /// Failed runs of a queue that haven't been redriven: `limit`, `cursor`.
    pub async fn dead_letters(
        &self,
        queue: &str,
        parameters: Parameters<'_>,
    ) -> Result<DeadLetters, ClientError> {
        self.find(&format!("/v1/queues/{}/dead", part(queue)), parameters).await
    }

    pub async fn redrive(&self, queue: &str, redrive: &Redrive) -> Result<Redriven, ClientError> {
        self.send_json(Method::POST, &format!("/v1/queues/{}/redrive", part(queue)), redrive).await
    }

    /// Key-value state as a run sees it: `scope`.
    pub async fn run_state(&self, run: &str, parameters: Parameters<'_>) -> Result<RunValues, ClientError> {
        self.find(&of_run(run, "/state"), parameters).await
    }

    /// Scopes of key-value state that have values.
    pub async fn scopes(&self) -> Result<StateScopes, ClientError> {
        self.find("/v1/state", &[]).await
    }

    /// Keys and values of a scope: `limit`, `cursor`.
    pub async fn values(&self, scope: &str, parameters: Parameters<'_>) -> Result<StateList, ClientError> {
        self.find(&format!("/v1/state/{}", part(scope)), parameters).await
    }

    pub async fn value(&self, scope: &str, key: &str) -> Result<StateEntry, ClientError> {
        self.find(&of_key(scope, key), &[]).await
    }

    pub async fn set_value(
        &self,
        scope: &str,
        key: &str,
        write: &StateWrite,
    ) -> Result<StateChanged, ClientError> {
        self.send_json(Method::PUT, &of_key(scope, key), write).await
    }

    pub async fn delete_value(&self, scope: &str, key: &str) -> Result<StateChanged, ClientError> {
        self.delete(&of_key(scope, key), PATIENCE).await
    }
}

/// Tokens and the audit log.
impl Client {
    pub async fn create_token(&self, new: &NewToken) -> Result<MadeToken, ClientError> {
        self.send_json(Method::POST, "/v1/tokens", new).await
    }

    pub async fn tokens(&self) -> Result<TokenList, ClientError> {
        self.find("/v1/tokens", &[]).await
    }

    /// Replaces a token; the old one stays valid for a while.
    pub async fn rotate_token(&self, id: &str, rotate: &RotateToken) -> Result<MadeToken, ClientError> {
        self.send_json(Method::POST, &format!("/v1/tokens/{}/rotate", part(id)), rotate).await
    }

    pub async fn revoke_token(&self, id: &str) -> Result<(), ClientError> {
        self.delete::<IgnoredAny>(&format!("/v1/tokens/{}", part(id)), PATIENCE).await.map(drop)
    }

    /// Who you are, according to your token.
    pub async fn whoami(&self) -> Result<Whoami, ClientError> {
        self.find("/v1/whoami", &[]).await
    }

    /// Who did what, newest first: `limit`, `cursor`.
    pub async fn audit(&self, parameters: Parameters<'_>) -> Result<AuditList, ClientError> {
        self.find("/v1/audit", parameters).await
    }
}

impl Client {
    async fn find<A: DeserializeOwned>(
        &self,
        path: &str,
        parameters: Parameters<'_>,
    ) -> Result<A, ClientError> {
        self.get(&with_query(path, parameters), PATIENCE).await
    }

    async fn send_json<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, ClientError> {
        let body = crate::client::body(body)?.to_vec();
        self.request(method, path, Some(("application/json", body)), PATIENCE).await
    }
}

pub(crate) fn of_run(run: &str, rest: &str) -> String {
    format!("/v1/runs/{}{rest}", part(run))
}

fn of_key(scope: &str, key: &str) -> String {
    format!("/v1/state/{}/{}", part(scope), part(key))
}

fn waiting(path: &str, wait: Option<Duration>) -> String {
    match wait {
        Some(wait) => with_query(path, &[("wait", &format_duration(wait))]),
        None => path.to_owned(),
    }
}
