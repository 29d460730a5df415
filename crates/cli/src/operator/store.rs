//! Commands on a store that this process opens.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowline::core::decide::Finish;
use flowline::core::{DecideInput, Json, RunKey, Tenant};
use flowline::explain::{Explanation, explain};
use flowline::lock::{NamedLock, held_locks};
use flowline::registry;
use flowline::stats::{Depth, Question, Stats, stats};
use flowline::store::query::{MAX_PAGE, WantTotal};
use flowline::store::row::Pause;
use flowline::store::{EventQuery, QueueRow, ReceiptQuery, RunQuery, RunRow, Store};
use flowline::verify::verify;
use flowline::{
    Applied, Config, Engine, InstanceRole, Plans, RetryFrom, StateHandle, StateOwner, StateQuery,
};
use flowline_api::access::{MadeToken, NewToken, RotateToken, TokenRow};
use flowline_api::events::{ReceiptList, SentView};
use flowline_api::explain::VerifyReport;
use flowline_api::flows::{FlowChanged, FlowView};
use flowline_api::locks::HeldLock;
use flowline_api::runs::{Retried, RunList, RunStart, RunView, Started};
use flowline_api::state::{StateEntry, StateList, StateScopes};
use flowline_server::api::{held, read_scopes, state_entry, state_list};
use flowline_server::filter;
use flowline_server::receipts::{read_receipt, read_receipts, sent_view};
use flowline_server::token::{self, TokenRotation};
use flowline_server::view::{Versions, read_flows, read_run, run_list, start_request, started};
use tokio::sync::OnceCell;

use super::{
    DeletedPage, DeletedRun, EventTarget, ExternalEvent, FlowFile, Operator, OperatorLock, RunLog, RunsPage,
    StatsQuestion, Steering,
};
use crate::definition;
use crate::failure::CliError;
use crate::open::{StoreAccess, open};
use crate::settings::Settings;

/// The store of the settings.
pub struct StoreOperator<'a> {
    settings: &'a Settings,
    store: OnceCell<Arc<dyn Store>>,
}

impl<'a> StoreOperator<'a> {
    pub fn new(settings: &'a Settings) -> StoreOperator<'a> {
        StoreOperator { settings, store: OnceCell::new() }
    }

    fn tenant(&self) -> &Tenant {
        &self.settings.tenant.value
    }

    /// The store, opened for what is asked of it first.
    async fn open(&self, access: StoreAccess) -> Result<&Arc<dyn Store>, CliError> {
        self.store.get_or_try_init(|| open(&self.settings.store.value, access)).await
    }

    /// Does something with an engine that only carries inputs into runs.
    async fn operate<T>(
        &self,
        access: StoreAccess,
        act: impl AsyncFnOnce(&Engine) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let limits = self.settings.limits();
        let config = Config { role: InstanceRole::Operate, retention: None, limits, ..Config::default() };
        let engine = Engine::on(self.open(access).await?.clone()).config(config);
        let engine = engine.tenant(self.tenant().clone()).start().await?;
        let done = act(&engine).await;
        engine.stop().await;
        done
    }

    /// The key-values of an owner, which must be there.
    async fn state(&self, owner: &StateOwner, access: StoreAccess) -> Result<StateHandle, CliError> {
        let (store, tenant) = (self.open(access).await?, self.tenant().clone());
        match owner {
            StateOwner::Run(run) => self.known(&RunKey::new(tenant.clone(), run.clone())).await?,
            StateOwner::Flow(flow) if store.latest(&tenant, flow).await?.is_none() => {
                return Err(CliError::refusal("no-such-flow", format!("there is no flow {flow:?}")));
            }
            _ => {}
        }
        Ok(StateHandle::new(store.clone(), tenant, owner.clone(), self.settings.limits()))
    }

    /// Refuses a run that isn't there.
    async fn known(&self, run: &RunKey) -> Result<(), CliError> {
        let store = self.open(StoreAccess::Reader).await?;
        match store.load(std::slice::from_ref(run)).await?.iter().all(Option::is_none) {
            true => Err(CliError::no_such_run(run.run.as_str())),
            false => Ok(()),
        }
    }

    async fn query(&self, page: &RunsPage) -> Result<RunQuery, CliError> {
        let now = self.open(StoreAccess::Reader).await?.now().await?;
        let limit = page.limit.map_or(MAX_PAGE, usize::from);
        let total = if page.without_total { WantTotal::No } else { WantTotal::Yes };
        let query = filter::query(&page.filter, self.tenant().clone(), now)?;
        Ok(RunQuery { cursor: page.cursor.clone(), limit, total, ..query })
    }
}

#[async_trait(?Send)]
impl Operator for StoreOperator<'_> {
    async fn start(&self, start: RunStart, file: Option<FlowFile<'_>>) -> Result<Started, CliError> {
        let origin = file.as_ref().map(|file| definition::origin(file.path)).transpose()?;
        let access = if file.is_some() { StoreAccess::Engine } else { StoreAccess::Existing };
        let input = start.input.clone().unwrap_or_else(Json::null);
        self.operate(access, async |engine| {
            let request = match file {
                Some(file) => engine.run_plan(engine.register_plan(file.plan, origin).await?, input),
                None => engine.run_named(start.flow.as_deref().unwrap_or_default(), input).await?,
            };
            let handle = start_request(request, start).await?;
            Ok(started(engine, &handle).await?)
        })
        .await
    }

    async fn send(&self, event: ExternalEvent, wait: Option<Duration>) -> Result<SentView, CliError> {
        let ExternalEvent { to, name, payload, sender, key } = event;
        self.operate(StoreAccess::Existing, async |engine| {
            let request = match to {
                EventTarget::Run(run) => engine.event(&run, &name, payload),
                EventTarget::Key { flow, key, input } => {
                    engine.event_for(&flow, &key, input, (&name, payload))
                }
            };
            let mut request = request.sender(sender);
            if let Some(key) = key {
                request = request.key(key);
            }
            let Some(wait) = wait else { return Ok(sent_view(request.send().await?, None)) };
            let (mut sent, receipt) = request.wait(wait).await?;
            let receipt = match receipt {
                Some(receipt) => Some(read_receipt(engine.store(), engine.plans(), receipt).await?),
                None => None,
            };
            sent.status = engine.row(&engine.key(&sent.run_id)).await?.status;
            Ok(sent_view(sent, receipt))
        })
        .await
    }

    async fn steer(&self, run: &RunKey, steering: Steering) -> Result<Applied, CliError> {
        let input = match steering {
            Steering::Cancel { reason } => DecideInput::Cancel { reason },
            Steering::Pause => DecideInput::Pause,
            Steering::Resume => DecideInput::Resume,
            Steering::Complete { result } => DecideInput::Finish(Finish::Completed { result }),
            Steering::Fail { error } => DecideInput::Finish(Finish::Failed { error }),
        };
        self.operate(StoreAccess::Existing, async |engine| Ok(engine.input(run, input).await?)).await
    }

    async fn retry(&self, run: &RunKey, from: RetryFrom<'_>) -> Result<Retried, CliError> {
        self.operate(StoreAccess::Existing, async |engine| {
            let handle = engine.again(run, from).await?.await?;
            Ok(Retried::of(&engine.row(handle.key()).await?, &run.run))
        })
        .await
    }

    async fn delete(&self, run: &RunKey) -> Result<(), CliError> {
        self.operate(StoreAccess::Existing, async |engine| Ok(engine.delete(run).await?)).await
    }

    async fn delete_page(&self, page: &RunsPage, dry_run: bool) -> Result<DeletedPage, CliError> {
        let store = self.open(StoreAccess::Existing).await?;
        let page = store.runs(self.query(page).await?).await?;
        let ended: Vec<&RunRow> = page.items.iter().filter(|row| row.status.is_terminal()).collect();
        let keys: Vec<RunKey> = ended.iter().map(|row| row.key()).collect();
        let gone = if dry_run { vec![true; keys.len()] } else { store.delete_runs(&keys).await? };
        let items = ended.iter().zip(gone).filter(|(_, gone)| *gone).map(|(row, _)| DeletedRun {
            run_id: row.run_id.clone(),
            flow_name: row.flow_name.clone(),
            status: row.status,
        });
        Ok(DeletedPage { items: items.collect(), next: page.next })
    }

    async fn runs(&self, page: &RunsPage) -> Result<RunList, CliError> {
        let query = self.query(page).await?;
        Ok(run_list(self.open(StoreAccess::Reader).await?.runs(query).await?))
    }

    async fn show(&self, run: &RunKey) -> Result<RunView, CliError> {
        Ok(read_run(&**self.open(StoreAccess::Reader).await?, &Plans::default(), run).await?)
    }

    async fn log(&self, run: RunKey, query: EventQuery) -> Result<RunLog, CliError> {
        RunLog::of_store(self.open(StoreAccess::Reader).await?.clone(), run, query).await
    }

    async fn explain(&self, run: &RunKey) -> Result<Explanation, CliError> {
        Ok(explain(&**self.open(StoreAccess::Reader).await?, &Plans::default(), run).await?)
    }

    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptList, CliError> {
        let store = self.open(StoreAccess::Reader).await?;
        if let Some(run) = &query.run {
            self.known(&RunKey::new(self.tenant().clone(), run.clone())).await?;
        }
        Ok(read_receipts(&**store, &Plans::default(), query, |_| true).await?)
    }

    async fn stats(&self, question: &StatsQuestion) -> Result<Stats, CliError> {
        let store = self.open(StoreAccess::Reader).await?;
        let since = match question.since {
            Some(ago) => Some(store.now().await?.before(ago)),
            None => None,
        };
        let question = Question {
            tenant: self.tenant().clone(),
            flow: question.flow.clone(),
            since,
            bucket: question.bucket,
            steps: if question.steps { Depth::Steps } else { Depth::Runs },
        };
        Ok(stats(&**store, &question).await?)
    }

    async fn verify(&self, all_tenants: bool) -> Result<VerifyReport, CliError> {
        let only = (!all_tenants).then_some(self.tenant());
        Ok(verify(&**self.open(StoreAccess::Reader).await?, &Plans::default(), only).await?)
    }

    async fn flows(&self, versions: Versions) -> Result<Vec<FlowView>, CliError> {
        Ok(read_flows(&**self.open(StoreAccess::Reader).await?, self.tenant(), versions).await?)
    }

    async fn activate(&self, flow: &str, version: &str) -> Result<FlowChanged, CliError> {
        let store = self.open(StoreAccess::Existing).await?;
        let latest = registry::activate(&**store, self.tenant(), flow, version).await?;
        Ok(FlowChanged { flow: flow.to_owned(), hash: Some(latest.hash), retired: false })
    }

    async fn retire(&self, flow: &str) -> Result<FlowChanged, CliError> {
        registry::retire(&**self.open(StoreAccess::Existing).await?, self.tenant(), flow).await?;
        Ok(FlowChanged { flow: flow.to_owned(), hash: None, retired: true })
    }

    async fn queues(&self) -> Result<Vec<QueueRow>, CliError> {
        Ok(self.open(StoreAccess::Reader).await?.queues(self.tenant()).await?)
    }

    async fn pause_queue(&self, queue: &str, pause: Pause) -> Result<(), CliError> {
        self.open(StoreAccess::Existing).await?.pause_queue(self.tenant(), queue, pause).await?;
        Ok(())
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, CliError> {
        let store = self.open(StoreAccess::Reader).await?;
        let now = store.now().await?;
        let rows = held_locks(&**store, self.tenant()).await?;
        Ok(rows.into_iter().map(|row| held(row, now)).collect())
    }

    async fn lock(&self, name: &str, ttl: Duration) -> Result<OperatorLock, CliError> {
        let store = self.open(StoreAccess::Existing).await?.clone();
        Ok(OperatorLock::Store(NamedLock::new(store, self.tenant().clone(), name).ttl(ttl)))
    }

    async fn scopes(&self) -> Result<StateScopes, CliError> {
        Ok(read_scopes(&**self.open(StoreAccess::Reader).await?, self.tenant()).await?)
    }

    async fn values(&self, owner: &StateOwner, query: StateQuery) -> Result<StateList, CliError> {
        Ok(state_list(owner, self.state(owner, StoreAccess::Reader).await?.list(query).await?))
    }

    async fn value(&self, owner: &StateOwner, key: &str) -> Result<Option<StateEntry>, CliError> {
        let found = self.state(owner, StoreAccess::Reader).await?.find(key).await?;
        Ok(found.map(|found| state_entry(owner, found)))
    }

    async fn set_value(
        &self,
        owner: &StateOwner,
        key: &str,
        value: Json,
        ttl: Option<Duration>,
    ) -> Result<(), CliError> {
        let state = self.state(owner, StoreAccess::Existing).await?;
        match ttl {
            Some(ttl) => state.set_for(key, &value, ttl).await?,
            None => state.set(key, &value).await?,
        }
        Ok(())
    }

    async fn delete_value(&self, owner: &StateOwner, key: &str) -> Result<bool, CliError> {
        Ok(self.state(owner, StoreAccess::Existing).await?.delete(key).await?)
    }

    async fn create_token(&self, new: NewToken) -> Result<MadeToken, CliError> {
        Ok(token::create(&**self.open(StoreAccess::Engine).await?, self.tenant(), new).await?)
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>, CliError> {
        Ok(token::list(&**self.open(StoreAccess::Reader).await?, self.tenant()).await?)
    }

    async fn rotate_token(&self, id: &str, rotate: RotateToken) -> Result<MadeToken, CliError> {
        let store = self.open(StoreAccess::Existing).await?;
        match token::rotate(&**store, self.tenant(), id, &rotate).await? {
            TokenRotation::Made(made) => Ok(*made),
            TokenRotation::Missing => Err(no_such_token(id)),
            TokenRotation::Replaced(by) => {
                Err(CliError::refusal("invalid", token::already_replaced(id, &by)))
            }
        }
    }

    async fn revoke_token(&self, id: &str) -> Result<(), CliError> {
        match token::revoke(&**self.open(StoreAccess::Existing).await?, self.tenant(), id).await? {
            true => Ok(()),
            false => Err(no_such_token(id)),
        }
    }
}

fn no_such_token(id: &str) -> CliError {
    CliError::refusal("no-such-token", format!("there is no token {id}"))
}
