//! Forgetting what is old, a few runs per transaction, and counting again.

use std::collections::BTreeSet;
use std::time::Duration;

use flowline_core::report::ReportDigests;
use flowline_core::{RunKey, Tenant};
use flowline_store::EventQuery;
use flowline_store::row::{Retained, Retention};

use crate::code;
use crate::documents;
use crate::fault::PgFault;
use crate::pool::PooledSession;
use crate::read;
use crate::session::Session;
use crate::witness::KEPT_DAYS;

/// Runs per transaction: few, so that whoever commits beside it does not wait long for what it wrote to the server's log.
const RUNS: usize = 20;

/// Removals first, then events; those that ended first go first.
pub(crate) async fn retain(
    seat: &mut PooledSession<'_>,
    policy: Retention,
    limit: usize,
) -> Result<Retained, PgFault> {
    let mut done = Retained::default();
    let kept = kept(seat, policy).await?;
    loop {
        let left = limit - (done.removed + done.trimmed) as usize;
        let some = remove(seat, &kept, left.min(RUNS)).await?;
        done.removed += some;
        if some == 0 || left == some as usize {
            break;
        }
    }
    loop {
        let left = limit - (done.removed + done.trimmed) as usize;
        let some = trim(seat, &kept, left.min(RUNS)).await?;
        done.trimmed += some;
        if some == 0 || left == some as usize {
            break;
        }
    }
    seat.execute("delete from state where expires <= now_ms()", &[]).await?;
    seat.execute("delete from locks where until <= now_ms()", &[]).await?;
    documents::forget_expired(seat).await?;
    let gone = "delete from writers where seen_at < now_ms() - $1";
    seat.execute(gone, &[&(KEPT_DAYS * 86_400_000)]).await?;
    Ok(done)
}

/// How long ended runs are kept, by the `retain` that they have.
#[derive(Debug)]
struct Kept {
    retain: Vec<String>,
    /// In milliseconds.
    events: Vec<i64>,
    runs: Vec<i64>,
}

/// The different `retain` of ended runs: a step in the index for each, not for each run.
pub(crate) const RETAINS: &str = "
    with recursive own(retain) as (
        (select retain from flow_runs where completed_at is not null and retain > '' order by retain limit 1)
        union all
        select (select r.retain from flow_runs r where r.completed_at is not null and r.retain > own.retain
                order by r.retain limit 1)
            from own where own.retain is not null)
    select retain from own where retain is not null";

async fn kept(seat: &PooledSession<'_>, policy: Retention) -> Result<Kept, PgFault> {
    let mut kept = Kept { retain: vec![String::new()], events: Vec::new(), runs: Vec::new() };
    for row in seat.query(RETAINS, &[]).await? {
        kept.retain.push(row.try_get(0)?);
    }
    let millis =
        |kept: Duration| i64::try_from(kept.as_millis()).map_or(i64::MAX / 4, |ms| ms.min(i64::MAX / 4));
    for retain in &kept.retain {
        let Retention { events, runs } = policy.of(code::retain(retain)?);
        kept.events.push(millis(events));
        kept.runs.push(millis(runs));
    }
    Ok(kept)
}

/// The runs that ended long enough ago, locked, of those whose events are gone and of those whose events are there. A run
/// that another instance is removing is left to it.
pub(crate) const ENDED: &str = "
    select ended.id from unnest($1::text[], $2::bigint[]) own(retain, kept)
        cross join unnest($4::bool[]) which(trimmed) cross join lateral (
        select id, completed_at from flow_runs r
        where r.retain = own.retain and r.events_trimmed = which.trimmed and r.completed_at is not null
            and r.completed_at <= now_ms() - own.kept and r.status in ('completed', 'failed', 'cancelled')
        order by r.completed_at, r.id limit $3 for update skip locked) ended
    order by ended.completed_at, ended.id limit $3";

async fn ended(
    seat: &PooledSession<'_>,
    kept: &Kept,
    times: &[i64],
    trimmed: &[bool],
    limit: usize,
) -> Result<Vec<i64>, PgFault> {
    let rows = seat.query(ENDED, &[&kept.retain, &times, &(limit as i64), &trimmed]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

/// Begins a transaction that nobody waits for: one that a crash takes away is made again.
async fn begin(seat: &mut PooledSession<'_>) -> Result<(), PgFault> {
    seat.begin_long().await?;
    seat.run("set local synchronous_commit to off").await
}

async fn remove(seat: &mut PooledSession<'_>, kept: &Kept, limit: usize) -> Result<u64, PgFault> {
    if limit == 0 {
        return Ok(0);
    }
    begin(seat).await?;
    let ids = ended(seat, kept, &kept.runs, &[true, false], limit).await?;
    remove_ids(seat, &ids).await?;
    seat.commit().await?;
    Ok(ids.len() as u64)
}

/// Removes those of these runs that have ended, and says which.
pub(crate) async fn delete(seat: &mut PooledSession<'_>, runs: &[RunKey]) -> Result<Vec<bool>, PgFault> {
    let name = |run: &RunKey| format!("{}/{}", run.tenant, run.run);
    let mut gone = BTreeSet::new();
    for part in runs.chunks(RUNS) {
        let names: Vec<String> = part.iter().map(name).collect();
        seat.begin_long().await?;
        let sql = "select id, tenant || '/' || run_id from flow_runs where tenant || '/' || run_id = any($1)
            and status in ('completed', 'failed', 'cancelled') order by id for update";
        let mut ids: Vec<i64> = Vec::new();
        for row in seat.query(sql, &[&names]).await? {
            ids.push(row.try_get(0)?);
            gone.insert(row.try_get::<_, String>(1)?);
        }
        remove_ids(seat, &ids).await?;
        seat.commit().await?;
    }
    // One that is named twice goes once.
    Ok(runs.iter().map(|run| gone.remove(&name(run))).collect())
}

async fn remove_ids(seat: &PooledSession<'_>, ids: &[i64]) -> Result<(), PgFault> {
    if ids.is_empty() {
        return Ok(());
    }
    for sql in [
        "delete from jobs where run = any($1)",
        "delete from events where run = any($1)",
        "delete from run_labels where run = any($1)",
        "delete from receipts where run = any($1)",
        "delete from reports where run = any($1)",
        "delete from state s using flow_runs r
            where r.id = any($1) and s.tenant = r.tenant and s.scope = 0 and s.owner = r.run_id",
        "insert into state_counters (tenant, flow_name, status, state, shard, n)
            select tenant, flow_name, status, machine_state, pg_backend_pid() % 64, -count(*) from flow_runs
            where id = any($1) and machine_state is not null
            group by tenant, flow_name, status, machine_state order by tenant, flow_name, status, machine_state
         on conflict (tenant, flow_name, status, state, shard) do update set n = state_counters.n + excluded.n",
        "with gone as (delete from flow_runs where id = any($1) returning tenant, flow_name, status)
         insert into run_counters (tenant, flow_name, status, shard, n)
            select tenant, flow_name, status, pg_backend_pid() % 64, -count(*) from gone
            group by tenant, flow_name, status order by tenant, flow_name, status
         on conflict (tenant, flow_name, status, shard) do update set n = run_counters.n + excluded.n",
    ] {
        seat.execute(sql, &[&ids]).await?;
    }
    Ok(())
}

async fn trim(seat: &mut PooledSession<'_>, kept: &Kept, limit: usize) -> Result<u64, PgFault> {
    if limit == 0 {
        return Ok(0);
    }
    begin(seat).await?;
    let ids = ended(seat, kept, &kept.events, &[false], limit).await?;
    if !ids.is_empty() {
        let digests = digests(seat, &ids).await?;
        let keep = "insert into reports (run, digests) select * from unnest($1::bigint[], $2::bytea[])
            on conflict (run) do update set digests = excluded.digests";
        seat.execute(keep, &[&ids, &digests]).await?;
        seat.execute("delete from events where run = any($1)", &[&ids]).await?;
        seat.execute("update flow_runs set events_trimmed = true where id = any($1)", &[&ids]).await?;
    }
    seat.commit().await?;
    Ok(ids.len() as u64)
}

/// What is left of the reports of these runs, which nobody else changes meanwhile.
async fn digests(seat: &PooledSession<'_>, ids: &[i64]) -> Result<Vec<Vec<u8>>, PgFault> {
    let sql = "select r.tenant, r.run_id from unnest($1::bigint[]) with ordinality wanted(id, place)
        join flow_runs r on r.id = wanted.id order by place";
    let mut all = Vec::with_capacity(ids.len());
    for row in seat.query(sql, &[&ids]).await? {
        let run = RunKey::new(code::tenant(row.try_get(0)?)?, code::run_id(row.try_get(1)?)?);
        let mut query = EventQuery { kinds: ReportDigests::KINDS.to_vec(), ..EventQuery::default() };
        let mut digests = ReportDigests::default();
        loop {
            let page = read::events(seat, &run, &query).await?;
            page.events.iter().for_each(|event| digests.note_event(event));
            match page.events.last() {
                Some(last) if page.more => query.after = last.seq,
                _ => break,
            }
        }
        all.push(digests.encode());
    }
    Ok(all)
}

pub(crate) async fn reports(session: &Session, run: &RunKey) -> Result<Option<ReportDigests>, PgFault> {
    let sql = "select digests from flow_runs r join reports on reports.run = r.id
        where r.tenant || '/' || r.run_id = $1::text || '/' || $2::text";
    let row = session.query_opt(sql, &[&run.tenant.as_str(), &run.run.as_str()]).await?;
    let Some(row) = row else { return Ok(None) };
    let digests = ReportDigests::decode(row.try_get(0)?);
    digests.map(Some).map_err(|error| PgFault::damaged(&error.to_string()))
}

/// Counts a tenant's runs again. Who is about to count waits for the lock and adds to what is found here; who has counted
/// is waited for, and seen.
pub(crate) async fn recount(seat: &mut PooledSession<'_>, tenant: &Tenant) -> Result<(), PgFault> {
    seat.begin_long().await?;
    seat.run("lock table run_counters, state_counters in exclusive mode").await?;
    for sql in [
        "delete from run_counters where tenant = $1",
        "delete from state_counters where tenant = $1",
        "insert into run_counters (tenant, flow_name, status, shard, n)
            select tenant, flow_name, status, 0, count(*) from flow_runs where tenant = $1
            group by tenant, flow_name, status",
        "insert into state_counters (tenant, flow_name, status, state, shard, n)
            select tenant, flow_name, status, machine_state, 0, count(*) from flow_runs
            where tenant = $1 and machine_state is not null group by tenant, flow_name, status, machine_state",
    ] {
        seat.execute(sql, &[&tenant.as_str()]).await?;
    }
    seat.commit().await
}
