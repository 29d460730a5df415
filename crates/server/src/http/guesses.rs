//! Slows down guesses of tokens: an address may send so many wrong ones per minute, and gets 429 beyond that.
//!
//! Many clients can be behind one address, so only failures count and only failures are refused: a right token is let in
//! whatever its neighbours do. To tell which it is, the store is still asked, but for strangers of such an address one at a
//! time, so that its flood of guesses never has more than one question under way, and nobody elsewhere waits for it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::codes;
use super::problem::ApiError;
use crate::exposition::Exposition;

/// The time that an allowance is for.
const MINUTE: Duration = Duration::from_secs(60);
/// Addresses known at once. Those beyond it share one allowance.
const ADDRESSES: usize = 10_000;
/// Whom those share it as.
const OTHERS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// What wrong tokens came from where.
#[derive(Debug)]
pub struct WrongTokens {
    per_minute: u32,
    seen: Mutex<HashMap<IpAddr, Allowance>>,
    refused: AtomicU64,
    limited: AtomicU64,
}

/// How much of its allowance an address has used, in time: each wrong token takes a share of a minute, which comes back as
/// time passes.
#[derive(Debug)]
struct Allowance {
    full_at: Instant,
    /// Whether the log says so already.
    told: bool,
    /// Held while the store is asked for a stranger of the address, when it's over its allowance.
    turn: Arc<Turn<()>>,
}

impl WrongTokens {
    pub fn new(per_minute: usize) -> WrongTokens {
        WrongTokens {
            per_minute: u32::try_from(per_minute).unwrap_or(u32::MAX).max(1),
            seen: Mutex::default(),
            refused: AtomicU64::default(),
            limited: AtomicU64::default(),
        }
    }

    /// Waits, for an address over its allowance, until none of its kind is asking the store. Keep what it returns until the
    /// store has answered.
    pub async fn turn(&self, from: IpAddr) -> Option<OwnedMutexGuard<()>> {
        let turn = self.turn_of(from, Instant::now())?;
        Some(turn.lock_owned().await)
    }

    /// What strangers of an address take turns by, if it's over its allowance.
    fn turn_of(&self, from: IpAddr, now: Instant) -> Option<Arc<Turn<()>>> {
        let seen = self.lock();
        // Where there's no room for its own, it has that of the others.
        let shared = || seen.get(&OTHERS).filter(|_| seen.len() >= ADDRESSES);
        let allowance = seen.get(&network(from)).or_else(shared)?;
        self.wait(allowance.full_at, now).map(|_| allowance.turn.clone())
    }

    /// Counts a wrong token: the problem that it's answered with, which is `problem` within the allowance.
    pub fn count(&self, from: IpAddr, problem: ApiError) -> ApiError {
        let Err(wait) = self.take(from, Instant::now()) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return problem;
        };
        self.limited.fetch_add(1, Ordering::Relaxed);
        let detail = format!(
            "your address has sent more than {} wrong tokens in a minute; valid ones are still accepted",
            self.per_minute
        );
        ApiError::new(&codes::TOO_MANY_WRONG_TOKENS, detail).retry_after(wait)
    }

    pub fn write(&self, page: &mut Exposition) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        page.family(
            "flowline_wrong_tokens_total",
            "counter",
            "Requests with a token or session that isn't valid, by the status they got.",
            &[(&[("status", "401")], of(&self.refused)), (&[("status", "429")], of(&self.limited))],
        );
    }

    /// Takes one from the allowance of an address, or tells when there's one again.
    fn take(&self, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut seen = self.lock();
        let mut from = network(from);
        if !seen.contains_key(&from) && seen.len() >= ADDRESSES {
            // Those that have all of it back are as good as new.
            seen.retain(|_, allowance| allowance.full_at > now);
            if seen.len() >= ADDRESSES {
                from = OTHERS;
            }
        }
        let new = || Allowance { full_at: now, told: false, turn: Arc::default() };
        let allowance = seen.entry(from).or_insert_with(new);
        if allowance.full_at <= now {
            (allowance.full_at, allowance.told) = (now, false);
        }
        if let Some(wait) = self.wait(allowance.full_at, now) {
            if !std::mem::replace(&mut allowance.told, true) {
                tracing::warn!(address = %from, "too many wrong tokens; refusing more of them from this address with 429");
            }
            return Err(wait);
        }
        allowance.full_at += self.share();
        Ok(())
    }

    /// How long until a wrong token fits again, if none does now.
    fn wait(&self, full_at: Instant, now: Instant) -> Option<Duration> {
        let used = full_at.saturating_duration_since(now);
        (used + self.share()).checked_sub(MINUTE).filter(|wait| !wait.is_zero())
    }

    fn share(&self) -> Duration {
        MINUTE / self.per_minute
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Allowance>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What counts as one address: with IPv6 the whole /64, because its owner can use any address in it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(last).into()
    }

    #[test]
    fn an_allowance_is_used_up_at_once_or_comes_back_bit_by_bit() {
        let (guesses, now) = (WrongTokens::new(60), Instant::now());
        assert!((0..60).all(|_| guesses.take(address(1), now).is_ok()));
        let wait = guesses.take(address(1), now).unwrap_err();
        assert_eq!(wait, Duration::from_secs(1));
        assert!(guesses.take(address(2), now).is_ok(), "another address has its own");
        let later = now + wait;
        assert!(guesses.take(address(1), later).is_ok() && guesses.take(address(1), later).is_err());
        assert!((0..60).all(|_| guesses.take(address(1), later + MINUTE).is_ok()));
    }

    #[test]
    fn however_many_addresses_guess_only_so_many_are_remembered() {
        let (guesses, now) = (WrongTokens::new(1), Instant::now());
        for last in 0..2 * ADDRESSES as u32 {
            let _ = guesses.take(address(last), now);
        }
        assert!(guesses.lock().len() <= ADDRESSES + 1);
        assert!(guesses.take(address(u32::MAX), now).is_err(), "those beyond it share an allowance");
        let turns = [u32::MAX, u32::MAX - 1, 0, 1].map(|last| guesses.turn_of(address(last), now).unwrap());
        assert!(Arc::ptr_eq(&turns[0], &turns[1]), "and take turns");
        assert!(!Arc::ptr_eq(&turns[0], &turns[2]) && !Arc::ptr_eq(&turns[2], &turns[3]));
        assert!(guesses.take(address(u32::MAX), now + MINUTE).is_ok());
        assert!(guesses.lock().len() < 10, "those who stopped are forgotten");
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let guesses = WrongTokens::new(1);
        assert!(guesses.take("2001:db8::1".parse().unwrap(), Instant::now()).is_ok());
        assert!(guesses.take("2001:db8::ffff:2".parse().unwrap(), Instant::now()).is_err());
        assert!(guesses.take("2001:db8:0:1::1".parse().unwrap(), Instant::now()).is_ok());
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), "10.0.0.1".parse::<IpAddr>().unwrap());
    }
}
