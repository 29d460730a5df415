//! What a server must be like, and what it says of itself.

use std::collections::HashMap;

use flowline_store::{Health, StoreError};
use redis::{RedisError, Value};

use crate::address::Address;
use crate::answer::{maybe_text, number, text, texts};
use crate::args::ScriptArgs;
use crate::link::{Link, REPLICA, failed, refused};
use crate::script::{self, Script};
use crate::shard::Shard;
use crate::{FORMAT, IfMissing, OLDEST_FORMAT, RedisStore, WITH_KEYS};

/// The oldest server that scripts may ask for the time before they write.
const OLDEST: u32 = 7;

/// Refuses a server that cannot keep a store.
pub(crate) async fn suitable(link: &Link, address: &Address) -> Result<(), StoreError> {
    let shown = address.shown();
    let refuse = |what: String| Err(StoreError::Incompatible(format!("{shown} {what}")));
    let told = |error: RedisError| refused(address, &error);
    for server in said(link, "server").await.map_err(told)? {
        let version = server.get("redis_version").map(String::as_str).unwrap_or("0");
        let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        if major < OLDEST {
            return refuse(format!(
                "is Redis {version}; this store needs version {OLDEST} or later, or Valkey"
            ));
        }
        let mode = server.get("redis_mode").map(String::as_str).unwrap_or_default();
        match (mode, address.cluster) {
            ("cluster", false) => {
                return refuse("is part of a cluster; write redis+cluster://host:port".to_owned());
            }
            ("standalone", true) => {
                return refuse("isn't part of a cluster; write redis://host:port".to_owned());
            }
            _ => {}
        }
    }
    for memory in said(link, "memory").await.map_err(told)? {
        if let Some(problem) = evicting(&memory) {
            return refuse(problem);
        }
    }
    Ok(())
}

/// Refuses a store that a move has not filled to its end.
pub(crate) async fn refuse_half_moved(link: &Link, address: &Address) -> Result<(), StoreError> {
    let mut asked = redis::cmd("HEXISTS");
    asked.arg(format!("{{{}:0}}:meta", address.prefix)).arg("filling");
    if link.ask(&asked).await.map_err(|error| failed(&error))? != Value::Int(1) {
        return Ok(());
    }
    Err(StoreError::HalfMoved(format!(
        "the store under the prefix {:?} of {} is half moved: `flowline move` is still running, or was interrupted; let it \
         finish, repeat it, or name another prefix (the source store is unchanged)",
        address.prefix,
        address.shown()
    )))
}

/// The number of shards that the store has, or gets.
pub(crate) async fn shards(link: &Link, address: &Address, missing: IfMissing) -> Result<u32, StoreError> {
    let mut asked = redis::cmd("HGET");
    asked.arg(format!("{{{}:0}}:meta", address.prefix)).arg("shards");
    let found = link.ask(&asked).await.map_err(|error| failed(&error))?;
    match (maybe_text(found)?, missing) {
        (Some(count), _) => number(&count),
        (None, IfMissing::Make | IfMissing::Receive | IfMissing::Ignore) => Ok(address.shards),
        (None, IfMissing::Refuse | IfMissing::Expect) => Err(StoreError::Missing(format!(
            "there is no store under the prefix {:?} at {} yet (?prefix= names another)",
            address.prefix,
            address.shown()
        ))),
    }
}

/// Why nothing can be written here: a replica takes what its primary sends and nothing else. The nodes that a cluster's
/// writes go to are primaries.
pub(crate) async fn replica(link: &Link, address: &Address) -> Result<Option<String>, StoreError> {
    let nodes = said(link, "replication").await.map_err(|error| failed(&error))?;
    let is = |node: &HashMap<String, String>| node.get("role").is_some_and(|role| role == "slave");
    let found = !address.cluster && nodes.iter().any(is);
    Ok(found.then(|| format!("{}: {REPLICA}", address.shown())))
}

/// Makes a shard's first key where it is missing, and brings its layout up to date where it is there.
pub(crate) async fn prepare(shard: &Shard, count: usize) -> Result<(), StoreError> {
    let mut pipe = redis::pipe();
    // A count from one on: a shard without any is one that lost its data.
    for (field, value) in [("format", FORMAT as usize), ("shards", count), ("n", 1)] {
        pipe.cmd("HSETNX").arg(shard.meta()).arg(field).arg(value);
    }
    shard.ask_all(&pipe).await?;
    // What came since is only beside what was there: who reads does without, an engine adds it.
    if let Some(before) = format(shard).await?.filter(|found| *found < FORMAT) {
        if before < WITH_KEYS {
            through(shard, &script::KEYS).await?;
        }
        let mut raise = redis::cmd("HSET");
        raise.arg(shard.meta()).arg("format").arg(FORMAT);
        shard.ask(&raise).await?;
    }
    Ok(())
}

/// Runs a script that goes through all keys of a shard part by part.
pub(crate) async fn through(shard: &Shard, script: &Script) -> Result<(), StoreError> {
    let mut cursor = "0".to_owned();
    loop {
        let mut args = ScriptArgs::new();
        args.text(&cursor);
        let mut answer = shard.call(script, [&args]).await?;
        cursor = text(answer.rest.next().unwrap_or_default())?;
        if cursor == "0" {
            return Ok(());
        }
    }
}

/// The layout of a shard; `None` where there is none yet. Refuses one that this build does not read.
pub(crate) async fn format(shard: &Shard) -> Result<Option<u32>, StoreError> {
    let mut asked = redis::cmd("HGET");
    asked.arg(shard.meta()).arg("format");
    let Some(found) = maybe_text(shard.ask(&asked).await?)? else { return Ok(None) };
    match found.parse() {
        Ok(known @ OLDEST_FORMAT..=FORMAT) => Ok(Some(known)),
        _ => Err(StoreError::Incompatible(format!(
            "the store's layout is format {found}; this build reads formats {OLDEST_FORMAT} to {FORMAT}: use a build that matches"
        ))),
    }
}

impl RedisStore {
    pub(crate) async fn examine(&self) -> Result<Health, StoreError> {
        self.shared.healthy()?;
        let link = &self.shards[0].link;
        let mut problems = Vec::new();
        let (mut bytes, mut version, mut saves) = (0, String::new(), Vec::new());
        for server in said(link, "server").await.map_err(|error| failed(&error))? {
            let named = [("valkey_version", "Valkey"), ("redis_version", "Redis")];
            let shown = named.iter().find_map(|(key, name)| Some(format!("{name} {}", server.get(*key)?)));
            version = shown.unwrap_or_default();
        }
        for memory in said(link, "memory").await.map_err(|error| failed(&error))? {
            bytes += memory.get("used_memory").and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(0);
            problems.extend(evicting(&memory).map(|problem| format!("the server {problem}")));
        }
        for persistence in said(link, "persistence").await.map_err(|error| failed(&error))? {
            saves.push(persistence.get("aof_enabled").map(String::as_str) == Some("1"));
            if persistence.get("aof_last_write_status").is_some_and(|status| status != "ok") {
                problems.push(
                    "the last write of the append-only file failed; see the server's log and disk".into(),
                );
            }
        }
        let fsync = self.appendfsync().await;
        if saves.contains(&false) {
            problems.push(
                "the append-only file is off: a restart of the server loses everything since its last snapshot; set \
                 `appendonly yes`"
                    .to_owned(),
            );
        }
        Ok(Health {
            kind: "redis",
            version,
            format: format(&self.shards[0]).await?.unwrap_or(0),
            bytes: Some(bytes),
            durability: durability(!saves.contains(&false), fsync.as_deref()).to_owned(),
            unwritable: replica(link, &self.address).await?,
            problems,
        })
    }

    /// How often the append-only file is synced, where the server tells: managed ones often do not.
    async fn appendfsync(&self) -> Option<String> {
        let mut asked = redis::cmd("CONFIG");
        asked.arg("GET").arg("appendfsync");
        let answer = self.shards[0].link.ask(&asked).await.ok()?;
        match answer {
            Value::Map(mut pairs) => text(pairs.pop()?.1).ok(),
            Value::Array(items) => texts(Value::Array(items)).ok()?.pop(),
            _ => None,
        }
    }
}

fn durability(saved: bool, fsync: Option<&str>) -> &'static str {
    match (saved, fsync) {
        (false, _) => {
            "an acknowledged commit survives only while the server runs; a restart goes back to the last snapshot"
        }
        (true, Some("always")) => {
            "an acknowledged commit survives a crash of the server's machine (appendfsync always); a failover to a \
             replica may lose the last ones"
        }
        (true, Some("no")) => {
            "a crash of the server's machine may lose the last half minute of acknowledged commits (appendfsync no)"
        }
        (true, None) => {
            "the server doesn't say how often it syncs its append-only file (`CONFIG GET appendfsync`): unless it's `always`, a \
             crash of its machine loses the last acknowledged commits; engines that survive it notice and stop"
        }
        (true, Some(_)) => {
            "a crash of the server's machine may lose the last second or two of acknowledged commits (appendfsync \
             everysec); engines that survive it notice and stop. `appendfsync always` loses none"
        }
    }
}

fn evicting(memory: &HashMap<String, String>) -> Option<String> {
    let policy = memory.get("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
    Some(format!(
        "evicts keys when memory is short (maxmemory-policy {policy}), which would damage runs; set \
         `maxmemory-policy noeviction`"
    ))
}

/// A section of `INFO`, from every node.
async fn said(link: &Link, section: &str) -> Result<Vec<HashMap<String, String>>, RedisError> {
    let mut asked = redis::cmd("INFO");
    asked.arg(section);
    let texts: Vec<String> = match link.ask(&asked).await? {
        Value::Map(nodes) => nodes.into_iter().filter_map(|(_, said)| text(said).ok()).collect(),
        said => text(said).into_iter().collect(),
    };
    let pairs = |said: &String| {
        let lines = said.lines().filter_map(|line| line.split_once(':'));
        lines.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
    };
    Ok(texts.iter().map(pairs).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_evicts_nothing_is_fit() {
        let with = |policy: &str| HashMap::from([("maxmemory_policy".to_owned(), policy.to_owned())]);
        assert_eq!(evicting(&with("noeviction")), None);
        for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random"] {
            assert!(evicting(&with(policy)).unwrap().contains("noeviction"));
        }
        assert_eq!(evicting(&HashMap::new()), None);
    }

    #[test]
    fn durability_is_told_by_what_the_server_syncs() {
        assert!(durability(true, Some("always")).contains("survives a crash"));
        assert!(durability(true, Some("everysec")).contains("second or two"));
        assert!(durability(true, None).contains("doesn't say"), "nothing is guessed");
        assert!(durability(false, Some("always")).contains("snapshot"));
    }
}
