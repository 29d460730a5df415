//! What everything in a simulated world shares: the time, the dice, the store, the queue of what happens next.
//!
//! One thread only ever holds the lock; it is there because the store's contract asks for `Send` and `Sync`.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use flowline::internal::{DriverMessage, InputOutcome};
use flowline_check::{Effects, History, Violation, Watch};
use flowline_core::{RunKey, Time};
use flowline_store::Memory;

use crate::mishap::{Mishap, Weather};
use crate::story::Story;

/// What a caller of a driver gets its outcome by.
pub(crate) type Ticket = u64;
pub(crate) type FutureId = u64;
pub(crate) type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The store's clock at the beginning of a simulation: some day, at a full minute so that stories are easy to read.
pub(crate) const BEGINNING: i64 = 1_800_000_000_000;

/// One life of an instance, from its start to its crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    pub(crate) instance: usize,
    pub(crate) number: u32,
}

/// Whose a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskOwner {
    Client,
    Life(Life),
    /// Nobody's any more: a request on its way whose sender is gone.
    Nobody,
}

/// Where a task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitPlace {
    /// In its own process: a stopped or dead process gets no further.
    Home,
    /// On its way to the store: it arrives whatever becomes of its sender.
    Wire,
}

/// Something that is to happen.
#[derive(Debug)]
pub(crate) enum Wake {
    Task(FutureId),
    Tick { life: Life, generation: u64 },
    Mishap(Mishap),
}

#[derive(Debug, Default)]
struct Waiting {
    task: Option<FutureId>,
    /// The life that owes the answer.
    life: Option<Life>,
    answer: Option<Option<InputOutcome>>,
}

pub(crate) struct Inner {
    pub(crate) now: Duration,
    pub(crate) rng: Rng,
    pub(crate) weather: Weather,
    pub(crate) memory: Memory,
    pub(crate) watch: Watch,
    pub(crate) history: History,
    pub(crate) effects: Effects,
    /// Every time that an attempt acted on the world.
    pub(crate) acted: Vec<(RunKey, u32, u32)>,
    /// Lives that take messages from clients.
    pub(crate) up: Vec<Life>,
    /// How far the store's clock is ahead, in milliseconds.
    pub(crate) store_ahead: i64,
    /// When the store lost what was not durable.
    pub(crate) went_back: Option<Duration>,
    pub(crate) queue: BTreeMap<(Duration, u64), Wake>,
    pub(crate) mail: VecDeque<(Life, DriverMessage<Ticket>)>,
    /// Requests that were sent twice, on their second way.
    pub(crate) spawned: Vec<BoxedFuture>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) story: Story,
    pub(crate) polling: FutureId,
    pub(crate) place: WaitPlace,
    tickets: BTreeMap<Ticket, Waiting>,
    last_ticket: Ticket,
    last_wake: u64,
}

pub(crate) struct SharedWorld(Mutex<Inner>);

impl SharedWorld {
    pub(crate) fn new(rng: Rng, weather: Weather, watch: Watch, story: Story) -> Arc<SharedWorld> {
        Arc::new(SharedWorld(Mutex::new(Inner {
            now: Duration::ZERO,
            rng,
            weather,
            memory: Memory::new(),
            watch,
            history: History::default(),
            effects: Effects::default(),
            acted: Vec::new(),
            up: Vec::new(),
            store_ahead: 0,
            went_back: None,
            queue: BTreeMap::new(),
            mail: VecDeque::new(),
            spawned: Vec::new(),
            violations: Vec::new(),
            story,
            polling: 0,
            place: WaitPlace::Home,
            tickets: BTreeMap::new(),
            last_ticket: 0,
            last_wake: 0,
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this long from now.
    pub(crate) fn sleep(self: &Arc<Self>, wait: Duration, place: WaitPlace) -> Sleep {
        let until = self.lock().now + wait;
        self.sleep_until(until, place)
    }

    pub(crate) fn sleep_until(self: &Arc<Self>, until: Duration, place: WaitPlace) -> Sleep {
        Sleep { shared: self.clone(), until, place, asked: false }
    }

    /// Waits for the answer to a ticket, until a deadline. `None` where it will never come.
    pub(crate) fn answered(self: &Arc<Self>, ticket: Ticket, by: Option<Duration>) -> Answered {
        Answered { shared: self.clone(), ticket, by, asked: false }
    }
}

impl Inner {
    pub(crate) fn store_now(&self) -> Time {
        Time::from_millis(BEGINNING + self.now.as_millis() as i64 + self.store_ahead)
    }

    pub(crate) fn wake(&mut self, at: Duration, wake: Wake) {
        self.last_wake += 1;
        self.queue.insert((at.max(self.now), self.last_wake), wake);
    }

    /// A ticket whose answer this life owes.
    pub(crate) fn ticket(&mut self, life: Life) -> Ticket {
        self.last_ticket += 1;
        self.tickets.insert(self.last_ticket, Waiting { life: Some(life), ..Waiting::default() });
        self.last_ticket
    }

    pub(crate) fn resolve(&mut self, ticket: Ticket, answer: Option<InputOutcome>) {
        let Some(waiting) = self.tickets.get_mut(&ticket) else { return };
        waiting.answer = Some(answer);
        if let Some(task) = waiting.task {
            self.wake(self.now, Wake::Task(task));
        }
    }

    /// A life is over: whoever waits for its answers will never have them.
    pub(crate) fn hang_up(&mut self, life: Life) {
        let open = |waiting: &Waiting| waiting.life == Some(life) && waiting.answer.is_none();
        let lost: Vec<Ticket> =
            self.tickets.iter().filter(|(_, waiting)| open(waiting)).map(|(ticket, _)| *ticket).collect();
        lost.into_iter().for_each(|ticket| self.resolve(ticket, None));
    }

    pub(crate) fn tell(&mut self, who: impl FnOnce() -> String, what: impl FnOnce() -> String) {
        self.story.tell(self.now, who, what);
    }

    pub(crate) fn judge(&mut self, violations: Vec<Violation>) {
        self.violations.extend(violations);
    }
}

/// See [`SharedWorld::sleep`].
pub(crate) struct Sleep {
    shared: Arc<SharedWorld>,
    until: Duration,
    place: WaitPlace,
    asked: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let shared = self.shared.clone();
        let mut inner = shared.lock();
        if inner.now >= self.until {
            return Poll::Ready(());
        }
        if !self.asked {
            self.asked = true;
            let task = inner.polling;
            inner.wake(self.until, Wake::Task(task));
        }
        inner.place = self.place;
        Poll::Pending
    }
}

/// See [`SharedWorld::answered`].
pub(crate) struct Answered {
    shared: Arc<SharedWorld>,
    ticket: Ticket,
    by: Option<Duration>,
    asked: bool,
}

impl Future for Answered {
    type Output = Option<InputOutcome>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<InputOutcome>> {
        let shared = self.shared.clone();
        let mut inner = shared.lock();
        let (now, task) = (inner.now, inner.polling);
        let Some(waiting) = inner.tickets.get_mut(&self.ticket) else { return Poll::Ready(None) };
        waiting.task = Some(task);
        if let Some(answer) = waiting.answer.take() {
            inner.tickets.remove(&self.ticket);
            return Poll::Ready(answer);
        }
        if self.by.is_some_and(|by| by <= now) {
            inner.tickets.remove(&self.ticket);
            return Poll::Ready(None);
        }
        if let (Some(by), false) = (self.by, self.asked) {
            self.asked = true;
            inner.wake(by, Wake::Task(task));
        }
        inner.place = WaitPlace::Home;
        Poll::Pending
    }
}
