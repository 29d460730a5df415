//! A reference to an attempt whose outcome comes from outside, as in a callback URL. It's opaque to its holder; any
//! instance can read the run, the step and the lease from it.
//!
//! The token in it is the fence: only the store can confirm it, and it's gone after the first outcome. So a reference works
//! once, and only while its attempt holds the lease. Its [seal](crate::Seal) tells a repeated outcome from a forged one.
//! References of older builds have no seal: they work once, and a repeat is refused.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flowline_core::decide::Refusal;
use flowline_core::definition::{HttpRequest, Runner};
use flowline_core::{Json, RunId, RunKey, Tenant, Time};
use flowline_store::Token;
use tokio::sync::oneshot;

use crate::attempt::{Attempt, Record};
use crate::drive::{DriverMessage, Reply};
use crate::engine::{Engine, EngineError};
use crate::ledger::InputOutcome;
use crate::operate::{Applied, refused, row};
use crate::seal::Seal;
use crate::step::StepError;
use crate::trace::{self, SpanEnd};

/// The longest reference that is read: two names of the longest kind, and numbers.
const LONGEST: usize = 512;
/// The first word of a reference; another one is of a format that this build does not read.
const FORMAT: &str = "c2";
/// The one before, without a seal.
const UNSEALED: &str = "c1";

/// An attempt that holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRef {
    pub run: RunKey,
    pub step: u32,
    pub attempt: u32,
    pub token: Token,
    /// When the attempt began, by the store's clock.
    pub claimed: Time,
    /// `None` if an older build made the reference.
    pub seal: Option<Seal>,
}

/// A text that is no reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this isn't a valid callback reference; use the whole URL that came with the request")]
pub struct NoLeaseRef;

impl fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tenant, said) = (&self.run.tenant, self.said());
        let text = match &self.seal {
            Some(seal) => format!("{FORMAT} {tenant} {said} {seal}"),
            None => format!("{UNSEALED} {tenant} {said}"),
        };
        f.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

impl LeaseRef {
    /// What is sealed, beside the tenant.
    fn said(&self) -> String {
        let LeaseRef { run: RunKey { run, .. }, step, attempt, token, claimed, .. } = self;
        format!("{run} {step} {attempt} {:032x} {}", token.0, claimed.millis())
    }

    /// The same, sealed.
    #[cfg(feature = "http")]
    pub(crate) fn sealed(self, sealer: &crate::seal::Sealer) -> LeaseRef {
        let seal = sealer.seal(&self.run.tenant, &self.said());
        LeaseRef { seal: Some(seal), ..self }
    }
}

impl FromStr for LeaseRef {
    type Err = NoLeaseRef;

    fn from_str(text: &str) -> Result<LeaseRef, NoLeaseRef> {
        if text.len() > LONGEST {
            return Err(NoLeaseRef);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| NoLeaseRef)?;
        let text = String::from_utf8(bytes).map_err(|_| NoLeaseRef)?;
        decode(&text).ok_or(NoLeaseRef)
    }
}

fn decode(text: &str) -> Option<LeaseRef> {
    let fields: Vec<&str> = text.split(' ').collect();
    let (fields, seal) = match &fields[..] {
        [FORMAT, fields @ .., seal] => (fields, Some(Seal::read(seal)?)),
        [UNSEALED, fields @ ..] => (fields, None),
        _ => return None,
    };
    let &[tenant, run, step, attempt, token, claimed] = fields else { return None };
    Some(LeaseRef {
        run: RunKey::new(Tenant::new(tenant).ok()?, RunId::new(run).ok()?),
        step: step.parse().ok()?,
        // The one after it must have a number too.
        attempt: attempt.parse().ok().filter(|attempt| *attempt < u32::MAX)?,
        token: Token(u128::from_str_radix(token, 16).ok()?),
        claimed: Time::from_millis(claimed.parse().ok()?),
        seal,
    })
}

impl Engine {
    /// Ends an attempt by its reference, from any instance. Its runner loses the lease and stops. Repeated, the same outcome
    /// changes nothing. A reference that was changed is refused, whatever the outcome.
    pub async fn settle(
        &self,
        lease: &LeaseRef,
        outcome: Result<Json, StepError>,
    ) -> Result<Applied, EngineError> {
        let attempt = self.check(lease).await?;
        let (run, token) = (&lease.run, lease.token);
        let end = SpanEnd::of(&outcome);
        let (reply, answer) = oneshot::channel();
        let entry = Record::after(attempt.clone(), 1).finish(outcome, Reply::Caller(reply.into()));
        self.shared.mail(DriverMessage::Offer(run.clone(), entry))?;
        match answer.await.map_err(|_| EngineError::Stopped)? {
            InputOutcome::Committed { status } => {
                self.shared.mail(DriverMessage::Settled(token))?;
                if let Some(spans) = &self.shared.meters.spans {
                    spans.put(attempt.span((lease.claimed, trace::now()), end));
                }
                Ok(Applied { changed: true, status })
            }
            // Without a seal it may be a guess, and a guess learns nothing of the run.
            _ if lease.seal.is_none() => Err(stale()),
            InputOutcome::Applied { status } => Ok(Applied { changed: false, status }),
            InputOutcome::StaleLease(Some(ended @ Refusal::Ended(_))) => Err(EngineError::Refused(ended)),
            InputOutcome::StaleLease(_) => Err(stale()),
            other => Err(refused(other, run)),
        }
    }

    /// A forged reference can have any numbers in it, so only steps that get references may be
    /// decided on.
    async fn check(&self, lease: &LeaseRef) -> Result<Attempt, EngineError> {
        let store = &*self.shared.store;
        // Checked before the run is loaded, so that a made-up reference doesn't reveal whether it exists.
        if let Some(seal) = &lease.seal {
            let sealer = self.shared.sealer().await?;
            if !sealer.is_sealed(&lease.run.tenant, &lease.said(), seal) {
                return Err(stale());
            }
        }
        let found = match row(store, &lease.run).await {
            Err(EngineError::NoSuchRun(_)) if lease.seal.is_none() => return Err(stale()),
            found => found?,
        };
        let plan = self.shared.plans.get(store, &found.tenant, &found.definition).await?;
        let runner = plan.definition.steps.get(lease.step as usize).map(|step| &step.runner);
        let Some(Runner::Http(HttpRequest { callback: true, .. })) = runner else { return Err(stale()) };
        let &LeaseRef { ref run, step, attempt: number, token, .. } = lease;
        let (run, trace) = (run.clone(), trace::of_labels(&found.labels));
        Ok(Attempt { run, plan, trace, step, number, transition: None, token })
    }
}

fn stale() -> EngineError {
    EngineError::StaleLease("the attempt has ended, or another one has started".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(name: &str) -> LeaseRef {
        LeaseRef {
            run: RunKey::new(Tenant::new(name).unwrap(), RunId::new(name).unwrap()),
            step: u32::MAX,
            attempt: 2,
            token: Token(7 << 100 | 5),
            claimed: Time::from_millis(1_761_754_554_834),
            seal: Seal::read(&"5a".repeat(16)),
        }
    }

    #[test]
    fn a_reference_survives_its_text_at_every_limit() {
        for name in ["r-1", &"x".repeat(flowline_core::limits::NAME_BYTES)] {
            assert_eq!(lease(name).to_string().parse(), Ok(lease(name)));
            let older = LeaseRef { seal: None, ..lease(name) };
            assert_eq!(older.to_string().parse(), Ok(older));
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        let whole = lease("r").to_string();
        let other_format = URL_SAFE_NO_PAD.encode("c3 t r 0 1 0 0");
        let last_attempt = LeaseRef { attempt: u32::MAX, ..lease("r") }.to_string();
        let half = &whole[..whole.len() / 2];
        for text in ["", "????", "AAAA", half, &other_format, &last_attempt, &"A".repeat(LONGEST + 1)] {
            assert_eq!(text.parse::<LeaseRef>(), Err(NoLeaseRef), "{text:?}");
        }
    }
}
