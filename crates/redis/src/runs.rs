//! Lists of runs. A sorted set per tenant and status, one per tenant, status and flow, of machines one more per state, and
//! one per label hold the ids of runs by the number that they got at their creation; other lists are merged from these.

use std::cmp::Reverse;

use flowline_core::{RunId, RunKey, Status, Time};
use flowline_store::query::{EXACT_TOTAL, WantTotal, page_size};
use flowline_store::{RunPage, RunQuery, RunRow, StoreError, Total};
use redis::Value;

use crate::RedisStore;
use crate::answer::{list, number, score, text};
use crate::encode::label;
use crate::names;
use crate::row::snapshot;
use crate::shard::Shard;

/// Runs looked at in one go where every row has to be seen.
const PART: usize = 512;
/// How far from its creation a run's number can lie: beyond what two clocks disagree by, or a commit waits.
const SLACK: i64 = 3_600_000_000;

/// Where a run stands in a list: the newest first. Shards are told apart where two of them give the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    number: i64,
    shard: usize,
}

impl RedisStore {
    pub(crate) async fn page_of_runs(&self, query: &RunQuery) -> Result<RunPage, StoreError> {
        query.check()?;
        let below = query.cursor.as_deref().map(read_cursor).transpose()?;
        let size = page_size(query.limit);
        let (mut items, _) = self.walk(query, below, size + 1).await?;
        let more = items.len() > size;
        items.truncate(size);
        let next =
            items.last().filter(|_| more).map(|(place, _)| format!("{}.{}", place.number, place.shard));
        let total = match query.total {
            WantTotal::No => None,
            WantTotal::Yes if query.counted() => Some(Total::Exact(self.count(query).await?)),
            WantTotal::Yes => {
                let (all, _) = self.walk(query, None, EXACT_TOTAL as usize + 1).await?;
                Some(match all.len() as u64 {
                    count if count > EXACT_TOTAL => Total::AtLeast(EXACT_TOTAL),
                    count => Total::Exact(count),
                })
            }
        };
        Ok(RunPage { items: items.into_iter().map(|(_, row)| row).collect(), total, next })
    }

    /// The first `wanted` runs below a place that the query matches.
    async fn walk(
        &self,
        query: &RunQuery,
        mut below: Option<Place>,
        wanted: usize,
    ) -> Result<(Vec<(Place, RunRow)>, Option<Place>), StoreError> {
        let mut found = Vec::new();
        // Where a list has what is asked for, nothing is read in vain.
        let part = if query.counted() { wanted.min(PART) } else { PART };
        loop {
            let places = self.places(query, below, part).await?;
            let (count, last) = (places.len(), places.last().map(|(place, _)| *place));
            for (place, row) in self.rows(query, places).await? {
                if query.matches(&row) {
                    found.push((place, row));
                    if found.len() == wanted {
                        return Ok((found, last));
                    }
                }
            }
            if count < part {
                return Ok((found, last));
            }
            below = last;
        }
    }

    /// The next ids of the lists that the query is merged from, the newest first.
    async fn places(
        &self,
        query: &RunQuery,
        below: Option<Place>,
        count: usize,
    ) -> Result<Vec<(Place, String)>, StoreError> {
        let least = query.since.map_or("-inf".to_owned(), |since| {
            since.millis().saturating_mul(1_000).saturating_sub(SLACK).to_string()
        });
        let most = query.until.map(|until: Time| until.millis().saturating_mul(1_000).saturating_add(SLACK));
        let mut found: Vec<(Place, String)> = Vec::new();
        for (shard_number, shard) in self.shards.iter().enumerate() {
            let from = match below {
                // The same number in a shard that comes later in the order is still to come.
                Some(place) if shard_number < place.shard => place.number.to_string(),
                Some(place) => format!("({}", place.number),
                None => "+inf".to_owned(),
            };
            let from = match (most, below) {
                (Some(most), None) => most.to_string(),
                (Some(most), Some(place)) if most < place.number => most.to_string(),
                _ => from,
            };
            let mut pipe = redis::pipe();
            for key in lists(shard, query) {
                pipe.cmd("ZREVRANGEBYSCORE").arg(key).arg(&from).arg(&least).arg("WITHSCORES");
                pipe.arg("LIMIT").arg(0).arg(count);
            }
            for answer in shard.ask_all(&pipe).await? {
                let mut members = list(answer)?.into_iter();
                while let (Some(id), Some(at)) = (members.next(), members.next()) {
                    let place = Place { number: score(&text(at)?)?, shard: shard_number };
                    found.push((place, text(id)?));
                }
            }
        }
        found.sort_by_key(|(place, _)| Reverse(*place));
        found.truncate(count);
        Ok(found)
    }

    /// The rows of runs, in order. One that is gone in the meantime is left out.
    async fn rows(
        &self,
        query: &RunQuery,
        places: Vec<(Place, String)>,
    ) -> Result<Vec<(Place, RunRow)>, StoreError> {
        let mut rows: Vec<(Place, RunRow)> = Vec::with_capacity(places.len());
        let tenant = names::encode(query.tenant.as_str());
        for (number, shard) in self.shards.iter().enumerate() {
            let here: Vec<_> = places.iter().filter(|(place, _)| place.shard == number).collect();
            if here.is_empty() {
                continue;
            }
            let mut asked = redis::cmd("MGET");
            for (_, id) in &here {
                asked.arg(shard.key(&format!("run:{tenant}/{id}")));
                asked.arg(shard.key(&format!("start:{tenant}/{id}")));
            }
            let mut answers = list(shard.ask(&asked).await?)?.into_iter();
            for (place, id) in here {
                let mut part = || answers.next().unwrap_or_default();
                let damaged = |error| StoreError::Damaged(format!("{id:?} isn't a run: {error}"));
                let id = RunId::new(&names::decode(id)?).map_err(damaged)?;
                let run = RunKey::new(query.tenant.clone(), id);
                rows.extend(snapshot(&run, part(), part())?.map(|snapshot| (*place, snapshot.row)));
            }
        }
        rows.sort_by_key(|(place, _)| Reverse(*place));
        Ok(rows)
    }

    /// The sizes of the lists: what a counter would say.
    async fn count(&self, query: &RunQuery) -> Result<u64, StoreError> {
        let mut total = 0;
        for shard in &self.shards {
            let mut pipe = redis::pipe();
            for key in lists(shard, query) {
                pipe.cmd("ZCARD").arg(key);
            }
            for answer in shard.ask_all(&pipe).await? {
                total += match answer {
                    Value::Int(count) => count as u64,
                    other => return Err(crate::answer::strange(&other)),
                };
            }
        }
        Ok(total)
    }
}

/// The lists that together hold what flow, status or label ask for.
fn lists(shard: &Shard, query: &RunQuery) -> Vec<String> {
    let tenant = names::encode(query.tenant.as_str());
    if let Some((key, value)) = &query.label {
        return vec![shard.key(&format!("label:{tenant}:{}", label(key, value)))];
    }
    let flow = query.flow.as_deref().map(|flow| format!(":{}", names::encode(flow))).unwrap_or_default();
    let state = query.state.as_deref().map(|state| format!(":{}", names::encode(state))).unwrap_or_default();
    let statuses =
        Status::ALL.into_iter().filter(|status| query.status.is_none_or(|wanted| wanted == *status));
    statuses.map(|status| shard.key(&format!("by:{tenant}:{}{flow}{state}", status.as_str()))).collect()
}

fn read_cursor(cursor: &str) -> Result<Place, StoreError> {
    let parts = cursor.split_once('.').and_then(|(number, shard)| {
        Some(Place { number: digits(number)?, shard: usize::try_from(digits(shard)?).ok()? })
    });
    parts.ok_or_else(|| {
        StoreError::Invalid(format!("cursor {cursor:?} doesn't come from this store; start without a cursor"))
    })
}

/// A whole number without a sign.
pub(crate) fn digits(text: &str) -> Option<i64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| number(text).ok()).flatten()
}
