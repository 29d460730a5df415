//! The verbs of a move. What is restored goes into one script, in the texts that commits write.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use flowline_core::report::ReportDigests;
use flowline_core::{RunKey, Tenant, Time};
use flowline_store::{
    CommitError, Document, Filling, NewRun, Receipt, Restored, RestoredEvent, RestoredRun, StateOwner,
    StateSpace, StateValue, StoreError, StoredDefinition, Transfer,
};

use crate::RedisStore;
use crate::answer::{text, texts};
use crate::args::ScriptArgs;
use crate::check::through;
use crate::encode;
use crate::job;
use crate::log;
use crate::names;
use crate::receipt;
use crate::row;
use crate::script;
use crate::state;

/// The most bytes in a call. One part that is larger goes alone.
const BYTES: usize = 1 << 20;
/// The most commands that a call makes the server run.
const COMMANDS: usize = 2_000;
/// The most events of a run in one part.
const EVENTS: usize = 500;
/// The most receipts of a run in one part.
const RECEIPTS: usize = 100;

/// The last numbers that restored runs and definitions got: they follow the dates of creation, and never each other.
#[derive(Debug, Default)]
pub(crate) struct Places {
    runs: AtomicU64,
    definitions: AtomicU64,
}

/// A part packed for its shard, and the commands that it makes the server run.
struct Packed {
    shard: usize,
    args: ScriptArgs,
    commands: usize,
    /// Named where it is missing.
    definition: Arc<str>,
}

#[async_trait]
impl Transfer for RedisStore {
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        let shard = &self.shards[0];
        let mut found = BTreeSet::new();
        for key in ["known", "paused"] {
            let mut asked = redis::cmd("SMEMBERS");
            asked.arg(shard.key(key));
            for name in texts(shard.ask(&asked).await?)? {
                let tenant = names::decode(name.split('/').next().unwrap_or_default())?;
                found.insert(Tenant::new(&tenant).map_err(|error| StoreError::Damaged(error.to_string()))?);
            }
        }
        found.extend(self.live_owners().await?.into_iter().map(|space| space.tenant));
        Ok(found.into_iter().collect())
    }

    async fn collections(&self) -> Result<Vec<String>, StoreError> {
        self.live_collections().await
    }

    async fn begin_filling(&self) -> Result<Filling, StoreError> {
        let shard = &self.shards[0];
        let mut marked = redis::cmd("HEXISTS");
        marked.arg(shard.meta()).arg("filling");
        if shard.ask(&marked).await? == redis::Value::Int(1) {
            for shard in &self.shards {
                through(shard, &script::WIPE).await?;
            }
        } else if !(self.tenants().await?.is_empty() && self.live_collections().await?.is_empty()) {
            return Ok(Filling::NotEmpty);
        }
        self.places.runs.store(0, Ordering::Relaxed);
        self.places.definitions.store(0, Ordering::Relaxed);
        let mut mark = redis::cmd("HSET");
        mark.arg(shard.meta()).arg("filling").arg(1);
        shard.ask(&mark).await?;
        Ok(Filling::Begun)
    }

    async fn restore(&self, parts: Vec<Restored>) -> Result<(), CommitError> {
        let mut calls: Vec<Vec<Packed>> = self.shards.iter().map(|_| Vec::new()).collect();
        for part in parts {
            for packed in self.pack(part)? {
                let call = &mut calls[packed.shard];
                let (bytes, commands) = call.iter().fold((0, 0), |(bytes, commands), packed| {
                    (bytes + packed.args.size(), commands + packed.commands)
                });
                let full = bytes + packed.args.size() > BYTES || commands + packed.commands > COMMANDS;
                if full && !call.is_empty() {
                    let full = std::mem::take(call);
                    self.send(full).await?;
                }
                calls[packed.shard].push(packed);
            }
        }
        for call in calls {
            self.send(call).await?;
        }
        self.wake();
        Ok(())
    }

    async fn end_filling(&self) -> Result<(), StoreError> {
        let mut unmark = redis::cmd("HDEL");
        unmark.arg(self.shards[0].meta()).arg("filling");
        self.shards[0].ask(&unmark).await.map(drop)
    }
}

impl RedisStore {
    fn pack(&self, part: Restored) -> Result<Vec<Packed>, StoreError> {
        Ok(match part {
            Restored::Definition(definition) => self.pack_definition(&definition),
            Restored::Run(run) => vec![self.pack_run(*run)?],
            Restored::Events { run, events } => {
                events.chunks(EVENTS).map(|events| self.pack_events(&run, events)).collect()
            }
            Restored::Receipts { run, receipts } => {
                receipts.chunks(RECEIPTS).map(|receipts| self.pack_receipts(&run, receipts)).collect()
            }
            Restored::Values { space, values } => {
                values.iter().map(|value| self.pack_value(&space, value)).collect()
            }
            Restored::Documents { collection, documents } => {
                documents.iter().map(|document| self.pack_document(&collection, document)).collect()
            }
        })
    }

    /// The first shard has the definitions; the others know which there are.
    fn pack_definition(&self, definition: &StoredDefinition) -> Vec<Packed> {
        let StoredDefinition { tenant, flow, hash, body, origin, created_at, latest } = definition;
        let place = next_place(&self.places.definitions, *created_at, 1);
        let mut args = ScriptArgs::new();
        args.number(11).text("F").name(tenant.as_str()).name(hash).name(flow).text(body);
        args.number(created_at.millis()).number(place).text(if origin.is_some() { "1" } else { "" });
        args.text(origin.as_deref().unwrap_or_default()).text(if *latest { "1" } else { "" });
        let first = Packed { shard: 0, args, commands: 5, definition: hash.clone() };
        let know = |shard| {
            let mut args = ScriptArgs::new();
            args.number(4).text("K").name(tenant.as_str()).name(hash);
            Packed { shard, args, commands: 1, definition: hash.clone() }
        };
        std::iter::once(first).chain((1..self.shards.len()).map(know)).collect()
    }

    fn pack_run(&self, restored: RestoredRun) -> Result<Packed, StoreError> {
        let RestoredRun { row, jobs, token, .. } = &restored;
        let run = names::run(&row.key());
        let place = next_place(&self.places.runs, row.created_at, 1 + jobs.len() as u64);
        let mut args = ScriptArgs::new();
        args.number(8 + 2 * jobs.len()).text("R").text(&run).number(row.created_at.millis());
        row::write(&mut args, &restored, place)?;
        let new = NewRun::of_row(row);
        encode::start(&mut args, &run, &new)?;
        args.bytes(&restored.reports.as_ref().map(ReportDigests::encode).unwrap_or_default());
        let definition = new.definition;
        for (at, job) in (place + 1..).zip(jobs) {
            args.number(job.key.number());
            job::write(&mut args, job, *token, at);
        }
        let commands = 11 + 2 * jobs.len() + row.labels.len();
        Ok(Packed { shard: self.shard_number(&run), args, commands, definition })
    }

    fn pack_events(&self, run: &RunKey, events: &[RestoredEvent]) -> Packed {
        let run = names::run(run);
        let dates = RestoredEvent::by_date(events).count();
        let mut args = ScriptArgs::new();
        args.number(4 + 3 * dates + events.len()).text("E").text(&run).number(dates);
        for same in RestoredEvent::by_date(events) {
            let first = &same[0].event;
            args.number(first.ts.millis()).number(first.seq).number(same.len());
            for event in same {
                log::event(&mut args, &event.undated());
                args.end();
            }
        }
        let commands = 3 + 2 * events.len();
        Packed { shard: self.shard_number(&run), args, commands, definition: "".into() }
    }

    fn pack_receipts(&self, run: &RunKey, receipts: &[Receipt]) -> Packed {
        let run = names::run(run);
        let mut args = ScriptArgs::new();
        args.number(3 + 2 * receipts.len()).text("C").text(&run);
        for receipt in receipts {
            args.number(receipt.number);
            receipt::write(&mut args, receipt);
        }
        let commands = 3 + 3 * receipts.len();
        Packed { shard: self.shard_number(&run), args, commands, definition: "".into() }
    }

    fn pack_value(&self, space: &StateSpace, value: &StateValue) -> Packed {
        let shard = match &space.owner {
            StateOwner::Run(run) => {
                self.shard_number(&names::run(&RunKey::new(space.tenant.clone(), run.clone())))
            }
            _ => 0,
        };
        let mut args = ScriptArgs::new();
        args.number(7).text("V").text(&state::owner_name(space)).number(1);
        args.text(&value.key).text(value.value.get());
        args.text(&value.expires.map_or_else(|| "-".to_owned(), |expires| expires.millis().to_string()));
        Packed { shard, args, commands: 3, definition: "".into() }
    }

    fn pack_document(&self, collection: &str, document: &Document) -> Packed {
        let mut args = ScriptArgs::new();
        args.number(6).text("D").name(collection).text(&document.id).text(document.body.get());
        args.text(&document.expires.map_or_else(|| "-".to_owned(), |expires| expires.millis().to_string()));
        Packed { shard: self.home_number(collection), args, commands: 4, definition: "".into() }
    }

    async fn send(&self, call: Vec<Packed>) -> Result<(), CommitError> {
        let Some(shard) = call.first().map(|packed| &self.shards[packed.shard]) else { return Ok(()) };
        let mut head = ScriptArgs::new();
        head.text(&self.who).number(call.len());
        let args: Vec<&ScriptArgs> =
            std::iter::once(&head).chain(call.iter().map(|packed| &packed.args)).collect();
        let mut answer = shard.call(&script::RESTORE, args).await?;
        match text(answer.rest.next().unwrap_or_default())?.as_str() {
            "" => Ok(()),
            "E" => Err(CommitError::Exists),
            "D" => {
                let missing = call.into_iter().map(|packed| packed.definition).find(|hash| !hash.is_empty());
                Err(CommitError::UnknownDefinition(missing.unwrap_or_else(|| "".into())))
            }
            _ => {
                Err(StoreError::Invalid("events or receipts of a run come before the run itself".to_owned())
                    .into())
            }
        }
    }
}

/// Lists and filters by date go by the number, so it is the date of creation as far as the order allows.
fn next_place(last: &AtomicU64, created: Time, width: u64) -> u64 {
    let wanted = u64::try_from(created.millis()).unwrap_or(0).saturating_mul(1_000);
    let next = |last: u64| Some(wanted.max(last) + width);
    let before = last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    before.unwrap_or_else(|last| last).max(wanted)
}
