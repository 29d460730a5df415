//! The reference that a remote worker gets for an attempt. It holds everything that an instance needs to accept a
//! report, so any instance can. Workers treat it as opaque.
//!
//! It isn't secret. The token in it is the fence, which only the store can confirm while the lease is held. It's sealed, so
//! the rest is only believed as it was given out, and an attempt's reports are confirmed to nobody who never held it.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flowline_core::ids::check_name;
use flowline_core::{RunId, Tenant, Time};
use flowline_store::Token;

use crate::seal::{Seal, Sealer};

/// The longest reference that is read: three names of the longest kind, numbers, and room for an instance's name.
const LONGEST: usize = 1024;
/// The first word of a reference; another one is of a format that this build does not read. Those of format 1 had no seal.
const FORMAT: &str = "2";
const FIELDS: usize = 9;

/// An attempt that a worker holds, as its reference says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) run: RunId,
    pub(super) step: u32,
    pub(super) attempt: u32,
    pub(super) token: Token,
    /// When it was claimed, by the store's clock.
    pub(super) claimed: Time,
    /// When the attempt times out.
    pub(super) deadline: Option<Time>,
    /// Whether the run waited for it: the log must say that the wait is over.
    pub(super) delayed: bool,
    pub(super) worker: Arc<str>,
    /// The instance that claimed it.
    pub(super) instance: Arc<str>,
}

impl Lease {
    pub(super) fn encode(&self, sealer: &Sealer, tenant: &Tenant) -> String {
        let Lease { run, step, attempt, token, claimed, deadline, delayed, worker, instance } = self;
        let (claimed, delayed) = (claimed.millis(), u8::from(*delayed));
        let deadline = deadline.map_or_else(|| "-".to_owned(), |at| at.millis().to_string());
        // The instance last: nobody checks its name.
        let text = format!(
            "{run} {step} {attempt} {:032x} {claimed} {deadline} {delayed} {worker} {instance}",
            token.0
        );
        URL_SAFE_NO_PAD.encode(format!("{FORMAT} {} {text}", sealer.seal(tenant, &text)))
    }

    /// `None` if the text isn't a reference that an instance of this store gave out to this tenant.
    pub(super) fn decode(text: &str, sealer: &Sealer, tenant: &Tenant) -> Option<Lease> {
        Lease::read(text, |text, seal| sealer.is_sealed(tenant, text, seal))
    }

    /// The worker's name, which may be made up.
    pub(super) fn worker(text: &str) -> Option<Arc<str>> {
        Lease::read(text, |_, _| true).map(|lease| lease.worker)
    }

    fn read(text: &str, is_sealed: impl FnOnce(&str, &Seal) -> bool) -> Option<Lease> {
        if text.len() > LONGEST {
            return None;
        }
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let (seal, text) = text.strip_prefix(FORMAT)?.strip_prefix(' ')?.split_once(' ')?;
        if !is_sealed(text, &Seal::read(seal)?) {
            return None;
        }
        let fields: Vec<&str> = text.splitn(FIELDS, ' ').collect();
        let [run, step, attempt, token, claimed, deadline, delayed, worker, instance] = fields[..] else {
            return None;
        };
        let time = |text: &str| text.parse().ok().map(Time::from_millis);
        check_name("worker", worker).ok()?;
        Some(Lease {
            run: RunId::new(run).ok()?,
            step: step.parse().ok()?,
            attempt: attempt.parse().ok()?,
            token: Token(u128::from_str_radix(token, 16).ok()?),
            claimed: time(claimed)?,
            deadline: if deadline == "-" { None } else { Some(time(deadline)?) },
            delayed: delayed == "1",
            worker: worker.into(),
            instance: instance.into(),
        })
    }
}

/// Who holds a remote lease, as the store keeps it: the worker, and the instance that claimed it.
pub(super) fn holder(worker: &str, instance: &str) -> Arc<str> {
    format!("{worker}@{instance}").into()
}

/// The worker and the instance of a remote lease.
pub(crate) fn remote_holder(holder: &str) -> Option<(&str, &str)> {
    holder.split_once('@')
}

#[cfg(test)]
mod tests {
    use flowline_store::Clock;
    use flowline_store::memory::MemoryStore;

    use super::*;

    fn lease() -> Lease {
        Lease {
            run: RunId::new("r-1").unwrap(),
            step: 3,
            attempt: 2,
            token: Token(7 << 100 | 5),
            claimed: Time::from_millis(1_761_754_554_834),
            deadline: Some(Time::from_millis(1_761_754_564_834)),
            delayed: true,
            worker: "depot-1".into(),
            instance: "any thing".into(),
        }
    }

    async fn sealer() -> Sealer {
        Sealer::of(&MemoryStore::new(Clock::system())).await.unwrap()
    }

    #[tokio::test]
    async fn a_reference_survives_its_text_and_is_nothing_to_another_tenant_or_store() {
        let (sealer, tenant, stranger) = (sealer().await, Tenant::default(), Tenant::new("another").unwrap());
        for lease in [lease(), Lease { deadline: None, delayed: false, ..lease() }] {
            let text = lease.encode(&sealer, &tenant);
            assert_eq!(Lease::decode(&text, &self::sealer().await, &tenant), None);
            assert_eq!(Lease::decode(&text, &sealer, &stranger), None);
            assert_eq!(Lease::decode(&text, &sealer, &tenant), Some(lease));
        }
    }

    #[tokio::test]
    async fn a_reference_at_every_limit_can_be_read() {
        let (sealer, tenant) = (sealer().await, Tenant::default());
        let name = "x".repeat(flowline_core::limits::NAME_BYTES);
        let (run, worker) = (RunId::new(&name).unwrap(), Arc::from(name.as_str()));
        let lease =
            Lease { run, worker, step: u32::MAX, attempt: u32::MAX, token: Token(u128::MAX), ..lease() };
        assert_eq!(Lease::decode(&lease.encode(&sealer, &tenant), &sealer, &tenant), Some(lease));
    }

    #[tokio::test]
    async fn what_is_no_reference_is_none() {
        let (sealer, tenant) = (sealer().await, Tenant::default());
        let whole = lease().encode(&sealer, &tenant);
        let other_format = URL_SAFE_NO_PAD.encode("1 r 0 1 0 0 - 0 w i");
        for text in ["", "????", "AAAA", &whole[..whole.len() / 2], &other_format, &"A".repeat(LONGEST + 1)] {
            assert_eq!(Lease::decode(text, &sealer, &tenant), None, "{text:?}");
        }
    }
}
