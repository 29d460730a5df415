//! A run as people look at it: its steps with times, what it emitted, how it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline::core::event::EventType;
use flowline::core::run::Phase;
use flowline::core::{Event, Json, Plan, RunKey, RunState, Status, Tenant, Time};
use flowline::position;
use flowline::store::{
    Document, EventQuery, JobRow, JobState, RunPage, RunRow, Store, StoreError, StoredDefinition, Total,
};
use flowline::{Engine, EngineError, Plans, RunHandle, StartRequest};
use flowline_api::flows::{DefinitionKind, FlowView};
use flowline_api::runs::{RunList, RunParts, RunStart, RunView, Started, StepView};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// Events read at a time: `step.completed` carries results.
const PAGE: usize = 200;

/// A request to start a run, with what the API takes beside flow and input.
pub fn start_request(mut request: StartRequest, start: RunStart) -> StartRequest {
    if let Some(key) = start.idempotency_key {
        request = request.idempotency_key(key);
    }
    for (name, value) in start.labels {
        request = request.label(name, value);
    }
    request.priority(start.priority).delay(start.delay)
}

/// A run that was started.
pub async fn started(engine: &Engine, handle: &RunHandle) -> Result<Started, EngineError> {
    let status = match handle.started_as() {
        Some(status) => status,
        None => engine.row(handle.key()).await?.status,
    };
    let (run_id, existed) = (handle.id().clone(), handle.existed());
    Ok(Started { run_id, existed, status, result: None, error: None })
}

/// What a list says of its total: how many there are, or at least how many.
pub fn totals(total: Option<Total>) -> (Option<u64>, Option<u64>) {
    match total {
        Some(Total::Exact(n)) => (Some(n), None),
        Some(Total::AtLeast(n)) => (None, Some(n)),
        None => (None, None),
    }
}

pub fn run_list(page: RunPage) -> RunList {
    let (total, total_at_least) = totals(page.total);
    RunList { has_more: page.next.is_some(), items: page.items, next: page.next, total, total_at_least }
}

/// Reads the bodies of documents.
pub fn read_documents<T: DeserializeOwned>(documents: Vec<Document>) -> Result<Vec<T>, StoreError> {
    let read = |document: Document| {
        let damaged = |error| StoreError::Damaged(format!("document {}: {error}", document.id));
        document.body.to().map_err(damaged)
    };
    documents.into_iter().map(read).collect()
}

fn kind_of(definition: &StoredDefinition) -> DefinitionKind {
    #[derive(Deserialize)]
    struct Body {
        machine: Option<IgnoredAny>,
    }
    match serde_json::from_str(&definition.body) {
        Ok(Body { machine: Some(_) }) => DefinitionKind::Machine,
        _ => DefinitionKind::Flow,
    }
}

/// Which definitions of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versions {
    Latest,
    All,
}

/// Definitions, each with the runs of its flow by status.
pub async fn read_flows(
    store: &dyn Store,
    tenant: &Tenant,
    versions: Versions,
) -> Result<Vec<FlowView>, StoreError> {
    let mut definitions = store.definitions(tenant).await?;
    let live: BTreeSet<Arc<str>> =
        definitions.iter().filter(|one| one.latest).map(|one| one.flow.clone()).collect();
    if versions == Versions::Latest {
        // A retired flow is shown by its newest definition, which stands first.
        let mut last = None;
        definitions.retain(|one| {
            let first = last.replace(one.flow.clone()) != Some(one.flow.clone());
            one.latest || first && !live.contains(&one.flow)
        });
    }
    let counters = store.counters().await?;
    let view = |definition: StoredDefinition| {
        let of_flow = counters.iter().filter(|of| of.tenant == *tenant && of.flow_name == definition.flow);
        let mut runs = BTreeMap::new();
        for counter in of_flow {
            *runs.entry(counter.status).or_default() += counter.count;
        }
        let (kind, retired) = (Some(kind_of(&definition)), Some(!live.contains(&definition.flow)));
        FlowView { kind, definition, runs: Some(runs), retired, not_run_here: Vec::new() }
    };
    Ok(definitions.into_iter().map(view).collect())
}

/// The members of an event's `data` that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EventData {
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

impl EventData {
    pub fn of(event: &Event) -> EventData {
        event.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default()
    }
}

/// Reads a run. The log may move on meanwhile; what is shown is what was committed when each part was read.
pub async fn read_run(store: &dyn Store, plans: &Plans, run: &RunKey) -> Result<RunView, EngineError> {
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
    let (emitted_events, awaits) = (emitted(&plan, &state), awaited(&plan, &state));
    let machine = position::read(store, run, (&plan, &state), &jobs).await?;
    let parts = RunParts { steps, jobs, emitted_events, awaits, result, error };
    Ok(RunView { row, parts, machine })
}

fn emitted(plan: &Plan, state: &RunState) -> Vec<Arc<str>> {
    let events = plan.events.iter().enumerate();
    events.filter(|(at, _)| state.emitted.contains(*at as u32)).map(|(_, event)| event.name.clone()).collect()
}

/// External events that would move the run forward: those that steps wait for, or that a machine accepts in its state.
fn awaited(plan: &Plan, state: &RunState) -> Vec<Arc<str>> {
    if let (Some(machine), Some(now)) = (&plan.machine, &state.machine) {
        let answers = machine.state(now.state).on.keys();
        return answers.map(|&event| plan.events[event as usize].name.clone()).collect();
    }
    let idle = |step: &u32| state.step(*step).phase == Phase::Idle;
    let events = plan.events.iter().enumerate();
    events
        .filter(|(at, event)| {
            event.accepted.is_some()
                && !state.emitted.contains(*at as u32)
                && event.listeners.iter().any(idle)
        })
        .map(|(_, event)| event.name.clone())
        .collect()
}

/// The result of a completed run, or why it didn't complete.
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
    let data = last.map(|event| EventData::of(&event)).unwrap_or_default();
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
            EventType::StepRetry => times.error = EventData::of(event).error,
            EventType::StepFailed => {
                (times.ended, times.error) = (Some(event.ts), EventData::of(event).error)
            }
            EventType::StepSkipped => times.error = EventData::of(event).reason,
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
                status: status.into(),
                attempts: now.attempt,
                input_events: match now.phase {
                    Phase::Idle => Vec::new(),
                    _ => state
                        .given(plan, at as u32)
                        .map(|event| plan.events[event as usize].name.clone())
                        .collect(),
                },
                duration_ms: times.and_then(|t| Some(t.ended?.since(t.started?).as_millis() as u64)),
                error: times.and_then(|t| t.error.clone()),
            }
        };
        plan.steps.iter().enumerate().map(view).collect()
    }
}
