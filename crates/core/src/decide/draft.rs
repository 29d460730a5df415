//! A decision in the making: events are pushed, the fold follows, and what they trigger is settled before it is done.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use super::machine::Receipts;
use super::{AddJob, Decided, Decision, Halt, Job, Known, Missing, Moment, OtherJobs, Refusal};
use crate::budget::{Budget, TooCostly};
use crate::event::{EventType, NewEvent, PayloadSlot};
use crate::expr::{CelPayload, EvaluationError, Variables};
use crate::json::{self, Json};
use crate::machine::{Current, Turn, asked_for};
use crate::plan::Plan;
use crate::run::{Cause, Ended, Fact, Phase, RunState};
use crate::time::Time;

pub(super) struct Draft<'a> {
    pub plan: &'a Plan,
    pub state: RunState,
    pub moment: Moment<'a>,
    pub(super) known: &'a Known,
    events: Vec<NewEvent>,
    /// Payloads of this decision's own events.
    fresh: BTreeMap<PayloadSlot, Json>,
    /// Triggered and not yet past their condition.
    pub(super) pending: BTreeSet<u32>,
    /// Steps that need a job, and when it is due.
    due: BTreeMap<u32, Time>,
    pub(super) drop: Vec<(Job, u32)>,
    pub others: OtherJobs,
    timer: Option<Time>,
    /// When a delayed machine enters its first state.
    begin: Option<Time>,
    /// Timers of a machine that were set: their number, and when they are due.
    pub(super) timers: BTreeMap<u32, (u32, Time)>,
    pub(super) receipts: Receipts,
    /// A turn of a machine that came to its end and was not dealt with yet.
    pub(super) over: Option<Current>,
    failure: Option<(String, Option<Arc<str>>)>,
    /// What the expressions and checks of this decision may still cost together.
    pub(super) budget: &'a Budget,
    /// Payloads that its expressions have read.
    parsed: RefCell<BTreeMap<PayloadSlot, Rc<CelPayload>>>,
}

impl<'a> Draft<'a> {
    pub fn new(
        plan: &'a Plan,
        state: &RunState,
        known: &'a Known,
        moment: Moment<'a>,
        budget: &'a Budget,
    ) -> Draft<'a> {
        Draft {
            plan,
            state: state.clone(),
            moment,
            known,
            events: Vec::new(),
            fresh: BTreeMap::new(),
            pending: BTreeSet::new(),
            due: BTreeMap::new(),
            drop: Vec::new(),
            others: OtherJobs::Leave,
            timer: None,
            begin: None,
            timers: BTreeMap::new(),
            receipts: Receipts::new(),
            over: None,
            failure: None,
            budget,
            parsed: RefCell::default(),
        }
    }

    /// Adds an event of the run and applies it.
    pub fn push_run(&mut self, fact: Fact, kind: EventType, data: Option<Json>) {
        let slot = fact.slot(self.plan, &self.state);
        self.events.push(NewEvent { slot, ..NewEvent::run(kind, data) });
        self.apply(fact);
    }

    /// Adds an event of a step and applies it.
    pub fn push_step(
        &mut self,
        fact: Fact,
        kind: EventType,
        (step, attempt): (u32, u32),
        data: Option<Json>,
    ) {
        let name = self.plan.step(step).name.clone();
        let slot = fact.slot(self.plan, &self.state);
        self.events.push(NewEvent { slot, ..NewEvent::step(kind, &name, attempt, data) });
        self.apply(fact);
    }

    /// Publishes a declared event, unless one of that name was published before: the first wins.
    pub fn publish(&mut self, of: Option<(u32, u32)>, event: u32, payload: &Json, event_id: Option<&str>) {
        if self.state.emitted.contains(event) {
            return;
        }
        let name = json::string(&self.plan.events[event as usize].name);
        let event_id = event_id.map(json::string);
        let data =
            json::object([("name", Some(&name)), ("payload", Some(payload)), ("eventId", event_id.as_ref())]);
        self.keep(PayloadSlot::Emit(event), payload);
        match of {
            Some(of) => self.push_step(Fact::Emit { event }, EventType::Emit, of, Some(data)),
            None => self.push_run(Fact::Emit { event }, EventType::Emit, Some(data)),
        }
    }

    /// Remembers a payload that this decision makes, for the conditions and steps that it triggers.
    pub fn keep(&mut self, slot: PayloadSlot, payload: &Json) {
        self.parsed.borrow_mut().remove(&slot);
        self.fresh.insert(slot, payload.clone());
    }

    fn apply(&mut self, fact: Fact) {
        let before = self.state.machine.as_mut().map(|machine| (machine.state, machine.current.clone()));
        let triggered = self.state.apply(self.plan, fact);
        self.pending.extend(triggered);
        let idle = self.state.machine.as_ref().is_some_and(|machine| machine.current.is_none());
        match (before, fact) {
            (Some((from, _)), Fact::Moved { by, choice, .. }) if idle => {
                // It asked for none: the first of its first group can always start.
                let asked = asked_for(self.plan, from, by, choice);
                let from = (by != Turn::Start).then_some(from);
                self.over = Some(Current { by, from, asked });
            }
            (Some((_, Some(current))), _) if idle => self.over = Some(current),
            _ => {}
        }
    }

    /// Asks for a job of a live step.
    pub fn enqueue(&mut self, step: u32, due: Time) {
        self.due.insert(step, due);
    }

    /// Takes the request for a job back.
    pub fn unqueue(&mut self, step: u32) {
        self.due.remove(&step);
    }

    pub fn time_out_at(&mut self, due: Time) {
        self.timer = Some(due);
    }

    /// Enters the first state of a machine at this time.
    pub fn begin_at(&mut self, due: Time) {
        self.begin = Some(due);
    }

    /// Says why the run fails, unless an earlier step has settled that.
    pub fn fail_run(&mut self, error: &str, step: Option<u32>) {
        if self.state.failed.is_some() && self.state.failed != step {
            return;
        }
        let step = step.map(|step| self.plan.step(step).name.clone());
        self.failure.get_or_insert((error.to_owned(), step));
    }

    /// Evaluates the conditions of what was triggered, and ends the run if nothing is left that could happen.
    pub fn settle(&mut self) -> Result<(), Halt> {
        if self.plan.machine.is_some() {
            return self.advance();
        }
        self.ask_for_conditions(self.pending.iter().copied())?;
        while let Some(step) = self.pending.pop_first() {
            if self.state.step(step).is_live() && self.passes_condition(step)? {
                let now = self.moment.now;
                self.due.entry(step).or_insert(now);
            }
        }
        if self.state.stopping {
            self.drop_queued()?;
        }
        if self.state.ended.is_none() && self.state.live().next().is_none() && !self.could_go_on() {
            self.finish()?;
        }
        Ok(())
    }

    /// One request for everything that the conditions of these steps read.
    fn ask_for_conditions(&self, steps: impl IntoIterator<Item = u32>) -> Result<(), Halt> {
        let mut missing = BTreeSet::new();
        for step in steps {
            let Some(condition) = &self.plan.step(step).condition else { continue };
            let reads = condition.reads();
            if reads.input && self.payload(PayloadSlot::Input).is_none() {
                missing.insert(PayloadSlot::Input);
            }
            if reads.events {
                missing.extend(self.given(step).filter(|slot| self.payload(*slot).is_none()));
            }
        }
        need(missing)
    }

    fn given(&self, step: u32) -> impl Iterator<Item = PayloadSlot> {
        self.state.given(self.plan, step).map(PayloadSlot::Emit)
    }

    pub(super) fn payload(&self, slot: PayloadSlot) -> Option<&Json> {
        self.fresh.get(&slot).or_else(|| self.known.payloads.get(&slot))
    }

    /// A payload for expressions, which is parsed once per decision.
    pub(super) fn readable(&self, slot: PayloadSlot) -> Option<Rc<CelPayload>> {
        let payload = self.payload(slot)?;
        let mut parsed = self.parsed.borrow_mut();
        Some(parsed.entry(slot).or_insert_with(|| CelPayload::of(payload.clone())).clone())
    }

    /// Events by name. One without a payload is left out.
    fn readable_events(&self, events: impl Iterator<Item = u32>) -> Vec<(String, Rc<CelPayload>)> {
        let carries = |slot| self.payload(slot).is_some_and(|payload| !payload.is_nothing());
        let event = |event: u32| {
            let slot = Some(PayloadSlot::Emit(event)).filter(|slot| carries(*slot))?;
            Some((self.plan.events[event as usize].name.to_string(), self.readable(slot)?))
        };
        events.filter_map(event).collect()
    }

    /// The input, or null where nothing reads it.
    fn readable_input(&self) -> Rc<CelPayload> {
        self.readable(PayloadSlot::Input).unwrap_or_else(|| CelPayload::of(Json::null()))
    }

    fn passes_condition(&mut self, step: u32) -> Result<bool, Halt> {
        let Some(condition) = &self.plan.step(step).condition else { return Ok(true) };
        self.ask_for_conditions([step])?;
        let variables = Variables::of([("input", self.readable_input())]);
        let events = match condition.reads().events {
            true => self.readable_events(self.state.given(self.plan, step)),
            false => Vec::new(),
        };
        match condition.test_in(&variables.with("events", events), self.budget) {
            Ok(true) => Ok(true),
            Ok(false) => {
                self.skip(step, "condition");
                Ok(false)
            }
            Err(problem) => {
                let error = format!("`if` of step {:?}: {problem}", self.plan.step(step).name);
                let code = problem.code_or("condition");
                self.fail_step(step, 1, &error, Some(code), None, Cause::Try);
                Ok(false)
            }
        }
    }

    pub fn skip(&mut self, step: u32, reason: &str) {
        let data = json::object([("reason", Some(&json::string(reason)))]);
        self.due.remove(&step);
        self.push_step(Fact::Skipped { step }, EventType::StepSkipped, (step, 0), Some(data));
    }

    /// A step out of attempts.
    pub fn fail_step(
        &mut self,
        step: u32,
        attempt: u32,
        error: &str,
        code: Option<&str>,
        stack: Option<&str>,
        cause: Cause,
    ) {
        let error_json = json::string(error);
        let data = json::object([
            ("error", Some(&error_json)),
            ("code", code.map(json::string).as_ref()),
            ("stack", stack.map(json::string).as_ref()),
            ("cause", cause.as_str().map(json::string).as_ref()),
        ]);
        self.keep(PayloadSlot::Error(self.state.address(step)), &error_json);
        self.due.remove(&step);
        self.push_step(
            Fact::Failed { step, attempt, cause },
            EventType::StepFailed,
            (step, attempt),
            Some(data),
        );
        if self.state.failed == Some(step) {
            self.fail_run(error, Some(step));
        }
    }

    /// Under `fail_fast` what is queued goes and what runs is waited for.
    fn drop_queued(&mut self) -> Result<(), Halt> {
        let live: Vec<u32> = self.state.live().collect();
        if live.is_empty() {
            return Ok(());
        }
        let Some(leased) = &self.known.leased else { return Err(Halt::Missing(Missing::Leases)) };
        for step in live {
            if leased.contains(&step) {
                continue;
            }
            // A step that this very decision triggered has no job yet.
            if self.due.remove(&step).is_none() {
                self.drop.push((Job::Step(step), self.state.step(step).attempt));
            }
            self.skip(step, "fail_fast");
        }
        Ok(())
    }

    /// Whether an external event could still trigger a step that hasn't run.
    fn could_go_on(&self) -> bool {
        if self.state.stopping || self.plan.definition.accepts.is_empty() {
            return false;
        }
        // One step that external events could trigger is enough, whatever it leads to.
        let event =
            |e: u32| self.state.emitted.contains(e) || self.plan.events[e as usize].accepted.is_some();
        let done = |s: u32| self.plan.satisfied_by_step(s, &self.state);
        (0..self.plan.steps.len() as u32).any(|step| {
            self.state.step(step).phase == Phase::Idle && self.plan.satisfiable(step, &event, &done)
        })
    }

    /// Ends the run: the steps never triggered are skipped, and the terminal event is in this decision.
    fn finish(&mut self) -> Result<(), Halt> {
        if let Some(step) = self.state.failed {
            let Some(error) = self.payload(PayloadSlot::Error(step)).cloned() else {
                return need(BTreeSet::from([PayloadSlot::Error(step)]));
            };
            self.skip_idle();
            let name = json::string(&self.plan.step(step).name);
            let data = [("error", Some(&error)), ("step", Some(&name))];
            self.end(Ended::Failed, &data);
            return Ok(());
        }
        let result = self.result()?;
        self.skip_idle();
        match result {
            Ok(result) => {
                let steps = json::number(self.plan.steps.len() as i64);
                self.end(Ended::Completed, &[("result", Some(&result)), ("stepCount", Some(&steps))]);
            }
            Err(problem) => {
                self.end_by(&problem.at("`output`"));
            }
        }
        Ok(())
    }

    /// Ends the run for something that only its definition can be blamed for.
    pub(super) fn end_by(&mut self, problem: &EvaluationError) {
        let error = problem.to_string();
        self.fail_run(&error, None);
        let code = problem.is_too_costly().then(|| json::string(TooCostly::CODE));
        self.end(Ended::Failed, &[("error", Some(&json::string(&error))), ("code", code.as_ref())]);
    }

    fn skip_idle(&mut self) {
        for step in 0..self.plan.steps.len() as u32 {
            if self.state.step(step).phase == Phase::Idle {
                self.skip(step, if self.state.stopping { "fail_fast" } else { "not_triggered" });
            }
        }
    }

    /// Adds the terminal event. `duration` counts from the creation of the run.
    pub fn end(&mut self, how: Ended, fields: &[(&str, Option<&Json>)]) {
        self.close_inbox(how);
        let kind = match how {
            Ended::Completed => EventType::FlowCompleted,
            Ended::Failed => EventType::FlowFailed,
            Ended::Cancelled => EventType::FlowCancelled,
        };
        let duration = json::number(self.moment.now.since(self.moment.created_at).as_millis() as i64);
        let data = json::object(fields.iter().copied().chain([("duration", Some(&duration))]));
        self.push_run(Fact::Ended(how), kind, Some(data));
        self.others = OtherJobs::Drop;
        self.due.clear();
        self.timers.clear();
        self.pending.clear();
    }

    /// The run's result: `output`, or the results of its completed leaf steps by name.
    fn result(&self) -> Result<Result<Json, EvaluationError>, Halt> {
        let completed: Vec<u32> = (0..self.plan.steps.len() as u32)
            .filter(|&s| self.plan.step(s).keeps_result && self.state.step(s).phase == Phase::Completed)
            .collect();
        let mut slots: Vec<PayloadSlot> = completed.iter().map(|&s| PayloadSlot::Result(s)).collect();
        if let Some(output) = &self.plan.output {
            if output.reads().input {
                slots.push(PayloadSlot::Input);
            }
            if output.reads().events {
                let emitted = (0..self.plan.events.len() as u32).filter(|&e| self.state.emitted.contains(e));
                slots.extend(emitted.map(PayloadSlot::Emit));
            }
        }
        need(slots.iter().copied().filter(|&slot| self.payload(slot).is_none()).collect())?;
        let result = |step: u32| self.payload(PayloadSlot::Result(step)).cloned().unwrap_or_else(Json::null);
        let Some(output) = &self.plan.output else {
            let results: Vec<Json> = completed.iter().map(|&s| result(s)).collect();
            let names = completed.iter().map(|&s| &*self.plan.step(s).name);
            let all = json::object(names.zip(results.iter().map(Some)));
            return Ok(all
                .within("the results together", self.moment.limits.join())
                .map_err(|error| error.to_string().into()));
        };
        let names = completed.iter().map(|&step| self.plan.step(step).name.to_string());
        let results = completed.iter().map(|&step| {
            self.readable(PayloadSlot::Result(step)).unwrap_or_else(|| CelPayload::of(Json::null()))
        });
        let variables = Variables::of([("input", self.readable_input())])
            .with("events", self.readable_events(0..self.plan.events.len() as u32))
            .with("results", names.zip(results));
        Ok(output.evaluate_in(&variables, self.budget).map(Json::from).and_then(|json| {
            let limit = self.moment.limits.payload();
            json.within("the result", limit).map_err(|error| error.to_string().into())
        }))
    }

    pub fn refuse_if_ended(&self) -> Result<(), Halt> {
        match self.state.ended {
            Some(_) => Err(Refusal::Ended(self.state.status()).into()),
            None => Ok(()),
        }
    }

    pub fn decision(self) -> Decided {
        if self.events.is_empty() && self.due.is_empty() {
            return Decided::Applied;
        }
        let held = self.state.paused;
        let steps = self.due.iter().map(|(&step, &due)| AddJob {
            job: Job::Step(step),
            attempt: self.state.step(step).attempt,
            priority: self.plan.step_definition(step).priority.unwrap_or(self.state.priority),
            due,
            held,
        });
        let timer = self.timer.filter(|_| self.state.ended.is_none()).map(|due| AddJob {
            job: Job::RunTimeout,
            attempt: 1,
            priority: self.state.priority,
            due,
            held: false,
        });
        let priority = self.state.priority;
        let begin = self.begin.map(|due| AddJob { job: Job::Begin, attempt: 1, priority, due, held });
        let timers = self.timers.iter().map(|(&timer, &(number, due))| AddJob {
            job: Job::Timer(timer),
            attempt: number,
            priority,
            due,
            held,
        });
        Decided::Decision(Box::new(Decision {
            add: steps.chain(timer).chain(begin).chain(timers).collect(),
            receipts: self.receipts.into_values().collect(),
            events: self.events,
            state: self.state,
            drop: self.drop,
            others: self.others,
            failure: self.failure,
            payloads: self.fresh,
        }))
    }
}

pub(super) fn need(missing: BTreeSet<PayloadSlot>) -> Result<(), Halt> {
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Halt::Missing(Missing::Payloads(missing.into_iter().collect())))
    }
}
