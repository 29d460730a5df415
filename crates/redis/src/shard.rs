//! A shard: the part of a store whose keys stand under one hash tag, so that one script can change them together.
//!
//! Plain Redis has one, a cluster several. Every script is told the highest count of the shard that this process has seen,
//! and the count at its own last write, which the shard keeps as the mark of this process. A shard that stands behind either
//! went back in time (an older file restored, a replica promoted that lacked writes, a FLUSHALL): from then on this store
//! answers nothing but that. The mark tells it even where others have written past the count since.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use flowline_core::Time;
use flowline_store::StoreError;
use redis::{Cmd, ErrorKind, Pipeline, ServerErrorKind, Value};

use crate::answer::{number, text};
use crate::args::ScriptArgs;
use crate::link::{Link, failed};
use crate::script::Script;

/// How far ahead of a server's clock hints lie, so that the order of one caller's batch holds across shards.
const AHEAD: u64 = 2_000;
/// Marks go with retention when they are 30 days old: a process that slept for nearly as long begins anew. Microseconds.
const SLEPT: u64 = 20 * 86_400 * 1_000_000;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) link: Link,
    /// The hash tag that all keys begin with: `{prefix:number}`.
    pub(crate) base: String,
    meta: String,
    seen: AtomicU64,
    /// The mark that surely is in the store: the count at a write of this process.
    mine: AtomicU64,
    /// When that was answered, in microseconds of the local clock.
    answered: AtomicU64,
    who: Arc<str>,
    shared: Arc<ShardsCore>,
}

/// What the shards of a store have in common.
#[derive(Debug, Default)]
pub(crate) struct ShardsCore {
    halted: OnceLock<String>,
    /// The highest server time seen, less our own, in microseconds.
    offset: AtomicU64,
    hint: AtomicU64,
}

/// What a script answered, after its head.
#[derive(Debug)]
pub(crate) struct ScriptReply {
    pub(crate) now: Time,
    pub(crate) rest: std::vec::IntoIter<Value>,
}

impl Shard {
    pub(crate) fn new(
        link: Link,
        prefix: &str,
        number: u32,
        who: Arc<str>,
        shared: Arc<ShardsCore>,
    ) -> Shard {
        let base = format!("{{{prefix}:{number}}}");
        let (seen, mine, answered) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Shard { link, meta: format!("{base}:meta"), base, seen, mine, answered, who, shared }
    }

    pub(crate) fn key(&self, rest: &str) -> String {
        format!("{}:{rest}", self.base)
    }

    pub(crate) fn meta(&self) -> &str {
        &self.meta
    }

    /// Runs a script. Every one gets the count that was seen first, and answers with the count and the time first.
    pub(crate) async fn call<'a>(
        &self,
        script: &Script,
        args: impl IntoIterator<Item = &'a ScriptArgs> + Clone,
    ) -> Result<ScriptReply, StoreError> {
        self.shared.healthy()?;
        let (seen, head) = self.head();
        let mut answer = self.link.ask(&self.command("EVALSHA", &script.digest, &head, args.clone())).await;
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
            // The server forgot it, or never knew: it learns it and does it in one go.
            answer = self.link.ask(&self.command("EVAL", &script.code, &head, args)).await;
        }
        let mut rest = match answer {
            Ok(Value::Array(items)) => items.into_iter(),
            Ok(other) => return Err(crate::answer::strange(&other)),
            Err(error) => return Err(failed(&error)),
        };
        let head = text(rest.next().unwrap_or_default())?;
        let second = text(rest.next().unwrap_or_default())?;
        if head == "behind" {
            return Err(self.shared.halt(&self.base, seen, &second));
        }
        let (count, mine) = head.split_once(' ').unwrap_or((&head, "0"));
        self.seen.fetch_max(number(count)?, Ordering::Relaxed);
        self.mine.fetch_max(number(mine)?, Ordering::Relaxed);
        self.answered.store(local_micros(), Ordering::Relaxed);
        let micros: u64 = number(&second)?;
        self.shared.saw(micros);
        Ok(ScriptReply { now: Time::from_millis((micros / 1_000) as i64), rest })
    }

    pub(crate) async fn ask_all(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        self.shared.healthy()?;
        self.link.ask_all(commands).await
    }

    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        self.shared.healthy()?;
        self.link.ask(command).await.map_err(|error| failed(&error))
    }

    /// What every script is told first: the count that was seen, who asks, and its mark.
    fn head(&self) -> (u64, String) {
        let seen = self.seen.load(Ordering::Relaxed);
        let slept = local_micros().saturating_sub(self.answered.load(Ordering::Relaxed)) > SLEPT;
        let mine = if slept { 0 } else { self.mine.load(Ordering::Relaxed) };
        (seen, format!("{seen} {} {mine}", self.who))
    }

    fn command<'a>(
        &self,
        verb: &str,
        script: &str,
        head: &str,
        args: impl IntoIterator<Item = &'a ScriptArgs> + Clone,
    ) -> Cmd {
        // Large enough from the start: a call of many commits would be copied again and again while it grows.
        let size = |(count, bytes), args: &ScriptArgs| (count + args.count(), bytes + args.size());
        let (count, bytes) =
            args.clone().into_iter().fold((5, script.len() + self.meta.len() + head.len() + 16), size);
        let mut command = Cmd::with_capacity(count, bytes);
        command.arg(verb).arg(script).arg(1).arg(&self.meta).arg(head);
        for args in args {
            for arg in args.iter() {
                command.arg(arg);
            }
        }
        command
    }
}

impl ShardsCore {
    pub(crate) fn healthy(&self) -> Result<(), StoreError> {
        match self.halted.get() {
            Some(why) => Err(StoreError::WentBack(why.clone())),
            None => Ok(()),
        }
    }

    /// A number that jobs and runs of a batch get no lower stamp than, so that their order is the batch's whatever shards
    /// they are in. `width` numbers from it on are the caller's.
    pub(crate) fn hint(&self, width: u64) -> u64 {
        let offset = self.offset.load(Ordering::Relaxed) as i64;
        let at_least = (local_micros() as i64 + offset) as u64 + AHEAD;
        let next = |last: u64| Some(last.max(at_least) + width);
        let before = self.hint.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        before.unwrap_or_else(|last| last).max(at_least)
    }

    fn saw(&self, server: u64) {
        let offset = server as i64 - local_micros() as i64;
        let now = self.offset.load(Ordering::Relaxed) as i64;
        if offset > now || now == 0 {
            self.offset.store(offset as u64, Ordering::Relaxed);
        }
    }

    fn halt(&self, base: &str, seen: u64, found: &str) -> StoreError {
        let why = self.halted.get_or_init(|| {
            let what = match found {
                "" => "is missing writes of this process".to_owned(),
                found => format!("is at write {found}, but this process has seen write {seen}"),
            };
            format!(
                "{base} {what}: an older file was restored, a replica without the last writes took over, or the data \
                 was deleted. This process has stopped writing. \
                 Stop every engine, restore the newest data, or accept the loss: start again, then `flowline verify` \
                 and `flowline reconcile`"
            )
        });
        StoreError::WentBack(why.clone())
    }
}

fn local_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}
