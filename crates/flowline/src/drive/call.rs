//! Calls to the store. Doesn't depend on a runtime, so the simulator can run them too.

use flowline_core::decide::{AttemptLog, Learned, Missing};
use flowline_core::event::AttemptOf;
use flowline_core::report::ReportDigests;
use flowline_core::{EventType, Json, RunKey};
use flowline_store::{Commit, EventQuery, JobKey, JobState, Store, StoreError};

use super::load::{load, payloads, prepare};
use super::{StoreCall, StoreReply};
use crate::plans::Plans;

impl StoreCall {
    /// Asks the store. `None` if nobody waits for the answer.
    pub async fn ask(self, store: &dyn Store, plans: &Plans) -> Option<StoreReply> {
        Some(match self {
            StoreCall::Commit(commits) => commit(store, commits).await,
            StoreCall::Load(runs) => {
                let seen = load(store, plans, &runs).await;
                StoreReply::Loaded(runs, seen)
            }
            StoreCall::LookUp(run, missing) => {
                let learned = look_up(store, &run, missing).await;
                StoreReply::LookedUp(run, learned)
            }
            StoreCall::Claim(claim) => StoreReply::Claimed(store.claim(claim).await),
            StoreCall::Prepare(jobs) => {
                let (launches, failed) = prepare(store, plans, jobs).await;
                StoreReply::Prepared(launches, failed)
            }
            StoreCall::Sweep(limit) => StoreReply::Swept(store.sweep(limit).await),
            StoreCall::Extend(leases, ttl) => {
                let tokens = leases.iter().map(|lease| lease.token).collect();
                StoreReply::Extended(tokens, store.extend(leases, ttl).await)
            }
            StoreCall::Release(leases) => {
                let _ = store.release(leases).await;
                return None;
            }
        })
    }
}

async fn commit(store: &dyn Store, commits: Vec<Commit>) -> StoreReply {
    let runs = commits.iter().map(|commit| commit.run.clone()).collect();
    StoreReply::Committed(runs, store.commit(commits).await)
}

/// Looks up what a decision lacks.
pub async fn look_up(store: &dyn Store, run: &RunKey, missing: Missing) -> Result<Learned, StoreError> {
    Ok(match missing {
        Missing::Payloads(slots) => Learned::Payloads(payloads(store, run, slots).await?),
        Missing::Leases => {
            let leased = store.jobs(run).await?.into_iter().filter(|job| job.state == JobState::Leased);
            let step = |key| if let JobKey::Step(step) = key { Some(step) } else { None };
            Learned::Leases(leased.filter_map(|job| step(job.key)).collect())
        }
        Missing::Receipt(event_id) => {
            let found = store.receipt(run, &event_id).await?.is_some();
            Learned::Receipt(event_id, found)
        }
        Missing::Attempt(of) => {
            let log = attempt_log(store, run, &of).await?;
            Learned::Attempt(of, log)
        }
    })
}

/// What is recorded of what an attempt reported: in the log of its run, or in what is left of that.
async fn attempt_log(store: &dyn Store, run: &RunKey, of: &AttemptOf) -> Result<AttemptLog, StoreError> {
    let mut query = EventQuery {
        kinds: ReportDigests::KINDS.to_vec(),
        step: Some(of.step.to_string()),
        attempt: Some(of.attempt),
        ..EventQuery::default()
    };
    let mut events = Vec::new();
    loop {
        let page = store.events(run, query.clone()).await?;
        query.after = page.events.last().map_or(query.after, |last| last.seq);
        let data = |data: Option<Json>| data.unwrap_or_else(Json::null);
        events.extend(page.events.into_iter().map(|event| (event.kind, data(event.data))));
        if !page.more {
            break;
        }
    }
    // A log without the end of the attempt may have gone, and be it just now.
    if events.iter().all(|(kind, _)| *kind == EventType::Emit) {
        if let Some(left) = store.reports(run).await? {
            return Ok(AttemptLog::Trimmed(left.attempt(of).to_vec()));
        }
        let row = store.load(std::slice::from_ref(run)).await?.pop().flatten();
        if row.is_none_or(|found| found.row.events_trimmed) {
            return Ok(AttemptLog::Forgotten);
        }
    }
    Ok(AttemptLog::Kept(events))
}
