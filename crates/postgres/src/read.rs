//! Reading runs and their logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::event::AttemptOf;
use flowline_core::{Event, EventType, Json, NewEvent, RunId, RunKey, Status, Tenant, Time};
use flowline_store::query::{EXACT_TOTAL, PAGE_BYTES, WantTotal, page_size};
use flowline_store::{
    EventPage, EventQuery, Failure, PayloadsAt, RunPage, RunQuery, RunRow, Snapshot, StoreError, Total,
};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::code;
use crate::fault::PgFault;
use crate::session::{Session, SqlParams};

const COLUMNS: &str = "r.id, r.tenant, r.run_id, r.flow_name, r.definition, r.status, r.created_at, r.started_at,
    r.completed_at, r.step_count, r.completed_steps, r.failed_steps, r.retries, r.failure_error, r.failure_step,
    r.labels, r.idempotency_key, r.retry_of, r.version, r.seq, r.events_trimmed, r.input_digest,
    r.machine_state, r.retain";

pub(crate) async fn load(session: &Session, runs: &[RunKey]) -> Result<Vec<Option<Snapshot>>, PgFault> {
    let tenants: Vec<&str> = runs.iter().map(|run| run.tenant.as_str()).collect();
    let names: Vec<&str> = runs.iter().map(|run| run.run.as_str()).collect();
    let sql = format!(
        "select {COLUMNS}, r.state, u.at from unnest($1::text[], $2::text[]) with ordinality u(tenant, run_id, at)
         join flow_runs r on r.tenant || '/' || r.run_id = u.tenant || '/' || u.run_id"
    );
    let mut found: Vec<Option<Snapshot>> = vec![None; runs.len()];
    for row in session.query(&sql, &[&tenants, &names]).await? {
        let at = row.try_get::<_, i64>(25)? as usize - 1;
        found[at] = Some(Snapshot { row: run_row(&row)?, state: row.try_get(24)? });
    }
    Ok(found)
}

fn run_row(row: &Row) -> Result<RunRow, PgFault> {
    let time = |at: usize| row.try_get::<_, Option<i64>>(at).map(|ms| ms.map(Time::from_millis));
    let count = |at: usize| row.try_get::<_, i32>(at).map(|n| n as u32);
    let text = |at: usize| row.try_get::<_, Option<&str>>(at).map(|text| text.map(code::open));
    let created_at = Time::from_millis(row.try_get(6)?);
    let completed_at = time(8)?;
    let labels = match row.try_get::<_, Option<&str>>(15)? {
        Some(labels) => {
            serde_json::from_str(labels).map_err(|error| PgFault::damaged(&format!("labels: {error}")))?
        }
        None => BTreeMap::new(),
    };
    let step = text(14)?.map(Arc::from);
    Ok(RunRow {
        run_id: code::run_id(row.try_get(2)?)?,
        flow_name: row.try_get::<_, &str>(3)?.into(),
        tenant: code::tenant(row.try_get(1)?)?,
        definition: row.try_get::<_, &str>(4)?.into(),
        status: code::status(row.try_get(5)?)?,
        state: row.try_get::<_, Option<&str>>(22)?.map(Arc::from),
        created_at,
        started_at: time(7)?.or(completed_at.map(|_| created_at)),
        completed_at,
        duration: completed_at.map(|end| end.since(created_at).as_millis() as u64),
        step_count: count(9)?,
        completed_steps: count(10)?,
        failed_steps: count(11)?,
        retries: count(12)?,
        failure: text(13)?.map(|error| Failure { error, step }),
        labels,
        idempotency_key: text(16)?,
        retry_of: row.try_get::<_, Option<&str>>(17)?.map(code::run_id).transpose()?,
        retain: code::retain(row.try_get(23)?)?,
        version: row.try_get::<_, i64>(18)? as u64,
        events: row.try_get::<_, i64>(19)? as u64,
        events_trimmed: row.try_get(20)?,
        input_digest: code::open(row.try_get(21)?),
    })
}

pub(crate) async fn payloads(
    session: &Session,
    asked: &[PayloadsAt],
) -> Result<Vec<Vec<Option<Json>>>, PgFault> {
    let all = || asked.iter().flat_map(|(run, slots)| slots.iter().map(move |slot| (run, slot)));
    let tenants: Vec<&str> = all().map(|(run, _)| run.tenant.as_str()).collect();
    let names: Vec<&str> = all().map(|(run, _)| run.run.as_str()).collect();
    let numbers: Vec<i64> = all().map(|(_, slot)| i64::from(slot.number())).collect();
    let sql = "select u.at, e.data
        from unnest($1::text[], $2::text[], $3::bigint[]) with ordinality u(tenant, run_id, slot, at)
        join flow_runs r on r.tenant || '/' || r.run_id = u.tenant || '/' || u.run_id
        join events e on e.run = r.id and e.slot = u.slot order by e.seq desc";
    let mut found: Vec<Option<Json>> = vec![None; numbers.len()];
    for row in session.query(sql, &[&tenants, &names, &numbers]).await? {
        // The first that was written at an address counts; it comes last.
        found[row.try_get::<_, i64>(0)? as usize - 1] = json(&row, 1)?;
    }
    let mut found = found.into_iter();
    Ok(asked.iter().map(|(_, slots)| found.by_ref().take(slots.len()).collect()).collect())
}

fn json(row: &Row, at: usize) -> Result<Option<Json>, PgFault> {
    Ok(row.try_get::<_, Option<String>>(at)?.map(Json::composed))
}

/// Columns of an event, in the order that [`event`] reads them.
pub(crate) const EVENT: &str = "e.seq, e.ms, e.type, e.step, e.attempt, e.data";

/// Puts an event together from the columns of [`EVENT`] at the beginning of a row.
pub(crate) fn event(row: &Row, run: &RunId, flow: &Arc<str>, tenant: &Tenant) -> Result<Event, PgFault> {
    let kind: &str = row.try_get(2)?;
    let kind =
        EventType::parse(kind).ok_or_else(|| PgFault::damaged(&format!("event type {kind:?} is unknown")))?;
    let of = row.try_get::<_, Option<&str>>(3)?.map(|step| code::open(step).into());
    let attempt = row.try_get::<_, Option<i32>>(4)?.unwrap_or(0) as u32;
    let of = of.map(|step| AttemptOf { step, attempt });
    let new = NewEvent { kind, of, data: json(row, 5)?, slot: None };
    let (seq, ms) = (row.try_get::<_, i64>(0)? as u64, row.try_get(1)?);
    Ok(Event::stored(run, flow, tenant, seq, ms, new))
}

/// A range of the primary key: its bytes are summed up in its order, and no further than the page goes.
pub(crate) async fn events(
    session: &Session,
    run: &RunKey,
    query: &EventQuery,
) -> Result<EventPage, PgFault> {
    // What there is no room for is told of without its data, which the server need not even fetch.
    let sql = "select seq, ms, type, step, attempt, case when fits then data end, flow_name, fits
        from (select e.*, r.flow_name, bytes <= $8 or bytes = size as fits
            from flow_runs r, lateral (select *, sum(size) over (order by seq) as bytes
                from (select *, coalesce(octet_length(data), 0) as size from events where run = r.id and seq > $3
                    and ($4::text[] is null or type = any($4)) and ($5::text is null or step = $5)
                    and ($6::int is null or attempt = $6) order by seq limit $7) e) e
            where r.tenant || '/' || r.run_id = $1::text || '/' || $2::text) e order by seq";
    let size = page_size(query.limit);
    let kinds = (!query.kinds.is_empty())
        .then(|| query.kinds.iter().map(|kind| kind.as_str()).collect::<Vec<&str>>());
    let after = i64::try_from(query.after).unwrap_or(i64::MAX);
    let step = query.step.as_deref().map(code::shut);
    let attempt = query.attempt.map(|attempt| attempt as i32);
    let (tenant, name, limit) = (run.tenant.as_str(), run.run.as_str(), size as i64 + 1);
    let bytes = PAGE_BYTES as i64;
    let given: SqlParams<'_> = &[&tenant, &name, &after, &kinds, &step, &attempt, &limit, &bytes];
    let rows = session.query(sql, given).await?;
    let mut events = Vec::with_capacity(rows.len().min(size));
    for row in rows.iter().take(size) {
        if !row.try_get::<_, bool>(7)? {
            break;
        }
        events.push(event(row, &run.run, &row.try_get::<_, &str>(6)?.into(), &run.tenant)?);
    }
    Ok(EventPage { more: rows.len() > events.len(), events })
}

/// A page of runs, and its total.
pub(crate) async fn runs(session: &Session, query: &RunQuery) -> Result<RunPage, PgFault> {
    query.check()?;
    let filter = Filter::of(query);
    let size = page_size(query.limit);
    let (after, until) = between(session, query).await?;
    let before = query.cursor.as_deref().map(number).transpose()?.unwrap_or(i64::MAX).min(until);
    let limit = size as i64 + 1;
    let rows = session.query(&filter.sql(COLUMNS), &filter.given([&after, &before, &limit])).await?;
    let mut items = Vec::with_capacity(rows.len().min(size));
    for row in rows.iter().take(size) {
        items.push(run_row(row)?);
    }
    let last = rows.get(size.saturating_sub(1)).filter(|_| rows.len() > size);
    let next = last.map(|row| row.try_get::<_, i64>(0)).transpose()?.map(|id| id.to_string());
    let total = match query.total {
        WantTotal::Yes => Some(total(session, query, &filter, [&after, &until]).await?),
        WantTotal::No => None,
    };
    Ok(RunPage { items, total, next })
}

/// How far the date of a run can be from those of its neighbours: beyond what a transaction takes, or two clocks disagree by.
const SLACK: i64 = 3_600_000;

/// The last run that was created before a time, found by halving the numbers: runs are numbered as they are created.
const LAST_BEFORE: &str = "with recursive search(low, high) as (
        select 0::bigint, coalesce((select max(id) from flow_runs), 0)
        union all
        select case when r.created_at < $1 then r.id else s.low end,
            case when r.created_at < $1 then s.high else s.middle - 1 end
        from (select low, high, low + (high - low + 1) / 2 as middle from search where low < high) s
        left join lateral (select id, created_at from flow_runs where id >= s.middle order by id limit 1) r on true)
    select max(low) from search";

/// The numbers between which all runs lie that were created in the query's stretch of time: above the first, below the second.
async fn between(session: &Session, query: &RunQuery) -> Result<(i64, i64), PgFault> {
    let last_before = async |time: i64| -> Result<i64, PgFault> {
        Ok(session.query_one(LAST_BEFORE, &[&time]).await?.try_get(0)?)
    };
    let after = match query.since {
        Some(since) => last_before(since.millis().saturating_sub(SLACK)).await?,
        None => 0,
    };
    let before = match query.until {
        Some(until) => last_before(until.millis().saturating_add(SLACK)).await?.saturating_add(1),
        None => i64::MAX,
    };
    Ok((after, before))
}

async fn total(
    session: &Session,
    query: &RunQuery,
    filter: &Filter,
    [after, before]: [&i64; 2],
) -> Result<Total, PgFault> {
    if query.counted() && query.state.is_some() {
        let sql = "select coalesce(sum(n), 0)::bigint from state_counters
            where tenant = $1 and flow_name = $2 and state = $3 and ($4::text is null or status = $4)";
        let given: [&(dyn ToSql + Sync); 4] =
            [&query.tenant.as_str(), &query.flow, &query.state, &query.status.map(Status::as_str)];
        let row = session.query_one(sql, &given).await?;
        return Ok(Total::Exact(row.try_get::<_, i64>(0)?.max(0) as u64));
    }
    if query.counted() {
        let sql = "select coalesce(sum(n), 0)::bigint from run_counters
            where tenant = $1 and ($2::text is null or flow_name = $2) and ($3::text is null or status = $3)";
        let status = query.status.map(Status::as_str);
        let row = session.query_one(sql, &[&query.tenant.as_str(), &query.flow, &status]).await?;
        return Ok(Total::Exact(row.try_get::<_, i64>(0)?.max(0) as u64));
    }
    let sql = format!("select count(*) from ({}) found", filter.sql("r.id"));
    let row = session.query_one(&sql, &filter.given([after, before, &(EXACT_TOTAL as i64 + 1)])).await?;
    let count = row.try_get::<_, i64>(0)? as u64;
    Ok(if count > EXACT_TOTAL { Total::AtLeast(EXACT_TOTAL) } else { Total::Exact(count) })
}

/// Which runs, as SQL. Each wanted status is walked by itself, newest first, in the index that begins with it; merged
/// they are the list.
struct Filter {
    tenant: String,
    statuses: Vec<&'static str>,
    flow: Option<String>,
    state: Option<String>,
    label: Option<(String, String)>,
    since: i64,
    until: i64,
}

impl Filter {
    fn of(query: &RunQuery) -> Filter {
        Filter {
            tenant: query.tenant.as_str().to_owned(),
            statuses: match query.status {
                Some(status) => vec![status.as_str()],
                None => Status::ALL.map(Status::as_str).to_vec(),
            },
            flow: query.flow.clone(),
            state: query.state.clone(),
            label: query
                .label
                .as_ref()
                .map(|(key, value)| (code::shut(key).into_owned(), code::shut(value).into_owned())),
            since: query.since.map_or(i64::MIN, Time::millis),
            until: query.until.map_or(i64::MAX, Time::millis),
        }
    }

    /// Takes tenant, statuses, since, until, the numbers above and below which to look, the limit; then flow, state and label. Each
    /// list is written as the index has it that was made for it.
    fn sql(&self, columns: &str) -> String {
        let mut wheres = String::from(match (&self.flow, &self.state) {
            (Some(_), Some(_)) => {
                "r.tenant || '/' || r.flow_name || '/' || r.machine_state || '/' || r.status
                    = $1::text || '/' || $8::text || '/' || $9::text || '/' || s.status and r.machine_state is not null"
            }
            (Some(_), None) => {
                "r.tenant || '/' || r.flow_name || '/' || r.status = $1::text || '/' || $8::text || '/' || s.status"
            }
            (None, _) => "r.tenant = $1 and r.status = s.status",
        });
        if self.label.is_some() {
            let key = 8 + usize::from(self.flow.is_some()) + usize::from(self.state.is_some());
            let value = key + 1;
            wheres.push_str(&format!(
                " and exists (select 1 from run_labels l where l.tenant = r.tenant and l.key = ${key}
                    and l.value = ${value} and l.run = r.id)"
            ));
        }
        format!(
            "select r.* from unnest($2::text[]) s(status) cross join lateral (
                select {columns} from flow_runs r where {wheres}
                    and r.created_at >= $3 and r.created_at < $4 and -r.id < -$5::bigint and -r.id > -$6::bigint
                order by -r.id limit $7) r
             order by r.id desc limit $7"
        )
    }

    fn given<'a>(&'a self, [after, before, limit]: [&'a i64; 3]) -> Vec<&'a (dyn ToSql + Sync)> {
        let mut given: Vec<&(dyn ToSql + Sync)> =
            vec![&self.tenant, &self.statuses, &self.since, &self.until, after, before, limit];
        given.extend(self.flow.iter().chain(&self.state).map(|name| name as &(dyn ToSql + Sync)));
        if let Some((key, value)) = &self.label {
            given.extend([key as &(dyn ToSql + Sync), value]);
        }
        given
    }
}

/// A cursor of runs or of the feed.
pub(crate) fn number(cursor: &str) -> Result<i64, PgFault> {
    cursor.parse::<i64>().ok().filter(|number| *number >= 0).ok_or_else(|| unknown(cursor))
}

pub(crate) fn unknown(cursor: &str) -> PgFault {
    PgFault::Store(StoreError::Invalid(format!(
        "cursor {cursor:?} doesn't come from this store; start without a cursor"
    )))
}
