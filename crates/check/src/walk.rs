//! Walks a run's log: checks whether each event may come at that point, and keeps track of the run.
//!
//! The rules apply event by event, in the order of the log. A walk doesn't stop at a mistake: it reports it, takes the event
//! at its word, and continues.

mod data;
mod machine;
mod step;
mod turn;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_core::event::{Event, EventType, event_id};
use flowline_core::ids::step_id;
use flowline_core::{RunKey, Status, Time};
use flowline_store::Failure;

use crate::Invariant::{I1, I3, I4, I5, I6, I8, I12, I14};
use crate::flow::FlowMap;
use crate::violation::Findings;
use data::EventData;
pub(crate) use machine::MachineAt;
pub(crate) use values::KnownValue;

/// Where a step is, according to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StepPhase {
    #[default]
    Idle,
    /// Its attempt waits for a time.
    Delayed,
    /// Its attempt is ready or running.
    Queued,
    Completed,
    Failed,
    Skipped,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepAt {
    pub(crate) phase: StepPhase,
    pub(crate) attempt: u32,
    /// Whether `step.started` of this attempt is in the log.
    started: bool,
    tries: u32,
    lost: u32,
}

impl StepAt {
    pub(crate) fn is_live(self) -> bool {
        matches!(self.phase, StepPhase::Delayed | StepPhase::Queued)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Walk {
    run: RunKey,
    flow_name: Arc<str>,
    /// The number of the last event.
    pub(crate) seq: u64,
    pub(crate) last_ms: i64,
    pub(crate) ended: Option<EventType>,
    paused: bool,
    /// `fail_fast` has taken effect.
    stopping: bool,
    /// The first step that failed the run.
    failed: Option<usize>,
    pub(crate) retries: u32,
    pub(crate) steps: Vec<StepAt>,
    emitted: Vec<bool>,
    pub(crate) created_at: Option<Time>,
    /// When a delayed run starts.
    pub(crate) begins_at: Option<Time>,
    pub(crate) started_at: Option<Time>,
    /// When the first `step.started` was written. Rows of older builds have this for the above.
    pub(crate) started_line: Option<Time>,
    pub(crate) completed_at: Option<Time>,
    pub(crate) failure: Option<Failure>,
    /// Jobs that the log has asked for, and jobs that have ended.
    pub(crate) added: u64,
    pub(crate) over: u64,
    /// A retry's log starts with what it inherits.
    inheriting: bool,
    /// Steps triggered since the caller last took them.
    pub(crate) triggered: BTreeSet<usize>,
    /// Steps retried since then.
    pub(crate) retried: BTreeSet<usize>,
    pub(crate) machine: Option<Box<MachineAt>>,
    /// The run's own key-value state.
    pub(crate) values: BTreeMap<String, KnownValue>,
    /// Whether a terminal event has to say exactly how long its run took. Builds that record when attempts started do.
    exact: bool,
}

impl Walk {
    pub(crate) fn new(run: RunKey, flow_name: Arc<str>, flow: &FlowMap) -> Walk {
        Walk {
            run,
            flow_name,
            seq: 0,
            last_ms: i64::MIN,
            ended: None,
            paused: false,
            stopping: false,
            failed: None,
            retries: 0,
            steps: vec![StepAt::default(); flow.definition.steps.len()],
            emitted: vec![false; flow.events.len()],
            created_at: None,
            begins_at: None,
            started_at: None,
            started_line: None,
            completed_at: None,
            failure: None,
            added: 0,
            over: 0,
            inheriting: false,
            triggered: BTreeSet::new(),
            retried: BTreeSet::new(),
            machine: flow.states.as_ref().map(|_| Box::default()),
            values: BTreeMap::new(),
            exact: false,
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(crate) fn status(&self) -> Status {
        match self.ended {
            Some(EventType::FlowCompleted) => Status::Completed,
            Some(EventType::FlowFailed) => Status::Failed,
            Some(_) => Status::Cancelled,
            None if self.paused => Status::Paused,
            None if self.steps.iter().any(|step| step.phase == StepPhase::Queued) => Status::Running,
            None => Status::Waiting,
        }
    }

    /// Number of steps in a phase; for a machine, how often an action got there.
    pub(crate) fn count(&self, phase: StepPhase) -> u32 {
        match (&self.machine, phase) {
            (Some(machine), StepPhase::Completed) => return machine.completed,
            (Some(machine), StepPhase::Failed) => return machine.failed,
            _ => {}
        }
        self.steps.iter().filter(|step| step.phase == phase).count() as u32
    }

    /// Steps that must have a job, with the attempt.
    pub(crate) fn live(&self) -> impl Iterator<Item = (usize, u32)> {
        let steps = self.steps.iter().enumerate().filter(|(_, step)| step.is_live() && self.ended.is_none());
        steps.map(|(at, step)| (at, step.attempt))
    }

    /// Whether nothing is left to do: there's no job, and no external event could trigger a step.
    pub(crate) fn is_spent(&self, flow: &FlowMap) -> bool {
        if let Some(machine) = &self.machine {
            let settled = self.failed.is_some() || machine.is_final(flow);
            return machine.transition > 0 && settled && !self.is_busy();
        }
        !self.steps.iter().any(|step| step.is_live()) && !self.could_go_on(flow)
    }

    /// Whether a step is queued or running.
    fn is_busy(&self) -> bool {
        self.steps.iter().any(|step| step.is_live())
    }

    fn could_go_on(&self, flow: &FlowMap) -> bool {
        (0..self.steps.len()).any(|step| self.could_be_triggered(flow, step))
    }

    /// Whether external events alone would trigger a step.
    fn could_be_triggered(&self, flow: &FlowMap, step: usize) -> bool {
        let event = |event: usize| self.emitted[event] || flow.accepted.contains(&event);
        let done = |step: usize| self.satisfies(flow, step);
        !self.stopping && self.steps[step].phase == StepPhase::Idle && flow.holds(step, &event, &done)
    }

    /// `step:NAME` is satisfied after completion, or after a failure with `on_failure: continue`.
    fn satisfies(&self, flow: &FlowMap, step: usize) -> bool {
        match self.steps[step].phase {
            StepPhase::Completed => true,
            StepPhase::Failed => flow.goes_on_after_failure(step),
            _ => false,
        }
    }

    pub(crate) fn event(&mut self, flow: &FlowMap, event: &Event, found: &mut Findings) {
        self.envelope(event, found);
        if let Some(end) = self.ended {
            let (seq, kind) = (event.seq, event.kind);
            return found.log(I1, format!("event {seq} ({kind}) follows {end}"));
        }
        let data = EventData::read(event);
        self.inheriting &= match event.kind {
            EventType::Emit | EventType::TimerSet => true,
            EventType::StepCompleted | EventType::EventReceived | EventType::StateChanged => data.inherited,
            _ => false,
        };
        self.before_event(flow, event, &data, found);
        if event.kind == EventType::State {
            self.state_line(flow, event);
        }
        match event.kind {
            EventType::FlowStart => self.start(flow, event, &data),
            EventType::FlowPaused | EventType::FlowResumed => self.pause(event, found),
            EventType::FlowCompleted | EventType::FlowFailed | EventType::FlowCancelled => {
                self.end(flow, event, data, found);
            }
            EventType::Emit => self.emit(flow, event, &data, found),
            EventType::EventReceived
            | EventType::EventRejected
            | EventType::StateChanged
            | EventType::TimerSet
            | EventType::TimerFired
            | EventType::TimerCancelled => self.machine_event(flow, event, &data, found),
            _ if event.step_name.is_some() => self.step_event(flow, event, data, found),
            EventType::StepStarted
            | EventType::StepCompleted
            | EventType::StepRetry
            | EventType::StepFailed
            | EventType::StepSkipped => {
                found.log(I12, format!("event {} ({}) has no step", event.seq, event.kind));
            }
            _ => {}
        }
    }

    /// Checks what every event has: its number, its timestamp, and its run and tenant.
    fn envelope(&mut self, event: &Event, found: &mut Findings) {
        let (seq, kind) = (event.seq, event.kind);
        if seq != self.seq + 1 {
            let after = self.seq;
            found.log(I4, format!("event {seq} follows event {after}"));
        }
        self.seq = seq;
        let ms = event.ts.millis();
        if ms < self.last_ms || event.id != event_id(ms, seq) {
            found.log(I4, format!("event {seq} has the id {} and the timestamp {}", event.id, event.ts));
        }
        self.last_ms = self.last_ms.max(ms);
        if (seq == 1) != (kind == EventType::FlowStart) {
            found.log(I4, format!("event {seq} is {kind}"));
        }
        if event.tenant != self.run.tenant {
            found.log(I14, format!("event {seq} belongs to tenant {}", event.tenant));
        }
        if event.run_id != self.run.run || event.flow_name != self.flow_name {
            let of = (&event.flow_name, &event.run_id);
            found.log(I4, format!("event {seq} belongs to run {} of flow {:?}", of.1, of.0));
        }
        if let (Some(step), Some(attempt), Some(id)) = (&event.step_name, event.attempt, &event.step_id)
            && *id != step_id(&self.run.run, step, attempt)
        {
            found.log(I4, format!("event {seq} has the step id {id:?}"));
        }
    }

    fn start(&mut self, flow: &FlowMap, event: &Event, data: &EventData) {
        self.created_at = Some(event.ts);
        self.begins_at = data.start_at;
        self.inheriting = data.retry_of.is_some();
        let phase = if data.start_at.is_some() { StepPhase::Delayed } else { StepPhase::Queued };
        for step in (0..self.steps.len()).filter(|step| flow.is_entry(*step)) {
            self.begin(step, phase);
        }
    }

    fn begin(&mut self, step: usize, phase: StepPhase) {
        self.steps[step] = StepAt { phase, attempt: 1, ..StepAt::default() };
        self.triggered.insert(step);
        self.added += 1;
    }

    /// Triggers the steps that were waiting for what just happened.
    fn trigger(&mut self, flow: &FlowMap, candidates: &[usize]) {
        if self.stopping {
            return;
        }
        for &step in candidates {
            let holds = self.steps[step].phase == StepPhase::Idle && {
                flow.holds(step, &|event| self.emitted[event], &|step| self.satisfies(flow, step))
            };
            if holds {
                self.begin(step, StepPhase::Queued);
            }
        }
    }

    fn pause(&mut self, event: &Event, found: &mut Findings) {
        let paused = event.kind == EventType::FlowPaused;
        if self.paused == paused {
            found.log(I8, format!("event {} ({}) was applied twice", event.seq, event.kind));
        }
        self.paused = paused;
    }

    fn emit(&mut self, flow: &FlowMap, event: &Event, data: &EventData, found: &mut Findings) {
        let seq = event.seq;
        let name = data.name.as_deref().unwrap_or_default();
        let Some(&number) = flow.events.get(name) else {
            return found.log(I12, format!("event {seq} emits {name:?}, which isn't in the definition"));
        };
        let may = match event.step_name.as_deref() {
            None => flow.accepted.contains(&number),
            Some(step) => {
                let Some(step) = self.step_of(flow, step, event, found) else { return };
                if !self.inheriting {
                    self.of_current(flow, step, event, found);
                }
                flow.published[step].contains(&number)
            }
        };
        if !may {
            found.log(I3, format!("event {seq} emits {name:?}, which its sender may not emit"));
        }
        if self.emitted[number] {
            return found.log(I3, format!("{name:?} is emitted again by event {seq}"));
        }
        self.emitted[number] = true;
        self.trigger(flow, &flow.listeners[number]);
    }

    fn end(&mut self, flow: &FlowMap, event: &Event, data: EventData, found: &mut Findings) {
        let (seq, kind) = (event.seq, event.kind);
        // A cancel, a timeout or an end by hand can come at any moment, any other end only when nothing is left to do.
        let by_itself =
            kind != EventType::FlowCancelled && data.by.is_none() && data.code.as_deref() != Some("timeout");
        if self.machine.is_some() {
            self.machine_end(flow, event, &data, by_itself, found);
        }
        if by_itself {
            let idle = |step: &StepAt| step.phase == StepPhase::Idle && self.machine.is_none();
            let unfinished = self.steps.iter().position(|step| step.is_live() || idle(step));
            if let Some(step) = unfinished {
                let (name, phase) = (flow.name(step), self.steps[step].phase);
                found.log(I1, format!("event {seq} ({kind}) ends the run while step {name:?} is {phase:?}"));
            }
            if self.failed.is_some() && kind == EventType::FlowCompleted {
                found.log(I1, format!("event {seq} says completed, but a step failed"));
            }
            if let Some(step) = &data.step
                && self.failed.is_none_or(|failed| flow.name(failed) != &**step)
            {
                found.log(I1, format!("event {seq} blames step {step:?}, which didn't fail the run"));
            }
        }
        if kind == EventType::FlowFailed && self.failure.is_none() {
            self.failure = data.error.map(|error| Failure { error, step: data.step });
        }
        let took = self.created_at.map(|created| event.ts.since(created).as_millis() as u64);
        if self.exact && data.duration != took {
            let says = data.duration;
            let message = format!(
                "event {seq} ({kind}) says that the run took {says:?}, but by the timestamps it took {took:?}"
            );
            found.log(I6, message);
        }
        self.ended = Some(kind);
        self.completed_at = Some(event.ts);
    }

    fn step_of(&self, flow: &FlowMap, name: &str, event: &Event, found: &mut Findings) -> Option<usize> {
        let step = flow.steps.get(name).copied();
        if step.is_none() {
            let (seq, kind) = (event.seq, event.kind);
            let message = format!("event {seq} ({kind}) names step {name:?}, which isn't in the definition");
            found.log(I12, message);
        }
        step
    }

    /// Checks that the event comes from the current attempt of its step.
    fn of_current(&self, flow: &FlowMap, step: usize, event: &Event, found: &mut Findings) {
        use crate::Invariant::{I2, I7};
        let (seq, kind, attempt) = (event.seq, event.kind, event.attempt.unwrap_or(0));
        let at = self.steps[step];
        if at.is_live() && at.attempt == attempt {
            return;
        }
        let outcome = matches!(kind, EventType::StepCompleted | EventType::StepFailed | EventType::StepRetry);
        let (invariant, why) = match at.phase {
            StepPhase::Idle => (I5, "before the step was triggered".to_owned()),
            StepPhase::Skipped => (I5, "but the step was skipped".to_owned()),
            StepPhase::Completed | StepPhase::Failed if outcome && at.attempt == attempt => {
                (I8, "whose outcome is already in the log".to_owned())
            }
            _ if attempt > at.attempt => (I2, format!("but the step is at attempt {}", at.attempt)),
            _ => (I7, format!("which is over; the step is {:?} at attempt {}", at.phase, at.attempt)),
        };
        let name = flow.name(step);
        let message = format!("event {seq} ({kind}) is about attempt {attempt} of step {name:?}, {why}");
        found.log(invariant, message);
    }
}
