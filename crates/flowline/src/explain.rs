//! Explains why a run isn't progressing, from its state and its jobs.

use std::collections::BTreeSet;
use std::sync::Arc;

use flowline_core::definition::Subscribes;
use flowline_core::machine::Asked;
use flowline_core::run::Phase;
use flowline_core::time::show_duration;
use flowline_core::{Plan, RunKey, RunState, Status, Time};
use flowline_store::job::REMOTE;
use flowline_store::{JobKey, JobRow, JobState, RunRow, Store};

use crate::drive::see;
use crate::engine::{Engine, EngineError};
use crate::plans::Plans;
use crate::position;

pub use flowline_api::explain::{Explanation, MissingEvent, Position, StepExplanation};
use flowline_api::flows::Unserved;

/// What a subscription lacks, as it is nested.
enum Lack {
    One(MissingEvent),
    All(Vec<Lack>),
    Any(Vec<Lack>),
}

impl Lack {
    /// Adds its events to a list, each once.
    fn list(&self, missing: &mut Vec<MissingEvent>) {
        match self {
            Lack::One(event) if missing.contains(event) => {}
            Lack::One(event) => missing.push(event.clone()),
            Lack::All(parts) | Lack::Any(parts) => parts.iter().for_each(|part| part.list(missing)),
        }
    }
}

fn failed_after(attempts: u32) -> String {
    if attempts == 1 {
        "failed on its only attempt".to_owned()
    } else {
        format!("failed after {attempts} attempts")
    }
}

impl Engine {
    /// Names what waits for an instance that can run it, as this one can't.
    pub fn note_unserved(&self, explanation: &mut Explanation) {
        for step in explanation.steps.iter_mut().filter(|step| step.state == "queued") {
            let need = step.job.as_ref().map(|job| &*job.need);
            if let Some(need) = need.filter(|need| *need != REMOTE && !self.serves(need)) {
                step.reason.push_str(&format!("; this instance doesn't run {need:?} steps"));
            }
        }
    }
}

/// Explains one run: where it is, and what each step waits for.
///
/// ```no_run
/// # async fn example(engine: flowline::Engine, run: flowline::RunHandle) -> Result<(), Box<dyn std::error::Error>> {
/// use flowline::explain::explain;
///
/// let explanation = explain(engine.store(), engine.plans(), run.key()).await?;
/// for step in &explanation.steps {
///     println!("{}: {}", step.step, step.reason);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn explain(store: &dyn Store, plans: &Plans, run: &RunKey) -> Result<Explanation, EngineError> {
    let snapshot = store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten();
    let snapshot = snapshot.ok_or_else(|| EngineError::NoSuchRun(run.run.to_string()))?;
    let row = snapshot.row.clone();
    let seen = see(store, plans, snapshot).await?;
    let (jobs, now) = (store.jobs(run).await?, store.now().await?);
    let queues = store.queues(&run.tenant).await?;
    let paused = queues.into_iter().filter(|row| row.paused).map(|row| row.queue).collect();
    let view =
        View { plan: &seen.plan, state: &seen.state, jobs: &jobs, paused, now, is_shared: store.is_shared() };
    if seen.plan.machine.is_some() {
        let machine = position::read(store, run, (&seen.plan, &seen.state), &jobs).await?;
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
    /// Whether several engines can work on the store at once.
    is_shared: bool,
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

    /// Like [`View::step`], for an action of the turn at hand.
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
            explained.reason = format!("waiting for {}", names.join(", "));
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
        let error = row.failure.as_ref().map_or("no reason recorded", |failure| &failure.error);
        match row.status {
            Status::Completed => return ended("completed".to_owned()),
            Status::Failed => return format!("{}: {error}", ended("failed".to_owned())),
            Status::Cancelled => return ended("cancelled".to_owned()),
            _ => {}
        }
        let mut parts = vec![format!("in {state}")];
        if row.status == Status::Paused {
            parts.push(format!("paused (resume it with `flowline resume {}`)", row.run_id));
        }
        let accepts: Vec<String> = machine.accepts.iter().map(ToString::to_string).collect();
        parts.push(match &accepts[..] {
            [] => "accepts no events".to_owned(),
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
            Phase::Failed => ("failed", failed_after(state.attempt)),
            Phase::Skipped => ("skipped", String::new()),
            Phase::Idle if self.state.ended.is_some() => ("idle", "the run ended first".to_owned()),
            Phase::Idle => {
                let lack =
                    self.plan.step_definition(step).subscribes.as_ref().and_then(|want| self.lack(want));
                let reason = lack.as_ref().map_or_else(String::new, |lack| self.why_idle(lack));
                lack.iter().for_each(|lack| lack.list(&mut missing));
                ("idle", reason)
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

    /// The part of a subscription that isn't met yet; none if it holds.
    fn lack(&self, want: &Subscribes) -> Option<Lack> {
        match want {
            Subscribes::Event(name) => {
                let number = self.plan.event_index(name)?;
                let event = &self.plan.events[number as usize];
                (!self.state.emitted.contains(number)).then(|| {
                    Lack::One(MissingEvent {
                        event: name.clone(),
                        emitted_by: event.emitters.iter().map(|&s| self.plan.step(s).name.clone()).collect(),
                        external: event.accepted.is_some(),
                    })
                })
            }
            Subscribes::Step(name) => {
                let other = self.plan.step_index(name)?;
                (!self.plan.satisfied_by_step(other, self.state)).then(|| {
                    let emitted_by = vec![self.plan.step(other).name.clone()];
                    Lack::One(MissingEvent { event: format!("step:{name}"), emitted_by, external: false })
                })
            }
            Subscribes::All(parts) => {
                let mut lacks: Vec<Lack> = parts.iter().filter_map(|part| self.lack(part)).collect();
                match lacks.len() {
                    0 | 1 => lacks.pop(),
                    _ => Some(Lack::All(lacks)),
                }
            }
            Subscribes::Any(parts) => {
                let mut lacks: Vec<Lack> = parts.iter().map(|part| self.lack(part)).collect::<Option<_>>()?;
                match lacks.len() {
                    0 | 1 => lacks.pop(),
                    _ => Some(Lack::Any(lacks)),
                }
            }
        }
    }

    fn why_idle(&self, lack: &Lack) -> String {
        let (parts, word) = match lack {
            Lack::All(parts) => (&parts[..], ", "),
            Lack::Any(parts) => (&parts[..], " or "),
            one => (std::slice::from_ref(one), ""),
        };
        let parts: Vec<String> = parts.iter().map(|part| self.lacks(part)).collect();
        format!("waiting for {}", parts.join(word))
    }

    /// What is lacking, in words; several things in parentheses.
    fn lacks(&self, lack: &Lack) -> String {
        let joined = |parts: &[Lack], word: &str| {
            let parts: Vec<String> = parts.iter().map(|part| self.lacks(part)).collect();
            format!("({})", parts.join(word))
        };
        match lack {
            Lack::One(MissingEvent { event, external: true, .. }) => {
                format!("{event} (external, send it with `flowline send`)")
            }
            Lack::One(MissingEvent { event, emitted_by, .. }) => {
                let by: Vec<String> = emitted_by.iter().map(|name| self.with_phase(name)).collect();
                format!("{event} (from {})", by.join(" or "))
            }
            Lack::All(parts) => joined(parts, " and "),
            Lack::Any(parts) => joined(parts, " or "),
        }
    }

    /// A step's name with its phase: an emitter that failed or was skipped won't emit.
    fn with_phase(&self, name: &str) -> String {
        let phase = self.plan.step_index(name).map(|step| self.state.step(step).phase);
        let note = match phase {
            Some(Phase::Failed) => ", which failed",
            Some(Phase::Skipped) => ", which was skipped",
            Some(Phase::Completed) => ", which completed without it",
            Some(Phase::Idle) => ", which hasn't started",
            Some(Phase::Queued | Phase::Delayed) => ", which is still active",
            None => "",
        };
        format!("{name}{note}")
    }

    fn why_live(&self, job: Option<&JobRow>, step: u32) -> (&'static str, String) {
        let Some(job) = job else {
            return ("lost", "its job is missing; fix it with `flowline reconcile --repair`".to_owned());
        };
        let worker = job.worker.as_deref().unwrap_or("?");
        match job.state {
            JobState::Held => ("held", "the run is paused; resume it with `flowline resume`".to_owned()),
            JobState::Leased => {
                let since = self.ago(job.leased_at.unwrap_or(self.now));
                match job.expires {
                    Some(expires) if expires <= self.now => (
                        "lost",
                        format!(
                            "{worker} claimed it {since} ago, but its lease expired; the next engine that checks will retry it"
                        ),
                    ),
                    Some(expires) => (
                        "running",
                        format!(
                            "running on {worker} for {since}; its lease lasts until {expires} and is extended while it runs"
                        ),
                    ),
                    None => ("running", format!("running on {worker} for {since}")),
                }
            }
            JobState::Waiting if job.due > self.now => {
                let left = show_duration(job.due.since(self.now));
                let what = if self.state.step(step).tries > 0 { "retry" } else { "start" };
                let stop = self.stop(job).map_or(String::new(), |stop| format!("; {stop}"));
                ("delayed", format!("{what} due at {}, in {left}{stop}", job.due))
            }
            JobState::Waiting => {
                let since = self.ago(job.due);
                if let Some(stop) = self.stop(job) {
                    return ("queued", format!("ready for {since}, but {stop}"));
                }
                let queue = &job.queue;
                let remedy = match &*job.need {
                    REMOTE => format!("start a worker on queue {queue:?}"),
                    need => Unserved::remedy(need, self.is_shared),
                };
                (
                    "queued",
                    format!("ready for {since} in queue {queue:?}, but no worker has claimed it; {remedy}"),
                )
            }
        }
    }

    /// Why nobody claims a job, if its queue is paused.
    fn stop(&self, job: &JobRow) -> Option<String> {
        let queue = &job.queue;
        self.paused
            .contains(queue)
            .then(|| format!("queue {queue:?} is paused; resume it with `flowline queues resume {queue}`"))
    }

    fn ago(&self, then: Time) -> String {
        show_duration(self.now.since(then))
    }

    fn summary(&self, row: &RunRow, steps: &[StepExplanation], accepts: &[Arc<str>]) -> String {
        let in_state = |state: &str| {
            let names: Vec<&str> = steps.iter().filter(|s| s.state == state).map(|s| &*s.step).collect();
            names.join(", ")
        };
        let error = row.failure.as_ref().map_or("no reason recorded", |failure| &failure.error);
        match row.status {
            Status::Completed => "completed; there's nothing left to do".to_owned(),
            Status::Failed => format!("failed: {error}"),
            Status::Cancelled => "cancelled".to_owned(),
            Status::Paused => format!("paused; resume it with `flowline resume {}`", row.run_id),
            Status::Waiting if !in_state("delayed").is_empty() => {
                format!("waiting until {} is due", in_state("delayed"))
            }
            Status::Waiting if !accepts.is_empty() => {
                format!(
                    "waiting for an external event: {} (send it with `flowline send {} EVENT`)",
                    accepts.join(", "),
                    row.run_id
                )
            }
            Status::Waiting => {
                "waiting, but it isn't clear for what; check with `flowline verify`".to_owned()
            }
            Status::Running if !in_state("running").is_empty() => format!("running {}", in_state("running")),
            Status::Running if !in_state("queued").is_empty() => {
                let queued = steps.iter().filter(|step| step.state == "queued");
                let mut stops = queued.map(|step| self.stop(step.job.as_ref()?));
                // One that is not stopped is what a worker can go on with.
                if let Some(Some(stop)) = stops.next()
                    && stops.all(|stop| stop.is_some())
                {
                    return format!("{} ready, but {stop}", in_state("queued"));
                }
                format!("no worker has claimed {}; run `flowline work`", in_state("queued"))
            }
            Status::Running => "running".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use flowline_core::Plan;
    use flowline_core::definition::{Format, read};
    use flowline_core::run::Fact;

    use super::*;

    /// What `join` waits for by what it subscribes to, once these events have come: in words, and as a list.
    fn waits(subscribes: &str, events: &[&str]) -> (String, String) {
        let text = format!(
            "flow: f\naccepts: {{a: , b: , c: , d: , e: }}\nsteps:\n  s: {{function: f}}\n  \
             join: {{function: f, subscribes: {subscribes}}}\n"
        );
        let read =
            read("f.yaml", &text, Format::Yaml).unwrap_or_else(|error| panic!("{}", error.render(false)));
        let plan = Plan::build(read.definition).unwrap();
        let mut state = RunState::new(&plan);
        state.apply(&plan, Fact::Start { delayed: false, priority: Default::default() });
        for event in events {
            state.apply(&plan, Fact::Emit { event: plan.event_index(event).unwrap() });
        }
        let view = View {
            plan: &plan,
            state: &state,
            jobs: &[],
            paused: BTreeSet::new(),
            now: Time::from_millis(0),
            is_shared: true,
        };
        let explained = view.step(plan.step_index("join").unwrap());
        let missing: Vec<String> = explained.missing.into_iter().map(|missing| missing.event).collect();
        (explained.reason.replace(" (external, send it with `flowline send`)", ""), missing.join(" "))
    }

    #[test]
    fn a_nested_join_waits_for_the_parts_that_do_not_hold_yet() {
        for (subscribes, events, reason, missing) in [
            ("[{any: [a, b]}, c]", &["a"][..], "waiting for c", "c"),
            ("[{any: [a, b]}, c]", &["c"], "waiting for a or b", "a b"),
            ("[{any: [a, b]}, c]", &[], "waiting for (a or b), c", "a b c"),
            ("{any: [[a, b], c]}", &["a"], "waiting for b or c", "b c"),
            ("{any: [[a, b], c]}", &[], "waiting for (a and b) or c", "a b c"),
            ("[a, {any: [b, [c, {any: [d, e]}]]}]", &["a", "c"], "waiting for b or (d or e)", "b d e"),
            ("[a, {any: [b, [c, {any: [d, e]}]]}]", &["a", "d"], "waiting for b or c", "b c"),
            ("[a, {any: [b, [c, {any: [d, e]}]]}]", &["b"], "waiting for a", "a"),
            ("[{any: [a, b]}, {any: [a, c]}]", &[], "waiting for (a or b), (a or c)", "a b c"),
        ] {
            assert_eq!(
                waits(subscribes, events),
                (reason.to_owned(), missing.to_owned()),
                "{subscribes} {events:?}"
            );
        }
    }

    #[test]
    fn a_join_of_steps_waits_for_those_that_are_not_done() {
        let (reason, missing) = waits("[{any: ['step:s', a]}, b]", &["b"]);
        assert_eq!(reason, "waiting for step:s (from s, which is still active) or a");
        assert_eq!(missing, "step:s a");
    }
}
