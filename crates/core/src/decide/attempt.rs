//! What attempts of steps report.

use super::draft::Draft;
use super::report::Report;
use super::{AttemptFailure, Halt, Refusal, Retryable, unfit};
use crate::budget::TooCostly;
use crate::definition::{Backoff, Retry};
use crate::event::{EventType, PayloadSlot};
use crate::json::{self, Json, JsonError};
use crate::limits;
use crate::run::{Cause, Fact, LEASE_LOST, Phase, RELEASED};
use std::time::Duration;

/// The longest delay that an attempt may ask for: a century, so that the time it is due stays within the calendar.
const LONGEST_DELAY: Duration = Duration::from_secs(100 * 365 * 86_400);

impl Draft<'_> {
    /// The input must come from the current attempt of a live step.
    pub(super) fn current(&self, step: u32, attempt: u32) -> Result<(), Halt> {
        let state = self.state.step(step);
        if state.is_live() && state.attempt == attempt && self.state.ended.is_none() {
            return Ok(());
        }
        let stale = Refusal::StaleAttempt { step: self.plan.step(step).name.clone(), attempt };
        self.refuse_if_ended().and(Err(stale.into()))
    }

    pub(super) fn started(&mut self, step: u32, attempt: u32, data: &Json) -> Result<(), Halt> {
        self.current(step, attempt)?;
        if self.state.step(step).phase == Phase::Queued {
            return Err(Halt::Applied);
        }
        self.push_step(Fact::Started { step }, EventType::StepStarted, (step, attempt), Some(data.clone()));
        Ok(())
    }

    pub(super) fn done(
        &mut self,
        step: u32,
        attempt: u32,
        result: &Json,
        emits: &[(String, Json)],
    ) -> Result<(), Halt> {
        let published = match self.check_published(step, result, emits) {
            Ok(published) => published,
            // It is a failure in every respect, also where it is reported again.
            Err(refusal) => {
                // Unless it was taken when limits were larger: what is recorded stays recorded.
                if let Err(halt @ (Halt::Applied | Halt::Missing(_))) =
                    self.reported(step, attempt, Report::Done(result))
                {
                    return Err(halt);
                }
                let failure = AttemptFailure {
                    error: refusal.to_string(),
                    code: Some(code_of(&refusal).to_owned()),
                    stack: None,
                    retry: Retryable::Never,
                };
                return self.failed(step, attempt, &failure);
            }
        };
        self.reported(step, attempt, Report::Done(result))?;
        for (event, payload) in published {
            self.publish(Some((step, attempt)), event, &payload, None);
        }
        if self.plan.step(step).keeps_result {
            self.keep(PayloadSlot::Result(self.state.address(step)), result);
        }
        let data = json::object([("result", Some(result))]);
        let fact = Fact::Completed { step, attempt };
        self.push_step(fact, EventType::StepCompleted, (step, attempt), Some(data));
        self.settle()
    }

    /// What an attempt publishes, once every name, size and schema is checked.
    fn check_published(
        &self,
        step: u32,
        result: &Json,
        emits: &[(String, Json)],
    ) -> Result<Vec<(u32, Json)>, Refusal> {
        result.clone().within("the result", self.moment.limits.payload())?;
        let mut published = Vec::with_capacity(emits.len() + 1);
        for (name, payload) in emits {
            published.push((self.check_emit(step, name, payload)?, payload.clone()));
        }
        if let Some(event) = self.plan.step(step).returns {
            let name = &self.plan.events[event as usize].name;
            published.push((self.check_emit(step, name, result)?, result.clone()));
        }
        Ok(published)
    }

    fn check_emit(&self, step: u32, name: &str, payload: &Json) -> Result<u32, Refusal> {
        let planned = self.plan.step(step);
        let declared =
            self.plan.event_index(name).and_then(|event| Some((event, planned.emits.get(&event)?)));
        let Some((event, schema)) = declared else {
            return Err(Refusal::Undeclared { step: planned.name.clone(), event: name.to_owned() });
        };
        payload.clone().within(&format!("emit {name:?}"), self.moment.limits.payload())?;
        if let Some(schema) = schema {
            let what = || format!("emit {name:?} of step {:?}", planned.name);
            schema.check_in(payload, self.budget).map_err(|problem| unfit(what(), problem))?;
        }
        Ok(event)
    }

    pub(super) fn emit_now(
        &mut self,
        step: u32,
        attempt: u32,
        name: &str,
        payload: &Json,
    ) -> Result<(), Halt> {
        self.reported(step, attempt, Report::Emit(name, payload))?;
        let taken = |event: u32| self.state.emitted.contains(event);
        let event = match self.check_emit(step, name, payload) {
            Ok(event) if taken(event) => return Err(Halt::Applied),
            // It was taken when limits were larger.
            Err(Refusal::Payload(_)) if self.plan.event_index(name).is_some_and(taken) => {
                return Err(Halt::Applied);
            }
            checked => checked?,
        };
        self.publish(Some((step, attempt)), event, payload, None);
        self.settle()
    }

    pub(super) fn failed(&mut self, step: u32, attempt: u32, failure: &AttemptFailure) -> Result<(), Halt> {
        self.reported(step, attempt, Report::Failed(failure))?;
        let error = clip(&failure.error);
        let code = failure.code.as_deref();
        let policy = &self.plan.step_definition(step).retry;
        let tries = self.state.step(step).tries + 1;
        let again = failure.retry != Retryable::Never
            && !self.state.stopping
            && tries < policy.attempts
            && retries_code(policy, code);
        if again {
            let delay = match failure.retry {
                Retryable::After(delay) => delay.min(LONGEST_DELAY),
                _ => self.delay(step, attempt, tries).min(LONGEST_DELAY),
            };
            self.retry(step, attempt, error, code, delay, Cause::Try);
        } else {
            self.fail_step(step, attempt, error, code, failure.stack.as_deref().map(clip), Cause::Try);
        }
        self.settle()
    }

    pub(super) fn lease_lost(&mut self, step: u32, attempt: u32, released: bool) -> Result<(), Halt> {
        self.current(step, attempt).map_err(|_| Halt::Applied)?;
        let state = self.state.step(step);
        let (code, cause) = if released { (RELEASED, Cause::Released) } else { (LEASE_LOST, Cause::Lost) };
        let capped = !released && state.lost >= limits::LOST_LEASES;
        if capped || self.state.stopping {
            let error = format!("the lease of attempt {attempt} was lost, as {} before it", state.lost);
            self.fail_step(step, attempt, &error, Some(code), None, cause);
        } else {
            let error = if released { "the attempt was given back" } else { "the lease was lost" };
            self.retry(step, attempt, error, Some(code), Duration::ZERO, cause);
        }
        self.settle()
    }

    fn retry(
        &mut self,
        step: u32,
        attempt: u32,
        error: &str,
        code: Option<&str>,
        delay: Duration,
        cause: Cause,
    ) {
        let at = self.moment.now + delay;
        let delay_ms = delay.as_millis() as i64;
        let data = json::object([
            ("error", Some(&json::string(error))),
            ("code", code.map(json::string).as_ref()),
            ("at", Some(&json::string(&at.to_string()))),
            ("delayMs", Some(&json::number(delay_ms))),
            ("cause", cause.as_str().map(json::string).as_ref()),
        ]);
        let fact = Fact::Retry { step, attempt, delayed: delay_ms > 0, cause };
        self.push_step(fact, EventType::StepRetry, (step, attempt), Some(data));
        self.enqueue(step, at);
    }

    /// The delay before the next try. Jitter takes up to half of it away, by a hash of run, step and attempt, so that
    /// deciding again gives the same answer.
    fn delay(&self, step: u32, attempt: u32, tries: u32) -> Duration {
        let policy = &self.plan.step_definition(step).retry;
        let factor = match policy.backoff {
            Backoff::Fixed => 1,
            Backoff::Linear => tries,
            Backoff::Exponential => 1u32.checked_shl(tries - 1).unwrap_or(u32::MAX),
        };
        let delay = policy.delay.saturating_mul(factor).min(policy.max_delay);
        if !policy.jitter {
            return delay;
        }
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let bytes = self.moment.run.as_str().bytes().chain(step.to_le_bytes()).chain(attempt.to_le_bytes());
        for byte in bytes {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let cut = delay.as_millis() / 2 * u128::from(hash >> 32) / u128::from(u32::MAX);
        delay - Duration::from_millis(cut as u64)
    }
}

/// Whether a policy retries errors of this code.
fn retries_code(policy: &Retry, code: Option<&str>) -> bool {
    let listed = |codes: &[String]| code.is_some_and(|code| codes.iter().any(|c| c == code));
    (policy.only.is_empty() || listed(&policy.only)) && !listed(&policy.except)
}

fn code_of(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Undeclared { .. } => "undeclared_emit",
        Refusal::Schema { .. } => "schema",
        Refusal::TooCostly { .. } => TooCostly::CODE,
        Refusal::Payload(JsonError::Size { .. }) => "too_large",
        _ => "invalid",
    }
}

/// Cuts a text to what is kept of an error.
pub(super) fn clip(text: &str) -> &str {
    let mut end = text.len().min(limits::ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
