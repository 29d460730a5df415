//! Named locks. All of a store's live in its first shard.

use std::time::Duration;

use flowline_core::{Tenant, Time};
use flowline_store::{Acquired, LockProof, LockRequest, LockRow, Renewal, StoreError, Token};

use crate::RedisStore;
use crate::answer::{number, text};
use crate::args::ScriptArgs;
use crate::encode::{millis, shown};
use crate::lease::verb;
use crate::script;
use crate::shard::ScriptReply;

impl RedisStore {
    pub(crate) async fn take_lock(&self, request: LockRequest) -> Result<Acquired, StoreError> {
        let LockRequest { tenant, name, owner, token, ttl } = request;
        let mut answer = self.about_lock("acquire", &tenant, &name, token, ttl, &owner).await?.rest;
        let mut part = || text(answer.next().unwrap_or_default());
        let (verdict, until) = (part()?, time(&part()?)?);
        Ok(match verdict.as_str() {
            "granted" => Acquired::Granted { since: time(&part()?)?, until },
            _ => Acquired::Held { owner: part()?, until },
        })
    }

    pub(crate) async fn keep_lock(
        &self,
        lock: &LockProof,
        renewal: Renewal,
    ) -> Result<Option<Time>, StoreError> {
        let (verb, ttl) = verb(renewal);
        let answer = self.about_lock(verb, &lock.tenant, &lock.name, lock.token, ttl, "").await?;
        let now = answer.now;
        let mut parts = answer.rest.map(text);
        match parts.next().transpose()?.as_deref() {
            Some("granted") => parts.next().transpose()?.as_deref().map(time).transpose(),
            Some("released") => Ok(Some(now)),
            _ => Ok(None),
        }
    }

    pub(crate) async fn locks_of(&self, tenant: &Tenant) -> Result<Vec<LockRow>, StoreError> {
        let mut args = ScriptArgs::new();
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
    ) -> Result<ScriptReply, StoreError> {
        let mut args = ScriptArgs::new();
        args.text(verb).name(tenant.as_str()).text(name).text(&shown(token)).number(millis(ttl)).text(owner);
        self.shards[0].call(&script::LOCK, [&args]).await
    }
}

fn time(text: &str) -> Result<Time, StoreError> {
    number(text).map(Time::from_millis)
}
