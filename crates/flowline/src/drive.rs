//! The one task that owns an instance's ledger, slots and attempts, and talks to the store for them.
//!
//! Everything reaches it as a [`Message`]. After each batch of messages it pumps: decides what can be decided and sends
//! the commits off, at most [`FLIGHTS`] batches at a time, so that deciding the next batch overlaps with writing the
//! last. Nothing here blocks: a call to the store is a task whose answer comes back as a message.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowline_core::event::{EventType, NewEvent};
use flowline_core::json;
use flowline_core::run::Phase;
use flowline_core::{Input, Json, Plan, RunKey, Status, Time};
use flowline_store::{
    Claimed, Commit, CommitError, Committed, ExpiredLease, Extend, Extended, Gone, JobKey, JobState, Lane,
    LeaseUse, LeasedJob, NewRun, Snapshot, Store, StoreError, Swept, Token,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::attempt::{Launch, started_data};
use crate::config::{Config, Role};
use crate::ledger::{Ask, Entry, Handed, Ledger, Outcome, Seen, input_of};
use crate::plans::Plans;
use crate::runner::Runners;
use crate::slots::Slots;

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
    Payloads(RunKey, Result<Vec<(flowline_core::event::Slot, Json)>, StoreError>),
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

    // ---- commits ----

    /// Decides what can be decided and sends the questions off.
    fn pump(&mut self) {
        while self.flights < FLIGHTS {
            let (asks, replies) = self.ledger.next(self.clock.now(), &mut self.slots, BATCH);
            self.reply(replies);
            if asks.is_empty() {
                return;
            }
            let (mut commits, mut loads) = (Vec::new(), Vec::new());
            for ask in asks {
                match ask {
                    Ask::Commit(commit) => commits.push(*commit),
                    Ask::Load(run) => loads.push(run),
                    Ask::Payloads(run, slots) => self.ask_payloads(run, slots),
                    Ask::Leases(run) => self.ask_leases(run),
                }
            }
            if !loads.is_empty() {
                self.ask_load(loads);
            }
            if !commits.is_empty() {
                self.send_commits(commits);
            }
        }
    }

    fn send_commits(&mut self, commits: Vec<Commit>) {
        self.flights += 1;
        let runs: Vec<RunKey> = commits.iter().map(|commit| commit.run.clone()).collect();
        let store = self.store.clone();
        self.ask(async move { Answer::Committed(runs, store.commit(commits).await) });
    }

    fn committed(
        &mut self,
        runs: Vec<RunKey>,
        result: Result<Vec<Result<Committed, CommitError>>, StoreError>,
    ) {
        self.flights -= 1;
        match result {
            Ok(results) => {
                self.trouble = 0;
                self.tell_trouble(None);
                self.meters.batches.fetch_add(1, Ordering::Relaxed);
                for (run, result) in runs.iter().zip(results) {
                    match &result {
                        Ok(committed) => {
                            self.meters.commits.fetch_add(1, Ordering::Relaxed);
                            self.clock.adjust(committed.ts.max(self.clock.now()));
                        }
                        Err(CommitError::Conflict { .. }) => {
                            self.meters.conflicts.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {}
                    }
                    self.landed(run, result);
                }
            }
            Err(error) => runs.iter().for_each(|run| self.question_failed(run, &error)),
        }
    }

    fn landed(&mut self, run: &RunKey, result: Result<Committed, CommitError>) {
        self.quiet = None;
        let landed = self.ledger.committed(run, result);
        landed.unused.iter().for_each(|queue| self.free(queue));
        self.reply(landed.replies);
        if let Some(due) = landed.waiting {
            self.claim_by(due);
            self.next_sweep = self.next_sweep.min(self.clock.instant(due));
        }
        for handed in landed.handed {
            self.take_over(handed);
        }
        if let Some((status, data)) = landed.ended {
            self.ended(run, Ended { status, data });
        }
    }

    /// Starts an attempt that a commit handed to this instance.
    fn take_over(&mut self, handed: Handed) {
        let Handed { run, plan, step, attempt, handoff, input } = handed;
        let token = handoff.token;
        if let Some(input) = input {
            self.launch(Launch { run, plan, step, attempt, token, input, started: false }, false);
            return;
        }
        let planned = plan.step(step);
        let lane = Lane { queue: planned.queue.clone(), need: planned.need.clone() };
        let (key, name, expires) = (JobKey::Step(step), planned.name.clone(), self.clock.now() + handoff.ttl);
        self.prepare(vec![LeasedJob { run, key, name, attempt, lane, token, expires }]);
    }

    /// A run has ended: whoever waits is told, and attempts that are still running are stopped.
    fn ended(&mut self, run: &RunKey, ended: Ended) {
        for waiter in self.waiters.remove(run).unwrap_or_default() {
            let _ = waiter.send(ended.clone());
        }
        if ended.status == Status::Completed && self.attempts.is_empty() {
            return;
        }
        let tokens: Vec<Token> = self
            .attempts
            .iter()
            .filter(|(_, running)| running.run == *run)
            .map(|(token, _)| *token)
            .collect();
        tokens.into_iter().for_each(|token| self.lost(token, Gone::RunEnded));
    }

    /// The store could not answer: the run's inputs wait, or are refused where waiting cannot help.
    fn question_failed(&mut self, run: &RunKey, error: &StoreError) {
        if error.is_transient() && self.stop_by.is_none() {
            let unused = self.ledger.failed(run);
            unused.iter().for_each(|queue| self.free(queue));
            self.tell_trouble(Some(error.clone()));
            if error.nothing_written() {
                let replies = self.ledger.refuse_outside(run, error);
                self.reply(replies);
            }
            self.retry.push(run.clone());
            let pause = RETRY_STORE.saturating_mul(1 << self.trouble.min(6));
            self.trouble += 1;
            self.next_retry.get_or_insert(Instant::now() + pause.min(Duration::from_secs(1)));
            return;
        }
        let (replies, unused) = self.ledger.abandon(run, || error.clone());
        unused.iter().for_each(|queue| self.free(queue));
        self.reply(replies);
    }

    fn ask_load(&mut self, runs: Vec<RunKey>) {
        let (store, plans) = (self.store.clone(), self.plans.clone());
        self.ask(async move {
            let result = load(&*store, &plans, &runs).await;
            Answer::Loaded(runs, result)
        });
    }

    fn ask_payloads(&mut self, run: RunKey, slots: Vec<flowline_core::event::Slot>) {
        let store = self.store.clone();
        self.ask(async move {
            let found = store.payloads(&run, &slots).await;
            let opened = found.map(|found| {
                let open = |(slot, data): (_, Option<Json>)| (slot, open(slot, data));
                slots.into_iter().zip(found).map(open).collect()
            });
            Answer::Payloads(run, opened)
        });
    }

    fn ask_leases(&mut self, run: RunKey) {
        let store = self.store.clone();
        self.ask(async move {
            let leased = store.jobs(&run).await.map(|jobs| {
                let leased = jobs.into_iter().filter(|job| job.state == JobState::Leased);
                leased
                    .filter_map(|job| if let JobKey::Step(step) = job.key { Some(step) } else { None })
                    .collect()
            });
            Answer::Leases(run, leased)
        });
    }

    /// Runs a call to the store; its answer comes back as a message.
    fn ask(&mut self, call: impl Future<Output = Answer> + Send + 'static) {
        let inbox = self.inbox.clone();
        self.tasks.spawn(async move {
            let _ = inbox.send(Message::Answer(call.await));
        });
    }

    fn reply(&mut self, replies: Vec<(Reply, Outcome)>) {
        for (reply, outcome) in replies {
            match reply {
                Reply::None => {}
                Reply::Outcome(sender) => drop(sender.send(outcome)),
                Reply::Launch(launch) => match outcome {
                    Outcome::Committed { .. } => self.launch(Launch { started: true, ..*launch }, false),
                    Outcome::Applied { .. } => self.launch(*launch, false),
                    _ => {
                        let queue = launch.plan.step(launch.step).queue.clone();
                        self.free(&queue);
                    }
                },
            }
        }
    }

    // ---- work ----

    fn claim_by(&mut self, due: Time) {
        if self.stop_by.is_none() && self.config.role == Role::Work {
            let at = self.clock.instant(due);
            self.next_claim = Some(self.next_claim.map_or(at, |next| next.min(at)));
        }
    }

    /// A slot is free: whatever waits for one can be claimed.
    fn free(&mut self, queue: &str) {
        self.slots.free(queue);
        if self.backlog && self.stop_by.is_none() {
            self.next_claim = Some(Instant::now());
        }
    }

    fn claim(&mut self) {
        let Some(claim) = self.slots.claim() else { return };
        self.claiming = true;
        self.meters.claims.fetch_add(1, Ordering::Relaxed);
        let store = self.store.clone();
        self.ask(async move { Answer::Claimed(store.claim(claim).await) });
    }

    fn claimed(&mut self, result: Result<Claimed, StoreError>) {
        self.claiming = false;
        let again = Instant::now() + self.config.sweep;
        let claimed = match result {
            Ok(claimed) => claimed,
            Err(error) => {
                self.tell_trouble(Some(error));
                self.next_claim = self.stop_by.is_none().then_some(again);
                return;
            }
        };
        self.clock.adjust(claimed.now);
        for job in &claimed.jobs {
            self.slots.take(&job.lane.queue);
        }
        if self.stop_by.is_none() {
            // Somebody else's commit can make a job ready too: look again now and then.
            self.backlog = !claimed.jobs.is_empty() || self.slots.any_full();
            self.quiet = claimed.jobs.is_empty().then_some(claimed.next_due);
            let next = if claimed.jobs.is_empty() {
                claimed.next_due.map_or(again, |due| self.clock.instant(due).min(again))
            } else {
                Instant::now()
            };
            self.next_claim = Some(next);
        }
        if !claimed.jobs.is_empty() {
            self.prepare(claimed.jobs);
        }
    }

    /// Loads what the attempts of claimed jobs need.
    fn prepare(&mut self, jobs: Vec<LeasedJob>) {
        self.preparing += jobs.len();
        let (store, plans) = (self.store.clone(), self.plans.clone());
        self.ask(async move {
            let (launches, failed) = prepare(&*store, &plans, jobs).await;
            Answer::Prepared(launches, failed)
        });
    }

    fn launch(&mut self, launch: Launch, delayed: bool) {
        if delayed {
            // The log must say that the wait is over, for the run's status follows from the log.
            let (run, step, attempt) = (launch.run.clone(), launch.step, launch.attempt);
            let entry = Entry {
                input: Input::Started {
                    step,
                    attempt,
                    data: started_data(&self.instance, Some(self.clock.now())),
                },
                lines: Vec::new(),
                lease: Some(LeaseUse::Keep {
                    key: JobKey::Step(step),
                    attempt,
                    token: launch.token,
                    lines: 1,
                }),
                reply: Reply::Launch(Box::new(launch)),
            };
            self.ledger.offer(run, entry);
            return;
        }
        let planned = launch.plan.step(launch.step);
        let Some(runner) = self.runners.get(&planned.need) else { return };
        let (token, run, key) = (launch.token, launch.run.clone(), JobKey::Step(launch.step));
        let queue = planned.queue.clone();
        let (store, inbox, instance) = (self.store.clone(), self.inbox.clone(), self.instance.clone());
        let work = launch.run(runner, store, inbox, instance, self.clock.now());
        let stop = self.tasks.spawn(work);
        self.attempts.insert(token, Running { run, key, queue, stop });
    }

    /// The lease of an attempt is gone: the attempt is stopped, and reports nothing.
    fn lost(&mut self, token: Token, _why: Gone) {
        if let Some(running) = self.attempts.remove(&token) {
            running.stop.abort();
            self.free(&running.queue);
        }
    }

    // ---- recovery ----

    fn sweep(&mut self) {
        self.sweeping = true;
        let store = self.store.clone();
        self.ask(async move { Answer::Swept(store.sweep(SWEEP).await) });
    }

    fn swept(&mut self, result: Result<Swept, StoreError>) {
        self.sweeping = false;
        self.next_sweep = Instant::now() + self.config.sweep;
        let Ok(swept) = result else { return };
        self.swept_once = true;
        self.clock.adjust(swept.now);
        if let Some(next) = swept.next {
            self.next_sweep = self.next_sweep.min(self.clock.instant(next));
        }
        for timer in swept.timers {
            let entry = Entry {
                input: Input::TimedOut,
                lines: Vec::new(),
                lease: Some(LeaseUse::Due { key: timer.key, attempt: timer.attempt }),
                reply: Reply::None,
            };
            self.ledger.offer(timer.run, entry);
        }
        for lease in swept.expired {
            let (run, entry) = recover(lease);
            self.ledger.offer(run, entry);
        }
    }

    fn heartbeat(&mut self) {
        self.next_heartbeat = Instant::now() + self.config.lease / 3;
        self.waiters.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            !waiters.is_empty()
        });
        let leases: Vec<Extend> = self
            .attempts
            .iter()
            .map(|(token, running)| Extend { run: running.run.clone(), key: running.key, token: *token })
            .collect();
        if leases.is_empty() {
            return;
        }
        let (store, ttl) = (self.store.clone(), self.config.lease);
        let tokens = leases.iter().map(|lease| lease.token).collect();
        self.ask(async move { Answer::Extended(tokens, store.extend(leases, ttl).await) });
    }

    fn release(&mut self, leases: Vec<Extend>) {
        let store = self.store.clone();
        self.tasks.spawn(async move {
            // Where this fails the leases run out by themselves.
            let _ = store.release(leases).await;
        });
    }

    // ---- time ----

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

/// A lease that ran out becomes an input of its run. What the attempt did not get to write is written for it.
fn recover(lease: ExpiredLease) -> (RunKey, Entry<Reply>) {
    let attempt = lease.attempt;
    let mut lines = Vec::new();
    if lease.lines == 0 {
        let data = started_data(&json::string(&lease.worker), None);
        lines.push(NewEvent::step(EventType::StepStarted, &lease.name, attempt, Some(data)));
    }
    let step = match lease.key {
        JobKey::Step(step) => step,
        JobKey::Timer(_) => u32::MAX,
    };
    let entry = Entry {
        input: Input::LeaseLost { step, attempt, released: lease.released },
        lines,
        lease: Some(LeaseUse::Expired { key: lease.key, attempt, token: lease.token }),
        reply: Reply::None,
    };
    (lease.run, entry)
}

fn open(slot: flowline_core::event::Slot, data: Option<Json>) -> Json {
    data.map_or_else(Json::null, |data| slot.open(&data))
}

/// Loads runs with the plans that they are pinned to.
async fn load(store: &dyn Store, plans: &Plans, runs: &[RunKey]) -> Result<Vec<Option<Seen>>, StoreError> {
    let mut seen = Vec::with_capacity(runs.len());
    for snapshot in store.load(runs).await? {
        seen.push(match snapshot {
            Some(snapshot) => Some(see(store, plans, snapshot).await?),
            None => None,
        });
    }
    Ok(seen)
}

/// Reads a snapshot with the plan that its run is pinned to.
pub async fn see(store: &dyn Store, plans: &Plans, snapshot: Snapshot) -> Result<Seen, StoreError> {
    let plan = plans.get(store, &snapshot.row.tenant, &snapshot.row.definition).await?;
    let state = flowline_core::RunState::decode(&plan, &snapshot.state)
        .map_err(|error| StoreError::Damaged(format!("run {}: {error}", snapshot.row.run_id)))?;
    Ok(Seen { plan, state, version: snapshot.row.version, created_at: snapshot.row.created_at })
}

/// Loads what claimed jobs need to start: plan, state, input.
async fn prepare(
    store: &dyn Store,
    plans: &Plans,
    jobs: Vec<LeasedJob>,
) -> (Vec<(Launch, bool)>, Vec<(LeasedJob, Arc<str>)>) {
    let (mut launches, mut failed) = (Vec::new(), Vec::new());
    let runs: Vec<RunKey> = jobs.iter().map(|job| job.run.clone()).collect();
    let seen = load(store, plans, &runs).await.unwrap_or_else(|_| vec![None; runs.len()]);
    for (job, seen) in jobs.into_iter().zip(seen) {
        let prepared = match seen {
            Some(seen) => prepare_one(store, &job, seen).await,
            None => None,
        };
        match prepared {
            Some(launch) => launches.push(launch),
            None => {
                let queue = job.lane.queue.clone();
                failed.push((job, queue));
            }
        }
    }
    (launches, failed)
}

async fn prepare_one(store: &dyn Store, job: &LeasedJob, seen: Seen) -> Option<(Launch, bool)> {
    let JobKey::Step(step) = job.key else { return None };
    let mut payloads = BTreeMap::new();
    let input = match input_of(&seen.plan, step, &seen.state, &payloads) {
        Ok(input) => input,
        Err(slots) => {
            let found = store.payloads(&job.run, &slots).await.ok()?;
            payloads.extend(slots.into_iter().zip(found).map(|(slot, data)| (slot, open(slot, data))));
            input_of(&seen.plan, step, &seen.state, &payloads).ok()?
        }
    };
    let delayed = seen.state.step(step).phase == Phase::Delayed;
    let launch = Launch {
        run: job.run.clone(),
        plan: seen.plan,
        step,
        attempt: job.attempt,
        token: job.token,
        input,
        started: false,
    };
    Some((launch, delayed))
}
