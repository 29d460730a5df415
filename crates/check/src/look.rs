//! Checks one run: walks its log, and compares its row and jobs with the result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_core::ids::RunId;
use flowline_core::{Event, RunKey, Status, Time};
use flowline_store::{Failure, JobKey, JobRow, JobState, Receipt, ReceiptStatus, RunRow, StateValue};

use crate::Invariant::{I1, I2, I5, I6, I8, I9, I11, I12, I15, I16, I17, I18};
use crate::flow::FlowMap;
use crate::violation::{Checker, Findings, Subject, Violation};
use crate::walk::{KnownValue, StepPhase, Walk};

/// The timer for a run's timeout.
const RUN_TIMEOUT: JobKey = JobKey::Timer(0);
/// The delayed start of a machine.
const BEGIN: JobKey = JobKey::Timer(1);
/// The timers of a machine's states follow.
const FIRST_TIMER: u32 = 2;

/// The check of one run. Events come one by one, so that a long log doesn't have to fit into memory.
#[derive(Debug)]
pub struct RunCheck {
    run: RunKey,
    flow: Arc<FlowMap>,
    walk: Walk,
    found: Findings,
}

/// What a run looks like according to its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunShape {
    pub status: Status,
    /// The state that a machine is in.
    pub state: Option<Arc<str>>,
    /// The timers that a machine has set: which one, the number it was set under, and when it's due.
    pub timers: Vec<(u32, u32, Time)>,
    /// When a machine enters its first state, if it hasn't yet.
    pub begins_at: Option<Time>,
    pub completed_steps: u32,
    pub failed_steps: u32,
    pub retries: u32,
    pub failure: Option<Failure>,
    pub created_at: Option<Time>,
    pub started_at: Option<Time>,
    pub completed_at: Option<Time>,
    pub events: u64,
}

impl RunCheck {
    pub fn new(checker: Checker, row: &RunRow, flow: Arc<FlowMap>) -> RunCheck {
        let run = row.key();
        let walk = Walk::new(run.clone(), row.flow_name.clone(), &flow);
        RunCheck { run, flow, walk, found: checker.findings() }
    }

    pub fn event(&mut self, event: &Event) {
        self.walk.event(&self.flow, event, &mut self.found);
    }

    /// Compares receipts with the log.
    pub fn receipts(&mut self, receipts: &[Receipt]) {
        check_receipts(receipts, &self.walk, &mut self.found);
    }

    /// Compares all of the run's own key-value state with the log.
    pub fn state(&mut self, values: &[StateValue]) {
        check_state(values, &self.walk, &self.flow, &mut self.found);
    }

    pub fn shape(&self) -> RunShape {
        shape(&self.walk, &self.flow)
    }

    /// Compares row and jobs with the log. Findings about the log itself come first.
    pub fn finish(mut self, row: &RunRow, jobs: &[JobRow]) -> Vec<Violation> {
        check_pinned(row, &self.flow, &mut self.found);
        check_row(row, &self.walk, &self.flow, &mut self.found);
        check_jobs(jobs, &self.walk, &self.flow, &mut self.found);
        self.found.of_run(&self.run)
    }
}

fn shape(walk: &Walk, flow: &FlowMap) -> RunShape {
    let machine = walk.machine.as_ref();
    RunShape {
        state: machine.and_then(|machine| machine.state_name(flow)).map(Into::into),
        timers: walk.timers().collect(),
        begins_at: walk.begins_at.filter(|_| walk.has_not_begun()),
        status: walk.status(),
        completed_steps: walk.count(StepPhase::Completed),
        failed_steps: walk.count(StepPhase::Failed),
        retries: walk.retries,
        failure: walk.failure.clone(),
        created_at: walk.created_at,
        // A run that ended before any step started counts from its own start.
        started_at: walk.started_at.or(walk.completed_at.and(walk.created_at)),
        completed_at: walk.completed_at,
        events: walk.seq,
    }
}

/// Checks that the definition has the hash the run is pinned to, and that an idempotency key belongs to this run.
pub(crate) fn check_pinned(row: &RunRow, flow: &FlowMap, found: &mut Findings) {
    if *row.definition != *flow.hash {
        found.log(I12, format!("the content of definition {} has the hash {}", row.definition, flow.hash));
    }
    let says = flow.definition.retain;
    if row.retain != says {
        found.log(I12, format!("retain is {:?} in the row, but {says:?} in the definition", row.retain));
    }
    if let Some(key) = &row.idempotency_key
        && row.run_id != RunId::from_key(&row.tenant, &row.flow_name, key)
        && row.run_id != RunId::from_user_key(&row.tenant, &row.flow_name, key)
    {
        found.log(I9, format!("idempotency key {key:?} belongs to another run"));
    }
}

/// Compares the row with the log.
pub(crate) fn check_row(row: &RunRow, walk: &Walk, flow: &FlowMap, found: &mut Findings) {
    let shape = shape(walk, flow);
    let duration =
        shape.created_at.zip(shape.completed_at).map(|(from, to)| to.since(from).as_millis() as u64);
    let mut differ = |field: &str, same: bool, says: &dyn std::fmt::Debug, logs: &dyn std::fmt::Debug| {
        if !same {
            let message = format!("{field} is {says:?} in the row, but {logs:?} according to the log");
            found.say(I6, Subject::Row, message);
        }
    };
    macro_rules! compare {
        ($($name:literal: $row:expr, $log:expr;)*) => {
            $(differ($name, $row == $log, &$row, &$log);)*
        };
    }
    compare! {
        "status": row.status, shape.status;
        "state": row.state, shape.state;
        "completedSteps": row.completed_steps, shape.completed_steps;
        "failedSteps": row.failed_steps, shape.failed_steps;
        "retries": row.retries, shape.retries;
        "stepCount": row.step_count as usize, flow.definition.steps.len();
        "createdAt": Some(row.created_at), shape.created_at;
        "completedAt": row.completed_at, shape.completed_at;
        "duration": row.duration, duration;
        "events": row.events, shape.events;
        "failure": row.failure, shape.failure;
    }
    let started = [shape.started_at, walk.started_line].contains(&row.started_at);
    differ("startedAt", started, &row.started_at, &shape.started_at);
}

/// Compares jobs with what the log asks for.
pub(crate) fn check_jobs(jobs: &[JobRow], walk: &Walk, flow: &FlowMap, found: &mut Findings) {
    let ended = walk.ended.is_some();
    if !ended && walk.seq > 0 && walk.is_spent(flow) {
        found.say(I1, Subject::End, "nothing is left to do, but there's no terminal event");
    }
    let mut missing: BTreeSet<(usize, u32)> = walk.live().collect();
    for job in jobs {
        let (name, attempt) = (&job.name, job.attempt);
        if ended {
            let message =
                format!("a job of attempt {attempt} of {name:?} is left over after the end of the run");
            found.jobs(I1, message);
            continue;
        }
        if job.state == JobState::Held && !walk.is_paused() {
            found.jobs(I11, format!("{name:?} is held, but the run isn't paused"));
        }
        let JobKey::Step(step) = job.key else { continue };
        if job.state == JobState::Waiting && walk.is_paused() {
            found.jobs(I17, format!("{name:?} can be claimed, but the run is paused"));
        }
        if !missing.remove(&(step as usize, attempt)) {
            left_over(job, walk, step as usize, found);
            // A job with another number is reported only once.
            let live = walk.steps.get(step as usize).map_or(0, |at| at.attempt);
            missing.remove(&(step as usize, live));
        }
    }
    for (step, attempt) in missing {
        let name = flow.name(step);
        found.jobs(I8, format!("attempt {attempt} of step {name:?} has no job"));
    }
    check_timers(jobs, walk, flow, found);
    let timer = jobs.iter().any(|job| job.key == RUN_TIMEOUT);
    if !ended && flow.definition.timeout.is_some() && !timer {
        found.jobs(I8, "the timer for the run's timeout is missing");
    }
}

/// Compares the jobs of a machine's timers with the timers that the log has set.
fn check_timers(jobs: &[JobRow], walk: &Walk, flow: &FlowMap, found: &mut Findings) {
    if walk.ended.is_some() {
        return;
    }
    if walk.keeps_waiting() {
        found.log(I5, "an event or a timer is waiting although the machine is idle");
    }
    if let Some(action) = walk.dropped() {
        let name = flow.name(action);
        let message = format!(
            "action {name:?} was triggered and isn't running, but the log doesn't say what happened to it"
        );
        found.log(I18, message);
    }
    let mut missing: BTreeMap<JobKey, (u32, Option<Time>)> = walk
        .timers()
        .map(|(timer, number, due)| (JobKey::Timer(FIRST_TIMER + timer), (number, Some(due))))
        .collect();
    missing.extend(walk.has_not_begun().then_some((BEGIN, (1, walk.begins_at))));
    for job in jobs.iter().filter(|job| matches!(job.key, JobKey::Timer(_)) && job.key != RUN_TIMEOUT) {
        let (name, key, attempt) = (&job.name, job.key, job.attempt);
        let asked = missing.remove(&job.key);
        if asked.is_none_or(|(number, due)| number != attempt || due.is_some_and(|due| due != job.due)) {
            let message =
                format!("timer {key:?} of {name:?} has job number {attempt}, but the log asks for {asked:?}");
            found.jobs(I15, message);
        }
        if job.state == JobState::Waiting && walk.is_paused() {
            found.jobs(I17, format!("timer {key:?} can fire, but the run is paused"));
        }
    }
    for key in missing.keys() {
        found.jobs(I8, format!("timer {key:?} is set, but has no job"));
    }
}

/// Compares receipts with what the log says about each event.
pub(crate) fn check_receipts(receipts: &[Receipt], walk: &Walk, found: &mut Findings) {
    let mut asked: BTreeMap<u32, ReceiptStatus> = walk.receipts().collect();
    for receipt in receipts {
        let (number, says) = (receipt.number, receipt.status);
        let logs = asked.remove(&number);
        if logs != Some(says) {
            let message = format!("the receipt of event {number} says {says:?}, but the log says {logs:?}");
            found.say(I6, Subject::Receipts, message);
        }
        let id = walk.machine.as_ref().and_then(|machine| machine.ids.get(&number));
        if id.is_none_or(|id| *id != *receipt.event_id) {
            let message = format!(
                "the receipt of event {number} has the id {:?}, but the log has {id:?}",
                receipt.event_id
            );
            found.say(I6, Subject::Receipts, message);
        }
        let dated = (receipt.started_at.is_some(), receipt.completed_at.is_some());
        if dated != (says.is_started(), says.is_end()) {
            let message = format!(
                "the receipt of event {number} is {says:?}, but started and completed are set as {dated:?}"
            );
            found.say(I6, Subject::Receipts, message);
        }
    }
    for number in asked.keys() {
        found.say(I6, Subject::Receipts, format!("event {number} was accepted, but has no receipt"));
    }
}

/// Compares the run's own key-value state with the lines that wrote it. A value with a time to live may be gone by now; while
/// it's there, it must be the last one written and must not outlive its time.
pub(crate) fn check_state(values: &[StateValue], walk: &Walk, flow: &FlowMap, found: &mut Findings) {
    let cleared = walk.ended.is_some() && flow.clears_state();
    let mut asked: BTreeMap<&str, &KnownValue> = match cleared {
        true => BTreeMap::new(),
        false => walk.values.iter().map(|(key, value)| (key.as_str(), value)).collect(),
    };
    for value in values {
        let (key, stored) = (&value.key, KnownValue::of(value));
        let wrong = match asked.remove(key.as_str()) {
            None if cleared => "is left over after the end of the run",
            None => "is set, but no line of the log set it",
            Some(logged) if logged.digest != stored.digest => "isn't what the log set it to",
            Some(logged) if logged.expires.is_none() != stored.expires.is_none() => {
                "has a time to live in the store or in the log, but not in both"
            }
            Some(logged) if stored.expires > logged.expires => "expires later than the log says",
            Some(_) => continue,
        };
        found.say(I6, Subject::State, format!("state {key:?} {wrong}"));
    }
    for (key, _) in asked.iter().filter(|(_, logged)| logged.expires.is_none()) {
        found.say(I6, Subject::State, format!("state {key:?} is set according to the log, but is missing"));
    }
}

/// A job that the log doesn't ask for.
fn left_over(job: &JobRow, walk: &Walk, step: usize, found: &mut Findings) {
    let (name, attempt) = (&job.name, job.attempt);
    let at = walk.steps.get(step).copied().unwrap_or_default();
    if at.is_live() {
        let message =
            format!("step {name:?} is at attempt {}, but its job is at attempt {attempt}", at.attempt);
        found.jobs(I2, message);
    } else if at.phase == StepPhase::Completed && job.state == JobState::Leased {
        found.jobs(I16, format!("attempt {attempt} of step {name:?} is leased, but the step is completed"));
    } else {
        let (added, over) = (walk.added, walk.over);
        let message = format!(
            "a job of attempt {attempt} of step {name:?} is left over: {added} were added, {over} have ended"
        );
        found.jobs(I15, message);
    }
}
