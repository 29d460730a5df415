//! The engine: opens a store, knows its flows and runners, and drives their runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flowline_core::Tenant;
use flowline_core::definition::{Definition, Diagnostics};
use flowline_core::plan::PlanError;
use flowline_store::{Store, StoreError};
use tokio::sync::{OnceCell, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::aside::Aside;
use crate::attempt::volume::LogTally;
use crate::config::{Config, InstanceRole};
use crate::drive::host::{Host, InputCaller, Mail};
use crate::drive::{DriverMessage, Meters};
use crate::flow::Flow;
use crate::plans::Plans;
use crate::presence::Sign;
use crate::quota::QuotaUse;
use crate::reconcile::keep_true;
use crate::remote::Mind;
use crate::retain::keep_tidy;
use crate::runner::call::Calls;
use crate::runner::{Runner, Runners};
use crate::seal::Sealer;
use crate::trace::Spans;

/// What can go wrong with an engine, as its user sees it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The definition has mistakes; the diagnostics say where and what to do.
    #[error("{0}")]
    Definition(Box<Diagnostics>),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("there is no run {0}")]
    NoSuchRun(String),
    /// What is asked for takes a run that has ended.
    #[error("run {0} hasn't ended; wait until it does, or cancel it with `flowline cancel {0}`")]
    NotEnded(String),
    #[error("there is no flow {0:?}; register it first")]
    NoSuchFlow(String),
    #[error("flow {flow:?} has no version {hash}; `flowline flows --versions` lists them")]
    NoSuchVersion { flow: String, hash: String },
    /// The flow takes no new runs.
    #[error(
        "flow {0:?} is retired; register it again, or bring back a version with `flowline flows activate {0} HASH`"
    )]
    Retired(String),
    /// A machine's run that can't continue where it ended, only be retried from the start.
    #[error("{0}")]
    NoRetryInPlace(String),
    /// The run cannot take the input, ever.
    #[error("{0}")]
    Refused(flowline_core::decide::Refusal),
    /// The idempotency key names a run that was started with another input.
    #[error(
        "idempotency key {key:?} was used for run {run} with another input; use another key, or send the same input"
    )]
    KeyConflict { key: String, run: String },
    /// A report about an attempt that its worker no longer holds. Nothing was written.
    #[error("the lease is gone: {0}")]
    StaleLease(String),
    /// A remote worker's attempt, or its run, has logged as much as it may. Nothing was written.
    #[error("{0}")]
    LogFull(String),
    /// A definition that does more than its author is allowed.
    #[error("{0}")]
    BeyondBinding(String),
    #[error("{0}")]
    Invalid(String),
    /// The tenant has used up a quota. When it can start again is known for starts per second only.
    #[error("{detail}")]
    Quota { detail: String, retry_after: Option<std::time::Duration> },
    #[error("the engine has stopped")]
    Stopped,
}

/// A running instance. Cheap to clone; stop it with [`Engine::stop`], which lets running steps finish.
///
/// Dropping the last handle stops it immediately: running steps are cut off and given back, and the store is closed as
/// soon as that is done.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    /// The engine's store, by the handle that this one reads through.
    pub(crate) store: Arc<dyn Store>,
    tenant: Tenant,
    /// Of every handle but those that the engine's own steps have: these must not keep it running.
    _owned: Option<Arc<Owned>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

/// Stops the engine when its last owner is gone.
#[derive(Debug)]
struct Owned(Arc<Shared>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.tell_to_stop(Duration::ZERO);
    }
}

pub(crate) struct Shared {
    pub store: Arc<dyn Store>,
    pub plans: Arc<Plans>,
    pub aside: Arc<Aside>,
    pub config: Config,
    pub inbox: mpsc::UnboundedSender<Mail>,
    pub meters: Arc<Meters>,
    pub remote: Mind,
    sealer: OnceCell<Sealer>,
    /// What runs have logged in this instance.
    pub tally: Arc<LogTally>,
    pub quota_use: QuotaUse,
    pub(crate) runners: Arc<Runners>,
    /// What this engine's own runners can run.
    pub needs: Vec<Arc<str>>,
    trouble: watch::Receiver<Option<StoreError>>,
    driver: Mutex<Option<JoinHandle<()>>>,
    /// What one engine of the store does at a time; ends when the engine does.
    chores: Mutex<Vec<JoinHandle<()>>>,
    /// Seen by who must be alone on the store.
    sign: Mutex<Option<Sign>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Wires an engine.
pub struct EngineBuilder {
    place: Place,
    config: Config,
    tenant: Tenant,
    runners: Runners,
    flows: Vec<(Definition, Option<String>)>,
    spans: Option<Arc<Spans>>,
}

enum Place {
    #[cfg(feature = "sqlite")]
    File(std::path::PathBuf),
    Store(Arc<dyn Store>),
}

impl Place {
    fn open(self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Place::Store(store) => store,
            #[cfg(feature = "sqlite")]
            Place::File(path) => {
                flowline_sqlite::SqliteStore::open(&path, flowline_sqlite::Options::default())?
            }
        })
    }
}

impl std::fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine on a SQLite file, which is created if it doesn't exist.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use flowline::{Engine, Flow};
    /// # let flow = Flow::new("f").step("a", |_, _: serde_json::Value| async { Ok(()) }).build()?;
    /// let engine = Engine::open("flowline.db").flow(&flow).slots(8).start().await?;
    /// // …
    /// engine.stop().await; // lets running steps finish
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn open(path: impl Into<std::path::PathBuf>) -> EngineBuilder {
        EngineBuilder::new(Place::File(path.into()))
    }

    /// An engine on a store that is open already: PostgreSQL, Redis, or one in memory for tests.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use flowline::Engine;
    /// use flowline::store::{Clock, MemoryStore};
    ///
    /// let store = Arc::new(MemoryStore::new(Clock::system()));
    /// let engine = Engine::on(store).start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on(store: Arc<dyn Store>) -> EngineBuilder {
        EngineBuilder::new(Place::Store(store))
    }

    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The plans of definitions that were used lately.
    pub fn plans(&self) -> &Plans {
        &self.shared.plans
    }

    /// Where to do work that would hold up others.
    pub fn aside(&self) -> &Aside {
        &self.shared.aside
    }

    /// What this engine has done so far.
    pub fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// Why the store accepts no writes at the moment, and when that changes. Work continues by itself once it does.
    pub fn trouble(&self) -> watch::Receiver<Option<StoreError>> {
        self.shared.trouble.clone()
    }

    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The tenant that this handle acts for.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// A handle on the same engine that acts for another tenant.
    pub fn acting_for(&self, tenant: Tenant) -> Engine {
        Engine { tenant, ..self.clone() }
    }

    /// A handle on the same engine that reads through another handle on its store, such as [`in_place`](flowline_store::Catalog::in_place) gives.
    pub fn reading_through(&self, store: Arc<dyn Store>) -> Engine {
        Engine { store, ..self.clone() }
    }

    /// A handle for one of the engine's own steps.
    pub(crate) fn of(shared: Arc<Shared>, tenant: Tenant) -> Engine {
        Engine { store: shared.store.clone(), shared, tenant, _owned: None }
    }

    /// Waits until nothing is ready or running here, no dead instance holds a job, and no job or timer becomes due within
    /// `patience`. On a store that instances share, telling a dead one from a live one takes up to a lease.
    pub async fn until_idle(&self, patience: Duration) {
        let (tell, told) = oneshot::channel();
        let _ = self.shared.inbox.send(Mail::AwaitIdle(patience, tell));
        let _ = told.await;
    }

    /// Stops: starts no new attempts, lets running ones finish for the drain time, then gives them back.
    pub async fn stop(&self) {
        self.stop_within(self.shared.config.drain).await;
    }

    pub async fn stop_within(&self, drain: Duration) {
        self.shared.tell_to_stop(drain);
        if let Some(driver) = taken(&self.shared.driver) {
            let _ = driver.await;
        }
        let sign = self.shared.sign.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sign) = sign {
            sign.remove().await;
        }
    }
}

impl Shared {
    /// What references are sealed with.
    pub(crate) async fn sealer(&self) -> Result<&Sealer, StoreError> {
        self.sealer.get_or_try_init(|| Sealer::of(&*self.store)).await
    }

    /// Hands a message to the driver.
    pub fn mail(&self, message: DriverMessage<InputCaller>) -> Result<(), EngineError> {
        self.inbox.send(Mail::Message(message)).map_err(|_| EngineError::Stopped)
    }

    /// Starts no new attempts, and gives back what's still running after this long. Then the driver ends.
    fn tell_to_stop(&self, drain: Duration) {
        self.remote.room.close();
        for chore in self.chores.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            chore.abort();
        }
        let _ = self.mail(DriverMessage::Stop(drain));
    }
}

fn taken(task: &Mutex<Option<JoinHandle<()>>>) -> Option<JoinHandle<()>> {
    task.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl EngineBuilder {
    fn new(place: Place) -> EngineBuilder {
        EngineBuilder {
            place,
            config: Config::default(),
            tenant: Tenant::default(),
            runners: Runners::default(),
            flows: Vec::new(),
            spans: None,
        }
    }

    pub fn config(mut self, config: Config) -> EngineBuilder {
        self.config = config;
        self
    }

    /// The tenant that runs are started for. The engine serves the jobs of all, unless the configuration names one.
    pub fn tenant(mut self, tenant: Tenant) -> EngineBuilder {
        self.tenant = tenant;
        self
    }

    /// Attempts that run at once in each queue.
    pub fn slots(mut self, slots: usize) -> EngineBuilder {
        self.config.slots = slots;
        self
    }

    /// Attempts that run at once in this queue.
    pub fn queue(mut self, queue: &str, slots: usize) -> EngineBuilder {
        self.config.queues.insert(queue.to_owned(), slots);
        self
    }

    /// Puts a span here for every run and attempt that ends in this engine.
    pub fn spans(mut self, spans: Arc<Spans>) -> EngineBuilder {
        self.spans = Some(spans);
        self
    }

    /// Registers a flow with its functions. What the store has seen before stays as it is: see [`Engine::register`].
    pub fn flow(mut self, flow: &Flow) -> EngineBuilder {
        for (need, function) in flow.functions() {
            self.runners.add(need, function.clone());
        }
        self.flows.push((flow.definition().clone(), None));
        self
    }

    /// Registers a definition whose steps need no function of this process.
    pub fn definition(mut self, definition: Definition, origin: Option<String>) -> EngineBuilder {
        self.flows.push((definition, origin));
        self
    }

    /// Registers a runner by what it can run.
    pub fn runner(mut self, need: &str, runner: Arc<dyn Runner>) -> EngineBuilder {
        self.runners.add(need, runner);
        self
    }

    /// Lets this engine run `command` steps.
    #[cfg(feature = "command")]
    pub fn commands(self) -> EngineBuilder {
        self.runner("command", Arc::new(crate::runner::command::Command::default()))
    }

    /// Lets this engine run `http` steps.
    #[cfg(feature = "http")]
    pub fn http(self, config: crate::runner::http::HttpConfig) -> EngineBuilder {
        self.runner("http", Arc::new(crate::runner::http::Http::new(config)))
    }

    /// Opens the store, registers the flows and starts working.
    pub async fn start(mut self) -> Result<Engine, EngineError> {
        self.config.limits.check().map_err(EngineError::Invalid)?;
        let store = self.place.open()?;
        let aside = Arc::new(Aside::default());
        let plans = Arc::new(Plans::compiled_by(aside.clone()));
        let calls = Arc::new(Calls::default());
        for need in ["start", "send"] {
            self.runners.add(need, calls.clone());
        }
        let now = store.now().await?;
        let needs = self.runners.needs().to_vec();
        let runners = Arc::new(self.runners);
        let meters = Arc::new(Meters { spans: self.spans, ..Meters::default() });
        let config = self.config.clone();
        let remote = Mind::default();
        let (host, inbox) = Host::new(
            store.clone(),
            plans.clone(),
            runners.clone(),
            remote.seats.clone(),
            config,
            meters.clone(),
            now,
        );
        let (trouble, tally) = (host.trouble(), host.tally());
        let chores = match self.config.role {
            InstanceRole::Work => chores(&store, &plans, &meters, &self.config),
            InstanceRole::Operate => Vec::new(),
        };
        let sign = match self.config.role {
            InstanceRole::Work if store.is_shared() => {
                Some(Sign::leave(store.clone(), self.config.instance.clone(), now).await)
            }
            _ => None,
        };
        let shared = Shared {
            store,
            plans,
            aside,
            inbox,
            meters,
            remote,
            sealer: OnceCell::new(),
            tally,
            quota_use: QuotaUse::new(self.config.quotas.clone()),
            runners,
            needs,
            trouble,
            driver: Mutex::new(None),
            chores: Mutex::new(chores),
            sign: Mutex::new(sign),
            config: self.config,
        };
        let shared = Arc::new(shared);
        let _owned = Some(Arc::new(Owned(shared.clone())));
        let engine = Engine { store: shared.store.clone(), shared, tenant: self.tenant, _owned };
        calls.connect(&engine.shared);
        for (definition, origin) in self.flows {
            engine.register_at_start(definition, origin).await?;
        }
        // Work begins once the flows are known, so that nothing is claimed that cannot be started.
        let handle = tokio::spawn(host.run());
        *engine.shared.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(engine)
    }
}

fn chores(
    store: &Arc<dyn Store>,
    plans: &Arc<Plans>,
    meters: &Arc<Meters>,
    config: &Config,
) -> Vec<JoinHandle<()>> {
    let mut chores = Vec::new();
    if let Some(policy) = config.retention {
        chores.push(tokio::spawn(keep_tidy(store.clone(), config.instance.clone(), policy)));
    }
    if let Some(how) = config.reconcile {
        let (store, plans, meters) = (store.clone(), plans.clone(), meters.clone());
        chores.push(tokio::spawn(keep_true(store, plans, meters, config.instance.clone(), how)));
    }
    chores
}
