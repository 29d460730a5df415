//! Forgetting what is old, in short calls so that commits get in between, and mending what reconciling found.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flowline_core::definition::Retain;
use flowline_core::{RunKey, Status, Tenant, Time};
use flowline_store::row::{Repair, Retained, Retention};
use flowline_store::{
    Base, Commit, CommitError, Index, JobKey, LeaseUse, NewJob, RunRow, RunStore, StoreError,
};

use crate::RedisStore;
use crate::answer::{list, number, score, text, texts};
use crate::args::ScriptArgs;
use crate::commit::CommitKind;
use crate::encode;
use crate::names;
use crate::script;
use crate::shard::Shard;

/// Runs that one call removes.
const PART: usize = 8;
/// Runs looked up in one go.
const LISTED: usize = 1_000;
/// A date after that of any end, in milliseconds: the greatest number that a script keeps exactly.
const ANY_END: i64 = (1 << 53) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Remove,
    Trim,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Verb::Remove => "remove",
            Verb::Trim => "trim",
        }
    }
}

/// A run that is due. The order is that in which they go.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EndedRun {
    end: i64,
    shard: usize,
    run: String,
    /// When it must have ended by.
    by: i64,
}

impl RedisStore {
    pub(crate) async fn retain_by(&self, policy: Retention, limit: usize) -> Result<Retained, StoreError> {
        let now = self.time().await?;
        let mut done = Retained::default();
        let kept = self.kept(policy).await?;
        let before = |age: Duration| now.millis() - encode::millis(age) as i64;
        let lists = |of: fn(Retention) -> Duration| -> Vec<(&str, i64)> {
            kept.iter().map(|(list, kept)| (list.as_str(), before(of(*kept)))).collect()
        };
        done.removed = self.forget(Verb::Remove, &lists(|kept| kept.runs), limit).await? as u64;
        let left = limit.saturating_sub(done.removed as usize);
        done.trimmed = self.forget(Verb::Trim, &lists(|kept| kept.events), left).await? as u64;
        for shard in &self.shards {
            let mut at = "0".to_owned();
            loop {
                let mut args = ScriptArgs::new();
                args.text(if self.shards.len() == 1 { "1" } else { "0" }).text(&at);
                let mut answer = shard.call(&script::PURGE, [&args]).await?;
                let mut part = || text(answer.rest.next().unwrap_or_default());
                if part()? != "1" {
                    break;
                }
                at = part()?;
            }
        }
        Ok(done)
    }

    /// Removes those of these runs that have ended, one call each, and says which.
    pub(crate) async fn delete(&self, runs: &[RunKey]) -> Result<Vec<bool>, StoreError> {
        let mut done = Vec::with_capacity(runs.len());
        for run in runs {
            let name = names::run(run);
            let mut args = ScriptArgs::new();
            args.text(Verb::Remove.as_str()).number(ANY_END).text(&name);
            let mut answer = self.shard(&name).call(&script::FORGET, [&args]).await?;
            done.push(text(answer.rest.next().unwrap_or_default())? == "1");
        }
        Ok(done)
    }

    /// What holds for ended runs, by the end of the names of the lists that they are in.
    async fn kept(&self, policy: Retention) -> Result<Vec<(String, Retention)>, StoreError> {
        let mut codes = BTreeSet::new();
        for shard in &self.shards {
            let mut asked = redis::cmd("SMEMBERS");
            asked.arg(shard.key("retains"));
            codes.extend(texts(shard.ask(&asked).await?)?);
        }
        let mut kept = vec![(String::new(), policy.of(None))];
        for code in codes {
            let own = Retain::from_code(&code)
                .ok_or_else(|| StoreError::Damaged(format!("the retention {code:?} is unknown")))?;
            kept.push((format!(":{code}"), policy.of(Some(own))));
        }
        Ok(kept)
    }

    /// Forgets runs that ended at or before the date given with their list, starting with those that ended first.
    async fn forget(&self, verb: Verb, lists: &[(&str, i64)], limit: usize) -> Result<usize, StoreError> {
        let mut done = 0;
        while done < limit {
            let wanted = (limit - done).min(LISTED);
            let due = self.ended(verb, lists, wanted).await?;
            let (count, mut changed) = (due.len(), 0);
            for part in due.chunks(PART) {
                let mut by_shard: BTreeMap<usize, ScriptArgs> = BTreeMap::new();
                for EndedRun { shard, by, run, .. } in part {
                    let args = by_shard.entry(*shard).or_insert_with(|| {
                        let mut args = ScriptArgs::new();
                        args.text(verb.as_str());
                        args
                    });
                    let digested = match verb {
                        Verb::Trim => self.digest(&names::read_run(run)?).await?,
                        Verb::Remove => None,
                    };
                    args.number(*by).text(run);
                    if verb == Verb::Trim {
                        // One that is gone meanwhile has no version to be trimmed at.
                        let (version, digests) = digested.unwrap_or_default();
                        args.number(version).bytes(&digests.encode());
                    }
                }
                for (shard, args) in by_shard {
                    let mut answer = self.shards[shard].call(&script::FORGET, [&args]).await?;
                    changed += number::<usize>(&text(answer.rest.next().unwrap_or_default())?)?;
                }
            }
            done += changed;
            if count < wanted || changed == 0 {
                break;
            }
        }
        Ok(done)
    }

    /// The runs of these lists that ended first.
    async fn ended(
        &self,
        verb: Verb,
        lists: &[(&str, i64)],
        count: usize,
    ) -> Result<Vec<EndedRun>, StoreError> {
        let names: &[&str] = match verb {
            Verb::Remove => &["ended", "trimmed"],
            Verb::Trim => &["ended"],
        };
        let asked: Vec<(String, i64)> = lists
            .iter()
            .flat_map(|(list, by)| names.iter().map(move |name| (format!("{name}{list}"), *by)))
            .collect();
        let mut found = Vec::new();
        for (at, shard) in self.shards.iter().enumerate() {
            let mut pipe = redis::pipe();
            for (name, by) in &asked {
                pipe.cmd("ZRANGEBYSCORE").arg(shard.key(name)).arg("-inf").arg(by).arg("WITHSCORES");
                pipe.arg("LIMIT").arg(0).arg(count);
            }
            for (answer, (_, by)) in shard.ask_all(&pipe).await?.into_iter().zip(&asked) {
                let mut members = list(answer)?.into_iter();
                while let (Some(run), Some(end)) = (members.next(), members.next()) {
                    found.push(EndedRun { end: score(&text(end)?)?, shard: at, run: text(run)?, by: *by });
                }
            }
        }
        found.sort();
        found.truncate(count);
        Ok(found)
    }

    pub(crate) async fn mend(&self, repair: Repair) -> Result<(), CommitError> {
        match repair {
            Repair::Row {
                run,
                version,
                state,
                index,
                created_at,
                started_at,
                completed_at,
                events,
                seen,
            } => {
                let name = names::run(&run);
                let dates = [Some(created_at), started_at, completed_at];
                let args = encode::mend(&name, version, &index, state, dates, [events, seen])?;
                let mut who = ScriptArgs::new();
                who.text(&self.who);
                let mut answer = self.shard(&name).call(&script::MEND, [&who, &args]).await?;
                let answer = text(answer.rest.next().unwrap_or_default())?;
                self.wake();
                match answer.as_str() {
                    "ok" => Ok(()),
                    refused => Err(encode::conflict(refused, version)?),
                }
            }
            Repair::Events { run, version, events, state, index } => {
                let commit = Commit { events, state, ..Commit::new(run, Base::Version(version), index) };
                self.write_one(commit, CommitKind::Commit).await?.map(drop)
            }
            Repair::Jobs { run, version, add, remove } => {
                self.write_one(jobs(run, version, add, remove), CommitKind::Mend).await?.map(drop)
            }
            // The sizes of the lists are the counters.
            Repair::Counters { tenant } => {
                let tenant = names::encode(tenant.as_str());
                for shard in &self.shards {
                    // The keys of lists that a scan gives twice are gone through once.
                    for list in enlist(shard, &tenant, "").await? {
                        enlist(shard, &tenant, &list).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Runs whose rows are there, but not in the list of their status.
    pub(crate) async fn unlisted_runs(&self, tenant: &Tenant) -> Result<Vec<RunRow>, StoreError> {
        let tenant = names::encode(tenant.as_str());
        let mut found = BTreeSet::new();
        for shard in &self.shards {
            let mut cursor = "0".to_owned();
            loop {
                let mut args = ScriptArgs::new();
                args.text(&tenant).text(&cursor);
                let mut answer = shard.call(&script::UNLISTED, [&args]).await?;
                cursor = text(answer.rest.next().unwrap_or_default())?;
                for run in answer.rest {
                    found.insert(names::read_run(&text(run)?)?);
                }
                if cursor == "0" {
                    break;
                }
            }
        }
        let found: Vec<RunKey> = found.into_iter().collect();
        let mut rows = Vec::with_capacity(found.len());
        for part in found.chunks(LISTED) {
            rows.extend(self.load(part).await?.into_iter().flatten().map(|found| found.row));
        }
        Ok(rows)
    }

    pub(crate) async fn time(&self) -> Result<Time, StoreError> {
        let parts = texts(self.shards[0].ask(&redis::cmd("TIME")).await?)?;
        let [seconds, micros] = &parts[..] else {
            return Err(StoreError::Damaged("the server's time has an unexpected shape".to_owned()));
        };
        Ok(Time::from_millis(number::<i64>(seconds)? * 1_000 + number::<i64>(micros)? / 1_000))
    }
}

/// Puts a tenant's runs into the lists that their rows ask for, and gives the lists that there are; of one list, takes out
/// what does not belong there.
async fn enlist(shard: &Shard, tenant: &str, list: &str) -> Result<BTreeSet<String>, StoreError> {
    let (mut lists, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let mut args = ScriptArgs::new();
        args.text(tenant).text(list).text(&cursor);
        let mut answer = shard.call(&script::LISTS, [&args]).await?;
        cursor = text(answer.rest.next().unwrap_or_default())?;
        for found in answer.rest {
            lists.insert(text(found)?);
        }
        if cursor == "0" {
            return Ok(lists);
        }
    }
}

/// A commit that changes nothing but jobs. The rest of it is not looked at.
fn jobs(run: RunKey, version: u64, add: Vec<NewJob>, remove: Vec<JobKey>) -> Commit {
    let gone = |key| LeaseUse::Unleased { key, attempt: 0 };
    Commit {
        leases: remove.into_iter().map(gone).collect(),
        add: add.into_iter().map(|job| NewJob { handoff: None, ..job }).collect(),
        ..Commit::new(run, Base::Version(version), Index::of(Status::Running))
    }
}
