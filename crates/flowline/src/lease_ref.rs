//! The reference by which somebody outside names an attempt whose outcome it will bring: a text without a meaning to its
//! bearer, from which any instance knows the run, the step and the lease.
//!
//! It is not signed: what fences is the token in it, which only the store can confirm, and which is gone with the first
//! outcome. So a reference works once, and only while its attempt holds the lease.

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
use crate::drive::host::Mail;
use crate::drive::{Message, Reply};
use crate::engine::{Engine, EngineError};
use crate::ledger::InputOutcome;
use crate::operate::{Applied, refused, row};
use crate::step::StepError;
use crate::trace::{self, End};

/// The longest reference that is read: two names of the longest kind, and numbers.
const LONGEST: usize = 512;
/// The first word of a reference; another one is of a format that this build does not read.
const FORMAT: &str = "c1";

/// An attempt that holds a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRef {
    pub run: RunKey,
    pub step: u32,
    pub attempt: u32,
    pub token: Token,
    /// When the attempt began, by the store's clock.
    pub claimed: Time,
}

/// A text that is no reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this isn't a valid callback reference; use the whole URL that came with the request")]
pub struct NoLeaseRef;

impl fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaseRef { run: RunKey { tenant, run }, step, attempt, token, claimed } = self;
        let claimed = claimed.millis();
        let text = format!("{FORMAT} {tenant} {run} {step} {attempt} {:032x} {claimed}", token.0);
        f.write_str(&URL_SAFE_NO_PAD.encode(text))
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
    let [FORMAT, tenant, run, step, attempt, token, claimed] = fields[..] else { return None };
    Some(LeaseRef {
        run: RunKey::new(Tenant::new(tenant).ok()?, RunId::new(run).ok()?),
        step: step.parse().ok()?,
        // The one after it must have a number too.
        attempt: attempt.parse().ok().filter(|attempt| *attempt < u32::MAX)?,
        token: Token(u128::from_str_radix(token, 16).ok()?),
        claimed: Time::from_millis(claimed.parse().ok()?),
    })
}

impl Engine {
    /// Ends an attempt by its reference, from any instance. Whoever runs it finds its lease gone and stops. Told twice, the
    /// same outcome changes nothing.
    pub async fn settle(
        &self,
        lease: &LeaseRef,
        outcome: Result<Json, StepError>,
    ) -> Result<Applied, EngineError> {
        let attempt = self.check(lease).await?;
        let (run, token) = (&lease.run, lease.token);
        let end = End::of(&outcome);
        let (reply, answer) = oneshot::channel();
        let entry = Record::after(attempt.clone(), 1).finish(outcome, Reply::Caller(reply.into()));
        let tell = |message| self.shared.inbox.send(Mail::Message(message)).map_err(|_| EngineError::Stopped);
        tell(Message::Offer(run.clone(), entry))?;
        match answer.await.map_err(|_| EngineError::Stopped)? {
            InputOutcome::Committed { status } => {
                tell(Message::Settled(token))?;
                if let Some(spans) = &self.shared.meters.spans {
                    spans.put(attempt.span((lease.claimed, trace::now()), end));
                }
                Ok(Applied { changed: true, status })
            }
            InputOutcome::Applied { status } => Ok(Applied { changed: false, status }),
            InputOutcome::StaleLease(Some(ended @ Refusal::Ended(_))) => Err(EngineError::Refused(ended)),
            InputOutcome::StaleLease(_) => Err(stale()),
            other => Err(refused(other, run)),
        }
    }

    /// Whoever made a reference up can have put any numbers into it: only steps that a reference is given out for may be
    /// decided on.
    async fn check(&self, lease: &LeaseRef) -> Result<Attempt, EngineError> {
        let store = &*self.shared.store;
        let found = row(store, &lease.run).await?;
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
        }
    }

    #[test]
    fn a_reference_survives_its_text_at_every_limit() {
        for name in ["r-1", &"x".repeat(flowline_core::limits::NAME_BYTES)] {
            assert_eq!(lease(name).to_string().parse(), Ok(lease(name)));
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        let whole = lease("r").to_string();
        let other_format = URL_SAFE_NO_PAD.encode("c2 t r 0 1 0 0");
        let last_attempt = LeaseRef { attempt: u32::MAX, ..lease("r") }.to_string();
        let half = &whole[..whole.len() / 2];
        for text in ["", "????", "AAAA", half, &other_format, &last_attempt, &"A".repeat(LONGEST + 1)] {
            assert_eq!(text.parse::<LeaseRef>(), Err(NoLeaseRef), "{text:?}");
        }
    }
}
