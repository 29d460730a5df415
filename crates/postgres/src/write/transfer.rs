//! Being filled with another store's content: parts become the model of a batch, and the batch is written as any other.

use std::collections::{BTreeSet, HashMap};

use flowline_core::{RunKey, Tenant, Time};
use flowline_store::rule::StoredJob;
use flowline_store::{
    CommitError, JobRow, Lane, Restored, RestoredEvent, RestoredRun, StateSpace, StateValue, StoreError,
    StoredDefinition,
};

use super::flush::{self, column};
use super::model::{BatchRun, EventRow, Model, number};
use crate::code;
use crate::documents;
use crate::fault::PgFault;
use crate::names::StoredNames;
use crate::pool::PooledSession;

/// Writes all parts in one transaction.
pub(crate) async fn restore(
    seat: &mut PooledSession<'_>,
    names: &StoredNames,
    parts: &[Restored],
) -> Result<Result<(), CommitError>, PgFault> {
    let runs: Vec<&RestoredRun> = parts
        .iter()
        .filter_map(|part| match part {
            Restored::Run(run) => Some(&**run),
            _ => None,
        })
        .collect();
    // Remembered from here on, so not part of what may be rolled back.
    let lane = |run: &RestoredRun, job: &JobRow| (run.row.tenant.clone(), job.lane());
    let lanes: BTreeSet<(Tenant, Lane)> =
        runs.iter().flat_map(|run| run.jobs.iter().map(move |job| lane(run, job))).collect();
    names.enter_lanes(seat, lanes).await?;
    seat.begin_long().await?;
    for part in parts {
        if let Restored::Definition(definition) = part {
            define(seat, definition).await?;
        }
    }
    let wanted = runs.iter().map(|run| (run.row.tenant.clone(), run.row.definition.clone())).collect();
    if let Some((_, hash)) = names.missing_definitions(seat, wanted).await?.pop_first() {
        return Ok(Err(CommitError::UnknownDefinition(hash)));
    }
    let mut ids = insert_runs(seat, &runs).await?;
    if ids.len() < runs.len() {
        return Ok(Err(CommitError::Exists));
    }
    for run in &runs {
        if let Some(reports) = &run.reports {
            let keep = "insert into reports (run, digests) values ($1, $2)";
            seat.execute(keep, &[&ids[&run.row.key()], &reports.encode()]).await?;
        }
    }
    // However old its jobs are, they are announced as such.
    let mut model = Model { now: Time::from_millis(i64::MAX), ..Model::default() };
    for (place, run) in runs.iter().enumerate() {
        model.restored(ids[&run.row.key()], run, place);
    }
    for part in parts {
        match part {
            Restored::Events { run, events } => match find(seat, &mut ids, run).await? {
                Some(id) => model.restored_events(id, events),
                None => {
                    let early = format!("events of run {run} come before the run itself");
                    return Ok(Err(StoreError::Invalid(early).into()));
                }
            },
            Restored::Receipts { run, receipts } => match find(seat, &mut ids, run).await? {
                Some(id) => model.restored_receipts(id, receipts),
                None => {
                    let early = format!("receipts of run {run} come before the run itself");
                    return Ok(Err(StoreError::Invalid(early).into()));
                }
            },
            Restored::Values { space, values } => model.restored_values(space, values),
            Restored::Documents { collection, documents } => {
                documents::restore(seat, collection, documents).await?;
            }
            Restored::Definition(_) | Restored::Run(_) => {}
        }
    }
    match model.is_empty() {
        true => seat.commit().await?,
        false => {
            flush::write(seat, names, None, &model).await?;
            seat.ended();
        }
    }
    Ok(Ok(()))
}

async fn define(seat: &PooledSession<'_>, definition: &StoredDefinition) -> Result<(), PgFault> {
    let sql = "insert into definitions (tenant, flow_name, hash, body, origin, created_at, turn)
        values ($1, $2, $3, $4, $5, $6, case when $7 then nextval('definition_turns') end) on conflict (tenant, hash) do nothing";
    let StoredDefinition { tenant, flow, hash, body, origin, created_at, latest } = definition;
    let origin = origin.as_deref().map(code::shut);
    let (tenant, flow, hash, created) = (tenant.as_str(), &**flow, &**hash, created_at.millis());
    seat.execute(sql, &[&tenant, &flow, &hash, body, &origin, &created, latest]).await.map(drop)
}

/// The number of a run that is there.
async fn find(
    seat: &PooledSession<'_>,
    known: &mut HashMap<RunKey, i64>,
    run: &RunKey,
) -> Result<Option<i64>, PgFault> {
    if let Some(id) = known.get(run) {
        return Ok(Some(*id));
    }
    let sql = "select id from flow_runs where tenant || '/' || run_id = $1::text || '/' || $2::text";
    let row = seat.query_opt(sql, &[&run.tenant.as_str(), &run.run.as_str()]).await?;
    let Some(id) = row.map(|row| row.try_get(0)).transpose()? else { return Ok(None) };
    known.insert(run.clone(), id);
    Ok(Some(id))
}

/// Rows in the order in which runs come, which is the order of lists.
const INSERT_RUNS: &str = "
    insert into flow_runs (id, tenant, run_id, flow_name, definition, status, version, seq, ms, created_at, started_at,
        completed_at, step_count, completed_steps, failed_steps, retries, events_trimmed, failure_error, failure_step,
        labels, idempotency_key, retry_of, input_digest, state, machine_state, retain)
    select nextval('run_ids'), u.*
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
        $9::bigint[], $10::bigint[], $11::bigint[], $12::int[], $13::int[], $14::int[], $15::int[], $16::bool[],
        $17::text[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[], $23::bytea[],
        $24::text[], $25::text[]) u
    on conflict ((tenant || '/' || run_id)) do nothing returning tenant, run_id, id";

async fn insert_runs(
    seat: &PooledSession<'_>,
    runs: &[&RestoredRun],
) -> Result<HashMap<RunKey, i64>, PgFault> {
    let mut ids = HashMap::new();
    if runs.is_empty() {
        return Ok(ids);
    }
    let shut = |text: &str| code::shut(text).into_owned();
    let text = |of: fn(&RestoredRun) -> String| column(runs, |run| of(run));
    let long = |of: fn(&RestoredRun) -> Option<i64>| column(runs, |run| of(run));
    let count = |of: fn(&RestoredRun) -> u32| column(runs, |run| of(run) as i32);
    let columns = [
        text(|run| run.row.tenant.as_str().to_owned()),
        text(|run| run.row.run_id.as_str().to_owned()),
        text(|run| run.row.flow_name.to_string()),
        text(|run| run.row.definition.to_string()),
        text(|run| run.row.status.as_str().to_owned()),
        long(|run| Some(run.row.version as i64)),
        long(|run| Some(run.row.events as i64)),
        long(|run| Some(run.last.millis())),
        long(|run| Some(run.row.created_at.millis())),
        long(|run| run.row.started_at.map(|time| time.millis())),
        long(|run| run.row.completed_at.map(|time| time.millis())),
        count(|run| run.row.step_count),
        count(|run| run.row.completed_steps),
        count(|run| run.row.failed_steps),
        count(|run| run.row.retries),
        column(runs, |run| run.row.events_trimmed),
        column(runs, |run| run.row.failure.as_ref().map(|failure| shut(&failure.error))),
        column(runs, |run| run.row.failure.as_ref().and_then(|failure| failure.step.as_deref().map(shut))),
        column(runs, |run| {
            (!run.row.labels.is_empty()).then(|| serde_json::json!(run.row.labels).to_string())
        }),
        column(runs, |run| run.row.idempotency_key.as_deref().map(shut)),
        column(runs, |run| run.row.retry_of.as_ref().map(|of| of.as_str().to_owned())),
        column(runs, |run| shut(&run.row.input_digest)),
        column(runs, |run| run.state.clone()),
        column(runs, |run| run.row.state.as_deref().map(str::to_owned)),
        column(runs, |run| code::retained(run.row.retain)),
    ];
    let given: Vec<_> = columns.iter().map(|column| &**column as _).collect();
    for row in seat.query(INSERT_RUNS, &given).await? {
        let run = RunKey::new(code::tenant(row.try_get(0)?)?, code::run_id(row.try_get(1)?)?);
        ids.insert(run, row.try_get(2)?);
    }
    Ok(ids)
}

impl Model {
    fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.events.is_empty()
            && self.receipts.is_empty()
            && self.state.keys.is_empty()
    }

    /// All of a run whose row was just inserted that is not its row.
    fn restored(&mut self, id: i64, restored: &RestoredRun, place: usize) {
        let RestoredRun { row, jobs, token, .. } = restored;
        let labels = row.labels.iter();
        self.labels.extend(labels.map(|(key, value)| (row.tenant.clone(), key.clone(), value.clone(), id)));
        let mut live = BatchRun::new(id, row.flow_name.clone(), row.status, row.state.clone());
        for (at, job) in jobs.iter().enumerate() {
            live.add(job.key, StoredJob::restored(number(place, at), job, job.lane(), *token));
        }
        *self.counts.entry(live.counted(&row.tenant)).or_default() += 1;
        self.runs.insert(row.key(), live);
    }

    fn restored_events(&mut self, run: i64, events: &[RestoredEvent]) {
        let row = |restored: &RestoredEvent| EventRow {
            run,
            seq: restored.event.seq,
            ms: restored.event.ts.millis(),
            event: restored.undated(),
        };
        self.events.extend(events.iter().map(row));
    }

    fn restored_values(&mut self, space: &StateSpace, values: &[StateValue]) {
        for StateValue { key, value, expires } in values {
            let value = (value.get().to_owned(), expires.map(|time| time.millis()));
            self.state.keys.insert((space.clone(), key.clone()), Some(value));
        }
    }
}
