//! Runs: by name, and in pages, newest first.

use std::collections::BTreeSet;

use flowline_core::{RunKey, Status};
use flowline_store::query::{EXACT_TOTAL, WantTotal};
use flowline_store::{RunPage, RunQuery, Snapshot, StoreError, Total};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params, params_from_iter};

use super::Reader;
use super::rows::{RUN_COLUMNS, RUN_JOINS, STATE_COLUMN, run_row};
use crate::code;
use crate::fault::Fault;
use crate::schema;

impl Reader<'_> {
    pub(crate) fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, Fault> {
        let sql = self.rows_sql("r.tenant = ?1 and r.run_id = ?2")?;
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut found = Vec::with_capacity(runs.len());
        for run in runs {
            let Some(tenant) = self.tenant(&run.tenant)? else {
                found.push(None);
                continue;
            };
            let mut rows = statement.query(params![tenant, run.run.as_str()])?;
            found.push(match rows.next()? {
                Some(row) => Some(Snapshot { row: run_row(row)?, state: row.get(STATE_COLUMN)? }),
                None => None,
            });
        }
        Ok(found)
    }

    fn rows_sql(&self, which: &str) -> Result<String, Fault> {
        let progress = match (self.has(schema::WITH_MACHINES)?, self.has(schema::WITH_CREATION)?) {
            (_, true) => "progress",
            (true, false) => "(select *, null as retain from progress)",
            (false, false) => "(select *, null as machine_state, null as retain from progress)",
        };
        Ok(format!(
            "select {RUN_COLUMNS} from runs r cross join {progress} p on p.run = r.id {RUN_JOINS} where {which}"
        ))
    }

    pub(crate) fn runs(&self, query: &RunQuery) -> Result<RunPage, Fault> {
        query.check()?;
        let before = query.cursor.as_deref().map(number).transpose()?;
        let size = flowline_store::query::page_size(query.limit);
        let ranges = self.ranges(query)?;
        let (after, until) = self.between(query)?;
        let before = before.unwrap_or(i64::MAX).min(until);
        let mut ids = self.newest(query, &ranges, (after, before), size + 1)?;
        let more = ids.len() > size;
        ids.truncate(size);
        let sql = self.rows_sql("r.id = ?1")?;
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut items = Vec::with_capacity(ids.len());
        for id in &ids {
            let mut rows = statement.query([id])?;
            if let Some(row) = rows.next()? {
                items.push(run_row(row)?);
            }
        }
        let next = ids.last().filter(|_| more).map(ToString::to_string);
        let total = match query.total {
            WantTotal::Yes => Some(self.total(query, &ranges, (after, until))?),
            WantTotal::No => None,
        };
        Ok(RunPage { items, total, next })
    }

    /// The newest runs of all ranges, each of which is read in the order of its index and no further than it must be.
    fn newest(
        &self,
        query: &RunQuery,
        ranges: &[Range],
        (first, before): (i64, i64),
        count: usize,
    ) -> Result<Vec<i64>, Fault> {
        let mut newest = BTreeSet::new();
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let mut statement = self.conn.prepare_cached(&page_sql(query))?;
        for range in ranges {
            let after = newest.first().copied().filter(|_| newest.len() == count).unwrap_or(first);
            let bounds = [before, after, count as i64].map(Value::from);
            let mut rows = statement.query(params_from_iter(bounds.iter().chain(range)))?;
            while let Some(row) = rows.next()? {
                newest.insert(row.get::<_, i64>(0)?);
                if newest.len() > count {
                    newest.pop_first();
                }
            }
        }
        Ok(newest.into_iter().rev().collect())
    }

    fn total(&self, query: &RunQuery, ranges: &[Range], (after, before): (i64, i64)) -> Result<Total, Fault> {
        if ranges.is_empty() {
            return Ok(Total::Exact(0));
        }
        if query.counted() {
            let sql = format!(
                "select coalesce(sum(n), 0) from counters c join flows f on f.id = c.flow
                join tenants t on t.id = f.tenant
                where t.name = ?1 and (?2 is null or f.name = ?2) and (?3 is null or c.status = ?3) {}",
                if query.state.is_some() { "and c.state = ?4" } else { "and ?4 is null" }
            );
            let status = query.status.map(code::status_number);
            let of = params![query.tenant.as_str(), query.flow, status, query.state];
            let total: i64 = self.conn.prepare_cached(&sql)?.query_row(of, |row| row.get(0))?;
            return Ok(Total::Exact(total.max(0) as u64));
        }
        let sql = format!("select count(*) from ({})", page_sql(query));
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut count = 0;
        for range in ranges {
            let bounds = [before, after, (EXACT_TOTAL + 1 - count) as i64].map(Value::from);
            let values = params_from_iter(bounds.iter().chain(range));
            count += statement.query_row(values, |row| row.get::<_, i64>(0))? as u64;
            if count > EXACT_TOTAL {
                return Ok(Total::AtLeast(EXACT_TOTAL));
            }
        }
        Ok(Total::Exact(count))
    }

    /// The numbers between which all runs lie that were created in the query's stretch of time: above the first, below the
    /// second. Others may lie there too, where the clock was set back.
    fn between(&self, query: &RunQuery) -> Result<(i64, i64), Fault> {
        let mut bounds = (0, i64::MAX);
        if query.since.is_none() && query.until.is_none() || !self.has(schema::WITH_CREATION)? {
            return Ok(bounds);
        }
        let slack = "select value from cells where name = 'created_slack'";
        let slack: i64 = self.conn.query_row(slack, [], |row| row.get(0))?;
        let newest = "select coalesce(max(id), 0) from runs";
        let newest: i64 = self.conn.query_row(newest, [], |row| row.get(0))?;
        if let Some(since) = query.since {
            // All up to a run are too old if the newest that they can be is.
            let too_old = |created: i64| created.saturating_add(slack) < since.millis();
            bounds.0 = self.last_where(newest, too_old)?;
        }
        if let Some(until) = query.until {
            // None from a run on is too old to be too new: all up to the one before it may count.
            let may_count = |created: i64| created.saturating_sub(slack) < until.millis();
            bounds.1 = self.last_where(newest, may_count)?.saturating_add(1);
        }
        Ok(bounds)
    }

    /// Halves the numbers up to `newest` until the last run is found whose date is so, as all before it are taken to be. Of
    /// dates in any other order it finds one such run.
    fn last_where(&self, newest: i64, so: impl Fn(i64) -> bool) -> Result<i64, Fault> {
        let mut statement = self.conn.prepare_cached(FIRST_FROM)?;
        let (mut low, mut high) = (0, newest);
        while low < high {
            let middle = low + (high - low + 1) / 2;
            let run = statement.query_row([middle], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)));
            match run.optional()? {
                Some((id, created)) if so(created) => low = id,
                _ => high = middle - 1,
            }
        }
        Ok(low)
    }

    /// Where the runs of a query are: under a label, or under each of its flows and statuses. None where a name is
    /// unknown.
    fn ranges(&self, query: &RunQuery) -> Result<Vec<Range>, Fault> {
        let Some(tenant) = self.tenant(&query.tenant)? else { return Ok(Vec::new()) };
        if query.state.is_some() && !self.has(schema::WITH_MACHINES)? {
            return Ok(Vec::new());
        }
        let mut statement = self.conn.prepare_cached(
            "select id from flows where tenant = ?1 and (?2 is null or name = ?2) order by id",
        )?;
        let flows = statement.query_map(params![tenant, query.flow], |row| row.get::<_, i64>(0))?;
        let flows: Vec<i64> = flows.collect::<Result<_, _>>()?;
        let times = [query.since, query.until].map(|time| Value::from(time.map(|time| time.millis())));
        let status = query.status.map(code::status_number);
        if let Some((key, value)) = &query.label {
            if flows.is_empty() {
                return Ok(Vec::new());
            }
            let flow = query.flow.as_ref().and_then(|_| flows.first().copied());
            let label = [Value::from(tenant), Value::from(key.clone()), Value::from(value.clone())];
            let of = [Value::from(flow), Value::from(status)];
            let state = query.state.iter().cloned().map(Value::from);
            return Ok(vec![times.into_iter().chain(label).chain(of).chain(state).collect()]);
        }
        let statuses: Vec<i64> =
            status.map_or_else(|| Status::ALL.map(code::status_number).to_vec(), |status| vec![status]);
        let each = flows.iter().flat_map(|flow| statuses.iter().map(move |status| [*flow, *status]));
        let state = || query.state.iter().cloned().map(Value::from);
        Ok(each.map(|of| times.iter().cloned().chain(of.map(Value::from)).chain(state()).collect()).collect())
    }
}

/// The first run from a number on.
pub(super) const FIRST_FROM: &str = "select id, created_at from runs where id >= ?1 order by id limit 1";

/// The values, from parameter 4 on, that single out runs in [`page_sql`]: times, then what the index is asked for.
type Range = Vec<Value>;

/// The runs of a range, newest first, whose number is below parameter 1 and above 2, at most 3. The index is named,
/// because the right one is the one in whose order the page is.
pub(super) fn page_sql(query: &RunQuery) -> String {
    let mut sql = match query.label {
        Some(_) => "select l.run from labels l cross join runs r on r.id = l.run cross join progress p on p.run = l.run
            where l.tenant = ?6 and l.key = ?7 and l.value = ?8 and (?9 is null or p.flow = ?9)
            and (?10 is null or p.status = ?10) and l.run < ?1 and l.run > ?2",
        None if query.state.is_some() => "select p.run from progress p indexed by progress_by_state
            cross join runs r on r.id = p.run
            where p.flow = ?6 and p.machine_state = ?8 and p.status = ?7 and p.run < ?1 and p.run > ?2",
        None => "select p.run from progress p indexed by progress_by_status cross join runs r on r.id = p.run
            where p.flow = ?6 and p.status = ?7 and p.run < ?1 and p.run > ?2",
    }
    .to_owned();
    if query.label.is_some() && query.state.is_some() {
        sql.push_str(" and p.machine_state = ?11");
    }
    if query.since.is_some() || query.until.is_some() {
        sql.push_str(" and (?4 is null or r.created_at >= ?4) and (?5 is null or r.created_at < ?5)");
    } else {
        // What a query does not read it must still name, for parameters are counted.
        sql.push_str(" and ?4 is null and ?5 is null");
    }
    sql.push_str(" order by 1 desc limit ?3");
    sql
}

pub(crate) fn number(cursor: &str) -> Result<i64, Fault> {
    let known = cursor.parse::<u64>().ok().and_then(|number| i64::try_from(number).ok());
    known.ok_or_else(|| unknown(cursor))
}

pub(crate) fn unknown(cursor: &str) -> Fault {
    let text = format!("cursor {cursor:?} doesn't come from this store; start without a cursor");
    StoreError::Invalid(text).into()
}
