//! Key-value state. That of a run lives in the run's shard. What runs share lives in the shard of the run that wrote
//! it, or in one picked by its scope if it was written from outside; if several shards have a key, the newest value counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_core::{Json, RunKey, Tenant, Time};
use flowline_store::query::{PAGE_BYTES, PageRoom};
use flowline_store::{StateEdit, StateOwner, StatePage, StateQuery, StateSpace, StateValue, StoreError};

use crate::RedisStore;
use crate::answer::{number, text, texts};
use crate::args::ScriptArgs;
use crate::encode::millis;
use crate::names;
use crate::script;
use crate::shard::Shard;

/// Values read in one go.
const VALUES: usize = 64;
/// Keys read in one go.
const KEYS: usize = 1_000;

impl RedisStore {
    /// The live values among the first of these keys, and how many keys those are: as many as one answer has room for.
    pub(crate) async fn values_of(
        &self,
        space: &StateSpace,
        keys: &[String],
    ) -> Result<(Vec<StateValue>, usize), StoreError> {
        let mut args = ScriptArgs::new();
        args.text("get").text(&owner_name(space)).number(PAGE_BYTES);
        for key in keys {
            args.text(key);
        }
        let answers = match self.home_of_run(space) {
            Some(home) => vec![home.call(&script::STATE, [&args]).await?],
            None => self.on_all(|shard: &Shard| shard.call(&script::STATE, [&args])).await?,
        };
        let mut newest: BTreeMap<String, (u64, Option<Time>, String)> = BTreeMap::new();
        let mut looked = keys.len();
        for mut answer in answers {
            let mut part = || answer.rest.next().map(text).transpose();
            looked = looked.min(number(&part()?.unwrap_or_default())?);
            while let (Some(key), Some(expires), Some(order), Some(value)) =
                (part()?, part()?, part()?, part()?)
            {
                let expires =
                    (expires != "-").then(|| number(&expires).map(Time::from_millis)).transpose()?;
                let order = number(&order)?;
                if newest.get(&key).is_none_or(|(known, ..)| order >= *known) {
                    newest.insert(key, (order, expires, value));
                }
            }
        }
        // A shard with less in it has looked further than others.
        newest.retain(|key, (.., value)| !value.is_empty() && keys[..looked].contains(key));
        let value = |(key, (_, expires, value))| StateValue { key, value: Json::composed(value), expires };
        Ok((newest.into_iter().map(value).collect(), looked))
    }

    /// Looks at the keys of the page, and at those of values past their time on the way.
    pub(crate) async fn page_of_values(
        &self,
        space: &StateSpace,
        query: &StateQuery,
    ) -> Result<StatePage, StoreError> {
        let name = owner_name(space);
        if let Some(key) = &query.key {
            let (values, _) = self.values_of(space, std::slice::from_ref(key)).await?;
            return Ok(StatePage { values, more: false });
        }
        let (mut page, mut after) = (StatePage::default(), query.after.clone());
        let mut room = PageRoom::new(query.limit);
        loop {
            let wanted = query.limit.saturating_add(1).saturating_sub(page.values.len()).min(KEYS);
            let after_this = after.as_deref();
            let lists = match self.home_of_run(space) {
                Some(home) => vec![keys_in(home, &name, after_this, wanted).await?],
                None => self.on_all(|shard: &Shard| keys_in(shard, &name, after_this, wanted)).await?,
            };
            // Each has its first ones, so that the first ones of all are among them.
            let keys: BTreeSet<String> = lists.into_iter().flatten().collect();
            let keys: Vec<String> = keys.into_iter().take(wanted).collect();
            let mut rest = &keys[..];
            while !rest.is_empty() {
                let (values, looked) = self.values_of(space, &rest[..rest.len().min(VALUES)]).await?;
                for value in values {
                    if !room.take(Some(&value.value)) {
                        page.more = true;
                        return Ok(page);
                    }
                    page.values.push(value);
                }
                rest = &rest[looked..];
            }
            if keys.len() < wanted {
                return Ok(page);
            }
            after = keys.into_iter().next_back();
        }
    }

    pub(crate) async fn set_value(&self, space: &StateSpace, edit: &StateEdit) -> Result<(), StoreError> {
        let StateEdit { key, value, ttl } = edit;
        let name = owner_name(space);
        let mut args = ScriptArgs::new();
        args.text("set").text(&name).text(key).text(value.as_ref().map_or("", Json::get));
        match ttl {
            Some(ttl) => args.number(millis(*ttl)),
            None => args.text(""),
        };
        args.number(self.hint(1)).text(if self.shards.len() == 1 { "1" } else { "0" });
        self.shards[self.shard_number(&name)].call(&script::STATE, [&args]).await.map(drop)
    }

    pub(crate) async fn scopes_of(&self, tenant: &Tenant) -> Result<Vec<Arc<str>>, StoreError> {
        let owners = self.live_owners().await?.into_iter();
        let named = owners.filter(|space| space.tenant == *tenant).filter_map(|space| match space.owner {
            StateOwner::Named(name) => Some(name),
            _ => None,
        });
        Ok(named.collect())
    }

    /// Tenants and named scopes that hold a live value.
    pub(crate) async fn live_owners(&self) -> Result<BTreeSet<StateSpace>, StoreError> {
        let mut owners = BTreeSet::new();
        for shard in &self.shards {
            let mut asked = redis::cmd("SMEMBERS");
            asked.arg(shard.key("scopes"));
            for member in texts(shard.ask(&asked).await?)? {
                owners.insert(owner_of(&member)?);
            }
        }
        let mut live = BTreeSet::new();
        for space in owners {
            if !self.page_of_values(&space, &StateQuery::first(1)).await?.values.is_empty() {
                live.insert(space);
            }
        }
        Ok(live)
    }

    fn home_of_run(&self, space: &StateSpace) -> Option<&Arc<Shard>> {
        match &space.owner {
            StateOwner::Run(run) => {
                Some(self.shard(&names::run(&RunKey::new(space.tenant.clone(), run.clone()))))
            }
            _ => None,
        }
    }
}

/// The first keys of an owner in a shard after this one.
async fn keys_in(
    shard: &Shard,
    owner: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>, StoreError> {
    let (hash, keys) = (shard.key(&format!("state:{owner}")), shard.key(&format!("keys:{owner}")));
    let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
    let mut pipe = redis::pipe();
    pipe.cmd("ZRANGE").arg(&keys).arg(from).arg("+").arg("BYLEX").arg("LIMIT").arg(0).arg(limit);
    pipe.cmd("ZCARD").arg(&keys).cmd("HLEN").arg(&hash);
    let mut answers = shard.ask_all(&pipe).await?.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    let (found, listed, there) = (texts(next())?, next(), next());
    if listed == there {
        return Ok(found);
    }
    // An engine of the format before has written, or no engine has brought the store up to date yet.
    let mut asked = redis::cmd("HKEYS");
    asked.arg(&hash);
    let mut all = texts(shard.ask(&asked).await?)?;
    all.retain(|key| after.is_none_or(|after| key.as_str() > after));
    all.sort_unstable();
    all.truncate(limit);
    Ok(all)
}

/// Whose key-value state, as the end of its key.
pub(crate) fn owner_name(StateSpace { tenant, owner }: &StateSpace) -> String {
    let of = names::encode(tenant.as_str());
    match owner {
        StateOwner::Run(run) => format!("run:{of}/{}", names::encode(run.as_str())),
        StateOwner::Flow(flow) => format!("flow:{of}/{}", names::encode(flow)),
        StateOwner::Tenant => format!("tenant:{of}"),
        StateOwner::Named(name) => format!("scope:{of}/{}", names::encode(name)),
    }
}

/// Undoes [`owner_name`] for what `scopes` lists.
fn owner_of(member: &str) -> Result<StateSpace, StoreError> {
    let damaged = || StoreError::Damaged(format!("{member:?} isn't an owner of key-value state"));
    let (kind, name) = member.split_once(':').ok_or_else(damaged)?;
    let (tenant, owner) = match (kind, name.split_once('/')) {
        ("tenant", None) => (name, StateOwner::Tenant),
        ("scope", Some((tenant, name))) => (tenant, StateOwner::Named(names::decode(name)?.into())),
        _ => return Err(damaged()),
    };
    Ok(StateSpace { tenant: Tenant::new(&names::decode(tenant)?).map_err(|_| damaged())?, owner })
}
