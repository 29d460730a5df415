//! Commands at a server, which is asked over its API.

use std::time::Duration;

use async_trait::async_trait;
use flowline::core::json::{object, string};
use flowline::core::time::format_duration;
use flowline::core::{Json, RunKey, Time};
use flowline::explain::Explanation;
use flowline::stats::Stats;
use flowline::store::row::Pause;
use flowline::store::{EventQuery, QueueRow, ReceiptQuery};
use flowline::{Applied, RetryFrom, StateOwner, StateQuery};
use flowline_api::access::{MadeToken, NewToken, TokenList, TokenRow};
use flowline_api::events::{ReceiptList, ReceiptView, SentView};
use flowline_api::explain::VerifyReport;
use flowline_api::flows::{FlowChanged, FlowList, FlowView};
use flowline_api::locks::HeldLock;
use flowline_api::queues::QueueList;
use flowline_api::runs::{
    BulkAction, BulkDone, BulkFilter, BulkRequest, Retried, RunList, RunResult, RunStart, RunView, Started,
};
use flowline_api::state::{StateChanged, StateEntry, StateList, StateScopes};
use flowline_client::{Client, Method};
use flowline_server::api::{HANDLER_TIME, LONGEST_WAIT, part};
use flowline_server::filter::RunFilter;
use flowline_server::view::Versions;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use tokio::time::Instant;

use super::{
    DeletedPage, DeletedRun, EventTarget, ExternalEvent, FlowFile, Operator, OperatorLock, RunLog, RunsPage,
    StatsQuestion, Steering,
};
use crate::definition;
use crate::failure::Failure;

/// How long an answer may take: as long as a server works on it.
const PATIENCE: Duration = HANDLER_TIME;

/// A server, with what it takes to speak to it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerOperator {
    client: Client,
}

/// The parameters of a request; those without a value are left out.
type Parameters<'a> = &'a [(&'a str, Option<String>)];

impl ServerOperator {
    pub fn new(client: Client) -> ServerOperator {
        ServerOperator { client }
    }

    async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Failure> {
        Ok(self.client.get(path, PATIENCE).await?)
    }

    pub(super) async fn find<A: DeserializeOwned>(
        &self,
        path: &str,
        parameters: Parameters<'_>,
    ) -> Result<A, Failure> {
        let mut query = form_urlencoded::Serializer::new(format!("{path}?"));
        for (name, value) in parameters {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        self.get(&query.finish()).await
    }

    async fn post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, Failure> {
        self.send_json(Method::POST, path, body).await
    }

    async fn send_json<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::input(error.to_string()))?;
        Ok(self.client.request(method, path, Some(("application/json", body)), PATIENCE).await?)
    }

    async fn remove<A: DeserializeOwned>(&self, path: &str) -> Result<A, Failure> {
        Ok(self.client.delete(path, PATIENCE).await?)
    }

    /// Asks for the receipt until the machine is done with the event. A flow keeps none.
    async fn wait_for(&self, sent: &mut SentView, wait: Duration) -> Result<(), Failure> {
        let until = Instant::now() + wait;
        let path = format!("/v1/runs/{}/receipts/{}", sent.run_id, part(&sent.event_id));
        loop {
            let left = until.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
            let left = Duration::from_millis(left.as_millis() as u64);
            let found = self.find::<ReceiptView>(&path, &[("wait", Some(format_duration(left)))]).await;
            sent.receipt = unless(found, "no-such-receipt")?;
            let done = sent.receipt.as_ref().is_none_or(ReceiptView::is_done);
            if done || Instant::now() >= until {
                sent.status =
                    self.get::<RunResult>(&format!("/v1/runs/{}/result", sent.run_id)).await?.status;
                return Ok(());
            }
        }
    }
}

/// What was found, where this refusal means that there is nothing.
fn unless<T>(found: Result<T, Failure>, code: &str) -> Result<Option<T>, Failure> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.code == code => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn key_path(owner: &StateOwner, key: &str) -> Result<String, Failure> {
    flowline::internal::check_key(key).map_err(Failure::usage)?;
    Ok(format!("/v1/state/{}/{}", part(&owner.to_string()), part(key)))
}

#[async_trait(?Send)]
impl Operator for ServerOperator {
    async fn start(&self, mut start: RunStart, file: Option<FlowFile<'_>>) -> Result<Started, Failure> {
        let mut flow = start.flow.take().unwrap_or_default();
        if let Some(FlowFile { plan, path }) = file {
            let (kind, text) = (definition::media_type(path)?, definition::text(path)?);
            let body = Some((kind, text.into_bytes()));
            let _: IgnoredAny = self.client.request(Method::POST, "/v1/flows", body, PATIENCE).await?;
            (flow, start.version) = (plan.flow.to_string(), Some(plan.hash.to_string()));
        }
        self.post(&format!("/v1/flows/{}/runs", part(&flow)), &start).await
    }

    async fn send(&self, event: ExternalEvent, wait: Option<Duration>) -> Result<SentView, Failure> {
        let roles = Json::of(&event.sender.roles).map_err(|error| Failure::input(error.to_string()))?;
        let (name, user) = (string(&event.name), event.sender.user.as_deref().map(string));
        let key = event.key.as_deref().map(string);
        let (path, opens) = match &event.to {
            EventTarget::Run(run) => (format!("/v1/runs/{}/events", run.run), None),
            EventTarget::Key { flow, key, input } => {
                (format!("/v1/flows/{}/events", part(flow)), Some((string(key), input)))
            }
        };
        let body = object([
            ("key", opens.as_ref().map(|(key, _)| key)),
            ("input", opens.as_ref().map(|(_, input)| *input)),
            ("name", Some(&name)),
            ("payload", Some(&event.payload)),
            ("userId", user.as_ref()),
            ("roles", Some(&roles).filter(|_| !event.sender.roles.is_empty())),
            ("idempotencyKey", key.as_ref()),
        ]);
        let mut sent: SentView = self.post(&path, &body).await?;
        if let Some(wait) = wait {
            self.wait_for(&mut sent, wait).await?;
        }
        Ok(sent)
    }

    async fn steer(&self, run: &RunKey, steering: Steering) -> Result<Applied, Failure> {
        let (act, body) = match &steering {
            Steering::Cancel { reason } => {
                ("cancel", object([("reason", reason.as_deref().map(string).as_ref())]))
            }
            Steering::Pause => ("pause", object([])),
            Steering::Resume => ("resume", object([])),
            Steering::Complete { result } => ("complete", object([("result", Some(result))])),
            Steering::Fail { error } => ("fail", object([("error", Some(&string(error)))])),
        };
        self.post(&format!("/v1/runs/{}/{act}", run.run), &body).await
    }

    async fn retry(&self, run: &RunKey, from: RetryFrom<'_>) -> Result<Retried, Failure> {
        let body = match from {
            RetryFrom::Failure => json!({}),
            RetryFrom::Step(step) => json!({ "from": step }),
            RetryFrom::Start => json!({ "fromStart": true }),
        };
        self.post(&format!("/v1/runs/{}/retry", run.run), &body).await
    }

    async fn delete(&self, run: &RunKey) -> Result<(), Failure> {
        self.remove::<IgnoredAny>(&format!("/v1/runs/{}", run.run)).await.map(drop)
    }

    async fn delete_page(&self, page: &RunsPage, dry_run: bool) -> Result<DeletedPage, Failure> {
        page.filter.check()?;
        let RunFilter { flow, status, state: _, label, since, until } = page.filter.clone();
        let request = BulkRequest {
            action: BulkAction::Delete,
            filter: BulkFilter { flow, status, label, since, until },
            dry_run,
            limit: None,
            cursor: page.cursor.clone(),
            reason: None,
            from_start: false,
        };
        let done: BulkDone = self.post("/v1/runs/bulk", &request).await?;
        let items = done.items.into_iter().filter(|item| item.error.is_none()).map(|item| DeletedRun {
            run_id: item.run_id,
            flow_name: item.flow_name,
            status: item.status,
        });
        Ok(DeletedPage { items: items.collect(), next: done.next })
    }

    async fn runs(&self, page: &RunsPage) -> Result<RunList, Failure> {
        page.filter.check()?;
        let mut parameters: Vec<(&str, Option<String>)> = page.filter.parameters().into();
        parameters.extend([
            ("limit", page.limit.map(|limit| limit.to_string())),
            ("cursor", page.cursor.clone()),
            ("total", page.without_total.then(|| "false".to_owned())),
        ]);
        self.find("/v1/runs", &parameters).await
    }

    async fn show(&self, run: &RunKey) -> Result<RunView, Failure> {
        self.get(&format!("/v1/runs/{}", run.run)).await
    }

    async fn log(&self, run: RunKey, query: EventQuery) -> Result<RunLog, Failure> {
        RunLog::of_server(self.clone(), &run, query).await
    }

    async fn explain(&self, run: &RunKey) -> Result<Explanation, Failure> {
        self.get(&format!("/v1/runs/{}/explain", run.run)).await
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptList, Failure> {
        let path = match &query.run {
            Some(run) => format!("/v1/runs/{run}/receipts"),
            None => "/v1/receipts".to_owned(),
        };
        let parameters = [
            ("status", query.status.map(|status| status.as_str().to_owned())),
            ("worker", query.worker),
            ("limit", Some(query.limit.to_string())),
            ("cursor", query.after),
        ];
        self.find(&path, &parameters).await
    }

    async fn stats(&self, question: &StatsQuestion) -> Result<Stats, Failure> {
        // A server that is told nothing goes back a day.
        let since = question.since.map_or_else(|| Time::from_millis(0).to_string(), format_duration);
        let parameters = [
            ("flow", question.flow.clone()),
            ("since", Some(since)),
            ("bucket", Some(format_duration(question.bucket))),
            ("steps", question.steps.then(|| "true".to_owned())),
        ];
        self.find("/v1/stats", &parameters).await
    }

    async fn verify(&self, all_tenants: bool) -> Result<VerifyReport, Failure> {
        if all_tenants {
            return Err(Failure::usage("a server checks one tenant only")
                .help("drop --all-tenants, or name the store with --store"));
        }
        self.post("/v1/verify", &json!({})).await
    }

    async fn flows(&self, versions: Versions) -> Result<Vec<FlowView>, Failure> {
        let all = (versions == Versions::All).then(|| "true".to_owned());
        Ok(self.find::<FlowList>("/v1/flows", &[("versions", all)]).await?.items)
    }

    async fn activate(&self, flow: &str, version: &str) -> Result<FlowChanged, Failure> {
        self.post(&format!("/v1/flows/{}/activate", part(flow)), &json!({ "version": version })).await
    }

    async fn retire(&self, flow: &str) -> Result<FlowChanged, Failure> {
        self.post(&format!("/v1/flows/{}/retire", part(flow)), &json!({})).await
    }

    async fn queues(&self) -> Result<Vec<QueueRow>, Failure> {
        Ok(self.get::<QueueList>("/v1/queues").await?.items)
    }

    async fn pause_queue(&self, queue: &str, pause: Pause) -> Result<(), Failure> {
        let act = if pause == Pause::Paused { "pause" } else { "resume" };
        self.post::<IgnoredAny>(&format!("/v1/queues/{queue}/{act}"), &json!({})).await.map(drop)
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, Failure> {
        Ok(self.client.locks().await?)
    }

    async fn lock(&self, name: &str, ttl: Duration) -> Result<OperatorLock, Failure> {
        Ok(OperatorLock::Server(Box::new(self.client.lock(name).ttl(ttl))))
    }

    async fn scopes(&self) -> Result<StateScopes, Failure> {
        self.get("/v1/state").await
    }

    async fn values(&self, owner: &StateOwner, query: StateQuery) -> Result<StateList, Failure> {
        let parameters = [("limit", Some(query.limit.to_string())), ("cursor", query.after)];
        self.find(&format!("/v1/state/{}", part(&owner.to_string())), &parameters).await
    }

    async fn value(&self, owner: &StateOwner, key: &str) -> Result<Option<StateEntry>, Failure> {
        unless(self.get(&key_path(owner, key)?).await, "no-such-key")
    }

    async fn set_value(
        &self,
        owner: &StateOwner,
        key: &str,
        value: Json,
        ttl: Option<Duration>,
    ) -> Result<(), Failure> {
        let ttl = ttl.map(|ttl| string(&format_duration(ttl)));
        let body = object([("value", Some(&value)), ("ttl", ttl.as_ref())]);
        self.send_json::<StateChanged>(Method::PUT, &key_path(owner, key)?, &body).await.map(drop)
    }

    async fn delete_value(&self, owner: &StateOwner, key: &str) -> Result<bool, Failure> {
        Ok(self.remove::<StateChanged>(&key_path(owner, key)?).await?.changed)
    }

    async fn create_token(&self, new: NewToken) -> Result<MadeToken, Failure> {
        self.post("/v1/tokens", &new).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, Failure> {
        Ok(self.get::<TokenList>("/v1/tokens").await?.items)
    }

    async fn revoke_token(&self, id: &str) -> Result<(), Failure> {
        self.remove::<IgnoredAny>(&format!("/v1/tokens/{}", part(id))).await.map(drop)
    }
}
