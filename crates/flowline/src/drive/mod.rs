//! The one task that owns an instance's ledger, slots and attempts, and talks to the store for them.
//!
//! Everything reaches it as a [`Message`]. After each batch of messages it pumps: decides what can be decided and sends
//! the commits off, a limited number of batches at a time, so that deciding the next batch overlaps with writing the
//! last. Nothing here blocks: a call to the store is a task whose answer comes back as a message.

mod commit;
mod load;
mod recover;
mod work;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use flowline_core::event::Slot;
use flowline_core::{Json, Plan, RunKey, Status, Time, json};
use flowline_store::{
    Claimed, CommitError, Committed, Extend, Extended, JobKey, LeasedJob, NewRun, Store, StoreError, Swept,
    Token,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::attempt::Launch;
use crate::config::{Config, Role};
use crate::ledger::{Entry, Ledger, Outcome, Seen};
use crate::plans::Plans;
use crate::runner::Runners;
use crate::slots::Slots;

pub(crate) use load::see;

/// Batches of commits on their way to the store at once.
const FLIGHTS: usize = 16;
/// Commits in a batch.
const BATCH: usize = 512;
/// Pause before asking a store again that could not answer; doubled up to a second.
const RETRY_STORE: Duration = Duration::from_millis(20);
/// Expired leases and due timers looked at in one sweep.
const SWEEP: usize = 1_000;

/// Something for the driver to deal with.
#[derive(Debug)]
pub enum Message {
    Offer(RunKey, Entry<Reply>),
    Start(RunKey, Arc<Plan>, Box<NewRun>, Entry<Reply>, oneshot::Sender<Ended>),
    /// An attempt is over; its slot is free.
    Finished(Token, RunKey, Entry<Reply>),
    /// Tell when a run ends.
    Await(RunKey, oneshot::Sender<Ended>),
    /// Tell when there is nothing left to do, or only jobs that are due later than this from now.
    AwaitIdle(Duration, oneshot::Sender<()>),
    /// No new attempts; end when the running ones have, or after this long.
    Stop(Duration),
    /// An attempt could not write its lines, or can again.
    Trouble(Option<StoreError>),
    Answer(Answer),
}

/// How a run ended: its status and the data of the terminal event.
#[derive(Debug, Clone)]
pub struct Ended {
    pub status: Status,
    pub data: Option<Json>,
}

/// Who wants to know what became of an input.
#[derive(Debug)]
pub enum Reply {
    None,
    Outcome(oneshot::Sender<Outcome>),
    /// Start this attempt once its `step.started` is in the log.
    Launch(Box<Launch>),
}

/// What the store answered.
#[derive(Debug)]
pub enum Answer {
    Committed(Vec<RunKey>, Result<Vec<Result<Committed, CommitError>>, StoreError>),
    Loaded(Vec<RunKey>, Result<Vec<Option<Seen>>, StoreError>),
    Payloads(RunKey, Result<Vec<(Slot, Json)>, StoreError>),
    Leases(RunKey, Result<BTreeSet<u32>, StoreError>),
    Claimed(Result<Claimed, StoreError>),
    /// Claimed jobs with all that their attempts need; those that could not be prepared are given back.
    Prepared(Vec<(Launch, bool)>, Vec<(LeasedJob, Arc<str>)>),
    Swept(Result<Swept, StoreError>),
    Extended(Vec<Token>, Result<Vec<Extended>, StoreError>),
}

/// What a driver has done since it started.
#[derive(Debug, Default)]
pub struct Meters {
    pub commits: AtomicU64,
    /// Commits that another's came before.
    pub conflicts: AtomicU64,
    /// Batches that the commits went in.
    pub batches: AtomicU64,
    pub claims: AtomicU64,
}

struct Running {
    run: RunKey,
    key: JobKey,
    queue: Arc<str>,
    stop: AbortHandle,
}

pub struct Driver {
    store: Arc<dyn Store>,
    plans: Arc<Plans>,
    runners: Arc<Runners>,
    config: Config,
    ledger: Ledger<Reply>,
    slots: Slots,
    attempts: HashMap<Token, Running>,
    waiters: HashMap<RunKey, Vec<oneshot::Sender<Ended>>>,
    idle_waiters: Vec<(Duration, oneshot::Sender<()>)>,
    inbox: mpsc::UnboundedSender<Message>,
    mail: mpsc::UnboundedReceiver<Message>,
    tasks: JoinSet<()>,
    clock: StoreClock,
    /// Its name, as JSON.
    instance: Json,
    meters: Arc<Meters>,
    /// Why the store takes no writes at present.
    told_trouble: watch::Sender<Option<StoreError>>,
    flights: usize,
    /// Consecutive failures of the store, for the pause between tries.
    trouble: u32,
    /// Runs to look at again once the store answers.
    retry: Vec<RunKey>,
    claiming: bool,
    sweeping: bool,
    /// Claimed jobs whose attempts are being prepared.
    preparing: usize,
    next_claim: Option<Instant>,
    next_sweep: Instant,
    next_heartbeat: Instant,
    next_retry: Option<Instant>,
    stop_by: Option<Instant>,
    /// Whether jobs may wait for a slot: then a free one is filled at once.
    backlog: bool,
    /// The last claim found nothing and nothing has changed since; with it, when the next job is due.
    quiet: Option<Option<Time>>,
    swept_once: bool,
}

/// The store's time, read off its last answer and a local monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct StoreClock {
    at: Time,
    seen: Instant,
}

impl StoreClock {
    pub fn new(at: Time) -> StoreClock {
        StoreClock { at, seen: Instant::now() }
    }

    fn now(&self) -> Time {
        self.at + self.seen.elapsed()
    }

    /// When the store's clock will show this time.
    fn instant(&self, time: Time) -> Instant {
        self.seen + time.since(self.at)
    }

    fn adjust(&mut self, at: Time) {
        *self = StoreClock::new(at);
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({})", self.config.instance)
    }
}

impl Driver {
    pub fn new(
        store: Arc<dyn Store>,
        plans: Arc<Plans>,
        runners: Arc<Runners>,
        config: Config,
        meters: Arc<Meters>,
        told_trouble: watch::Sender<Option<StoreError>>,
        now: Time,
    ) -> (Driver, mpsc::UnboundedSender<Message>) {
        let (inbox, mail) = mpsc::unbounded_channel();
        let instance = json::string(&config.instance);
        let start = Instant::now();
        let works = config.role == Role::Work;
        let driver = Driver {
            slots: Slots::new(config.clone(), runners.clone()),
            next_heartbeat: start + config.lease / 3,
            next_claim: works.then_some(start),
            next_sweep: start,
            store,
            plans,
            runners,
            config,
            ledger: Ledger::default(),
            attempts: HashMap::new(),
            waiters: HashMap::new(),
            idle_waiters: Vec::new(),
            inbox: inbox.clone(),
            mail,
            tasks: JoinSet::new(),
            clock: StoreClock::new(now),
            instance,
            meters,
            told_trouble,
            flights: 0,
            trouble: 0,
            retry: Vec::new(),
            claiming: false,
            sweeping: false,
            preparing: 0,
            next_retry: None,
            stop_by: None,
            backlog: false,
            quiet: None,
            swept_once: false,
        };
        (driver, inbox)
    }

    /// Runs until it is told to stop and everything has come to rest.
    pub async fn run(mut self) {
        let mut mail = Vec::new();
        loop {
            let tick = self.next_tick();
            tokio::select! {
                biased;
                received = self.mail.recv_many(&mut mail, 4 * BATCH) => {
                    if received == 0 {
                        break;
                    }
                    mail.drain(..).for_each(|message| self.handle(message));
                }
                () = tokio::time::sleep_until(tick) => {}
            }
            self.tick();
            self.pump();
            self.tell_idle();
            while self.tasks.try_join_next().is_some() {}
            if self.may_stop() {
                break;
            }
        }
        self.tasks.shutdown().await;
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Offer(run, entry) => self.ledger.offer(run, entry),
            Message::Start(run, plan, new, entry, waiter) => {
                self.waiters.entry(run.clone()).or_default().push(waiter);
                self.ledger.offer_new(run, plan, *new, entry);
            }
            Message::Finished(token, run, entry) => {
                if let Some(running) = self.attempts.remove(&token) {
                    self.free(&running.queue);
                }
                self.ledger.offer(run, entry);
            }
            Message::Await(run, waiter) => self.waiters.entry(run).or_default().push(waiter),
            Message::AwaitIdle(patience, waiter) => self.idle_waiters.push((patience, waiter)),
            Message::Stop(drain) => {
                self.slots.close();
                self.stop_by = Some(Instant::now() + drain);
                self.next_claim = None;
            }
            Message::Trouble(trouble) => self.tell_trouble(trouble),
            Message::Answer(answer) => self.answer(answer),
        }
    }

    /// Lets whoever watches know that the store takes no writes, or does again.
    fn tell_trouble(&mut self, trouble: Option<StoreError>) {
        self.told_trouble.send_if_modified(|told| {
            let changed = *told != trouble;
            *told = trouble;
            changed
        });
    }

    fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Committed(runs, result) => self.committed(runs, result),
            Answer::Loaded(runs, Ok(seen)) => {
                for (run, seen) in runs.iter().zip(seen) {
                    let replies = self.ledger.loaded(run, seen);
                    self.reply(replies);
                }
            }
            Answer::Loaded(runs, Err(error)) => runs.iter().for_each(|run| self.question_failed(run, &error)),
            Answer::Payloads(run, Ok(payloads)) => self.ledger.payloads(&run, payloads),
            Answer::Leases(run, Ok(leased)) => self.ledger.leases(&run, leased),
            Answer::Payloads(run, Err(error)) | Answer::Leases(run, Err(error)) => {
                self.question_failed(&run, &error)
            }
            Answer::Claimed(result) => self.claimed(result),
            Answer::Prepared(launches, failed) => {
                self.preparing -= launches.len() + failed.len();
                launches.into_iter().for_each(|(launch, delayed)| self.launch(launch, delayed));
                for (job, queue) in failed {
                    self.free(&queue);
                    self.release(vec![Extend { run: job.run, key: job.key, token: job.token }]);
                }
            }
            Answer::Swept(result) => self.swept(result),
            Answer::Extended(tokens, Ok(results)) => {
                for (token, result) in tokens.iter().zip(results) {
                    if let Extended::Gone(why) = result {
                        self.lost(*token, why);
                    }
                }
            }
            // The next heartbeat is soon enough: a lease outlasts two that are missed.
            Answer::Extended(_, Err(_)) => {}
        }
    }

    fn next_tick(&self) -> Instant {
        let mut next = self.next_heartbeat;
        if self.config.role == Role::Work && !self.sweeping {
            next = next.min(self.next_sweep);
        }
        if !self.claiming {
            next = self.next_claim.map_or(next, |at| next.min(at));
        }
        for at in [self.next_retry, self.stop_by].into_iter().flatten() {
            next = next.min(at);
        }
        next
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if self.next_retry.is_some_and(|at| at <= now) {
            self.next_retry = None;
            std::mem::take(&mut self.retry).iter().for_each(|run| self.ledger.wake(run));
        }
        if self.next_heartbeat <= now {
            self.heartbeat();
        }
        if self.config.role == Role::Work && !self.sweeping && self.next_sweep <= now {
            self.sweep();
        }
        if !self.claiming && self.next_claim.is_some_and(|at| at <= now) {
            self.next_claim = None;
            self.claim();
        }
        if self.stop_by.is_some_and(|at| at <= now) && !self.attempts.is_empty() {
            self.give_back();
        }
    }

    /// The time to drain is up: what still runs is stopped and given back.
    fn give_back(&mut self) {
        let leases = self
            .attempts
            .drain()
            .map(|(token, running)| {
                running.stop.abort();
                Extend { run: running.run, key: running.key, token }
            })
            .collect();
        self.release(leases);
    }

    fn at_rest(&self) -> bool {
        self.attempts.is_empty() && self.preparing == 0 && !self.claiming && self.ledger.is_idle()
    }

    fn may_stop(&self) -> bool {
        self.stop_by.is_some() && self.at_rest() && self.tasks.is_empty()
    }

    fn tell_idle(&mut self) {
        if self.idle_waiters.is_empty() || !self.swept_once || !self.at_rest() {
            return;
        }
        let Some(next_due) = self.quiet else {
            // Nothing is known to wait, but nobody has looked since the last change.
            self.next_claim = Some(Instant::now());
            return;
        };
        let next = next_due.map_or(Duration::MAX, |due| due.since(self.clock.now()));
        let (done, waiting) =
            std::mem::take(&mut self.idle_waiters).into_iter().partition(|(patience, _)| next > *patience);
        self.idle_waiters = waiting;
        let done: Vec<(Duration, oneshot::Sender<()>)> = done;
        for (_, waiter) in done {
            let _ = waiter.send(());
        }
    }
}
