//! A transition: worked out whole, then written, with the context that it leaves and the timers that it sets.

use std::rc::Rc;

use serde_json::Value;

use super::Now;
use crate::decide::Job;
use crate::decide::draft::Draft;
use crate::event::{EventType, PayloadSlot};
use crate::expr::{CelPayload, EvaluationError, Variables};
use crate::json::{self, Json};
use crate::limits;
use crate::machine::Turn;
use crate::plan::{PlanTransition, PlanWhen};
use crate::run::Fact;
use crate::time::Time;

/// A transition, worked out before anything of it is written.
pub(in crate::decide) struct PlannedMove {
    pub(super) to: Option<u32>,
    /// The context, where it changes.
    pub(in crate::decide) context: Option<Json>,
    pub(super) timers: Vec<(u32, Time)>,
}

impl Draft<'_> {
    /// How the machine begins with this input. The size of the context is for the start to judge.
    pub(in crate::decide) fn opening(&self, input: &Rc<CelPayload>) -> Result<PlannedMove, EvaluationError> {
        let variables = Variables::of([("input", input.clone())]);
        let context = match &self.planned().context[..] {
            [] => Value::Object(input.value().as_object().cloned().unwrap_or_default()),
            expressions => {
                let mut context = serde_json::Map::new();
                for (key, expr) in expressions {
                    let value = expr
                        .evaluate_in(&variables, self.budget)
                        .map_err(|problem| problem.at(format_args!("`context.{key}`")))?;
                    context.insert(key.clone(), value);
                }
                Value::Object(context)
            }
        };
        let to = self.planned().initial;
        let context = CelPayload::parsed(context);
        let timers = self.timers_of(to, &context, input)?;
        Ok(PlannedMove { to: Some(to), timers, context: Some(Json::composed(context.value().to_string())) })
    }

    /// Refuses a context over the limit, unless it is no larger than the one before: a limit that was lowered must not stop
    /// a run.
    pub(in crate::decide) fn sized(
        &self,
        context: Option<Json>,
        before: Option<PayloadSlot>,
    ) -> Result<Option<Json>, EvaluationError> {
        let mut limit = self.moment.limits.context();
        let before = before.and_then(|slot| self.payload(slot));
        limit.bytes = limit.bytes.max(before.map_or(0, |before| before.get().len()));
        context
            .map(|context| context.within("the context", limit))
            .transpose()
            .map_err(|error| error.to_string().into())
    }

    /// Whether the run may make another transition. Where an action that fails leads back to itself only this ends it.
    pub(super) fn may_move(&self) -> Result<(), EvaluationError> {
        match self.machine().transition < limits::TRANSITIONS {
            true => Ok(()),
            false => {
                Err(format!("the run has made {} transitions, which is the limit", limits::TRANSITIONS)
                    .into())
            }
        }
    }

    /// Works out what a transition writes: the context and the times of the timers that it sets.
    pub(super) fn work_out(
        &self,
        transition: &PlanTransition,
        now: &Now,
        variables: &Variables,
    ) -> Result<PlannedMove, EvaluationError> {
        self.may_move()?;
        let mut after = now.context.value().clone();
        if let Value::Object(context) = &mut after {
            for (key, expr) in &transition.set {
                let value = expr.evaluate_in(variables, self.budget);
                match value.map_err(|problem| problem.at(format_args!("`set.{key}`")))? {
                    Value::Null => drop(context.remove(key)),
                    value => drop(context.insert(key.clone(), value)),
                }
            }
        }
        let context = match after == *now.context.value() {
            true => None,
            false => Some(Json::composed(after.to_string())),
        };
        let timers = match transition.to {
            Some(to) => self.timers_of(to, &CelPayload::parsed(after), &now.input)?,
            None => Vec::new(),
        };
        let context = self.sized(context, Some(PayloadSlot::Context(self.machine().context)))?;
        Ok(PlannedMove { to: transition.to, context, timers })
    }

    /// When the timers of a state are due that is entered now.
    pub(super) fn timers_of(
        &self,
        state: u32,
        context: &Rc<CelPayload>,
        input: &Rc<CelPayload>,
    ) -> Result<Vec<(u32, Time)>, EvaluationError> {
        let range = self.planned().state(state).timers.clone();
        let mut due = Vec::with_capacity(range.len());
        for timer in range {
            let at = match &self.planned().timer(timer).when {
                PlanWhen::In(delay) => self.moment.now + *delay,
                PlanWhen::At(expr) => {
                    let variables = Variables::of([("context", context.clone()), ("input", input.clone())]);
                    let at = expr.evaluate_in(&variables, self.budget).and_then(|at| Ok(moment_of(at)?));
                    at.map_err(|problem| {
                        problem.at(format_args!("`at` of state {:?}", self.planned().state(state).name))
                    })?
                }
            };
            due.push((timer, at));
        }
        Ok(due)
    }

    /// Writes a transition. `event_id` is that of the event that brought it about.
    pub(super) fn make_move(&mut self, by: Turn, choice: u32, moved: PlannedMove, event_id: Option<&str>) {
        let from = self.machine().state;
        if moved.to.is_some() && by != Turn::Start {
            for timer in self.planned().state(from).timers.clone() {
                let fired = self.machine().inbox.contains(&Turn::Timer(timer)) && by != Turn::Timer(timer);
                if self.machine().armed.contains_key(&timer) || fired {
                    self.push_timer(timer, EventType::TimerCancelled, Some("left"));
                }
            }
        }
        let transition = self.machine().transition + 1;
        let to = moved.to.unwrap_or(from);
        let (mut event, mut number, mut timer, mut action) = (None, None, None, None);
        match by {
            Turn::Start => {}
            Turn::Event { number: n, event: e } => {
                event = Some(json::string(&self.plan.events[e as usize].name));
                number = Some(json::number(n.into()));
            }
            Turn::Timer(t) => timer = Some(json::number(t.into())),
            Turn::Error(a) => action = Some(json::string(&self.plan.step(a).name)),
        }
        let data = json::object([
            ("from", (by != Turn::Start).then(|| self.state_name(from)).as_ref()),
            ("to", Some(&self.state_name(to))),
            ("event", event.as_ref()),
            ("eventId", event_id.map(json::string).as_ref()),
            ("number", number.as_ref()),
            ("timer", timer.as_ref()),
            ("action", action.as_ref()),
            ("transition", Some(&json::number(transition.into()))),
            ("choice", (choice > 0).then(|| json::number(choice.into())).as_ref()),
            ("stays", moved.to.is_none().then(|| Json::from(true)).as_ref()),
            ("context", moved.context.as_ref()),
        ]);
        if let Some(context) = &moved.context {
            self.keep(PayloadSlot::Context(transition), context);
        }
        let fact = Fact::Moved { by, choice, context: moved.context.is_some() };
        self.push_run(fact, EventType::StateChanged, Some(data));
        for (timer, due) in moved.timers {
            self.set_timer(timer, due);
        }
    }

    pub(super) fn set_timer(&mut self, timer: u32, due: Time) {
        let at = json::string(&due.to_string());
        let data = json::object([
            ("timer", Some(&json::number(timer.into()))),
            ("state", Some(&self.state_name(self.planned().timer(timer).state))),
            ("at", Some(&at)),
        ]);
        self.push_run(Fact::TimerSet { timer }, EventType::TimerSet, Some(data));
        self.timers.insert(timer, (self.machine().set, due));
    }

    /// Adds that a timer fired or was taken back. One that is set and has a job loses it.
    pub(super) fn push_timer(&mut self, timer: u32, kind: EventType, reason: Option<&str>) {
        let data = json::object([
            ("timer", Some(&json::number(timer.into()))),
            ("state", Some(&self.state_name(self.planned().timer(timer).state))),
            ("reason", reason.map(json::string).as_ref()),
        ]);
        let fact = match kind {
            EventType::TimerFired => Fact::TimerFired { timer },
            _ => Fact::TimerCancelled { timer },
        };
        // One that is due has come with its job, which goes by itself.
        let waits = self.machine().armed.get(&timer).copied().filter(|_| reason == Some("left"));
        if let (None, Some(number)) = (self.timers.remove(&timer), waits) {
            self.drop.push((Job::Timer(timer), number));
        }
        self.push_run(fact, kind, Some(data));
    }
}

fn moment_of(value: Value) -> Result<Time, String> {
    match value {
        Value::String(text) => Time::parse(&text)
            .ok_or_else(|| format!("{text:?} isn't a timestamp; write it as 2030-01-31T12:00:00Z")),
        Value::Number(ms) if ms.as_i64().is_some() => Ok(Time::from_millis(ms.as_i64().unwrap_or_default())),
        other => Err(format!("gave {other}, not a timestamp")),
    }
}
