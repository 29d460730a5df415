//! Whose turn it is, and where it leads.

use flowline_core::EventType;
use flowline_core::definition::{Ends, OnFailure, Transition};
use serde_json::{Map, Value, json};

use super::again::Over;
use super::{Current, Expected, Letter, Model, Phase, Turn};
use crate::program::{Guard, MadeTransition, Term};

/// An expression that cannot be worked out.
struct Unreadable;

/// Where a turn leads: the transition among several, and the context after it.
struct Way {
    to: Option<usize>,
    choice: usize,
    context: Map<String, Value>,
    /// When the timers are due that name a time.
    due: Vec<Option<i64>>,
}

impl Model<'_> {
    pub(super) fn foresee(&mut self, kind: EventType, step: Option<&str>, fields: Value) {
        self.expected.push_back(Expected::of(kind, step, fields));
    }

    pub(super) fn name(&self, state: usize) -> Value {
        json!(self.machine.states[state].name)
    }

    fn number(&self, state: &str) -> usize {
        self.machine.states.iter().position(|known| known.name == state).unwrap_or_default()
    }

    pub(super) fn fail(&mut self, action: usize) {
        self.phases[action] = Phase::Failed;
        let definition = &self.definition.steps[action];
        if definition.on_error.is_some() {
            self.error.get_or_insert(action);
        } else if definition.on_failure == OnFailure::Fail {
            self.failed.get_or_insert(action);
        }
    }

    pub(super) fn begin(&mut self) {
        let nobody = Letter::default();
        let context = match &self.made.context[..] {
            [] => Ok(self.input.as_object().cloned().unwrap_or_default()),
            terms => self.changed(&Map::new(), terms, &nobody),
        };
        let initial = self.number(&self.machine.initial);
        let way = context.and_then(|context| {
            Ok(Way { to: Some(initial), choice: 0, due: self.times(initial, &context)?, context })
        });
        // A start that cannot be worked out is refused, and then there is no log.
        if let Ok(way) = way {
            self.make(Turn::Start, way);
            self.advance();
        }
    }

    /// Everything that follows at once.
    pub(super) fn advance(&mut self) {
        loop {
            self.trigger();
            if self.current.is_some() && !self.phases.contains(&Phase::Live) {
                self.turn_over();
            }
            if self.transition == 0 || self.current.is_some() {
                return;
            }
            if let Some(action) = self.failed {
                self.over = Some(Over::Failed);
                let step = &self.definition.steps[action].name;
                return self.end(EventType::FlowFailed, json!({ "step": step, "by": null }));
            }
            if let Some(action) = self.error {
                let to = self.number(self.definition.steps[action].on_error.as_deref().unwrap_or_default());
                match self.times(to, &self.context.clone()) {
                    Ok(due) => {
                        let context = self.context.clone();
                        self.make(Turn::Error(action), Way { to: Some(to), choice: 0, context, due });
                    }
                    Err(Unreadable) => {
                        self.over = Some(Over::Failed);
                        return self.end(EventType::FlowFailed, json!({ "step": null, "by": null }));
                    }
                }
                continue;
            }
            let ends = self.machine.states[self.state].ends;
            match (ends, self.erred) {
                (Ends::No, _) => {}
                (Ends::Failed, true) => self.over = Some(Over::Failed),
                _ => self.over = Some(Over::Final),
            }
            match ends {
                Ends::No => {}
                Ends::Completed => {
                    let result = Value::Object(self.context.clone());
                    let fields = json!({ "result": result, "state": self.name(self.state), "by": null });
                    return self.end(EventType::FlowCompleted, fields);
                }
                Ends::Failed => return self.end(EventType::FlowFailed, json!({ "step": null, "by": null })),
            }
            match self.inbox.front().copied().filter(|_| !self.paused) {
                Some(Turn::Event(number)) => self.event_turn(number),
                Some(Turn::Timer(timer)) => {
                    if !self.timer_turn(timer) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    fn event_turn(&mut self, number: u32) {
        let letter = self.letters.get(&number).cloned().unwrap_or_default();
        match self.choose(&letter) {
            Ok(way) => self.make(Turn::Event(number), way),
            Err(code) => {
                self.inbox.pop_front();
                self.past = number;
                let fields = json!({
                    "name": letter.name, "eventId": letter.id, "number": number,
                    "state": self.name(self.state), "code": code,
                });
                self.foresee(EventType::EventRejected, None, fields);
                self.turned_down(number, code);
            }
        }
    }

    fn choose(&self, letter: &Letter) -> Result<Way, &'static str> {
        let of_state = &self.machine.states[self.state];
        let made = self.made.on.get(&(self.state, letter.name.clone()));
        let ways = of_state.on.get(&letter.name).into_iter().flatten().zip(made.into_iter().flatten());
        let mut code = "wrong_state";
        for (choice, (transition, made)) in ways.enumerate() {
            if !allows(transition, &letter.roles) {
                code = if code == "wrong_state" { "forbidden" } else { code };
                continue;
            }
            match self.holds(made.guard.as_ref(), letter) {
                Err(Unreadable) => return Err("expression"),
                Ok(false) => code = "guard",
                Ok(true) => {
                    let way = self.way(transition, made, choice, letter);
                    return way.map_err(|Unreadable| "expression");
                }
            }
        }
        Err(code)
    }

    /// False where the run ends with it.
    fn timer_turn(&mut self, timer: usize) -> bool {
        let (state, at) = self.timers[timer];
        let then = &self.machine.states[state].after[at].then;
        let made = &self.made.after[timer].1;
        let nobody = Letter::default();
        let way = match self.holds(made.guard.as_ref(), &nobody) {
            Ok(false) => {
                self.inbox.pop_front();
                self.foresee(EventType::TimerCancelled, None, json!({ "timer": timer, "reason": "guard" }));
                return true;
            }
            Ok(true) => self.way(then, made, 0, &nobody),
            Err(Unreadable) => Err(Unreadable),
        };
        match way {
            Ok(way) => self.make(Turn::Timer(timer), way),
            Err(Unreadable) => {
                self.over = Some(Over::Timer(timer));
                self.end(EventType::FlowFailed, json!({ "step": null, "by": null }));
                return false;
            }
        }
        true
    }

    fn way(
        &self,
        transition: &Transition,
        made: &MadeTransition,
        choice: usize,
        letter: &Letter,
    ) -> Result<Way, Unreadable> {
        let context = self.changed(&self.context, &made.set, letter)?;
        let to = transition.to.as_deref().map(|to| self.number(to));
        let due = to.map_or(Ok(Vec::new()), |to| self.times(to, &context))?;
        Ok(Way { to, choice, context, due })
    }

    /// When the timers of a state are due that say so themselves.
    fn times(&self, state: usize, context: &Map<String, Value>) -> Result<Vec<Option<i64>>, Unreadable> {
        let of_state = (0..self.timers.len()).filter(|timer| self.timers[*timer].0 == state);
        let due = |timer: usize| match &self.made.after[timer].0 {
            None => Ok(None),
            Some(term) => {
                Ok(Some(self.value(term, context, &Letter::default())?.as_i64().ok_or(Unreadable)?))
            }
        };
        of_state.map(due).collect()
    }

    fn make(&mut self, by: Turn, way: Way) {
        let from = (by != Turn::Start).then_some(self.state);
        self.erred = matches!(by, Turn::Error(_));
        if !self.erred {
            self.root = Some((self.stands(), by));
        }
        if let Turn::Event(number) = by {
            self.past = number;
        }
        if let (Some(from), Some(_)) = (from, way.to) {
            for timer in
                (0..self.timers.len()).filter(|timer| self.timers[*timer].0 == from).collect::<Vec<_>>()
            {
                let fired = self.inbox.contains(&Turn::Timer(timer)) && by != Turn::Timer(timer);
                if self.armed.remove(&timer) || fired {
                    self.inbox.retain(|turn| *turn != Turn::Timer(timer));
                    self.foresee(
                        EventType::TimerCancelled,
                        None,
                        json!({ "timer": timer, "reason": "left" }),
                    );
                }
            }
        }
        self.inbox.retain(|turn| *turn != by);
        self.transition += 1;
        self.foresee_change(by, from, &way);
        let changed = by == Turn::Start || way.context != self.context;
        if changed {
            self.context = way.context;
        }
        self.error = None;
        self.state = way.to.unwrap_or(self.state);
        self.ask(by, from, way.to.is_some(), way.choice);
        if way.to.is_some() {
            let timers = (0..self.timers.len()).filter(|timer| self.timers[*timer].0 == self.state);
            for (timer, due) in timers.collect::<Vec<_>>().into_iter().zip(way.due) {
                self.arm(timer, due);
            }
        }
    }

    fn foresee_change(&mut self, by: Turn, from: Option<usize>, way: &Way) {
        let changed = by == Turn::Start || way.context != self.context;
        let letter = match by {
            Turn::Event(number) => self.letters.get(&number),
            _ => None,
        };
        let fields = json!({
            "from": from.map(|from| self.name(from)),
            "to": self.name(way.to.unwrap_or(self.state)),
            "stays": way.to.is_none().then_some(true),
            "event": letter.map(|letter| &letter.name),
            "eventId": letter.map(|letter| &letter.id),
            "number": match by { Turn::Event(number) => Some(number), _ => None },
            "timer": match by { Turn::Timer(timer) => Some(timer), _ => None },
            "action": match by { Turn::Error(action) => Some(&self.definition.steps[action].name), _ => None },
            "transition": self.transition,
            "choice": (way.choice > 0).then_some(way.choice),
            "context": changed.then_some(&way.context),
        });
        self.foresee(EventType::StateChanged, None, fields);
    }

    pub(super) fn arm(&mut self, timer: usize, due: Option<i64>) {
        let mut fields = json!({ "timer": timer, "state": self.name(self.timers[timer].0) });
        if let Some(due) = due {
            fields["at"] = json!(flowline_core::Time::from_millis(due).to_string());
        }
        self.foresee(EventType::TimerSet, None, fields);
        self.armed.insert(timer);
        self.places.insert(timer, self.timers_set);
        self.timers_set += 1;
    }

    /// The actions of a transition: of leaving, of itself, of entering.
    fn ask(&mut self, by: Turn, from: Option<usize>, moves: bool, choice: usize) {
        let none = Vec::new();
        let exit = from.filter(|_| moves).map_or(&none, |from| &self.machine.states[from].exit);
        let entry = if moves { &self.machine.states[self.state].entry } else { &none };
        let own = match by {
            Turn::Event(number) => {
                let ways = &self.machine.states[from.unwrap_or_default()].on[&self.letters[&number].name];
                &ways[choice].actions
            }
            Turn::Timer(timer) => {
                let (state, at) = self.timers[timer];
                &self.machine.states[state].after[at].then.actions
            }
            Turn::Start | Turn::Error(_) => &none,
        };
        let mut asked: Vec<(usize, usize)> = Vec::new();
        for (group, names) in [exit, own, entry].into_iter().enumerate() {
            for name in names {
                let action =
                    self.definition.steps.iter().position(|step| step.name == *name).unwrap_or_default();
                if !asked.iter().any(|(before, _)| *before == action) {
                    asked.push((action, group));
                }
            }
        }
        for (action, _) in &asked {
            (self.phases[*action], self.tries[*action]) = (Phase::Idle, 0);
        }
        self.current = Some(Current { by, from, asked });
    }

    /// Starts the actions that may run, those whose condition does not hold left out.
    fn trigger(&mut self) {
        let mut ready = self.ready();
        while let Some(action) = ready.first().copied() {
            let letter = match self.current.as_ref().map(|current| current.by) {
                Some(Turn::Event(number)) => self.letters.get(&number).cloned().unwrap_or_default(),
                _ => Letter::default(),
            };
            let name = self.definition.steps[action].name.clone();
            match self.holds(self.made.actions[action].as_ref(), &letter) {
                Ok(true) => self.phases[action] = Phase::Live,
                Ok(false) => {
                    self.phases[action] = Phase::Skipped;
                    self.foresee(EventType::StepSkipped, Some(&name), json!({ "reason": "condition" }));
                }
                Err(Unreadable) => {
                    self.fail(action);
                    self.foresee(EventType::StepFailed, Some(&name), json!({ "code": "condition" }));
                }
            }
            ready = self.ready();
        }
    }

    /// Actions of the present transition that have not begun and wait for nothing, in the order of the definition.
    fn ready(&self) -> Vec<usize> {
        let Some(current) = &self.current else { return Vec::new() };
        let done = |action: usize| match self.phases[action] {
            Phase::Completed | Phase::Skipped => true,
            Phase::Failed => self.definition.steps[action].on_failure == OnFailure::Continue,
            Phase::Idle | Phase::Live => false,
        };
        let free = |(action, group): &&(usize, usize)| {
            let after = &self.definition.steps[*action].after;
            self.phases[*action] == Phase::Idle
                && current.asked.iter().all(|(other, of)| {
                    let named = after.contains(&self.definition.steps[*other].name);
                    let waits = of < group || (of == group && named);
                    !waits || done(*other)
                })
        };
        let mut ready: Vec<usize> = current.asked.iter().filter(free).map(|(action, _)| *action).collect();
        ready.sort_unstable();
        ready
    }

    fn turn_over(&mut self) {
        let Some(current) = self.current.take() else { return };
        for (action, _) in &current.asked {
            if self.phases[*action] == Phase::Idle {
                self.phases[*action] = Phase::Skipped;
                let name = self.definition.steps[*action].name.clone();
                self.foresee(EventType::StepSkipped, Some(&name), json!({ "reason": "not_triggered" }));
            }
        }
        self.finished(&current);
    }

    /// The run ends by itself.
    fn end(&mut self, kind: EventType, fields: Value) {
        self.turn_all_down();
        self.give_up_turn();
        self.foresee(kind, None, fields);
    }

    pub(super) fn waiting_events(&self) -> Vec<u32> {
        let number = |turn: &Turn| match turn {
            Turn::Event(number) => Some(*number),
            _ => None,
        };
        self.inbox.iter().filter_map(number).collect()
    }

    /// Whoever waits is told that the run has ended.
    pub(super) fn turn_all_down(&mut self) {
        for number in self.waiting_events() {
            self.foresee(EventType::EventRejected, None, json!({ "number": number, "code": "ended" }));
            self.turned_down(number, "ended");
        }
        self.inbox.retain(|turn| !matches!(turn, Turn::Event(_)));
    }

    fn holds(&self, guard: Option<&Guard>, letter: &Letter) -> Result<bool, Unreadable> {
        let over = |value: Option<&Value>, n: i64| {
            value.and_then(Value::as_i64).map(|value| value > n).ok_or(Unreadable)
        };
        match guard {
            None => Ok(true),
            Some(Guard::ContextOver(key, n)) => over(self.context.get(key), *n),
            Some(Guard::PayloadOver(n)) => over(letter.payload.get("n"), *n),
            Some(Guard::InputOver(n)) => over(self.input.get("n"), *n),
            Some(Guard::Role(role)) => Ok(letter.roles.contains(role)),
            Some(Guard::Broken) => Err(Unreadable),
        }
    }

    /// The context with these changes, all of them made on what it was before.
    fn changed(
        &self,
        before: &Map<String, Value>,
        set: &[(String, Term)],
        letter: &Letter,
    ) -> Result<Map<String, Value>, Unreadable> {
        let mut after = before.clone();
        for (key, term) in set {
            match self.value(term, before, letter)? {
                Value::Null => drop(after.remove(key)),
                value => drop(after.insert(key.clone(), value)),
            }
        }
        Ok(after)
    }

    fn value(&self, term: &Term, context: &Map<String, Value>, letter: &Letter) -> Result<Value, Unreadable> {
        match term {
            Term::Number(n) => Ok(json!(n)),
            Term::Input(key) => self.input.get(key).cloned().ok_or(Unreadable),
            Term::Payload => letter.payload.get("n").cloned().ok_or(Unreadable),
            Term::Plus(key, n) => {
                let value = context.get(key).and_then(Value::as_i64).ok_or(Unreadable)?;
                Ok(json!(value + n))
            }
            Term::User => Ok(letter.user.clone()),
            Term::Null => Ok(Value::Null),
        }
    }
}

/// Whether somebody with these roles may take a transition.
pub(super) fn allows(transition: &Transition, roles: &[String]) -> bool {
    transition.roles.is_empty() || transition.roles.iter().any(|role| roles.contains(role))
}
