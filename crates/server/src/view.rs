//! A run as people look at it: its steps with times, what it emitted, how it ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline::EngineError;
use flowline::core::event::EventType;
use flowline::core::run::Phase;
use flowline::core::{Event, Json, Plan, RunKey, RunState, Status, Time};
use flowline::plans::Plans;
use flowline::store::{EventQuery, JobRow, JobState, RunRow, Store, StoreError};
use serde::{Deserialize, Serialize};

/// Events read at a time: `step.completed` carries results.
const PAGE: usize = 200;

#[derive(Debug)]
pub struct RunView {
    pub row: RunRow,
    pub plan: Arc<Plan>,
    pub state: RunState,
    pub jobs: Vec<JobRow>,
    pub steps: Vec<StepView>,
    /// Of an ended run.
    pub result: Option<Json>,
    pub error: Option<String>,
}

/// A run as it is written for machines.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown<'a> {
    #[serde(flatten)]
    row: &'a RunRow,
    steps: &'a [StepView],
    jobs: &'a [JobRow],
    emitted_events: Vec<&'a str>,
    awaits: Vec<&'a str>,
    result: Option<&'a Json>,
    error: Option<&'a str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepView {
    pub name: Arc<str>,
    /// `pending`, `delayed`, `queued`, `running`, `completed`, `failed` or `skipped`; `dropped` where the run
    /// ended before.
    pub status: &'static str,
    pub attempts: u32,
    /// From its first `step.started` to its end.
    pub duration_ms: Option<u64>,
    #[serde(skip)]
    pub error: Option<String>,
}

/// The members of an event's `data` that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Data {
    pub name: Option<String>,
    pub error: Option<String>,
    pub code: Option<String>,
    pub reason: Option<String>,
    pub level: Option<String>,
    pub message: Option<String>,
    pub operation: Option<String>,
    pub scope: Option<String>,
    pub key: Option<String>,
    pub result: Option<Json>,
    pub payload: Option<Json>,
    pub input: Option<Json>,
    pub duration: Option<u64>,
    pub delay_ms: Option<u64>,
    pub inherited: bool,
}

impl Data {
    pub fn of(event: &Event) -> Data {
        event.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default()
    }
}

impl RunView {
    /// Reads a run. The log may move on meanwhile; what is shown is what was committed when each part was read.
    pub async fn read(store: &dyn Store, plans: &Plans, run: &RunKey) -> Result<RunView, EngineError> {
        let found = store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten();
        let snapshot = found.ok_or_else(|| EngineError::NoSuchRun(run.run.to_string()))?;
        let row = snapshot.row;
        let plan = plans.get(store, &row.tenant, &row.definition).await?;
        let state = RunState::decode(&plan, &snapshot.state)
            .map_err(|error| StoreError::Damaged(format!("the state of run {}: {error}", row.run_id)))?;
        let jobs = store.jobs(run).await?;
        let log = StepLog::read(store, run).await?;
        let steps = log.steps(&plan, &state, &jobs);
        let (result, error) = ending(store, run, &row).await?;
        Ok(RunView { row, plan, state, jobs, steps, result, error })
    }

    /// The run as JSON, in the API and on the command line alike.
    pub fn shown(&self) -> Shown<'_> {
        Shown {
            row: &self.row,
            steps: &self.steps,
            jobs: &self.jobs,
            emitted_events: self.emitted(),
            awaits: self.awaited(),
            result: self.result.as_ref(),
            error: self.error.as_deref(),
        }
    }

    /// Names of what was emitted, in the order of the definition.
    pub fn emitted(&self) -> Vec<&str> {
        let events = self.plan.events.iter().enumerate();
        events
            .filter(|(at, _)| self.state.emitted.contains(*at as u32))
            .map(|(_, event)| &*event.name)
            .collect()
    }

    /// Events from outside that have not come and that a step still waits for.
    pub fn awaited(&self) -> Vec<&str> {
        let idle = |step: &u32| self.state.step(*step).phase == Phase::Idle;
        let events = self.plan.events.iter().enumerate();
        events
            .filter(|(at, event)| {
                event.accepted.is_some()
                    && !self.state.emitted.contains(*at as u32)
                    && event.listeners.iter().any(idle)
            })
            .map(|(_, event)| &*event.name)
            .collect()
    }
}

/// The result of a completed run, or why it did not complete.
async fn ending(
    store: &dyn Store,
    run: &RunKey,
    row: &RunRow,
) -> Result<(Option<Json>, Option<String>), StoreError> {
    let failure = row.failure.as_ref().map(|failure| failure.error.clone());
    if !row.status.is_terminal() || row.events_trimmed {
        return Ok((None, failure));
    }
    let query = EventQuery { after: row.events.saturating_sub(1), limit: 1, ..EventQuery::default() };
    let last = store.events(run, query).await?.events.pop();
    let data = last.map(|event| Data::of(&event)).unwrap_or_default();
    let result = if row.status == Status::Completed { data.result } else { None };
    Ok((result, data.error.or(failure).or(data.reason)))
}

/// When each step started and ended, from the log.
#[derive(Debug, Default)]
struct StepLog {
    times: BTreeMap<Arc<str>, Times>,
}

#[derive(Debug, Default)]
struct Times {
    started: Option<Time>,
    ended: Option<Time>,
    error: Option<String>,
}

impl StepLog {
    async fn read(store: &dyn Store, run: &RunKey) -> Result<StepLog, StoreError> {
        let kinds = vec![
            EventType::StepStarted,
            EventType::StepCompleted,
            EventType::StepRetry,
            EventType::StepFailed,
            EventType::StepSkipped,
        ];
        let mut query = EventQuery { kinds, limit: PAGE, ..EventQuery::default() };
        let mut log = StepLog::default();
        loop {
            let page = store.events(run, query.clone()).await?;
            page.events.iter().for_each(|event| log.note(event));
            match page.events.last() {
                Some(last) if page.more => query.after = last.seq,
                _ => return Ok(log),
            }
        }
    }

    fn note(&mut self, event: &Event) {
        let Some(step) = &event.step_name else { return };
        let times = self.times.entry(step.clone()).or_default();
        match event.kind {
            EventType::StepStarted => drop(times.started.get_or_insert(event.began())),
            EventType::StepRetry => times.error = Data::of(event).error,
            EventType::StepFailed => (times.ended, times.error) = (Some(event.ts), Data::of(event).error),
            EventType::StepSkipped => times.error = Data::of(event).reason,
            _ => (times.ended, times.error) = (Some(event.ts), None),
        }
    }

    fn steps(&self, plan: &Plan, state: &RunState, jobs: &[JobRow]) -> Vec<StepView> {
        let leased = |name: &str| jobs.iter().any(|job| &*job.name == name && job.state == JobState::Leased);
        let view = |(at, step): (usize, &flowline::core::plan::PlanStep)| {
            let now = state.step(at as u32);
            let times = self.times.get(&step.name);
            let status = match now.phase {
                _ if state.is_dropped(at as u32) => "dropped",
                _ if now.is_live() && leased(&step.name) => "running",
                Phase::Idle => "pending",
                Phase::Delayed => "delayed",
                Phase::Queued => "queued",
                Phase::Completed => "completed",
                Phase::Failed => "failed",
                Phase::Skipped => "skipped",
            };
            StepView {
                name: step.name.clone(),
                status,
                attempts: now.attempt,
                duration_ms: times.and_then(|t| Some(t.ended?.since(t.started?).as_millis() as u64)),
                error: times.and_then(|t| t.error.clone()),
            }
        };
        plan.steps.iter().enumerate().map(view).collect()
    }
}
