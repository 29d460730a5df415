//! One run, taken apart: its log walked, and its row and jobs held against what the log makes of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use flowline_core::ids::RunId;
use flowline_core::{Event, RunKey, Status, Time};
use flowline_store::{Failure, JobKey, JobRow, JobState, RunRow};

use crate::flow::Flow;
use crate::invariant::Invariant::{I1, I2, I6, I8, I9, I11, I12, I15, I16, I17};
use crate::violation::{Checker, Findings, Subject, Violation};
use crate::walk::{Phase, Walk};

/// A look at one run. Events come one by one, so that a long log need not be held.
#[derive(Debug)]
pub struct Look {
    run: RunKey,
    flow: Arc<Flow>,
    walk: Walk,
    found: Findings,
}

/// What a run is, by its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    pub status: Status,
    pub completed_steps: u32,
    pub failed_steps: u32,
    pub retries: u32,
    pub failure: Option<Failure>,
    pub created_at: Option<Time>,
    pub started_at: Option<Time>,
    pub completed_at: Option<Time>,
    pub events: u64,
}

impl Look {
    pub fn new(checker: Checker, row: &RunRow, flow: Arc<Flow>) -> Look {
        let run = row.key();
        let walk = Walk::new(run.clone(), row.flow_name.clone(), &flow);
        Look { run, flow, walk, found: checker.findings() }
    }

    pub fn event(&mut self, event: &Event) {
        self.walk.event(&self.flow, event, &mut self.found);
    }

    pub fn shape(&self) -> Shape {
        shape(&self.walk)
    }

    /// Holds row and jobs against the log. What was found in the log comes first.
    pub fn finish(mut self, row: &RunRow, jobs: &[JobRow]) -> Vec<Violation> {
        check_pinned(row, &self.flow, &mut self.found);
        check_row(row, &self.walk, &self.flow, &mut self.found);
        check_jobs(jobs, &self.walk, &self.flow, &mut self.found);
        self.found.of_run(&self.run)
    }
}

fn shape(walk: &Walk) -> Shape {
    Shape {
        status: walk.status(),
        completed_steps: walk.count(Phase::Completed),
        failed_steps: walk.count(Phase::Failed),
        retries: walk.retries,
        failure: walk.failure.clone(),
        created_at: walk.created_at,
        started_at: walk.started_at,
        completed_at: walk.completed_at,
        events: walk.seq,
    }
}

/// The definition has the hash that the run is pinned to, and a key has the run that it names.
pub(crate) fn check_pinned(row: &RunRow, flow: &Flow, found: &mut Findings) {
    if *row.definition != *flow.hash {
        let message = || format!("definition {} has the content of {}", row.definition, flow.hash);
        found.say(I12, Subject::Log, message);
    }
    if let Some(key) = &row.idempotency_key
        && row.run_id != RunId::from_key(&row.tenant, &row.flow_name, key)
    {
        found.say(I9, Subject::Log, || format!("idempotency key {key:?} names another run"));
    }
}

/// The row against the log.
pub(crate) fn check_row(row: &RunRow, walk: &Walk, flow: &Flow, found: &mut Findings) {
    let shape = shape(walk);
    let duration =
        shape.created_at.zip(shape.completed_at).map(|(from, to)| to.since(from).as_millis() as u64);
    let mut differ = |field: &str, same: bool, says: &dyn std::fmt::Debug, logs: &dyn std::fmt::Debug| {
        if !same {
            found.say(I6, Subject::Row, || format!("{field} is {says:?} in the row and {logs:?} by the log"));
        }
    };
    macro_rules! compare {
        ($($name:literal: $row:expr, $log:expr;)*) => {
            $(differ($name, $row == $log, &$row, &$log);)*
        };
    }
    compare! {
        "status": row.status, shape.status;
        "completedSteps": row.completed_steps, shape.completed_steps;
        "failedSteps": row.failed_steps, shape.failed_steps;
        "retries": row.retries, shape.retries;
        "stepCount": row.step_count as usize, flow.definition.steps.len();
        "createdAt": Some(row.created_at), shape.created_at;
        "startedAt": row.started_at, shape.started_at;
        "completedAt": row.completed_at, shape.completed_at;
        "duration": row.duration, duration;
        "events": row.events, shape.events;
        "failure": row.failure, shape.failure;
    }
}

/// Jobs against what the log asks for.
pub(crate) fn check_jobs(jobs: &[JobRow], walk: &Walk, flow: &Flow, found: &mut Findings) {
    let ended = walk.ended.is_some();
    if !ended && walk.seq > 0 && walk.is_spent(flow) {
        let message = || "nothing is left to do, and no terminal event says so".to_owned();
        found.say(I1, Subject::End, message);
    }
    let mut missing: BTreeSet<(usize, u32)> = walk.live().collect();
    for job in jobs {
        let (name, attempt) = (&job.name, job.attempt);
        if ended {
            let message = || format!("a job of attempt {attempt} of {name:?} is left over after the end");
            found.say(I1, Subject::Jobs, message);
            continue;
        }
        if job.state == JobState::Held && !walk.is_paused() {
            found.say(I11, Subject::Jobs, || format!("{name:?} is held, and the run is not paused"));
        }
        let JobKey::Step(step) = job.key else { continue };
        if job.state == JobState::Waiting && walk.is_paused() {
            found.say(I17, Subject::Jobs, || format!("{name:?} can be claimed, and the run is paused"));
        }
        if !missing.remove(&(step as usize, attempt)) {
            left_over(job, walk, step as usize, found);
            // A job with another number is told of once.
            let live = walk.steps.get(step as usize).map_or(0, |at| at.attempt);
            missing.remove(&(step as usize, live));
        }
    }
    for (step, attempt) in missing {
        let name = flow.name(step);
        found.say(I8, Subject::Jobs, || format!("attempt {attempt} of step {name:?} has no job"));
    }
    let timer = jobs.iter().any(|job| matches!(job.key, JobKey::Timer(_)));
    if !ended && flow.definition.timeout.is_some() && !timer {
        found.say(I8, Subject::Jobs, || "the timer of the run's time-out is missing".to_owned());
    }
}

/// A job that the log does not ask for.
fn left_over(job: &JobRow, walk: &Walk, step: usize, found: &mut Findings) {
    let (name, attempt) = (&job.name, job.attempt);
    let at = walk.steps.get(step).copied().unwrap_or_default();
    if at.is_live() {
        let message =
            || format!("step {name:?} is at attempt {}, and its job at attempt {attempt}", at.attempt);
        found.say(I2, Subject::Jobs, message);
    } else if at.phase == Phase::Completed && job.state == JobState::Leased {
        let message = || format!("attempt {attempt} of step {name:?} is leased, and the step is completed");
        found.say(I16, Subject::Jobs, message);
    } else {
        let (added, over) = (walk.added, walk.over);
        let message = || {
            format!(
                "a job of attempt {attempt} of step {name:?} is left over: {added} were added, {over} are over"
            )
        };
        found.say(I15, Subject::Jobs, message);
    }
}
