//! The tables, and how older ones become these.
//!
//! Every change of the layout is one more entry in [`STEPS`]; an entry that was released is never edited. The number of
//! steps taken is the format, kept in the cell `format`. Instances that start together take the steps in turn, under an
//! advisory lock, all in one transaction.

use flowline_store::StoreError;

use crate::IfMissing;
use crate::fault::PgFault;
use crate::grants;
use crate::pool::{PooledSession, timely};
use crate::session::Session;
use crate::target::ServerTarget;

/// The format that this build writes.
pub(crate) const FORMAT: u32 = STEPS.len() as u32;

pub(crate) const STEPS: &[&str] = &[FIRST, DOCUMENTS, MACHINES, FLOORS, TURNS, REPORTS];

/// `flow_runs` and `jobs` change all the time: room is left in their pages so that a changed row stays in its page and
/// touches no index, and they are vacuumed early and without pauses. `events` only grows.
///
/// A run is looked up by tenant and name in one expression, which only one index fits: by two columns the planner takes a
/// list of the tenant's runs for as good, as long as the table is young. No tenant has a `/` in its name.
const FIRST: &str = "
create function now_ms() returns bigint language sql stable
    as $$ select floor(extract(epoch from now()) * 1000)::bigint $$;
create function expect(had bigint, wanted bigint) returns bigint language plpgsql as $$
begin
    if had <> wanted then
        raise exception 'found % of % rows as they were read', had, wanted using errcode = 'check_violation';
    end if;
    return had;
end $$;

create table definitions (
    id bigint generated always as identity primary key, tenant text not null, flow_name text not null,
    hash text not null, body text not null, origin text, created_at bigint not null,
    unique (tenant, hash));
create index definitions_by_flow on definitions (tenant, flow_name, id);

create sequence run_ids;
create table flow_runs (
    id bigint primary key, created_at bigint not null, started_at bigint, completed_at bigint,
    version bigint not null, seq bigint not null, ms bigint not null, step_count integer not null,
    completed_steps integer not null, failed_steps integer not null, retries integer not null,
    events_trimmed boolean not null default false, tenant text not null, run_id text not null,
    flow_name text not null, status text not null, definition text not null, state bytea not null,
    failure_error text, failure_step text, labels text, idempotency_key text, retry_of text,
    input_digest text not null
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
create unique index flow_runs_by_name on flow_runs ((tenant || '/' || run_id));
create index flow_runs_by_status on flow_runs (tenant, status, id);
create index flow_runs_by_flow_status on flow_runs (tenant, flow_name, status, id);
create index flow_runs_ended on flow_runs (completed_at, id) where completed_at is not null;
create table run_labels (
    tenant text not null, key text not null, value text not null, run bigint not null,
    primary key (tenant, key, value, run));
create index run_labels_by_run on run_labels (run);
create table run_counters (
    tenant text not null, flow_name text not null, status text not null, shard smallint not null,
    n bigint not null, primary key (tenant, flow_name, status, shard)
) with (fillfactor = 30, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0);

create sequence event_numbers;
create table events (
    n bigint not null default nextval('event_numbers'), run bigint not null, seq bigint not null,
    ms bigint not null, slot bigint, attempt integer, type text not null, step text, data text,
    primary key (run, seq));
create index events_by_number on events (n);
create index events_by_slot on events (run, slot) where slot is not null;

create table lanes (
    id integer generated always as identity primary key, tenant text not null, queue text not null,
    need text not null, unique (tenant, queue, need));
create table paused_queues (tenant text not null, queue text not null, primary key (tenant, queue));
create sequence job_numbers;
create table jobs (
    run bigint not null, key bigint not null, n bigint not null default nextval('job_numbers'),
    due bigint not null, leased_at bigint, expires bigint, lane integer not null, attempt integer not null,
    lines integer not null default 0, priority smallint not null, held boolean not null,
    released boolean not null default false, name text not null, token bytea, worker text,
    primary key (run, key)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0);
create index jobs_ready on jobs (lane, priority, due, n) where token is null and not held and key >= 0;
create index jobs_timers on jobs (due, n) where token is null and not held and key < 0;
create index jobs_leased on jobs (expires, n) where token is not null;

create table state (
    tenant text not null, scope smallint not null, owner text not null, key text not null, value text not null,
    expires bigint, primary key (tenant, scope, owner, key));
create index state_expiring on state (expires) where expires is not null;
create table locks (
    tenant text not null, name text not null, owner text not null, token bytea not null, since bigint not null,
    until bigint not null, primary key (tenant, name));

create view v_runs as
    select tenant, run_id, flow_name, status, to_timestamp(created_at / 1000.0) as created_at,
        to_timestamp(started_at / 1000.0) as started_at, to_timestamp(completed_at / 1000.0) as completed_at,
        step_count, completed_steps, failed_steps, retries, failure_error, failure_step,
        array(select data::json ->> 'name' from events e where e.run = r.id and e.type = 'emit' order by seq)
            as emitted_events,
        labels::json, definition, idempotency_key, retry_of, version, seq as events, events_trimmed, id
    from flow_runs r;
create view v_events as
    select r.tenant, r.run_id, r.flow_name, e.ms || '-' || e.seq as id, e.seq, to_timestamp(e.ms / 1000.0) as ts,
        e.type, e.step, e.attempt, e.data::json, e.n
    from events e join flow_runs r on r.id = e.run;
create view v_jobs as
    select l.tenant, r.run_id, j.name, j.attempt, l.queue, l.need,
        (array['low', 'normal', 'high', 'urgent'])[j.priority + 1] as priority,
        to_timestamp(j.due / 1000.0) as due,
        case when j.token is not null then 'leased' when j.held then 'held' else 'waiting' end as state,
        case when j.key < 0 then 'timer' else 'step' end as kind, j.worker,
        to_timestamp(j.leased_at / 1000.0) as leased_at, to_timestamp(j.expires / 1000.0) as expires,
        j.lines, j.released
    from jobs j join flow_runs r on r.id = j.run join lanes l on l.id = j.lane;
";

const DOCUMENTS: &str = "
create table documents (
    collection text collate \"C\" not null, id text collate \"C\" not null, body text not null, expires bigint,
    primary key (collection, id));
create index documents_expiring on documents (expires) where expires is not null;
";

/// What machines add is beside what flows have, so that instances of the build before go on working on flows: `run_counters`
/// counts all runs, `state_counters` those of machines once more, by state.
const MACHINES: &str = "
alter table flow_runs add column machine_state text;
create index flow_runs_by_state on flow_runs (tenant, flow_name, machine_state, status, id)
    where machine_state is not null;
create table state_counters (
    tenant text not null, flow_name text not null, status text not null, state text not null, shard smallint not null,
    n bigint not null, primary key (tenant, flow_name, status, state, shard)
) with (fillfactor = 30, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0);
create table receipts (
    run bigint not null, number bigint not null, received_at bigint not null, started_at bigint, completed_at bigint,
    tenant text not null, status text not null, worker text, event_id text not null, name text not null, sender text,
    outcome text, primary key (run, number)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
create index receipts_by_event on receipts (run, event_id);
create index receipts_by_status on receipts (tenant, status, received_at, run, number);
create index receipts_by_worker on receipts (tenant, worker, status, received_at, run, number)
    where worker is not null;

create table writers (id text primary key, n bigint not null, seen_at bigint not null)
    with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0);
create function unbroken(had bigint) returns bigint language plpgsql as $$
begin
    if had is null then
        raise exception 'the count of this writer is lost' using errcode = 'FLBCK';
    end if;
    return had;
end $$;

create or replace view v_runs as
    select tenant, run_id, flow_name, status, to_timestamp(created_at / 1000.0) as created_at,
        to_timestamp(started_at / 1000.0) as started_at, to_timestamp(completed_at / 1000.0) as completed_at,
        step_count, completed_steps, failed_steps, retries, failure_error, failure_step,
        array(select data::json ->> 'name' from events e where e.run = r.id and e.type = 'emit' order by seq)
            as emitted_events,
        labels::json, definition, idempotency_key, retry_of, version, seq as events, events_trimmed, id,
        machine_state as state
    from flow_runs r;
create view v_receipts as
    select c.tenant, r.run_id, r.flow_name, c.number, c.event_id, c.name, c.status, c.worker,
        to_timestamp(c.received_at / 1000.0) as received_at, to_timestamp(c.started_at / 1000.0) as started_at,
        to_timestamp(c.completed_at / 1000.0) as completed_at, c.sender::json, c.outcome::json
    from receipts c join flow_runs r on r.id = c.run;
";

/// `job_rewinds` announces what is made ready long after it was due, to those who no longer look so far back (`floor`). A row
/// of `flow_runs` is changed about as often as it has steps before the first vacuum comes: with pages filled to 60 %, one such
/// change in eight had to go to another page and into every index; with 45 %, one in eighty, and the table is no larger.
/// Ended runs are found apart by whether their events are gone: retention does not walk over all that it has trimmed before.
///
/// Lists go by `-id`, and by flow or state in one expression: of all indexes only the one that was made for a list fits it.
/// Where most runs have completed, the planner would take the primary key, backwards, for as good, and walk over all of
/// them to find that none has failed.
const FLOORS: &str = "
create sequence job_rewinds;
alter table flow_runs set (fillfactor = 45);
drop index flow_runs_ended;
create index flow_runs_ended on flow_runs (events_trimmed, completed_at, id) where completed_at is not null;
drop index flow_runs_by_status;
create index flow_runs_by_status on flow_runs (tenant, status, (-id));
drop index flow_runs_by_flow_status;
create index flow_runs_by_flow_status on flow_runs ((tenant || '/' || flow_name || '/' || status), (-id));
drop index flow_runs_by_state;
create index flow_runs_by_state on flow_runs
    ((tenant || '/' || flow_name || '/' || machine_state || '/' || status), (-id)) where machine_state is not null;
";

/// The latest definition of a flow is the one that was made so last: `turn` counts that. A retired flow has none. Instances of
/// the build before take the newest one for the latest, as ever.
///
/// Keys of key-value state are listed by their bytes: a page is a range of the primary key.
///
/// Ended runs lie together by what their definition keeps them for, `retain`, so that retention finds those that are due
/// without walking over those that are kept longer. Most say nothing, which is the empty text.
const TURNS: &str = "
create sequence definition_turns;
alter table definitions add column turn bigint;
update definitions set turn = id;
select setval('definition_turns', (select coalesce(max(id), 1) from definitions));
alter table definitions alter column turn set default nextval('definition_turns');
alter table state alter column key type text collate \"C\";
alter table flow_runs add column retain text collate \"C\" not null default '';
drop index flow_runs_ended;
create index flow_runs_ended on flow_runs (retain, events_trimmed, completed_at, id) where completed_at is not null;
";

/// What is left of a trimmed run's reports, apart from the rows that lists read. Runs that an older build trimmed have none.
const REPORTS: &str = "
create table reports (run bigint primary key, digests bytea not null);
";

/// Makes the schema where it is missing and takes the steps that it lacks. Refuses one of a newer build. True where it is
/// there, and up to date.
pub(crate) async fn prepare(
    seat: &mut PooledSession<'_>,
    target: &ServerTarget,
    missing: IfMissing,
) -> Result<bool, PgFault> {
    // Most starts find all done: they take no lock and need no right to create.
    let found = timely(format(seat, target)).await?;
    if missing.writes()
        && let Some(why) = timely(grants::lacking(seat, target, found)).await?
    {
        return Err(StoreError::CannotWrite(why).into());
    }
    if found == Some(FORMAT) {
        return Ok(true);
    }
    if missing == IfMissing::Ignore {
        return Ok(false);
    }
    if matches!(missing, IfMissing::Refuse | IfMissing::Expect) {
        let (schema, place) = (&target.schema, target.place());
        return Err(match found {
            Some(found) => StoreError::Unavailable(format!(
                "the store in the schema {schema} of {place} has format {found}, but this build reads {FORMAT}; upgrade it by \
                 running an engine of this build: `flowline work --until-idle`"
            )),
            None => StoreError::Missing(format!(
                "there is no store in the schema {schema} of {place} yet (?schema= names another)"
            )),
        }
        .into());
    }
    // However long it takes: an index over all runs may be among the steps.
    seat.begin().await?;
    seat.run("set local statement_timeout to 0; set local lock_timeout to 0").await?;
    let name = &target.schema;
    seat.query("select pg_advisory_xact_lock(hashtextextended($1, 0))", &[&format!("flowline {name}")])
        .await?;
    let found = format(seat, target).await?;
    if found.is_none() {
        let there = "select exists (select 1 from pg_namespace where nspname = $1)";
        if !seat.query_one(there, &[name]).await?.try_get::<_, bool>(0)? {
            seat.run(&format!("create schema {name}")).await?;
        }
        seat.run("create table cells (name text primary key, value bigint not null)").await?;
    }
    for step in STEPS.iter().skip(found.unwrap_or(0) as usize) {
        seat.run(step).await?;
    }
    let cell =
        "insert into cells values ('format', $1) on conflict (name) do update set value = excluded.value";
    seat.execute(cell, &[&i64::from(FORMAT)]).await?;
    seat.commit().await?;
    Ok(true)
}

/// Whether a move into the schema is under way, or was broken off.
pub(crate) async fn is_filling(session: &Session) -> Result<bool, PgFault> {
    let row = session.query_one("select exists (select 1 from cells where name = 'filling')", &[]).await?;
    Ok(row.try_get(0)?)
}

/// Refuses a schema that a move has not filled to its end.
pub(crate) async fn refuse_half_moved(session: &Session, target: &ServerTarget) -> Result<(), PgFault> {
    if !is_filling(session).await? {
        return Ok(());
    }
    let (schema, place) = (&target.schema, target.place());
    Err(StoreError::HalfMoved(format!(
        "the schema {schema} of {place} is half moved: `flowline move` is still running, or was interrupted; let it finish, \
         repeat it, or remove the schema (`drop schema {schema} cascade`; the source store is unchanged)"
    ))
    .into())
}

/// The format of the schema; `None` where there is none yet.
pub(crate) async fn format(session: &Session, target: &ServerTarget) -> Result<Option<u32>, PgFault> {
    // By a query: `to_regclass` may remember within a transaction that there was none before it waited for the lock.
    let sql = "select exists (select 1 from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = $1 and c.relname = 'cells')";
    let there = session.query_one(sql, &[&target.schema]).await?;
    if !there.try_get::<_, bool>(0)? {
        return Ok(None);
    }
    grants::refuse_shut(session, target).await?;
    let row = session.query_opt("select value from cells where name = 'format'", &[]).await?;
    let Some(found) = row.map(|row| row.try_get::<_, i64>(0)).transpose()? else {
        return Err(StoreError::Incompatible(format!(
            "the schema {} of {} has a table `cells` that doesn't belong to Flowline; name another with ?schema=",
            target.schema,
            target.place()
        ))
        .into());
    };
    if found > i64::from(FORMAT) {
        return Err(StoreError::Incompatible(format!(
            "the schema {} of {} has format {found}, but this build only reads up to {FORMAT}; use a newer flowline, \
             or name another schema with ?schema=",
            target.schema,
            target.place()
        ))
        .into());
    }
    Ok(Some(found as u32))
}
