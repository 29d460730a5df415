//! Who works on what: claim, renew, sweep.
//!
//! A claim looks at the lanes of all shards, chooses as the contract says (one job of each lane in turn, the lane served
//! longest ago first; within a lane by priority, due time and age), and then leases. What another took in between is
//! replaced by what stands next in the same place.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::Time;
use flowline_store::rotate::FreeSlots;
use flowline_store::{
    Claim, Claimed, DueTimer, ExpiredLease, Extend, Extended, Gone, JobKey, LeasedJob, Renewal, StoreError,
    Swept, Token,
};
use redis::Value;

use crate::RedisStore;
use crate::answer::{list, number, score, text, texts};
use crate::args::ScriptArgs;
use crate::encode::{millis, shown};
use crate::job::JobField;
use crate::names;
use crate::script;
use crate::shard::Shard;

/// A job that could be claimed. Sorts by urgency: the most urgent first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Counted so that the most urgent is the least.
    rank: u8,
    due: i64,
    /// Begins with the number that tells which was added first.
    member: String,
    shard: usize,
}

/// The jobs of a lane in all shards, and when it was served last.
#[derive(Debug)]
struct Found {
    lane: Arc<str>,
    queue: Arc<str>,
    served: i64,
    /// The most urgent last.
    jobs: Vec<Candidate>,
}

/// What one shard is asked to lease: the script's arguments, and for each job its place in the order, its queue and token.
#[derive(Debug, Default)]
struct Asked {
    args: ScriptArgs,
    jobs: Vec<(usize, Arc<str>, Token)>,
}

/// A job chosen for a token.
#[derive(Debug)]
struct Choice {
    lane: Arc<str>,
    queue: Arc<str>,
    job: Candidate,
    token: Token,
}

impl RedisStore {
    pub(crate) async fn claim_jobs(&self, claim: Claim) -> Result<Claimed, StoreError> {
        let mut tokens = claim.tokens.clone();
        let mut free = FreeSlots::new(&claim);
        let mut jobs = Vec::new();
        loop {
            let (lanes, next_due, now) = self.peek(&claim, tokens.len()).await?;
            let chosen = choose(lanes, &tokens, &mut free);
            if chosen.is_empty() {
                return Ok(Claimed { jobs, next_due, now });
            }
            let leased = self.lease(chosen, &claim, &mut free).await?;
            tokens.retain(|token| leased.iter().all(|job: &LeasedJob| job.token != *token));
            let none = leased.is_empty();
            jobs.extend(leased);
            if tokens.is_empty() {
                // Only the date of the next one is still unknown.
                let (_, next_due, now) = self.peek(&claim, 0).await?;
                return Ok(Claimed { jobs, next_due, now });
            }
            if none {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The lanes that a claim may take from, with up to `limit` due jobs each, and the next date that one will be due.
    async fn peek(
        &self,
        claim: &Claim,
        limit: usize,
    ) -> Result<(Vec<Found>, Option<Time>, Time), StoreError> {
        let mut args = ScriptArgs::new();
        match &claim.tenant {
            Some(tenant) => args.name(tenant.as_str()),
            None => args.text(""),
        };
        args.number(limit).number(claim.free_elsewhere).number(claim.needs.len());
        for need in &claim.needs {
            args.name(need);
        }
        for (queue, free) in &claim.free {
            args.name(queue).number(free);
        }
        let answers = self.on_all(|shard| shard.call(&script::PEEK, [&args])).await?;
        let mut lanes: BTreeMap<Arc<str>, Found> = BTreeMap::new();
        let (mut next_due, mut now): (Option<Time>, Time) = (None, Time::default());
        for (shard, answer) in answers.into_iter().enumerate() {
            now = now.max(answer.now);
            for lane in answer.rest {
                let mut parts = texts(lane)?.into_iter();
                let mut part = || parts.next();
                let (Some(name), Some(served), Some(ahead)) = (part(), part(), part()) else { continue };
                let lane: Arc<str> = name.into();
                let found = match lanes.entry(lane.clone()) {
                    Entry::Occupied(found) => found.into_mut(),
                    Entry::Vacant(new) => {
                        let queue = names::decode(lane.split('/').nth(1).unwrap_or_default());
                        let Ok(queue) = queue else { continue };
                        new.insert(Found { lane, queue: queue.into(), served: 0, jobs: Vec::new() })
                    }
                };
                found.served = found.served.max(score(&served)?);
                if !ahead.is_empty() {
                    let ahead = Time::from_millis(score(&ahead)?);
                    next_due = Some(next_due.map_or(ahead, |next| next.min(ahead)));
                }
                while let (Some(priority), Some(due), Some(member)) = (part(), part(), part()) {
                    let rank = 3 - number::<u8>(&priority)?.min(3);
                    found.jobs.push(Candidate { rank, due: score(&due)?, member, shard });
                }
            }
        }
        let mut lanes: Vec<Found> = lanes.into_values().collect();
        for found in &mut lanes {
            found.jobs.sort_by(|a, b| b.cmp(a));
        }
        Ok((lanes, next_due, now))
    }

    async fn lease(
        &self,
        chosen: Vec<Choice>,
        claim: &Claim,
        free: &mut FreeSlots<'_>,
    ) -> Result<Vec<LeasedJob>, StoreError> {
        let mut by_shard: BTreeMap<usize, Asked> = BTreeMap::new();
        for (n, Choice { lane, queue, job, token }) in chosen.into_iter().enumerate() {
            let asked = by_shard.entry(job.shard).or_insert_with(|| {
                let mut asked = Asked::default();
                asked.args.name(&claim.worker).number(millis(claim.ttl));
                asked
            });
            asked.args.text(&lane).number(3 - job.rank).text(&job.member).text(&shown(token));
            asked.jobs.push((n, queue, token));
        }
        let calls = by_shard.into_iter().map(|(shard, asked)| async move {
            (self.shards[shard].call(&script::LEASE, [&asked.args]).await, asked.jobs)
        });
        let mut leased: Vec<(usize, LeasedJob)> = Vec::new();
        for (answer, asked) in futures_util::future::join_all(calls).await {
            for (value, (n, queue, token)) in answer?.rest.zip(asked) {
                match text(value)?.as_str() {
                    "" => *free.of(&queue) += 1,
                    found => leased.push((n, leased_job(found, token)?)),
                }
            }
        }
        // In the order that they were chosen, whatever shards they came from.
        leased.sort_by_key(|(n, _)| *n);
        Ok(leased.into_iter().map(|(_, job)| job).collect())
    }

    pub(crate) async fn hold(
        &self,
        leases: Vec<Extend>,
        renewal: Renewal,
    ) -> Result<Vec<Extended>, StoreError> {
        let (verb, ttl) = verb(renewal);
        let mut answers = vec![Extended::Gone(Gone::Lost); leases.len()];
        let by_shard = self.by_shard(leases.iter().enumerate(), |(_, lease)| names::run(&lease.run));
        for (shard, leases) in by_shard {
            let mut args = ScriptArgs::new();
            args.text(verb).number(millis(ttl));
            for (_, lease) in &leases {
                args.text(&names::run(&lease.run)).number(lease.key.number()).text(&shown(lease.token));
            }
            let answer = shard.call(&script::HOLD, [&args]).await?;
            for ((n, _), value) in leases.into_iter().zip(answer.rest) {
                answers[n] = match text(value)?.as_str() {
                    "H" => Extended::Held,
                    "E" => Extended::Gone(Gone::RunEnded),
                    _ => Extended::Gone(Gone::Lost),
                };
            }
        }
        Ok(answers)
    }

    pub(crate) async fn sweep_due(&self, limit: usize) -> Result<Swept, StoreError> {
        let mut args = ScriptArgs::new();
        args.number(limit);
        let answers = self.on_all(|shard: &Shard| shard.call(&script::SWEEP, [&args])).await?;
        let mut swept = Swept::default();
        let (mut expired, mut timers) = (Vec::new(), Vec::new());
        for mut answer in answers {
            swept.now = swept.now.max(answer.now);
            let mut part = || answer.rest.next().unwrap_or_default();
            expired.extend(due(part())?);
            timers.extend(due(part())?);
            for next in [&mut swept.next_lease, &mut swept.next_timer] {
                let ahead = text(part())?;
                if !ahead.is_empty() {
                    let ahead = Time::from_millis(score(&ahead)?);
                    *next = Some(next.map_or(ahead, |next| next.min(ahead)));
                }
            }
        }
        expired.sort_by_key(|(at, _, _, _)| *at);
        timers.sort_by_key(|(at, _, _, _)| *at);
        for (_, key, run, job) in expired.into_iter().take(limit) {
            let Some(token) = job.token else { continue };
            let JobField { name, attempt, worker, lines, released, .. } = job;
            let run = names::read_run(&run)?;
            swept.expired.push(ExpiredLease { run, key, name, attempt, token, worker, lines, released });
        }
        for (_, key, run, job) in timers.into_iter().take(limit) {
            let run = names::read_run(&run)?;
            swept.timers.push(DueTimer { run, key, attempt: job.attempt, due: job.due });
        }
        Ok(swept)
    }
}

/// What scripts call a renewal, and for how long it is.
pub(crate) fn verb(renewal: Renewal) -> (&'static str, Duration) {
    match renewal {
        Renewal::Extend(ttl) => ("extend", ttl),
        Renewal::Release => ("release", Duration::ZERO),
    }
}

/// One job of each lane in turn, the lane served longest ago first, while there are tokens and free slots.
fn choose(mut lanes: Vec<Found>, tokens: &[Token], free: &mut FreeSlots<'_>) -> Vec<Choice> {
    lanes.sort_by_key(|found| found.served);
    let (mut left, mut chosen) = (tokens.iter(), Vec::new());
    let take = |found: &mut Found| {
        let (Some(job), Some(token)) = (found.jobs.pop(), left.next()) else {
            return Ok::<_, Infallible>(false);
        };
        let (lane, queue) = (found.lane.clone(), found.queue.clone());
        chosen.push(Choice { lane, queue, job, token: *token });
        Ok(true)
    };
    let Ok(()) = free.deal(lanes, tokens.len(), |found| &found.queue, take);
    chosen
}

fn leased_job(found: &str, token: Token) -> Result<LeasedJob, StoreError> {
    let damaged = || StoreError::Damaged(format!("{found:?} isn't a leased job"));
    let (key, rest) = found.split_once(' ').ok_or_else(damaged)?;
    let (run, job) = rest.split_once(' ').ok_or_else(damaged)?;
    let JobField { name, attempt, lane, due, expires, .. } = JobField::read(job)?;
    let key = JobKey::from_number(number(key)?);
    Ok(LeasedJob { run: names::read_run(run)?, key, name, attempt, lane, due, token, expires })
}

/// Jobs of a sweep, each with the date that it was due at.
fn due(value: Value) -> Result<Vec<(i64, JobKey, String, JobField)>, StoreError> {
    let read = |value: Value| -> Result<(i64, JobKey, String, JobField), StoreError> {
        let line = text(value)?;
        let damaged = || StoreError::Damaged(format!("{line:?} isn't a job that's due"));
        let mut parts = line.splitn(4, ' ');
        let (Some(at), Some(key), Some(run), Some(job)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(damaged());
        };
        Ok((score(at)?, JobKey::from_number(number(key)?), run.to_owned(), JobField::read(job)?))
    };
    list(value)?.into_iter().map(read).collect()
}
