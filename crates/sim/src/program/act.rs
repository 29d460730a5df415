//! What one try of a step does.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use flowline_core::decide::Retryable;
use flowline_core::definition::StepDefinition;
use flowline_core::{Json, Plan, json};
use flowline_store::StateScope;

use super::{Manners, Temper, one_in, percent, pick, weight};

/// Error codes that steps fail with and that retry policies name.
pub(crate) const CODES: [&str; 3] = ["E1", "E2", "E3"];
/// A name that no definition declares.
pub(crate) const UNDECLARED: &str = "nobody.declared.this";

/// One try, from its start on.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptedAttempt {
    /// What it does on the way, by the time since its start: in order, before it ends and before its time-out.
    pub doings: Vec<(Duration, Doing)>,
    /// When it acts on the world: an attempt that is cut off after this has had its effect.
    pub effect: Duration,
    /// When it ends. Longer than the step's time-out means that the time-out ends it.
    pub takes: Duration,
    pub outcome: ScriptedOutcome,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Doing {
    Log(String),
    EmitNow(String, Json),
    /// A change of key-value state; `None` deletes.
    Set(StateScope, String, Option<Json>, Option<Duration>),
    Get(StateScope, String),
}

#[derive(Debug, Clone, PartialEq)]
pub enum ScriptedOutcome {
    Done { result: Json, emits: Vec<(String, Json)> },
    Failed { error: String, code: Option<String>, retry: Retryable },
}

impl ScriptedOutcome {
    /// Whether the attempt says that no other should follow.
    pub fn is_fatal(&self) -> bool {
        matches!(self, ScriptedOutcome::Failed { retry: Retryable::Never, .. })
    }
}

impl ScriptedAttempt {
    pub(super) fn nothing() -> ScriptedAttempt {
        let outcome = ScriptedOutcome::Done { result: Json::null(), emits: Vec::new() };
        ScriptedAttempt {
            doings: Vec::new(),
            effect: Duration::ZERO,
            takes: Duration::from_millis(1),
            outcome,
        }
    }
}

/// Everything that a try is made up from.
pub(super) struct Making<'a> {
    pub(super) rng: Rng,
    pub(super) temper: Temper,
    pub(super) payloads: &'a BTreeMap<String, Json>,
    pub(super) plan: &'a Plan,
    pub(super) step: u32,
}

impl<'a> Making<'a> {
    pub(super) fn act(mut self) -> ScriptedAttempt {
        let timeout = self.plan.step_definition(self.step).timeout;
        let mut takes = Duration::from_millis(self.rng.u64(1..=self.temper.slowest.as_millis() as u64));
        if let Some(timeout) = timeout {
            let late = self.temper.failing > 0 && one_in(&mut self.rng, 12);
            takes = if late { timeout + takes } else { takes.min(timeout * 3 / 4) };
        }
        let open = timeout.map_or(takes, |timeout| takes.min(timeout * 3 / 4)).as_millis() as u64;
        let doomed = self.temper.doomed == Some(self.step);
        let outcome =
            if doomed || percent(&mut self.rng, self.temper.failing) { self.failed() } else { self.done() };
        let doings = if self.temper.manners == Manners::Plain { Vec::new() } else { self.doings() };
        let mut when = || Duration::from_millis(self.rng.u64(0..=open));
        let mut times: Vec<Duration> = doings.iter().map(|_| when()).collect();
        times.sort();
        let effect = when();
        ScriptedAttempt { doings: times.into_iter().zip(doings).collect(), effect, takes, outcome }
    }

    fn failed(&mut self) -> ScriptedOutcome {
        let policy = &self.plan.step_definition(self.step).retry;
        let named = policy.only.iter().chain(&policy.except).cloned();
        let mut codes: Vec<Option<String>> = named.map(Some).collect();
        match self.temper.manners {
            // A code that no policy names says nothing about the user's flow.
            Manners::Plain if codes.is_empty() => codes.push(None),
            Manners::Plain => codes.extend([None, Some("other".to_owned())]),
            _ => codes.extend([None, Some(pick(&mut self.rng, &CODES).to_owned())]),
        }
        let code = pick(&mut self.rng, &codes);
        let retry = match self.rng.u32(0..10) {
            0 => Retryable::Never,
            1 => Retryable::After(Duration::from_millis(self.rng.u64(0..=3_000))),
            _ => Retryable::ByPolicy,
        };
        let error = format!("broke with {}", code.as_deref().unwrap_or("no code"));
        ScriptedOutcome::Failed { error, code, retry }
    }

    fn done(&mut self) -> ScriptedOutcome {
        let unruly = self.temper.manners == Manners::Unruly;
        let mut emits: Vec<(String, Json)> =
            self.chosen().into_iter().map(|name| (name.to_owned(), self.emitted(name))).collect();
        if unruly && one_in(&mut self.rng, 20) {
            emits.push((UNDECLARED.to_owned(), Json::null()));
        }
        if unruly && one_in(&mut self.rng, 5) {
            let described = |name: &str| {
                self.plan.step_definition(self.step).emits.get(name).is_some_and(Option::is_some)
            };
            let against = emits.iter_mut().filter(|(name, _)| described(name));
            against.for_each(|(_, payload)| *payload = json::string("strange"));
        }
        let result = match &self.plan.step_definition(self.step).returns {
            Some(event) => self.payload(event),
            None => json::number(i64::from(self.step)),
        };
        ScriptedOutcome::Done { result, emits }
    }

    /// The declared emits that it makes: all, or some.
    fn chosen(&mut self) -> Vec<&'a str> {
        let plan = self.plan;
        let definition = plan.step_definition(self.step);
        let names = definition.emits.keys().filter(|name| definition.returns.as_ref() != Some(name));
        let all: Vec<&str> = names.map(String::as_str).collect();
        let rng = &mut self.rng;
        if !one_in(rng, 3) {
            return all;
        }
        if self.temper.manners != Manners::Plain {
            return all.into_iter().filter(|_| percent(rng, 70)).collect();
        }
        if all.len() < 2 {
            return all;
        }
        let one = pick(rng, &all);
        all.into_iter().filter(|name| *name == one || percent(rng, 50)).collect()
    }

    fn doings(&mut self) -> Vec<Doing> {
        let mut doings = Vec::new();
        if one_in(&mut self.rng, 4) {
            let name = &self.plan.step(self.step).name;
            doings.push(Doing::Log(format!("{name} is at work")));
        }
        if one_in(&mut self.rng, 8) {
            let scope = StateScope::from(pick(&mut self.rng, &["run", "run", "flow", "tenant", "orders"]));
            let value = (!one_in(&mut self.rng, 4)).then(|| json::number(i64::from(self.step)));
            let ttl = one_in(&mut self.rng, 4).then_some(Duration::from_secs(2));
            let key = pick(&mut self.rng, &["k1", "k2"]).to_owned();
            doings.push(Doing::Set(scope.clone(), key.clone(), value, ttl));
            if one_in(&mut self.rng, 2) {
                doings.push(Doing::Get(scope, key));
            }
        }
        let plan = self.plan;
        let published: Vec<&str> = plan.step_definition(self.step).published().collect();
        if !published.is_empty() && (one_in(&mut self.rng, 6) || self.temper.manners == Manners::Hasty) {
            let name = pick(&mut self.rng, &published);
            doings.push(Doing::EmitNow(name.to_owned(), self.emitted(name)));
        }
        self.rng.shuffle(&mut doings);
        // Last, because nobody can say what a step does after it was refused.
        if self.temper.manners == Manners::Unruly && one_in(&mut self.rng, 40) {
            doings.push(Doing::EmitNow(UNDECLARED.to_owned(), Json::null()));
        }
        doings
    }

    /// What an emit carries: of some events that nothing asks about, nothing.
    fn emitted(&self, event: &str) -> Json {
        let asked = |step: &StepDefinition| {
            step.emits.get(event).is_some_and(Option::is_some)
                || step.condition.as_ref().is_some_and(|condition| condition.contains(event))
        };
        let bare = weight(event) == 0 && !self.payloads.contains_key(event);
        match bare && !self.plan.definition.steps.iter().any(asked) {
            true => Json::nothing(),
            false => self.payload(event),
        }
    }

    /// What an event carries: fits its schema, and has the event's [`weight`].
    fn payload(&self, event: &str) -> Json {
        if let Some(payload) = self.payloads.get(event) {
            return payload.clone();
        }
        serde_json::json!({ "from": &*self.plan.step(self.step).name, "n": weight(event) }).into()
    }
}
