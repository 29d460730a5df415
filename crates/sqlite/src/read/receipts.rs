//! Receipts, newest first. A file that no engine of this version has opened yet has none.

use flowline_core::{Json, RunKey, Time};
use flowline_store::query::page_size;
use flowline_store::receipt::ReceiptPlace;
use flowline_store::{Receipt, ReceiptPage, ReceiptQuery, ReceiptStatus};
use rusqlite::{Row, Statement, params};

use super::Reader;
use super::rows::run_key;
use crate::code;
use crate::fault::Fault;
use crate::schema;

const RECEIPTS: &str =
    "select t.name, r.run_id, f.name, c.event_id, c.number, c.name, c.sender, c.status, c.worker,
    c.received_at, c.started_at, c.completed_at, c.outcome from receipts c cross join runs r on r.id = c.run
    cross join flows f on f.id = r.flow cross join tenants t on t.id = r.tenant";

/// Before every receipt there is.
const END: ReceiptPlace =
    ReceiptPlace { received: Time::from_millis(i64::MAX), run: i64::MAX as u64, number: u32::MAX };

impl Reader<'_> {
    pub(crate) fn receipts(&self, query: &ReceiptQuery) -> Result<ReceiptPage, Fault> {
        query.check()?;
        let before = query.after.as_deref().map(ReceiptPlace::parse).transpose()?.unwrap_or(END);
        let limit = page_size(query.limit);
        if !self.has(schema::WITH_MACHINES)? {
            return Ok(ReceiptPage { items: Vec::new(), next: None });
        }
        let places = self.places(query, before, limit + 1)?;
        let mut statement =
            self.conn.prepare_cached(&format!("{RECEIPTS} where c.run = ?1 and c.number = ?2"))?;
        let mut found = Vec::with_capacity(places.len());
        for place in places {
            let mut rows = statement.query(params![place.run as i64, place.number])?;
            if let Some(row) = rows.next()? {
                found.push((place, receipt(row)?));
            }
        }
        Ok(ReceiptPage::of(found, limit))
    }

    /// The newest of each list that the query is about, each read in the order of its index.
    fn places(
        &self,
        query: &ReceiptQuery,
        before: ReceiptPlace,
        count: usize,
    ) -> Result<Vec<ReceiptPlace>, Fault> {
        let Some(tenant) = self.tenant(&query.tenant)? else { return Ok(Vec::new()) };
        let mut statement = self.conn.prepare_cached(&page_sql(query))?;
        let mut places = Vec::new();
        if let Some(run) = &query.run {
            let Some(run) = self.run(&RunKey::new(query.tenant.clone(), run.clone()))? else {
                return Ok(places);
            };
            let status = query.status.map(code::receipt_status_number);
            let of = params![run, before.number, status, query.worker, count as i64, query.event_id];
            add_places(&mut statement, of, &mut places)?;
            return Ok(places);
        }
        let every = query.status.map_or(ReceiptStatus::ALL.to_vec(), |status| vec![status]);
        for status in every {
            let of = params![
                tenant,
                code::receipt_status_number(status),
                before.received.millis(),
                before.run as i64,
                before.number,
                count as i64,
                query.worker
            ];
            add_places(&mut statement, of, &mut places)?;
        }
        places.sort_unstable_by(|a, b| b.cmp(a));
        places.truncate(count);
        Ok(places)
    }
}

/// Where receipts are, newest first: of a run, or under a status and perhaps a worker. The index is named, because the
/// right one is the one in whose order the page is.
pub(super) fn page_sql(query: &ReceiptQuery) -> String {
    if query.run.is_some() {
        // What a query does not read it must still name, for parameters are counted.
        let (index, event) = match query.event_id {
            Some(_) => ("indexed by receipts_by_event", "event_id = ?6"),
            None => ("", "?6 is null"),
        };
        return format!(
            "select received_at, run, number from receipts {index} where run = ?1 and {event} and number < ?2
                and (?3 is null or status = ?3) and (?4 is null or worker = ?4) order by number desc limit ?5"
        );
    }
    let (index, worker) = match query.worker {
        Some(_) => ("receipts_by_worker", "worker = ?7"),
        None => ("receipts_by_status", "?7 is null"),
    };
    format!(
        "select received_at, run, number from receipts indexed by {index} where tenant = ?1 and {worker}
            and status = ?2 and (received_at, run, number) < (?3, ?4, ?5)
            order by received_at desc, run desc, number desc limit ?6"
    )
}

fn add_places(
    statement: &mut Statement<'_>,
    of: &[&dyn rusqlite::ToSql],
    places: &mut Vec<ReceiptPlace>,
) -> Result<(), Fault> {
    let mut rows = statement.query(of)?;
    while let Some(row) = rows.next()? {
        let received = Time::from_millis(row.get(0)?);
        places.push(ReceiptPlace { received, run: row.get::<_, i64>(1)? as u64, number: row.get(2)? });
    }
    Ok(())
}

fn receipt(row: &Row<'_>) -> Result<Receipt, Fault> {
    let json = |at: usize| -> Result<Option<Json>, Fault> {
        let text = row.get_ref(at)?.as_str_or_null().map_err(rusqlite::Error::from)?;
        text.map(code::json).transpose()
    };
    let time = |at: usize| row.get::<_, Option<i64>>(at).map(|time| time.map(Time::from_millis));
    let run = run_key(row, 0)?;
    Ok(Receipt {
        event_id: row.get(3)?,
        run_id: run.run,
        flow_name: row.get(2)?,
        tenant: run.tenant,
        number: row.get(4)?,
        name: row.get(5)?,
        sender: json(6)?,
        status: code::receipt_status(row.get(7)?)?,
        worker: row.get(8)?,
        received_at: Time::from_millis(row.get(9)?),
        started_at: time(10)?,
        completed_at: time(11)?,
        outcome: json(12)?,
    })
}
