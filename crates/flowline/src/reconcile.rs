//! Repairs what `verify` finds from the log, which is the truth: on command, or periodically by one engine of a store.
//! Runs may be active, because a repair is refused if its run has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flowline_check::{Checker, counted, miscounted};
use flowline_core::decide::{AddJob, Job, Known, Missing, Moment};
use flowline_core::limits::Limits;
use flowline_core::run::Phase;
use flowline_core::{DecideInput, Decided, RunKey, Tenant, Time, decide};
use flowline_store::row::Repair;
use flowline_store::{CommitError, Failure, JobKey, JobRow, JobState, NewJob, Store, StoreError};
use serde::Serialize;

use crate::drive::look_up;
use crate::ledger::{RUN_TIMEOUT, index_of, job_key, new_job};
use crate::meters::Meters;
use crate::pace::keep_pace;
use crate::plans::Plans;
use crate::verify::{Lens, Recount, Rows, Subject, Truth, Violation, tenants};

/// What to do about what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Report,
    Repair,
}

/// Reconciliation as a loop of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconciling {
    pub mode: Mode,
    /// From one pass over the store to the next, whichever engine does it.
    pub every: Duration,
}

/// What was found, and whether it was repaired.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Reconciled {
    pub runs: u64,
    pub findings: Vec<ReconcileFinding>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReconcileFinding {
    #[serde(flatten)]
    pub violation: Violation,
    pub repaired: bool,
}

/// Rounds of mending one run: the row first, then what follows from it.
const ROUNDS: usize = 4;
/// Between two pages of runs, so that runs at work go first.
const BREATH: Duration = Duration::from_millis(20);
/// Findings of one pass that get a line each in the log.
const TOLD: usize = 20;

/// Reconciles all tenants every so often for as long as the engine lives.
pub(crate) async fn keep_true(
    store: Arc<dyn Store>,
    plans: Arc<Plans>,
    meters: Arc<Meters>,
    instance: Arc<str>,
    how: Reconciling,
) {
    let work = || async {
        match pass(&*store, &plans, None, how.mode, BREATH).await {
            Ok(done) => tell(&done, &meters, &instance),
            Err(error) => tracing::warn!(instanceId = &*instance, %error, "reconciliation stopped early"),
        }
    };
    keep_pace(store.clone(), "reconcile", instance.clone(), how.every, work).await;
}

fn tell(done: &Reconciled, meters: &Meters, instance: &str) {
    let found = done.findings.len() as u64;
    let repaired = done.findings.iter().filter(|finding| finding.repaired).count() as u64;
    for (meter, n) in [
        (&meters.reconciled.passes, 1),
        (&meters.reconciled.runs, done.runs),
        (&meters.reconciled.found, found),
        (&meters.reconciled.repaired, repaired),
    ] {
        meter.fetch_add(n, Ordering::Relaxed);
    }
    for ReconcileFinding { violation, repaired } in done.findings.iter().take(TOLD) {
        let run = violation.run_id.as_ref().map_or("", |run| run.as_str());
        let Violation { tenant, invariant, message, .. } = violation;
        tracing::warn!(instanceId = instance, %tenant, runId = run, %invariant, repaired, "reconciliation found: {message}");
    }
    let runs = done.runs;
    if found == repaired {
        tracing::info!(instanceId = instance, runs, found, repaired, "reconciled");
    } else {
        tracing::warn!(
            instanceId = instance,
            runs,
            found,
            repaired,
            "reconciliation left problems: `flowline reconcile` lists them, --repair fixes what it can"
        );
    }
}

/// Compares every run of every tenant, or of one, with its log, and in [`Mode::Repair`] puts right what can be.
///
/// ```no_run
/// # async fn example(engine: flowline::Engine) -> Result<(), Box<dyn std::error::Error>> {
/// use flowline::reconcile::{Mode, reconcile};
///
/// let found = reconcile(engine.store(), engine.plans(), None, Mode::Repair).await?;
/// println!("{} findings in {} runs", found.findings.len(), found.runs);
/// # Ok(())
/// # }
/// ```
pub async fn reconcile(
    store: &dyn Store,
    plans: &Plans,
    only: Option<&Tenant>,
    mode: Mode,
) -> Result<Reconciled, StoreError> {
    pass(store, plans, only, mode, Duration::ZERO).await
}

async fn pass(
    store: &dyn Store,
    plans: &Plans,
    only: Option<&Tenant>,
    mode: Mode,
    breath: Duration,
) -> Result<Reconciled, StoreError> {
    let mut done = Reconciled::default();
    let mut lens = Lens::new(store, plans);
    for tenant in tenants(store, only).await? {
        let mut rows = Rows::of(&tenant);
        while let Some(page) = rows.next(store).await? {
            for row in page {
                done.runs += 1;
                match mode {
                    Mode::Report => {
                        let violations = lens.look_until_still(&row.key()).await?.violations;
                        done.findings.extend(violations.into_iter().map(found));
                    }
                    Mode::Repair => done.findings.extend(mend(&mut lens, store, &row.key()).await?),
                }
            }
            tokio::time::sleep(breath).await;
        }
        let mut counters: Vec<ReconcileFinding> =
            check_counters(store, &tenant).await?.into_iter().map(found).collect();
        if !counters.is_empty() && mode == Mode::Repair {
            apply(store, Repair::Counters { tenant: tenant.clone() }).await?;
            let left = check_counters(store, &tenant).await?;
            for finding in &mut counters {
                finding.repaired = !left.iter().any(|left| left.message == finding.violation.message);
            }
        }
        done.findings.extend(counters);
    }
    Ok(done)
}

fn found(violation: Violation) -> ReconcileFinding {
    ReconcileFinding { violation, repaired: false }
}

/// Counters against the rows as they are once every run was mended.
async fn check_counters(store: &dyn Store, tenant: &Tenant) -> Result<Vec<Violation>, StoreError> {
    let before = store.counters().await?;
    let mut recount: Recount = BTreeMap::new();
    let mut rows = Rows::of(tenant);
    while let Some(page) = rows.next(store).await? {
        for row in page {
            *recount.entry(counted(&row)).or_default() += 1;
        }
    }
    let still = before == store.counters().await?;
    Ok(if still { miscounted(Checker::default(), tenant, &before, recount) } else { Vec::new() })
}

/// Mends one run, and says what was wrong with it.
async fn mend(
    lens: &mut Lens<'_>,
    store: &dyn Store,
    run: &RunKey,
) -> Result<Vec<ReconcileFinding>, StoreError> {
    let mut findings: Vec<ReconcileFinding> = Vec::new();
    for _ in 0..ROUNDS {
        let looked = lens.look_until_still(run).await?;
        let left: BTreeSet<&str> =
            looked.violations.iter().map(|violation| violation.message.as_str()).collect();
        for finding in &mut findings {
            finding.repaired = !left.contains(finding.violation.message.as_str());
        }
        for violation in &looked.violations {
            if !findings.iter().any(|finding| finding.violation.message == violation.message) {
                findings.push(ReconcileFinding { violation: violation.clone(), repaired: false });
            }
        }
        // Worst first: what follows from the row is only worth mending once the row is right.
        let subject = looked.violations.iter().map(|violation| violation.subject).min();
        let (Some(subject), Some(truth)) = (subject, looked.truth) else { break };
        let repair = match subject {
            Subject::Row => repair_row(run, &truth),
            Subject::Jobs => repair_jobs(store, run, &truth).await?,
            Subject::End => match repair_end(store, run, &truth).await? {
                Some(repair) => repair,
                None => break,
            },
            Subject::Counters
            | Subject::Receipts
            | Subject::State
            | Subject::Log
            | Subject::Call
            | Subject::Outside => break,
        };
        apply(store, repair).await?;
    }
    Ok(findings)
}

/// Applies a repair. A run that moved on meanwhile is left to the next round.
async fn apply(store: &dyn Store, repair: Repair) -> Result<(), StoreError> {
    match store.repair(repair).await {
        Err(CommitError::Store(error)) => Err(error),
        _ => Ok(()),
    }
}

fn repair_row(run: &RunKey, truth: &Truth) -> Repair {
    Repair::Row {
        run: run.clone(),
        version: truth.version,
        state: truth.state.encode(),
        index: truth.index.clone(),
        created_at: truth.created_at,
        started_at: truth.started_at,
        completed_at: truth.completed_at,
        events: truth.events,
        seen: truth.row_events,
    }
}

async fn repair_jobs(store: &dyn Store, run: &RunKey, truth: &Truth) -> Result<Repair, StoreError> {
    let now = store.now().await?;
    let ended = truth.state.ended.is_some();
    let paused = truth.state.paused;
    let live: Vec<(u32, u32)> =
        truth.state.live().filter(|_| !ended).map(|step| (step, truth.state.step(step).attempt)).collect();
    // A machine's timers and its delayed start, as the log has set them.
    let timers: Vec<(Job, u32, Time)> = truth
        .timers
        .iter()
        .map(|&(timer, number, due)| (Job::Timer(timer), number, due))
        .chain(truth.begins_at.map(|due| (Job::Begin, 1, due)))
        .collect();
    let fits = |job: &&JobRow| match job.key {
        JobKey::Step(step) => {
            let held = job.state == JobState::Held;
            live.contains(&(step, job.attempt)) && (job.state == JobState::Leased || held == paused)
        }
        RUN_TIMEOUT => !ended && (job.state != JobState::Held || paused),
        JobKey::Timer(_) => {
            let asked = timers.iter().any(|(timer, number, due)| {
                (job.key, job.attempt, job.due) == (job_key(*timer), *number, *due)
            });
            asked && (job.state == JobState::Held) == paused
        }
    };
    let (right, wrong): (Vec<&JobRow>, Vec<&JobRow>) = truth.jobs.iter().partition(fits);
    let there = |key: JobKey| right.iter().any(|job| job.key == key);
    let job = |job: Job, attempt: u32, priority, due| -> NewJob {
        new_job(&truth.plan, &AddJob { job, attempt, priority, due, held: paused })
    };
    let mut add = Vec::new();
    for (step, attempt) in live.into_iter().filter(|(step, _)| !there(JobKey::Step(*step))) {
        // One that is only held, or not, by mistake keeps its time.
        let same = |job: &&&JobRow| job.key == JobKey::Step(step) && job.attempt == attempt;
        let due = wrong.iter().find(same).map_or(now, |job| job.due);
        let priority = truth.plan.step_definition(step).priority.unwrap_or(truth.state.priority);
        add.push(job(Job::Step(step), attempt, priority, due));
    }
    if let Some(timeout) = truth.plan.definition.timeout
        && !ended
        && !there(RUN_TIMEOUT)
    {
        add.push(job(Job::RunTimeout, 1, truth.state.priority, truth.created_at + timeout));
    }
    for &(timer, number, due) in timers.iter().filter(|(timer, ..)| !there(job_key(*timer))) {
        add.push(job(timer, number, truth.state.priority, due));
    }
    let remove = wrong.iter().map(|job| job.key).collect();
    Ok(Repair::Jobs { run: run.clone(), version: truth.version, add, remove })
}

/// The terminal event that a run lacks, as `decide` makes it.
async fn repair_end(store: &dyn Store, run: &RunKey, truth: &Truth) -> Result<Option<Repair>, StoreError> {
    let now = store.now().await?;
    // What the run holds was taken before; whether it would be today is not the question.
    let limits = Limits::MOST;
    let moment = Moment { run: &run.run, created_at: truth.created_at, now, limits };
    let mut known = Known { leased: Some(BTreeSet::new()), ..Known::default() };
    debug_assert!(!truth.state.steps.iter().any(|step| step.phase == Phase::Queued));
    loop {
        match decide(&truth.plan, &truth.state, &DecideInput::Revisit, &known, moment) {
            Decided::Decision(decision) => {
                let failure = decision.failure.map(|(error, step)| Failure { error, step });
                return Ok(Some(Repair::Events {
                    run: run.clone(),
                    version: truth.version,
                    events: decision.events,
                    index: index_of(&truth.plan, &decision.state, failure),
                    state: decision.state.encode(),
                }));
            }
            Decided::Missing(missing @ Missing::Payloads(_)) => {
                known.learn(look_up(store, run, missing).await?);
            }
            _ => return Ok(None),
        }
    }
}
