//! What goes wrong in a world, drawn from its seed: the weather for calls to the store, and mishaps at certain times.
//!
//! Each seed turns on only some faults, because worlds that differ find more than worlds with a little of everything.

use std::time::Duration;

use fastrand::Rng;
use flowline_store::StoreError;

use crate::program::pick;

/// How much later a request may arrive once more.
pub(crate) const LATEST_COPY: Duration = Duration::from_secs(5);

/// What calls to the store meet, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weather {
    /// The request never arrives.
    lost: u32,
    /// The store does what it is asked, and its answer never arrives.
    answer_lost: u32,
    /// The store refuses to write, and says so.
    refused: u32,
    /// The request is carried out twice.
    doubled: u32,
    slow: u32,
    slowest: Duration,
}

/// What becomes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallFate {
    Fine,
    Lost,
    AnswerLost,
    Refused,
    /// Carried out twice, the second time this much later; the caller gets the first answer.
    Doubled(Duration),
    /// Carried out twice at once; the caller gets the second answer.
    Repeated,
}

/// Whether a call changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Read,
    Write,
    /// A write whose second answer wouldn't show that it was carried out, so the first answer counts.
    FirstAnswer,
}

/// Something that happens to a world at its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// All that the instance held in memory is gone.
    Crash(usize),
    Restart(usize),
    /// The process is stopped and runs on after this long.
    Pause(usize, Duration),
    Continue(usize),
    /// Told to stop: drains for this long, gives back the rest, and is started again.
    Drain(usize, Duration),
    /// The store's clock jumps, in milliseconds.
    StoreClock(i64),
    /// The instance's own clock jumps ahead.
    LocalClock(usize, Duration),
    /// The store cannot be reached for this long.
    Away(Duration),
    Back,
    /// The store is durable up to here.
    Durable,
    /// Store and instances crash together, and the store comes back as it was when it was durable last.
    RollBack,
    /// Faults end.
    Calm,
    /// The world is looked at.
    Look,
}

impl Weather {
    pub(crate) fn fair() -> Weather {
        Weather { lost: 0, answer_lost: 0, refused: 0, doubled: 0, slow: 0, slowest: Duration::ZERO }
    }

    pub(crate) fn random(rng: &mut Rng) -> Weather {
        let mut some = |rates: &[u32]| if rng.bool() { 0 } else { rates[rng.usize(0..rates.len())] };
        Weather {
            lost: some(&[5, 20, 100]),
            answer_lost: some(&[5, 20, 100, 200]),
            refused: some(&[0, 0, 10, 50]),
            doubled: some(&[5, 20, 100]),
            slow: some(&[10, 100]),
            slowest: Duration::from_millis(u64::from(some(&[100, 1_000, 10_000]))),
        }
    }

    /// The same with a store that takes its time for most calls: what happens to a run meanwhile waits, and is decided together.
    pub(crate) fn sluggish(self) -> Weather {
        Weather { slow: 700, slowest: Duration::from_millis(1_500), ..self }
    }

    pub(crate) fn away() -> Weather {
        Weather { lost: 700, answer_lost: 300, ..Weather::fair() }
    }

    pub(crate) fn fate(&self, rng: &mut Rng, kind: CallKind) -> CallFate {
        if *self == Weather::fair() {
            return CallFate::Fine;
        }
        let write = kind != CallKind::Read;
        let mut at = rng.u32(0..1_000);
        let mut falls = |rate: u32| {
            let hit = at < rate;
            at = at.wrapping_sub(rate);
            hit
        };
        if falls(self.lost) {
            CallFate::Lost
        } else if falls(self.answer_lost) {
            CallFate::AnswerLost
        } else if write && falls(self.refused) {
            CallFate::Refused
        } else if write && falls(self.doubled) {
            if rng.bool() && kind == CallKind::Write {
                CallFate::Repeated
            } else {
                let most = pick(rng, &[Duration::from_millis(5), LATEST_COPY]);
                CallFate::Doubled(Duration::from_micros(rng.u64(1..=most.as_micros() as u64)))
            }
        } else {
            CallFate::Fine
        }
    }

    /// The longest that a call can be on its way, there and back.
    pub(crate) fn longest_call(&self) -> Duration {
        if self.slow == 0 { Duration::ZERO } else { self.slowest * 2 }
    }

    /// How long one way takes.
    pub(crate) fn way(&self, rng: &mut Rng) -> Duration {
        let micros = match rng.u32(0..1_000) < self.slow {
            true => rng.u64(1_000..=1_000 + self.slowest.as_micros() as u64),
            false => rng.u64(50..=1_000),
        };
        Duration::from_micros(micros)
    }
}

impl CallFate {
    /// Whether the store gets the request.
    pub(crate) fn arrives(self) -> bool {
        !matches!(self, CallFate::Lost | CallFate::Refused)
    }

    pub(crate) fn error(self) -> Option<StoreError> {
        match self {
            CallFate::Lost | CallFate::AnswerLost => {
                Some(StoreError::Unavailable("the connection was lost".to_owned()))
            }
            CallFate::Refused => Some(StoreError::CannotWrite("the disk is full".to_owned())),
            CallFate::Fine | CallFate::Doubled(_) | CallFate::Repeated => None,
        }
    }
}

/// Mishaps and their times, until `calm`.
pub(crate) fn draw(
    rng: &mut Rng,
    instances: usize,
    lease: Duration,
    calm: Duration,
) -> Vec<(Duration, Mishap)> {
    let mut drawn = vec![(calm, Mishap::Calm)];
    let within = |rng: &mut Rng, most: Duration| {
        let most = most.as_micros() as u64;
        Duration::from_micros(rng.u64(1..=most.max(1)))
    };
    let moments = |rng: &mut Rng, most: usize| -> Vec<Duration> {
        let count = if rng.bool() { 0 } else { rng.usize(1..=most) };
        (0..count).map(|_| within(rng, calm)).collect()
    };
    for at in moments(rng, 4) {
        let instance = rng.usize(0..instances);
        let most = pick(rng, &[Duration::from_millis(50), Duration::from_secs(2), lease * 2]);
        let down = within(rng, most);
        drawn.push((at, Mishap::Crash(instance)));
        drawn.push(((at + down).min(calm), Mishap::Restart(instance)));
    }
    for at in moments(rng, 3) {
        let most = pick(rng, &[lease / 4, lease * 2]);
        let pause = within(rng, most);
        drawn.push((at, Mishap::Pause(rng.usize(0..instances), pause.min(calm.saturating_sub(at)))));
    }
    for at in moments(rng, 2) {
        let most = pick(rng, &[Duration::from_millis(10), Duration::from_secs(5)]);
        let drain = within(rng, most);
        drawn.push((at, Mishap::Drain(rng.usize(0..instances), drain)));
    }
    for at in moments(rng, 3) {
        let most = (lease.as_millis() as i64).min(10_000);
        drawn.push((at, Mishap::StoreClock(rng.i64(-most..=most))));
    }
    for at in moments(rng, 2) {
        drawn.push((at, Mishap::LocalClock(rng.usize(0..instances), within(rng, lease))));
    }
    for at in moments(rng, 2) {
        drawn.push((at, Mishap::Away(within(rng, lease + lease / 2).min(calm.saturating_sub(at)))));
    }
    if rng.u32(0..6) == 0 {
        let every = Duration::from_millis(rng.u64(500..=10_000));
        let mut at = every;
        while at < calm {
            drawn.push((at, Mishap::Durable));
            at += every;
        }
        drawn.push((within(rng, calm), Mishap::RollBack));
    }
    drawn
}

/// Stops an instance again and again, each time for a little longer than its leases last, so that it wakes up just as others
/// take over its work. Drawn separately, so that other worlds stay the same.
pub(crate) fn stop_and_go(
    seed: u64,
    instances: usize,
    lease: Duration,
    calm: Duration,
) -> Vec<(Duration, Mishap)> {
    let mut rng = Rng::with_seed(seed);
    let instance = rng.usize(0..instances);
    let mut drawn = Vec::new();
    let mut at = Duration::from_millis(rng.u64(1..1_000));
    while at < calm && drawn.len() < 8 {
        let pause = (lease + Duration::from_millis(rng.u64(0..1_500))).min(calm - at);
        drawn.push((at, Mishap::Pause(instance, pause)));
        at += pause + Duration::from_millis(rng.u64(10..1_500));
    }
    drawn
}

/// Jumps of the store's clock that make timers of machines very late. Drawn separately, as above.
pub(crate) fn leaps(seed: u64, calm: Duration) -> Vec<(Duration, Mishap)> {
    let mut rng = Rng::with_seed(seed);
    let count = pick(&mut rng, &[0, 0, 1, 2]);
    let mut leap = || {
        let at = Duration::from_micros(rng.u64(1..=calm.as_micros() as u64));
        (at, Mishap::StoreClock(rng.i64(30_000..=150_000)))
    };
    (0..count).map(|_| leap()).collect()
}
