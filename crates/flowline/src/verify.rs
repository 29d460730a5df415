//! Verify: every log is folded again and compared with what the store says beside it.
//!
//! Looks only; `reconcile` mends. A run that changes while it is looked at is looked at again, so that a store at work
//! can be verified too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_core::event::{EventType, event_id};
use flowline_core::run::{Fact, RunState};
use flowline_core::{Event, Plan, RunKey, Tenant, Time};
use flowline_store::query::WantTotal;
use flowline_store::{
    Counter, EventQuery, Failure, Index, JobKey, JobRow, RunQuery, RunRow, Snapshot, Store, StoreError,
};
use serde::Serialize;

use crate::ledger::{RUN_TIMEOUT, index_of};
use crate::plans::Plans;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    pub runs: u64,
    pub events: u64,
    pub violations: Vec<Violation>,
}

/// Something that must always hold, and does not.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    pub tenant: Tenant,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<flowline_core::RunId>,
    /// The invariant, by number.
    pub invariant: &'static str,
    pub message: String,
    #[serde(skip)]
    pub(crate) kind: Kind,
}

/// What would mend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Row or state differ from the fold.
    Row,
    /// Jobs differ from what the state asks for.
    Jobs,
    /// Nothing is left to do, and no terminal event says so.
    Unended,
    Counter,
    /// The log itself is wrong: nothing to derive the truth from.
    Log,
}

/// How often a run that changes meanwhile is looked at.
const LOOKS: usize = 5;

/// Verifies every run of every tenant, or of one.
pub async fn verify(store: &dyn Store, plans: &Plans, only: Option<&Tenant>) -> Result<Report, StoreError> {
    let mut report = Report::default();
    for tenant in tenants(store, only).await? {
        let mut recount: BTreeMap<(Arc<str>, flowline_core::Status), u64> = BTreeMap::new();
        let mut query = RunQuery { limit: 500, total: WantTotal::No, ..RunQuery::of(tenant.clone()) };
        let before = store.counters().await?;
        loop {
            let page = store.runs(query.clone()).await?;
            for row in &page.items {
                *recount.entry((row.flow_name.clone(), row.status)).or_default() += 1;
                let looked = look_until_still(store, plans, &row.key()).await?;
                report.runs += 1;
                report.events += looked.events;
                report.violations.extend(looked.violations);
            }
            match page.next {
                Some(next) => query.cursor = Some(next),
                None => break,
            }
        }
        // Counters move while runs do; they can only be compared when they stood still.
        if before == store.counters().await? {
            report.violations.extend(miscounted(&tenant, &before, recount));
        }
    }
    Ok(report)
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

fn miscounted(
    tenant: &Tenant,
    counters: &[Counter],
    mut recount: BTreeMap<(Arc<str>, flowline_core::Status), u64>,
) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut say = |flow: &str, status, counted, there| {
        if counted != there {
            let message = format!("counter of flow {flow:?}, {status}: says {counted}, there are {there}");
            found.push(Violation {
                tenant: tenant.clone(),
                run_id: None,
                invariant: "I6",
                message,
                kind: Kind::Counter,
            });
        }
    };
    for counter in counters.iter().filter(|counter| counter.tenant == *tenant) {
        let there = recount.remove(&(counter.flow_name.clone(), counter.status)).unwrap_or(0);
        say(&counter.flow_name, counter.status, counter.count, there);
    }
    for ((flow, status), there) in recount {
        say(&flow, status, 0, there);
    }
    found
}

/// What was found of one run.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    pub events: u64,
    pub violations: Vec<Violation>,
    /// The truth as the log has it, where the log could be folded.
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
    pub version: u64,
    pub jobs: Vec<JobRow>,
}

/// Looks at a run until it did not change while being looked at.
pub(crate) async fn look_until_still(
    store: &dyn Store,
    plans: &Plans,
    run: &RunKey,
) -> Result<Looked, StoreError> {
    let mut looked = Looked::default();
    for _ in 0..LOOKS {
        let Some(before) = load(store, run).await? else { return Ok(Looked::default()) };
        looked = look(store, plans, &before).await?;
        let after = load(store, run).await?;
        let still = after.is_some_and(|after| {
            (after.row.version, after.row.events) == (before.row.version, before.row.events)
        });
        if looked.violations.is_empty() || still {
            break;
        }
    }
    Ok(looked)
}

async fn load(store: &dyn Store, run: &RunKey) -> Result<Option<Snapshot>, StoreError> {
    Ok(store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten())
}

async fn look(store: &dyn Store, plans: &Plans, snapshot: &Snapshot) -> Result<Looked, StoreError> {
    let row = &snapshot.row;
    let run = row.key();
    let mut found = Findings { row, violations: Vec::new() };
    if row.events_trimmed {
        return Ok(Looked::default());
    }
    let plan = plans.get(store, &row.tenant, &row.definition).await?;
    let mut fold = Folding::new(&plan);
    let mut query = EventQuery::default();
    loop {
        let page = store.events(&run, query.clone()).await?;
        for event in &page.events {
            fold.event(event, &mut found);
        }
        match page.events.last() {
            Some(last) if page.more => query.after = last.seq,
            _ => break,
        }
    }
    let jobs = store.jobs(&run).await?;
    let truth = fold.truth(row, jobs);
    compare(snapshot, &truth, &mut found);
    check_jobs(&truth, &mut found);
    let violations = found.violations;
    let whole = !violations.iter().any(|violation| violation.kind == Kind::Log);
    Ok(Looked { events: truth.events, violations, truth: whole.then_some(truth) })
}

struct Findings<'a> {
    row: &'a RunRow,
    violations: Vec<Violation>,
}

impl Findings<'_> {
    fn say(&mut self, kind: Kind, invariant: &'static str, message: String) {
        let (tenant, run_id) = (self.row.tenant.clone(), Some(self.row.run_id.clone()));
        self.violations.push(Violation { tenant, run_id, invariant, message, kind });
    }
}

/// Walks a log once.
struct Folding<'a> {
    plan: &'a Arc<Plan>,
    state: RunState,
    events: u64,
    last_ms: i64,
    created_at: Option<Time>,
    started_at: Option<Time>,
    completed_at: Option<Time>,
    emitted: BTreeSet<String>,
    failure: Option<Failure>,
}

impl<'a> Folding<'a> {
    fn new(plan: &'a Arc<Plan>) -> Folding<'a> {
        Folding {
            plan,
            state: RunState::new(plan),
            events: 0,
            last_ms: i64::MIN,
            created_at: None,
            started_at: None,
            completed_at: None,
            emitted: BTreeSet::new(),
            failure: None,
        }
    }

    fn event(&mut self, event: &Event, found: &mut Findings<'_>) {
        self.events += 1;
        let (seq, kind) = (event.seq, event.kind);
        if seq != self.events {
            found.say(Kind::Log, "I4", format!("event {} follows where {} should", seq, self.events));
            self.events = seq;
        }
        if event.ts.millis() < self.last_ms || event.id != event_id(event.ts.millis(), seq) {
            found.say(Kind::Log, "I4", format!("event {seq} has id {} and date {}", event.id, event.ts));
        }
        self.last_ms = event.ts.millis();
        if self.state.ended.is_some() {
            found.say(Kind::Log, "I1", format!("event {seq} ({kind}) follows the terminal event"));
        }
        if (seq == 1) != (kind == EventType::FlowStart) {
            found.say(Kind::Log, "I4", format!("event {seq} is {kind}"));
        }
        let fact = match Fact::of(self.plan, event) {
            Ok(fact) => fact,
            Err(error) => return found.say(Kind::Log, "I12", error.to_string()),
        };
        self.check_attempt(event, fact, found);
        match kind {
            EventType::FlowStart => self.created_at = Some(event.ts),
            EventType::StepStarted => drop(self.started_at.get_or_insert(event.ts)),
            _ if kind.is_terminal() => self.completed_at = Some(event.ts),
            _ => {}
        }
        let failed_before = self.state.failed.is_some();
        self.state.apply(self.plan, fact);
        // The first step that fails the run is why it fails; where none does, its end says why.
        let fails = !failed_before && self.state.failed.is_some();
        if self.failure.is_none() && (fails || kind == EventType::FlowFailed) {
            self.failure = failure_of(event);
        }
    }

    /// Attempts are contiguous, belong to steps that were triggered, and an event name is emitted once.
    fn check_attempt(&mut self, event: &Event, fact: Fact, found: &mut Findings<'_>) {
        let attempt = event.attempt.unwrap_or(0);
        let inherited = event.data.as_ref().is_some_and(|data| data.get().contains("\"inherited\":true"));
        let step = match fact {
            Fact::Emit { event: number } => {
                let name = &self.plan.events[number as usize].name;
                if !self.emitted.insert(name.to_string()) {
                    found.say(Kind::Log, "I3", format!("{name:?} is emitted again by event {}", event.seq));
                }
                return;
            }
            Fact::Started { step } | Fact::Retry { step, .. } | Fact::Failed { step, .. } => step,
            Fact::Completed { step, .. } if !inherited => step,
            _ => return,
        };
        let state = self.state.step(step);
        if !state.is_live() || state.attempt != attempt {
            let (seq, kind, name) = (event.seq, event.kind, &self.plan.step(step).name);
            let message =
                format!("event {seq} ({kind}) is of attempt {attempt} of step {name:?}, which was not due");
            found.say(Kind::Log, "I5", message);
        }
    }

    fn truth(self, row: &RunRow, jobs: Vec<JobRow>) -> Truth {
        Truth {
            plan: self.plan.clone(),
            index: index_of(&self.state, self.failure),
            created_at: self.created_at.unwrap_or(row.created_at),
            started_at: self.started_at,
            completed_at: self.completed_at,
            events: self.events,
            version: row.version,
            state: self.state,
            jobs,
        }
    }
}

/// Why a run fails, from the event that says so.
fn failure_of(event: &Event) -> Option<Failure> {
    #[derive(serde::Deserialize)]
    struct Data {
        error: String,
        step: Option<Arc<str>>,
    }
    let data: Data = event.data.as_ref()?.to().ok()?;
    Some(Failure { error: data.error, step: event.step_name.clone().or(data.step) })
}

/// The row and the stored state against the fold.
fn compare(snapshot: &Snapshot, truth: &Truth, found: &mut Findings<'_>) {
    let row = &snapshot.row;
    if snapshot.state != truth.state.encode() {
        found.say(Kind::Row, "I12", "the stored state is not the fold of the log".to_owned());
    }
    let index = &truth.index;
    let pairs = [
        ("status", row.status.to_string(), index.status.to_string()),
        ("completedSteps", row.completed_steps.to_string(), index.completed_steps.to_string()),
        ("failedSteps", row.failed_steps.to_string(), index.failed_steps.to_string()),
        ("retries", row.retries.to_string(), index.retries.to_string()),
        ("stepCount", row.step_count.to_string(), truth.plan.steps.len().to_string()),
        ("createdAt", row.created_at.to_string(), truth.created_at.to_string()),
        ("startedAt", format!("{:?}", row.started_at), format!("{:?}", truth.started_at)),
        ("completedAt", format!("{:?}", row.completed_at), format!("{:?}", truth.completed_at)),
        ("events", row.events.to_string(), truth.events.to_string()),
        ("failure", format!("{:?}", row.failure), format!("{:?}", index.failure)),
    ];
    for (field, says, folds) in pairs {
        if says != folds {
            found.say(Kind::Row, "I6", format!("{field} is {says} in the row and {folds} by the log"));
        }
    }
}

/// Jobs against what the state asks for.
fn check_jobs(truth: &Truth, found: &mut Findings<'_>) {
    let ended = truth.state.ended.is_some();
    if !ended && truth.events > 0 && would_end(truth) {
        found.say(Kind::Unended, "I1", "nothing is left to do, and no terminal event says so".to_owned());
    }
    let live: BTreeSet<(u32, u32)> = match ended {
        true => BTreeSet::new(),
        false => truth.state.live().map(|step| (step, truth.state.step(step).attempt)).collect(),
    };
    let mut there = BTreeSet::new();
    for job in &truth.jobs {
        match job.key {
            JobKey::Step(step) => {
                there.insert((step, job.attempt));
            }
            JobKey::Timer(_) if ended => {
                found.say(Kind::Jobs, "I1", format!("timer {} is left after the end", job.name));
            }
            JobKey::Timer(_) => {}
        }
    }
    let name = |step: u32| truth.plan.steps.get(step as usize).map_or("?", |step| &*step.name);
    for (step, attempt) in live.difference(&there) {
        found.say(Kind::Jobs, "I8", format!("attempt {attempt} of step {:?} has no job", name(*step)));
    }
    for (step, attempt) in there.difference(&live) {
        found.say(
            Kind::Jobs,
            "I1",
            format!("a job of attempt {attempt} of step {:?} is left over", name(*step)),
        );
    }
    let timer = truth.jobs.iter().any(|job| job.key == RUN_TIMEOUT);
    if !ended && truth.plan.definition.timeout.is_some() && !timer {
        found.say(Kind::Jobs, "I8", "the timer of the run's time-out is missing".to_owned());
    }
}

/// Whether a run that has no end could come to one by looking at it.
fn would_end(truth: &Truth) -> bool {
    use flowline_core::decide::{Known, Moment};
    if truth.state.live().next().is_some() {
        return false;
    }
    let run = flowline_core::RunId::from_key(&Tenant::default(), "", "");
    let moment = Moment { run: &run, created_at: truth.created_at, now: truth.created_at };
    let decided = flowline_core::decide(
        &truth.plan,
        &truth.state,
        &flowline_core::Input::Revisit,
        &Known::default(),
        moment,
    );
    !matches!(decided, flowline_core::Decided::Applied)
}
