//! Commands at a server, which is asked over its API.

use std::time::Duration;

use async_trait::async_trait;
use flowline::core::time::format_duration;
use flowline::core::{Json, RunKey, Time};
use flowline::explain::Explanation;
use flowline::stats::Stats;
use flowline::store::row::Pause;
use flowline::store::{EventQuery, QueueRow, ReceiptQuery};
use flowline::{Applied, RetryFrom, StateOwner, StateQuery};
use flowline_api::access::{MadeToken, NewToken, RotateToken, TokenRow};
use flowline_api::events::{EventSend, ReceiptList, ReceiptView, SentView, StartOrSend};
use flowline_api::explain::VerifyReport;
use flowline_api::flows::{FlowChanged, FlowView};
use flowline_api::locks::HeldLock;
use flowline_api::runs::{
    BulkAction, BulkRequest, CancelRun, CompleteRun, EventList, FailRun, Retried, RetryRun, RunList,
    RunStart, RunView, Started,
};
use flowline_api::state::{StateEntry, StateList, StateScopes, StateWrite};
use flowline_client::{Client, ClientError};
use flowline_server::api::LONGEST_WAIT;
use flowline_server::filter;
use flowline_server::view::Versions;
use tokio::time::Instant;

use super::{
    DeletedPage, DeletedRun, EventTarget, ExternalEvent, FlowFile, Operator, OperatorLock, RunLog, RunsPage,
    StatsQuestion, Steering,
};
use crate::definition;
use crate::failure::CliError;

/// A server, with what it takes to speak to it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerOperator {
    client: Client,
}

impl ServerOperator {
    pub fn new(client: Client) -> ServerOperator {
        ServerOperator { client }
    }

    /// Asks for the receipt until the machine is done with the event. A flow keeps none.
    async fn wait_for(&self, sent: &mut SentView, wait: Duration) -> Result<(), CliError> {
        let (until, run) = (Instant::now() + wait, sent.run_id.as_str());
        loop {
            let left = until.saturating_duration_since(Instant::now()).min(LONGEST_WAIT);
            let left = Duration::from_millis(left.as_millis() as u64);
            sent.receipt =
                unless(self.client.receipt(run, &sent.event_id, Some(left)).await, "no-such-receipt")?;
            let done = sent.receipt.as_ref().is_none_or(ReceiptView::is_done);
            if done || Instant::now() >= until {
                sent.status = self.client.result(run, None).await?.status;
                return Ok(());
            }
        }
    }

    /// A page of a run's log.
    pub(super) async fn events(&self, run: &RunKey, query: &EventQuery) -> Result<EventList, CliError> {
        let kinds: Vec<&str> = query.kinds.iter().map(|kind| kind.as_str()).collect();
        let parameters = [
            ("after", Some(query.after.to_string())),
            ("type", (!kinds.is_empty()).then(|| kinds.join(","))),
            ("step", query.step.clone()),
            ("attempt", query.attempt.map(|attempt| attempt.to_string())),
            ("limit", Some(query.limit.to_string())),
        ];
        Ok(self.client.events(run.run.as_str(), &given(&parameters)).await?)
    }

    /// Waits up to this long for the end of a run, and tells whether it has ended.
    pub(super) async fn has_ended(&self, run: &RunKey, wait: Duration) -> Result<bool, CliError> {
        Ok(self.client.result(run.run.as_str(), Some(wait)).await?.status.is_terminal())
    }
}

/// Parameters that have a value.
fn given<'a>(parameters: &'a [(&'a str, Option<String>)]) -> Vec<(&'a str, &'a str)> {
    parameters.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect()
}

/// What was found, where this refusal means that there is nothing.
fn unless<T>(found: Result<T, ClientError>, code: &str) -> Result<Option<T>, CliError> {
    match found.map_err(CliError::from) {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.code == code => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// A value, unless there is none.
fn something(json: Json) -> Option<Json> {
    Some(json).filter(|json| !json.is_nothing())
}

fn check_key(key: &str) -> Result<(), CliError> {
    flowline::internal::check_key(key).map_err(CliError::usage)
}

#[async_trait(?Send)]
impl Operator for ServerOperator {
    async fn start(&self, mut start: RunStart, file: Option<FlowFile<'_>>) -> Result<Started, CliError> {
        let mut flow = start.flow.take().unwrap_or_default();
        if let Some(FlowFile { plan, path }) = file {
            self.client.register(definition::media_type(path)?, &definition::text(path)?).await?;
            (flow, start.version) = (plan.flow.to_string(), Some(plan.hash.to_string()));
        }
        Ok(self.client.start(&flow, &start, None).await?)
    }

    async fn send(&self, event: ExternalEvent, wait: Option<Duration>) -> Result<SentView, CliError> {
        let ExternalEvent { to, name, payload, sender, key: idempotency_key } = event;
        let (payload, event_id, user_id) = (something(payload), None, sender.user);
        let roles = (!sender.roles.is_empty()).then_some(sender.roles);
        let mut sent = match to {
            EventTarget::Run(run) => {
                let event = EventSend { name, payload, event_id, idempotency_key, user_id, roles };
                self.client.send_event(run.run.as_str(), &event, None).await?
            }
            EventTarget::Key { flow, key, input } => {
                let input = Some(input);
                let event =
                    StartOrSend { key, input, name, payload, event_id, idempotency_key, user_id, roles };
                self.client.start_or_send(&flow, &event, None).await?
            }
        };
        if let Some(wait) = wait {
            self.wait_for(&mut sent, wait).await?;
        }
        Ok(sent)
    }

    async fn steer(&self, run: &RunKey, steering: Steering) -> Result<Applied, CliError> {
        let (client, run) = (&self.client, run.run.as_str());
        let done = match steering {
            Steering::Cancel { reason } => client.cancel(run, &CancelRun { reason }).await,
            Steering::Pause => client.pause(run).await,
            Steering::Resume => client.resume(run).await,
            Steering::Complete { result } => {
                client.complete_run(run, &CompleteRun { result: something(result) }).await
            }
            Steering::Fail { error } => client.fail_run(run, &FailRun { error }).await,
        }?;
        Ok(Applied { changed: done.changed, status: done.status })
    }

    async fn retry(&self, run: &RunKey, from: RetryFrom<'_>) -> Result<Retried, CliError> {
        let retry = match from {
            RetryFrom::Failure => RetryRun::default(),
            RetryFrom::Step(step) => RetryRun { from: Some(step.to_owned()), from_start: false },
            RetryFrom::Start => RetryRun { from: None, from_start: true },
        };
        Ok(self.client.retry(run.run.as_str(), &retry).await?)
    }

    async fn delete(&self, run: &RunKey) -> Result<(), CliError> {
        Ok(self.client.delete_run(run.run.as_str()).await?)
    }

    async fn delete_page(&self, page: &RunsPage, dry_run: bool) -> Result<DeletedPage, CliError> {
        filter::check(&page.filter)?;
        let request = BulkRequest {
            action: BulkAction::Delete,
            filter: page.filter.clone(),
            dry_run,
            limit: None,
            cursor: page.cursor.clone(),
            reason: None,
            from_start: false,
        };
        let done = self.client.bulk(&request).await?;
        let items = done.items.into_iter().filter(|item| item.error.is_none()).map(|item| DeletedRun {
            run_id: item.run_id,
            flow_name: item.flow_name,
            status: item.status,
        });
        Ok(DeletedPage { items: items.collect(), next: done.next })
    }

    async fn runs(&self, page: &RunsPage) -> Result<RunList, CliError> {
        filter::check(&page.filter)?;
        let RunsPage { filter, limit, cursor, without_total } = page.clone();
        let parameters = [
            ("flow", filter.flow),
            ("status", filter.status),
            ("state", filter.state),
            ("label", filter.label),
            ("since", filter.since),
            ("until", filter.until),
            ("limit", limit.map(|limit| limit.to_string())),
            ("cursor", cursor),
            ("total", without_total.then(|| "false".to_owned())),
        ];
        Ok(self.client.runs(&given(&parameters)).await?)
    }

    async fn show(&self, run: &RunKey) -> Result<RunView, CliError> {
        Ok(self.client.show(run.run.as_str()).await?)
    }

    async fn log(&self, run: RunKey, query: EventQuery) -> Result<RunLog, CliError> {
        RunLog::of_server(self.clone(), run, query).await
    }

    async fn explain(&self, run: &RunKey) -> Result<Explanation, CliError> {
        Ok(self.client.explain(run.run.as_str()).await?)
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptList, CliError> {
        let parameters = [
            ("status", query.status.map(|status| status.as_str().to_owned())),
            ("worker", query.worker),
            ("limit", Some(query.limit.to_string())),
            ("cursor", query.after),
        ];
        let parameters = given(&parameters);
        Ok(match &query.run {
            Some(run) => self.client.receipts_of(run.as_str(), &parameters).await?,
            None => self.client.receipts(&parameters).await?,
        })
    }

    async fn stats(&self, question: &StatsQuestion) -> Result<Stats, CliError> {
        // A server that is told nothing goes back a day.
        let since = question.since.map_or_else(|| Time::from_millis(0).to_string(), format_duration);
        let parameters = [
            ("flow", question.flow.clone()),
            ("since", Some(since)),
            ("bucket", Some(format_duration(question.bucket))),
            ("steps", question.steps.then(|| "true".to_owned())),
        ];
        Ok(self.client.stats(&given(&parameters)).await?)
    }

    async fn verify(&self, all_tenants: bool) -> Result<VerifyReport, CliError> {
        if all_tenants {
            return Err(CliError::usage("a server checks one tenant only")
                .help("drop --all-tenants, or name the store with --store"));
        }
        Ok(self.client.verify_all().await?)
    }

    async fn flows(&self, versions: Versions) -> Result<Vec<FlowView>, CliError> {
        let all: &[_] = if versions == Versions::All { &[("versions", "true")] } else { &[] };
        Ok(self.client.flows(all).await?.items)
    }

    async fn activate(&self, flow: &str, version: &str) -> Result<FlowChanged, CliError> {
        Ok(self.client.activate(flow, version).await?)
    }

    async fn retire(&self, flow: &str) -> Result<FlowChanged, CliError> {
        Ok(self.client.retire(flow).await?)
    }

    async fn queues(&self) -> Result<Vec<QueueRow>, CliError> {
        Ok(self.client.queues().await?.items)
    }

    async fn pause_queue(&self, queue: &str, pause: Pause) -> Result<(), CliError> {
        match pause {
            Pause::Paused => self.client.pause_queue(queue).await?,
            Pause::Open => self.client.resume_queue(queue).await?,
        };
        Ok(())
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, CliError> {
        Ok(self.client.locks().await?)
    }

    async fn lock(&self, name: &str, ttl: Duration) -> Result<OperatorLock, CliError> {
        Ok(OperatorLock::Server(Box::new(self.client.lock(name).ttl(ttl))))
    }

    async fn scopes(&self) -> Result<StateScopes, CliError> {
        Ok(self.client.scopes().await?)
    }

    async fn values(&self, owner: &StateOwner, query: StateQuery) -> Result<StateList, CliError> {
        let parameters = [("limit", Some(query.limit.to_string())), ("cursor", query.after)];
        Ok(self.client.values(&owner.to_string(), &given(&parameters)).await?)
    }

    async fn value(&self, owner: &StateOwner, key: &str) -> Result<Option<StateEntry>, CliError> {
        check_key(key)?;
        unless(self.client.value(&owner.to_string(), key).await, "no-such-key")
    }

    async fn set_value(
        &self,
        owner: &StateOwner,
        key: &str,
        value: Json,
        ttl: Option<Duration>,
    ) -> Result<(), CliError> {
        check_key(key)?;
        let write = StateWrite { value, ttl: ttl.map(format_duration) };
        self.client.set_value(&owner.to_string(), key, &write).await?;
        Ok(())
    }

    async fn delete_value(&self, owner: &StateOwner, key: &str) -> Result<bool, CliError> {
        check_key(key)?;
        Ok(self.client.delete_value(&owner.to_string(), key).await?.changed)
    }

    async fn create_token(&self, new: NewToken) -> Result<MadeToken, CliError> {
        Ok(self.client.create_token(&new).await?)
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, CliError> {
        Ok(self.client.tokens().await?.items)
    }

    async fn rotate_token(&self, id: &str, rotate: RotateToken) -> Result<MadeToken, CliError> {
        Ok(self.client.rotate_token(id, &rotate).await?)
    }

    async fn revoke_token(&self, id: &str) -> Result<(), CliError> {
        Ok(self.client.revoke_token(id).await?)
    }
}
