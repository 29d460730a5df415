//! One instance: the real driver with its real slots, and a process that can stop, crash and start again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use flowline::internal::{Attempt, Driver, DriverMessage, Slots, Tokens};
use flowline::meters::Meters;
use flowline::{Config, Plans};
use flowline_check::{AttemptReport, Effect};
use flowline_core::{Json, Time, json};
use flowline_store::Token;

use crate::shared::{FutureId, Life, Ticket};
use crate::wire::Wire;

/// What the steps of every program need.
pub(crate) const NEED: &str = "function:work";

/// An attempt that runs in an instance.
#[derive(Debug, Clone)]
pub(crate) struct RunningAttempt {
    pub(crate) task: FutureId,
    pub(crate) attempt: Attempt,
}

/// An attempt of a worker is over.
pub(crate) fn ended(attempt: &Attempt, worker: &Arc<str>, reported: AttemptReport) -> Effect {
    Effect::Ended {
        worker: worker.clone(),
        queue: attempt.queue().clone(),
        run: attempt.run.clone(),
        step: attempt.name().clone(),
        attempt: attempt.number,
        reported,
    }
}

/// One process, from its start to its end.
pub(crate) struct SimInstance {
    pub(crate) life: Life,
    pub(crate) name: Arc<str>,
    pub(crate) json: Json,
    pub(crate) driver: Driver<Ticket>,
    pub(crate) plans: Arc<Plans>,
    pub(crate) wire: Wire,
    pub(crate) attempts: BTreeMap<Token, RunningAttempt>,
    /// Its clock at the world's beginning.
    ahead: i64,
    /// The tick that counts; others were put off.
    pub(crate) generation: u64,
    pub(crate) tick_at: Option<Duration>,
    /// Stopped as a process: what comes waits here.
    pub(crate) paused: bool,
    pub(crate) kept: VecDeque<DriverMessage<Ticket>>,
    pub(crate) late: Vec<FutureId>,
    /// Told to stop: it ends when it has come to rest.
    pub(crate) draining: bool,
}

impl SimInstance {
    pub(crate) fn start(
        life: Life,
        config: Config,
        wire: Wire,
        mut rng: fastrand::Rng,
        now: Duration,
        store_now: Time,
    ) -> SimInstance {
        let name = config.instance.clone();
        let tokens = Tokens::from(move || Token(rng.u128(..)));
        let slots = Slots::new(config.clone(), vec![NEED.into()], tokens);
        let driver = Driver::new(config, slots, Arc::new(Meters::default()), Duration::ZERO, store_now);
        SimInstance {
            life,
            json: json::string(&name),
            name,
            driver,
            plans: Arc::new(Plans::default()),
            wire,
            attempts: BTreeMap::new(),
            ahead: -(now.as_micros() as i64),
            generation: 0,
            tick_at: None,
            paused: false,
            kept: VecDeque::new(),
            late: Vec::new(),
            draining: false,
        }
    }

    /// Its own time at a moment of the world.
    pub(crate) fn local(&self, now: Duration) -> Duration {
        Duration::from_micros((now.as_micros() as i64 + self.ahead).max(0) as u64)
    }

    /// The first moment of the world at which its clock shows this time.
    pub(crate) fn world(&self, local: Duration) -> Duration {
        let micros = local.as_nanos().div_ceil(1_000) as i64 - self.ahead;
        Duration::from_micros(micros.max(0) as u64)
    }

    pub(crate) fn jump(&mut self, by: Duration) {
        self.ahead += by.as_micros() as i64;
    }
}
