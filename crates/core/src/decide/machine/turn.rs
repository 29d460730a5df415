//! Turns of a machine: an event, a timer or a failed action, and what it leads to.

use std::collections::BTreeSet;

use super::close::Rejection;
use super::transition::PlannedMove;
use super::{Now, ReceivedEvent, list};
use crate::decide::Halt;
use crate::decide::draft::{Draft, need};
use crate::event::{EventType, PayloadSlot};
use crate::expr::Variables;
use crate::json::{self, Json};
use crate::machine::{Asked, Current, Turn, transition_of};
use crate::plan::PlanTransition;
use crate::receipt::ReceiptStatus;
use crate::run::Phase;

impl Draft<'_> {
    /// Queues triggered actions whose condition holds.
    pub(super) fn trigger_actions(&mut self) -> Result<(), Halt> {
        while let Some(action) = self.pending.pop_first() {
            if !self.state.step(action).is_live() {
                continue;
            }
            let plan = self.plan;
            let Some(condition) = &plan.step(action).condition else {
                self.enqueue(action, self.moment.now);
                continue;
            };
            match condition.test_in(&self.variables()?, self.budget) {
                Ok(true) => self.enqueue(action, self.moment.now),
                Ok(false) => self.skip(action, "condition"),
                Err(problem) => {
                    let error = format!("`if` of action {:?}: {problem}", plan.step(action).name);
                    let attempt = self.state.step(action).attempt;
                    let code = problem.code_or("condition");
                    self.fail_step(action, attempt, &error, Some(code), None, crate::run::Cause::Try);
                }
            }
        }
        Ok(())
    }

    pub(super) fn turn_of_event(&mut self, number: u32, event: u32) -> Result<(), Halt> {
        let received = self.received(number)?;
        let now = Now { context: self.context()?, input: self.read_input()? };
        let variables = now.variables(Some(&received));
        let plan = self.plan;
        let state = self.machine().state;
        let choices = plan.machine.as_ref().and_then(|machine| machine.state(state).on.get(&event));
        match self.choose(choices.map_or(&[][..], Vec::as_slice), &received, &now, &variables) {
            Ok((choice, moved)) => {
                self.make_move(Turn::Event { number, event }, choice, moved, Some(&received.event_id));
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
    pub(super) fn choose(
        &self,
        choices: &[PlanTransition],
        received: &ReceivedEvent,
        now: &Now,
        variables: &Variables,
    ) -> Result<(u32, PlannedMove), Rejection> {
        let name = &received.name;
        let state = &self.planned_state().name;
        let mut why = Rejection {
            code: "wrong_state",
            reason: format!("state {state:?} doesn't handle {name:?}; {}", self.takes()),
        };
        for (choice, transition) in choices.iter().enumerate() {
            if !transition.allows(&received.roles) {
                if why.code == "wrong_state" {
                    let reason = format!(
                        "in state {state:?}, {name:?} requires the role {}",
                        transition.roles.join(" or ")
                    );
                    why = Rejection { code: "forbidden", reason };
                }
                continue;
            }
            let held = transition
                .condition
                .as_ref()
                .map_or(Ok(true), |condition| condition.test_in(variables, self.budget));
            match held {
                Ok(true) => {
                    return match self.work_out(transition, now, variables) {
                        Ok(moved) => Ok((choice as u32, moved)),
                        Err(problem) => Err(Rejection {
                            code: problem.code_or("expression"),
                            reason: problem.to_string(),
                        }),
                    };
                }
                Ok(false) => {
                    let reason = format!("no condition of {name:?} is true in state {state:?}");
                    why = Rejection { code: "guard", reason };
                }
                Err(problem) => {
                    return Err(Rejection {
                        code: problem.code_or("expression"),
                        reason: format!("`if` of {name:?}: {problem}"),
                    });
                }
            }
        }
        Err(why)
    }

    /// What the present state answers, in words.
    pub(super) fn takes(&self) -> String {
        let names: Vec<&str> =
            self.planned_state().on.keys().map(|&event| &*self.plan.events[event as usize].name).collect();
        match &names[..] {
            [] => "it handles none".to_owned(),
            names => format!("it handles {}", names.join(", ")),
        }
    }

    pub(super) fn turn_of_timer(&mut self, timer: u32) -> Result<(), Halt> {
        let now = Now { context: self.context()?, input: self.read_input()? };
        let variables = now.variables(None);
        let plan = self.plan;
        let Some(then) = transition_of(plan, self.machine().state, Turn::Timer(timer), 0) else {
            return Ok(());
        };
        let held =
            then.condition.as_ref().map_or(Ok(true), |condition| condition.test_in(&variables, self.budget));
        let moved = match held {
            Ok(false) => {
                self.push_timer(timer, EventType::TimerCancelled, Some("guard"));
                return Ok(());
            }
            Ok(true) => self.work_out(then, &now, &variables),
            Err(problem) => Err(problem.at("`if`")),
        };
        match moved {
            Ok(moved) => {
                self.make_move(Turn::Timer(timer), 0, moved, None);
                Ok(())
            }
            Err(problem) => {
                let state = self.planned_state().name.clone();
                self.give_up(problem.at(format_args!("a timer of state {state}")))
            }
        }
    }

    /// An action is out of attempts and names the state to go to.
    pub(super) fn move_by_error(&mut self, action: u32) -> Result<(), Halt> {
        let Some(to) = self.plan.step(action).on_error else { return Ok(()) };
        let context = self.context()?;
        let input = self.read_input()?;
        match self.may_move().and_then(|()| self.timers_of(to, &context, &input)) {
            Ok(timers) => {
                self.make_move(
                    Turn::Error(action),
                    0,
                    PlannedMove { to: Some(to), context: None, timers },
                    None,
                );
                Ok(())
            }
            Err(problem) => self.give_up(problem),
        }
    }

    /// A turn has no action left that runs: its event is done with.
    pub(super) fn turn_over(&mut self, over: &Current) -> Result<(), Halt> {
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
    pub(super) fn error_of(&self, action: u32) -> Result<Json, Halt> {
        let slot = PayloadSlot::Error(self.state.address(action));
        need(BTreeSet::from([slot]).into_iter().filter(|slot| self.payload(*slot).is_none()).collect())?;
        Ok(self.payload(slot).cloned().unwrap_or_else(Json::null))
    }
}
