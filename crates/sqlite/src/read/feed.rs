//! Events of many runs. Their numbers are given in commit order by one writer, so what comes later has a higher one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use flowline_core::Event;
use flowline_store::query::page_size;
use flowline_store::{FeedFilter, FeedPage};
use rusqlite::OptionalExtension;

use super::Reader;
use super::rows::{LogOwner, run_id};
use super::runs::{number, unknown};
use crate::fault::Fault;
use crate::names::tenant_of;
use crate::pack::unpack;

/// Events looked at for one page. A filter that matches few gives short pages, never a long read.
const LOOKED_AT: usize = 20_000;

impl Reader<'_> {
    pub(crate) fn feed(&self, filter: &FeedFilter, cursor: &str, limit: usize) -> Result<FeedPage, Fault> {
        let end = self.last_event()?;
        let after = match cursor {
            "" if filter.from_now => end,
            "" => 0,
            cursor => number(cursor)?,
        };
        if after > end {
            return Err(unknown(cursor));
        }
        let size = page_size(limit);
        let mut statement = self.conn.prepare_cached(
            "select n, run, first_seq, ms, events from log where n >= (select coalesce(max(n), 0) from log where n <= ?1 + 1)
             order by n",
        )?;
        let mut rows = statement.query([after])?;
        let mut logs: HashMap<i64, Option<LogOwner>> = HashMap::new();
        let (mut events, mut cursors) = (Vec::new(), Vec::new());
        let (mut last, mut looked_at) = (after, 0);
        while let Some(row) = rows.next()? {
            if looked_at >= LOOKED_AT {
                return Ok(FeedPage { events, cursors, cursor: last.to_string(), more: true });
            }
            let (first_n, run) = (row.get::<_, i64>(0)?, row.get::<_, i64>(1)?);
            let (first_seq, ms) = (row.get::<_, i64>(2)? as u64, row.get(3)?);
            let log = match logs.entry(run) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.fed_log(run, filter)?),
            };
            let packed = unpack(row.get_ref(4)?.as_str().map_err(rusqlite::Error::from)?)?;
            for ((n, seq), event) in
                (first_n..).zip(first_seq..).zip(&packed).filter(|((n, _), _)| *n > after)
            {
                looked_at += 1;
                let wanted = log.as_ref().filter(|log| {
                    seq > log.trimmed_to && (filter.kinds.is_empty() || filter.kinds.contains(&event.kind))
                });
                if let Some(log) = wanted {
                    if events.len() == size {
                        return Ok(FeedPage { events, cursors, cursor: last.to_string(), more: true });
                    }
                    events.push(Event::stored(&log.run, &log.flow, &log.tenant, seq, ms, event.event()));
                    cursors.push(n.to_string());
                }
                last = n;
            }
        }
        Ok(FeedPage { events, cursors, cursor: end.to_string(), more: false })
    }

    /// `None` where the run's events are not wanted, or the run has gone.
    fn fed_log(&self, run: i64, filter: &FeedFilter) -> Result<Option<LogOwner>, Fault> {
        let mut statement = self.conn.prepare_cached(
            "select r.run_id, f.name, t.name, p.trimmed_to from runs r join progress p on p.run = r.id join flows f on f.id = r.flow join tenants t on t.id = r.tenant
             where r.id = ?1",
        )?;
        let mut rows = statement.query([run])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let name = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
        let tenant = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
        let log = LogOwner {
            run: run_id(name)?,
            flow: row.get(1)?,
            tenant: tenant_of(tenant)?,
            trimmed_to: row.get::<_, i64>(3)? as u64,
        };
        let wanted = filter.tenant.as_ref().is_none_or(|tenant| *tenant == log.tenant)
            && filter.flow.as_ref().is_none_or(|flow| *flow == log.flow);
        Ok(wanted.then_some(log))
    }

    /// The last number given, also where its event has gone.
    fn last_event(&self) -> Result<i64, Fault> {
        let mut kept = self.conn.prepare_cached(
            "select coalesce(max(n + count - 1), 0) from log where n = (select max(n) from log)",
        )?;
        let kept: i64 = kept.query_row([], |row| row.get(0))?;
        let mut cell = self.conn.prepare_cached("select value from cells where name = 'last_event'")?;
        let given: Option<i64> = cell.query_row([], |row| row.get(0)).optional()?;
        Ok(kept.max(given.unwrap_or(0)))
    }
}
