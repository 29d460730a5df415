//! Receipts, newest first.

use flowline_core::{Json, Time};
use flowline_store::query::page_size;
use flowline_store::receipt::ReceiptPlace;
use flowline_store::{Receipt, ReceiptPage, ReceiptQuery, ReceiptStatus};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::code;
use crate::fault::PgFault;
use crate::session::Session;

const COLUMNS: &str =
    "r.tenant, r.run_id, r.flow_name, c.event_id, c.number, c.name, c.sender, c.status, c.worker,
    c.received_at, c.started_at, c.completed_at, c.outcome, c.run";

pub(crate) async fn page(session: &Session, query: &ReceiptQuery) -> Result<ReceiptPage, PgFault> {
    query.check()?;
    let limit = page_size(query.limit);
    let before = query.after.as_deref().map(ReceiptPlace::parse).transpose()?;
    let rows = match &query.run {
        Some(_) => of_run(session, query, before, limit as i64 + 1).await?,
        None => of_tenant(session, query, before, limit as i64 + 1).await?,
    };
    let place = |row: &Row| -> Result<ReceiptPlace, PgFault> {
        let (received, run) = (row.try_get(9)?, row.try_get::<_, i64>(13)? as u64);
        Ok(ReceiptPlace {
            received: Time::from_millis(received),
            run,
            number: row.try_get::<_, i64>(4)? as u32,
        })
    };
    let found = rows.iter().map(|row| Ok((place(row)?, receipt(row)?)));
    Ok(ReceiptPage::of(found.collect::<Result<_, PgFault>>()?, limit))
}

async fn of_run(
    session: &Session,
    query: &ReceiptQuery,
    before: Option<ReceiptPlace>,
    limit: i64,
) -> Result<Vec<Row>, PgFault> {
    // Without an order of its own, an event is looked up in the index that has it.
    let (by_event, order) = match query.event_id {
        Some(_) => ("and event_id = $7", ""),
        None => ("", "order by number desc"),
    };
    let sql = format!(
        "select {COLUMNS} from flow_runs r cross join lateral (
            select * from receipts where run = r.id {by_event} and number < $3 and ($4::text is null or status = $4)
                and ($5::text is null or worker = $5)
            {order} limit $6) c
         where r.tenant || '/' || r.run_id = $1::text || '/' || $2::text order by c.number desc"
    );
    let run = query.run.as_ref().map_or("", |run| run.as_str());
    let before = before.map_or(i64::MAX, |place| i64::from(place.number));
    let status = query.status.map(ReceiptStatus::as_str);
    let worker = query.worker.as_deref().map(code::shut);
    let event = query.event_id.as_deref().map(code::shut);
    let tenant = query.tenant.as_str();
    let mut given: Vec<&(dyn ToSql + Sync)> = vec![&tenant, &run, &before, &status, &worker, &limit];
    given.extend(event.as_ref().map(|event| event as &(dyn ToSql + Sync)));
    session.query(&sql, &given).await
}

/// Each wanted status is walked by itself, newest first, in the index that has it; merged they are the list.
async fn of_tenant(
    session: &Session,
    query: &ReceiptQuery,
    before: Option<ReceiptPlace>,
    limit: i64,
) -> Result<Vec<Row>, PgFault> {
    let by_worker = if query.worker.is_some() { "and worker = $7" } else { "" };
    let sql = format!(
        "select {COLUMNS} from unnest($2::text[]) s(status) cross join lateral (
            select * from receipts where tenant = $1 and status = s.status {by_worker}
                and (received_at, run, number) < ($3, $4, $5)
            order by received_at desc, run desc, number desc limit $6) c
         join flow_runs r on r.id = c.run order by c.received_at desc, c.run desc, c.number desc limit $6"
    );
    let statuses = match query.status {
        Some(status) => vec![status.as_str()],
        None => ReceiptStatus::ALL.map(ReceiptStatus::as_str).to_vec(),
    };
    let end = (i64::MAX, i64::MAX, i64::MAX);
    let (received, run, number) = before.map_or(end, |place| {
        (place.received.millis(), i64::try_from(place.run).unwrap_or(i64::MAX), i64::from(place.number))
    });
    let worker = query.worker.as_deref().map(code::shut);
    let tenant = query.tenant.as_str();
    let mut given: Vec<&(dyn ToSql + Sync)> = vec![&tenant, &statuses, &received, &run, &number, &limit];
    given.extend(worker.as_ref().map(|worker| worker as &(dyn ToSql + Sync)));
    session.query(&sql, &given).await
}

fn receipt(row: &Row) -> Result<Receipt, PgFault> {
    let json = |at: usize| row.try_get::<_, Option<String>>(at).map(|text| text.map(Json::composed));
    let time = |at: usize| row.try_get::<_, Option<i64>>(at).map(|time| time.map(Time::from_millis));
    let status = ReceiptStatus::parse(row.try_get(7)?);
    Ok(Receipt {
        event_id: code::open(row.try_get(3)?).into(),
        run_id: code::run_id(row.try_get(1)?)?,
        flow_name: row.try_get::<_, &str>(2)?.into(),
        tenant: code::tenant(row.try_get(0)?)?,
        number: row.try_get::<_, i64>(4)? as u32,
        name: code::open(row.try_get(5)?).into(),
        sender: json(6)?,
        status: status.ok_or_else(|| PgFault::damaged("the status of a receipt is unknown"))?,
        worker: row.try_get::<_, Option<&str>>(8)?.map(|worker| code::open(worker).into()),
        received_at: Time::from_millis(row.try_get(9)?),
        started_at: time(10)?,
        completed_at: time(11)?,
        outcome: json(12)?,
    })
}
