//! A store and the in-memory model, given the same random calls in step: every answer must be the same, and in the end
//! every row, event, job and counter.
//!
//! Answers are compared as their whole `Debug` text, cut down only where the contract leaves a store free: cursors, the
//! order of events of different runs, the wording of errors. With a store that has its own clock, dates are cut too.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use flowline_core::{Event, Time};

use super::ops::{ContractCall, Held, Maker};
use super::{Fixture, given};
use crate::memory::MemoryStore;
use crate::{Clock, DocumentQuery, FeedFilter, ReceiptQuery, RunQuery, Store, StoreError};

/// Calls per seed.
const CALLS: usize = 200;

/// Where a store and the model parted.
#[derive(Debug, Clone)]
pub struct Mismatch {
    pub seed: u64,
    /// Every call up to the one that was answered differently.
    pub history: Vec<String>,
    pub store: String,
    pub model: String,
}

/// Runs the sequences of all `seeds`, each on a fresh store. Panics at the first that differs, with its seed, its calls
/// and both answers.
pub async fn differential<F, Fut>(open: F, seeds: Range<u64>)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Fixture>,
{
    for seed in seeds {
        if let Err(mismatch) = compare(open().await, seed).await {
            panic!("{mismatch}");
        }
    }
}

/// Runs the sequence of one seed.
pub async fn compare(fixture: Fixture, seed: u64) -> Result<(), Mismatch> {
    let exact = fixture.clock().is_some();
    let clock = fixture.clock().cloned().unwrap_or_else(|| Clock::manual(Time::from_millis(0)));
    let model = MemoryStore::new(clock.clone());
    let mut maker = Maker::new(seed, model.clone(), exact);
    let (store, model) = (Side::new(fixture.store.clone()), Side::new(Arc::new(model)));
    let mut pair = Pair { seed, clock, exact, store, model, history: Vec::new() };
    for op in Maker::opening() {
        pair.step(op).await?;
    }
    for _ in 0..CALLS {
        let op = maker.next(&pair.model.held).await;
        pair.step(op).await?;
    }
    for op in maker.closing() {
        pair.step(op).await?;
    }
    Ok(())
}

/// The store under test and the model, in step.
struct Pair {
    seed: u64,
    /// Shared by both where `exact`; otherwise the model's alone, set to the store's time before every call.
    clock: Clock,
    exact: bool,
    store: Side,
    model: Side,
    history: Vec<String>,
}

impl Pair {
    async fn step(&mut self, op: ContractCall) -> Result<(), Mismatch> {
        self.history.push(format!("{op:?}"));
        if let ContractCall::Pass(ms) = op {
            if self.exact {
                self.clock.set(Time::from_millis(self.clock.now().millis() + ms));
            }
            return Ok(());
        }
        if !self.exact {
            match self.store.store.now().await {
                Ok(now) => self.clock.set(now),
                Err(error) => return Err(self.mismatch(error.to_string(), "the time".to_owned())),
            }
        }
        let store = self.store.answer(op.clone()).await;
        let model = self.model.answer(op).await;
        let same = match self.exact {
            true => store == model,
            false => without_dates(&store) == without_dates(&model),
        };
        if same { Ok(()) } else { Err(self.mismatch(store, model)) }
    }

    fn mismatch(&mut self, store: String, model: String) -> Mismatch {
        Mismatch { seed: self.seed, history: std::mem::take(&mut self.history), store, model }
    }
}

/// One of the two stores, how far its feed was read, and the leases that it gave out.
struct Side {
    store: Arc<dyn Store>,
    cursor: String,
    held: Vec<Held>,
}

impl Side {
    fn new(store: Arc<dyn Store>) -> Side {
        Side { store, cursor: String::new(), held: Vec::new() }
    }

    async fn answer(&mut self, op: ContractCall) -> String {
        self.try_answer(op).await.unwrap_or_else(|error| kind(&error).to_owned())
    }

    async fn try_answer(&mut self, op: ContractCall) -> Result<String, StoreError> {
        let store = self.store.clone();
        Ok(match op {
            ContractCall::Pass(_) => String::new(),
            ContractCall::Commit(batch) => {
                let asked: Vec<_> =
                    batch.iter().map(|commit| (commit.run.clone(), commit.add.clone())).collect();
                let answers = store.commit(batch).await?;
                for ((run, added), answer) in asked.into_iter().zip(&answers) {
                    let Ok(landed) = answer else { continue };
                    for job in added.into_iter().filter(|job| landed.granted.contains(&job.key)) {
                        let Some(handoff) = job.handoff else { continue };
                        let (run, token) = (run.clone(), handoff.token);
                        self.held.push(Held { run, key: job.key, attempt: job.attempt, token });
                    }
                }
                format!("{answers:#?}")
            }
            ContractCall::Claim(claim) => {
                let claimed = store.claim(claim).await?;
                for job in &claimed.jobs {
                    let (run, key, attempt, token) = (job.run.clone(), job.key, job.attempt, job.token);
                    self.held.push(Held { run, key, attempt, token });
                }
                format!("{claimed:#?}")
            }
            ContractCall::Sweep => {
                let mut swept = store.sweep(1_000).await?;
                swept.expired.sort_by(|a, b| (&a.run, a.key).cmp(&(&b.run, b.key)));
                swept.timers.sort_by(|a, b| (&a.run, a.key).cmp(&(&b.run, b.key)));
                format!("{swept:#?}")
            }
            ContractCall::Runs(query) => self.all_runs(query).await?,
            ContractCall::Feed(limit) => self.read_feed(limit).await?,
            ContractCall::Counters => {
                let mut counters = store.counters().await?;
                counters.sort();
                format!("{counters:#?}")
            }
            ContractCall::States(space, query) => {
                // Without their ends: clocks differ.
                let page = store.states(&space, query).await?;
                let values: Vec<_> = page.values.into_iter().map(|value| (value.key, value.value)).collect();
                format!("{values:#?} {}", page.more)
            }
            ContractCall::Scopes(tenant) => format!("{:#?}", store.scopes(&tenant).await?),
            ContractCall::ChangeState(space, edit) => {
                format!("{:#?}", store.change_state(&space, edit).await)
            }
            ContractCall::Append(batch) => format!("{:#?}", store.append(batch).await?),
            ContractCall::Renew(leases, renewal) => format!("{:#?}", store.renew(leases, renewal).await?),
            ContractCall::Load(runs) => format!("{:#?}", store.load(&runs).await?),
            ContractCall::Payloads(run, slots) => format!("{:#?}", store.payloads_of(&run, &slots).await?),
            ContractCall::Events(run, query) => format!("{:#?}", store.events(&run, query).await?),
            ContractCall::Jobs(run) => format!("{:#?}", store.jobs(&run).await?),
            ContractCall::Queues(tenant) => format!("{:#?}", store.queues(&tenant).await?),
            ContractCall::Pause(tenant, queue, pause) => {
                format!("{:#?}", store.pause_queue(&tenant, queue, pause).await?)
            }
            ContractCall::Retain(policy) => format!("{:#?}", store.retain(policy, 1_000).await?),
            ContractCall::Delete(runs) => format!("{:#?}", store.delete_runs(&runs).await?),
            ContractCall::Reports(run) => format!("{:#?}", store.reports(&run).await?),
            ContractCall::Repair(repair) => format!("{:#?}", store.repair(repair).await),
            ContractCall::Define(definition) => format!("{:#?}", store.put_definition(definition).await?),
            ContractCall::SetLatest(tenant, hash) => {
                format!("{:#?}", store.set_latest(&tenant, given::FLOW, hash.as_deref()).await?)
            }
            ContractCall::Acquire(request) => format!("{:#?}", store.acquire_lock(request).await?),
            ContractCall::RenewLock(lock, renewal) => {
                format!("{:#?}", store.renew_lock(lock, renewal).await?)
            }
            ContractCall::Locks(tenant) => format!("{:#?}", store.locks(&tenant).await?),
            ContractCall::Receipt(run, event_id) => format!("{:#?}", store.receipt(&run, &event_id).await?),
            ContractCall::Receipts(query) => self.all_receipts(query).await?,
            ContractCall::PutDocument(document) => format!("{:#?}", store.put_document(document).await?),
            ContractCall::Document(collection, id) => {
                format!("{:#?}", store.document(collection, &id).await?)
            }
            ContractCall::DeleteDocument(collection, id) => {
                format!("{:#?}", store.delete_document(collection, &id).await?)
            }
            ContractCall::Documents(collection, query) => self.all_documents(collection, query).await?,
            ContractCall::Definitions(tenant) => format!("{:#?}", store.definitions(&tenant).await?),
        })
    }

    async fn all_runs(&self, mut query: RunQuery) -> Result<String, StoreError> {
        let mut shown = String::new();
        loop {
            let page = self.store.runs(query.clone()).await?;
            shown.push_str(&format!("{:#?} {:?} more: {}\n", page.items, page.total, page.next.is_some()));
            if page.next.is_none() {
                return Ok(shown);
            }
            query.cursor = page.next;
        }
    }

    /// Sorted by run and number: the order of those of one date is a store's own.
    async fn all_receipts(&self, mut query: ReceiptQuery) -> Result<String, StoreError> {
        let (mut all, mut pages) = (Vec::new(), Vec::new());
        loop {
            let page = self.store.receipts(query.clone()).await?;
            pages.push(page.items.len());
            all.extend(page.items);
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        let newest_first = all.is_sorted_by(|a, b| a.received_at >= b.received_at);
        all.sort_by(|a, b| (&a.run_id, a.number).cmp(&(&b.run_id, b.number)));
        Ok(format!("{all:#?} pages: {pages:?}, newest first: {newest_first}"))
    }

    async fn all_documents(&self, collection: &str, mut query: DocumentQuery) -> Result<String, StoreError> {
        let mut shown = String::new();
        loop {
            let page = self.store.documents(collection, query.clone()).await?;
            shown.push_str(&format!("{page:#?}\n"));
            if !page.more {
                return Ok(shown);
            }
            query.after = page.items.last().map(|last| last.id.clone());
        }
    }

    /// Reads on to the end, and gives what was read, in order per run.
    async fn read_feed(&mut self, limit: usize) -> Result<String, StoreError> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let page = self.store.feed(FeedFilter::default(), &self.cursor, limit).await?;
            events.extend(page.events);
            self.cursor = page.cursor;
            if !page.more {
                break;
            }
        }
        events.sort_by_key(|event| (event.tenant.clone(), event.run_id.clone()));
        Ok(format!("{events:#?}"))
    }
}

fn kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable(_) => "unavailable",
        StoreError::CannotWrite(_) => "cannot write",
        StoreError::Missing(_) => "missing",
        StoreError::InUse(_) => "in use",
        StoreError::Incompatible(_) => "incompatible",
        StoreError::HalfMoved(_) => "half moved",
        StoreError::Damaged(_) => "damaged",
        StoreError::WentBack(_) => "went back",
        StoreError::Invalid(_) => "invalid",
    }
}

/// Cuts out times, event ids and durations, by their shape in the text of an answer.
fn without_dates(text: &str) -> String {
    let mut within = false;
    let lines = text.lines().filter(|line| {
        let cut = within || line.trim_start().starts_with("id: ");
        // Both are shown over three lines: this one, the number, `)`.
        within = line.ends_with("Time(") || line.ends_with("duration: Some(");
        !cut
    });
    lines.map(|line| format!("{line}\n")).collect()
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: the store and the model differ after these calls:", self.seed)?;
        for call in &self.history {
            writeln!(f, "  {call}")?;
        }
        writeln!(f, "\nthe store's answer to the last:\n{}\n\nthe model's:\n{}\n", self.store, self.model)?;
        let lines = self.store.lines().zip(self.model.lines()).enumerate();
        if let Some((n, (store, model))) = lines.into_iter().find(|(_, (store, model))| store != model) {
            writeln!(f, "first differing line, {}: store {store:?}, model {model:?}", n + 1)?;
        }
        Ok(())
    }
}
