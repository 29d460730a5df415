//! Definitions, queues and counters.
//!
//! Definitions live in the first shard; every shard knows which there are, because a commit that starts a run looks at its
//! own shard alone. A pause is known to every shard for the same reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::{Status, Tenant, Time};
use flowline_store::row::Pause;
use flowline_store::{Counter, QueueRow, StoreError, StoredDefinition};

use crate::RedisStore;
use crate::answer::{list, maybe_text, number, score, text, texts};
use crate::args::ScriptArgs;
use crate::names;
use crate::script;
use crate::shard::Shard;

impl RedisStore {
    pub(crate) async fn define(&self, definition: StoredDefinition) -> Result<bool, StoreError> {
        let StoredDefinition { tenant, flow, hash, body, origin, .. } = definition;
        let mut args = ScriptArgs::new();
        args.text(&self.who).name(tenant.as_str()).name(&hash).name(&flow).text(&body);
        if let Some(origin) = &origin {
            args.text(origin);
        }
        let mut answer = self.shards[0].call(&script::DEFINE, [&args]).await?;
        let new = text(answer.rest.next().unwrap_or_default())? == "1";
        let name = format!("{}/{}", names::encode(tenant.as_str()), names::encode(&hash));
        for shard in &self.shards[1..] {
            let mut known = redis::cmd("SADD");
            known.arg(shard.key("known")).arg(&name);
            shard.ask(&known).await?;
        }
        self.wake();
        Ok(new)
    }

    pub(crate) async fn make_latest(
        &self,
        tenant: &Tenant,
        flow: &str,
        hash: Option<&str>,
    ) -> Result<bool, StoreError> {
        let mut args = ScriptArgs::new();
        args.text(&self.who).name(tenant.as_str()).name(flow);
        if let Some(hash) = hash {
            args.name(hash);
        }
        let mut answer = self.shards[0].call(&script::LATEST, [&args]).await?;
        let found = text(answer.rest.next().unwrap_or_default())? == "1";
        self.wake();
        Ok(found)
    }

    pub(crate) async fn definition_of(
        &self,
        tenant: &Tenant,
        hash: &str,
    ) -> Result<Option<StoredDefinition>, StoreError> {
        Ok(self.read_definitions(tenant, &[names::encode(hash)]).await?.pop())
    }

    pub(crate) async fn latest_of(
        &self,
        tenant: &Tenant,
        flow: &str,
    ) -> Result<Option<StoredDefinition>, StoreError> {
        let mut asked = redis::cmd("HGET");
        asked.arg(self.latest_key(tenant)).arg(names::encode(flow));
        let Some(hash) = maybe_text(self.shards[0].ask(&asked).await?)? else { return Ok(None) };
        Ok(self.read_definitions(tenant, &[hash]).await?.pop())
    }

    pub(crate) async fn definitions_of(&self, tenant: &Tenant) -> Result<Vec<StoredDefinition>, StoreError> {
        let shard = &self.shards[0];
        let mut asked = redis::cmd("ZREVRANGE");
        asked.arg(shard.key(&format!("defs:{}", names::encode(tenant.as_str())))).arg(0).arg(-1);
        let hashes = texts(shard.ask(&asked).await?)?;
        let mut found = self.read_definitions(tenant, &hashes).await?;
        // Newest first already; a stable sort keeps that within a flow.
        found.sort_by(|a, b| a.flow.cmp(&b.flow));
        Ok(found)
    }

    /// The definitions with these hashes (as parts of keys) that are there.
    async fn read_definitions(
        &self,
        tenant: &Tenant,
        hashes: &[String],
    ) -> Result<Vec<StoredDefinition>, StoreError> {
        let shard = &self.shards[0];
        let owner = names::encode(tenant.as_str());
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(self.latest_key(tenant));
        for hash in hashes {
            pipe.cmd("HMGET").arg(shard.key(&format!("def:{owner}/{hash}")));
            pipe.arg("flow").arg("body").arg("created").arg("origin");
        }
        let mut answers = shard.ask_all(&pipe).await?.into_iter();
        let latest = texts(answers.next().unwrap_or_default())?;
        let latest: BTreeMap<&str, &str> =
            latest.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
        let mut found = Vec::new();
        for (hash, answer) in hashes.iter().zip(answers) {
            let mut fields = list(answer)?.into_iter();
            let mut field = || maybe_text(fields.next().unwrap_or_default());
            let (Some(flow), Some(body), Some(created), origin) = (field()?, field()?, field()?, field()?)
            else {
                continue;
            };
            found.push(StoredDefinition {
                tenant: tenant.clone(),
                latest: latest.get(flow.as_str()) == Some(&hash.as_str()),
                flow: names::decode(&flow)?.into(),
                hash: names::decode(hash)?.into(),
                body,
                origin,
                created_at: Time::from_millis(number(&created)?),
            });
        }
        Ok(found)
    }

    fn latest_key(&self, tenant: &Tenant) -> String {
        self.shards[0].key(&format!("latest:{}", names::encode(tenant.as_str())))
    }

    pub(crate) async fn queues_of(&self, tenant: &Tenant) -> Result<Vec<QueueRow>, StoreError> {
        let mut args = ScriptArgs::new();
        args.name(tenant.as_str());
        let answers = self.on_all(|shard: &Shard| shard.call(&script::QUEUES, [&args])).await?;
        let mut rows: BTreeMap<(Arc<str>, Arc<str>), QueueRow> = BTreeMap::new();
        let mut paused: Vec<Arc<str>> = Vec::new();
        for mut answer in answers {
            for queue in texts(answer.rest.next().unwrap_or_default())? {
                paused.push(names::decode(&queue)?.into());
            }
            for line in answer.rest {
                add_lane(&mut rows, &text(line)?)?;
            }
        }
        paused.sort();
        paused.dedup();
        let mut rows: Vec<QueueRow> = rows.into_values().collect();
        for row in &mut rows {
            row.paused = paused.contains(&row.queue);
        }
        let empty: Vec<_> =
            paused.into_iter().filter(|queue| rows.iter().all(|row| row.queue != *queue)).collect();
        rows.extend(empty.into_iter().map(QueueRow::paused));
        rows.sort_by(|a, b| (&a.queue, &a.need).cmp(&(&b.queue, &b.need)));
        Ok(rows)
    }

    pub(crate) async fn pause(&self, tenant: &Tenant, queue: &str, pause: Pause) -> Result<(), StoreError> {
        let verb = match pause {
            Pause::Paused => "SADD",
            Pause::Open => "SREM",
        };
        let name = format!("{}/{}", names::encode(tenant.as_str()), names::encode(queue));
        for shard in &self.shards {
            let mut change = redis::cmd(verb);
            change.arg(shard.key("paused")).arg(&name);
            shard.ask(&change).await?;
        }
        self.wake();
        Ok(())
    }

    pub(crate) async fn count_runs(&self) -> Result<Vec<Counter>, StoreError> {
        let mut args = ScriptArgs::new();
        for status in Status::ALL {
            args.text(status.as_str());
        }
        let answers = self.on_all(|shard: &Shard| shard.call(&script::COUNTERS, [&args])).await?;
        let mut counts: BTreeMap<(String, String, Status, Option<String>), u64> = BTreeMap::new();
        for line in answers.into_iter().flat_map(|answer| answer.rest) {
            let line = text(line)?;
            let damaged = || StoreError::Damaged(format!("{line:?} isn't a counter"));
            let parts: Vec<&str> = line.split(' ').collect();
            let &[tenant, flow, status, state, count] = &parts[..] else { return Err(damaged()) };
            let status =
                Status::ALL.into_iter().find(|known| known.as_str() == status).ok_or_else(damaged)?;
            let state = (state != "/").then(|| names::decode(state)).transpose()?;
            let key = (names::decode(tenant)?, names::decode(flow)?, status, state);
            *counts.entry(key).or_default() += number::<u64>(count)?;
        }
        let counter = |((tenant, flow, status, state), count): (_, u64)| {
            let (tenant, flow, state): (String, String, Option<String>) = (tenant, flow, state);
            let tenant = Tenant::new(&tenant).map_err(|error| StoreError::Damaged(error.to_string()))?;
            Ok(Counter { tenant, flow_name: flow.into(), status, state: state.map(Into::into), count })
        };
        counts.into_iter().map(counter).collect()
    }
}

fn add_lane(rows: &mut BTreeMap<(Arc<str>, Arc<str>), QueueRow>, line: &str) -> Result<(), StoreError> {
    let damaged = || StoreError::Damaged(format!("{line:?} isn't a lane"));
    let parts: Vec<&str> = line.split(' ').collect();
    let &[lane, ready, delayed, held, leased, oldest] = &parts[..] else { return Err(damaged()) };
    let (queue, need) = lane.split_once('/').ok_or_else(damaged)?;
    let (queue, need): (Arc<str>, Arc<str>) = (names::decode(queue)?.into(), names::decode(need)?.into());
    let row = rows.entry((queue.clone(), need.clone())).or_insert_with(|| {
        let empty = QueueRow::paused(queue);
        QueueRow { need, paused: false, ..empty }
    });
    row.ready += number::<u64>(ready)?;
    row.delayed += number::<u64>(delayed)?;
    row.held += number::<u64>(held)?;
    row.leased += number::<u64>(leased)?;
    if !oldest.is_empty() {
        let oldest = Time::from_millis(score(oldest)?);
        row.oldest = Some(row.oldest.map_or(oldest, |known| known.min(oldest)));
    }
    Ok(())
}
