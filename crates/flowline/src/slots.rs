//! Slots: how many attempts of each queue this instance may run at once, and how many it runs.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use flowline_store::{Claim, Handoff, Lane, Token};

use crate::config::{Config, Role};
use crate::ledger::Room;
use crate::runner::Runners;

/// The most jobs that one claim asks for: enough to fill a batch, few enough to share with other instances.
const CLAIM: usize = 256;

#[derive(Debug)]
pub struct Slots {
    config: Config,
    runners: Arc<Runners>,
    used: HashMap<Arc<str>, usize>,
    tokens: Tokens,
    /// No new attempts.
    closed: bool,
}

impl Slots {
    pub fn new(config: Config, runners: Arc<Runners>) -> Slots {
        // Who only operates takes nothing, not even what its own commits would hand to it.
        let closed = config.role == Role::Operate;
        Slots { config, runners, used: HashMap::new(), tokens: Tokens::new(), closed }
    }

    pub fn close(&mut self) {
        self.closed = true;
    }

    fn capacity(&self, queue: &str) -> usize {
        self.config.queues.get(queue).copied().unwrap_or(self.config.slots)
    }

    fn free_in(&self, queue: &str) -> usize {
        self.capacity(queue).saturating_sub(self.used.get(queue).copied().unwrap_or(0))
    }

    pub fn take(&mut self, queue: &Arc<str>) {
        *self.used.entry(queue.clone()).or_insert(0) += 1;
    }

    pub fn free(&mut self, queue: &str) {
        if let Some(used) = self.used.get_mut(queue) {
            *used = used.saturating_sub(1);
        }
    }

    /// Whether some queue has no room left.
    pub fn any_full(&self) -> bool {
        self.used.keys().any(|queue| self.free_in(queue) == 0)
    }

    /// What to claim now; `None` where this instance takes nothing.
    pub fn claim(&mut self) -> Option<Claim> {
        if self.closed || self.runners.needs().is_empty() {
            return None;
        }
        let mut free: Vec<(Arc<str>, usize)> =
            self.config.queues.keys().map(|queue| (Arc::from(queue.as_str()), self.free_in(queue))).collect();
        for queue in self.used.keys().filter(|queue| !self.config.queues.contains_key(&***queue)) {
            free.push((queue.clone(), self.free_in(queue)));
        }
        Some(Claim {
            tenant: self.config.tenant.clone(),
            needs: self.runners.needs().to_vec(),
            free,
            free_elsewhere: self.config.slots,
            tokens: (0..CLAIM).map(|_| self.tokens.next()).collect(),
            ttl: self.config.lease,
            worker: self.config.instance.clone(),
        })
    }
}

impl Room for Slots {
    fn reserve(&mut self, lane: &Lane) -> Option<Handoff> {
        if self.closed || self.free_in(&lane.queue) == 0 || !self.runners.can_run(&lane.need) {
            return None;
        }
        self.take(&lane.queue);
        Some(Handoff {
            token: self.tokens.next(),
            ttl: self.config.lease,
            worker: self.config.instance.clone(),
        })
    }
}

/// Lease tokens: a counter under two secret hash keys, so that one token tells nothing of another.
#[derive(Debug)]
struct Tokens {
    keys: [RandomState; 2],
    counter: u64,
}

impl Tokens {
    fn new() -> Tokens {
        Tokens { keys: [RandomState::new(), RandomState::new()], counter: 0 }
    }

    fn next(&mut self) -> Token {
        self.counter += 1;
        let [high, low] = &self.keys;
        Token(u128::from(high.hash_one(self.counter)) << 64 | u128::from(low.hash_one(self.counter)))
    }
}
