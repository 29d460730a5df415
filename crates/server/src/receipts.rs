//! Receipts as people see them: what became of the events that machines took in. The one place that knows what a receipt's
//! outcome holds; the JSON is the same in the API and on the command line.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline::core::machine::Current;
use flowline::core::run::Phase;
use flowline::core::{Json, RunKey, RunState, Time};
use flowline::store::{
    JobKey, JobRow, JobState, Receipt, ReceiptQuery, ReceiptStatus, Snapshot, Store, StoreError,
};
use flowline::{EngineError, Plans, Sent};
use flowline_api::events::{ReceiptList, ReceiptResult, ReceiptView, SentView};
use serde::Deserialize;

/// Pages that are looked through for one with something on it.
const LOOKS: usize = 20;

pub fn sent_view(sent: Sent, receipt: Option<ReceiptView>) -> SentView {
    let Sent { run_id, event_id, changed, status } = sent;
    SentView { run_id, event_id, changed, status, receipt }
}

/// The members of an outcome.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Outcome {
    previous_state: Option<String>,
    current_state: Option<String>,
    actions_executed: Vec<String>,
    actions_failed: Vec<String>,
    tries: Option<u32>,
    error: Option<Json>,
    code: Option<String>,
    accepts: Option<Vec<String>>,
}

/// The members of a sender.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct From {
    user_id: Option<String>,
    roles: Vec<String>,
    sent_by: Option<String>,
}

fn view(receipt: Receipt) -> ReceiptView {
    let outcome: Outcome = receipt.outcome.as_ref().and_then(|outcome| outcome.to().ok()).unwrap_or_default();
    let from: From = receipt.sender.as_ref().and_then(|sender| sender.to().ok()).unwrap_or_default();
    let moved = outcome.current_state.map(|current_state| ReceiptResult {
        previous_state: outcome.previous_state.unwrap_or_default(),
        current_state,
        actions_executed: outcome.actions_executed,
        actions_failed: outcome.actions_failed,
    });
    ReceiptView {
        event_id: receipt.event_id,
        run_id: receipt.run_id,
        flow_name: receipt.flow_name,
        name: receipt.name,
        user_id: from.user_id,
        roles: from.roles,
        sent_by: from.sent_by,
        status: receipt.status,
        worker: receipt.worker,
        tries: outcome.tries,
        locked_until: None,
        error: outcome.error.map(words),
        code: outcome.code,
        accepts: outcome.accepts,
        received_at: receipt.received_at,
        started_at: receipt.started_at,
        completed_at: receipt.completed_at,
        result: moved,
    }
}

/// Shapes one receipt; one whose actions run is told with their lease.
pub async fn read_receipt(
    store: &dyn Store,
    plans: &Plans,
    receipt: Receipt,
) -> Result<ReceiptView, EngineError> {
    let mut views = read_all(store, plans, vec![receipt.clone()]).await?;
    Ok(views.pop().unwrap_or_else(|| view(receipt)))
}

async fn read_all(
    store: &dyn Store,
    plans: &Plans,
    receipts: Vec<Receipt>,
) -> Result<Vec<ReceiptView>, EngineError> {
    let open = receipts.iter().filter(|receipt| receipt.status == ReceiptStatus::Processing);
    let runs: Vec<RunKey> =
        open.map(|receipt| RunKey::new(receipt.tenant.clone(), receipt.run_id.clone())).collect();
    let mut turns = BTreeMap::new();
    let snapshots = if runs.is_empty() { Vec::new() } else { store.load(&runs).await? };
    for (run, snapshot) in runs.into_iter().zip(snapshots) {
        if let Some(snapshot) = snapshot {
            let jobs = store.jobs(&run).await?;
            turns.insert(run.run, Under::of(store, plans, snapshot, &jobs).await?);
        }
    }
    let shown = |receipt: Receipt| {
        let under = (receipt.status == ReceiptStatus::Processing).then(|| turns.get(&receipt.run_id));
        let mut view = view(receipt);
        if let Some(Some(under)) = under {
            view.tries = Some(under.tries);
            view.locked_until = under.until;
            view.worker = under.worker.clone().or(view.worker);
        }
        view
    };
    Ok(receipts.into_iter().map(shown).collect())
}

/// A page of the receipts that are asked for and may be seen. The store knows a worker by what it wrote; of those at
/// work the question is who works on them, which the leases of their actions say.
pub async fn read_receipts(
    store: &dyn Store,
    plans: &Plans,
    mut query: ReceiptQuery,
    may_see: impl Fn(&Receipt) -> bool,
) -> Result<ReceiptList, EngineError> {
    let at_work = query.status == Some(ReceiptStatus::Processing);
    let holder = query.worker.take_if(|_| at_work);
    let mut looks = 0;
    loop {
        looks += 1;
        let mut page = store.receipts(query.clone()).await?;
        page.items.retain(&may_see);
        let mut items = read_all(store, plans, page.items).await?;
        items.retain(|view| holder.is_none() || view.worker.as_deref() == holder.as_deref());
        if !items.is_empty() || holder.is_none() || page.next.is_none() || looks == LOOKS {
            return Ok(ReceiptList { items, has_more: page.next.is_some(), next: page.next });
        }
        query.after = page.next;
    }
}

/// What the actions of a turn run under.
#[derive(Debug, Default)]
struct Under {
    tries: u32,
    worker: Option<Arc<str>>,
    until: Option<Time>,
}

impl Under {
    async fn of(
        store: &dyn Store,
        plans: &Plans,
        snapshot: Snapshot,
        jobs: &[JobRow],
    ) -> Result<Under, EngineError> {
        let row = &snapshot.row;
        let plan = plans.get(store, &row.tenant, &row.definition).await?;
        let state = RunState::decode(&plan, &snapshot.state)
            .map_err(|error| StoreError::Damaged(format!("the state of run {}: {error}", row.run_id)))?;
        let current = state.machine.as_ref().and_then(|machine| machine.current.as_ref());
        // One that was given back keeps nobody from it.
        let held = |job: &&JobRow| job.state == JobState::Leased && !job.released;
        let leased = |step: u32| jobs.iter().filter(held).find(|job| job.key == JobKey::Step(step));
        let mut under = Under { tries: 1, ..Under::default() };
        for asked in current.map_or(&[][..], |Current { asked, .. }| asked) {
            let (step, lease) = (state.step(asked.action), leased(asked.action));
            let begun = step.phase == Phase::Completed || lease.is_some();
            under.tries = under.tries.max(step.tries + step.lost + u32::from(begun));
            if let Some(lease) = lease.filter(|lease| lease.expires > under.until) {
                (under.worker, under.until) = (lease.worker.clone(), lease.expires);
            }
        }
        Ok(under)
    }
}

fn words(error: Json) -> String {
    error.to().unwrap_or_else(|_| error.get().to_owned())
}
