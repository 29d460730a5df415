//! External events: sends them to a run and waits until they're handled.
//!
//! An event for a machine has an id and a receipt. The id is random, or derived from an idempotency key: the first
//! request with a key reserves it for its run, content and sender, so a repeated request means the same event, on any
//! instance and after any crash. A run accepts an id once. Since the id follows from the key, the run recognizes the
//! event even after the reservation has expired.

use std::sync::Arc;
use std::time::Duration;

use flowline_core::budget::Budget;
use flowline_core::decide::{Sender, check_event};
use flowline_core::ids::{digest, is_own_key};
use flowline_core::limits::Limits;
use flowline_core::{DecideInput, Json, Plan, RunId, RunKey, Status, limits};
use flowline_store::{NewDocument, Receipt, RunRow, StoreError};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::drive::DriverMessage;
use crate::engine::{Engine, EngineError};
use crate::start::{KeyOwner, user_run};

/// How long a key is reserved for its event: as long as ended runs are kept by default.
const KEY_KEPT: Duration = Duration::from_secs(30 * 86_400);
/// Roles of a sender.
const ROLES: usize = 100;
/// The longest between two looks at a receipt that is waited for.
const LOOK: Duration = Duration::from_millis(250);
/// The shortest between two looks, at first and in the end.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// An event to send.
#[derive(Debug)]
pub struct SendRequest {
    engine: Engine,
    run: RunKey,
    /// How to start its run if there's none.
    opens: Option<Opens>,
    name: String,
    payload: Json,
    event_id: Option<String>,
    key: Option<String>,
    whose: KeyOwner,
    sender: Sender,
}

/// A run under a business key.
#[derive(Debug)]
struct Opens {
    flow: String,
    key: String,
    input: Json,
}

/// An event that a run has received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    pub run_id: RunId,
    pub event_id: Arc<str>,
    /// False if the run had received it before.
    pub changed: bool,
    pub status: Status,
}

/// The first use of a key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reserved {
    run_id: RunId,
    event_id: String,
    digest: String,
    /// Of who sent it; an older build didn't record that. Not of the roles, which may change before it's sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sender: Option<String>,
}

impl Engine {
    /// An event for a run. Send it with [`SendRequest::send`] or, to wait until a machine has handled it,
    /// [`SendRequest::wait`].
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine, run: flowline::RunHandle) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use flowline::core::Json;
    ///
    /// let payload = Json::of(&serde_json::json!({ "reason": "fragile" }))?;
    /// let event = engine.event(run.key(), "order.approve", payload).key("approval-42").user("mia");
    /// let (sent, receipt) = event.wait(Duration::from_secs(5)).await?;
    /// println!("{}: {:?}", sent.event_id, receipt);
    /// # Ok(())
    /// # }
    /// ```
    pub fn event(&self, run: &RunKey, name: &str, payload: Json) -> SendRequest {
        SendRequest {
            engine: self.clone(),
            run: run.clone(),
            opens: None,
            name: name.to_owned(),
            payload,
            event_id: None,
            key: None,
            whose: KeyOwner::default(),
            sender: Sender::default(),
        }
    }

    /// An event for the run that a business key names. Where there is none it is started first, with this input. An event
    /// that no such run could take starts none.
    pub fn event_for(
        &self,
        flow: &str,
        key: &str,
        input: Json,
        (name, payload): (&str, Json),
    ) -> SendRequest {
        let run = self.key(&RunId::from_user_key(self.tenant(), flow, key));
        let opens = Opens { flow: flow.to_owned(), key: key.to_owned(), input };
        SendRequest { opens: Some(opens), ..self.event(&run, name, payload) }
    }

    /// Sends an event from outside into a run.
    ///
    /// ```no_run
    /// # async fn example(engine: flowline::Engine, run: flowline::RunHandle) -> Result<(), Box<dyn std::error::Error>> {
    /// use flowline::core::Json;
    ///
    /// engine.send(run.key(), "order.paid", Json::of(&serde_json::json!({ "cents": 1900 }))?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn send(&self, run: &RunKey, event: &str, payload: Json) -> Result<Sent, EngineError> {
        self.event(run, event, payload).send().await
    }

    /// The receipt of an event that a machine's run received.
    pub async fn receipt(&self, run: &RunKey, event_id: &str) -> Result<Option<Receipt>, EngineError> {
        Ok(self.store.receipt(run, event_id).await?)
    }

    /// Like [`Engine::receipt`], but waits until the machine has handled the event, or until the time is up.
    pub async fn wait_for_receipt(
        &self,
        run: &RunKey,
        event_id: &str,
        until: Instant,
    ) -> Result<Option<Receipt>, EngineError> {
        let mut changes = self.store.watch();
        let mut pause = PAUSE;
        loop {
            changes.mark_unchanged();
            let receipt = self.receipt(run, event_id).await?;
            let open = receipt.as_ref().is_some_and(|receipt| !receipt.status.is_end());
            let now = Instant::now();
            if !open || now >= until {
                return Ok(receipt);
            }
            let _ = tokio::time::timeout_at(until.min(now + LOOK), changes.changed()).await;
            // Every commit of the store is a change: whoever waits long looks less often.
            tokio::time::sleep_until(until.min(Instant::now() + pause)).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}

impl SendRequest {
    /// Sends one event per key in all runs of the flow: a repeated one is ignored, or refused if its content differs.
    pub fn key(mut self, key: impl Into<String>) -> SendRequest {
        self.key = Some(key.into());
        self.whose = KeyOwner::User;
        self
    }

    /// The key of a step that sends. No user's key can be mistaken for it.
    pub(crate) fn own_key(self, key: impl Into<String>) -> SendRequest {
        SendRequest { whose: KeyOwner::Engine, ..self.key(key) }
    }

    /// Sets the event's id; a run accepts one event per id. Takes precedence over a key.
    pub fn event_id(mut self, id: impl Into<String>) -> SendRequest {
        self.event_id = Some(id.into());
        self
    }

    /// Who sends it, as guards and actions see it.
    pub fn user(mut self, user: impl Into<String>) -> SendRequest {
        self.sender.user = Some(user.into());
        self
    }

    pub fn role(mut self, role: impl Into<String>) -> SendRequest {
        self.sender.roles.push(role.into());
        self
    }

    pub fn sender(mut self, sender: Sender) -> SendRequest {
        self.sender = sender;
        self
    }

    /// Sends the event. When this returns, it's durable; its effects may follow later.
    pub async fn send(mut self) -> Result<Sent, EngineError> {
        self.check()?;
        if let Some(opens) = self.opens.take() {
            let Engine { shared, .. } = &self.engine;
            self.run.run = user_run(&*shared.store, &self.run.tenant, &opens.flow, &opens.key).await?;
            self.open(opens).await?;
        }
        let (event_id, fresh) = match (self.event_id.take(), &self.key) {
            (Some(event_id), _) => (event_id, false),
            (None, Some(key)) => {
                let row = self.check_against_run().await?;
                (self.reserve(key, &row).await?, false)
            }
            (None, None) => (uuid::Uuid::now_v7().to_string(), true),
        };
        let SendRequest { engine, run, name, payload, sender, .. } = self;
        let input = DecideInput::External { name, payload, event_id: Some(event_id.clone()), sender };
        let message = if fresh { DriverMessage::new_event } else { DriverMessage::input };
        let applied = engine.carry(&run, |caller| message(run.clone(), input, caller)).await?;
        Ok(Sent {
            run_id: run.run,
            event_id: event_id.into(),
            changed: applied.changed,
            status: applied.status,
        })
    }

    /// Checks the event's id and sender.
    fn check(&self) -> Result<(), EngineError> {
        let fits = |text: &str, most: usize| {
            !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control)
        };
        let refuse = |what: String| Err(EngineError::Invalid(what));
        let Sender { user, roles, .. } = &self.sender;
        if self.event_id.as_deref().is_some_and(|id| !fits(id, limits::KEY_BYTES)) {
            return refuse(format!(
                "an event id must have 1 to {} bytes, without control characters",
                limits::KEY_BYTES
            ));
        }
        if user.as_deref().is_some_and(|user| !fits(user, limits::KEY_BYTES)) {
            return refuse(format!(
                "a user must have 1 to {} bytes, without control characters",
                limits::KEY_BYTES
            ));
        }
        if roles.len() > ROLES || !roles.iter().all(|role| fits(role, limits::NAME_BYTES)) {
            return refuse(format!(
                "a sender can have up to {ROLES} roles of 1 to {} bytes each, without control characters",
                limits::NAME_BYTES
            ));
        }
        Ok(())
    }

    /// Refuses an event that the run can't accept before a key is reserved for it. Returns the run's row.
    async fn check_against_run(&self) -> Result<RunRow, EngineError> {
        let row = self.engine.row(&self.run).await?;
        let plan = self.engine.plans().get(self.engine.store(), &row.tenant, &row.definition).await?;
        let limits = self.engine.config().limits;
        self.check_event(plan, limits).await?;
        Ok(row)
    }

    /// Whether runs of this plan take the event.
    async fn check_event(&self, plan: Arc<Plan>, limits: Limits) -> Result<(), EngineError> {
        {
            let quick = Budget::quick();
            let checked = check_event(&plan, &self.name, &self.payload, &self.sender, limits, &quick);
            if !quick.is_spent() {
                return checked.map_err(EngineError::Refused);
            }
        }
        let (name, payload, sender) = (self.name.clone(), self.payload.clone(), self.sender.clone());
        let work = move || check_event(&plan, &name, &payload, &sender, limits, &Budget::default());
        self.engine.aside().run(self.engine.tenant(), work).await.map_err(EngineError::Refused)
    }

    /// Starts the run if there's none.
    async fn open(&self, Opens { flow, key, input }: Opens) -> Result<(), EngineError> {
        match self.engine.row(&self.run).await {
            Ok(_) => return Ok(()),
            Err(EngineError::NoSuchRun(_)) => {}
            Err(error) => return Err(error),
        }
        let request = self.engine.run_named(&flow, input).await?;
        let limits = self.engine.config().limits;
        self.check_event(request.plan()?.clone(), limits).await?;
        match request.idempotency_key(key).await {
            // Somebody else was faster, with another input: the run is there, which is what counts.
            Ok(_) | Err(EngineError::KeyConflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Like [`SendRequest::send`], and waits until a machine has handled the event. Returns the receipt as it is then or when the time
    /// is up; `None` for a flow, which has no receipts.
    pub async fn wait(self, limit: Duration) -> Result<(Sent, Option<Receipt>), EngineError> {
        let engine = self.engine.clone();
        let until = Instant::now() + limit;
        let sent = self.send().await?;
        let receipt = engine.wait_for_receipt(&engine.key(&sent.run_id), &sent.event_id, until).await?;
        Ok((sent, receipt))
    }

    /// The id of the event that a key is reserved for. Nothing is reserved if the run has ended.
    ///
    /// A key counts within its flow: who may send to one flow learns nothing of another's keys and runs, and can't use them
    /// up. The engine's own keys are found under ids that no user's key leads to.
    async fn reserve(&self, key: &str, row: &RunRow) -> Result<String, EngineError> {
        if key.is_empty() || key.len() > limits::KEY_BYTES {
            let text = format!(
                "an idempotency key must have 1 to {} bytes; this one has {}",
                limits::KEY_BYTES,
                key.len()
            );
            return Err(EngineError::Invalid(text));
        }
        let reserved = self.reservation(key);
        let body = Json::of(&reserved).map_err(|error| EngineError::Invalid(error.to_string()))?;
        let collection = format!("event-keys/{}", self.run.tenant);
        // A key is any text; the id of a document is shorter.
        let bare = digest(key.as_bytes());
        let id = match self.whose {
            KeyOwner::Engine => bare.clone(),
            KeyOwner::User => digest(format!("user\0{}\0{key}", row.flow_name).as_bytes()),
        };
        let store = &self.engine.shared.store;
        if self.whose == KeyOwner::User
            && !is_own_key(key)
            && let Some(there) = store.document(&collection, &bare).await?
        {
            // Reserved when keys counted within the tenant.
            let first = read(key, &there.body)?;
            if self.is_in_flow(&first.run_id, row).await? {
                return reserved.repeats(key, first);
            }
        }
        let there = match row.status.is_terminal() {
            true => store.document(&collection, &id).await?,
            false => {
                let reservation = NewDocument::new(&collection, &id, body, Some(KEY_KEPT)).if_absent();
                store.put_document(reservation).await?
            }
        };
        match there {
            Some(there) => reserved.repeats(key, read(key, &there.body)?),
            None => Ok(reserved.event_id),
        }
    }

    /// What a key is to stand for.
    fn reservation(&self, key: &str) -> Reserved {
        let mut content = self.payload.value();
        content.sort_all_objects();
        let run_id = self.run.run.clone();
        let content = digest(format!("{}\0{content}", self.name).as_bytes());
        // The key comes last: it alone may hold a NUL.
        let name = match self.whose == KeyOwner::User && is_own_key(key) {
            true => digest(format!("user\0{run_id}\0{content}\0{key}").as_bytes()),
            false => digest(format!("{run_id}\0{content}\0{key}").as_bytes()),
        };
        let Sender { user, sent_by, .. } = &self.sender;
        let sender = Some(digest(format!("{user:?}\0{sent_by:?}").as_bytes()));
        Reserved { run_id, event_id: format!("k{}", &name[..32]), digest: content, sender }
    }

    /// Whether a run is of the same flow as this event's.
    async fn is_in_flow(&self, run: &RunId, row: &RunRow) -> Result<bool, EngineError> {
        if *run == self.run.run {
            return Ok(true);
        }
        match self.engine.row(&self.engine.key(run)).await {
            Ok(other) => Ok(other.flow_name == row.flow_name),
            Err(EngineError::NoSuchRun(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Reserved {
    /// The event that the first request under this key stands for, if this one repeats it.
    fn repeats(&self, key: &str, first: Reserved) -> Result<String, EngineError> {
        let other_sender = first.sender.is_some() && first.sender != self.sender;
        if first.run_id != self.run_id || first.digest != self.digest || other_sender {
            let run = first.run_id.to_string();
            return Err(EngineError::KeyConflict { key: key.to_owned(), run });
        }
        Ok(first.event_id)
    }
}

fn read(key: &str, body: &Json) -> Result<Reserved, StoreError> {
    let damaged = |error| StoreError::Damaged(format!("idempotency key {key:?} of an event: {error}"));
    body.to().map_err(damaged)
}
