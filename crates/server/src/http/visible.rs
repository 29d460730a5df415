//! What a caller may see: the only way from a request to the engine.
//!
//! A handler gets an [`ApiCaller`], which reaches nothing by itself. Each of its methods checks the token's bindings against one
//! kind of thing and gives it as [`Visible`], with the engine of the caller's tenant; so a handler that checks nothing has
//! nothing to read. What a token may not see doesn't exist for it. Lists come with what it may not see left out.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use flowline::core::ids::check_name;
use flowline::core::{Binding, RunId};
use flowline::lock::NamedLock;
use flowline::remote::Remote;
use flowline::store::{Counter, QueueRow, Receipt, ReceiptQuery, RunRow, StateSpace};
use flowline::{Engine, StateHandle, StateOwner, StateScope};
use flowline_api::events::ReceiptList;
use flowline_api::flows::FlowView;
use flowline_api::queues::WorkerRow;

use super::App;
use super::access::Principal;
use super::audit::Act;
use super::codes;
use super::problem::ApiError;
use super::request::Arrived;
use crate::receipts::read_receipts;

/// The caller.
#[derive(Debug)]
pub struct ApiCaller {
    pub principal: Principal,
    /// What the audit log will have of this, if anything.
    pub act: Option<Arc<Act>>,
    /// Acts for the caller's tenant.
    engine: Engine,
}

impl FromRequestParts<App> for ApiCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<ApiCaller, ApiError> {
        let arrived = parts.extensions.get::<Arrived>();
        let act = arrived.and_then(|arrived| arrived.act.clone());
        let principal = arrived.and_then(|arrived| arrived.principal.clone());
        let principal =
            principal.ok_or_else(|| ApiError::new(&codes::INTERNAL, "the caller wasn't identified"))?;
        let engine = app.unchecked().acting_for(principal.tenant.clone());
        Ok(ApiCaller { principal, act, engine })
    }
}

/// Something that the caller may see, and the engine that acts for the caller's tenant.
#[derive(Debug)]
pub struct Visible<T> {
    it: T,
    engine: Engine,
}

impl<T> Visible<T> {
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The thing itself.
    pub fn into_inner(self) -> T {
        self.it
    }
}

impl<T> Deref for Visible<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.it
    }
}

/// The runs that a question is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunsOf {
    AllFlows,
    Flow(String),
    /// A flow that doesn't exist for the caller.
    Unseen(String),
}

impl Visible<RunsOf> {
    /// The flow, if it's about one. An unseen one is an error.
    pub fn flow(&self) -> Result<Option<String>, ApiError> {
        match &self.it {
            RunsOf::AllFlows => Ok(None),
            RunsOf::Flow(flow) => Ok(Some(flow.clone())),
            RunsOf::Unseen(flow) => Err(ApiError::no_such_flow(flow)),
        }
    }
}

impl ApiCaller {
    fn visible<T>(&self, it: T) -> Visible<T> {
        Visible { it, engine: self.engine.clone() }
    }

    /// Does work that reads nothing of the store, where it holds up no other tenant.
    pub async fn aside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.engine.aside().run(self.engine.tenant(), work).await
    }

    /// A run. One with an invalid name doesn't exist.
    pub async fn run(&self, run: &str) -> Result<Visible<RunRow>, ApiError> {
        let id = RunId::new(run).map_err(|_| ApiError::no_such_run(run))?;
        let mut row = self.engine.row(&self.engine.key(&id)).await?;
        match row.show(&self.principal.binding) {
            true => Ok(self.visible(row)),
            false => Err(ApiError::no_such_run(run)),
        }
    }

    /// A flow, whether or not there's a definition of it.
    pub fn flow<'a>(&self, flow: &'a str) -> Result<Visible<&'a str>, ApiError> {
        match self.principal.binding.allows_flow(flow) {
            true => Ok(self.visible(flow)),
            false => Err(ApiError::no_such_flow(flow)),
        }
    }

    /// A queue, whether or not it has jobs.
    pub fn queue<'a>(&self, queue: &'a str) -> Result<Visible<&'a str>, ApiError> {
        match check_name("queue", queue).is_ok() && self.principal.binding.allows_queue(queue) {
            true => Ok(self.visible(queue)),
            false => Err(ApiError::new(&codes::NO_SUCH_QUEUE, format!("there is no queue {queue:?}"))),
        }
    }

    /// The runs of the named flow, or of all flows. For a token that's bound to one flow, those are its runs; if it's bound to
    /// several, it has to name one, and the error says so.
    pub fn runs_of(&self, flow: Option<String>) -> Result<Visible<RunsOf>, String> {
        let of = match (flow, self.principal.binding.flows.as_deref()) {
            (None, None) => RunsOf::AllFlows,
            (None, Some([flow])) => RunsOf::Flow(flow.clone()),
            (None, Some(flows)) => {
                return Err(format!("this token is bound to flows, so name one of {}", flows.join(", ")));
            }
            (Some(flow), _) if self.principal.binding.allows_flow(&flow) => RunsOf::Flow(flow),
            (Some(flow), _) => RunsOf::Unseen(flow),
        };
        Ok(self.visible(of))
    }

    /// Those of the named flows that the caller may see; all flows if `None`.
    pub fn flows(&self, named: Option<Vec<Arc<str>>>) -> Visible<Option<Vec<Arc<str>>>> {
        let binding = &self.principal.binding;
        let bound = || Some(binding.flows.as_ref()?.iter().map(|flow| Arc::from(&**flow)).collect());
        let flows = match named {
            Some(named) => Some(named.into_iter().filter(|flow| binding.allows_flow(flow)).collect()),
            None => bound(),
        };
        self.visible(flows)
    }

    /// The whole tenant, for what isn't of any flow or queue. A bound token doesn't get it.
    pub fn whole_tenant(&self, what: &str) -> Result<Visible<()>, ApiError> {
        if self.principal.binding.is_unbound() {
            return Ok(self.visible(()));
        }
        let detail = format!("{what}, so this needs a token that isn't bound to flows or queues");
        Err(ApiError::new(&codes::FORBIDDEN, detail))
    }

    /// All runs of the tenant, which a token that's bound to flows doesn't get.
    pub fn all_runs(&self, instead: &str) -> Result<Visible<()>, ApiError> {
        match self.principal.binding.flows {
            None => Ok(self.visible(())),
            Some(_) => {
                let detail = format!("this token is bound to flows, and this covers all of them; {instead}");
                Err(ApiError::new(&codes::FORBIDDEN, detail))
            }
        }
    }

    /// The key-value state of a scope: `tenant`, `flow:FLOW`, `run:RUN` or a name.
    pub async fn state(&self, scope: &str) -> Result<Visible<StateHandle>, ApiError> {
        let state =
            self.engine.state(scope).map_err(|error| ApiError::parameter("scope", error.to_string()))?;
        match state.owner() {
            StateOwner::Tenant | StateOwner::Named(_) => drop(self.shared_state()?),
            StateOwner::Run(run) => drop(self.run(run.as_str()).await?),
            StateOwner::Flow(flow) => {
                let flow = self.flow(flow)?;
                if self.engine.store().latest(self.engine.tenant(), &flow).await?.is_none() {
                    return Err(ApiError::no_such_flow(&flow));
                }
            }
        }
        Ok(self.visible(state))
    }

    /// The state that a scope stands for in a run.
    pub fn state_of(&self, run: &RunRow, scope: &StateScope) -> Result<Visible<StateSpace>, ApiError> {
        let owner = scope.of(&run.run_id, &run.flow_name);
        if matches!(owner, StateOwner::Tenant | StateOwner::Named(_)) {
            self.shared_state()?;
        }
        Ok(self.visible(StateSpace::new(&run.tenant, owner)))
    }

    /// The state that all flows of the tenant share.
    pub fn shared_state(&self) -> Result<Visible<()>, ApiError> {
        self.whole_tenant("all flows share this state")
    }

    /// A lock. Locks belong to the tenant: any of its tokens can ask for one by name.
    pub fn lock(&self, name: &str) -> Visible<NamedLock> {
        self.visible(self.engine.lock(name))
    }

    /// Work on the queues that the caller may work on; leases of others are nothing to it.
    pub fn work(&self) -> Visible<Remote> {
        let remote = self.engine.remote();
        self.visible(match self.principal.binding.allowed_queues() {
            Some(queues) => remote.bound_to(queues),
            None => remote,
        })
    }

    /// Whether the caller may claim jobs of these queues.
    pub fn may_claim(&self, queues: &[String]) -> Result<(), ApiError> {
        let binding = &self.principal.binding;
        if binding.flows.is_some() {
            let detail = "this token is bound to flows, but a queue can have jobs of any flow; use a token that's bound only to queues";
            return Err(ApiError::new(&codes::FORBIDDEN, detail));
        }
        match queues.iter().find(|queue| !binding.allows_queue(queue)) {
            None => Ok(()),
            Some(queue) => {
                let detail = format!("this token isn't bound to queue {queue:?}");
                Err(ApiError::new(&codes::FORBIDDEN, detail))
            }
        }
    }

    /// Rows of the tenant, without those that the caller may not see.
    pub async fn rows<R: Belongs, E: Into<ApiError>>(
        &self,
        read: impl AsyncFnOnce(&Engine) -> Result<Vec<R>, E>,
    ) -> Result<Visible<Vec<R>>, ApiError> {
        let rows = read(&self.engine).await.map_err(Into::into)?;
        Ok(self.visible(self.keep(rows)))
    }

    /// Leaves out what the caller may not see.
    pub fn keep<R: Belongs>(&self, mut rows: Vec<R>) -> Vec<R> {
        rows.retain_mut(|row| row.show(&self.principal.binding));
        rows
    }

    /// Receipts, without those that the caller may not see.
    pub async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptList, ApiError> {
        let query = ReceiptQuery { tenant: self.principal.tenant.clone(), ..query };
        let seen = |receipt: &Receipt| self.principal.binding.allows_flow(&receipt.flow_name);
        Ok(read_receipts(self.engine.store(), self.engine.plans(), query, seen).await?)
    }
}

/// A row of a flow or a queue.
pub trait Belongs {
    /// Whether something with this binding may see it. What it may not see of the row is taken out.
    fn show(&mut self, binding: &Binding) -> bool;
}

impl Belongs for RunRow {
    fn show(&mut self, binding: &Binding) -> bool {
        binding.allows_flow(&self.flow_name)
    }
}

impl Belongs for FlowView {
    fn show(&mut self, binding: &Binding) -> bool {
        binding.allows_flow(&self.definition.flow)
    }
}

impl Belongs for Counter {
    fn show(&mut self, binding: &Binding) -> bool {
        binding.allows_flow(&self.flow_name)
    }
}

impl Belongs for QueueRow {
    fn show(&mut self, binding: &Binding) -> bool {
        binding.allows_queue(&self.queue)
    }
}

impl Belongs for WorkerRow {
    fn show(&mut self, binding: &Binding) -> bool {
        self.queues.retain(|queue| binding.allows_queue(queue));
        binding.is_unbound() || !self.queues.is_empty()
    }
}
