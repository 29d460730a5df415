//! Reads runs: snapshot, plan, payloads.

use std::collections::BTreeMap;

use flowline_core::event::PayloadSlot;
use flowline_core::{Json, RunKey};
use flowline_store::{LeasedJob, Snapshot, Store, StoreError};

use super::Prepared;
use crate::ledger::Seen;
use crate::plans::Plans;
use crate::trace;

/// Runs whose payloads are read together: enough to save trips, few enough that large ones hold up nobody.
const TOGETHER: usize = 32;

/// Reads payloads of a run by their addresses; one that is not there counts as null.
pub(super) async fn payloads(
    store: &dyn Store,
    run: &RunKey,
    slots: Vec<PayloadSlot>,
) -> Result<Vec<(PayloadSlot, Json)>, StoreError> {
    let found = store.payloads_of(run, &slots).await?;
    Ok(opened(slots, found))
}

fn opened(slots: Vec<PayloadSlot>, found: Vec<Option<Json>>) -> Vec<(PayloadSlot, Json)> {
    let open = |(slot, data): (PayloadSlot, Option<Json>)| {
        (slot, data.map_or_else(Json::null, |data| slot.open(&data)))
    };
    slots.into_iter().zip(found).map(open).collect()
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

/// Loads what claimed jobs need to start: plan, state, input; in a few reads, however many jobs there are. Those that
/// could not be loaded come back as they are.
pub async fn prepare(
    store: &dyn Store,
    plans: &Plans,
    jobs: Vec<LeasedJob>,
) -> (Vec<Prepared>, Vec<LeasedJob>) {
    let (mut launches, mut failed) = (Vec::new(), Vec::new());
    let (mut loaded, mut asked) = (Vec::new(), Vec::new());
    let runs: Vec<RunKey> = jobs.iter().map(|job| job.run.clone()).collect();
    let seen = load(store, plans, &runs).await.unwrap_or_else(|_| vec![None; runs.len()]);
    for (job, seen) in jobs.into_iter().zip(seen) {
        let slots = seen.as_ref().map(|seen| seen.launch(&job, &BTreeMap::new()).err());
        match (seen, slots) {
            (Some(seen), Some(slots)) if slots.as_ref().is_none_or(|slots| !slots.is_empty()) => {
                asked.push((job.run.clone(), slots.unwrap_or_default()));
                loaded.push((job, seen));
            }
            _ => failed.push(job),
        }
    }
    let mut found = Vec::with_capacity(asked.len());
    for some in asked.chunks(TOGETHER) {
        match store.payloads(some).await {
            Ok(read) => found.extend(read.into_iter().map(Some)),
            // Together they may be too large for one answer, or one may be unreadable.
            Err(_) => {
                for (run, slots) in some {
                    found.push(store.payloads_of(run, slots).await.ok());
                }
            }
        }
    }
    for ((job, seen), ((_, slots), found)) in loaded.into_iter().zip(asked.into_iter().zip(found)) {
        let payloads = found.map(|found| opened(slots, found).into_iter().collect());
        match payloads.and_then(|payloads| seen.launch(&job, &payloads).ok()) {
            Some(launch) => launches.push(Prepared { launch, seen }),
            None => failed.push(job),
        }
    }
    (launches, failed)
}
