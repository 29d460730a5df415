//! Stats: how many runs and steps there were, how they ended, and how long they took.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::event::EventType;
use flowline_core::{Status, Tenant, Time};
use flowline_store::query::WantTotal;
use flowline_store::{EventQuery, RunQuery, RunRow, Store, StoreError};
use serde::{Deserialize, Serialize};

/// What to count.
#[derive(Debug, Clone)]
pub struct Question {
    pub tenant: Tenant,
    pub flow: Option<String>,
    /// Runs created at or after.
    pub since: Option<Time>,
    /// Width of the time buckets.
    pub bucket: Duration,
    /// Also look into the logs, for the durations of steps.
    pub steps: Depth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    Runs,
    Steps,
}

/// Runs whose logs are read for the durations of steps; the newest.
pub const STEP_RUNS: u64 = 5_000;
/// Buckets in an answer; beyond it the question is too fine.
pub const BUCKETS: usize = 1_000;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    pub total: Summary,
    pub flows: BTreeMap<Arc<str>, Summary>,
    pub buckets: Vec<Bucket>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, StepSummary>,
    /// Whether the step figures come from the newest runs only.
    pub steps_sampled: bool,
}

/// Runs by status, and how long the ended ones took.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub runs: u64,
    pub by_status: BTreeMap<Status, u64>,
    /// Of the runs of one machine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_state: BTreeMap<Arc<str>, u64>,
    /// Completed among completed and failed; absent before any.
    pub success_rate: Option<f64>,
    pub duration_ms: Percentiles,
    pub retries: u64,
    #[serde(skip)]
    durations: Vec<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    pub start: Time,
    #[serde(flatten)]
    pub summary: Summary,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepSummary {
    pub completed: u64,
    pub failed: u64,
    pub retried: u64,
    pub duration_ms: Percentiles,
    #[serde(skip)]
    durations: Vec<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: Option<u64>,
    pub p95: Option<u64>,
    pub p99: Option<u64>,
}

impl Percentiles {
    /// Nearest-rank percentiles of a sample.
    pub fn of(sample: &mut [u64]) -> Percentiles {
        sample.sort_unstable();
        let at = |percent: usize| {
            let rank = (sample.len() * percent).div_ceil(100).max(1);
            sample.get(rank - 1).copied()
        };
        Percentiles { p50: at(50), p95: at(95), p99: at(99) }
    }
}

impl Summary {
    fn add(&mut self, row: &RunRow) {
        self.runs += 1;
        *self.by_status.entry(row.status).or_default() += 1;
        self.retries += u64::from(row.retries);
        self.durations.extend(row.duration);
    }

    fn finish(&mut self) {
        let count = |status| self.by_status.get(&status).copied().unwrap_or(0);
        let (good, bad) = (count(Status::Completed), count(Status::Failed));
        self.success_rate = (good + bad > 0).then(|| good as f64 / (good + bad) as f64);
        self.duration_ms = Percentiles::of(&mut self.durations);
        self.durations = Vec::new();
    }
}

/// What is wrong with a bucket that holds no time.
pub const NO_WIDTH: &str = "a time bucket is 1ms wide or wider";

/// Counts. Cost is linear in the runs that the question covers.
///
/// ```no_run
/// # async fn example(engine: flowline::Engine) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use flowline::stats::{Depth, Question, stats};
///
/// let question = Question {
///     tenant: engine.tenant().clone(),
///     flow: Some("fulfil-order".to_owned()),
///     since: None,
///     bucket: Duration::from_secs(3600),
///     steps: Depth::Runs,
/// };
/// println!("{:?}", stats(engine.store(), &question).await?.total);
/// # Ok(())
/// # }
/// ```
pub async fn stats(store: &dyn Store, question: &Question) -> Result<Stats, StoreError> {
    if question.bucket < Duration::from_millis(1) {
        return Err(StoreError::Invalid(NO_WIDTH.to_owned()));
    }
    let mut stats = Stats {
        total: Summary::default(),
        flows: BTreeMap::new(),
        buckets: Vec::new(),
        steps: BTreeMap::new(),
        steps_sampled: false,
    };
    let mut buckets: BTreeMap<i64, Summary> = BTreeMap::new();
    let width = question.bucket.as_millis() as i64;
    let mut query = RunQuery {
        flow: question.flow.clone(),
        since: question.since,
        limit: 500,
        total: WantTotal::No,
        ..RunQuery::of(question.tenant.clone())
    };
    loop {
        let page = store.runs(query.clone()).await?;
        for row in &page.items {
            stats.total.add(row);
            let flow = stats.flows.entry(row.flow_name.clone()).or_default();
            flow.add(row);
            if let Some(state) = &row.state {
                *flow.by_state.entry(state.clone()).or_default() += 1;
            }
            buckets.entry(row.created_at.millis().div_euclid(width)).or_default().add(row);
            if buckets.len() > BUCKETS {
                let text = format!("more than {BUCKETS} time buckets; choose wider ones or a shorter time");
                return Err(StoreError::Invalid(text));
            }
            match (question.steps, stats.total.runs > STEP_RUNS) {
                (Depth::Steps, false) if !row.events_trimmed => {
                    add_steps(store, row, &mut stats.steps).await?
                }
                (Depth::Steps, true) => stats.steps_sampled = true,
                _ => {}
            }
        }
        match page.next {
            Some(next) => query.cursor = Some(next),
            None => break,
        }
    }
    stats.total.finish();
    stats.flows.values_mut().for_each(Summary::finish);
    for step in stats.steps.values_mut() {
        step.duration_ms = Percentiles::of(&mut step.durations);
        step.durations = Vec::new();
    }
    stats.buckets = buckets
        .into_iter()
        .map(|(number, mut summary)| {
            summary.finish();
            Bucket { start: Time::from_millis(number * width), summary }
        })
        .collect();
    Ok(stats)
}

/// Adds the attempts of one run, by `flow/step`.
async fn add_steps(
    store: &dyn Store,
    row: &RunRow,
    steps: &mut BTreeMap<String, StepSummary>,
) -> Result<(), StoreError> {
    let kinds =
        vec![EventType::StepStarted, EventType::StepCompleted, EventType::StepRetry, EventType::StepFailed];
    let mut query = EventQuery { kinds, ..EventQuery::default() };
    let mut started: BTreeMap<(Arc<str>, u32), Time> = BTreeMap::new();
    loop {
        let page = store.events(&row.key(), query.clone()).await?;
        for event in &page.events {
            let (Some(name), Some(attempt)) = (&event.step_name, event.attempt) else { continue };
            if event.kind == EventType::StepStarted {
                started.insert((name.clone(), attempt), event.began());
                continue;
            }
            let step = steps.entry(format!("{}/{name}", row.flow_name)).or_default();
            match event.kind {
                EventType::StepCompleted => step.completed += 1,
                EventType::StepRetry => step.retried += 1,
                _ => step.failed += 1,
            }
            if let Some(then) = started.remove(&(name.clone(), attempt)) {
                step.durations.push(event.ts.since(then).as_millis() as u64);
            }
        }
        match page.events.last() {
            Some(last) if page.more => query.after = last.seq,
            _ => return Ok(()),
        }
    }
}
