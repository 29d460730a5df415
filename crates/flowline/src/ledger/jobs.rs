//! Translates jobs, timers and the index row from core's types to the store's.

use flowline_core::decide::{AddJob, Job};
use flowline_core::run::{Phase, RunState};
use flowline_core::{DecideInput, Plan};
use flowline_store::{DueTimer, Failure, Index, JobKey, Lane, NewJob};

/// The number of the run's time-out among its timers.
pub const RUN_TIMEOUT: JobKey = JobKey::Timer(0);
/// The number of a machine's delayed start among its timers.
const BEGIN: JobKey = JobKey::Timer(1);
/// Those of a machine's states follow.
const FIRST_TIMER: u32 = 2;

/// The index row's changing part, from the state.
pub fn index_of(plan: &Plan, state: &RunState, failure: Option<Failure>) -> Index {
    Index {
        state: plan.state_name(state),
        status: state.status(),
        completed_steps: state.count(Phase::Completed),
        failed_steps: state.count(Phase::Failed),
        retries: state.retries,
        failure,
    }
}

/// The timer of a machine's state that a job is.
pub fn timer_of(key: JobKey) -> Option<u32> {
    match key {
        JobKey::Timer(number) => number.checked_sub(FIRST_TIMER),
        JobKey::Step(_) => None,
    }
}

/// The key that the store knows a job by.
pub fn job_key(job: Job) -> JobKey {
    match job {
        Job::Step(step) => JobKey::Step(step),
        Job::RunTimeout => RUN_TIMEOUT,
        Job::Begin => BEGIN,
        Job::Timer(timer) => JobKey::Timer(FIRST_TIMER + timer),
    }
}

/// What a timer that is due means to its run.
pub fn timer_input(timer: &DueTimer) -> DecideInput {
    match timer.key {
        BEGIN => DecideInput::Begin,
        JobKey::Timer(n) if n >= FIRST_TIMER => {
            DecideInput::TimerDue { timer: n - FIRST_TIMER, number: timer.attempt, due: timer.due }
        }
        _ => DecideInput::TimedOut,
    }
}

/// The store's view of a job that a decision asks for.
pub fn new_job(plan: &Plan, add: &AddJob) -> NewJob {
    let timers = || Lane { queue: "timers".into(), need: "timer".into() };
    let (name, lane) = match add.job {
        Job::Step(step) => {
            let planned = plan.step(step);
            (planned.name.clone(), Lane { queue: planned.queue.clone(), need: planned.need.clone() })
        }
        Job::RunTimeout => ("timeout".into(), timers()),
        Job::Begin => ("begin".into(), timers()),
        Job::Timer(timer) => (plan.timer_name(timer), timers()),
    };
    let key = job_key(add.job);
    let AddJob { attempt, priority, due, held, .. } = *add;
    NewJob { key, name, attempt, lane, priority, due, held, handoff: None }
}
