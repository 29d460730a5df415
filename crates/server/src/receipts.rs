//! Receipts as people see them: what became of the events that machines took in. The one place that knows what a receipt's
//! outcome holds; the JSON is the same in the API and on the command line.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline::core::machine::Current;
use flowline::core::run::Phase;
use flowline::core::{Json, RunId, RunKey, RunState, Status, Time};
use flowline::store::{
    JobKey, JobRow, JobState, Receipt, ReceiptQuery, ReceiptStatus, Snapshot, Store, StoreError,
};
use flowline::{EngineError, Plans, Sent};
use serde::{Deserialize, Serialize};

/// Pages that are looked through for one with something on it.
const LOOKS: usize = 20;

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptView {
    pub event_id: Arc<str>,
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    pub name: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// The token that sent it for that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_by: Option<String>,
    pub status: ReceiptStatus,
    /// The instance that wrote what became of it; while its actions run, who holds their lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
    /// Of the action that was tried most often; 1 where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// When the lease runs out that its actions run under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_until: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The kind of error: `wrong_state`, `guard`, `forbidden`, `expression` and `ended` of one that was turned down,
    /// `action_failed` of one whose action is out of attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What the state took that turned it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepts: Option<Vec<String>>,
    pub received_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Moved>,
}

/// What an event did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    pub previous_state: String,
    pub current_state: String,
    pub actions_executed: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions_failed: Vec<String>,
}

/// A page of receipts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceiptList {
    pub items: Vec<ReceiptView>,
    pub has_more: bool,
    pub next: Option<String>,
}

/// An event that a run has taken, and what became of it where that was waited for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SentView {
    pub run_id: RunId,
    pub event_id: Arc<str>,
    pub changed: bool,
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<ReceiptView>,
}

impl SentView {
    pub fn of(sent: Sent, receipt: Option<ReceiptView>) -> SentView {
        let Sent { run_id, event_id, changed, status } = sent;
        SentView { run_id, event_id, changed, status, receipt }
    }
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

impl ReceiptView {
    /// Whether the machine was moved by it and is done with that, or never will be.
    pub fn is_done(&self) -> bool {
        self.status.is_end()
    }

    /// In words, for people.
    pub fn said(&self) -> String {
        let moved = self.result.as_ref().map(|moved| match &moved.actions_executed[..] {
            [] => format!("{} → {}", moved.previous_state, moved.current_state),
            actions => {
                format!("{} → {}, {} done", moved.previous_state, moved.current_state, actions.join(", "))
            }
        });
        let moved = moved.unwrap_or_default();
        let error = self.error.as_deref().unwrap_or("no reason recorded");
        match (self.status, self.code.as_deref()) {
            (ReceiptStatus::Pending, _) => "pending".to_owned(),
            (ReceiptStatus::Processing, _) => match self.locked_until {
                Some(until) => format!("processing: {moved}; lease until {until}"),
                None => format!("processing: {moved}"),
            },
            (ReceiptStatus::Completed, _) => format!("completed: {moved}"),
            (ReceiptStatus::Failed, Some("action_failed")) => format!("failed: {error} ({moved})"),
            (ReceiptStatus::Failed, _) => format!("rejected: {error}"),
        }
    }

    fn of(receipt: Receipt) -> ReceiptView {
        let outcome: Outcome =
            receipt.outcome.as_ref().and_then(|outcome| outcome.to().ok()).unwrap_or_default();
        let from: From = receipt.sender.as_ref().and_then(|sender| sender.to().ok()).unwrap_or_default();
        let moved = outcome.current_state.map(|current_state| Moved {
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
    pub async fn read(
        store: &dyn Store,
        plans: &Plans,
        receipt: Receipt,
    ) -> Result<ReceiptView, EngineError> {
        let mut views = ReceiptView::read_all(store, plans, vec![receipt.clone()]).await?;
        Ok(views.pop().unwrap_or_else(|| ReceiptView::of(receipt)))
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
        let view = |receipt: Receipt| {
            let under = (receipt.status == ReceiptStatus::Processing).then(|| turns.get(&receipt.run_id));
            let mut view = ReceiptView::of(receipt);
            if let Some(Some(under)) = under {
                view.tries = Some(under.tries);
                view.locked_until = under.until;
                view.worker = under.worker.clone().or(view.worker);
            }
            view
        };
        Ok(receipts.into_iter().map(view).collect())
    }
}

impl ReceiptList {
    /// A page of the receipts that are asked for and may be seen. The store knows a worker by what it wrote; of those at
    /// work the question is who works on them, which the leases of their actions say.
    pub async fn read(
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
            let mut items = ReceiptView::read_all(store, plans, page.items).await?;
            items.retain(|view| holder.is_none() || view.worker.as_deref() == holder.as_deref());
            if !items.is_empty() || holder.is_none() || page.next.is_none() || looks == LOOKS {
                return Ok(ReceiptList { items, has_more: page.next.is_some(), next: page.next });
            }
            query.after = page.next;
        }
    }

    /// Adds the page after.
    pub fn extend(&mut self, page: ReceiptList) {
        self.items.extend(page.items);
        (self.next, self.has_more) = (page.next, page.has_more);
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
