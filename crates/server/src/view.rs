//! A run as people look at it: its steps with times, what it emitted, how it ended.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline::core::event::EventType;
use flowline::core::run::Phase;
use flowline::core::{Event, Json, Plan, RunKey, RunState, Status, Tenant, Time};
use flowline::position::Position;
use flowline::registry::Unserved;
use flowline::store::{
    EventQuery, JobRow, JobState, RunPage, RunRow, Store, StoreError, StoredDefinition, Total,
};
use flowline::{EngineError, Plans};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// Events read at a time: `step.completed` carries results.
const PAGE: usize = 200;

/// A list as the API writes it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Items<T> {
    pub items: Vec<T>,
}

/// A page of runs. Its JSON is the same in the API and on the command line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunList {
    pub items: Vec<RunRow>,
    pub has_more: bool,
    pub next: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_at_least: Option<u64>,
}

impl From<RunPage> for RunList {
    fn from(page: RunPage) -> RunList {
        let (total, total_at_least) = match page.total {
            Some(Total::Exact(n)) => (Some(n), None),
            Some(Total::AtLeast(n)) => (None, Some(n)),
            None => (None, None),
        };
        RunList { has_more: page.next.is_some(), items: page.items, next: page.next, total, total_at_least }
    }
}

/// A definition, and the runs of its flow by status.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowView {
    #[serde(flatten)]
    pub definition: StoredDefinition,
    pub kind: DefinitionKind,
    pub runs: BTreeMap<Status, u64>,
    /// Whether the flow takes no new runs.
    #[serde(default)]
    pub retired: bool,
    /// Steps that the server which was asked can't run. A store can't tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run_here: Vec<Unserved>,
}

/// What a definition defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefinitionKind {
    Flow,
    Machine,
}

impl DefinitionKind {
    fn of(definition: &StoredDefinition) -> DefinitionKind {
        #[derive(Deserialize)]
        struct Body {
            machine: Option<IgnoredAny>,
        }
        match serde_json::from_str(&definition.body) {
            Ok(Body { machine: Some(_) }) => DefinitionKind::Machine,
            _ => DefinitionKind::Flow,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            DefinitionKind::Flow => "flow",
            DefinitionKind::Machine => "machine",
        }
    }
}

/// Which definitions of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Versions {
    Latest,
    All,
}

impl FlowView {
    pub async fn list(
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
            let of_flow =
                counters.iter().filter(|of| of.tenant == *tenant && of.flow_name == definition.flow);
            let mut runs = BTreeMap::new();
            for counter in of_flow {
                *runs.entry(counter.status).or_default() += counter.count;
            }
            let (kind, retired) = (DefinitionKind::of(&definition), !live.contains(&definition.flow));
            FlowView { kind, definition, runs, retired, not_run_here: Vec::new() }
        };
        Ok(definitions.into_iter().map(view).collect())
    }
}

/// A run, whole. Its JSON is the same in the API and on the command line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    #[serde(flatten)]
    pub row: RunRow,
    #[serde(flatten)]
    pub parts: RunParts,
    /// Where a machine stands.
    #[serde(flatten)]
    pub machine: Option<Position>,
}

/// What is shown of a run beside its row.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunParts {
    pub steps: Vec<StepView>,
    pub jobs: Vec<JobRow>,
    /// Names of what was emitted, in the order of the definition.
    pub emitted_events: Vec<Arc<str>>,
    /// Events from outside that have not come and that a step still waits for.
    pub awaits: Vec<Arc<str>>,
    /// Of an ended run.
    pub result: Option<Json>,
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepView {
    pub name: Arc<str>,
    /// `pending`, `delayed`, `queued`, `running`, `completed`, `failed` or `skipped`; `dropped` where the run
    /// ended before.
    pub status: Cow<'static, str>,
    pub attempts: u32,
    /// The events in its input, fixed when it was triggered; none of an entry step, which gets the input of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_events: Vec<Arc<str>>,
    /// From its first `step.started` to its end.
    pub duration_ms: Option<u64>,
    /// Of its last try that failed, or why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
        let (emitted_events, awaits) = (emitted(&plan, &state), awaited(&plan, &state));
        let machine = Position::read(store, run, (&plan, &state), &jobs).await?;
        let parts = RunParts { steps, jobs, emitted_events, awaits, result, error };
        Ok(RunView { row, parts, machine })
    }

    /// Reads what [`RunView`] is written as. In two goes: one that takes row and parts apart as it reads would lose the
    /// digits of a result.
    pub fn from_json(json: &Json) -> Result<RunView, serde_json::Error> {
        let row: RunRow = json.to()?;
        let machine = if row.state.is_some() { Some(json.to()?) } else { None };
        Ok(RunView { row, parts: json.to()?, machine })
    }
}

fn emitted(plan: &Plan, state: &RunState) -> Vec<Arc<str>> {
    let events = plan.events.iter().enumerate();
    events.filter(|(at, _)| state.emitted.contains(*at as u32)).map(|(_, event)| event.name.clone()).collect()
}

/// Events from outside that would move the run on: those that steps wait for, or that a machine answers in its state.
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
