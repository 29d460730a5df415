//! Verifies runs: has the independent checker look at each one, and compares its stored state with the fold of its log.
//!
//! It only reads; `reconcile` repairs. A run that changes meanwhile is checked again, so active stores can be verified
//! too. The checker defines what must hold; this module reads the store for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_check::{Checker, CountKey, FlowMap, Invariant, RunCheck, RunShape, counted, miscounted};
use flowline_core::run::{Fact, FoldError, RunState};
use flowline_core::{Event, Plan, RunKey, Tenant, Time};
use flowline_store::query::WantTotal;
use flowline_store::{
    EventQuery, Index, JobRow, Receipt, ReceiptQuery, RunQuery, Snapshot, StateQuery, StateSpace, StateValue,
    Store, StoreError,
};

use crate::ledger::index_of;
use crate::plans::Plans;

pub use flowline_api::explain::VerifyReport;
pub use flowline_check::{Subject, Violation};

/// How often a run that changes meanwhile is looked at.
const LOOKS: usize = 5;
/// Runs on a page.
const PAGE: usize = 500;
/// Values of key-value state on a page.
const VALUES: usize = 250;

/// Verifies every run of every tenant, or of one.
///
/// ```no_run
/// # async fn example(engine: flowline::Engine) -> Result<(), Box<dyn std::error::Error>> {
/// let report = flowline::verify::verify(engine.store(), engine.plans(), None).await?;
/// assert!(report.violations.is_empty(), "{:?}", report.violations);
/// # Ok(())
/// # }
/// ```
pub async fn verify(
    store: &dyn Store,
    plans: &Plans,
    only: Option<&Tenant>,
) -> Result<VerifyReport, StoreError> {
    let mut report = VerifyReport::default();
    let mut lens = Lens::new(store, plans);
    for tenant in tenants(store, only).await? {
        let mut recount: Recount = BTreeMap::new();
        let before = store.counters().await?;
        let mut rows = Rows::of(&tenant);
        while let Some(page) = rows.next(store).await? {
            for row in page {
                *recount.entry(counted(&row)).or_default() += 1;
                let looked = lens.look_until_still(&row.key()).await?;
                report.runs += 1;
                report.events += looked.events;
                report.violations.extend(looked.violations);
            }
        }
        // Counters move while runs do; they can only be compared when they stood still.
        if before == store.counters().await? {
            report.violations.extend(miscounted(Checker::default(), &tenant, &before, recount));
        }
    }
    Ok(report)
}

/// Verifies one run.
pub async fn verify_run(store: &dyn Store, plans: &Plans, run: &RunKey) -> Result<VerifyReport, StoreError> {
    let looked = Lens::new(store, plans).look_until_still(run).await?;
    Ok(VerifyReport { runs: 1, events: looked.events, violations: looked.violations })
}

/// Tenants that have runs.
pub(crate) async fn tenants(
    store: &dyn Store,
    only: Option<&Tenant>,
) -> Result<BTreeSet<Tenant>, StoreError> {
    if let Some(tenant) = only {
        return Ok(BTreeSet::from([tenant.clone()]));
    }
    let mut tenants: BTreeSet<Tenant> =
        store.counters().await?.into_iter().map(|counter| counter.tenant).collect();
    tenants.insert(Tenant::default());
    Ok(tenants)
}

/// Runs by what they are counted under.
pub(crate) type Recount = BTreeMap<CountKey, u64>;

/// The rows of a tenant, page by page, and last of all those that no list has.
pub(crate) struct Rows {
    query: Option<RunQuery>,
    unlisted: Option<Tenant>,
}

impl Rows {
    pub(crate) fn of(tenant: &Tenant) -> Rows {
        let query = RunQuery { limit: PAGE, total: WantTotal::No, ..RunQuery::of(tenant.clone()) };
        Rows { query: Some(query), unlisted: Some(tenant.clone()) }
    }

    pub(crate) async fn next(
        &mut self,
        store: &dyn Store,
    ) -> Result<Option<Vec<flowline_store::RunRow>>, StoreError> {
        if let Some(query) = self.query.take() {
            let page = store.runs(query.clone()).await?;
            self.query = page.next.map(|next| RunQuery { cursor: Some(next), ..query });
            return Ok(Some(page.items));
        }
        let Some(tenant) = self.unlisted.take() else { return Ok(None) };
        let rows = store.unlisted(&tenant).await?;
        Ok(Some(rows).filter(|rows| !rows.is_empty()))
    }
}

/// What was found of one run.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    pub events: u64,
    pub violations: Vec<Violation>,
    /// What the log says, if it's complete.
    pub truth: Option<Truth>,
}

/// What row and jobs should be.
#[derive(Debug, Clone)]
pub(crate) struct Truth {
    pub plan: Arc<Plan>,
    pub state: RunState,
    pub index: Index,
    pub created_at: Time,
    pub started_at: Option<Time>,
    pub completed_at: Option<Time>,
    pub events: u64,
    /// As the row counts them.
    pub row_events: u64,
    pub version: u64,
    pub jobs: Vec<JobRow>,
    /// The timers that a machine waits for: which, the number that each was set under, and when it is due.
    pub timers: Vec<(u32, u32, Time)>,
    /// When a machine is to enter its first state, if it hasn't.
    pub begins_at: Option<Time>,
}

/// Looks at runs, and remembers their definitions.
pub(crate) struct Lens<'a> {
    store: &'a dyn Store,
    plans: &'a Plans,
    flows: BTreeMap<Arc<str>, Arc<FlowMap>>,
}

impl<'a> Lens<'a> {
    pub(crate) fn new(store: &'a dyn Store, plans: &'a Plans) -> Lens<'a> {
        Lens { store, plans, flows: BTreeMap::new() }
    }

    /// Looks at a run until it did not change while being looked at. One that never stands still is sound enough to work:
    /// nothing is said of it.
    pub(crate) async fn look_until_still(&mut self, run: &RunKey) -> Result<Looked, StoreError> {
        let mut events = 0;
        for _ in 0..LOOKS {
            let Some(before) = self.load(run).await? else { return Ok(Looked::default()) };
            let looked = self.look(&before).await?;
            let after = self.load(run).await?;
            let still = after.is_some_and(|after| {
                (after.row.version, after.row.events) == (before.row.version, before.row.events)
            });
            if looked.violations.is_empty() || still {
                return Ok(looked);
            }
            events = looked.events;
        }
        Ok(Looked { events, ..Looked::default() })
    }

    async fn load(&self, run: &RunKey) -> Result<Option<Snapshot>, StoreError> {
        Ok(self.store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten())
    }

    async fn look(&mut self, snapshot: &Snapshot) -> Result<Looked, StoreError> {
        let row = &snapshot.row;
        let run = row.key();
        if row.events_trimmed {
            return Ok(Looked::default());
        }
        let plan = self.plans.get(self.store, &row.tenant, &row.definition).await?;
        let flow = self.flow(&plan);
        let mut look = RunCheck::new(Checker::default(), row, flow);
        let mut folding = Folding::new(&plan);
        let mut query = EventQuery::default();
        loop {
            let page = self.store.events(&run, query.clone()).await?;
            for event in &page.events {
                look.event(event);
                folding.event(&plan, event);
            }
            match page.events.last() {
                Some(last) if page.more => query.after = last.seq,
                _ => break,
            }
        }
        let jobs = self.store.jobs(&run).await?;
        if plan.machine.is_some() {
            look.receipts(&self.receipts(&run).await?);
        }
        look.state(&self.state(&run).await?);
        let shape = look.shape();
        let mut violations = look.finish(row, &jobs);
        let folded = folding.state;
        violations.extend(misfolded(snapshot, &folded));
        let whole = !violations.iter().any(|violation| violation.subject == Subject::Log);
        let events = shape.events;
        let truth = folded.ok().filter(|_| whole).map(|state| truth(plan, state, shape, snapshot, jobs));
        Ok(Looked { events, violations, truth })
    }

    /// The receipts of a machine's run.
    async fn receipts(&self, run: &RunKey) -> Result<Vec<Receipt>, StoreError> {
        let of_run = ReceiptQuery { run: Some(run.run.clone()), ..ReceiptQuery::of(run.tenant.clone()) };
        let mut query = ReceiptQuery { limit: PAGE, ..of_run };
        let mut all = Vec::new();
        loop {
            let page = self.store.receipts(query.clone()).await?;
            all.extend(page.items);
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// The run's own key-value state.
    async fn state(&self, run: &RunKey) -> Result<Vec<StateValue>, StoreError> {
        let (space, mut query) = (StateSpace::of_run(run), StateQuery::first(VALUES));
        let mut all = Vec::new();
        loop {
            let page = self.store.states(&space, query.clone()).await?;
            all.extend(page.values);
            match all.last() {
                Some(last) if page.more => query.after = Some(last.key.clone()),
                _ => return Ok(all),
            }
        }
    }

    fn flow(&mut self, plan: &Plan) -> Arc<FlowMap> {
        let flow = self.flows.entry(plan.hash.clone());
        flow.or_insert_with(|| Arc::new(FlowMap::new(plan.definition.clone()))).clone()
    }
}

/// The engine's own fold, which gives the state that a repair would write.
struct Folding {
    state: Result<RunState, FoldError>,
}

impl Folding {
    fn new(plan: &Plan) -> Folding {
        Folding { state: Ok(RunState::new(plan)) }
    }

    fn event(&mut self, plan: &Plan, event: &Event) {
        let Ok(state) = &mut self.state else { return };
        match Fact::of(plan, event) {
            Ok(fact) => drop(state.apply(plan, fact)),
            Err(error) => self.state = Err(error),
        }
    }
}

/// The state that the store keeps must be the fold of the log.
fn misfolded(snapshot: &Snapshot, folded: &Result<RunState, FoldError>) -> Option<Violation> {
    let (subject, message) = match folded {
        Ok(state) if state.is_encoded_in(&snapshot.state) => return None,
        Ok(_) => (Subject::Row, "the stored run state doesn't match the log".to_owned()),
        Err(error) => (Subject::Log, error.to_string()),
    };
    let row = &snapshot.row;
    Some(Violation {
        tenant: row.tenant.clone(),
        run_id: Some(row.run_id.clone()),
        invariant: Invariant::I12,
        message,
        subject,
    })
}

fn truth(plan: Arc<Plan>, state: RunState, shape: RunShape, snapshot: &Snapshot, jobs: Vec<JobRow>) -> Truth {
    Truth {
        index: index_of(&plan, &state, shape.failure),
        plan,
        created_at: shape.created_at.unwrap_or(snapshot.row.created_at),
        started_at: shape.started_at,
        completed_at: shape.completed_at,
        events: shape.events,
        row_events: snapshot.row.events,
        version: snapshot.row.version,
        timers: shape.timers,
        begins_at: shape.begins_at,
        state,
        jobs,
    }
}
