//! The feed: every call that wrote events has an entry in its shard's stream `feed`, under the shard's count, with the
//! runs and the numbers of the events. The count is taken in the same atomic step, so an entry can never appear before one
//! that was read: no commit comes late.
//!
//! A cursor holds a place per shard: the entry, the run within it, and how many of its events were given.

use flowline_core::{Event, RunKey};
use flowline_store::query::page_size;
use flowline_store::{FeedFilter, FeedPage, StoreError};
use redis::Value;

use crate::RedisStore;
use crate::answer::{list, maybe_text, number, text};
use crate::log;
use crate::names;
use crate::row;
use crate::runs::digits;
use crate::shard::Shard;

/// Entries read in one go.
const PART: usize = 64;

/// Up to where a shard's feed was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct At {
    /// All entries up to this one were given whole.
    entry: u64,
    /// Of the next entry: runs given whole, and events of the run after those.
    runs: u64,
    events: u64,
}

/// Events of one run in an entry.
#[derive(Debug)]
struct Part {
    run: String,
    from: String,
    to: String,
}

impl RedisStore {
    pub(crate) async fn page_of_feed(
        &self,
        filter: &FeedFilter,
        cursor: &str,
        limit: usize,
    ) -> Result<FeedPage, StoreError> {
        let mut places = match cursor {
            "" if filter.from_now => return self.end_of_feed().await,
            "" => vec![At::default(); self.shards.len()],
            cursor => read_cursor(cursor, self.shards.len())?,
        };
        let size = page_size(limit);
        let mut page = empty(&places);
        for (number, shard) in self.shards.iter().enumerate() {
            page.more = read_shard(shard, filter, size, &mut places, number, &mut page).await?;
            if page.more {
                break;
            }
        }
        page.cursor = write_cursor(&places);
        Ok(page)
    }

    async fn end_of_feed(&self) -> Result<FeedPage, StoreError> {
        let mut places = Vec::new();
        for shard in &self.shards {
            let mut asked = redis::cmd("HGET");
            asked.arg(shard.meta()).arg("n");
            let entry = maybe_text(shard.ask(&asked).await?)?.map_or(Ok(0), |text| number(&text))?;
            places.push(At { entry, ..At::default() });
        }
        Ok(empty(&places))
    }
}

fn empty(places: &[At]) -> FeedPage {
    FeedPage { events: Vec::new(), cursors: Vec::new(), cursor: write_cursor(places), more: false }
}

/// Reads the shard of this number on from its place until the page is full or the shard's end. True where it has at
/// least one more event.
async fn read_shard(
    shard: &Shard,
    filter: &FeedFilter,
    size: usize,
    places: &mut [At],
    shard_number: usize,
    page: &mut FeedPage,
) -> Result<bool, StoreError> {
    loop {
        let at = places[shard_number];
        let from = format!("{}-0", at.entry + 1);
        let mut asked = redis::pipe();
        asked.cmd("XRANGE").arg(shard.key("feed")).arg(from).arg("+").arg("COUNT").arg(PART);
        asked.cmd("HGET").arg(shard.meta()).arg("n");
        let mut answers = shard.ask_all(&asked).await?.into_iter();
        let entries = list(answers.next().unwrap_or_default())?;
        let written = maybe_text(answers.next().unwrap_or_default())?.map_or(Ok(0), |text| number(&text))?;
        if at.entry > written {
            return Err(unknown(&write_cursor(places)));
        }
        let last = entries.len() < PART;
        for entry in entries {
            let (number, parts) = read_entry(entry)?;
            // A place within an entry that is gone means nothing for the one after it.
            let (runs, given) = if number == at.entry + 1 { (at.runs, at.events) } else { (0, 0) };
            let found = read_parts(shard, &parts[parts.len().min(runs as usize)..]).await?;
            for (n, of_run) in (runs..).zip(found) {
                let skip = if n == runs { given } else { 0 };
                for (k, event) in (0..).zip(of_run).skip(skip as usize) {
                    if !filter.matches(&event) {
                        continue;
                    }
                    if page.events.len() == size {
                        places[shard_number] = At { entry: number - 1, runs: n, events: k };
                        return Ok(true);
                    }
                    places[shard_number] = At { entry: number - 1, runs: n, events: k + 1 };
                    page.cursors.push(write_cursor(places));
                    page.events.push(event);
                }
            }
            places[shard_number] = At { entry: number, ..At::default() };
        }
        if last {
            return Ok(false);
        }
    }
}

/// The events that the parts of an entry lead to, as far as they are kept.
async fn read_parts(shard: &Shard, parts: &[Part]) -> Result<Vec<Vec<Event>>, StoreError> {
    let mut pipe = redis::pipe();
    // A run with many dates in an entry, as a move leaves them, has one row.
    let by_run = || parts.chunk_by(|a, b| a.run == b.run);
    for of_run in by_run() {
        pipe.cmd("GET").arg(shard.key(&format!("run:{}", of_run[0].run)));
        for part in of_run {
            pipe.cmd("XRANGE").arg(shard.key(&format!("log:{}", part.run))).arg(&part.from).arg(&part.to);
        }
    }
    let mut answers = shard.ask_all(&pipe).await?.into_iter();
    let mut found = Vec::with_capacity(parts.len());
    for of_run in by_run() {
        let run: RunKey = names::read_run(&of_run[0].run)?;
        let row = row::read(&run, answers.next().unwrap_or_default())?;
        for entries in answers.by_ref().take(of_run.len()) {
            found.push(match &row {
                Some(row) => log::read(&run, &row.flow, entries)?.events,
                None => Vec::new(),
            });
        }
    }
    Ok(found)
}

fn read_entry(entry: Value) -> Result<(u64, Vec<Part>), StoreError> {
    let mut entry = list(entry)?.into_iter();
    let id = text(entry.next().unwrap_or_default())?;
    let runs = list(entry.next().unwrap_or_default())?.into_iter().nth(1);
    let runs = text(runs.unwrap_or_default())?;
    let damaged = || StoreError::Damaged(format!("can't read entry {id} of the feed"));
    let part = |line: &str| -> Result<Part, StoreError> {
        let parts: Vec<&str> = line.split(' ').collect();
        let &[run, ms, first, last] = &parts[..] else { return Err(damaged()) };
        Ok(Part { run: run.to_owned(), from: format!("{ms}-{first}"), to: format!("{ms}-{last}") })
    };
    let number = number(id.split('-').next().unwrap_or_default())?;
    Ok((number, runs.lines().map(part).collect::<Result<_, _>>()?))
}

fn write_cursor(places: &[At]) -> String {
    let shown: Vec<String> =
        places.iter().map(|at| format!("{}.{}.{}", at.entry, at.runs, at.events)).collect();
    shown.join("_")
}

fn read_cursor(cursor: &str, shards: usize) -> Result<Vec<At>, StoreError> {
    let place = |text: &str| -> Option<At> {
        let mut parts = text.split('.').map(|part| digits(part).map(|number| number as u64));
        let at = At { entry: parts.next()??, runs: parts.next()??, events: parts.next()?? };
        parts.next().is_none().then_some(at)
    };
    let places: Option<Vec<At>> = cursor.split('_').map(place).collect();
    places.filter(|places| places.len() == shards).ok_or_else(|| unknown(cursor))
}

fn unknown(cursor: &str) -> StoreError {
    StoreError::Invalid(format!("cursor {cursor:?} doesn't come from this store; start without a cursor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_and_others_are_refused() {
        let places = [At { entry: 7, runs: 1, events: 2 }, At::default()];
        assert_eq!(read_cursor(&write_cursor(&places), 2).unwrap(), places);
        for bad in ["x", "-1", "1e3", "{}", "1.2", "1.2.3.4", "1.2.3", "1.2.-3_0.0.0", "_"] {
            assert!(read_cursor(bad, 2).is_err(), "{bad}");
        }
    }
}
