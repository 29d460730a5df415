//! Explain: why a run is not further, in words, from its state and its jobs.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use flowline_core::definition::Subscribes;
use flowline_core::machine::Asked;
use flowline_core::run::Phase;
use flowline_core::time::show_duration;
use flowline_core::{Plan, RunKey, RunState, Status, Time};
use flowline_store::job::REMOTE;
use flowline_store::{JobKey, JobRow, JobState, RunRow, Store};
use serde::{Deserialize, Serialize};

use crate::drive::see;
use crate::engine::{Engine, EngineError};
use crate::plans::Plans;
use crate::position::Position;
use crate::registry::Unserved;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    #[serde(flatten)]
    pub row: RunRow,
    /// One sentence on the run as a whole.
    pub summary: String,
    pub steps: Vec<StepExplanation>,
    /// External events that the run could still take; of a machine, those that its state answers.
    pub accepts: Vec<Arc<str>>,
    /// Where a machine stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Position>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepExplanation {
    pub step: Arc<str>,
    pub state: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u32,
    /// Why it is not further; empty for a step that is done.
    pub reason: String,
    /// What its subscription lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingEvent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingEvent {
    pub event: String,
    /// Steps that would emit it.
    pub emitted_by: Vec<Arc<str>>,
    /// Whether it comes from outside.
    pub external: bool,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Explanation {
    /// Names what waits for an instance that can run it, as the one that explains can't.
    pub fn note_unserved(&mut self, engine: &Engine) {
        for step in self.steps.iter_mut().filter(|step| step.state == "queued") {
            let need = step.job.as_ref().map(|job| &*job.need);
            if let Some(need) = need.filter(|need| *need != REMOTE && !engine.serves(need)) {
                step.reason.push_str(&format!("; this instance runs no {need:?} steps"));
            }
        }
    }
}

/// Explains one run.
pub async fn explain(store: &dyn Store, plans: &Plans, run: &RunKey) -> Result<Explanation, EngineError> {
    let snapshot = store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten();
    let snapshot = snapshot.ok_or_else(|| EngineError::NoSuchRun(run.run.to_string()))?;
    let row = snapshot.row.clone();
    let seen = see(store, plans, snapshot).await?;
    let (jobs, now) = (store.jobs(run).await?, store.now().await?);
    let queues = store.queues(&run.tenant).await?;
    let paused = queues.into_iter().filter(|row| row.paused).map(|row| row.queue).collect();
    let view = View { plan: &seen.plan, state: &seen.state, jobs: &jobs, paused, now };
    if seen.plan.machine.is_some() {
        let machine = Position::read(store, run, (&seen.plan, &seen.state), &jobs).await?;
        return Ok(view.of_machine(row, machine));
    }
    let steps: Vec<StepExplanation> = (0..seen.plan.steps.len() as u32).map(|step| view.step(step)).collect();
    let accepts = match row.status.is_terminal() {
        true => Vec::new(),
        false => view.open_events(),
    };
    Ok(Explanation { summary: view.summary(&row, &steps, &accepts), row, steps, accepts, machine: None })
}

struct View<'a> {
    plan: &'a Plan,
    state: &'a RunState,
    jobs: &'a [JobRow],
    /// Queues that are paused.
    paused: BTreeSet<Arc<str>>,
    now: Time,
}

impl View<'_> {
    fn open_events(&self) -> Vec<Arc<str>> {
        let events = self.plan.events.iter().enumerate();
        events
            .filter(|(at, event)| event.accepted.is_some() && !self.state.emitted.contains(*at as u32))
            .map(|(_, event)| event.name.clone())
            .collect()
    }

    /// What there is to say of a machine: only the actions of the turn at hand matter.
    fn of_machine(&self, row: RunRow, machine: Option<Position>) -> Explanation {
        let current = self.state.machine.as_ref().and_then(|machine| machine.current.as_ref());
        let current = current.filter(|_| self.state.ended.is_none());
        let asked = current.map_or(&[][..], |current| &current.asked);
        let steps: Vec<StepExplanation> = asked.iter().map(|asked| self.action(*asked)).collect();
        let accepts = machine.iter().flat_map(|machine| &machine.accepts);
        Explanation {
            summary: self.summary_of_machine(&row, machine.as_ref(), &steps),
            accepts: accepts.map(|accepted| accepted.event.clone()).collect(),
            row,
            steps,
            machine,
        }
    }

    /// As [`View::step`], for an action of the turn at hand.
    fn action(&self, asked: Asked) -> StepExplanation {
        let mut explained = self.step(asked.action);
        if self.state.step(asked.action).phase == Phase::Idle {
            let current = self.state.machine.as_ref().and_then(|machine| machine.current.as_ref());
            let before = |other: &&Asked| {
                other.group < asked.group || self.plan.step(asked.action).after.contains(&other.action)
            };
            let open = |other: &&Asked| {
                !matches!(self.state.step(other.action).phase, Phase::Completed | Phase::Skipped)
            };
            let others = current.map_or(&[][..], |current| &current.asked).iter().filter(before).filter(open);
            let names: Vec<&str> = others.map(|other| &*self.plan.step(other.action).name).collect();
            explained.reason = format!("waits for {}", names.join(", "));
        }
        explained
    }

    fn summary_of_machine(
        &self,
        row: &RunRow,
        machine: Option<&Position>,
        steps: &[StepExplanation],
    ) -> String {
        let (Some(state), Some(machine)) = (&row.state, machine) else {
            return self.summary(row, steps, &[]);
        };
        let ended = |how: String| format!("{how} in {state}");
        let error = row.failure.as_ref().map_or("no reason kept", |failure| &failure.error);
        match row.status {
            Status::Completed => return ended("completed".to_owned()),
            Status::Failed => return format!("{}: {error}", ended("failed".to_owned())),
            Status::Cancelled => return ended("cancelled".to_owned()),
            _ => {}
        }
        let mut parts = vec![format!("in {state}")];
        if row.status == Status::Paused {
            parts.push(format!("paused (go on with: flowline resume {})", row.run_id));
        }
        let accepts: Vec<String> = machine.accepts.iter().map(ToString::to_string).collect();
        parts.push(match &accepts[..] {
            [] => "accepts no event".to_owned(),
            names => format!("accepts {}", names.join(", ")),
        });
        parts.extend(machine.timers.iter().map(ToString::to_string));
        parts.extend(machine.turn.iter().map(ToString::to_string));
        if machine.inbox > 0 {
            parts.push(format!("{} in the inbox", machine.inbox));
        }
        let open = steps.iter().filter(|step| !step.reason.is_empty());
        parts.extend(open.map(|step| format!("action {} {}: {}", step.step, step.state, step.reason)));
        parts.join("; ")
    }

    fn step(&self, step: u32) -> StepExplanation {
        let state = self.state.step(step);
        let job = self.jobs.iter().find(|job| job.key == JobKey::Step(step)).cloned();
        let mut missing = Vec::new();
        let (name, reason) = match state.phase {
            Phase::Completed => ("completed", String::new()),
            Phase::Failed => ("failed", format!("out of attempts after {}", state.attempt)),
            Phase::Skipped => ("skipped", String::new()),
            Phase::Idle if self.state.ended.is_some() => ("idle", "the run ended before".to_owned()),
            Phase::Idle => {
                missing = self.missing(step);
                ("idle", self.why_idle(&missing))
            }
            Phase::Delayed | Phase::Queued if self.state.is_dropped(step) => {
                ("dropped", "the run ended".to_owned())
            }
            Phase::Delayed | Phase::Queued => self.why_live(job.as_ref(), step),
        };
        let planned = self.plan.step(step);
        StepExplanation {
            step: planned.name.clone(),
            state: name.into(),
            attempt: state.attempt,
            reason,
            missing,
            job,
        }
    }

    /// The parts of a subscription that have not come to pass.
    fn missing(&self, step: u32) -> Vec<MissingEvent> {
        let mut missing = Vec::new();
        let leaves = self.plan.step_definition(step).subscribes.iter().flat_map(Subscribes::leaves);
        for leaf in leaves {
            match leaf {
                Subscribes::Event(name) => {
                    let Some(number) = self.plan.event_index(name) else { continue };
                    if self.state.emitted.contains(number) {
                        continue;
                    }
                    let event = &self.plan.events[number as usize];
                    let emitted_by = event.emitters.iter().map(|&s| self.plan.step(s).name.clone()).collect();
                    missing.push(MissingEvent {
                        event: name.clone(),
                        emitted_by,
                        external: event.accepted.is_some(),
                    });
                }
                Subscribes::Step(name) => {
                    let Some(other) = self.plan.step_index(name) else { continue };
                    if !self.plan.satisfied_by_step(other, self.state) {
                        let emitted_by = vec![self.plan.step(other).name.clone()];
                        missing.push(MissingEvent {
                            event: format!("step:{name}"),
                            emitted_by,
                            external: false,
                        });
                    }
                }
                Subscribes::All(_) | Subscribes::Any(_) => {}
            }
        }
        missing
    }

    fn why_idle(&self, missing: &[MissingEvent]) -> String {
        let parts: Vec<String> = missing
            .iter()
            .map(|lack| match (lack.external, lack.emitted_by.as_slice()) {
                (true, _) => format!("{} (from outside: flowline send)", lack.event),
                (false, by) => {
                    let by: Vec<String> = by.iter().map(|name| self.with_phase(name)).collect();
                    format!("{} (by {})", lack.event, by.join(" or "))
                }
            })
            .collect();
        format!("waits for {}", parts.join(", "))
    }

    /// A step's name with where it stands: an emitter that failed or was skipped will not emit any more.
    fn with_phase(&self, name: &str) -> String {
        let phase = self.plan.step_index(name).map(|step| self.state.step(step).phase);
        let note = match phase {
            Some(Phase::Failed) => ", which failed",
            Some(Phase::Skipped) => ", which was skipped",
            Some(Phase::Completed) => ", which completed without it",
            Some(Phase::Idle) => ", which has not started",
            Some(Phase::Queued | Phase::Delayed) => ", which is at work",
            None => "",
        };
        format!("{name}{note}")
    }

    fn why_live(&self, job: Option<&JobRow>, step: u32) -> (&'static str, String) {
        let Some(job) = job else {
            return ("lost", "its job is missing: run `flowline reconcile --repair`".to_owned());
        };
        let worker = job.worker.as_deref().unwrap_or("?");
        match job.state {
            JobState::Held => ("held", "the run is paused: flowline resume".to_owned()),
            JobState::Leased => {
                let since = self.ago(job.leased_at.unwrap_or(self.now));
                match job.expires {
                    Some(expires) if expires <= self.now => (
                        "lost",
                        format!(
                            "{worker} took it {since} ago and its lease ran out; the next engine to look tries it again"
                        ),
                    ),
                    Some(expires) => (
                        "running",
                        format!(
                            "leased by {worker} for {since}; lease until {expires}, renewed while it runs"
                        ),
                    ),
                    None => ("running", format!("leased by {worker} for {since}")),
                }
            }
            JobState::Waiting if job.due > self.now => {
                let left = show_duration(job.due.since(self.now));
                let what = if self.state.step(step).tries > 0 { "retry" } else { "start" };
                let stop = self.stop(job).map_or(String::new(), |stop| format!("; {stop}"));
                ("delayed", format!("{what} at {}, in {left}{stop}", job.due))
            }
            JobState::Waiting => {
                let since = self.ago(job.due);
                if let Some(stop) = self.stop(job) {
                    return ("queued", format!("ready for {since}, but {stop}"));
                }
                let queue = &job.queue;
                let remedy = match &*job.need {
                    REMOTE => format!("start a worker on queue {queue:?}"),
                    need => Unserved::remedy(need),
                };
                ("queued", format!("ready for {since} in queue {queue:?}, and nobody has taken it; {remedy}"))
            }
        }
    }

    /// Why nobody takes a job, where its queue is paused.
    fn stop(&self, job: &JobRow) -> Option<String> {
        let queue = &job.queue;
        self.paused
            .contains(queue)
            .then(|| format!("queue {queue:?} is paused: flowline queues resume {queue}"))
    }

    fn ago(&self, then: Time) -> String {
        show_duration(self.now.since(then))
    }

    fn summary(&self, row: &RunRow, steps: &[StepExplanation], accepts: &[Arc<str>]) -> String {
        let in_state = |state: &str| {
            let names: Vec<&str> = steps.iter().filter(|s| s.state == state).map(|s| &*s.step).collect();
            names.join(", ")
        };
        let error = row.failure.as_ref().map_or("no reason kept", |failure| &failure.error);
        match row.status {
            Status::Completed => "completed; there is nothing left to do".to_owned(),
            Status::Failed => format!("failed: {error}"),
            Status::Cancelled => "cancelled".to_owned(),
            Status::Paused => format!("paused; go on with: flowline resume {}", row.run_id),
            Status::Waiting if !in_state("delayed").is_empty() => {
                format!("waits until {} is due", in_state("delayed"))
            }
            Status::Waiting if !accepts.is_empty() => {
                format!(
                    "waits for an event from outside: {} (flowline send {} EVENT)",
                    accepts.join(", "),
                    row.run_id
                )
            }
            Status::Waiting => "waits, and nothing says for what: run `flowline verify`".to_owned(),
            Status::Running if !in_state("running").is_empty() => format!("{} at work", in_state("running")),
            Status::Running if !in_state("queued").is_empty() => {
                let queued = steps.iter().filter(|step| step.state == "queued");
                let mut stops = queued.map(|step| self.stop(step.job.as_ref()?));
                // One that is not stopped is what a worker can go on with.
                if let Some(Some(stop)) = stops.next()
                    && stops.all(|stop| stop.is_some())
                {
                    return format!("{} ready, but {stop}", in_state("queued"));
                }
                format!("{} ready, and no worker has taken it: flowline work", in_state("queued"))
            }
            Status::Running => "at work".to_owned(),
        }
    }
}
