//! Named locks. All of a store's live in its first shard.

use std::time::Duration;

use flowline_core::{Tenant, Time};
use flowline_store::{Acquired, LockRequest, LockRow, StoreError, Token};
use redis::Value;

use crate::RedisStore;
use crate::answer::{number, text};
use crate::args::Args;
use crate::encode::{millis, shown};
use crate::script;

impl RedisStore {
    pub(crate) async fn take_lock(&self, request: LockRequest) -> Result<Acquired, StoreError> {
        let LockRequest { tenant, name, owner, token, ttl } = request;
        let mut answer = self.about_lock("acquire", &tenant, &name, token, ttl, &owner).await?;
        let mut part = || text(answer.next().unwrap_or_default());
        let (verdict, until) = (part()?, time(&part()?)?);
        Ok(match verdict.as_str() {
            "granted" => Acquired::Granted { since: time(&part()?)?, until },
            _ => Acquired::Held { owner: part()?, until },
        })
    }

    pub(crate) async fn keep_lock(
        &self,
        tenant: &Tenant,
        name: &str,
        token: Token,
        ttl: Duration,
    ) -> Result<Option<Time>, StoreError> {
        let mut answer = self.about_lock("extend", tenant, name, token, ttl, "").await?;
        match text(answer.next().unwrap_or_default())?.as_str() {
            "granted" => time(&text(answer.next().unwrap_or_default())?).map(Some),
            _ => Ok(None),
        }
    }

    pub(crate) async fn give_lock_back(
        &self,
        tenant: &Tenant,
        name: &str,
        token: Token,
    ) -> Result<bool, StoreError> {
        let mut answer = self.about_lock("release", tenant, name, token, Duration::ZERO, "").await?;
        Ok(text(answer.next().unwrap_or_default())? == "released")
    }

    pub(crate) async fn locks_of(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        let mut args = Args::new();
        args.text("list").name(tenant.as_str());
        let mut parts = self.shards[0].call(&script::LOCK, [&args]).await?.rest.map(text);
        let mut rows = Vec::new();
        while let (Some(name), Some(owner), Some(since), Some(until)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        {
            rows.push(LockRow { name: name?, owner: owner?, since: time(&since?)?, until: time(&until?)? });
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    async fn about_lock(
        &self,
        verb: &str,
        tenant: &Tenant,
        name: &str,
        token: Token,
        ttl: Duration,
        owner: &str,
    ) -> Result<std::vec::IntoIter<Value>, StoreError> {
        let mut args = Args::new();
        args.text(verb).name(tenant.as_str()).text(name).text(&shown(token)).number(millis(ttl)).text(owner);
        Ok(self.shards[0].call(&script::LOCK, [&args]).await?.rest)
    }
}

fn time(text: &str) -> Result<Time, StoreError> {
    number(text).map(Time::from_millis)
}
