//! The layout of the file, and how an older one becomes this one.
//!
//! Every change of the layout is one more entry in [`STEPS`]; an entry that was released is never edited. The number of
//! steps taken is the format, kept in the cell `format`. All steps that a file lacks run in one transaction.

use rusqlite::{Connection, OptionalExtension};

use crate::fault::Fault;
use flowline_store::StoreError;

/// "FlwL" in ASCII: tells a Flowline file from any other SQLite database.
pub(crate) const APPLICATION_ID: i32 = 0x466c_774c;

/// The format that this build writes.
pub(crate) const FORMAT: u32 = STEPS.len() as u32;

/// The first format that has documents.
pub(crate) const WITH_DOCUMENTS: u32 = 3;

/// The first format that has receipts and the state of machines.
pub(crate) const WITH_MACHINES: u32 = 4;

/// The first format that knows where the events and the context of machines are without slots.
pub(crate) const WITH_PLACES: u32 = 5;

/// The first format that knows how far the dates of runs are out of order, and what definitions keep their runs for.
pub(crate) const WITH_CREATION: u32 = 6;

/// The first format that keeps digests of the reports of trimmed runs.
pub(crate) const WITH_REPORTS: u32 = 7;

const STEPS: &[&str] = &[FIRST, LOCKS, DOCUMENTS, MACHINES, PLACES, CREATION, REPORTS];

/// The events of one commit are one row, numbered in commit order, so that writing touches the end of the table and the
/// feed of all runs is the table itself. What is written once (`runs`) is apart from what changes with every commit
/// (`progress`). Waiting jobs and leases are apart too: a hand-off touches `leases` alone.
const FIRST: &str = "
create table cells (name text primary key, value) without rowid;
create table tenants (id integer primary key, name text not null unique);
create table flows (id integer primary key, tenant integer not null, name text not null, unique (tenant, name));
create table definitions (
    id integer primary key, tenant integer not null, flow integer not null, hash text not null,
    body text not null, origin text, created_at integer not null, latest integer not null,
    unique (tenant, hash));
create index definitions_by_flow on definitions (flow, latest);

create table runs (
    id integer primary key, tenant integer not null, flow integer not null, definition integer not null,
    run_id text not null, created_at integer not null, step_count integer not null, idempotency_key text, retry_of text,
    input_digest text not null, labels text);
create unique index runs_by_name on runs (tenant, run_id);
create table progress (
    run integer primary key, tenant integer not null, flow integer not null, status integer not null,
    version integer not null, seq integer not null, ms integer not null, started_at integer, completed_at integer,
    completed_steps integer not null, failed_steps integer not null, retries integer not null,
    events_trimmed integer not null default 0, trimmed_to integer not null default 0,
    failure_error text, failure_step text, state blob not null);
create index progress_by_status on progress (flow, status);
create index progress_ended on progress (events_trimmed, completed_at) where completed_at is not null;
create table labels (
    tenant integer not null, key text not null, value text not null, run integer not null,
    primary key (tenant, key, value, run)) without rowid;
create table counters (
    flow integer not null, status integer not null, n integer not null,
    primary key (flow, status)) without rowid;

create table log (
    n integer primary key, run integer not null, first_seq integer not null, ms integer not null,
    count integer not null, events text not null);
create index log_by_run on log (run, first_seq);
create table slots (
    run integer not null, slot integer not null, n integer not null, primary key (run, slot)) without rowid;
create table purges (run integer primary key, last_seq integer not null);

create table lanes (
    id integer primary key, tenant integer not null, queue text not null, need text not null,
    unique (tenant, queue, need));
create table paused_queues (
    tenant integer not null, queue text not null, primary key (tenant, queue)) without rowid;
create table jobs (
    run integer not null, key integer not null, name text not null, attempt integer not null,
    lane integer not null, priority integer not null, due integer not null, held integer not null,
    n integer not null, primary key (run, key)) without rowid;
create index jobs_ready on jobs (lane, priority, due, n) where held = 0 and key >= 0;
create index jobs_timers on jobs (due, n) where held = 0 and key < 0;
create table leases (
    run integer not null, key integer not null, name text not null, attempt integer not null,
    lane integer not null, priority integer not null, due integer not null, n integer not null, token blob not null,
    worker text not null, leased_at integer not null, expires integer not null, lines integer not null,
    released integer not null, primary key (run, key)) without rowid;

create table kv (
    scope integer not null, owner integer not null, key text not null, value text not null,
    expires integer, primary key (scope, owner, key)) without rowid;
create index kv_expiring on kv (expires) where expires is not null;

create view v_runs as
    select tenants.name as tenant, runs.run_id, flows.name as flow, definitions.hash as definition,
        case status when 0 then 'running' when 1 then 'waiting' when 2 then 'paused'
            when 3 then 'completed' when 4 then 'failed' when 5 then 'cancelled' end as status,
        strftime('%Y-%m-%dT%H:%M:%fZ', runs.created_at / 1000.0, 'unixepoch') as created_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', progress.started_at / 1000.0, 'unixepoch') as started_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', progress.completed_at / 1000.0, 'unixepoch') as completed_at,
        runs.step_count, progress.completed_steps, progress.failed_steps, progress.retries,
        progress.failure_error, progress.failure_step, runs.labels, runs.idempotency_key, runs.retry_of,
        progress.version, progress.seq as events, progress.events_trimmed, runs.id
    from runs join progress on progress.run = runs.id join tenants on tenants.id = runs.tenant
        join flows on flows.id = runs.flow join definitions on definitions.id = runs.definition;
create view v_events as
    select tenants.name as tenant, runs.run_id, flows.name as flow,
        log.ms || '-' || (log.first_seq + event.key) as id, log.first_seq + event.key as seq,
        strftime('%Y-%m-%dT%H:%M:%fZ', log.ms / 1000.0, 'unixepoch') as ts,
        event.value ->> 'type' as type, event.value ->> 'step' as step, event.value ->> 'attempt' as attempt,
        event.value -> 'data' as data, log.n + event.key as n
    from runs join log on log.run = runs.id join json_each(log.events) as event
        join tenants on tenants.id = runs.tenant join flows on flows.id = runs.flow;
create view v_jobs as
    select tenants.name as tenant, runs.run_id, jobs.name, jobs.attempt, lanes.queue, lanes.need,
        case priority when 0 then 'low' when 1 then 'normal' when 2 then 'high' when 3 then 'urgent' end as priority,
        strftime('%Y-%m-%dT%H:%M:%fZ', jobs.due / 1000.0, 'unixepoch') as due,
        iif(jobs.held, 'held', 'waiting') as state, iif(jobs.key < 0, 'timer', 'step') as kind
    from jobs join runs on runs.id = jobs.run join tenants on tenants.id = runs.tenant
        join lanes on lanes.id = jobs.lane;
create view v_leases as
    select tenants.name as tenant, runs.run_id, leases.name, leases.attempt, lanes.queue, lanes.need, leases.worker,
        strftime('%Y-%m-%dT%H:%M:%fZ', leases.leased_at / 1000.0, 'unixepoch') as leased_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', leases.expires / 1000.0, 'unixepoch') as expires,
        leases.lines, leases.released
    from leases join runs on runs.id = leases.run join tenants on tenants.id = runs.tenant
        join lanes on lanes.id = leases.lane;
";

const LOCKS: &str = "
create table locks (
    tenant integer not null, name text not null, owner text not null, token blob not null, since integer not null,
    until integer not null, primary key (tenant, name)) without rowid;
";

const DOCUMENTS: &str = "
create table documents (
    collection text not null, id text not null, body text not null, expires integer,
    primary key (collection, id)) without rowid;
create index documents_expiring on documents (expires) where expires is not null;
";

/// Runs of flows are in none of these indexes, and counted under the empty state.
const MACHINES: &str = "
alter table progress add column machine_state text;
create index progress_by_state on progress (flow, machine_state, status) where machine_state is not null;
create table counters_by_state (
    flow integer not null, status integer not null, state text not null, n integer not null,
    primary key (flow, status, state)) without rowid;
insert into counters_by_state (flow, status, state, n) select flow, status, '', n from counters;
drop table counters;
alter table counters_by_state rename to counters;

create table receipts (
    run integer not null, number integer not null, tenant integer not null, event_id text not null, name text not null,
    sender text, status integer not null, worker text, received_at integer not null, started_at integer,
    completed_at integer, outcome text, primary key (run, number)) without rowid;
create index receipts_by_event on receipts (run, event_id);
create index receipts_by_status on receipts (tenant, status, received_at, run, number);
create index receipts_by_worker on receipts (tenant, worker, status, received_at, run, number)
    where worker is not null;

drop view v_runs;
create view v_runs as
    select tenants.name as tenant, runs.run_id, flows.name as flow, definitions.hash as definition,
        case status when 0 then 'running' when 1 then 'waiting' when 2 then 'paused'
            when 3 then 'completed' when 4 then 'failed' when 5 then 'cancelled' end as status,
        progress.machine_state as state,
        strftime('%Y-%m-%dT%H:%M:%fZ', runs.created_at / 1000.0, 'unixepoch') as created_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', progress.started_at / 1000.0, 'unixepoch') as started_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', progress.completed_at / 1000.0, 'unixepoch') as completed_at,
        runs.step_count, progress.completed_steps, progress.failed_steps, progress.retries,
        progress.failure_error, progress.failure_step, runs.labels, runs.idempotency_key, runs.retry_of,
        progress.version, progress.seq as events, progress.events_trimmed, runs.id
    from runs join progress on progress.run = runs.id join tenants on tenants.id = runs.tenant
        join flows on flows.id = runs.flow join definitions on definitions.id = runs.definition;
create view v_receipts as
    select tenants.name as tenant, runs.run_id, flows.name as flow, receipts.number, receipts.event_id, receipts.name,
        case receipts.status when 0 then 'pending' when 1 then 'processing' when 2 then 'completed'
            when 3 then 'failed' end as status,
        receipts.worker,
        strftime('%Y-%m-%dT%H:%M:%fZ', receipts.received_at / 1000.0, 'unixepoch') as received_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', receipts.started_at / 1000.0, 'unixepoch') as started_at,
        strftime('%Y-%m-%dT%H:%M:%fZ', receipts.completed_at / 1000.0, 'unixepoch') as completed_at,
        receipts.sender, receipts.outcome
    from receipts join runs on runs.id = receipts.run join tenants on tenants.id = runs.tenant
        join flows on flows.id = runs.flow;
";

/// What an event writes is spread over pages of its run, each written whole: so it is told of in few places. What a machine
/// took in is at the `seq` that its receipt names, the last context at that of its run, and neither has a slot; and ids of
/// events, most of which grow with time, lie at the end of their index.
const PLACES: &str = "
alter table receipts add column seq integer;
alter table progress add column context_seq integer;
drop index receipts_by_event;
create index receipts_by_event on receipts (event_id, run);
";

/// Runs are numbered as they are created, so those of a stretch of time lie between two numbers. The cell says by how much a
/// run may be dated before one with a lower number, because the clock was set back: so far beyond a time one has to look.
/// Ended runs lie together by what their definition keeps them for, `retain`, so that retention finds those that are due
/// without walking over those that are kept longer.
const CREATION: &str = "
insert or replace into cells (name, value) select 'created_slack', coalesce(max(newest - created_at), 0) from (
    select created_at, max(created_at) over (order by id rows unbounded preceding) as newest from runs);
alter table progress add column retain text;
drop index progress_ended;
create index progress_ended on progress (retain, events_trimmed, completed_at) where completed_at is not null;
";

/// What is left of a trimmed run's reports, apart from the rows that lists read. Runs that an older build trimmed have none.
const REPORTS: &str = "
create table reports (run integer primary key, digests blob not null);
";

/// The format of a file, `None` where it has no such cell.
pub(crate) fn format(conn: &Connection) -> Result<Option<u32>, Fault> {
    let known: bool = conn.query_row(
        "select exists (select 1 from sqlite_schema where type = 'table' and name = 'cells')",
        [],
        |row| row.get(0),
    )?;
    if !known {
        return Ok(None);
    }
    Ok(conn.query_row("select value from cells where name = 'format'", [], |row| row.get(0)).optional()?)
}

/// Whether a move into the file is under way, or was broken off.
pub(crate) fn is_filling(conn: &Connection) -> Result<bool, Fault> {
    let sql = "select exists (select 1 from cells where name = 'filling')";
    Ok(conn.query_row(sql, [], |row| row.get(0))?)
}

/// Refuses a file of another program or of a newer build.
pub(crate) fn check(conn: &Connection, path: &str) -> Result<u32, Fault> {
    match format(conn)? {
        None => Err(StoreError::Incompatible(format!(
            "{path} is a SQLite database without Flowline's tables; name another file"
        ))
        .into()),
        Some(found) if found > FORMAT => Err(StoreError::Incompatible(format!(
            "{path} has format {found}, but this build only reads up to {FORMAT}; use a newer flowline, or name another file"
        ))
        .into()),
        Some(found) => Ok(found),
    }
}

/// Takes the steps that the file lacks, all in one transaction.
pub(crate) fn migrate(conn: &Connection, from: u32) -> Result<(), Fault> {
    if from < FORMAT {
        conn.execute_batch("begin immediate")?;
        let taken = take_steps(conn, from).and_then(|()| conn.execute_batch("commit"));
        if let Err(error) = taken {
            // The first error is the one to report; a connection that cannot roll back is dropped right after.
            let _ = conn.execute_batch("rollback");
            return Err(error.into());
        }
    }
    Ok(())
}

fn take_steps(conn: &Connection, from: u32) -> rusqlite::Result<()> {
    for step in &STEPS[from as usize..] {
        conn.execute_batch(step)?;
    }
    conn.execute("insert or replace into cells (name, value) values ('format', ?1)", [FORMAT])?;
    Ok(())
}
