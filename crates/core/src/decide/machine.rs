//! What happens to the run of a machine: events come in, take turns, and move it.
//!
//! A turn is decided where the one before it is over, in the same commit: in the commit that takes the event in, or in
//! that of the last action before it. So an event that is in the inbox of an idle machine does not exist, and nobody has
//! to be told to look.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::draft::{Draft, need};
use super::{Halt, Job, Missing, Opened, Receipt, ReceiptStatus, Refusal, Sender};
use crate::definition::{Ends, Missed};
use crate::event::{EventType, Slot};
use crate::expr::{Expr, Variables};
use crate::json::{self, Json};
use crate::limits;
use crate::machine::{Asked, Current, MachineState, Turn, transition_of};
use crate::plan::{PlanMachine, PlanState, PlanTransition, PlanWhen};
use crate::planted::{self, Bug};
use crate::run::{Ended, Fact, Phase};
use crate::time::Time;

/// Events of the inbox that are read at once.
const READ_AHEAD: usize = 64;

/// Moves from failure to failure without anything having run in between: a machine that makes more goes in circles.
const FAILURES_IN_TURN: u32 = 100;

/// What `event.received` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceivedEvent {
    pub name: String,
    #[serde(default = "Json::null")]
    pub payload: Json,
    pub event_id: String,
    #[serde(default)]
    pub user_id: Option<String>,
    #[serde(default)]
    pub roles: Vec<String>,
}

/// A transition, worked out before anything of it is written.
pub(super) struct Move {
    to: Option<u32>,
    /// The context, where it changes.
    context: Option<Json>,
    timers: Vec<(u32, Time)>,
}

/// Why an event is turned down when its turn comes.
struct Rejection {
    code: &'static str,
    reason: String,
}

impl Draft<'_> {
    fn machine(&self) -> &MachineState {
        self.state.of_machine()
    }

    fn planned(&self) -> &PlanMachine {
        match &self.plan.machine {
            Some(machine) => machine,
            None => unreachable!("asked only of machines"),
        }
    }

    fn planned_state(&self) -> &PlanState {
        self.planned().state(self.machine().state)
    }

    /// The state's name, for messages.
    fn state_name(&self, state: u32) -> Json {
        json::string(&self.planned().state(state).name)
    }

    /// Enters the initial state, on an input that is at hand or asked for.
    pub(super) fn begin(&mut self) -> Result<(), Halt> {
        if self.state.ended.is_some() || self.machine().transition > 0 {
            return Err(Halt::Applied);
        }
        let input = self.value(Slot::Input)?;
        let begun = self.opening(&input).map_err(|problem| Refusal::Expression { problem })?;
        self.make_move(Turn::Start, 0, begun);
        self.advance()
    }

    /// How the machine begins with this input.
    pub(super) fn opening(&self, input: &Value) -> Result<Move, String> {
        let variables = Variables::of([("input", input.clone())]);
        let context = match &self.planned().context[..] {
            [] => Value::Object(input.as_object().cloned().unwrap_or_default()),
            expressions => {
                let mut context = serde_json::Map::new();
                for (key, expr) in expressions {
                    let value = expr
                        .evaluate_in(&variables)
                        .map_err(|problem| format!("`context.{key}`: {problem}"))?;
                    context.insert(key.clone(), value);
                }
                Value::Object(context)
            }
        };
        let to = self.planned().initial;
        Ok(Move {
            to: Some(to),
            timers: self.timers_of(to, &context, input)?,
            context: Some(sized(context)?),
        })
    }

    /// An event comes in. Those before it have their turns first.
    pub(super) fn receive(
        &mut self,
        name: &str,
        payload: &Json,
        event_id: &str,
        sender: &Sender,
    ) -> Result<(), Halt> {
        let Some(event) = self.plan.event_index(name) else {
            let accepts = self.plan.definition.accepts.keys().cloned().collect();
            let flow = self.plan.flow.clone();
            return Err(Refusal::NotAccepted { flow, event: name.to_owned(), accepts }.into());
        };
        match self.known.receipts.get(event_id) {
            Some(true) if !planted::is(Bug::EventTakenTwice) => return Err(Halt::Applied),
            Some(_) => {}
            None => return Err(Halt::Missing(Missing::Receipt(event_id.to_owned()))),
        }
        self.refuse_if_ended()?;
        self.planned()
            .may_send(event, &sender.roles)
            .map_err(|roles| Refusal::Forbidden { event: name.to_owned(), roles })?;
        self.check_event(event, name, payload)?;
        if self.machine().inbox.len() >= limits::INBOX {
            return Err(Refusal::InboxFull.into());
        }
        let number = self.machine().received + 1;
        let user = sender.user.as_deref().map(json::string);
        let roles = (!sender.roles.is_empty()).then(|| list(sender.roles.iter().map(String::as_str)));
        let from = json::object([("userId", user.as_ref()), ("roles", roles.as_ref())]);
        let data = json::object([
            ("name", Some(&json::string(name))),
            ("payload", Some(payload)),
            ("eventId", Some(&json::string(event_id))),
            ("number", Some(&json::number(number.into()))),
            ("userId", user.as_ref()),
            ("roles", roles.as_ref()),
        ]);
        self.keep(Slot::Received(number), &data);
        self.push_run(Fact::Received { number, event }, EventType::EventReceived, Some(data));
        let sender = (user.is_some() || roles.is_some()).then_some(from);
        let opened = Opened { event_id: event_id.into(), name: name.into(), sender };
        self.receipts.insert(
            number,
            Receipt { number, opened: Some(opened), status: ReceiptStatus::Pending, outcome: None },
        );
        self.advance()
    }

    /// A timer has run out.
    pub(super) fn timer_due(&mut self, timer: u32, number: u32, due: Time) -> Result<(), Halt> {
        let live = self.machine().armed.get(&timer) == Some(&number);
        if self.state.ended.is_some() || (!live && !planted::is(Bug::TimerOutlivesState)) {
            return Err(Halt::Applied);
        }
        let planned = self.planned().timer(timer);
        let missed = self.moment.now.since(due) > limits::MISSED;
        match (planned.missed, &planned.when) {
            (Missed::Fire, _) => self.push_timer(timer, EventType::TimerFired, None),
            _ if !missed => self.push_timer(timer, EventType::TimerFired, None),
            (Missed::Restart, PlanWhen::In(delay)) => {
                let again = self.moment.now + *delay;
                self.push_timer(timer, EventType::TimerCancelled, Some("missed"));
                self.set_timer(timer, again);
            }
            (Missed::Skip | Missed::Restart, _) => {
                self.push_timer(timer, EventType::TimerCancelled, Some("missed"));
            }
        }
        self.advance()
    }

    /// Gives turns until actions run or nobody is in line.
    pub fn advance(&mut self) -> Result<(), Halt> {
        let mut failures = 0;
        loop {
            self.trigger_actions()?;
            if let Some(over) = self.over.take() {
                self.turn_over(&over)?;
            }
            let machine = self.machine();
            let overlaps = planted::is(Bug::TurnsOverlap) && machine.current.is_some();
            if self.state.ended.is_some()
                || machine.transition == 0
                || (machine.current.is_some() && !overlaps)
            {
                return Ok(());
            }
            if let Some(action) = self.state.failed {
                return self.end_failed(action);
            }
            if let Some(action) = machine.error {
                failures += 1;
                if failures > FAILURES_IN_TURN {
                    let name = &self.plan.step(action).name;
                    let error = format!("action {name:?} and the state of its `on_error` lead to each other");
                    return self.give_up(&error);
                }
                self.move_by_error(action)?;
                continue;
            }
            if self.planned_state().ends != Ends::No {
                return self.reach_end();
            }
            let Some(turn) = machine.inbox.front().copied().filter(|_| !self.state.paused) else {
                return Ok(());
            };
            match turn {
                Turn::Event { number, event } => self.turn_of_event(number, event)?,
                Turn::Timer(timer) => self.turn_of_timer(timer)?,
                Turn::Start | Turn::Error(_) => return Ok(()),
            }
        }
    }

    /// Queues triggered actions whose condition holds.
    fn trigger_actions(&mut self) -> Result<(), Halt> {
        while let Some(action) = self.pending.pop_first() {
            if !self.state.step(action).is_live() {
                continue;
            }
            let plan = self.plan;
            let Some(condition) = &plan.step(action).condition else {
                self.enqueue(action, self.moment.now);
                continue;
            };
            match condition.test_in(&self.variables()?) {
                Ok(true) => self.enqueue(action, self.moment.now),
                Ok(false) => self.skip(action, "condition"),
                Err(problem) => {
                    let error = format!("`if` of action {:?}: {problem}", plan.step(action).name);
                    let attempt = self.state.step(action).attempt;
                    self.fail_step(action, attempt, &error, Some("condition"), None, crate::run::Cause::Try);
                }
            }
        }
        Ok(())
    }

    fn turn_of_event(&mut self, number: u32, event: u32) -> Result<(), Halt> {
        let received = self.received(number)?;
        let variables = self.variables_of(Some(&received))?;
        let plan = self.plan;
        let state = self.machine().state;
        let choices = plan.machine.as_ref().and_then(|machine| machine.state(state).on.get(&event));
        match self.choose(choices.map_or(&[][..], Vec::as_slice), &received, &variables) {
            Ok((choice, moved)) => {
                self.make_move(Turn::Event { number, event }, choice, moved);
                let outcome = json::object([
                    ("previousState", Some(&self.state_name(state))),
                    ("currentState", Some(&self.state_name(self.machine().state))),
                ]);
                self.note_receipt(number, ReceiptStatus::Processing, Some(outcome));
            }
            Err(rejection) => self.reject(number, event, &rejection, Some(&received.event_id)),
        }
        Ok(())
    }

    /// The first transition that applies, worked out.
    fn choose(
        &self,
        choices: &[PlanTransition],
        received: &ReceivedEvent,
        variables: &Variables,
    ) -> Result<(u32, Move), Rejection> {
        let name = &received.name;
        let state = &self.planned_state().name;
        let mut why = Rejection {
            code: "wrong_state",
            reason: format!("state {state:?} does not take {name:?}; {}", self.takes()),
        };
        for (choice, transition) in choices.iter().enumerate() {
            if !transition.allows(&received.roles) && !planted::is(Bug::RoleIgnored) {
                if why.code == "wrong_state" {
                    let reason = format!(
                        "in state {state:?} {name:?} takes the role {}",
                        transition.roles.join(" or ")
                    );
                    why = Rejection { code: "forbidden", reason };
                }
                continue;
            }
            let held =
                transition.condition.as_ref().map_or(Ok(true), |condition| condition.test_in(variables));
            match held {
                Ok(true) => {
                    return match self.work_out(transition, variables) {
                        Ok(moved) => Ok((choice as u32, moved)),
                        Err(reason) => Err(Rejection { code: "expression", reason }),
                    };
                }
                Ok(false) => {
                    let reason = format!("no condition of {name:?} in state {state:?} holds");
                    why = Rejection { code: "guard", reason };
                }
                Err(problem) => {
                    return Err(Rejection {
                        code: "expression",
                        reason: format!("`if` of {name:?}: {problem}"),
                    });
                }
            }
        }
        Err(why)
    }

    /// What the present state answers, in words.
    fn takes(&self) -> String {
        let names: Vec<&str> =
            self.planned_state().on.keys().map(|&event| &*self.plan.events[event as usize].name).collect();
        match &names[..] {
            [] => "it takes none".to_owned(),
            names => format!("it takes {}", names.join(", ")),
        }
    }

    fn turn_of_timer(&mut self, timer: u32) -> Result<(), Halt> {
        let variables = self.variables_of(None)?;
        let plan = self.plan;
        let Some(then) = transition_of(plan, self.machine().state, Turn::Timer(timer), 0) else {
            return Ok(());
        };
        let moved = match then.condition.as_ref().map_or(Ok(true), |condition| condition.test_in(&variables))
        {
            Ok(false) => {
                self.push_timer(timer, EventType::TimerCancelled, Some("guard"));
                return Ok(());
            }
            Ok(true) => self.work_out(then, &variables),
            Err(problem) => Err(format!("`if`: {problem}")),
        };
        match moved {
            Ok(moved) => {
                self.make_move(Turn::Timer(timer), 0, moved);
                Ok(())
            }
            Err(problem) => {
                self.give_up(&format!("a timer of state {}: {problem}", self.planned_state().name))
            }
        }
    }

    /// An action is out of attempts and names the state to go to.
    fn move_by_error(&mut self, action: u32) -> Result<(), Halt> {
        let Some(to) = self.plan.step(action).on_error else { return Ok(()) };
        if planted::is(Bug::InboxForgotten)
            && let Some(machine) = &mut self.state.machine
        {
            machine.inbox.clear();
        }
        let context = self.context()?;
        let input = self.read_input()?;
        match self.timers_of(to, &context, &input) {
            Ok(timers) => {
                self.make_move(Turn::Error(action), 0, Move { to: Some(to), context: None, timers });
                Ok(())
            }
            Err(problem) => self.give_up(&problem),
        }
    }

    /// Works out what a transition writes: the context and the times of the timers that it sets.
    fn work_out(&self, transition: &PlanTransition, variables: &Variables) -> Result<Move, String> {
        if self.machine().transition >= limits::TRANSITIONS {
            return Err(format!("the run has made {} transitions, which is the limit", limits::TRANSITIONS));
        }
        let before = self.context().map_err(|_| "the context is not at hand".to_owned())?;
        let mut after = before.clone();
        if let Value::Object(context) = &mut after {
            for (key, expr) in &transition.set {
                match expr.evaluate_in(variables).map_err(|problem| format!("`set.{key}`: {problem}"))? {
                    Value::Null => drop(context.remove(key)),
                    value => drop(context.insert(key.clone(), value)),
                }
            }
        }
        let input = self.read_input().map_err(|_| "the input is not at hand".to_owned())?;
        let timers = match transition.to {
            Some(to) => self.timers_of(to, &after, &input)?,
            None => Vec::new(),
        };
        let context = if after == before { None } else { Some(sized(after)?) };
        Ok(Move { to: transition.to, context, timers })
    }

    /// When the timers of a state are due that is entered now.
    fn timers_of(&self, state: u32, context: &Value, input: &Value) -> Result<Vec<(u32, Time)>, String> {
        let range = self.planned().state(state).timers.clone();
        let mut due = Vec::with_capacity(range.len());
        for timer in range {
            let at = match &self.planned().timer(timer).when {
                PlanWhen::In(delay) => self.moment.now + *delay,
                PlanWhen::At(expr) => moment_of(expr, context, input).map_err(|problem| {
                    format!("`at` of state {:?}: {problem}", self.planned().state(state).name)
                })?,
            };
            due.push((timer, at));
        }
        Ok(due)
    }

    fn make_move(&mut self, by: Turn, choice: u32, moved: Move) {
        let from = self.machine().state;
        if moved.to.is_some() && by != Turn::Start && !planted::is(Bug::TimerOutlivesState) {
            for timer in self.planned().state(from).timers.clone() {
                let fired = self.machine().inbox.contains(&Turn::Timer(timer)) && by != Turn::Timer(timer);
                if self.machine().armed.contains_key(&timer) || fired {
                    self.push_timer(timer, EventType::TimerCancelled, Some("left"));
                }
            }
        }
        let transition = self.machine().transition + 1;
        let to = moved.to.unwrap_or(from);
        let (mut event, mut number, mut event_id, mut timer, mut action) = (None, None, None, None, None);
        match by {
            Turn::Start => {}
            Turn::Event { number: n, event: e } => {
                event = Some(json::string(&self.plan.events[e as usize].name));
                number = Some(json::number(n.into()));
                event_id = self.received(n).ok().map(|received| json::string(&received.event_id));
            }
            Turn::Timer(t) => timer = Some(json::number(t.into())),
            Turn::Error(a) => action = Some(json::string(&self.plan.step(a).name)),
        }
        let data = json::object([
            ("from", (by != Turn::Start).then(|| self.state_name(from)).as_ref()),
            ("to", Some(&self.state_name(to))),
            ("event", event.as_ref()),
            ("eventId", event_id.as_ref()),
            ("number", number.as_ref()),
            ("timer", timer.as_ref()),
            ("action", action.as_ref()),
            ("transition", Some(&json::number(transition.into()))),
            ("choice", (choice > 0).then(|| json::number(choice.into())).as_ref()),
            ("stays", moved.to.is_none().then(|| Json::from(true)).as_ref()),
            ("context", moved.context.as_ref()),
        ]);
        if let Some(context) = &moved.context {
            self.keep(Slot::Context(transition), context);
        }
        let fact = Fact::Moved { by, choice, context: moved.context.is_some() };
        self.push_run(fact, EventType::StateChanged, Some(data));
        for (timer, due) in moved.timers {
            self.set_timer(timer, due);
        }
    }

    fn set_timer(&mut self, timer: u32, due: Time) {
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
    fn push_timer(&mut self, timer: u32, kind: EventType, reason: Option<&str>) {
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

    /// A turn has no action left that runs: its event is done with.
    fn turn_over(&mut self, over: &Current) -> Result<(), Halt> {
        for asked in &over.asked {
            if self.state.step(asked.action).phase == Phase::Idle {
                self.skip(asked.action, "not_triggered");
            }
        }
        let Turn::Event { number, .. } = over.by else { return Ok(()) };
        let names = |phase: Phase| {
            let of_phase = |asked: &&Asked| self.state.step(asked.action).phase == phase;
            list(over.asked.iter().filter(of_phase).map(|asked| &*self.plan.step(asked.action).name))
        };
        let tries = |asked: &Asked| {
            let step = self.state.step(asked.action);
            step.tries + step.lost + u32::from(step.phase == Phase::Completed)
        };
        let tries = over.asked.iter().map(tries).max().unwrap_or(0).max(1);
        let failed = self.state.failed.or(self.machine().error);
        let error = match failed {
            Some(action) => Some(self.error_of(action)?),
            None => None,
        };
        let from = over.from.map(|state| self.state_name(state));
        let outcome = json::object([
            ("previousState", from.as_ref()),
            ("currentState", Some(&self.state_name(self.machine().state))),
            ("actionsExecuted", Some(&names(Phase::Completed))),
            ("actionsFailed", Some(&names(Phase::Failed)).filter(|names| names.get() != "[]")),
            ("tries", Some(&json::number(tries.into()))),
            ("error", error.as_ref()),
            ("code", error.is_some().then(|| json::string("action_failed")).as_ref()),
        ]);
        let status = if error.is_some() { ReceiptStatus::Failed } else { ReceiptStatus::Completed };
        self.note_receipt(number, status, Some(outcome));
        Ok(())
    }

    /// Why an action failed.
    fn error_of(&self, action: u32) -> Result<Json, Halt> {
        let slot = Slot::Error(self.state.address(action));
        need(BTreeSet::from([slot]).into_iter().filter(|slot| self.payload(*slot).is_none()).collect())?;
        Ok(self.payload(slot).cloned().unwrap_or_else(Json::null))
    }

    fn reject(&mut self, number: u32, event: u32, why: &Rejection, event_id: Option<&str>) {
        let accepts =
            list(self.planned_state().on.keys().map(|&event| &*self.plan.events[event as usize].name));
        let state = self.state_name(self.machine().state);
        let (code, reason) = (json::string(why.code), json::string(&why.reason));
        let data = json::object([
            ("name", Some(&json::string(&self.plan.events[event as usize].name))),
            ("eventId", event_id.map(json::string).as_ref()),
            ("number", Some(&json::number(number.into()))),
            ("state", Some(&state)),
            ("code", Some(&code)),
            ("reason", Some(&reason)),
        ]);
        self.push_run(Fact::Rejected { number }, EventType::EventRejected, Some(data));
        let outcome = json::object([
            ("previousState", Some(&state)),
            ("currentState", Some(&state)),
            ("error", Some(&reason)),
            ("code", Some(&code)),
            ("accepts", Some(&accepts)),
        ]);
        self.note_receipt(number, ReceiptStatus::Failed, Some(outcome));
    }

    fn note_receipt(&mut self, number: u32, status: ReceiptStatus, outcome: Option<Json>) {
        let status = match status {
            ReceiptStatus::Processing if planted::is(Bug::ReceiptTooSoon) => ReceiptStatus::Completed,
            status => status,
        };
        let receipt =
            self.receipts.entry(number).or_insert(Receipt { number, opened: None, status, outcome: None });
        (receipt.status, receipt.outcome) = (status, outcome.or(receipt.outcome.take()));
    }

    /// The run is about to end: whoever waits in the inbox, or has the turn, is told.
    pub(super) fn close_inbox(&mut self, how: Ended) {
        let Some(machine) = &self.state.machine else { return };
        let word = format!("{how:?}").to_lowercase();
        let (waiting, current) = (machine.inbox.clone(), machine.current.clone());
        let why = Rejection { code: "ended", reason: format!("the run has ended ({word})") };
        for turn in waiting {
            if let Turn::Event { number, event } = turn {
                self.reject(number, event, &why, None);
            }
        }
        if let Some(Current { by: Turn::Event { number, .. }, from, .. }) = current {
            let outcome = json::object([
                ("previousState", from.map(|state| self.state_name(state)).as_ref()),
                ("currentState", Some(&self.state_name(self.machine().state))),
                ("error", Some(&json::string(&why.reason))),
                ("code", Some(&json::string(why.code))),
            ]);
            self.note_receipt(number, ReceiptStatus::Failed, Some(outcome));
        }
    }

    fn end_failed(&mut self, action: u32) -> Result<(), Halt> {
        let error = self.error_of(action)?;
        let name = json::string(&self.plan.step(action).name);
        self.end(Ended::Failed, &[("error", Some(&error)), ("step", Some(&name))]);
        Ok(())
    }

    /// Something that only the definition can be blamed for.
    fn give_up(&mut self, error: &str) -> Result<(), Halt> {
        self.fail_run(error, None);
        self.end(Ended::Failed, &[("error", Some(&json::string(error)))]);
        Ok(())
    }

    /// The machine is in a final state and everything that this asked for is done.
    fn reach_end(&mut self) -> Result<(), Halt> {
        let (state, ends) = (self.planned_state().name.clone(), self.planned_state().ends);
        if ends == Ends::Failed {
            let error = format!("the machine ended in state {state:?}");
            return self.give_up(&error);
        }
        let context = self.context()?;
        let plan = self.plan;
        let result = match &plan.output {
            None => Ok(Json::from(context)),
            Some(output) => {
                let input = if output.reads().input { self.value(Slot::Input)? } else { Value::Null };
                let variables = Variables::of([("input", input), ("context", context)]);
                output.evaluate_in(&variables).map(Json::from).and_then(|json| {
                    json.within("the result", limits::PAYLOAD_BYTES).map_err(|e| e.to_string())
                })
            }
        };
        match result {
            Ok(result) => {
                let actions = json::number(self.machine().completed.into());
                let fields = [
                    ("result", Some(&result)),
                    ("state", Some(&json::string(&state))),
                    ("stepCount", Some(&actions)),
                ];
                self.end(Ended::Completed, &fields);
                Ok(())
            }
            Err(problem) => self.give_up(&format!("`output`: {problem}")),
        }
    }

    /// A payload as a value, or the request for it.
    fn value(&self, slot: Slot) -> Result<Value, Halt> {
        match self.payload(slot) {
            Some(payload) => Ok(payload.value()),
            None => Err(Halt::Missing(Missing::Payloads(vec![slot]))),
        }
    }

    fn context(&self) -> Result<Value, Halt> {
        match self.machine().context {
            0 => Ok(Value::Object(serde_json::Map::new())),
            _ if planted::is(Bug::GuardOnStaleContext) => self.value(Slot::Context(1)),
            transition => self.value(Slot::Context(transition)),
        }
    }

    /// The run's input, where an expression of the machine reads it.
    fn read_input(&self) -> Result<Value, Halt> {
        if self.planned().reads_input { self.value(Slot::Input) } else { Ok(Value::Null) }
    }

    /// An event of the inbox. Those behind it are asked for along with it, and what its transition reads.
    fn received(&self, number: u32) -> Result<ReceivedEvent, Halt> {
        if let Some(data) = self.payload(Slot::Received(number)) {
            let unreadable = |error: serde_json::Error| {
                Halt::from(Refusal::Expression { problem: format!("event {number} is damaged: {error}") })
            };
            return data.to().map_err(unreadable);
        }
        let mut slots = BTreeSet::from([Slot::Received(number)]);
        let waiting = self.machine().inbox.iter().filter_map(|turn| match turn {
            Turn::Event { number, .. } => Some(Slot::Received(*number)),
            _ => None,
        });
        slots.extend(waiting.take(READ_AHEAD));
        if self.machine().context > 0 {
            slots.insert(Slot::Context(self.machine().context));
        }
        need(slots.into_iter().filter(|slot| self.payload(*slot).is_none()).collect())?;
        Err(Halt::Missing(Missing::Payloads(vec![Slot::Received(number)])))
    }

    /// What expressions of the current turn read.
    fn variables(&self) -> Result<Variables, Halt> {
        match self.machine().current.as_ref().map(|current| current.by) {
            Some(Turn::Event { number, .. }) => {
                let received = self.received(number)?;
                self.variables_of(Some(&received))
            }
            _ => self.variables_of(None),
        }
    }

    fn variables_of(&self, received: Option<&ReceivedEvent>) -> Result<Variables, Halt> {
        let text = |text: Option<&String>| text.map_or(Value::Null, |text| Value::from(text.as_str()));
        let roles: &[String] = received.map_or(&[], |received| &received.roles);
        Ok(Variables::of([
            ("input", self.read_input()?),
            ("context", self.context()?),
            ("payload", received.map_or(Value::Null, |received| received.payload.value())),
            ("event", text(received.map(|received| &received.name))),
            ("user", text(received.and_then(|received| received.user_id.as_ref()))),
            ("role", text(roles.first())),
            ("roles", Value::from(roles.to_vec())),
        ]))
    }
}

fn moment_of(expr: &Expr, context: &Value, input: &Value) -> Result<Time, String> {
    let variables = Variables::of([("context", context.clone()), ("input", input.clone())]);
    match expr.evaluate_in(&variables)? {
        Value::String(text) => {
            Time::parse(&text).ok_or_else(|| format!("{text:?} is no time; write it as 2030-01-31T12:00:00Z"))
        }
        Value::Number(ms) if ms.as_i64().is_some() => Ok(Time::from_millis(ms.as_i64().unwrap_or_default())),
        other => Err(format!("gave {other}, not a time")),
    }
}

fn sized(context: Value) -> Result<Json, String> {
    Json::from(context).within("the context", limits::CONTEXT_BYTES).map_err(|error| error.to_string())
}

/// A JSON list of texts.
fn list<'a>(texts: impl Iterator<Item = &'a str>) -> Json {
    Json::from(Value::from(texts.collect::<Vec<_>>()))
}

/// The receipts of a decision, by number.
pub(super) type Receipts = BTreeMap<u32, Receipt>;
