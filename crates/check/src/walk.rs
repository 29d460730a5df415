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

use crate::Invariant;
use crate::Invariant::{I1, I3, I4, I5, I6, I8, I12, I14};
use crate::flow::FlowMap;
use crate::violation::Findings;
use data::WalkedData;
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

/// An event that is checked, with the definition and the findings so far.
struct LogLine<'a> {
    flow: &'a FlowMap,
    event: &'a Event,
    data: &'a WalkedData,
    found: &'a mut Findings,
}

impl LogLine<'_> {
    /// Reports what is wrong with the event: it `problem`.
    fn say(&mut self, invariant: Invariant, problem: impl std::fmt::Display) {
        self.found.log(invariant, format!("event {} ({}) {problem}", self.event.seq, self.event.kind));
    }
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
        let line = &mut LogLine { flow, event, data: &WalkedData::read(event), found };
        self.envelope(line);
        if let Some(end) = self.ended {
            return line.say(I1, format!("follows {end}"));
        }
        self.inheriting &= match event.kind {
            EventType::Emit | EventType::TimerSet => true,
            EventType::StepCompleted | EventType::EventReceived | EventType::StateChanged => {
                line.data.inherited
            }
            _ => false,
        };
        self.before_event(line);
        match event.kind {
            EventType::State => self.state_line(flow, event),
            EventType::FlowStart => self.start(line),
            EventType::FlowPaused | EventType::FlowResumed => self.pause(line),
            EventType::FlowCompleted | EventType::FlowFailed | EventType::FlowCancelled => self.end(line),
            EventType::Emit => self.emit(line),
            EventType::EventReceived
            | EventType::EventRejected
            | EventType::StateChanged
            | EventType::TimerSet
            | EventType::TimerFired
            | EventType::TimerCancelled => self.machine_event(line),
            _ if event.step_name.is_some() => self.step_event(line),
            EventType::StepStarted
            | EventType::StepCompleted
            | EventType::StepRetry
            | EventType::StepFailed
            | EventType::StepSkipped => line.say(I12, "has no step"),
            _ => {}
        }
    }

    /// Checks what every event has: its number, its timestamp, and its run and tenant.
    fn envelope(&mut self, line: &mut LogLine<'_>) {
        let (seq, kind) = (line.event.seq, line.event.kind);
        if seq != self.seq + 1 {
            line.say(I4, format!("follows event {}", self.seq));
        }
        self.seq = seq;
        let ms = line.event.ts.millis();
        if ms < self.last_ms || line.event.id != event_id(ms, seq) {
            line.say(I4, format!("has the id {} and the timestamp {}", line.event.id, line.event.ts));
        }
        self.last_ms = self.last_ms.max(ms);
        if (seq == 1) != (kind == EventType::FlowStart) {
            line.say(I4, "is out of place: flow.start comes first, and once");
        }
        if line.event.tenant != self.run.tenant {
            line.say(I14, format!("belongs to tenant {}", line.event.tenant));
        }
        if line.event.run_id != self.run.run || line.event.flow_name != self.flow_name {
            let (run, flow) = (&line.event.run_id, &line.event.flow_name);
            line.say(I4, format!("belongs to run {run} of flow {flow:?}"));
        }
        if let (Some(step), Some(attempt), Some(id)) =
            (&line.event.step_name, line.event.attempt, &line.event.step_id)
            && *id != step_id(&self.run.run, step, attempt)
        {
            line.say(I4, format!("has the step id {id:?}"));
        }
    }

    fn start(&mut self, line: &mut LogLine<'_>) {
        self.created_at = Some(line.event.ts);
        self.begins_at = line.data.start_at;
        self.inheriting = line.data.retry_of.is_some();
        let phase = if line.data.start_at.is_some() { StepPhase::Delayed } else { StepPhase::Queued };
        for step in (0..self.steps.len()).filter(|step| line.flow.is_entry(*step)) {
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

    fn pause(&mut self, line: &mut LogLine<'_>) {
        let paused = line.event.kind == EventType::FlowPaused;
        if self.paused == paused {
            line.say(I8, "was applied twice");
        }
        self.paused = paused;
    }

    fn emit(&mut self, line: &mut LogLine<'_>) {
        let name = line.data.name.as_deref().unwrap_or_default();
        let Some(&number) = line.flow.events.get(name) else {
            return line.say(I12, format!("emits {name:?}, which isn't in the definition"));
        };
        let may = match line.event.step_name.as_deref() {
            None => line.flow.accepted.contains(&number),
            Some(step) => {
                let Some(step) = self.step_of(line, step) else { return };
                if !self.inheriting {
                    self.of_current(line, step);
                }
                line.flow.published[step].contains(&number)
            }
        };
        if !may {
            line.say(I3, format!("emits {name:?}, which its sender may not emit"));
        }
        if self.emitted[number] {
            return line.say(I3, format!("emits {name:?} again"));
        }
        self.emitted[number] = true;
        self.trigger(line.flow, &line.flow.listeners[number]);
    }

    fn end(&mut self, line: &mut LogLine<'_>) {
        let kind = line.event.kind;
        // A cancel, a timeout or an end by hand can come at any moment, any other end only when nothing is left to do.
        let by_itself = kind != EventType::FlowCancelled
            && line.data.by.is_none()
            && line.data.code.as_deref() != Some("timeout");
        if self.machine.is_some() {
            self.machine_end(line, by_itself);
        }
        if by_itself {
            let idle = |step: &StepAt| step.phase == StepPhase::Idle && self.machine.is_none();
            let unfinished = self.steps.iter().position(|step| step.is_live() || idle(step));
            if let Some(step) = unfinished {
                let (name, phase) = (line.flow.name(step), self.steps[step].phase);
                line.say(I1, format!("ends the run while step {name:?} is {phase:?}"));
            }
            if self.failed.is_some() && kind == EventType::FlowCompleted {
                line.say(I1, "says completed, but a step failed");
            }
            if let Some(step) = &line.data.step
                && self.failed.is_none_or(|failed| line.flow.name(failed) != &**step)
            {
                line.say(I1, format!("blames step {step:?}, which didn't fail the run"));
            }
        }
        if kind == EventType::FlowFailed && self.failure.is_none() {
            let step = line.data.step.clone();
            self.failure = line.data.error.clone().map(|error| Failure { error, step });
        }
        let took = self.created_at.map(|created| line.event.ts.since(created).as_millis() as u64);
        if self.exact && line.data.duration != took {
            let says = line.data.duration;
            line.say(I6, format!("says that the run took {says:?}, but by the timestamps it took {took:?}"));
        }
        self.ended = Some(kind);
        self.completed_at = Some(line.event.ts);
    }

    fn step_of(&self, line: &mut LogLine<'_>, name: &str) -> Option<usize> {
        let step = line.flow.steps.get(name).copied();
        if step.is_none() {
            line.say(I12, format!("names step {name:?}, which isn't in the definition"));
        }
        step
    }

    /// Checks that the event comes from the current attempt of its step.
    fn of_current(&self, line: &mut LogLine<'_>, step: usize) {
        use crate::Invariant::{I2, I7};
        let (kind, attempt) = (line.event.kind, line.event.attempt.unwrap_or(0));
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
        let name = line.flow.name(step);
        line.say(invariant, format!("is about attempt {attempt} of step {name:?}, {why}"));
    }
}
