//! A run's log, and payloads by their address.

use flowline_core::event::Slot;
use flowline_core::{Json, RunKey};
use flowline_store::query::page_size;
use flowline_store::{EventPage, EventQuery};
use rusqlite::{OptionalExtension, params};

use super::Reader;
use super::rows::{EVENT_COLUMNS, Log, event};
use crate::code;
use crate::fault::Fault;

impl Reader<'_> {
    pub(crate) fn events(&self, run: &RunKey, query: &EventQuery) -> Result<EventPage, Fault> {
        let nothing = EventPage { events: Vec::new(), more: false };
        let Some((id, log)) = self.log_of(run)? else { return Ok(nothing) };
        let size = page_size(query.limit);
        let sql = self.events_sql(query);
        let mut statement = self.conn.prepare_cached(&sql)?;
        let after = query.after.max(log.trimmed_to).min(i64::MAX as u64 - 1) as i64;
        let mut rows = statement.query(params![id, after, query.step, query.attempt, size as i64 + 1])?;
        let mut events = Vec::new();
        while let Some(row) = rows.next()? {
            events.push(event(row, &log, self.kinds)?);
        }
        let more = events.len() > size;
        events.truncate(size);
        Ok(EventPage { events, more })
    }

    /// A page begins by key with the commit that its first event is in, wherever it lies.
    pub(crate) fn events_sql(&self, query: &EventQuery) -> String {
        let mut wheres = String::new();
        if !query.kinds.is_empty() {
            let kinds: Vec<_> = query.kinds.iter().map(|kind| self.kinds.number(*kind).to_string()).collect();
            wheres.push_str(&format!(" and type in ({})", kinds.join(",")));
        }
        format!(
            "select {EVENT_COLUMNS} from logs cross join events on n between first_n and first_n + count - 1
             where logs.run = ?1
             and first_seq >= (select coalesce(max(first_seq), 0) from logs where run = ?1 and first_seq <= ?2 + 1)
             and seq > ?2 and (?3 is null or step = ?3) and (?4 is null or attempt = ?4){wheres}
             order by first_seq, n limit ?5"
        )
    }

    pub(crate) fn payloads(&self, run: &RunKey, slots: &[Slot]) -> Result<Vec<Option<Json>>, Fault> {
        let Some((id, log)) = self.log_of(run)? else { return Ok(vec![None; slots.len()]) };
        // The first that took the slot counts.
        let mut statement = self
            .conn
            .prepare_cached("select data from events indexed by events_by_slot where run = ?1 and slot = ?2 and seq > ?3 order by n limit 1")?;
        let mut found = Vec::with_capacity(slots.len());
        for slot in slots {
            let mut rows = statement.query((id, slot.number(), log.trimmed_to as i64))?;
            found.push(match rows.next()? {
                Some(row) => {
                    let data = row.get_ref(0)?.as_str_or_null().map_err(rusqlite::Error::from)?;
                    data.map(code::json).transpose()?
                }
                None => None,
            });
        }
        Ok(found)
    }

    fn log_of(&self, run: &RunKey) -> Result<Option<(i64, Log)>, Fault> {
        let Some(tenant) = self.tenant(&run.tenant)? else { return Ok(None) };
        let mut statement = self.conn.prepare_cached(
            "select r.id, f.name, r.trimmed_to from runs r join flows f on f.id = r.flow
             where r.tenant = ?1 and r.run_id = ?2",
        )?;
        let found = statement.query_row(params![tenant, run.run.as_str()], |row| {
            let trimmed_to = row.get::<_, i64>(2)? as u64;
            Ok((
                row.get(0)?,
                Log { run: run.run.clone(), flow: row.get(1)?, tenant: run.tenant.clone(), trimmed_to },
            ))
        });
        Ok(found.optional()?)
    }
}
