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
        let after = i64::try_from(query.after).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![id, after, query.step, query.attempt, size as i64 + 1])?;
        let mut events = Vec::new();
        while let Some(row) = rows.next()? {
            events.push(event(row, &log, self.kinds)?);
        }
        let more = events.len() > size;
        events.truncate(size);
        Ok(EventPage { events, more })
    }

    /// A page begins by key in the index, wherever it lies.
    pub(crate) fn events_sql(&self, query: &EventQuery) -> String {
        let mut wheres = String::new();
        if !query.kinds.is_empty() {
            let kinds: Vec<_> = query.kinds.iter().map(|kind| self.kinds.number(*kind).to_string()).collect();
            wheres.push_str(&format!(" and type in ({})", kinds.join(",")));
        }
        format!(
            "select {EVENT_COLUMNS} from events indexed by events_by_run where run = ?1 and seq > ?2
             and (?3 is null or step = ?3) and (?4 is null or attempt = ?4){wheres} order by seq limit ?5"
        )
    }

    pub(crate) fn payloads(&self, run: &RunKey, slots: &[Slot]) -> Result<Vec<Option<Json>>, Fault> {
        let Some((id, _)) = self.log_of(run)? else { return Ok(vec![None; slots.len()]) };
        // The first that took the slot counts.
        let mut statement = self
            .conn
            .prepare_cached("select data from events indexed by events_by_slot where run = ?1 and slot = ?2 order by n limit 1")?;
        let mut found = Vec::with_capacity(slots.len());
        for slot in slots {
            let mut rows = statement.query((id, slot.number()))?;
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

    /// `None` where there is no such run, or its events were trimmed.
    fn log_of(&self, run: &RunKey) -> Result<Option<(i64, Log)>, Fault> {
        let Some(tenant) = self.tenant(&run.tenant)? else { return Ok(None) };
        let mut statement = self.conn.prepare_cached(
            "select r.id, f.name from runs r join flows f on f.id = r.flow
             where r.tenant = ?1 and r.run_id = ?2 and r.events_trimmed = 0",
        )?;
        let found = statement
            .query_row(params![tenant, run.run.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(found.map(|(id, flow)| (id, Log { run: run.run.clone(), flow, tenant: run.tenant.clone() })))
    }
}
