//! A question to the store, asked. Knows no runtime: whoever polls it decides where and when.

use flowline_core::decide::AttemptLog;
use flowline_core::event::{AttemptOf, Slot};
use flowline_core::{Json, RunKey};
use flowline_store::{Commit, EventQuery, JobKey, JobState, Store, StoreError};

use super::load::{load, open, prepare};
use super::{Answer, Call};
use crate::plans::Plans;

impl Call {
    /// Asks the store. `None` where nobody waits for an answer.
    pub async fn ask(self, store: &dyn Store, plans: &Plans) -> Option<Answer> {
        Some(match self {
            Call::Commit(commits) => commit(store, commits).await,
            Call::Load(runs) => {
                let seen = load(store, plans, &runs).await;
                Answer::Loaded(runs, seen)
            }
            Call::Payloads(run, slots) => payloads(store, run, slots).await,
            Call::Leases(run) => leases(store, run).await,
            Call::Receipt(run, event_id) => {
                let found = store.receipt(&run, &event_id).await.map(|receipt| receipt.is_some());
                Answer::Receipt(run, event_id, found)
            }
            Call::Attempt(run, of) => {
                let log = attempt_log(store, &run, &of).await;
                Answer::Attempt(run, of, log)
            }
            Call::Claim(claim) => Answer::Claimed(store.claim(claim).await),
            Call::Prepare(jobs) => {
                let (launches, failed) = prepare(store, plans, jobs).await;
                Answer::Prepared(launches, failed)
            }
            Call::Sweep(limit) => Answer::Swept(store.sweep(limit).await),
            Call::Extend(leases, ttl) => {
                let tokens = leases.iter().map(|lease| lease.token).collect();
                Answer::Extended(tokens, store.extend(leases, ttl).await)
            }
            Call::Release(leases) => {
                let _ = store.release(leases).await;
                return None;
            }
        })
    }
}

async fn commit(store: &dyn Store, commits: Vec<Commit>) -> Answer {
    let runs = commits.iter().map(|commit| commit.run.clone()).collect();
    Answer::Committed(runs, store.commit(commits).await)
}

async fn payloads(store: &dyn Store, run: RunKey, slots: Vec<Slot>) -> Answer {
    let found = store.payloads(&run, &slots).await;
    let opened = found.map(|found| {
        let open = |(slot, data): (_, Option<Json>)| (slot, open(slot, data));
        slots.into_iter().zip(found).map(open).collect()
    });
    Answer::Payloads(run, opened)
}

async fn leases(store: &dyn Store, run: RunKey) -> Answer {
    let leased = store.jobs(&run).await.map(|jobs| {
        let leased = jobs.into_iter().filter(|job| job.state == JobState::Leased);
        leased.filter_map(|job| if let JobKey::Step(step) = job.key { Some(step) } else { None }).collect()
    });
    Answer::Leases(run, leased)
}

/// What the log of a run says of what an attempt reported.
async fn attempt_log(store: &dyn Store, run: &RunKey, of: &AttemptOf) -> Result<AttemptLog, StoreError> {
    let query = EventQuery {
        kinds: AttemptLog::KINDS.to_vec(),
        step: Some(of.step.to_string()),
        attempt: Some(of.attempt),
        ..EventQuery::default()
    };
    let page = store.events(run, query).await?;
    if page.events.is_empty() {
        let row = store.load(std::slice::from_ref(run)).await?.pop().flatten();
        if row.is_none_or(|found| found.row.events_trimmed) {
            return Ok(AttemptLog::Trimmed);
        }
    }
    let data = |data: Option<Json>| data.unwrap_or_else(Json::null);
    Ok(AttemptLog::Kept(page.events.into_iter().map(|event| (event.kind, data(event.data))).collect()))
}
