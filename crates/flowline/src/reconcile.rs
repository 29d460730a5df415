//! Reconcile: what `verify` finds is mended from the log, which is the truth. Reports by itself; repairs on command.

use std::collections::BTreeSet;

use flowline_core::decide::{AddJob, Job, Known, Missing, Moment};
use flowline_core::run::Phase;
use flowline_core::{Decided, Input, RunKey, Tenant, decide};
use flowline_store::query::WantTotal;
use flowline_store::row::Repair;
use flowline_store::{CommitError, Failure, JobKey, NewJob, RunQuery, Store, StoreError};
use serde::Serialize;

use crate::ledger::{RUN_TIMEOUT, index_of, new_job};
use crate::plans::Plans;
use crate::verify::{Kind, Truth, Violation, look_until_still, tenants, verify};

/// What to do about what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Report,
    Repair,
}

/// What was found, and what became of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Reconciled {
    pub runs: u64,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    #[serde(flatten)]
    pub violation: Violation,
    pub repaired: bool,
}

/// Rounds of mending one run: the row first, then what follows from it.
const ROUNDS: usize = 4;

pub async fn reconcile(
    store: &dyn Store,
    plans: &Plans,
    only: Option<&Tenant>,
    mode: Mode,
) -> Result<Reconciled, StoreError> {
    if mode == Mode::Report {
        let report = verify(store, plans, only).await?;
        let findings = report.violations.into_iter().map(|violation| Finding { violation, repaired: false });
        return Ok(Reconciled { runs: report.runs, findings: findings.collect() });
    }
    let mut done = Reconciled::default();
    for tenant in tenants(store, only).await? {
        let mut query = RunQuery { limit: 500, total: WantTotal::No, ..RunQuery::of(tenant.clone()) };
        loop {
            let page = store.runs(query.clone()).await?;
            for row in &page.items {
                done.runs += 1;
                done.findings.extend(mend(store, plans, &row.key()).await?);
            }
            match page.next {
                Some(next) => query.cursor = Some(next),
                None => break,
            }
        }
        let counters = verify_counters(store, plans, &tenant).await?;
        if !counters.is_empty() {
            apply(store, Repair::Counters { tenant: tenant.clone() }).await?;
            done.findings.extend(counters.into_iter().map(|violation| Finding { violation, repaired: true }));
        }
    }
    Ok(done)
}

async fn verify_counters(
    store: &dyn Store,
    plans: &Plans,
    tenant: &Tenant,
) -> Result<Vec<Violation>, StoreError> {
    let report = verify(store, plans, Some(tenant)).await?;
    Ok(report.violations.into_iter().filter(|violation| violation.kind == Kind::Counter).collect())
}

/// Mends one run, and says what was wrong with it.
async fn mend(store: &dyn Store, plans: &Plans, run: &RunKey) -> Result<Vec<Finding>, StoreError> {
    let mut findings: Vec<Finding> = Vec::new();
    for _ in 0..ROUNDS {
        let looked = look_until_still(store, plans, run).await?;
        let left: BTreeSet<&str> =
            looked.violations.iter().map(|violation| violation.message.as_str()).collect();
        for finding in &mut findings {
            finding.repaired = !left.contains(finding.violation.message.as_str());
        }
        for violation in &looked.violations {
            if !findings.iter().any(|finding| finding.violation.message == violation.message) {
                findings.push(Finding { violation: violation.clone(), repaired: false });
            }
        }
        // Worst first: what follows from the row is only worth mending once the row is right.
        let kind = looked.violations.iter().map(|violation| violation.kind).min();
        let (Some(kind), Some(truth)) = (kind, looked.truth) else { break };
        let repair = match kind {
            Kind::Row => repair_row(run, &truth),
            Kind::Jobs => repair_jobs(store, run, &truth).await?,
            Kind::Unended => match repair_end(store, run, &truth).await? {
                Some(repair) => repair,
                None => break,
            },
            Kind::Counter | Kind::Log => break,
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
    }
}

async fn repair_jobs(store: &dyn Store, run: &RunKey, truth: &Truth) -> Result<Repair, StoreError> {
    let now = store.now().await?;
    let ended = truth.state.ended.is_some();
    let live: Vec<(u32, u32)> =
        truth.state.live().filter(|_| !ended).map(|step| (step, truth.state.step(step).attempt)).collect();
    let fits = |key: JobKey, attempt: u32| match key {
        JobKey::Step(step) => live.contains(&(step, attempt)),
        JobKey::Timer(_) => !ended,
    };
    let remove = truth.jobs.iter().filter(|job| !fits(job.key, job.attempt)).map(|job| job.key).collect();
    let there = |step: u32, attempt: u32| {
        truth.jobs.iter().any(|job| job.key == JobKey::Step(step) && job.attempt == attempt)
    };
    let job = |job: Job, attempt: u32, due| -> NewJob {
        let held = truth.state.paused;
        new_job(&truth.plan, &AddJob { job, attempt, priority: truth.state.priority, due, held })
    };
    let mut add: Vec<NewJob> = live
        .iter()
        .filter(|(step, attempt)| !there(*step, *attempt))
        .map(|&(step, attempt)| job(Job::Step(step), attempt, now))
        .collect();
    if let Some(timeout) = truth.plan.definition.timeout
        && !ended
        && !truth.jobs.iter().any(|job| job.key == RUN_TIMEOUT)
    {
        add.push(job(Job::RunTimeout, 1, truth.created_at + timeout));
    }
    Ok(Repair::Jobs { run: run.clone(), version: truth.version, add, remove })
}

/// The terminal event that a run lacks, as `decide` makes it.
async fn repair_end(store: &dyn Store, run: &RunKey, truth: &Truth) -> Result<Option<Repair>, StoreError> {
    let now = store.now().await?;
    let moment = Moment { run: &run.run, created_at: truth.created_at, now };
    let mut known = Known { leased: Some(BTreeSet::new()), ..Known::default() };
    debug_assert!(!truth.state.steps.iter().any(|step| step.phase == Phase::Queued));
    loop {
        match decide(&truth.plan, &truth.state, &Input::Revisit, &known, moment) {
            Decided::Decision(decision) => {
                let failure = decision.failure.map(|(error, step)| Failure { error, step });
                return Ok(Some(Repair::Events {
                    run: run.clone(),
                    version: truth.version,
                    events: decision.events,
                    index: index_of(&decision.state, failure),
                    state: decision.state.encode(),
                }));
            }
            Decided::Missing(Missing::Payloads(slots)) => {
                let found = store.payloads(run, &slots).await?;
                let opened = slots.into_iter().zip(found).map(|(slot, data)| {
                    (slot, data.map_or_else(flowline_core::Json::null, |data| slot.open(&data)))
                });
                known.payloads.extend(opened);
            }
            _ => return Ok(None),
        }
    }
}
