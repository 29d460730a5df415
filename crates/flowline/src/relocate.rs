//! Moves everything in a store into an empty one while no engine works on either.
//!
//! Events keep their number, date and id; runs keep their version, state and jobs, so they continue where they were.
//! Lists show the newest first, and a store lists runs in the order in which they arrive, so pages are moved from the
//! last to the first. Memory holds only the cursors of the pages, one page of runs and a few events.
//!
//! Leases are moved with a token that nobody knows, because their holders are gone. When they expire, the target's
//! engines start the next attempt, as after any crash. The target keeps its own counters and lists. Named locks aren't
//! moved, because nobody is alive to hold them. Documents keep their expiry.
//!
//! The source is only read. The target is compared with it before the move counts as complete.

mod documents;

use flowline_core::run::Fact;
use flowline_core::{Event, Json, RunKey, RunState, Tenant, Time};
use flowline_store::query::{MAX_PAGE, WantTotal};
use flowline_store::row::Pause;
use flowline_store::{
    CommitError, EventPage, EventQuery, Filling, JobState, ReceiptPage, ReceiptQuery, Restored,
    RestoredEvent, RestoredRun, RunQuery, RunRow, StateOwner, StatePage, StateQuery, StateSpace, Store,
    StoreError,
};
use serde::Serialize;

use crate::plans::Plans;
use crate::slots::Tokens;
use crate::verify::Rows;
use documents::Documents;

/// Runs on a page.
const RUNS: usize = 200;
/// Events read at a time: each may be as large as a payload can be.
const EVENTS: usize = 250;
/// Receipts read at a time.
const RECEIPTS: usize = 250;
/// Key-value state read at a time.
const VALUES: usize = 250;
/// What is written in one go: enough that the way there costs little, and not so much that it fills memory.
const PARCEL_BYTES: usize = 1 << 20;
const PARCEL_PARTS: usize = 2_000;

/// What there is to carry.
#[derive(Debug)]
pub struct Survey {
    tenants: Vec<Pages>,
    pub runs: u64,
    /// When the last lease expires that wasn't given back. If that's in the future, an engine may be running.
    pub leased_until: Option<Time>,
}

/// The cursors of a tenant's pages, in the order of the list.
#[derive(Debug)]
struct Pages {
    tenant: Tenant,
    cursors: Vec<Option<String>>,
}

/// What was carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveCounts {
    pub tenants: u64,
    pub definitions: u64,
    pub runs: u64,
    pub events: u64,
    pub jobs: u64,
    pub values: u64,
    pub paused_queues: u64,
    pub documents: u64,
    pub receipts: u64,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    #[error("the target isn't empty")]
    NotEmpty,
    /// What arrived is not what is there now.
    #[error("{0}")]
    Differs(String),
    #[error(transparent)]
    Refused(#[from] CommitError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Looks through the lists of the source.
pub async fn survey(source: &dyn Store) -> Result<Survey, StoreError> {
    let mut survey = Survey { tenants: Vec::new(), runs: 0, leased_until: None };
    for tenant in source.tenants().await? {
        let mut cursors = vec![None];
        loop {
            let page = source.runs(query(&tenant, cursors.last().cloned().flatten())).await?;
            for row in &page.items {
                survey.runs += 1;
                let jobs = if row.status.is_terminal() { vec![] } else { source.jobs(&row.key()).await? };
                let leased = jobs.iter().filter(|job| job.state == JobState::Leased && !job.released);
                survey.leased_until = survey.leased_until.max(leased.filter_map(|job| job.expires).max());
            }
            match page.next {
                Some(next) => cursors.push(Some(next)),
                None => break,
            }
        }
        survey.tenants.push(Pages { tenant, cursors });
    }
    Ok(survey)
}

/// Carries all that was surveyed and compares the lists of both. `told` hears how many runs are over there. The target
/// stays marked as half moved: [`Store::end_filling`] is the caller's, after its own checks.
///
/// [`Store::end_filling`]: flowline_store::Transfer::end_filling
pub async fn relocate(
    source: &dyn Store,
    target: &dyn Store,
    survey: &Survey,
    told: &mut (dyn FnMut(u64) + Send),
) -> Result<MoveCounts, MoveError> {
    if target.begin_filling().await? == Filling::NotEmpty {
        return Err(MoveError::NotEmpty);
    }
    let mut cart = Cart {
        source,
        target,
        plans: Plans::default(),
        tokens: Tokens::random(),
        parcel: Parcel::default(),
        moved: MoveCounts::default(),
    };
    for pages in &survey.tenants {
        cart.definitions(&pages.tenant).await?;
        for cursor in pages.cursors.iter().rev() {
            let page = source.runs(query(&pages.tenant, cursor.clone())).await?;
            cart.runs(page.items).await?;
            told(cart.moved.runs);
        }
        cart.shared_values(&pages.tenant).await?;
        cart.paused_queues(&pages.tenant).await?;
        cart.moved.tenants += 1;
    }
    for collection in source.collections().await? {
        cart.documents(&collection).await?;
    }
    cart.send().await?;
    for pages in &survey.tenants {
        compare(source, target, &pages.tenant).await?;
    }
    documents::compare(source, target).await?;
    if receipts(target, survey).await? != cart.moved.receipts {
        return Err(differs("the number of receipts".to_owned()));
    }
    Ok(cart.moved)
}

/// How many receipts a store lists.
async fn receipts(store: &dyn Store, survey: &Survey) -> Result<u64, StoreError> {
    let mut count = 0;
    for pages in &survey.tenants {
        let mut query = ReceiptQuery { limit: MAX_PAGE, ..ReceiptQuery::of(pages.tenant.clone()) };
        loop {
            let page = store.receipts(query.clone()).await?;
            count += page.items.len() as u64;
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
    }
    Ok(count)
}

fn query(tenant: &Tenant, cursor: Option<String>) -> RunQuery {
    RunQuery { cursor, limit: RUNS, total: WantTotal::No, ..RunQuery::of(tenant.clone()) }
}

struct Cart<'a> {
    source: &'a dyn Store,
    target: &'a dyn Store,
    plans: Plans,
    tokens: Tokens,
    parcel: Parcel,
    moved: MoveCounts,
}

/// Parts that go together.
#[derive(Default)]
struct Parcel {
    parts: Vec<Restored>,
    bytes: usize,
    /// About as many rows.
    rows: usize,
}

impl Cart<'_> {
    async fn definitions(&mut self, tenant: &Tenant) -> Result<(), MoveError> {
        // The newest stands first within its flow, and must come last.
        for definition in self.source.definitions(tenant).await?.into_iter().rev() {
            self.moved.definitions += 1;
            let bytes = definition.body.len();
            self.put(Restored::Definition(definition), bytes, 1).await?;
        }
        Ok(())
    }

    /// Carries a page of runs, the oldest first.
    async fn runs(&mut self, rows: Vec<RunRow>) -> Result<(), MoveError> {
        let keys: Vec<RunKey> = rows.iter().rev().map(RunRow::key).collect();
        for (key, found) in keys.iter().zip(self.source.load(&keys).await?) {
            let gone = || MoveError::Differs(format!("run {key} was removed while it was being moved"));
            let snapshot = found.ok_or_else(gone)?;
            self.run(key, snapshot.row, snapshot.state).await?;
        }
        Ok(())
    }

    async fn run(&mut self, key: &RunKey, row: RunRow, state: Vec<u8>) -> Result<(), MoveError> {
        let mut page = self.events(key, 0, EVENTS).await?;
        let last = match page.events.last() {
            Some(_) if page.more => self.events(key, row.events.saturating_sub(1), 1).await?.events.pop(),
            last => last.cloned(),
        };
        let last = last.map_or(row.completed_at.unwrap_or(row.created_at), |event| event.ts);
        // Ended runs have none: that was verified.
        let jobs = if row.status.is_terminal() { vec![] } else { self.source.jobs(key).await? };
        self.moved.runs += 1;
        self.moved.jobs += jobs.len() as u64;
        let (tenant, definition, bytes, parts) =
            (row.tenant.clone(), row.definition.clone(), state.len(), 1 + jobs.len());
        let reports = if row.events_trimmed { self.source.reports(key).await? } else { None };
        let run = RestoredRun { row, state, last, jobs, token: self.tokens.next(), reports };
        self.put(Restored::Run(Box::new(run)), bytes, parts).await?;
        let plan = self.plans.get(self.source, &tenant, &definition).await?;
        let mut folded = RunState::new(&plan);
        while let Some(last) = page.events.last().map(|event| event.seq) {
            let mut slot = |event: &Event| {
                let fact = Fact::of(&plan, event).ok()?;
                let slot = fact.slot(&plan, &folded);
                folded.apply(&plan, fact);
                slot
            };
            let events = page.events.into_iter().map(|event| RestoredEvent { slot: slot(&event), event });
            let events: Vec<RestoredEvent> = events.collect();
            self.moved.events += events.len() as u64;
            let (bytes, count) = (events.iter().map(weight).sum(), events.len());
            self.put(Restored::Events { run: key.clone(), events }, bytes, count).await?;
            page = match page.more {
                true => self.events(key, last, EVENTS).await?,
                false => EventPage { events: Vec::new(), more: false },
            };
        }
        self.receipts(key).await?;
        self.values(&tenant, StateOwner::Run(key.run.clone())).await
    }

    async fn receipts(&mut self, key: &RunKey) -> Result<(), MoveError> {
        let of_run = ReceiptQuery { run: Some(key.run.clone()), ..ReceiptQuery::of(key.tenant.clone()) };
        let mut query = ReceiptQuery { limit: RECEIPTS, ..of_run };
        loop {
            let ReceiptPage { items: receipts, next } = self.source.receipts(query.clone()).await?;
            if receipts.is_empty() {
                return Ok(());
            }
            let count = receipts.len();
            self.moved.receipts += count as u64;
            let bytes = |json: &Option<Json>| json.as_ref().map_or(0, |json| json.get().len());
            let bytes = receipts.iter().map(|receipt| bytes(&receipt.sender) + bytes(&receipt.outcome)).sum();
            self.put(Restored::Receipts { run: key.clone(), receipts }, bytes, count).await?;
            query.after = match next {
                Some(next) => Some(next),
                None => return Ok(()),
            };
        }
    }

    async fn events(&self, run: &RunKey, after: u64, limit: usize) -> Result<EventPage, StoreError> {
        self.source.events(run, EventQuery { after, limit, ..EventQuery::default() }).await
    }

    /// Key-value state of flows, of the tenant and of its named scopes.
    async fn shared_values(&mut self, tenant: &Tenant) -> Result<(), MoveError> {
        let mut flows: Vec<_> =
            self.source.definitions(tenant).await?.into_iter().map(|one| one.flow).collect();
        flows.dedup();
        for flow in flows {
            self.values(tenant, StateOwner::Flow(flow)).await?;
        }
        for scope in self.source.scopes(tenant).await? {
            self.values(tenant, StateOwner::Named(scope)).await?;
        }
        self.values(tenant, StateOwner::Tenant).await
    }

    async fn values(&mut self, tenant: &Tenant, owner: StateOwner) -> Result<(), MoveError> {
        let (space, mut query) = (StateSpace::new(tenant, owner), StateQuery::first(VALUES));
        loop {
            let StatePage { values, more } = self.source.states(&space, query.clone()).await?;
            let Some(last) = values.last() else { return Ok(()) };
            query.after = Some(last.key.clone());
            self.moved.values += values.len() as u64;
            let bytes = values.iter().map(|value| value.key.len() + value.value.get().len()).sum();
            let count = values.len();
            self.put(Restored::Values { space: space.clone(), values }, bytes, count).await?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn paused_queues(&mut self, tenant: &Tenant) -> Result<(), MoveError> {
        let mut paused: Vec<_> = self
            .source
            .queues(tenant)
            .await?
            .into_iter()
            .filter(|row| row.paused)
            .map(|row| row.queue)
            .collect();
        paused.dedup();
        for queue in paused {
            self.target.pause_queue(tenant, &queue, Pause::Paused).await?;
            self.moved.paused_queues += 1;
        }
        Ok(())
    }

    async fn documents(&mut self, collection: &str) -> Result<(), MoveError> {
        let mut all = Documents::of(self.source, collection);
        loop {
            let documents = all.page().await?;
            if documents.is_empty() {
                return Ok(());
            }
            let count = documents.len();
            self.moved.documents += count as u64;
            let bytes = documents.iter().map(|document| document.id.len() + document.body.get().len()).sum();
            let collection = collection.to_owned();
            self.put(Restored::Documents { collection, documents }, bytes, count).await?;
        }
    }

    async fn put(&mut self, part: Restored, bytes: usize, rows: usize) -> Result<(), MoveError> {
        self.parcel.parts.push(part);
        self.parcel.bytes += bytes;
        self.parcel.rows += rows;
        if self.parcel.bytes >= PARCEL_BYTES || self.parcel.rows >= PARCEL_PARTS {
            self.send().await?;
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<(), MoveError> {
        let Parcel { parts, .. } = std::mem::take(&mut self.parcel);
        if !parts.is_empty() {
            self.target.restore(parts).await?;
        }
        Ok(())
    }
}

fn weight(event: &RestoredEvent) -> usize {
    event.event.data.as_ref().map_or(0, |data| data.get().len())
}

fn differs(what: String) -> MoveError {
    MoveError::Differs(format!(
        "{what} differs between the stores: something was working on one of them during the move; stop every engine and \
         repeat the move"
    ))
}

/// Both list the same definitions, runs and queues.
async fn compare(source: &dyn Store, target: &dyn Store, tenant: &Tenant) -> Result<(), MoveError> {
    if source.definitions(tenant).await? != target.definitions(tenant).await? {
        return Err(differs(format!("the list of definitions of tenant {tenant}")));
    }
    let paused = async |store: &dyn Store| -> Result<Vec<(String, bool)>, StoreError> {
        let rows = store.queues(tenant).await?.into_iter();
        Ok(rows.map(|row| (format!("{} {}", row.queue, row.need), row.paused)).collect())
    };
    if paused(source).await? != paused(target).await? {
        return Err(differs(format!("the list of queues of tenant {tenant}")));
    }
    let (mut here, mut there) = (Rows::of(tenant), Rows::of(tenant));
    loop {
        match (here.next(source).await?, there.next(target).await?) {
            (None, None) => return Ok(()),
            (here, there) => {
                let (here, there) = (here.unwrap_or_default(), there.unwrap_or_default());
                if let Some((row, _)) = here.iter().zip(&there).find(|(here, there)| here != there) {
                    return Err(differs(format!("run {}", row.key())));
                }
                if here.len() != there.len() {
                    return Err(differs(format!("the list of runs of tenant {tenant}")));
                }
            }
        }
    }
}
