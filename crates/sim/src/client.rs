//! Clients and operators: each operation of the program's script, asked of some instance, and what they were told.

use std::sync::Arc;
use std::time::Duration;

use flowline::internal::{DriverMessage, InputOutcome, again, input_digest, opened, refused};
use flowline::{EngineError, Plans, RetryFrom};
use flowline_check::{ClientReply, ClientRequest};
use flowline_core::decide::{self, Finish, Sender};
use flowline_core::{DecideInput, Json, Plan, RunId, RunKey, Status, Tenant};
use flowline_store::row::{Pause, Retention};
use flowline_store::{Catalog, QueueRow, RunStore, StoreError, StoredDefinition};

use crate::program::{ClientOp, Play, ScriptedStart, SimProgram};
use crate::shared::{Life, SharedWorld, Ticket, WaitPlace};
use crate::wire::Wire;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before a client turns to the next instance.
const AGAIN: Duration = Duration::from_millis(200);
/// How often a client asks until it gives up.
const TRIES: u32 = 20;

#[derive(Clone)]
pub(crate) struct SimulatedClient {
    pub(crate) shared: Arc<SharedWorld>,
    pub(crate) wire: Wire,
    pub(crate) program: Arc<SimProgram>,
    pub(crate) plans: Arc<Plans>,
    pub(crate) tenant: Tenant,
}

/// Whether an input may be sent again while its outcome is unknown.
#[derive(Clone, Copy, PartialEq)]
enum Repeats {
    UntilKnown,
    /// An event whose id was made for it.
    Never,
}

/// What a client makes of an answer.
enum Told {
    Yes,
    No(EngineError),
    /// No answer, or one that says that nobody knows.
    Unknown,
    /// The run is as asked; how long its log was before and after.
    Already {
        asked: u64,
        answered: u64,
    },
    /// There was nobody to ask.
    Unasked,
}

impl SimulatedClient {
    /// The run of a number within the program.
    pub(crate) fn run(&self, number: usize) -> RunKey {
        let key = self.program.script.starts_of(number).find_map(|start| start.key.as_deref());
        let flow = &self.program.versions[0].plan.flow;
        let run = match key {
            Some(key) => RunId::from_key(&self.tenant, flow, key),
            None => RunId::new(&format!("r{number}")).unwrap_or_else(|_| unreachable!("a plain name")),
        };
        RunKey::new(self.tenant.clone(), run)
    }

    /// Waits for the time of an operation, then carries it out.
    pub(crate) async fn perform(self, at: Duration, op: ClientOp) {
        self.shared.sleep_until(at, WaitPlace::Home).await;
        match op {
            ClientOp::Start(start) => self.start(start).await,
            ClientOp::Send { run, event, payload, id, sender, fresh } => {
                let id = id.unwrap_or_else(|| format!("event-{}", self.shared.lock().rng.u32(..)));
                let repeats = if fresh { Repeats::Never } else { Repeats::UntilKnown };
                self.send(run, event, payload, id, sender, repeats).await;
            }
            ClientOp::Play(play) => self.play(&play).await,
            ClientOp::Pause { run } => {
                self.steer(run, |run| ClientRequest::Pause { run }, DecideInput::Pause).await;
            }
            ClientOp::Resume { run } => {
                self.steer(run, |run| ClientRequest::Resume { run }, DecideInput::Resume).await;
            }
            ClientOp::Cancel { run } => {
                let input = DecideInput::Cancel { reason: None };
                self.steer(run, |run| ClientRequest::Cancel { run }, input).await;
            }
            ClientOp::Complete { run, result } => self.finish(run, Finish::Completed { result }).await,
            ClientOp::Fail { run, error } => self.finish(run, Finish::Failed { error }).await,
            ClientOp::Retry { run, into, from } => self.retry(run, into, from).await,
            ClientOp::PauseQueue { queue } => self.pause_queue(&queue, Pause::Paused).await,
            ClientOp::ResumeQueue { queue } => self.pause_queue(&queue, Pause::Open).await,
        }
    }

    /// Sends what the run's present state answers; nothing to one that is not there, or not any more.
    async fn play(&self, play: &Play) {
        let key = self.run(play.run);
        let found = self.shared.lock().memory.load(std::slice::from_ref(&key)).into_iter().flatten().next();
        let Some(row) = found.map(|run| run.row).filter(|row| !row.status.is_terminal()) else { return };
        let Some((event, payload, sender)) = self.program.choose(play, row.state.as_deref()) else { return };
        let id = format!("event-{}", play.number);
        self.send(play.run, event, payload, id, sender, Repeats::UntilKnown).await;
    }

    async fn send(
        &self,
        run: usize,
        name: String,
        payload: Json,
        id: String,
        sender: Sender,
        repeats: Repeats,
    ) {
        let (key, event_id) = (self.run(run), Some(id));
        let act =
            ClientRequest::Send { run: key.run.clone(), name: name.clone(), event_id: event_id.clone() };
        self.input(key, act, DecideInput::External { name, payload, event_id, sender }, repeats).await;
    }

    async fn steer(&self, run: usize, act: fn(RunId) -> ClientRequest, input: DecideInput) {
        let key = self.run(run);
        let act = act(key.run.clone());
        self.input(key, act, input, Repeats::UntilKnown).await;
    }

    async fn finish(&self, run: usize, finish: Finish) {
        self.steer(run, |run| ClientRequest::Finish { run }, DecideInput::Finish(finish)).await;
    }

    /// An operator insists: nothing may stay paused for ever.
    pub(crate) async fn resume_all(self) {
        loop {
            let paused: Vec<RunKey> = {
                let inner = self.shared.lock();
                let runs = (0..self.program.script.runs()).map(|number| self.run(number));
                let rows = inner.memory.load(&runs.collect::<Vec<_>>()).into_iter().flatten();
                rows.filter(|run| run.row.status == Status::Paused).map(|run| run.row.key()).collect()
            };
            if paused.is_empty() {
                break;
            }
            for key in paused {
                let act = ClientRequest::Resume { run: key.run.clone() };
                self.input(key, act, DecideInput::Resume, Repeats::UntilKnown).await;
            }
            self.shared.sleep(AGAIN, WaitPlace::Home).await;
        }
        let paused: Vec<QueueRow> = {
            let inner = self.shared.lock();
            inner
                .memory
                .queues(inner.store_now(), &self.tenant)
                .into_iter()
                .filter(|row| row.paused)
                .collect()
        };
        for row in paused {
            self.pause_queue(&row.queue, Pause::Open).await;
        }
    }

    /// Retention at these times.
    pub(crate) async fn tidy_up(self, times: Vec<Duration>, policy: Retention) {
        for at in times {
            self.shared.sleep_until(at, WaitPlace::Home).await;
            // As in the engine, the next round is soon enough where this fails.
            let _ = self.wire.retain(policy, 100).await;
        }
    }

    async fn pause_queue(&self, queue: &str, pause: Pause) {
        while self.wire.pause_queue(&self.tenant, queue, pause).await.is_err() {
            self.shared.sleep(AGAIN, WaitPlace::Home).await;
        }
    }

    async fn start(&self, start: ScriptedStart) {
        let plan = self.program.versions[start.version].plan.clone();
        let stored = StoredDefinition {
            tenant: self.tenant.clone(),
            flow: plan.flow.clone(),
            hash: plan.hash.clone(),
            body: plan.definition.canonical(),
            origin: None,
            created_at: flowline_core::Time::default(),
            latest: true,
        };
        while self.wire.put_definition(stored.clone()).await.is_err() {
            self.shared.sleep(AGAIN, WaitPlace::Home).await;
        }
        let run = self.run(start.run);
        let body = Some(start.input.get().to_owned());
        let at = match start.delay {
            Duration::ZERO => None,
            delay => match self.wire.now().await {
                Ok(now) => Some(now + delay),
                Err(_) => return,
            },
        };
        let start = decide::Start {
            at,
            input_digest: start.key.as_ref().map(|_| input_digest(&start.input)).unwrap_or_default(),
            idempotency_key: start.key,
            labels: start.labels,
            priority: start.priority,
            ..decide::Start::new(start.input)
        };
        self.open(run, plan, start, body).await;
    }

    async fn retry(&self, run: usize, number: usize, from: Option<String>) {
        let (of, into) = (self.run(run), self.run(number));
        // What a client that reads the log makes of it: any instance gives the same.
        let from = match self.program.retries_from_start(number) {
            true => RetryFrom::Start,
            false => from.as_deref().into(),
        };
        if let Ok((plan, start)) = again(&self.wire, &self.plans, &of, from).await {
            self.open(into, plan, start, None).await;
        }
    }

    /// Starts a run. With a key it is safe to ask again until somebody knows.
    async fn open(&self, run: RunKey, plan: Arc<Plan>, start: decide::Start, body: Option<String>) {
        let key = start.idempotency_key.clone();
        let act = ClientRequest::Start {
            run: Some(run.run.clone()),
            flow: plan.flow.clone(),
            key: key.clone(),
            body,
        };
        for _ in 0..TRIES {
            let asked_at = self.shared.lock().now;
            let message = |ticket| DriverMessage::start(run.clone(), plan.clone(), start.clone(), ticket);
            let told = match self.ask(message).await {
                None => Told::Unasked,
                Some(None) => Told::Unknown,
                Some(Some(outcome)) => match opened(&self.wire, &run, &start.input_digest, outcome).await {
                    Ok(_) => Told::Yes,
                    Err(EngineError::Store(_)) | Err(EngineError::NoSuchRun(_)) => Told::Unknown,
                    Err(error) => Told::No(error),
                },
            };
            if self.record(&act, asked_at, &told) || key.is_none() && !matches!(told, Told::Unasked) {
                return;
            }
            self.shared.sleep(AGAIN, WaitPlace::Home).await;
        }
    }

    /// Carries an input into a run. Unless it may not be repeated, asks again for as long as nobody knows what happened to it.
    async fn input(&self, run: RunKey, act: ClientRequest, input: DecideInput, repeats: Repeats) {
        let may_be_so_already = matches!(act, ClientRequest::Pause { .. } | ClientRequest::Resume { .. });
        for _ in 0..TRIES {
            let asked_at = self.shared.lock().now;
            let asked = self.events(&run);
            let message = |ticket| match repeats {
                Repeats::Never => DriverMessage::new_event(run.clone(), input.clone(), ticket),
                Repeats::UntilKnown => DriverMessage::input(run.clone(), input.clone(), ticket),
            };
            let told = match self.ask(message).await {
                None => Told::Unasked,
                Some(None) => Told::Unknown,
                Some(Some(InputOutcome::Applied { .. })) if may_be_so_already => {
                    Told::Already { asked, answered: self.events(&run) }
                }
                Some(Some(InputOutcome::Committed { .. } | InputOutcome::Applied { .. })) => Told::Yes,
                Some(Some(outcome)) => match refused(outcome, &run) {
                    EngineError::Store(StoreError::Unavailable(_)) => Told::Unknown,
                    error => Told::No(error),
                },
            };
            let again = matches!(told, Told::Unasked)
                || repeats == Repeats::UntilKnown && self.shared.lock().rng.bool();
            if self.record(&act, asked_at, &told) || !again {
                return;
            }
            self.shared.sleep(AGAIN, WaitPlace::Home).await;
        }
    }

    /// How long the run's log is now.
    fn events(&self, run: &RunKey) -> u64 {
        let loaded = self.shared.lock().memory.load(std::slice::from_ref(run)).into_iter().flatten().next();
        loaded.map_or(0, |run| run.row.events)
    }

    /// Asks some instance. `None` where none is up; inside it, `None` where no answer came.
    async fn ask(
        &self,
        message: impl FnOnce(Ticket) -> DriverMessage<Ticket>,
    ) -> Option<Option<InputOutcome>> {
        let (ticket, by) = {
            let mut inner = self.shared.lock();
            let up: Vec<Life> = inner.up.clone();
            let life = (!up.is_empty()).then(|| up[inner.rng.usize(0..up.len())])?;
            let ticket = inner.ticket(life);
            inner.mail.push_back((life, message(ticket)));
            (ticket, inner.now + PATIENCE)
        };
        Some(self.shared.answered(ticket, Some(by)).await)
    }

    /// Writes down what a client was told. True where it knows.
    fn record(&self, act: &ClientRequest, asked_at: Duration, told: &Told) -> bool {
        let mut inner = self.shared.lock();
        let promised_since = inner.went_back.is_none_or(|at| at < asked_at);
        let outcome = match told {
            // Said by a store that has gone back since, and promises no more.
            Told::Yes | Told::Already { .. } if !promised_since => ClientReply::Unknown,
            Told::Yes => ClientReply::Acknowledged,
            Told::No(_) => ClientReply::Refused,
            Told::Unknown => ClientReply::Unknown,
            Told::Already { asked, answered } => {
                ClientReply::Unchanged { asked: *asked, answered: *answered }
            }
            Told::Unasked => return false,
        };
        inner.tell(
            || "client".to_owned(),
            || match told {
                Told::No(error) => format!("{act:?} was refused: {error}"),
                _ => format!("{act:?}: {outcome:?}"),
            },
        );
        inner.history.push(&self.tenant, act.clone(), outcome);
        outcome != ClientReply::Unknown
    }
}
