//! Writes what a batch changed, a statement per table with a row per change, and ends the transaction.
//!
//! Everything goes out in one flight, the commit too. So whatever must not be committed has to fail in the server:
//! updates of runs and removals of jobs name the version and the token that were decided on, and `expect` breaks the
//! transaction off where fewer rows than that are found.

use std::collections::{BTreeMap, BTreeSet};

use flowline_store::JobKey;
use flowline_store::rule::StoredJob;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::model::{BatchRun, Model};
use super::receipts::{CHANGE_RECEIPTS, OPEN_RECEIPTS, changed, opened};
use crate::code;
use crate::fault::PgFault;
use crate::floor;
use crate::names::StoredNames;
use crate::session::{Session, pipelined};
use crate::witness::{COUNT_ON, CountParams, Witness};

pub(super) type SqlValue = Box<dyn ToSql + Sync + Send>;

/// A statement with a column of values for each of its arguments.
struct Filled {
    statement: Statement,
    columns: Vec<SqlValue>,
}

pub(super) async fn write(
    session: &Session,
    names: &StoredNames,
    witness: Option<&Witness>,
    model: &Model,
) -> Result<(), PgFault> {
    let mut filled = Vec::new();
    let mut fill = async |sql: &str, columns: Option<Vec<SqlValue>>| -> Result<(), PgFault> {
        if let Some(columns) = columns {
            filled.push(Filled { statement: session.prepare(sql).await?, columns });
        }
        Ok(())
    };
    fill(UPDATE_RUNS, runs(model)).await?;
    fill(DELETE_JOBS, removed_jobs(model)).await?;
    fill(INSERT_JOBS, added_jobs(model, names)?).await?;
    fill(UPDATE_JOBS, changed_jobs(model)).await?;
    fill(REWIND, rewinds(model).then(Vec::new)).await?;
    let events = events(model);
    if events.is_some() {
        fill(HOLD_FEED, Some(Vec::new())).await?;
    }
    fill(INSERT_EVENTS, events).await?;
    fill(INSERT_LABELS, labels(model)).await?;
    fill(CLEAR_STATE, cleared_state(model)).await?;
    fill(DELETE_STATE, deleted_state(model)).await?;
    fill(UPSERT_STATE, set_state(model)).await?;
    fill(COUNT, counts(model)).await?;
    fill(COUNT_STATES, state_counts(model)).await?;
    fill(OPEN_RECEIPTS, opened(model)).await?;
    fill(CHANGE_RECEIPTS, changed(model)).await?;
    if filled.is_empty() {
        return session.run("rollback").await;
    }
    // First of all: a store that lacks what this writer has written gets nothing more.
    let known = witness.map(Witness::known);
    let known = known.as_ref().map(CountParams::given);
    let count_on = session.prepare(COUNT_ON).await?;
    let given: Vec<Vec<&(dyn ToSql + Sync)>> =
        filled.iter().map(|part| part.columns.iter().map(|column| &**column as _).collect()).collect();
    let parts = filled.iter().zip(&given).map(|(part, given)| session.send(&part.statement, given));
    let mut sent: Vec<_> = known.iter().map(|known| session.send(&count_on, known)).chain(parts).collect();
    sent.push(session.send_plain("commit"));
    let answers = pipelined(sent).await?;
    let Some(witness) = witness else { return Ok(()) };
    witness.counted(answers.first().and_then(|rows| rows.first()))
}

const UPDATE_RUNS: &str = "
    with written as (
        update flow_runs r set version = u.version, seq = u.seq, ms = u.ms, status = u.status,
            completed_steps = u.completed_steps, failed_steps = u.failed_steps, retries = u.retries,
            created_at = u.created_at, started_at = u.started_at, completed_at = u.completed_at,
            failure_error = u.failure_error, failure_step = u.failure_step, state = coalesce(u.state, r.state),
            machine_state = u.machine_state
        from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::int[],
                $8::int[], $9::int[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::text[],
                $15::bytea[], $16::text[])
            u(id, base, version, seq, ms, status, completed_steps, failed_steps, retries, created_at, started_at,
                completed_at, failure_error, failure_step, state, machine_state)
        where r.id = u.id and r.version = u.base returning 1)
    select expect(count(*), cardinality($1::bigint[])) from written";

fn runs(model: &Model) -> Option<Vec<SqlValue>> {
    let mut runs: Vec<&BatchRun> = model.runs.values().filter(|run| run.changed).collect();
    runs.sort_unstable_by_key(|run| run.id);
    let long = |of: fn(&BatchRun) -> i64| column(&runs, |run| of(run));
    let count = |of: fn(&BatchRun) -> u32| column(&runs, |run| of(run) as i32);
    (!runs.is_empty()).then(|| {
        vec![
            long(|run| run.id),
            long(|run| run.base as i64),
            long(|run| run.version as i64),
            long(|run| run.seq as i64),
            long(|run| run.ms),
            column(&runs, |run| run.status.as_str()),
            count(|run| run.completed_steps),
            count(|run| run.failed_steps),
            count(|run| run.retries),
            long(|run| run.created_at),
            column(&runs, |run| run.started_at),
            column(&runs, |run| run.completed_at),
            column(&runs, |run| run.failure.0.clone()),
            column(&runs, |run| run.failure.1.clone()),
            column(&runs, |run| run.state.clone()),
            column(&runs, |run| run.machine_state.as_deref().map(str::to_owned)),
        ]
    })
}

const DELETE_JOBS: &str = "
    with gone as (
        delete from jobs j using unnest($1::bigint[], $2::bigint[], $3::int[], $4::bytea[]) u(run, key, attempt, token)
        where j.run = u.run and j.key = u.key and j.attempt = u.attempt and j.token is not distinct from u.token
        returning 1)
    select expect(count(*), cardinality($1::bigint[])) from gone";

fn removed_jobs(model: &Model) -> Option<Vec<SqlValue>> {
    let removed = |run| move |(key, job)| (run, key, job);
    let mut gone: Vec<(i64, &JobKey, &StoredJob)> = Vec::new();
    for run in model.runs.values() {
        gone.extend(run.removed.iter().map(|(key, job)| (key, job)).map(removed(run.id)));
    }
    gone.sort_unstable_by_key(|(run, key, _)| (*run, key.number()));
    (!gone.is_empty()).then(|| {
        vec![
            column(&gone, |(run, ..)| *run),
            column(&gone, |(_, key, _)| key.number()),
            column(&gone, |(.., job)| job.attempt as i32),
            column(&gone, |(.., job)| job.lease.as_ref().map(|lease| code::token_bytes(lease.token))),
        ]
    })
}

const INSERT_JOBS: &str = "
    insert into jobs (run, key, name, attempt, lane, priority, due, held, token, worker, leased_at, expires, lines,
        released)
    select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::int[], $5::int[], $6::smallint[],
        $7::bigint[], $8::bool[], $9::bytea[], $10::text[], $11::bigint[], $12::bigint[], $13::int[], $14::bool[])";

fn added_jobs(model: &Model, names: &StoredNames) -> Result<Option<Vec<SqlValue>>, PgFault> {
    let mut added: Vec<(&StoredJob, i64, JobKey, i32)> = Vec::new();
    for (key, run) in &model.runs {
        for (at, job) in jobs_at(run, &run.added) {
            added.push((job, run.id, *at, names.lane(&key.tenant, &job.lane)?));
        }
    }
    added.sort_unstable_by_key(|(job, ..)| job.number);
    let lease = |(job, ..): &(&StoredJob, i64, JobKey, i32)| job.lease.clone();
    Ok((!added.is_empty()).then(|| {
        vec![
            column(&added, |(_, run, ..)| *run),
            column(&added, |(_, _, key, _)| key.number()),
            column(&added, |(job, ..)| code::shut(&job.name).into_owned()),
            column(&added, |(job, ..)| job.attempt as i32),
            column(&added, |(.., lane)| *lane),
            column(&added, |(job, ..)| code::priority_number(job.priority)),
            column(&added, |(job, ..)| job.due.millis()),
            column(&added, |(job, ..)| job.held),
            column(&added, |job| lease(job).map(|lease| code::token_bytes(lease.token))),
            column(&added, |job| lease(job).map(|lease| code::shut(&lease.worker).into_owned())),
            column(&added, |job| lease(job).map(|lease| lease.leased_at.millis())),
            column(&added, |job| lease(job).map(|lease| lease.expires.millis())),
            column(&added, |job| lease(job).map_or(0, |lease| lease.lines as i32)),
            column(&added, |job| lease(job).is_some_and(|lease| lease.released)),
        ]
    }))
}

const UPDATE_JOBS: &str = "
    with written as (
        update jobs j set held = u.held, lines = u.lines
        from unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bool[], $5::int[]) u(run, key, token, held, lines)
        where j.run = u.run and j.key = u.key and j.token is not distinct from u.token returning 1)
    select expect(count(*), cardinality($1::bigint[])) from written";

fn changed_jobs(model: &Model) -> Option<Vec<SqlValue>> {
    let mut changed: Vec<(i64, &JobKey, &StoredJob)> = Vec::new();
    for run in model.runs.values() {
        changed.extend(jobs_at(run, &run.touched).map(|(key, job)| (run.id, key, job)));
    }
    changed.sort_unstable_by_key(|(run, key, _)| (*run, key.number()));
    (!changed.is_empty()).then(|| {
        vec![
            column(&changed, |(run, ..)| *run),
            column(&changed, |(_, key, _)| key.number()),
            column(&changed, |(.., job)| job.lease.as_ref().map(|lease| code::token_bytes(lease.token))),
            column(&changed, |(.., job)| job.held),
            column(&changed, |(.., job)| job.lease.as_ref().map_or(0, |lease| lease.lines as i32)),
        ]
    })
}

/// Announces jobs that are ready, leases that have run out and timers that are due for longer than anybody looks back.
const REWIND: &str = "select nextval('job_rewinds')";

fn rewinds(model: &Model) -> bool {
    let is_old = |job: &StoredJob| {
        let due = job.lease.as_ref().map_or(job.due, |lease| lease.expires);
        !job.held && model.now.since(due) > floor::OLD
    };
    let written = |run| jobs_at(run, &run.added).chain(jobs_at(run, &run.touched));
    model.runs.values().flat_map(written).any(|(_, job)| is_old(job))
}

fn jobs_at<'r>(
    run: &'r BatchRun,
    keys: &'r BTreeSet<JobKey>,
) -> impl Iterator<Item = (&'r JobKey, &'r StoredJob)> {
    keys.iter().filter_map(|key| run.jobs.get_key_value(key))
}

/// Says, before the first number is drawn and until the transaction has ended, that events may be on their way: the
/// feed waits for whoever holds this.
pub(crate) const HOLD_FEED: &str = "
    select pg_advisory_xact_lock_shared(hashtext('flowline feed'), hashtext(current_schema()))";

const INSERT_EVENTS: &str = "
    insert into events (run, seq, ms, type, step, attempt, slot, data)
    select * from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::int[], $7::bigint[],
        $8::text[])";

fn events(model: &Model) -> Option<Vec<SqlValue>> {
    let rows = &model.events;
    let step =
        |row: &super::model::EventRow| row.event.of.as_ref().map(|of| code::shut(&of.step).into_owned());
    (!rows.is_empty()).then(|| {
        vec![
            column(rows, |row| row.run),
            column(rows, |row| row.seq as i64),
            column(rows, |row| row.ms),
            column(rows, |row| row.event.kind.as_str()),
            column(rows, step),
            column(rows, |row| row.event.of.as_ref().map(|of| of.attempt as i32)),
            column(rows, |row| row.event.slot.map(|slot| i64::from(slot.number()))),
            column(rows, |row| row.event.data.as_ref().map(|data| data.get().to_owned())),
        ]
    })
}

const INSERT_LABELS: &str = "
    insert into run_labels (tenant, key, value, run)
    select * from unnest($1::text[], $2::text[], $3::text[], $4::bigint[])";

fn labels(model: &Model) -> Option<Vec<SqlValue>> {
    let rows = &model.labels;
    (!rows.is_empty()).then(|| {
        vec![
            column(rows, |(tenant, ..)| tenant.as_str().to_owned()),
            column(rows, |(_, key, ..)| code::shut(key).into_owned()),
            column(rows, |(_, _, value, _)| code::shut(value).into_owned()),
            column(rows, |(.., run)| *run),
        ]
    })
}

const CLEAR_STATE: &str = "
    delete from state s using unnest($1::text[], $2::smallint[], $3::text[]) u(tenant, scope, owner)
    where s.tenant = u.tenant and s.scope = u.scope and s.owner = u.owner";

fn cleared_state(model: &Model) -> Option<Vec<SqlValue>> {
    let rows: Vec<_> = model.state.cleared.iter().collect();
    (!rows.is_empty()).then(|| {
        vec![
            column(&rows, |space| space.tenant.as_str().to_owned()),
            column(&rows, |space| code::scope_number(&space.owner)),
            column(&rows, |space| code::owner_name(&space.owner).to_owned()),
        ]
    })
}

const DELETE_STATE: &str = "
    delete from state s using unnest($1::text[], $2::smallint[], $3::text[], $4::text[]) u(tenant, scope, owner, key)
    where s.tenant = u.tenant and s.scope = u.scope and s.owner = u.owner and s.key = u.key";

fn deleted_state(model: &Model) -> Option<Vec<SqlValue>> {
    let rows: Vec<_> = model.state.keys.iter().filter(|(_, value)| value.is_none()).collect();
    (!rows.is_empty()).then(|| {
        vec![
            column(&rows, |((space, _), _)| space.tenant.as_str().to_owned()),
            column(&rows, |((space, _), _)| code::scope_number(&space.owner)),
            column(&rows, |((space, _), _)| code::owner_name(&space.owner).to_owned()),
            column(&rows, |((_, key), _)| code::shut(key).into_owned()),
        ]
    })
}

const UPSERT_STATE: &str = "
    insert into state (tenant, scope, owner, key, value, expires)
    select * from unnest($1::text[], $2::smallint[], $3::text[], $4::text[], $5::text[], $6::bigint[])
    on conflict (tenant, scope, owner, key) do update set value = excluded.value, expires = excluded.expires";

fn set_state(model: &Model) -> Option<Vec<SqlValue>> {
    let set = model.state.keys.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
    let rows: Vec<_> = set.collect();
    (!rows.is_empty()).then(|| {
        vec![
            column(&rows, |((space, _), _)| space.tenant.as_str().to_owned()),
            column(&rows, |((space, _), _)| code::scope_number(&space.owner)),
            column(&rows, |((space, _), _)| code::owner_name(&space.owner).to_owned()),
            column(&rows, |((_, key), _)| code::shut(key).into_owned()),
            column(&rows, |(_, (value, _))| value.clone()),
            column(&rows, |(_, (_, expires))| *expires),
        ]
    })
}

/// Every connection counts in a row of its own, or shares it with few: no row is waited for by all.
pub(crate) const COUNT: &str = "
    insert into run_counters (tenant, flow_name, status, shard, n)
    select u.tenant, u.flow_name, u.status, pg_backend_pid() % 64, u.n
    from unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) u(tenant, flow_name, status, n)
    on conflict (tenant, flow_name, status, shard) do update set n = run_counters.n + excluded.n";

fn counts(model: &Model) -> Option<Vec<SqlValue>> {
    // Of all runs, whatever states machines are in.
    let mut sums: BTreeMap<_, i64> = BTreeMap::new();
    for ((tenant, flow, status, _), change) in &model.counts {
        *sums.entry((tenant, flow, *status)).or_default() += change;
    }
    let rows: Vec<_> = sums.into_iter().filter(|(_, change)| *change != 0).collect();
    (!rows.is_empty()).then(|| {
        vec![
            column(&rows, |((tenant, ..), _)| tenant.as_str().to_owned()),
            column(&rows, |((_, flow, _), _)| flow.to_string()),
            column(&rows, |((.., status), _)| status.as_str()),
            column(&rows, |(_, change)| *change),
        ]
    })
}

pub(crate) const COUNT_STATES: &str = "
    insert into state_counters (tenant, flow_name, status, state, shard, n)
    select u.tenant, u.flow_name, u.status, u.state, pg_backend_pid() % 64, u.n
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[]) u(tenant, flow_name, status, state, n)
    on conflict (tenant, flow_name, status, state, shard) do update set n = state_counters.n + excluded.n";

fn state_counts(model: &Model) -> Option<Vec<SqlValue>> {
    let of_machines = model.counts.iter().filter(|(_, change)| **change != 0);
    let of_machines = of_machines.filter_map(|((tenant, flow, status, state), change)| {
        state.as_ref().map(|state| (tenant, flow, status, state, *change))
    });
    let rows: Vec<_> = of_machines.collect();
    (!rows.is_empty()).then(|| {
        vec![
            column(&rows, |(tenant, ..)| tenant.as_str().to_owned()),
            column(&rows, |(_, flow, ..)| flow.to_string()),
            column(&rows, |(_, _, status, ..)| status.as_str()),
            column(&rows, |(.., state, _)| state.to_string()),
            column(&rows, |(.., change)| *change),
        ]
    })
}

pub(super) fn column<R, T>(rows: &[R], of: impl Fn(&R) -> T) -> SqlValue
where
    T: Send + Sync + 'static,
    Vec<T>: ToSql,
{
    Box::new(rows.iter().map(of).collect::<Vec<T>>())
}
