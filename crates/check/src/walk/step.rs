//! Events of steps.

use flowline_core::event::EventType;
use flowline_core::limits::LOST_LEASES;
use flowline_store::Failure;

use super::data::FailureCap;
use super::{LogLine, StepPhase, Walk};
use crate::Invariant::{I1, I2, I5, I8, I18};

impl Walk {
    pub(super) fn step_event(&mut self, line: &mut LogLine<'_>) {
        let name = line.event.step_name.as_deref().unwrap_or_default();
        let Some(step) = self.step_of(line, name) else { return };
        match line.event.kind {
            EventType::StepSkipped => self.skipped(line, step),
            EventType::StepCompleted if line.data.inherited => self.settle(line, step, StepPhase::Completed),
            _ => self.attempt_event(line, step),
        }
    }

    fn attempt_event(&mut self, line: &mut LogLine<'_>, step: usize) {
        self.of_current(line, step);
        let by_condition = line.event.kind == EventType::StepFailed
            && matches!(line.data.code.as_deref(), Some("condition" | "too_costly"));
        let outcome = matches!(
            line.event.kind,
            EventType::StepCompleted | EventType::StepRetry | EventType::StepFailed
        );
        // A released attempt may never have started, if a remote worker didn't acknowledge it.
        let given_back = line.data.cause() == FailureCap::Released;
        let expected = outcome && !by_condition && !given_back;
        if expected && self.steps[step].is_live() && !self.steps[step].started {
            line.say(I8, "is about an attempt that never started");
        }
        match line.event.kind {
            EventType::StepStarted => self.started(line, step),
            EventType::StepCompleted => {
                let returns = line.flow.definition.steps[step].returns.as_ref();
                let unsaid =
                    returns.and_then(|name| line.flow.events.get(name)).is_some_and(|at| !self.emitted[*at]);
                if unsaid {
                    line.say(I8, "completes the step without emitting what it returns");
                }
                self.settle(line, step, StepPhase::Completed);
            }
            EventType::StepRetry => self.retried(line, step),
            EventType::StepFailed => self.step_failed(line, step),
            _ => {}
        }
    }

    fn started(&mut self, line: &mut LogLine<'_>, step: usize) {
        self.started_at.get_or_insert(line.event.began());
        self.exact = line.event.says_began().is_some();
        self.started_line.get_or_insert(line.event.ts);
        let at = &mut self.steps[step];
        if at.attempt != line.event.attempt.unwrap_or(0) || !at.is_live() {
            return;
        }
        if at.started {
            line.say(I8, "starts an attempt that had already started");
        }
        at.started = true;
        at.phase = StepPhase::Queued;
    }

    /// A step is over: it completed, or is out of attempts.
    fn settle(&mut self, line: &mut LogLine<'_>, step: usize, phase: StepPhase) {
        let at = &mut self.steps[step];
        self.over += u64::from(at.is_live());
        at.phase = phase;
        at.attempt = line.event.attempt.unwrap_or(0);
        if self.machine.is_some() {
            return self.action_over(line.flow, step, phase);
        }
        if self.satisfies(line.flow, step) {
            self.trigger(line.flow, &line.flow.followers[step]);
        }
    }

    fn retried(&mut self, line: &mut LogLine<'_>, step: usize) {
        self.retries += 1;
        self.retried.insert(step);
        if self.stopping {
            line.say(I5, "retries after fail_fast");
        }
        self.charge(line, step, line.data.cause());
        let attempts = line.flow.definition.steps[step].retry.attempts;
        let at = &mut self.steps[step];
        if line.data.cause() == FailureCap::Try && at.tries >= attempts {
            let tries = at.tries;
            line.say(I2, format!("retries after {tries} failed attempts of {attempts}"));
        }
        if at.is_live() {
            self.over += 1;
            self.added += 1;
        }
        at.phase = if line.data.delay_ms.unwrap_or(0) > 0 { StepPhase::Delayed } else { StepPhase::Queued };
        at.attempt = line.event.attempt.unwrap_or(0) + 1;
        at.started = false;
    }

    /// Counts a failed attempt against its cap.
    fn charge(&mut self, line: &mut LogLine<'_>, step: usize, cause: FailureCap) {
        let attempts = line.flow.definition.steps[step].retry.attempts;
        let at = &mut self.steps[step];
        let (count, cap, what) = match cause {
            FailureCap::Try => (&mut at.tries, attempts, "failed attempts"),
            // The last lost lease fails the step.
            FailureCap::Lost => (
                &mut at.lost,
                LOST_LEASES + u32::from(line.event.kind == EventType::StepFailed),
                "lost leases",
            ),
            FailureCap::Released => return,
        };
        *count += 1;
        if *count > cap {
            line.say(I2, format!("makes it {count} {what}, but the limit is {cap}"));
        }
    }

    fn step_failed(&mut self, line: &mut LogLine<'_>, step: usize) {
        self.charge(line, step, line.data.cause());
        let moves = line.flow.definition.steps[step].on_error.is_some();
        if !line.flow.goes_on_after_failure(step) && !moves {
            if self.failed.is_none() {
                self.failed = Some(step);
                let step = line.event.step_name.clone();
                self.failure = line.data.error.clone().map(|error| Failure { error, step });
            }
            self.stopping |= line.flow.definition.fail_fast;
        }
        self.settle(line, step, StepPhase::Failed);
    }

    fn skipped(&mut self, line: &mut LogLine<'_>, step: usize) {
        let at = self.steps[step];
        let by_condition = line.data.reason.as_deref() == Some("condition");
        let dropped = self.machine.is_some() && !by_condition && !self.is_cut_off();
        if dropped {
            let name = line.flow.name(step);
            line.say(I18, format!("drops action {name:?}, but nothing failed that would explain it"));
        }
        let fits = match line.data.reason.as_deref() {
            _ if dropped => true,
            Some("condition") if self.machine.is_some() => at.is_live() && !at.started,
            _ if self.machine.is_some() => {
                at.phase == StepPhase::Idle && self.is_passed_over(line.flow, step)
            }
            Some("condition") => at.is_live() && at.attempt == 1 && !at.started,
            Some("fail_fast") => {
                self.stopping && !at.started && (at.is_live() || at.phase == StepPhase::Idle)
            }
            _ => at.phase == StepPhase::Idle,
        };
        let of_flow = self.machine.is_none();
        let given_up = of_flow
            && line.data.reason.as_deref() == Some("not_triggered")
            && self.could_be_triggered(line.flow, step);
        if given_up {
            let name = line.flow.name(step);
            line.say(I1, format!("gives up on step {name:?}, which an external event could still trigger"));
        }
        if !fits {
            let (name, reason) = (line.flow.name(step), line.data.reason.as_deref().unwrap_or("no reason"));
            let phase = at.phase;
            line.say(I5, format!("skips step {name:?} ({reason}), which is {phase:?}"));
        }
        let at = &mut self.steps[step];
        self.over += u64::from(at.is_live());
        at.phase = StepPhase::Skipped;
        if self.machine.is_some() {
            match line.data.reason.as_deref() {
                Some("condition") => self.action_over(line.flow, step, StepPhase::Skipped),
                _ => self.pass_over(),
            }
        }
    }
}
