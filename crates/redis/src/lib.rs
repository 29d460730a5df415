//! Flowline's store on Redis 7 or later, Redis Cluster, or Valkey.
//!
//! A store is one shard on a plain server and several on a cluster; a run and all that is its own live in one shard. Every
//! write is one Lua script that checks everything before it changes anything (`lua/`); commits that wait together go in
//! one call (`write`). The layout is explained for people with `redis-cli` at hand in `docs/redis.md`.
//!
//! What this crate does not do: decide anything about flows, take locks around runs, or write again what may have been
//! written already.

mod address;
mod answer;
mod args;
mod catalog;
mod check;
mod commit;
mod documents;
mod encode;
mod feed;
mod job;
mod known;
mod layout;
mod lease;
mod link;
mod locks;
mod log;
mod names;
mod read;
mod receipt;
mod retain;
mod row;
mod runs;
mod script;
mod shard;
mod state;
mod store;
mod transfer;
mod wake;
mod write;

pub use flowline_store::IfMissing;

use std::fmt;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use flowline_store::StoreError;
use flowline_store::others::OtherProcesses;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use address::Address;
use known::KnownRows;
use link::Link;
use shard::{Shard, ShardsCore};
use transfer::Places;
use write::ScriptWriter;

/// The layout that this build writes.
const FORMAT: u32 = 5;
/// The oldest that this build reads, and brings up to date.
const OLDEST_FORMAT: u32 = 3;
/// The first that has the keys of key-value state in order.
const WITH_KEYS: u32 = 4;

/// A Flowline store on Redis. Any number of engines may share one.
pub struct RedisStore {
    shards: Vec<Arc<Shard>>,
    shared: Arc<ShardsCore>,
    commits: Vec<ScriptWriter>,
    appends: Vec<ScriptWriter>,
    changed: watch::Sender<u64>,
    places: Places,
    known: KnownRows,
    /// What this process is called in messages to others.
    who: String,
    address: Address,
    listener: AbortHandle,
}

impl RedisStore {
    /// Opens a store. Answers within seconds, whatever is wrong.
    ///
    /// Refuses a server older than 7, one that evicts keys when memory is short, and a layout that this build does not
    /// read, with `Incompatible`; and to who wants to write, a replica, with `CannotWrite`.
    pub async fn open(url: &str, missing: IfMissing) -> Result<Arc<RedisStore>, StoreError> {
        let address = Address::read(url)?;
        let link = Link::open(&address).await?;
        check::suitable(&link, &address).await?;
        if missing.writes()
            && let Some(why) = check::replica(&link, &address).await?
        {
            return Err(StoreError::CannotWrite(why));
        }
        if missing != IfMissing::Receive {
            check::refuse_half_moved(&link, &address).await?;
        }
        let shared = Arc::new(ShardsCore::default());
        let who = nonce();
        let mark: Arc<str> = who.as_str().into();
        let shards: Vec<Arc<Shard>> = (0..check::shards(&link, &address, missing).await?)
            .map(|n| Arc::new(Shard::new(link.clone(), &address.prefix, n, mark.clone(), shared.clone())))
            .collect();
        for shard in &shards {
            match missing.writes() {
                true => check::prepare(shard, shards.len()).await?,
                false => drop(check::format(shard).await?),
            }
        }
        let ((changed, _), others) = (watch::channel(0), OtherProcesses::new());
        let writers = |script: &'static std::sync::LazyLock<script::Script>| -> Vec<ScriptWriter> {
            shards
                .iter()
                .map(|shard| {
                    ScriptWriter::start(shard.clone(), script, who.clone(), changed.clone(), others.clone())
                })
                .collect()
        };
        let (commits, appends) = (writers(&script::COMMIT), writers(&script::APPEND));
        let listener = wake::listen(&address, who.clone(), changed.clone(), others);
        let (places, known) = (Places::default(), KnownRows::default());
        Ok(Arc::new(RedisStore {
            shards,
            shared,
            commits,
            appends,
            changed,
            places,
            known,
            who,
            address,
            listener,
        }))
    }

    /// The shard that a run (as scripts name it) lives in.
    fn shard(&self, run: &str) -> &Arc<Shard> {
        &self.shards[self.shard_number(run)]
    }

    fn shard_number(&self, run: &str) -> usize {
        (hash(run) % self.shards.len() as u64) as usize
    }

    /// Sorts things by the shard of their run.
    fn by_shard<T>(
        &self,
        items: impl Iterator<Item = T>,
        run: impl Fn(&T) -> String,
    ) -> Vec<(&Arc<Shard>, Vec<T>)> {
        let mut groups: Vec<Vec<T>> = self.shards.iter().map(|_| Vec::new()).collect();
        for item in items {
            groups[self.shard_number(&run(&item))].push(item);
        }
        self.shards.iter().zip(groups).filter(|(_, items)| !items.is_empty()).collect()
    }

    /// Calls a script on all shards at once.
    async fn on_all<'a, T, F, Fut>(&'a self, call: F) -> Result<Vec<T>, StoreError>
    where
        F: Fn(&'a Shard) -> Fut,
        Fut: Future<Output = Result<T, StoreError>>,
    {
        let calls = self.shards.iter().map(|shard| call(shard));
        futures_util::future::join_all(calls).await.into_iter().collect()
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("at", &self.address.shown()).finish_non_exhaustive()
    }
}

/// FNV-1a of a run as scripts name it: its place among the shards must be the same in every build.
fn hash(run: &str) -> u64 {
    let hash = run.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ (hash >> 32)
}

/// Tells this process's messages from those of others.
fn nonce() -> String {
    let mut hasher = DefaultHasher::new();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_nanos(), std::process::id()).hash(&mut hasher);
    std::thread::current().id().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
