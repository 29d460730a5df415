//! Statistics: how many runs and steps there were, how they ended, and how long they took.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::event::EventType;
use flowline_core::{Status, Tenant, Time};
use flowline_store::query::WantTotal;
use flowline_store::{EventQuery, RunQuery, RunRow, Store, StoreError};

pub use flowline_api::stats::{Bucket, FlowSummary, Percentiles, Stats, StepSummary, Summary};

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

/// Runs, and how long the ended ones took.
#[derive(Debug, Default)]
struct Tally {
    summary: Summary,
    by_state: BTreeMap<Arc<str>, u64>,
    durations: Vec<u64>,
}

impl Tally {
    fn add(&mut self, row: &RunRow) {
        self.summary.runs += 1;
        *self.summary.by_status.entry(row.status).or_default() += 1;
        self.summary.retries += u64::from(row.retries);
        self.durations.extend(row.duration);
        if let Some(state) = &row.state {
            *self.by_state.entry(state.clone()).or_default() += 1;
        }
    }

    fn finish(mut self) -> FlowSummary {
        let summary = &mut self.summary;
        let count = |status| summary.by_status.get(&status).copied().unwrap_or(0);
        let (good, bad) = (count(Status::Completed), count(Status::Failed));
        summary.success_rate = (good + bad > 0).then(|| good as f64 / (good + bad) as f64);
        summary.duration_ms = Percentiles::of(&mut self.durations);
        FlowSummary { summary: self.summary, by_state: self.by_state }
    }
}

/// What is wrong with a bucket that holds no time.
pub const NO_WIDTH: &str = "a time bucket must be at least 1ms wide";

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
    let mut total = Tally::default();
    let mut flows: BTreeMap<Arc<str>, Tally> = BTreeMap::new();
    let mut buckets: BTreeMap<i64, Tally> = BTreeMap::new();
    let mut steps: BTreeMap<String, (StepSummary, Vec<u64>)> = BTreeMap::new();
    let mut steps_sampled = false;
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
            total.add(row);
            flows.entry(row.flow_name.clone()).or_default().add(row);
            buckets.entry(row.created_at.millis().div_euclid(width)).or_default().add(row);
            if buckets.len() > BUCKETS {
                let text = format!("more than {BUCKETS} time buckets; choose wider ones or a shorter period");
                return Err(StoreError::Invalid(text));
            }
            match (question.steps, total.summary.runs > STEP_RUNS) {
                (Depth::Steps, false) if !row.events_trimmed => add_steps(store, row, &mut steps).await?,
                (Depth::Steps, true) => steps_sampled = true,
                _ => {}
            }
        }
        match page.next {
            Some(next) => query.cursor = Some(next),
            None => break,
        }
    }
    let bucket = |(number, tally): (i64, Tally)| Bucket {
        start: Time::from_millis(number * width),
        summary: tally.finish().summary,
    };
    let step = |(name, (summary, mut durations)): (String, (StepSummary, Vec<u64>))| {
        (name, StepSummary { duration_ms: Percentiles::of(&mut durations), ..summary })
    };
    Ok(Stats {
        total: total.finish().summary,
        flows: flows.into_iter().map(|(flow, tally)| (flow, tally.finish())).collect(),
        buckets: buckets.into_iter().map(bucket).collect(),
        steps: steps.into_iter().map(step).collect(),
        steps_sampled,
    })
}

/// Adds the attempts of one run, by `flow/step`.
async fn add_steps(
    store: &dyn Store,
    row: &RunRow,
    steps: &mut BTreeMap<String, (StepSummary, Vec<u64>)>,
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
            let (step, durations) = steps.entry(format!("{}/{name}", row.flow_name)).or_default();
            match event.kind {
                EventType::StepCompleted => step.completed += 1,
                EventType::StepRetry => step.retried += 1,
                _ => step.failed += 1,
            }
            if let Some(then) = started.remove(&(name.clone(), attempt)) {
                durations.push(event.ts.since(then).as_millis() as u64);
            }
        }
        match page.events.last() {
            Some(last) if page.more => query.after = last.seq,
            _ => return Ok(()),
        }
    }
}
