//! A shard: the part of a store whose keys stand under one hash tag, so that one script can change them together.
//!
//! Plain Redis has one, a cluster several. Every script is told the highest count of the shard that this process has seen.
//! A shard that stands behind it went back in time (an older file restored, a replica promoted that lacked writes, a
//! FLUSHALL): from then on this store answers nothing but that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use flowline_core::Time;
use flowline_store::StoreError;
use redis::{Cmd, ErrorKind, Pipeline, ServerErrorKind, Value};

use crate::answer::{number, text};
use crate::args::Args;
use crate::link::{Link, failed};
use crate::script::Script;

/// How far ahead of a server's clock hints lie, so that the order of one caller's batch holds across shards.
const AHEAD: u64 = 2_000;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) link: Link,
    /// The hash tag that all keys begin with: `{prefix:number}`.
    pub(crate) base: String,
    meta: String,
    seen: AtomicU64,
    shared: Arc<Shared>,
}

/// What the shards of a store have in common.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    halted: OnceLock<String>,
    /// The highest server time seen, less our own, in microseconds.
    offset: AtomicU64,
    hint: AtomicU64,
}

/// What a script answered, after its head.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) now: Time,
    pub(crate) rest: std::vec::IntoIter<Value>,
}

impl Shard {
    pub(crate) fn new(link: Link, prefix: &str, number: u32, shared: Arc<Shared>) -> Shard {
        let base = format!("{{{prefix}:{number}}}");
        Shard { link, meta: format!("{base}:meta"), base, seen: AtomicU64::new(0), shared }
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
        args: impl IntoIterator<Item = &'a Args> + Clone,
    ) -> Result<Answer, StoreError> {
        self.shared.healthy()?;
        let seen = self.seen.load(Ordering::Relaxed);
        let mut answer = self.link.ask(&self.command("EVALSHA", &script.digest, seen, args.clone())).await;
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
            // The server forgot it, or never knew: it learns it and does it in one go.
            answer = self.link.ask(&self.command("EVAL", script.code, seen, args)).await;
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
        self.seen.fetch_max(number(&head)?, Ordering::Relaxed);
        let micros: u64 = number(&second)?;
        self.shared.saw(micros);
        Ok(Answer { now: Time::from_millis((micros / 1_000) as i64), rest })
    }

    pub(crate) async fn ask_all(&self, commands: &Pipeline) -> Result<Vec<Value>, StoreError> {
        self.shared.healthy()?;
        self.link.ask_all(commands).await
    }

    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        self.shared.healthy()?;
        self.link.ask(command).await.map_err(|error| failed(&error))
    }

    fn command<'a>(
        &self,
        verb: &str,
        script: &str,
        seen: u64,
        args: impl IntoIterator<Item = &'a Args>,
    ) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(1).arg(&self.meta).arg(seen);
        for args in args {
            for arg in args.iter() {
                command.arg(arg);
            }
        }
        command
    }
}

impl Shared {
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
            format!(
                "{base} is at write {found}, but this process has seen write {seen}: an older file was restored, a \
                 replica without the last writes took over, or the data was deleted. Nothing is written any more. \
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
