//! Turns of a machine: which actions a transition triggers, when each may run, and how the turn ends.

use flowline_core::Time;
use flowline_core::definition::OnFailure;
use flowline_store::ReceiptStatus;

use super::machine::MachineAt;
use super::{StepAt, StepPhase, Walk};
use crate::flow::FlowMap;

/// What causes a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnCause {
    Start,
    /// The event accepted under this number.
    Event(u32),
    Timer(usize),
    /// The failure of this action.
    Error(usize),
}

/// The last transition, and what it triggered.
#[derive(Debug, Clone)]
pub(crate) struct LastTransition {
    pub(crate) by: TurnCause,
    /// Each action once, with the number of its group: leaving, the transition itself, entering.
    pub(crate) asked: Vec<(usize, u8)>,
    /// The remaining ones wait for each other, and the log says so of one of them.
    passed_over: bool,
}

impl Walk {
    /// A transition triggers actions. What they did before no longer counts.
    pub(super) fn ask(&mut self, flow: &FlowMap, by: TurnCause, groups: [Vec<usize>; 3]) {
        let mut asked: Vec<(usize, u8)> = Vec::new();
        for (group, actions) in groups.into_iter().enumerate() {
            for action in actions {
                if !asked.iter().any(|(before, _)| *before == action) {
                    asked.push((action, group as u8));
                }
            }
        }
        for (action, _) in &asked {
            self.steps[*action] = StepAt { attempt: self.steps[*action].attempt, ..StepAt::default() };
        }
        if let Some(machine) = &mut self.machine {
            machine.current = Some(LastTransition { by, asked, passed_over: false });
        }
        self.trigger_actions(flow);
    }

    /// An action completed, is out of attempts, or was skipped.
    pub(super) fn action_over(&mut self, flow: &FlowMap, action: usize, phase: StepPhase) {
        if let Some(machine) = &mut self.machine {
            machine.completed += u32::from(phase == StepPhase::Completed);
            machine.failed += u32::from(phase == StepPhase::Failed);
            if phase == StepPhase::Failed && flow.definition.steps[action].on_error.is_some() {
                machine.error.get_or_insert(action);
            }
        }
        self.trigger_actions(flow);
    }

    fn trigger_actions(&mut self, flow: &FlowMap) {
        let Some(current) = self.machine.as_ref().and_then(|machine| machine.current.as_ref()) else {
            return;
        };
        let all = current.asked.iter();
        let ready: Vec<usize> = all
            .filter(|(action, _)| self.may_run(flow, current, *action))
            .map(|(action, _)| *action)
            .collect();
        for action in ready {
            let at = &mut self.steps[action];
            (at.phase, at.attempt, at.started) = (StepPhase::Queued, at.attempt + 1, false);
            self.triggered.insert(action);
            self.added += 1;
        }
    }

    /// Whether everything that an action waits for is done, and it hasn't run yet.
    fn may_run(&self, flow: &FlowMap, current: &LastTransition, action: usize) -> bool {
        let Some((_, group)) = current.asked.iter().find(|(asked, _)| *asked == action) else { return false };
        let definition = &flow.definition.steps[action];
        let waits_for = |(other, of): &&(usize, u8)| {
            of < group || (of == group && definition.after.iter().any(|name| name == flow.name(*other)))
        };
        let done = |(other, _): &(usize, u8)| match self.steps[*other].phase {
            StepPhase::Completed | StepPhase::Skipped => true,
            StepPhase::Failed => flow.definition.steps[*other].on_failure == OnFailure::Continue,
            StepPhase::Idle | StepPhase::Delayed | StepPhase::Queued => false,
        };
        self.steps[action].phase == StepPhase::Idle && current.asked.iter().filter(waits_for).all(done)
    }

    /// Whether the log says why actions of the current turn don't run: another one failed.
    pub(super) fn is_cut_off(&self) -> bool {
        self.failed.is_some() || self.machine.as_ref().is_some_and(|machine| machine.error.is_some())
    }

    /// An action of the last transition that the log doesn't account for, although nothing of that turn is running.
    pub(crate) fn dropped(&self) -> Option<usize> {
        let current = self.machine.as_ref()?.current.as_ref().filter(|_| !self.is_busy())?;
        let idle = |(action, _): &&(usize, u8)| self.steps[*action].phase == StepPhase::Idle;
        current.asked.iter().find(idle).map(|(action, _)| *action)
    }

    /// Whether an action was triggered but can never run, and nothing else of its turn is running.
    pub(super) fn is_passed_over(&self, flow: &FlowMap, action: usize) -> bool {
        let current = self.machine.as_ref().and_then(|machine| machine.current.as_ref());
        !self.is_busy()
            && current.is_some_and(|current| {
                let asked = current.asked.iter().any(|(asked, _)| *asked == action);
                asked && (current.passed_over || !self.may_run(flow, current, action))
            })
    }

    /// The log says that an action can never run.
    pub(super) fn pass_over(&mut self) {
        if let Some(current) = self.machine.as_mut().and_then(|machine| machine.current.as_mut()) {
            current.passed_over = true;
        }
    }

    /// How the last turn ended. Nothing of it is running any more.
    fn outcome(&self, machine: &MachineAt) -> ReceiptStatus {
        match self.failed.is_some() || machine.error.is_some() {
            true => ReceiptStatus::Failed,
            false => ReceiptStatus::Completed,
        }
    }

    /// The turn is over, and its event has been handled.
    pub(super) fn close_turn(&mut self) {
        let Some(machine) = &self.machine else { return };
        let (outcome, by) = (self.outcome(machine), machine.current.as_ref().map(|current| current.by));
        if let (Some(machine), Some(TurnCause::Event(number))) = (&mut self.machine, by) {
            machine.receipts.insert(number, outcome);
        }
    }

    /// Timers that must have a job: which one, the number it was set under, and when it's due.
    pub(crate) fn timers(&self) -> impl Iterator<Item = (u32, u32, Time)> {
        let machine = self.machine.iter().filter(|_| self.ended.is_none());
        machine
            .flat_map(|machine| &machine.armed)
            .map(|(timer, (number, due))| (*timer as u32, *number, *due))
    }

    /// Whether a machine is waiting for its delayed start.
    pub(crate) fn has_not_begun(&self) -> bool {
        let machine = self.machine.as_ref().filter(|_| self.ended.is_none() && self.seq > 0);
        machine.is_some_and(|machine| machine.transition == 0)
    }

    /// What the receipt of each event must say, by number.
    pub(crate) fn receipts(&self) -> impl Iterator<Item = (u32, ReceiptStatus)> {
        let machine = self.machine.as_deref();
        let current = machine.and_then(|machine| match machine.current.as_ref()?.by {
            TurnCause::Event(number) => Some(number),
            _ => None,
        });
        let of = move |machine: &MachineAt, number: u32, before: ReceiptStatus| match current {
            Some(current) if current == number && self.is_busy() && self.ended.is_some() => {
                ReceiptStatus::Failed
            }
            Some(current) if current == number && self.is_busy() => ReceiptStatus::Processing,
            Some(current) if current == number => self.outcome(machine),
            _ => before,
        };
        machine.into_iter().flat_map(move |machine| {
            machine.receipts.iter().map(move |(number, status)| (*number, of(machine, *number, *status)))
        })
    }
}
