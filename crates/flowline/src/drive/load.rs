//! Reads runs: snapshot, plan, payloads.

use std::collections::BTreeMap;

use flowline_core::event::PayloadSlot;
use flowline_core::{Json, RunKey};
use flowline_store::{LeasedJob, Snapshot, Store, StoreError};

use super::Prepared;
use crate::ledger::Seen;
use crate::plans::Plans;
use crate::trace;

/// Reads payloads of a run by their addresses; one that is not there counts as null.
pub(super) async fn payloads(
    store: &dyn Store,
    run: &RunKey,
    slots: Vec<PayloadSlot>,
) -> Result<Vec<(PayloadSlot, Json)>, StoreError> {
    let found = store.payloads(run, &slots).await?;
    let open = |(slot, data): (PayloadSlot, Option<Json>)| {
        (slot, data.map_or_else(Json::null, |data| slot.open(&data)))
    };
    Ok(slots.into_iter().zip(found).map(open).collect())
}

/// Loads runs with the plans that they are pinned to.
pub(super) async fn load(
    store: &dyn Store,
    plans: &Plans,
    runs: &[RunKey],
) -> Result<Vec<Option<Seen>>, StoreError> {
    let mut seen = Vec::with_capacity(runs.len());
    for snapshot in store.load(runs).await? {
        seen.push(match snapshot {
            Some(snapshot) => Some(see(store, plans, snapshot).await?),
            None => None,
        });
    }
    Ok(seen)
}

/// Reads a snapshot with the plan that its run is pinned to.
pub async fn see(store: &dyn Store, plans: &Plans, snapshot: Snapshot) -> Result<Seen, StoreError> {
    let plan = plans.get(store, &snapshot.row.tenant, &snapshot.row.definition).await?;
    let state = flowline_core::RunState::decode(&plan, &snapshot.state)
        .map_err(|error| StoreError::Damaged(format!("run {}: {error}", snapshot.row.run_id)))?;
    let trace = trace::of_labels(&snapshot.row.labels);
    Ok(Seen { plan, state, version: snapshot.row.version, created_at: snapshot.row.created_at, trace })
}

/// Loads what claimed jobs need to start: plan, state, input. Those that could not be loaded come back as they are.
pub async fn prepare(
    store: &dyn Store,
    plans: &Plans,
    jobs: Vec<LeasedJob>,
) -> (Vec<Prepared>, Vec<LeasedJob>) {
    let (mut launches, mut failed) = (Vec::new(), Vec::new());
    let runs: Vec<RunKey> = jobs.iter().map(|job| job.run.clone()).collect();
    let seen = load(store, plans, &runs).await.unwrap_or_else(|_| vec![None; runs.len()]);
    for (job, seen) in jobs.into_iter().zip(seen) {
        let prepared = match seen {
            Some(seen) => prepare_one(store, &job, seen).await,
            None => None,
        };
        match prepared {
            Some(prepared) => launches.push(prepared),
            None => failed.push(job),
        }
    }
    (launches, failed)
}

async fn prepare_one(store: &dyn Store, job: &LeasedJob, seen: Seen) -> Option<Prepared> {
    let launch = match seen.launch(job, &BTreeMap::new()) {
        Ok(launch) => launch,
        Err(slots) if slots.is_empty() => return None,
        Err(slots) => {
            let found = payloads(store, &job.run, slots).await.ok()?;
            seen.launch(job, &found.into_iter().collect()).ok()?
        }
    };
    Some(Prepared { launch, seen })
}
