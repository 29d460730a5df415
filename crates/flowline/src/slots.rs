//! Slots: how many attempts of each queue this instance may run at once, and how many it does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flowline_core::Tenant;
use flowline_core::definition::START_QUEUE;
use flowline_store::job::REMOTE;
use flowline_store::{Claim, Handoff, Lane, Token};

use crate::config::{Config, InstanceRole};
use crate::ledger::Capacity;
use crate::remote::Seats;

/// The most jobs that one claim asks for: enough to fill a batch, few enough to share with other instances.
const CLAIM: usize = 256;

const TOKEN_BYTES: usize = size_of::<u128>();
/// Tokens that one question to the system's random numbers is for: a claim's worth.
const POOLED: usize = CLAIM;

/// Attempts in the queue of `start` steps, which only wait: so many that runs which wait for runs do not run out of them.
const WAITING: usize = 10_000;

#[derive(Debug)]
pub struct Slots {
    config: Config,
    /// What this instance can run, in order.
    needs: Vec<Arc<str>>,
    used: BTreeMap<Arc<str>, usize>,
    /// Of those used: attempts that are over. Their slots are for hand-offs alone.
    ending: BTreeMap<Arc<str>, usize>,
    /// What a claim that is under way may fill. Kept from hand-offs, or both would take the same slot.
    promised: Option<Promised>,
    tokens: Tokens,
    /// Where remote workers wait.
    seats: Seats,
    /// No new attempts.
    closed: bool,
}

/// Slots by queue, and in each queue that is not listed.
#[derive(Debug)]
struct Promised {
    queues: Vec<(Arc<str>, usize)>,
    elsewhere: usize,
}

impl Promised {
    fn of(&self, queue: &str) -> usize {
        self.queues.iter().find(|(name, _)| &**name == queue).map_or(self.elsewhere, |(_, slots)| *slots)
    }
}

impl Slots {
    pub fn new(config: Config, mut needs: Vec<Arc<str>>, tokens: Tokens) -> Slots {
        // Who only operates takes nothing, not even what its own commits would hand to it.
        let closed = config.role == InstanceRole::Operate;
        needs.sort();
        Slots {
            config,
            needs,
            used: BTreeMap::new(),
            ending: BTreeMap::new(),
            promised: None,
            tokens,
            seats: Seats::default(),
            closed,
        }
    }

    /// Hands jobs to the remote workers that wait here, too.
    pub(crate) fn with_seats(self, seats: Seats) -> Slots {
        Slots { seats, ..self }
    }

    pub fn close(&mut self) {
        self.closed = true;
    }

    fn capacity(&self, queue: &str) -> usize {
        let unsaid = if queue == START_QUEUE { WAITING } else { self.config.slots };
        self.config.queues.get(queue).copied().unwrap_or(unsaid)
    }

    fn used_in(&self, queue: &str) -> usize {
        self.used.get(queue).copied().unwrap_or(0)
    }

    fn free_in(&self, queue: &str) -> usize {
        self.capacity(queue).saturating_sub(self.used_in(queue))
    }

    fn take(&mut self, queue: &Arc<str>) {
        *self.used.entry(queue.clone()).or_insert(0) += 1;
    }

    pub fn free(&mut self, queue: &str) {
        if let Some(used) = self.used.get_mut(queue) {
            *used = used.saturating_sub(1);
        }
    }

    /// An attempt is over: a hand-off may have its slot, a claim not yet.
    pub fn end(&mut self, queue: &Arc<str>) {
        *self.ending.entry(queue.clone()).or_insert(0) += 1;
    }

    /// What follows from that attempt is decided. The slot is still to be freed.
    pub fn ended(&mut self, queue: &str) {
        if let Some(ending) = self.ending.get_mut(queue) {
            *ending = ending.saturating_sub(1);
        }
    }

    /// Whether some queue has no room left.
    pub fn any_full(&self) -> bool {
        self.used.keys().any(|queue| self.free_in(queue) == 0)
    }

    /// What to claim now; `None` if this instance claims nothing. Half of the free slots are left to hand-offs, the
    /// shorter way, until [`Slots::claimed`] says that the claim is answered.
    pub fn claim(&mut self) -> Option<Claim> {
        if self.closed || self.needs.is_empty() {
            return None;
        }
        let half = |free: usize| free.div_ceil(2);
        let configured = self.config.queues.keys();
        let mut free: Vec<(Arc<str>, usize)> =
            configured.map(|queue| (Arc::from(queue.as_str()), half(self.free_in(queue)))).collect();
        for queue in self.used.keys().filter(|queue| !self.config.queues.contains_key(&***queue)) {
            free.push((queue.clone(), half(self.free_in(queue))));
        }
        let elsewhere = half(self.config.slots);
        self.promised = Some(Promised { queues: free.clone(), elsewhere });
        Some(Claim {
            tenant: self.config.tenant.clone(),
            needs: self.needs.clone(),
            free,
            free_elsewhere: elsewhere,
            tokens: (0..CLAIM).map(|_| self.tokens.next()).collect(),
            ttl: self.config.lease,
            worker: self.config.instance.clone(),
        })
    }

    /// A claim was answered, or will not be: these queues got a job each.
    pub fn claimed<'a>(&mut self, queues: impl IntoIterator<Item = &'a Arc<str>>) {
        self.promised = None;
        queues.into_iter().for_each(|queue| self.take(queue));
    }

    fn promised_in(&self, queue: &str) -> usize {
        let promised = self.promised.as_ref();
        promised.map_or(0, |promised| promised.of(queue))
    }

    /// A remote worker's seat was reserved for nothing.
    pub fn cancel(&self, token: Token) {
        self.seats.cancel(token);
    }

    /// What a hand-off may take.
    fn open_in(&self, queue: &str) -> usize {
        let running = self.used_in(queue).saturating_sub(self.ending.get(queue).copied().unwrap_or(0));
        self.capacity(queue).saturating_sub(running).saturating_sub(self.promised_in(queue))
    }
}

impl Capacity for Slots {
    fn reserve(&mut self, tenant: &Tenant, lane: &Lane) -> Option<Handoff> {
        if *lane.need == *REMOTE && !self.closed {
            let Config { instance, lease, .. } = &self.config;
            return self.seats.reserve(tenant, &lane.queue, instance, *lease, || self.tokens.next());
        }
        if self.closed || self.open_in(&lane.queue) == 0 || self.needs.binary_search(&lane.need).is_err() {
            return None;
        }
        self.take(&lane.queue);
        Some(Handoff {
            token: self.tokens.next(),
            ttl: self.config.lease,
            worker: self.config.instance.clone(),
        })
    }

    fn claims(&self, lane: &Lane) -> bool {
        self.needs.binary_search(&lane.need).is_ok()
    }
}

/// Where lease tokens come from.
pub struct Tokens(Box<dyn FnMut() -> Token + Send>);

impl Tokens {
    /// Random numbers of the operating system: a token is all that a remote worker or a callback has to show for its attempt,
    /// so nobody may guess one. Asking costs a system call, so it is done for many at once.
    ///
    /// # Panics
    ///
    /// Where the system has no random numbers: nothing else could stand in for them.
    pub fn random() -> Tokens {
        Tokens::drawn(getrandom::fill)
    }

    /// Tokens that are bytes of a source and nothing else, each byte used once.
    fn drawn<E: fmt::Display>(mut fill: impl FnMut(&mut [u8]) -> Result<(), E> + Send + 'static) -> Tokens {
        let mut pool = Vec::new();
        Tokens::from(move || {
            loop {
                if let Some(token) = pool.pop() {
                    return token;
                }
                let mut bytes = [0u8; TOKEN_BYTES * POOLED];
                if let Err(error) = fill(&mut bytes) {
                    panic!("can't get random numbers from the system: {error}");
                }
                let (chunks, _) = bytes.as_chunks::<TOKEN_BYTES>();
                pool.extend(chunks.iter().map(|chunk| Token(u128::from_ne_bytes(*chunk))));
            }
        })
    }

    /// A custom source, which must never return the same token twice.
    pub fn from(source: impl FnMut() -> Token + Send + 'static) -> Tokens {
        Tokens(Box::new(source))
    }

    pub(crate) fn next(&mut self) -> Token {
        (self.0)()
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn tokens_do_not_repeat_over_many_refills() {
        let mut tokens = Tokens::random();
        let drawn: std::collections::BTreeSet<Token> = (0..5 * POOLED).map(|_| tokens.next()).collect();
        assert_eq!(drawn.len(), 5 * POOLED);
        // Every byte comes from the system: none is the same in all of them.
        let bytes: Vec<[u8; TOKEN_BYTES]> = drawn.iter().map(|token| token.0.to_ne_bytes()).collect();
        assert!((0..TOKEN_BYTES).all(|at| bytes.iter().any(|token| token[at] != bytes[0][at])));
    }

    #[test]
    fn a_token_is_as_hard_to_guess_as_the_bytes_of_its_source() {
        let given = Arc::new(Mutex::new(Vec::new()));
        let (kept, mut next) = (given.clone(), 0u32);
        let mut tokens = Tokens::drawn(move |bytes: &mut [u8]| {
            for part in bytes.chunks_mut(size_of::<u32>()) {
                next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                part.copy_from_slice(&next.to_ne_bytes()[..part.len()]);
            }
            kept.lock().unwrap().extend_from_slice(bytes);
            Ok::<(), &str>(())
        });
        let mut drawn: Vec<[u8; TOKEN_BYTES]> =
            (0..3 * POOLED).map(|_| tokens.next().0.to_ne_bytes()).collect();
        let given = given.lock().unwrap();
        let (whole, rest) = given.as_chunks::<TOKEN_BYTES>();
        let mut given = whole.to_vec();
        given.sort_unstable();
        drawn.sort_unstable();
        assert!(given == drawn && rest.is_empty(), "a token is made of something else too, or of less");
    }

    #[test]
    #[should_panic(expected = "can't get random numbers from the system: none today")]
    fn without_random_numbers_there_are_no_tokens() {
        let failing = |bytes: &mut [u8]| {
            bytes.fill(7);
            Err("none today")
        };
        Tokens::drawn(failing).next();
    }

    fn slots(count: usize) -> Slots {
        let config = Config { slots: count, ..Config::default() };
        Slots::new(config, vec!["command".into()], Tokens::random())
    }

    fn lane() -> Lane {
        Lane { queue: "default".into(), need: "command".into() }
    }

    #[test]
    fn a_slot_that_a_claim_may_fill_is_not_handed_over() {
        let mut slots = slots(1);
        let claim = slots.claim().unwrap();
        assert_eq!(claim.free_elsewhere, 1);
        assert!(slots.reserve(&Tenant::default(), &lane()).is_none());
        slots.claimed([&lane().queue]);
        assert!(slots.reserve(&Tenant::default(), &lane()).is_none(), "the claim got a job");
        slots.free("default");
        assert!(slots.reserve(&Tenant::default(), &lane()).is_some());
    }

    #[test]
    fn the_slot_of_an_attempt_that_is_over_is_for_what_follows_from_it() {
        let mut slots = slots(1);
        slots.claimed([&lane().queue]);
        assert!(slots.reserve(&Tenant::default(), &lane()).is_none());
        slots.end(&lane().queue);
        let claim = slots.claim().unwrap();
        assert_eq!(claim.free, [(lane().queue, 0)]);
        assert!(slots.reserve(&Tenant::default(), &lane()).is_some(), "handed over");
        slots.ended("default");
        slots.free("default");
        assert!(slots.reserve(&Tenant::default(), &lane()).is_none(), "and taken");
    }

    #[test]
    fn a_claim_leaves_room_for_hand_offs() {
        let mut slots = slots(8);
        let claim = slots.claim().unwrap();
        let handed = std::iter::from_fn(|| slots.reserve(&Tenant::default(), &lane())).count();
        assert_eq!((claim.free_elsewhere, handed), (4, 4));
        slots.claimed([]);
        assert!(slots.reserve(&Tenant::default(), &lane()).is_some());
    }
}
