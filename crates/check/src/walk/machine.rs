//! Events of machines: the inbox, turns, transitions, and the timers of states.
//!
//! Conditions and changes of the context aren't evaluated here, because that takes the expression language. The simulator's
//! model does it for its own machines, whose expressions it knows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flowline_core::Time;
use flowline_core::definition::{Ends, Missed, Transition, When};
use flowline_core::event::EventType;
use flowline_store::ReceiptStatus;

use super::turn::{LastTransition, TurnCause};
use super::{LogLine, Walk};
use crate::Invariant::{I1, I3, I5, I8, I10, I12, I18};
use crate::flow::FlowMap;

/// Where a machine is, according to its log.
#[derive(Debug, Clone, Default)]
pub(crate) struct MachineAt {
    pub(crate) state: usize,
    /// Transitions so far; 0 before the initial state is entered.
    pub(crate) transition: u32,
    /// What is waiting for its turn.
    inbox: VecDeque<TurnCause>,
    /// Name and roles of each accepted event, by number.
    received: BTreeMap<u32, (String, Vec<String>)>,
    /// Ids of the events so far, by number.
    pub(crate) ids: BTreeMap<u32, String>,
    pub(crate) current: Option<LastTransition>,
    /// Timers that are set, each with its number and due time.
    pub(crate) armed: BTreeMap<usize, (u32, Time)>,
    /// Timers set so far.
    set: u32,
    /// Timers that the next events have to set.
    unset: BTreeSet<usize>,
    /// Timers were dropped because the machine leaves the state, so the next transition has to leave it.
    leaving: bool,
    /// Events were rejected because the run is ending.
    closing: bool,
    /// The first action of the current turn that failed and has `on_error`.
    pub(crate) error: Option<usize>,
    pub(crate) completed: u32,
    pub(crate) failed: u32,
    pub(crate) receipts: BTreeMap<u32, ReceiptStatus>,
}

impl MachineAt {
    /// Whether the run ends in the current state.
    pub(crate) fn is_final(&self, flow: &FlowMap) -> bool {
        flow.state(self.state).is_some_and(|state| state.ends != Ends::No)
    }

    pub(crate) fn state_name<'a>(&self, flow: &'a FlowMap) -> Option<&'a str> {
        flow.state(self.state).filter(|_| self.transition > 0).map(|state| state.name.as_str())
    }

    fn has_event_waiting(&self) -> bool {
        self.inbox.iter().any(|turn| matches!(turn, TurnCause::Event(_)))
    }
}

impl Walk {
    /// Checks that what has to come next comes next.
    pub(super) fn before_event(&mut self, line: &mut LogLine<'_>) {
        let Some(machine) = &mut self.machine else { return };
        let kind = line.event.kind;
        if kind != EventType::TimerSet && !machine.unset.is_empty() {
            let timers = std::mem::take(&mut machine.unset);
            line.say(I10, format!("came before timers {timers:?} were set"));
        }
        let leaves = kind == EventType::StateChanged && !line.data.stays;
        if machine.leaving && !leaves && kind != EventType::TimerCancelled {
            let state = line.flow.state(machine.state).map_or("?", |state| &state.name);
            line.say(
                I10,
                format!("follows dropped timers of state {state:?}, although the machine didn't leave it"),
            );
            machine.leaving = false;
        }
        let ends = kind.is_terminal() || kind == EventType::EventRejected;
        if machine.closing && !ends {
            line.say(I1, "comes after the machine reached its end");
            machine.closing = false;
        }
    }

    pub(super) fn machine_event(&mut self, line: &mut LogLine<'_>) {
        if self.machine.is_none() {
            return line.say(I12, "belongs to a machine, but this is a flow");
        }
        match line.event.kind {
            EventType::EventReceived => self.received(line),
            EventType::EventRejected => self.rejected(line),
            EventType::StateChanged => {
                self.started_at.get_or_insert(line.event.ts);
                self.changed(line);
            }
            _ => self.timer(line),
        }
    }

    fn received(&mut self, line: &mut LogLine<'_>) {
        let Some(machine) = &mut self.machine else { return };
        let number = line.data.number.unwrap_or(0);
        let name = line.data.name.clone().unwrap_or_default();
        if !line.flow.events.contains_key(&name) {
            line.say(I12, format!("accepts {name:?}, which isn't in the definition"));
        }
        let next = machine.received.len() as u32 + 1;
        if number != next {
            line.say(I3, format!("accepts number {number}, but {next} is next"));
        }
        let id = line.data.event_id.clone().unwrap_or_default();
        if machine.ids.values().any(|before| *before == id) {
            line.say(I3, format!("accepts {name:?} ({id}) a second time"));
        }
        machine.ids.insert(number, id);
        machine.received.insert(number, (name, line.data.roles.clone()));
        if line.data.inherited {
            let status =
                line.data.status.as_deref().and_then(ReceiptStatus::parse).filter(|status| status.is_end());
            if !self.inheriting || status.is_none() {
                line.say(I3, "inherits an event that the retried run hadn't finished");
            }
            machine.receipts.insert(number, status.unwrap_or(ReceiptStatus::Failed));
            return;
        }
        machine.inbox.push_back(TurnCause::Event(number));
        machine.receipts.insert(number, ReceiptStatus::Pending);
    }

    fn rejected(&mut self, line: &mut LogLine<'_>) {
        let number = line.data.number.unwrap_or(0);
        match line.data.code.as_deref() {
            Some("ended") => {
                let Some(machine) = &mut self.machine else { return };
                machine.closing = true;
                if !machine.inbox.contains(&TurnCause::Event(number)) {
                    line.say(I3, format!("rejects number {number}, which isn't in the inbox"));
                }
                machine.inbox.retain(|turn| *turn != TurnCause::Event(number));
            }
            code => {
                self.turn(line, TurnCause::Event(number));
                self.check_rejection(line, number, code);
            }
        }
        if let Some(machine) = &mut self.machine {
            machine.receipts.insert(number, ReceiptStatus::Failed);
        }
    }

    /// Whether an event was rejected for a good reason, as far as roles and states can tell.
    fn check_rejection(&self, line: &mut LogLine<'_>, number: u32, code: Option<&str>) {
        let Some(machine) = &self.machine else { return };
        let Some((name, roles)) = machine.received.get(&number) else { return };
        let choices = line
            .flow
            .state(machine.state)
            .and_then(|state| state.on.get(name))
            .map_or(&[][..], Vec::as_slice);
        let open = choices.iter().filter(|choice| allows(choice, roles)).collect::<Vec<_>>();
        let fits = match code {
            Some("wrong_state") => choices.is_empty(),
            Some("forbidden") => !choices.is_empty() && open.is_empty(),
            Some("guard") => open.iter().all(|choice| choice.condition.is_some()) && !open.is_empty(),
            // A condition, a change of the context or the time of a timer failed to evaluate, or took too long.
            Some("expression" | "too_costly") => !open.is_empty(),
            _ => false,
        };
        if !fits {
            let code = code.unwrap_or("no code");
            let message = format!(
                "rejects {name:?} ({code}), although {} of {} transitions are open to {roles:?}",
                open.len(),
                choices.len()
            );
            line.say(I5, message);
        }
    }

    /// A turn starts. It belongs to the first in line, and nothing of the previous turn may be left.
    fn turn(&mut self, line: &mut LogLine<'_>, by: TurnCause) {
        let (busy, paused, fails) = (self.is_busy(), self.paused, self.failed.is_some());
        self.close_turn();
        if let Some(action) = self.dropped() {
            let name = line.flow.name(action);
            let message = format!(
                "gives the turn to {by:?}, but the log doesn't say what happened to action {name:?} of the previous turn"
            );
            line.say(I18, message);
        }
        let Some(machine) = &mut self.machine else { return };
        let first = machine.inbox.front().copied();
        let problem = match by {
            _ if busy => Some("while actions of the previous turn are running".to_owned()),
            _ if fails => Some("although an action failed the run".to_owned()),
            TurnCause::Start if machine.transition > 0 => {
                Some("although the machine has already started".to_owned())
            }
            TurnCause::Start => None,
            _ if machine.transition == 0 => Some("although the machine hasn't started".to_owned()),
            TurnCause::Error(action) if machine.error == Some(action) => None,
            TurnCause::Error(action) => {
                Some(format!("but action {:?} wasn't the first to fail", line.flow.name(action)))
            }
            _ if machine.error.is_some() => {
                Some("although the `on_error` of a failed action comes first".to_owned())
            }
            _ if paused => Some("although the run is paused".to_owned()),
            _ if first != Some(by) => Some(format!("but {first:?} is first in line")),
            _ => None,
        };
        if let Some(problem) = problem {
            line.say(I5, format!("gives the turn to {by:?}, {problem}"));
        }
        machine.inbox.retain(|turn| *turn != by);
        (machine.current, machine.error) = (None, None);
    }

    /// A retry puts the machine into the state that the retried run was in.
    fn stood(&mut self, line: &mut LogLine<'_>) {
        let inheriting = self.inheriting;
        let Some(machine) = &mut self.machine else { return };
        let state = line.data.to.as_deref().and_then(|name| line.flow.state_named(name));
        let open = state.and_then(|state| line.flow.state(state)).is_some_and(|state| state.ends == Ends::No);
        if !inheriting || machine.transition > 0 || !open || line.data.transition.unwrap_or(0) == 0 {
            line.say(I5, "puts the machine into a state that the retried run can't have been in");
        }
        (machine.state, machine.transition) = (state.unwrap_or_default(), line.data.transition.unwrap_or(0));
    }

    fn changed(&mut self, line: &mut LogLine<'_>) {
        if line.data.inherited {
            return self.stood(line);
        }
        let by = match (line.data.number, line.data.timer, &line.data.action) {
            (Some(number), ..) => TurnCause::Event(number),
            (_, Some(timer), _) => TurnCause::Timer(timer),
            (.., Some(action)) => match line.flow.steps.get(action) {
                Some(action) => TurnCause::Error(*action),
                None => {
                    return line.say(I12, format!("names action {action:?}, which isn't in the definition"));
                }
            },
            _ => TurnCause::Start,
        };
        self.turn(line, by);
        let planned = self.transition_of(line, by);
        let Some(machine) = &mut self.machine else { return };
        let (from, next) = (machine.state_name(line.flow).map(str::to_owned), machine.transition + 1);
        if line.data.transition != Some(next) || line.data.from != from {
            let (says, number) = (&line.data.from, line.data.transition);
            let message =
                format!("is transition {number:?} from {says:?}; it should be {next} from {from:?}");
            line.say(I5, message);
        }
        let to = match by {
            TurnCause::Start => line.flow.definition.machine.as_ref().map(|machine| machine.initial.as_str()),
            TurnCause::Error(action) => line.flow.definition.steps[action].on_error.as_deref(),
            _ => planned.and_then(|planned| planned.to.as_deref()),
        };
        let stays = from.as_deref().filter(|_| to.is_none());
        if line.data.to.as_deref() != to.or(stays) || line.data.stays != to.is_none() {
            let says = &line.data.to;
            line.say(I5, format!("leads to {says:?}, but the definition says {to:?}"));
        }
        let leaves = to.is_some() && by != TurnCause::Start;
        let kept: Vec<usize> = machine.armed.keys().copied().collect();
        if leaves
            && (!kept.is_empty() || machine.inbox.iter().any(|turn| matches!(turn, TurnCause::Timer(_))))
        {
            line.say(I10, format!("leaves the state, but timers {kept:?} are still set"));
        }
        let old = machine.state;
        (machine.transition, machine.leaving) = (next, false);
        let entered =
            line.data.to.as_deref().filter(|_| !line.data.stays).and_then(|name| line.flow.state_named(name));
        if let Some(entered) = entered {
            machine.state = entered;
            machine.unset = line.flow.timers_of(entered).collect();
            machine.armed.clear();
        }
        let of = |names: Option<&Vec<String>>| {
            names.map_or_else(Vec::new, |names| line.flow.actions(names).collect())
        };
        let exit = of(line.flow.state(old).filter(|_| leaves).map(|state| &state.exit));
        let entry = of(entered.and_then(|entered| line.flow.state(entered)).map(|state| &state.entry));
        self.ask(line.flow, by, [exit, of(planned.map(|planned| &planned.actions)), entry]);
    }

    /// The transition that a turn takes. It has to be open to the sender of the event.
    fn transition_of<'a>(&self, line: &mut LogLine<'a>, by: TurnCause) -> Option<&'a Transition> {
        let machine = self.machine.as_ref()?;
        match by {
            TurnCause::Start | TurnCause::Error(_) => None,
            TurnCause::Timer(timer) => match line.flow.timer(timer) {
                Some((state, timer)) if state == machine.state => Some(&timer.then),
                _ => {
                    let message =
                        format!("was caused by timer {timer}, which doesn't belong to the current state");
                    line.say(I10, message);
                    None
                }
            },
            TurnCause::Event(number) => {
                let (name, roles) = machine.received.get(&number)?;
                if line.data.event.as_deref() != Some(name)
                    || line.data.event_id.as_ref() != machine.ids.get(&number)
                {
                    let (says, id) = (&line.data.event, &line.data.event_id);
                    let message =
                        format!("says that number {number} is {says:?} ({id:?}), but it's {name:?}");
                    line.say(I5, message);
                }
                let choices = line.flow.state(machine.state)?.on.get(name);
                let Some(choice) = choices.and_then(|choices| choices.get(line.data.choice)) else {
                    line.say(I5, format!("takes a transition on {name:?} that the state doesn't have"));
                    return None;
                };
                if !allows(choice, roles) {
                    let takes = &choice.roles;
                    line.say(I5, format!("takes a transition for {takes:?}, but the sender has {roles:?}"));
                }
                // An earlier one without a role or a condition would have been taken.
                let before = choices.into_iter().flatten().take(line.data.choice);
                if before.into_iter().any(|choice| allows(choice, roles) && choice.condition.is_none()) {
                    line.say(I5, "skips a transition that always applies");
                }
                Some(choice)
            }
        }
    }

    fn timer(&mut self, line: &mut LogLine<'_>) {
        let kind = line.event.kind;
        let Some((timer, (state, definition))) =
            line.data.timer.and_then(|timer| Some((timer, line.flow.timer(timer)?)))
        else {
            return line.say(I12, "names a timer that isn't in the definition");
        };
        let name = line.flow.state(state).map_or("?", |state| &state.name);
        if kind == EventType::TimerCancelled && line.data.reason.as_deref() == Some("guard") {
            return self.turn(line, TurnCause::Timer(timer));
        }
        let inheriting = self.inheriting;
        let Some(machine) = &mut self.machine else { return };
        let present = machine.state == state && machine.transition > 0;
        let problem = match (kind, line.data.reason.as_deref()) {
            _ if !present => Some("but the machine isn't in that state".to_owned()),
            (EventType::TimerSet, _) => {
                (!machine.unset.remove(&timer) && !inheriting).then(|| "which nothing set".to_owned())
            }
            (EventType::TimerFired, _) => match machine.armed.get(&timer) {
                None => Some("which isn't set".to_owned()),
                Some((_, due)) if *due > line.event.ts => Some(format!("before it's due ({due})")),
                Some(_) => None,
            },
            (_, Some("left")) => {
                let there =
                    machine.armed.contains_key(&timer) || machine.inbox.contains(&TurnCause::Timer(timer));
                (!there).then(|| "which isn't set".to_owned())
            }
            (_, Some("missed")) => match machine.armed.get(&timer) {
                Some((_, due)) if *due <= line.event.ts && definition.missed != Missed::Fire => None,
                _ => Some("which wasn't missed, or fires anyway".to_owned()),
            },
            (_, reason) => Some(format!("for {reason:?}")),
        };
        if let Some(problem) = problem {
            line.say(I10, format!("is about a timer of state {name:?}, {problem}"));
        }
        match kind {
            EventType::TimerSet => {
                machine.set += 1;
                if line.data.at.is_none() {
                    line.say(I8, "sets a timer without a time");
                }
                machine.armed.insert(timer, (machine.set, line.data.at.unwrap_or_default()));
            }
            EventType::TimerFired => {
                machine.armed.remove(&timer);
                machine.inbox.push_back(TurnCause::Timer(timer));
            }
            _ => {
                machine.armed.remove(&timer);
                machine.inbox.retain(|turn| *turn != TurnCause::Timer(timer));
                let missed = line.data.reason.as_deref() == Some("missed");
                machine.leaving |= !missed;
                if missed && definition.missed == Missed::Restart && matches!(definition.when, When::In(_)) {
                    machine.unset.insert(timer);
                }
            }
        }
    }

    /// The run ends. The inbox must be empty and, unless it's ended from outside, the machine must be in a final state.
    pub(super) fn machine_end(&mut self, line: &mut LogLine<'_>, by_itself: bool) {
        let kind = line.event.kind;
        let Some(machine) = &self.machine else { return };
        if machine.has_event_waiting() {
            line.say(I3, "ends the run, but there are events in its inbox");
        }
        if let Some(action) = self.dropped().filter(|_| by_itself) {
            let name = line.flow.name(action);
            let message = format!(
                "ends the run, but the log doesn't say what happened to action {name:?}, which was triggered"
            );
            line.say(I18, message);
        }
        let ends = line.flow.state(machine.state).filter(|_| machine.transition > 0).map(|state| state.ends);
        if by_itself && kind == EventType::FlowCompleted && ends != Some(Ends::Completed) {
            line.say(I1, "says completed, but the machine isn't in a final state");
        }
        if by_itself && kind == EventType::FlowFailed && line.data.step.is_none() && self.failed.is_some() {
            line.say(I1, "doesn't say which action failed the run");
        }
        let said = line.data.state.as_deref().filter(|_| kind == EventType::FlowCompleted);
        if said.is_some() && said != machine.state_name(line.flow) {
            line.say(I1, format!("ends the run in {said:?}"));
        }
    }

    /// Whether something is waiting for a turn that it could have now.
    pub(crate) fn keeps_waiting(&self) -> bool {
        let Some(machine) = &self.machine else { return false };
        let line = machine.error.is_some() || (!machine.inbox.is_empty() && !self.paused);
        machine.transition > 0 && self.ended.is_none() && self.failed.is_none() && !self.is_busy() && line
    }
}

/// Whether a sender with these roles may take a transition.
fn allows(transition: &Transition, roles: &[String]) -> bool {
    transition.roles.is_empty() || transition.roles.iter().any(|role| roles.contains(role))
}
