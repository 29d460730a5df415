//! Runs a driver under tokio: one task hands it messages and carries out its actions.
//!
//! No decisions are made here. Store calls and attempts are tasks that mail back their results. The host owns every
//! task, and joins or aborts it when it stops.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::limits::Limits;
use flowline_core::{Json, RunKey, Time, json};
use flowline_store::{Store, StoreError, Token};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::{BATCH, Driver, DriverMessage, DriverOrder, Meters, RunEnd, StoreCall, StoreReply};
use crate::aside::Aside;
use crate::attempt::live::Workplace;
use crate::attempt::volume::LogTally;
use crate::config::Config;
use crate::ledger::InputOutcome;
use crate::plans::Plans;
use crate::remote::Seats;
use crate::runner::Runners;
use crate::slots::{Slots, Tokens};

/// How a caller gets the outcome of its input.
#[derive(Debug)]
pub struct InputCaller {
    reply: oneshot::Sender<InputOutcome>,
    /// For a start: told when the run ends, unless it existed before.
    ended: Option<(RunKey, oneshot::Sender<RunEnd>)>,
}

impl InputCaller {
    /// A caller that starts this run.
    pub fn starting(
        run: RunKey,
        reply: oneshot::Sender<InputOutcome>,
        ended: oneshot::Sender<RunEnd>,
    ) -> InputCaller {
        InputCaller { reply, ended: Some((run, ended)) }
    }
}

impl From<oneshot::Sender<InputOutcome>> for InputCaller {
    fn from(reply: oneshot::Sender<InputOutcome>) -> InputCaller {
        InputCaller { reply, ended: None }
    }
}

/// How often abandoned waiters are removed.
const FORGET: Duration = Duration::from_secs(10);

/// Something for the host to deal with.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all of it is messages")]
pub enum Mail {
    Message(DriverMessage<InputCaller>),
    /// Tell when a run ends.
    Await(RunKey, oneshot::Sender<RunEnd>),
    /// Tell when there is nothing left to do, or only jobs that are due later than this from now.
    AwaitIdle(Duration, oneshot::Sender<()>),
}

pub struct Host {
    driver: Driver<InputCaller>,
    store: Arc<dyn Store>,
    plans: Arc<Plans>,
    aside: Arc<Aside>,
    runners: Arc<Runners>,
    seats: Seats,
    /// Local time counts from here.
    start: Instant,
    name: Arc<str>,
    /// Its name, as JSON.
    instance: Json,
    limits: Limits,
    tally: Arc<LogTally>,
    inbox: mpsc::UnboundedSender<Mail>,
    mail: mpsc::UnboundedReceiver<Mail>,
    tasks: JoinSet<()>,
    attempts: HashMap<Token, AbortHandle>,
    waiters: HashMap<RunKey, Vec<oneshot::Sender<RunEnd>>>,
    idle_waiters: Vec<(Duration, oneshot::Sender<()>)>,
    told_trouble: watch::Sender<Option<StoreError>>,
    meters: Arc<Meters>,
    forget_at: Instant,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({:?})", self.driver)
    }
}

impl Host {
    /// What runs have logged in this instance.
    pub(crate) fn tally(&self) -> Arc<LogTally> {
        self.tally.clone()
    }

    pub(crate) fn new(
        store: Arc<dyn Store>,
        plans: Arc<Plans>,
        runners: Arc<Runners>,
        seats: Seats,
        config: Config,
        meters: Arc<Meters>,
        store_now: Time,
    ) -> (Host, mpsc::UnboundedSender<Mail>) {
        let (inbox, mail) = mpsc::unbounded_channel();
        let slots =
            Slots::new(config.clone(), runners.needs().to_vec(), Tokens::random()).with_seats(seats.clone());
        let start = Instant::now();
        let host = Host {
            name: config.instance.clone(),
            instance: json::string(&config.instance),
            limits: config.limits,
            tally: Arc::default(),
            driver: Driver::new(config, slots, meters.clone(), Duration::ZERO, store_now),
            store,
            aside: plans.aside(),
            plans,
            runners,
            seats,
            start,
            inbox: inbox.clone(),
            mail,
            tasks: JoinSet::new(),
            attempts: HashMap::new(),
            waiters: HashMap::new(),
            idle_waiters: Vec::new(),
            told_trouble: watch::channel(None).0,
            meters,
            forget_at: start + FORGET,
        };
        (host, inbox)
    }

    /// Why the store takes no writes, and when it does again.
    pub(crate) fn trouble(&self) -> watch::Receiver<Option<StoreError>> {
        self.told_trouble.subscribe()
    }

    /// Runs until it is told to stop and everything has come to rest.
    pub async fn run(mut self) {
        let mut mail = Vec::new();
        let mut changed = self.store.watch();
        loop {
            let tick = self.start + self.driver.next_tick();
            tokio::select! {
                biased;
                received = self.mail.recv_many(&mut mail, 4 * BATCH) => {
                    if received == 0 {
                        break;
                    }
                    if received < BATCH && mail.iter().any(is_input) {
                        // Whoever else has something to say says it first: what comes together is written together.
                        tokio::task::yield_now().await;
                        while mail.len() < BATCH && let Ok(more) = self.mail.try_recv() {
                            mail.push(more);
                        }
                    }
                    let now = self.start.elapsed();
                    mail.drain(..).for_each(|mail| self.open(mail, now));
                }
                Ok(()) = changed.changed() => self.driver.handle(DriverMessage::Changed, self.start.elapsed()),
                () = tokio::time::sleep_until(tick) => {}
                // The last that is under way may be all that is waited for.
                Some(_) = self.tasks.join_next(), if self.driver.is_stopping() => {}
            }
            self.driver.tick(self.start.elapsed());
            // The calls of one batch are on their way while the next is decided.
            loop {
                let began = std::time::Instant::now();
                let more = self.driver.pump();
                if more {
                    self.meters.decide.observe(began.elapsed());
                }
                self.carry_out();
                if !more {
                    break;
                }
            }
            self.tell_idle();
            self.forget_waiters();
            while self.tasks.try_join_next().is_some() {}
            if self.driver.has_stopped() && self.tasks.is_empty() {
                break;
            }
        }
        self.tasks.shutdown().await;
    }

    fn open(&mut self, mail: Mail, now: Duration) {
        match mail {
            Mail::Message(message) => {
                if let DriverMessage::Finished(token, ..) = &message {
                    self.attempts.remove(token);
                }
                self.driver.handle(message, now);
            }
            Mail::Await(run, waiter) => self.waiters.entry(run).or_default().push(waiter),
            Mail::AwaitIdle(patience, waiter) => self.idle_waiters.push((patience, waiter)),
        }
    }

    fn carry_out(&mut self) {
        let mut unheard = Vec::new();
        for action in self.driver.actions() {
            match action {
                DriverOrder::Call(call) => {
                    let (store, plans) = (self.store.clone(), self.plans.clone());
                    self.tasks.spawn(ask(call, store, plans, self.inbox.clone(), self.meters.clone()));
                }
                DriverOrder::Decide(costly) => {
                    let (aside, inbox) = (self.aside.clone(), self.inbox.clone());
                    self.tasks.spawn(async move {
                        let run = costly.run.clone();
                        let decided = aside.try_run(&run.tenant, move || costly.decide()).await;
                        let message = match decided {
                            Ok(decided) => DriverMessage::Decided(decided),
                            // The callers get an error, and the run takes other inputs again.
                            Err(_) => DriverMessage::Answer(undecided(run)),
                        };
                        let _ = inbox.send(Mail::Message(message));
                    });
                }
                DriverOrder::HandOff(handed) => unheard.extend(self.seats.hand_off(handed).err()),
                DriverOrder::Launch(launch, began) => {
                    let token = launch.attempt.token;
                    let runner = self.runners.get(&launch.attempt.planned().need);
                    let place = Workplace {
                        store: self.store.clone(),
                        inbox: self.inbox.clone(),
                        instance: self.instance.clone(),
                        limits: self.limits,
                        aside: self.aside.clone(),
                        tally: self.tally.clone(),
                        meters: self.meters.clone(),
                    };
                    self.attempts.insert(token, self.tasks.spawn(launch.run(runner, place, began)));
                }
                DriverOrder::Stop(token) => {
                    if let Some(attempt) = self.attempts.remove(&token) {
                        attempt.abort();
                    }
                }
                DriverOrder::Reply(InputCaller { reply, ended }, outcome) => {
                    if let (Some((run, waiter)), InputOutcome::Committed { .. }) = (ended, &outcome) {
                        self.waiters.entry(run).or_default().push(waiter);
                    }
                    drop(reply.send(outcome));
                }
                DriverOrder::Ended(run, ended) => {
                    for waiter in self.waiters.remove(&run).unwrap_or_default() {
                        let _ = waiter.send(ended.clone());
                    }
                }
                DriverOrder::Trouble(trouble) => {
                    let instance = &*self.name;
                    match &trouble {
                        Some(error) => {
                            tracing::warn!(instanceId = instance, %error, "the store doesn't accept writes")
                        }
                        None => tracing::info!(instanceId = instance, "the store accepts writes again"),
                    }
                    drop(self.told_trouble.send_replace(trouble));
                }
            }
        }
        if !unheard.is_empty() {
            // Whoever waited for these is gone: they are for anyone, at once.
            let (store, plans) = (self.store.clone(), self.plans.clone());
            let release = StoreCall::Release(unheard);
            self.tasks.spawn(ask(release, store, plans, self.inbox.clone(), self.meters.clone()));
        }
    }

    fn tell_idle(&mut self) {
        if self.idle_waiters.is_empty() {
            return;
        }
        let Some(quiet) = self.driver.idle_for() else { return };
        for (patience, waiter) in std::mem::take(&mut self.idle_waiters) {
            if quiet > patience {
                let _ = waiter.send(());
            } else {
                self.idle_waiters.push((patience, waiter));
            }
        }
    }

    fn forget_waiters(&mut self) {
        if Instant::now() < self.forget_at {
            return;
        }
        self.forget_at = Instant::now() + FORGET;
        self.waiters.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            !waiters.is_empty()
        });
    }
}

/// The answer for a run whose decision panicked: its inputs get an error.
fn undecided(run: RunKey) -> StoreReply {
    let error = StoreError::Damaged(format!("a decision on run {} panicked", run.run));
    StoreReply::LookedUp(run, Err(error))
}

/// Whether it is something to decide on.
fn is_input(mail: &Mail) -> bool {
    matches!(
        mail,
        Mail::Message(DriverMessage::Offer(..) | DriverMessage::Finished(..) | DriverMessage::Decided(_))
    )
}

async fn ask(
    call: StoreCall,
    store: Arc<dyn Store>,
    plans: Arc<Plans>,
    inbox: mpsc::UnboundedSender<Mail>,
    meters: Arc<Meters>,
) {
    let began = matches!(call, StoreCall::Commit(_)).then(std::time::Instant::now);
    if let Some(answer) = call.ask(&*store, &plans).await {
        if let Some(began) = began {
            meters.commit.observe(began.elapsed());
        }
        let _ = inbox.send(Mail::Message(DriverMessage::Answer(answer)));
    }
}
