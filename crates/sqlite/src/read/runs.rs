//! Runs: by name, and in pages, newest first.

use flowline_core::RunKey;
use flowline_store::query::{EXACT_TOTAL, WantTotal};
use flowline_store::{RunPage, RunQuery, Snapshot, StoreError, Total};
use rusqlite::types::Value;
use rusqlite::{params, params_from_iter};

use super::Reader;
use super::rows::{RUN_COLUMNS, RUN_JOINS, STATE_COLUMN, run_row};
use crate::code;
use crate::fault::Fault;

impl Reader<'_> {
    pub(crate) fn load(&self, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, Fault> {
        let sql =
            format!("select {RUN_COLUMNS} from runs r {RUN_JOINS} where r.tenant = ?1 and r.run_id = ?2");
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

    pub(crate) fn runs(&self, query: &RunQuery) -> Result<RunPage, Fault> {
        let before = query.cursor.as_deref().map(number).transpose()?;
        let filter = match self.filter(query)? {
            Some(filter) => filter,
            None => {
                let total = (query.total == WantTotal::Yes).then_some(Total::Exact(0));
                return Ok(RunPage { items: Vec::new(), total, next: None });
            }
        };
        let size = flowline_store::query::page_size(query.limit);
        let (mut items, mut ids) = (Vec::new(), Vec::<i64>::new());
        let sql = filter.page();
        let mut statement = self.conn.prepare_cached(&sql)?;
        let bounds = [Value::from(before.unwrap_or(i64::MAX)), Value::from(size as i64 + 1)];
        let mut rows = statement.query(params_from_iter(bounds.iter().chain(&filter.values)))?;
        while let Some(row) = rows.next()? {
            ids.push(row.get(0)?);
            items.push(run_row(row)?);
        }
        let more = items.len() > size;
        items.truncate(size);
        let next = ids.get(size.saturating_sub(1)).filter(|_| more).map(ToString::to_string);
        let total = match query.total {
            WantTotal::Yes => Some(self.total(query, &filter)?),
            WantTotal::No => None,
        };
        Ok(RunPage { items, total, next })
    }

    fn total(&self, query: &RunQuery, filter: &Filter) -> Result<Total, Fault> {
        if query.counted() {
            let sql = "select coalesce(sum(n), 0) from counters
                where flow in (select id from flows where tenant = ?1 and (?2 is null or id = ?2))
                and (?3 is null or status = ?3)";
            let of = params![filter.tenant, filter.flow, query.status.map(code::status_number)];
            let total: i64 = self.conn.prepare_cached(sql)?.query_row(of, |row| row.get(0))?;
            return Ok(Total::Exact(total.max(0) as u64));
        }
        let sql = filter.count();
        let bounds = [Value::from(i64::MAX), Value::from(EXACT_TOTAL as i64 + 1)];
        let values = params_from_iter(bounds.iter().chain(&filter.values));
        let count = self.conn.prepare_cached(&sql)?.query_row(values, |row| row.get::<_, i64>(0))? as u64;
        Ok(if count > EXACT_TOTAL { Total::AtLeast(EXACT_TOTAL) } else { Total::Exact(count) })
    }

    /// `None` where a name in the query is unknown: nothing can match.
    pub(super) fn filter(&self, query: &RunQuery) -> Result<Option<Filter>, Fault> {
        let Some(tenant) = self.tenant(&query.tenant)? else { return Ok(None) };
        let flow = match &query.flow {
            Some(name) => match self.flow(tenant, name)? {
                Some(flow) => Some(flow),
                None => return Ok(None),
            },
            None => None,
        };
        let mut filter = Filter { tenant, flow, from: "", wheres: String::new(), values: Vec::new() };
        // The index is named, because the right one is the one in whose order the page is.
        filter.from = match (&query.label, flow, query.status) {
            (Some(_), _, _) => "labels l cross join runs r on r.id = l.run",
            (None, None, None) => "runs r indexed by runs_by_tenant",
            (None, None, Some(_)) => "runs r indexed by runs_by_status",
            (None, Some(_), None) => "runs r indexed by runs_by_flow",
            (None, Some(_), Some(_)) => "runs r indexed by runs_by_flow_status",
        };
        match (&query.label, flow) {
            (Some((key, value)), _) => {
                filter.add("l.tenant =", tenant);
                filter.add("l.key =", key.clone());
                filter.add("l.value =", value.clone());
                filter.wheres.push_str(" and l.run < ?1");
            }
            (None, Some(_)) => filter.wheres.push_str(" and r.id < ?1"),
            (None, None) => {
                filter.add("r.tenant =", tenant);
                filter.wheres.push_str(" and r.id < ?1");
            }
        }
        if let Some(flow) = flow {
            filter.add("r.flow =", flow);
        }
        if let Some(status) = query.status {
            filter.add("r.status =", code::status_number(status));
        }
        if let Some(since) = query.since {
            filter.add("r.created_at >=", since.millis());
        }
        if let Some(until) = query.until {
            filter.add("r.created_at <", until.millis());
        }
        Ok(Some(filter))
    }
}

/// A query's conditions. Parameter 1 is the cursor, 2 the limit, the values follow.
#[derive(Debug)]
pub(super) struct Filter {
    tenant: i64,
    flow: Option<i64>,
    from: &'static str,
    wheres: String,
    values: Vec<Value>,
}

impl Filter {
    fn add(&mut self, condition: &str, value: impl Into<Value>) {
        self.values.push(value.into());
        self.wheres.push_str(&format!(" and {condition} ?{}", self.values.len() + 2));
    }

    fn order(&self) -> &'static str {
        if self.from.starts_with("labels") { "l.run" } else { "r.id" }
    }

    pub(super) fn page(&self) -> String {
        let (from, wheres, order) = (self.from, &self.wheres, self.order());
        format!(
            "select {RUN_COLUMNS} from {from} {RUN_JOINS} where true{wheres} order by {order} desc limit ?2"
        )
    }

    fn count(&self) -> String {
        format!("select count(*) from (select 1 from {} where true{} limit ?2)", self.from, self.wheres)
    }
}

pub(crate) fn number(cursor: &str) -> Result<i64, Fault> {
    let known = cursor.parse::<u64>().ok().and_then(|number| i64::try_from(number).ok());
    known.ok_or_else(|| {
        let text = format!("cursor {cursor:?} is not one that this store gave; begin without a cursor");
        StoreError::Invalid(text).into()
    })
}
