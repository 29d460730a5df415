//! Events of steps.

use flowline_core::event::{Event, EventType};
use flowline_core::limits::LOST_LEASES;
use flowline_store::Failure;

use super::data::{EventData, FailureCap};
use super::{StepPhase, Walk};
use crate::Invariant::{I1, I2, I5, I8, I18};
use crate::flow::FlowMap;
use crate::violation::Findings;

impl Walk {
    pub(super) fn step_event(
        &mut self,
        flow: &FlowMap,
        event: &Event,
        data: EventData,
        found: &mut Findings,
    ) {
        let name = event.step_name.as_deref().unwrap_or_default();
        let Some(step) = self.step_of(flow, name, event, found) else { return };
        match event.kind {
            EventType::StepSkipped => self.skipped(flow, step, event, &data, found),
            EventType::StepCompleted if data.inherited => {
                self.settle(flow, step, event, StepPhase::Completed)
            }
            _ => self.attempt_event(flow, step, event, data, found),
        }
    }

    fn attempt_event(
        &mut self,
        flow: &FlowMap,
        step: usize,
        event: &Event,
        data: EventData,
        found: &mut Findings,
    ) {
        self.of_current(flow, step, event, found);
        let by_condition = event.kind == EventType::StepFailed && data.code.as_deref() == Some("condition");
        let outcome =
            matches!(event.kind, EventType::StepCompleted | EventType::StepRetry | EventType::StepFailed);
        // A released attempt may never have started, if a remote worker didn't acknowledge it.
        let given_back = data.cause() == FailureCap::Released;
        let expected = outcome && !by_condition && !given_back;
        if expected && self.steps[step].is_live() && !self.steps[step].started {
            let message =
                format!("event {} ({}) is about an attempt that never started", event.seq, event.kind);
            found.log(I8, message);
        }
        match event.kind {
            EventType::StepStarted => self.started(step, event, found),
            EventType::StepCompleted => {
                let returns = flow.definition.steps[step].returns.as_ref();
                let unsaid =
                    returns.and_then(|name| flow.events.get(name)).is_some_and(|at| !self.emitted[*at]);
                if unsaid {
                    let message =
                        format!("event {} completes the step without emitting what it returns", event.seq);
                    found.log(I8, message);
                }
                self.settle(flow, step, event, StepPhase::Completed);
            }
            EventType::StepRetry => self.retried(flow, step, event, &data, found),
            EventType::StepFailed => self.step_failed(flow, step, event, data, found),
            _ => {}
        }
    }

    fn started(&mut self, step: usize, event: &Event, found: &mut Findings) {
        self.started_at.get_or_insert(event.began());
        self.exact = event.says_began().is_some();
        self.started_line.get_or_insert(event.ts);
        let at = &mut self.steps[step];
        if at.attempt != event.attempt.unwrap_or(0) || !at.is_live() {
            return;
        }
        if at.started {
            found.log(I8, format!("event {} starts an attempt that had already started", event.seq));
        }
        at.started = true;
        at.phase = StepPhase::Queued;
    }

    /// A step is over: it completed, or is out of attempts.
    fn settle(&mut self, flow: &FlowMap, step: usize, event: &Event, phase: StepPhase) {
        let at = &mut self.steps[step];
        self.over += u64::from(at.is_live());
        at.phase = phase;
        at.attempt = event.attempt.unwrap_or(0);
        if self.machine.is_some() {
            return self.action_over(flow, step, phase);
        }
        if self.satisfies(flow, step) {
            self.trigger(flow, &flow.followers[step]);
        }
    }

    fn retried(
        &mut self,
        flow: &FlowMap,
        step: usize,
        event: &Event,
        data: &EventData,
        found: &mut Findings,
    ) {
        self.retries += 1;
        self.retried.insert(step);
        if self.stopping {
            found.log(I5, format!("event {} retries after fail_fast", event.seq));
        }
        self.charge(flow, step, event, data.cause(), found);
        let attempts = flow.definition.steps[step].retry.attempts;
        let at = &mut self.steps[step];
        if data.cause() == FailureCap::Try && at.tries >= attempts {
            let (seq, tries) = (event.seq, at.tries);
            found.log(I2, format!("event {seq} retries after {tries} failed attempts of {attempts}"));
        }
        if at.is_live() {
            self.over += 1;
            self.added += 1;
        }
        at.phase = if data.delay_ms.unwrap_or(0) > 0 { StepPhase::Delayed } else { StepPhase::Queued };
        at.attempt = event.attempt.unwrap_or(0) + 1;
        at.started = false;
    }

    /// Counts a failed attempt against its cap.
    fn charge(
        &mut self,
        flow: &FlowMap,
        step: usize,
        event: &Event,
        cause: FailureCap,
        found: &mut Findings,
    ) {
        let attempts = flow.definition.steps[step].retry.attempts;
        let at = &mut self.steps[step];
        let (count, cap, what) = match cause {
            FailureCap::Try => (&mut at.tries, attempts, "failed attempts"),
            // The last lost lease fails the step.
            FailureCap::Lost => {
                (&mut at.lost, LOST_LEASES + u32::from(event.kind == EventType::StepFailed), "lost leases")
            }
            FailureCap::Released => return,
        };
        *count += 1;
        if *count > cap {
            let (seq, count) = (event.seq, *count);
            found.log(I2, format!("event {seq} makes it {count} {what}, but the limit is {cap}"));
        }
    }

    fn step_failed(
        &mut self,
        flow: &FlowMap,
        step: usize,
        event: &Event,
        data: EventData,
        found: &mut Findings,
    ) {
        self.charge(flow, step, event, data.cause(), found);
        let moves = flow.definition.steps[step].on_error.is_some();
        if !flow.goes_on_after_failure(step) && !moves {
            if self.failed.is_none() {
                self.failed = Some(step);
                let step = event.step_name.clone();
                self.failure = data.error.map(|error| Failure { error, step });
            }
            self.stopping |= flow.definition.fail_fast;
        }
        self.settle(flow, step, event, StepPhase::Failed);
    }

    fn skipped(
        &mut self,
        flow: &FlowMap,
        step: usize,
        event: &Event,
        data: &EventData,
        found: &mut Findings,
    ) {
        let at = self.steps[step];
        let by_condition = data.reason.as_deref() == Some("condition");
        let dropped = self.machine.is_some() && !by_condition && !self.is_cut_off();
        if dropped {
            let (seq, name) = (event.seq, flow.name(step));
            let message =
                format!("event {seq} drops action {name:?}, but nothing failed that would explain it");
            found.log(I18, message);
        }
        let fits = match data.reason.as_deref() {
            _ if dropped => true,
            Some("condition") if self.machine.is_some() => at.is_live() && !at.started,
            _ if self.machine.is_some() => at.phase == StepPhase::Idle && self.is_passed_over(flow, step),
            Some("condition") => at.is_live() && at.attempt == 1 && !at.started,
            Some("fail_fast") => {
                self.stopping && !at.started && (at.is_live() || at.phase == StepPhase::Idle)
            }
            _ => at.phase == StepPhase::Idle,
        };
        let of_flow = self.machine.is_none();
        let given_up =
            of_flow && data.reason.as_deref() == Some("not_triggered") && self.could_be_triggered(flow, step);
        if given_up {
            let (seq, name) = (event.seq, flow.name(step));
            let message =
                format!("event {seq} gives up on step {name:?}, which an external event could still trigger");
            found.log(I1, message);
        }
        if !fits {
            let (seq, name, reason) =
                (event.seq, flow.name(step), data.reason.as_deref().unwrap_or("no reason"));
            let phase = at.phase;
            found.log(I5, format!("event {seq} skips step {name:?} ({reason}), which is {phase:?}"));
        }
        let at = &mut self.steps[step];
        self.over += u64::from(at.is_live());
        at.phase = StepPhase::Skipped;
        if self.machine.is_some() {
            match data.reason.as_deref() {
                Some("condition") => self.action_over(flow, step, StepPhase::Skipped),
                _ => self.pass_over(),
            }
        }
    }
}
