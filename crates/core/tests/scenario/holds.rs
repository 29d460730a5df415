//! What must hold after every decision.

use std::collections::BTreeMap;

use flowline_core::RunState;
use flowline_core::event::EventType;
use flowline_core::machine::Turn;
use flowline_core::receipt::ReceiptStatus;

use super::Scenario;

impl Scenario {
    pub(super) fn check_machine(&self) {
        let Some(machine) = &self.state.machine else { return };
        let armed: Vec<u32> = machine.armed.keys().copied().collect();
        if self.state.ended.is_none() {
            let timers: Vec<u32> = self.timers.keys().copied().filter(|timer| *timer != u32::MAX).collect();
            assert_eq!(timers, armed, "timers and their jobs differ\n{}", self.transcript);
        } else {
            let open = self.receipts.values().filter(|receipt| !receipt.status.is_end()).count();
            assert_eq!(open, 0, "a receipt is open after the end\n{}", self.transcript);
        }
        let waiting = machine.inbox.iter().filter(|turn| matches!(turn, Turn::Event { .. })).count();
        let pending = self.receipts.values().filter(|receipt| receipt.status == ReceiptStatus::Pending);
        assert_eq!(pending.count(), waiting, "pending receipts and the inbox differ\n{}", self.transcript);
        if self.state.ended.is_none()
            && !self.state.paused
            && machine.current.is_none()
            && machine.transition > 0
        {
            assert!(machine.inbox.is_empty(), "an idle machine leaves its inbox\n{}", self.transcript);
        }
    }

    pub(super) fn check(&self) {
        self.check_machine();
        let folded = RunState::fold(&self.plan, &self.log).expect("the log fits its definition");
        assert_eq!(folded, self.state, "the fold of the log is not the decided state\n{}", self.transcript);
        let bytes = self.state.encode();
        let decoded = RunState::decode(&self.plan, &bytes).expect("encoded bytes decode");
        assert_eq!(decoded, self.state);
        assert_eq!(decoded.encode(), bytes);
        if self.state.ended.is_none() {
            let live: Vec<(u32, u32)> =
                self.state.live().map(|step| (step, self.state.step(step).attempt)).collect();
            let jobs: Vec<(u32, u32)> = self.jobs.iter().map(|(step, job)| (*step, job.attempt)).collect();
            assert_eq!(jobs, live, "jobs and live steps differ\n{}", self.transcript);
        } else {
            assert!(self.jobs.is_empty() && self.timer.is_none(), "jobs outlive the run");
        }
        let terminal = self.log.iter().position(|event| event.kind.is_terminal());
        assert_eq!(terminal.is_some(), self.state.ended.is_some());
        if let Some(at) = terminal {
            assert_eq!(at, self.log.len() - 1, "something follows the terminal event\n{}", self.transcript);
        }
        self.check_attempts();
    }

    /// Attempts count from 1 without gaps, except that an inherited step keeps the number it had.
    pub(super) fn check_attempts(&self) {
        let mut last: BTreeMap<&str, u32> = BTreeMap::new();
        for event in &self.log {
            let (Some(step), Some(attempt)) = (&event.step_name, event.attempt) else { continue };
            let inherited = event.data.as_ref().is_some_and(|data| data.value()["inherited"] == true);
            let over = matches!(
                event.kind,
                EventType::StepCompleted | EventType::StepFailed | EventType::StepSkipped
            );
            let retried = event.kind == EventType::StepRetry || (over && self.plan.machine.is_some());
            let expected = last.get(&**step).copied().unwrap_or(1);
            if !inherited && event.kind != EventType::Emit {
                assert_eq!(attempt, expected, "{step}: attempts are not contiguous\n{}", self.transcript);
            }
            last.insert(step, attempt + u32::from(retried));
        }
    }
}
