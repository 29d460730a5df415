//! A run's log, and payloads by their address.

use flowline_core::event::PayloadSlot;
use flowline_core::report::ReportDigests;
use flowline_core::{Event, Json, NewEvent, RunKey};
use flowline_store::query::{PageRoom, page_size};
use flowline_store::{EventPage, EventQuery};
use rusqlite::{OptionalExtension, params};

use super::Reader;
use super::rows::LogOwner;
use crate::fault::Fault;
use crate::pack::{Packed, unpack};
use crate::schema;

/// What is kept of the reports of a run that stands at this version.
pub(crate) struct Digested {
    pub(crate) run: i64,
    pub(crate) version: i64,
    pub(crate) digests: Vec<u8>,
}

/// A page begins by key with the row that its first event is in, wherever it lies.
pub(crate) const LOG_FROM: &str = "select first_seq, ms, events from log indexed by log_by_run where run = ?1
    and first_seq >= (select coalesce(max(first_seq), 0) from log where run = ?1 and first_seq <= ?2 + 1)
    order by first_seq";

impl Reader<'_> {
    pub(crate) fn events(&self, run: &RunKey, query: &EventQuery) -> Result<EventPage, Fault> {
        let mut page = EventPage { events: Vec::new(), more: false };
        let Some((id, log)) = self.log_of(run)? else { return Ok(page) };
        let mut room = PageRoom::new(page_size(query.limit));
        let mut statement = self.conn.prepare_cached(LOG_FROM)?;
        let after = query.after.max(log.trimmed_to);
        let mut rows = statement.query(params![id, after.min(i64::MAX as u64 - 1) as i64])?;
        while let Some(row) = rows.next()? {
            let (first_seq, ms) = (row.get::<_, i64>(0)? as u64, row.get(1)?);
            let events = unpack(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?)?;
            for (seq, event) in (first_seq..).zip(&events).filter(|(seq, _)| *seq > after) {
                if !wanted(query, event) {
                    continue;
                }
                let event = event.event();
                if !room.take(event.data.as_ref()) {
                    page.more = true;
                    return Ok(page);
                }
                page.events.push(Event::stored(&log.run, &log.flow, &log.tenant, seq, ms, event));
            }
        }
        Ok(page)
    }

    /// The digests of the reports of these runs, as they are kept once the runs are trimmed.
    pub(crate) fn digest(&self, runs: &[i64]) -> Result<Vec<Digested>, Fault> {
        let mut version = self.conn.prepare_cached("select version from progress where run = ?1")?;
        let mut log = self.conn.prepare_cached(
            "select events from log indexed by log_by_run where run = ?1 order by first_seq",
        )?;
        let mut digested = Vec::with_capacity(runs.len());
        for &run in runs {
            let Some(version) = version.query_row([run], |row| row.get(0)).optional()? else { continue };
            let mut digests = ReportDigests::default();
            let mut rows = log.query([run])?;
            while let Some(row) = rows.next()? {
                for event in unpack(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?)? {
                    if ReportDigests::KINDS.contains(&event.kind)
                        && let NewEvent { kind, of: Some(of), data, .. } = event.event()
                    {
                        digests.note(kind, &of, data.as_ref());
                    }
                }
            }
            digested.push(Digested { run, version, digests: digests.encode() });
        }
        Ok(digested)
    }

    pub(crate) fn reports(&self, run: &RunKey) -> Result<Option<ReportDigests>, Fault> {
        if !self.has(schema::WITH_REPORTS)? {
            return Ok(None);
        }
        let Some(id) = self.run(run)? else { return Ok(None) };
        let mut statement = self.conn.prepare_cached("select digests from reports where run = ?1")?;
        let mut rows = statement.query([id])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let bytes = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
        let digests = ReportDigests::decode(bytes).map_err(|error| Fault::damaged(&error.to_string()))?;
        Ok(Some(digests))
    }

    pub(crate) fn payloads(&self, run: &RunKey, slots: &[PayloadSlot]) -> Result<Vec<Option<Json>>, Fault> {
        let Some((id, log)) = self.log_of(run)? else { return Ok(vec![None; slots.len()]) };
        let mut statement = self.conn.prepare_cached(
            "select slots.n - log.n, first_seq, events from slots cross join log
             on log.n = (select max(n) from log where n <= slots.n) where slots.run = ?1 and slot = ?2 and log.run = ?1",
        )?;
        let mut found = Vec::with_capacity(slots.len());
        for slot in slots {
            let mut rows = statement.query((id, slot.number()))?;
            found.push(match rows.next()? {
                Some(row) => {
                    let (at, first_seq) = (row.get::<_, i64>(0)? as usize, row.get::<_, i64>(1)? as u64);
                    let events = unpack(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?)?;
                    let kept = first_seq + at as u64 > log.trimmed_to;
                    events.get(at).filter(|_| kept).and_then(Packed::data)
                }
                None => self.payload_of_machine(id, &log, *slot)?,
            });
        }
        Ok(found)
    }

    /// What has no slot: an event that a machine took in is where its receipt says; a context is the last, or before it.
    fn payload_of_machine(&self, id: i64, log: &LogOwner, slot: PayloadSlot) -> Result<Option<Json>, Fault> {
        let (seq, number) = match slot {
            PayloadSlot::Received(number) => {
                ("select seq from receipts where run = ?1 and number = ?2", number)
            }
            PayloadSlot::Context(number) => {
                ("select context_seq from progress where run = ?1 and ?2 > 0", number)
            }
            _ => return Ok(None),
        };
        if !self.has(schema::WITH_PLACES)? {
            return Ok(None);
        }
        let mut statement = self.conn.prepare_cached(&format!(
            "select first_seq, events, ({seq}) as seq from log indexed by log_by_run
             where run = ?1 and first_seq <= seq order by first_seq desc"
        ))?;
        let mut rows = statement.query((id, number))?;
        while let Some(row) = rows.next()? {
            let (first_seq, seq) = (row.get::<_, i64>(0)? as u64, row.get::<_, i64>(2)? as u64);
            let events = unpack(row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?)?;
            if let PayloadSlot::Received(_) = slot {
                let event = events.get((seq - first_seq) as usize).filter(|_| seq > log.trimmed_to);
                return Ok(event.and_then(Packed::data));
            }
            for (at, event) in events.iter().enumerate().rev() {
                match event.context_of().filter(|_| first_seq + at as u64 > log.trimmed_to) {
                    Some(transition) if transition == number => return Ok(event.data()),
                    Some(transition) if transition < number => return Ok(None),
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    fn log_of(&self, run: &RunKey) -> Result<Option<(i64, LogOwner)>, Fault> {
        let Some(tenant) = self.tenant(&run.tenant)? else { return Ok(None) };
        let mut statement = self.conn.prepare_cached(
            "select r.id, f.name, p.trimmed_to from runs r join progress p on p.run = r.id join flows f on f.id = r.flow
             where r.tenant = ?1 and r.run_id = ?2",
        )?;
        let found = statement.query_row(params![tenant, run.run.as_str()], |row| {
            let trimmed_to = row.get::<_, i64>(2)? as u64;
            Ok((
                row.get(0)?,
                LogOwner { run: run.run.clone(), flow: row.get(1)?, tenant: run.tenant.clone(), trimmed_to },
            ))
        });
        Ok(found.optional()?)
    }
}

fn wanted(query: &EventQuery, event: &Packed<'_>) -> bool {
    let attempt = event.attempt.filter(|attempt| *attempt > 0);
    (query.kinds.is_empty() || query.kinds.contains(&event.kind))
        && query.step.as_ref().is_none_or(|step| event.step.as_deref() == Some(&**step))
        && query.attempt.is_none_or(|wanted| attempt == Some(wanted))
}
