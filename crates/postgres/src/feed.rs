//! Events of many runs, from a cursor on.
//!
//! Events are numbered among all when they are written, while their runs are locked, so numbers grow within a run. Two
//! transactions may end in another order than they drew their numbers, though: a reader that goes by the numbers alone
//! skips what commits late. So a writer holds a shared advisory lock from before its first number until its end is
//! visible (`HOLD_FEED`), and a reader first notes the last number drawn, then waits until whoever held the lock at that
//! moment has ended. Up to that number nothing can appear any more. Nobody waits for the reader, and transactions of
//! others in the same server, however long, hold nothing up.

use std::time::{Duration, Instant};

use flowline_core::Tenant;
use flowline_store::query::page_size;
use flowline_store::{FeedFilter, FeedPage};

use crate::code;
use crate::fault::PgFault;
use crate::read::{EVENT, event, number, unknown};
use crate::session::Session;

/// Numbers looked at in one call: bounds its cost where the filter leaves most out.
const LOOKED_AT: i64 = 50_000;
/// How often it is asked whether writers have ended: a batch takes some milliseconds.
const EVERY: Duration = Duration::from_millis(2);
/// Beyond this a page ends before what is not decided yet.
const PATIENCE: Duration = Duration::from_secs(2);

const LAST: &str = "select case when is_called then last_value else 0 end from event_numbers";

const HOLDERS: &str = "
    select coalesce(array_agg(virtualtransaction), '{}') from pg_locks
    where locktype = 'advisory' and granted and objsubid = 2
        and database = (select oid from pg_database where datname = current_database())
        and classid::bigint = hashtext('flowline feed')::bigint & 4294967295
        and objid::bigint = hashtext(current_schema())::bigint & 4294967295";

pub(crate) async fn feed(
    session: &Session,
    filter: &FeedFilter,
    cursor: &str,
    limit: usize,
) -> Result<FeedPage, PgFault> {
    let after = if cursor.is_empty() { 0 } else { number(cursor)? };
    let last: i64 = session.query_one(LAST, &[]).await?.try_get(0)?;
    let empty = |cursor: i64, more| FeedPage {
        events: Vec::new(),
        cursors: Vec::new(),
        cursor: cursor.to_string(),
        more,
    };
    if last < after {
        return Err(unknown(cursor));
    }
    if last == after {
        return Ok(empty(after, false));
    }
    let is_settled = settled(session).await?;
    match cursor.is_empty() && filter.from_now {
        // Any cursor that could be given now would skip what commits late, or begin at the oldest event.
        true if !is_settled => return Err(PgFault::Late),
        true => return Ok(empty(last, false)),
        false if !is_settled => return Ok(empty(after, true)),
        false => {}
    }
    let size = page_size(limit);
    let end = last.min(after.saturating_add(LOOKED_AT));
    let sql = format!(
        "select {EVENT}, e.n, r.tenant, r.run_id, r.flow_name from events e join flow_runs r on r.id = e.run
         where e.n > $1 and e.n <= $2 and ($3::text is null or r.tenant = $3)
             and ($4::text is null or r.flow_name = $4) and ($5::text[] is null or e.type = any($5))
         order by e.n limit $6"
    );
    let tenant = filter.tenant.as_ref().map(Tenant::as_str);
    let kinds = (!filter.kinds.is_empty())
        .then(|| filter.kinds.iter().map(|kind| kind.as_str()).collect::<Vec<&str>>());
    let (flow, limit) = (filter.flow.as_deref(), size as i64 + 1);
    let rows = session.query(&sql, &[&after, &end, &tenant, &flow, &kinds, &limit]).await?;
    let mut page = empty(end, end < last);
    for row in rows.iter().take(size) {
        let (tenant, run) = (code::tenant(row.try_get(7)?)?, code::run_id(row.try_get(8)?)?);
        page.events.push(event(row, &run, &row.try_get::<_, &str>(9)?.into(), &tenant)?);
        page.cursors.push(row.try_get::<_, i64>(6)?.to_string());
    }
    if rows.len() > size {
        (page.cursor, page.more) = (page.cursors.last().cloned().unwrap_or_default(), true);
    }
    Ok(page)
}

/// Waits until every transaction that may be writing events now has ended. False where one takes too long.
async fn settled(session: &Session) -> Result<bool, PgFault> {
    let began = Instant::now();
    let first = holders(session).await?;
    let mut left = first.clone();
    while !left.is_empty() {
        if began.elapsed() > PATIENCE {
            return Ok(false);
        }
        tokio::time::sleep(EVERY).await;
        left = holders(session).await?;
        left.retain(|holder| first.contains(holder));
    }
    Ok(true)
}

async fn holders(session: &Session) -> Result<Vec<String>, PgFault> {
    Ok(session.query_one(HOLDERS, &[]).await?.try_get(0)?)
}
