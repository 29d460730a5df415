//! Events of many runs. Their numbers are given in commit order by one writer, so what comes later has a higher one.

use std::collections::HashMap;

use flowline_store::query::page_size;
use flowline_store::{FeedFilter, FeedPage};
use rusqlite::{OptionalExtension, params};

use super::Reader;
use super::rows::{EVENT_COLUMNS, Log, event, run_id};
use super::runs::number;
use crate::fault::Fault;
use crate::names::tenant_of;

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
        let size = page_size(limit);
        let sql = format!("select {EVENT_COLUMNS}, n, run from events where n > ?1 order by n limit ?2");
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut rows = statement.query(params![after, LOOKED_AT as i64])?;
        let mut logs: HashMap<i64, Option<Log>> = HashMap::new();
        let (mut events, mut last, mut looked_at) = (Vec::new(), after, 0);
        while let Some(row) = rows.next()? {
            let (n, run) = (row.get::<_, i64>(6)?, row.get::<_, i64>(7)?);
            looked_at += 1;
            let log = match logs.entry(run) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(new) => new.insert(self.fed_log(run, filter)?),
            };
            let kind = self.kinds.kind(row.get(2)?)?;
            let seq = row.get::<_, i64>(0)? as u64;
            let wanted = log.as_ref().filter(|log| {
                seq > log.trimmed_to && (filter.kinds.is_empty() || filter.kinds.contains(&kind))
            });
            let Some(wanted) = wanted else {
                last = n;
                continue;
            };
            if events.len() == size {
                return Ok(FeedPage { events, cursor: last.to_string(), more: true });
            }
            events.push(event(row, wanted, self.kinds)?);
            last = n;
        }
        if looked_at == LOOKED_AT {
            return Ok(FeedPage { events, cursor: last.to_string(), more: true });
        }
        Ok(FeedPage { events, cursor: after.max(end).to_string(), more: false })
    }

    /// `None` where the run's events are not wanted, or the run has gone.
    fn fed_log(&self, run: i64, filter: &FeedFilter) -> Result<Option<Log>, Fault> {
        let mut statement = self.conn.prepare_cached(
            "select r.run_id, f.name, t.name, r.trimmed_to from runs r join flows f on f.id = r.flow join tenants t on t.id = r.tenant
             where r.id = ?1",
        )?;
        let mut rows = statement.query([run])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let name = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
        let tenant = row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?;
        let log = Log {
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
        let mut kept = self.conn.prepare_cached("select coalesce(max(n), 0) from events")?;
        let kept: i64 = kept.query_row([], |row| row.get(0))?;
        let mut cell = self.conn.prepare_cached("select value from cells where name = 'last_event'")?;
        let given: Option<i64> = cell.query_row([], |row| row.get(0)).optional()?;
        Ok(kept.max(given.unwrap_or(0)))
    }
}
