//! Slots: how many attempts of each queue this instance may run at once, and how many it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use flowline_core::planted::{self, Bug};
use flowline_store::{Claim, Handoff, Lane, Token};

use crate::config::{Config, Role};
use crate::ledger::Room;

/// The most jobs that one claim asks for: enough to fill a batch, few enough to share with other instances.
const CLAIM: usize = 256;

#[derive(Debug)]
pub struct Slots {
    config: Config,
    /// What this instance can run, in order.
    needs: Vec<Arc<str>>,
    used: BTreeMap<Arc<str>, usize>,
    /// What the claim that is on its way may take, by queue; a queue with no entry has the last.
    asked: Option<(BTreeMap<Arc<str>, usize>, usize)>,
    tokens: Tokens,
    /// No new attempts.
    closed: bool,
}

impl Slots {
    pub fn new(config: Config, mut needs: Vec<Arc<str>>, tokens: Tokens) -> Slots {
        // Who only operates takes nothing, not even what its own commits would hand to it.
        let closed = config.role == Role::Operate;
        needs.sort();
        Slots { config, needs, used: BTreeMap::new(), asked: None, tokens, closed }
    }

    pub fn close(&mut self) {
        self.closed = true;
    }

    fn capacity(&self, queue: &str) -> usize {
        self.config.queues.get(queue).copied().unwrap_or(self.config.slots)
    }

    fn free_in(&self, queue: &str) -> usize {
        let used = self.used.get(queue).copied().filter(|_| !planted::is(Bug::SlotsIgnored));
        self.capacity(queue).saturating_sub(used.unwrap_or(0))
    }

    /// The claim is over: it took these.
    pub fn claimed<'a>(&mut self, queues: impl IntoIterator<Item = &'a Arc<str>>) {
        self.asked = None;
        queues.into_iter().for_each(|queue| self.take(queue));
    }

    fn asked_in(&self, queue: &str) -> usize {
        let asked = self.asked.as_ref();
        asked.map_or(0, |(queues, elsewhere)| queues.get(queue).copied().unwrap_or(*elsewhere))
    }

    fn take(&mut self, queue: &Arc<str>) {
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

    /// What to claim now; `None` where this instance takes nothing. A claim asks for half of what is free, and that half
    /// is not handed out until [`Slots::claimed`]: the rest is for what commits hand over meanwhile.
    pub fn claim(&mut self) -> Option<Claim> {
        if self.closed || self.needs.is_empty() {
            return None;
        }
        let named = self.config.queues.keys().map(|queue| Arc::from(queue.as_str()));
        let queues = named.chain(self.used.keys().cloned());
        let asked: BTreeMap<Arc<str>, usize> =
            queues.map(|queue| (queue.clone(), self.free_in(&queue).div_ceil(2))).collect();
        let free = asked.iter().map(|(queue, half)| (queue.clone(), *half)).collect();
        let free_elsewhere = self.config.slots.div_ceil(2);
        self.asked = Some((asked, free_elsewhere));
        Some(Claim {
            tenant: self.config.tenant.clone(),
            needs: self.needs.clone(),
            free,
            free_elsewhere,
            tokens: (0..CLAIM).map(|_| self.tokens.next()).collect(),
            ttl: self.config.lease,
            worker: self.config.instance.clone(),
        })
    }
}

impl Room for Slots {
    fn reserve(&mut self, lane: &Lane) -> Option<Handoff> {
        let queue = &lane.queue;
        if self.closed
            || self.free_in(queue) <= self.asked_in(queue)
            || self.needs.binary_search(&lane.need).is_err()
        {
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

/// Where lease tokens come from.
pub struct Tokens(Box<dyn FnMut() -> Token + Send>);

impl Tokens {
    /// A counter under two secret hash keys, so that one token tells nothing of another.
    pub fn random() -> Tokens {
        let (high, low) = (RandomState::new(), RandomState::new());
        let mut counter = 0u64;
        Tokens::from(move || {
            counter += 1;
            Token(u128::from(high.hash_one(counter)) << 64 | u128::from(low.hash_one(counter)))
        })
    }

    /// A source of one's own, which must never give the same twice.
    pub fn from(source: impl FnMut() -> Token + Send + 'static) -> Tokens {
        Tokens(Box::new(source))
    }

    fn next(&mut self) -> Token {
        (self.0)()
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}
