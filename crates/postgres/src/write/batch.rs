//! One transaction: insert the new runs, lock the others and then their jobs, in order; decide in memory; write.
//!
//! Everybody takes locks in the same order, inserts before runs before jobs, each sorted, so no two batches wait for each
//! other. Jobs are read by a statement that begins after all runs are locked: it sees whatever a writer left that was
//! waited for. A single statement would look at the jobs as they were before the wait, and let a stale worker through.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use flowline_core::{RunKey, Tenant, Time};
use flowline_store::row::Repair;
use flowline_store::rule::{StoredJob, StoredLease};
use flowline_store::{
    AppendError, Base, Commit, CommitError, Committed, JobKey, Lane, LeaseUse, NewJob, NewRun, Others,
};
use tokio_postgres::Row;

use super::Work;
use super::flush;
use super::model::{BatchRun, Model};
use crate::code;
use crate::fault::PgFault;
use crate::names::StoredNames;
use crate::session::{Session, StatementFuture, pipelined};
use crate::witness::Witness;

/// The answer to one [`Work`].
#[derive(Debug)]
pub(crate) enum WorkReply {
    Committed(Vec<Result<Committed, CommitError>>),
    Appended(Vec<Result<u32, AppendError>>),
    Repaired(Result<(), CommitError>),
}

/// A batch that failed as a whole.
#[derive(Debug)]
pub(super) struct BatchFailure {
    pub(super) fault: PgFault,
    /// Whether the end of the transaction was already under way.
    pub(super) ending: bool,
}

pub(super) async fn perform(
    session: &Session,
    names: &StoredNames,
    witness: &Witness,
    works: &[Work],
) -> Result<Vec<WorkReply>, BatchFailure> {
    let early = |fault| BatchFailure { fault, ending: false };
    let unknown = prepare_names(session, names, works).await.map_err(early)?;
    let mut model = Model { unknown, ..Model::default() };
    let starts = starts(works, &model);
    // By identity: another start of the same run in this batch is not the one that was inserted.
    let chosen: HashSet<usize> = starts.iter().map(|start| address(start)).collect();
    let places: HashMap<usize, usize> = commits(works).map(address).zip(1..).collect();
    let needs = Needs::of(works, &chosen);
    let inserted = gather(session, names, &needs, &starts, &mut model).await.map_err(early)?;
    let mut landed: HashMap<&RunKey, Committed> = HashMap::new();
    for start in &starts {
        let Base::New(new) = &start.base else { continue };
        if let Some(id) = inserted.get(&start.run) {
            model.place = places.get(&address(start)).copied().unwrap_or_default();
            landed.insert(&start.run, model.started(*id, start, new));
        }
    }
    let answers = works.iter().map(|work| match work {
        Work::Commit(batch) => {
            let one = |commit: &Commit| match chosen.contains(&address(commit)) {
                true => landed.remove(&commit.run).ok_or(CommitError::Exists),
                false => {
                    model.place = places.get(&address(commit)).copied().unwrap_or_default();
                    model.commit(commit)
                }
            };
            WorkReply::Committed(batch.iter().map(one).collect())
        }
        Work::Append(batch) => WorkReply::Appended(batch.iter().map(|append| model.append(append)).collect()),
        Work::Repair(repair) => WorkReply::Repaired(model.repair(repair)),
    });
    let answers = answers.collect();
    flush::write(session, names, Some(witness), &model)
        .await
        .map_err(|fault| BatchFailure { fault, ending: true })?;
    Ok(answers)
}

/// Sees to it that every lane has its number, and finds the definitions that starts name and that are not stored.
async fn prepare_names(
    session: &Session,
    names: &StoredNames,
    works: &[Work],
) -> Result<BTreeSet<(Tenant, Arc<str>)>, PgFault> {
    let mut lanes = BTreeSet::new();
    let mut enter = |run: &RunKey, add: &[NewJob]| {
        lanes.extend(add.iter().map(|job| (run.tenant.clone(), job.lane.clone())));
    };
    commits(works).for_each(|commit| enter(&commit.run, &commit.add));
    for work in works {
        if let Work::Repair(Repair::Jobs { run, add, .. }) = work {
            enter(run, add);
        }
    }
    names.enter_lanes(session, lanes).await?;
    let wanted = commits(works).filter_map(|commit| match &commit.base {
        Base::New(new) => Some((commit.run.tenant.clone(), new.definition.clone())),
        Base::Version(_) => None,
    });
    names.missing_definitions(session, wanted.collect()).await
}

fn address(commit: &Commit) -> usize {
    std::ptr::from_ref(commit).addr()
}

fn commits(works: &[Work]) -> impl Iterator<Item = &Commit> {
    works.iter().flat_map(|work| match work {
        Work::Commit(batch) => batch.as_slice(),
        _ => &[],
    })
}

/// The starts whose rows will be inserted: one per run, with every guard fulfilled but the one that the insert settles. A
/// new run has no job that the time could matter for.
fn starts<'w>(works: &'w [Work], model: &Model) -> Vec<&'w Commit> {
    let mut taken = HashSet::new();
    let startable = commits(works).filter(|commit| {
        matches!(commit.base, Base::New(_))
            && model.check(commit, Time::default()).is_ok()
            && taken.insert(&commit.run)
    });
    startable.collect()
}

/// Begins the transaction, inserts, locks and reads. Gives the numbers of the runs that were inserted.
async fn gather(
    session: &Session,
    names: &StoredNames,
    needs: &Needs<'_>,
    starts: &[&Commit],
    model: &mut Model,
) -> Result<HashMap<RunKey, i64>, PgFault> {
    let runs = (needs.tenants(), needs.names());
    let jobs = needs.jobs();
    let rows = StartRows::of(starts);
    let insert = session.prepare(INSERT_RUNS).await?;
    let lock_runs = session.prepare(LOCK_RUNS).await?;
    let lock_jobs = session.prepare(LOCK_JOBS).await?;
    let moment = session.prepare(MOMENT).await?;
    let (given_rows, given_runs, given_jobs) = (rows.given(), [&runs.0 as _, &runs.1 as _], jobs.given());
    let mut sent: Vec<StatementFuture<'_>> = vec![session.send_plain("begin"), session.send(&moment, &[])];
    let (some_starts, some_runs, some_jobs) =
        (!starts.is_empty(), !runs.0.is_empty(), !jobs.names.is_empty());
    if some_starts {
        sent.push(session.send(&insert, &given_rows));
    }
    if some_runs {
        sent.push(session.send(&lock_runs, &given_runs));
    }
    if some_jobs {
        sent.push(session.send(&lock_jobs, &given_jobs));
    }
    let mut answers = pipelined(sent).await?.into_iter().skip(1);
    let mut next = |asked: bool| if asked { answers.next().unwrap_or_default() } else { Vec::new() };
    for row in next(true) {
        model.now = Time::from_millis(row.try_get(0)?);
        if let (Some(tenant), Some(queue)) = (row.try_get::<_, Option<&str>>(1)?, row.try_get(2)?) {
            model.paused.insert((code::tenant(tenant)?, code::open(queue)));
        }
    }
    let mut inserted = HashMap::new();
    for row in next(some_starts) {
        let run = RunKey::new(code::tenant(row.try_get(0)?)?, code::run_id(row.try_get(1)?)?);
        inserted.insert(run, row.try_get(2)?);
    }
    let mut by_id: HashMap<i64, RunKey> = HashMap::new();
    for row in next(some_runs) {
        let (run, live) = live_run(&row)?;
        by_id.insert(live.id, run.clone());
        model.runs.insert(run, live);
    }
    for row in next(some_jobs) {
        let Some(live) = by_id.get(&row.try_get(0)?).and_then(|run| model.runs.get_mut(run)) else {
            continue;
        };
        live.jobs.insert(JobKey::from_number(row.try_get(1)?), job(&row, names)?);
    }
    Ok(inserted)
}

/// The time of this transaction, and the paused queues.
const MOMENT: &str =
    "select now_ms(), p.tenant, p.queue from (select 1) one left join paused_queues p on true";

/// Rows in the order of their names, which is the order of locks; numbers in the order of the batch, which is the order
/// of lists.
const INSERT_RUNS: &str = "
    insert into flow_runs (id, tenant, run_id, flow_name, definition, status, step_count, completed_steps,
        failed_steps, retries, failure_error, failure_step, labels, idempotency_key, retry_of, input_digest,
        created_at, started_at, completed_at, version, seq, ms, state, machine_state, retain)
    select drawn.ids[u.at], u.tenant, u.run_id, u.flow_name, u.definition, u.status, u.step_count, u.completed_steps,
        u.failed_steps, u.retries, u.failure_error, u.failure_step, u.labels, u.idempotency_key, u.retry_of,
        u.input_digest, now_ms(), case when u.started then now_ms() end, case when u.ended then now_ms() end,
        1, u.seq, now_ms(), u.state, u.machine_state, u.retain
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::int[], $8::int[],
            $9::int[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bool[],
            $17::bool[], $18::bigint[], $19::bytea[], $20::text[], $21::text[]) with ordinality
        u(tenant, run_id, flow_name, definition, status, step_count, completed_steps, failed_steps, retries,
            failure_error, failure_step, labels, idempotency_key, retry_of, input_digest, started, ended, seq,
            state, machine_state, retain, at)
        cross join (select array_agg(nextval('run_ids')) as ids from generate_series(1, cardinality($1::text[]))) drawn
    order by u.tenant, u.run_id
    on conflict ((tenant || '/' || run_id)) do nothing returning tenant, run_id, id";

const LOCK_RUNS: &str = "
    select r.id, r.tenant, r.run_id, r.flow_name, r.status, r.version, r.seq, r.ms, r.completed_steps,
        r.failed_steps, r.retries, r.created_at, r.started_at, r.completed_at, r.failure_error, r.failure_step,
        r.machine_state
    from unnest($1::text[], $2::text[]) u(tenant, run_id)
        join flow_runs r on r.tenant || '/' || r.run_id = u.tenant || '/' || u.run_id
    order by r.id for no key update of r";

const LOCK_JOBS: &str = "
    select j.run, j.key, j.name, j.attempt, j.lane, j.priority, j.due, j.held, j.token, j.worker, j.leased_at,
        j.expires, j.lines
    from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) u(tenant, run_id, low, high)
        join flow_runs r on r.tenant || '/' || r.run_id = u.tenant || '/' || u.run_id
        join jobs j on j.run = r.id and j.key between u.low and u.high
    order by j.run, j.key for update of j";

fn live_run(row: &Row) -> Result<(RunKey, BatchRun), PgFault> {
    let run = RunKey::new(code::tenant(row.try_get(1)?)?, code::run_id(row.try_get(2)?)?);
    let count = |at: usize| row.try_get::<_, i32>(at).map(|n| n as u32);
    let version = row.try_get::<_, i64>(5)? as u64;
    let flow = row.try_get::<_, &str>(3)?.into();
    let machine_state = row.try_get::<_, Option<&str>>(16)?.map(Arc::from);
    let live = BatchRun {
        base: version,
        version,
        seq: row.try_get::<_, i64>(6)? as u64,
        ms: row.try_get(7)?,
        completed_steps: count(8)?,
        failed_steps: count(9)?,
        retries: count(10)?,
        created_at: row.try_get(11)?,
        started_at: row.try_get(12)?,
        completed_at: row.try_get(13)?,
        failure: (row.try_get(14)?, row.try_get(15)?),
        ..BatchRun::new(row.try_get(0)?, flow, code::status(row.try_get(4)?)?, machine_state)
    };
    Ok((run, live))
}

fn job(row: &Row, names: &StoredNames) -> Result<StoredJob, PgFault> {
    let lease = match row.try_get::<_, Option<&[u8]>>(8)? {
        Some(token) => Some(StoredLease {
            token: code::token(token)?,
            worker: row.try_get::<_, Option<&str>>(9)?.unwrap_or_default().into(),
            leased_at: Time::from_millis(row.try_get::<_, Option<i64>>(10)?.unwrap_or_default()),
            expires: Time::from_millis(row.try_get::<_, Option<i64>>(11)?.unwrap_or_default()),
            lines: row.try_get::<_, i32>(12)? as u32,
            // Not asked for: a change leaves it as it is.
            released: false,
        }),
        None => None,
    };
    // A lane that another instance made is not needed by its name here: a job that was read is only changed or removed.
    let nowhere = || Lane { queue: "".into(), need: "".into() };
    Ok(StoredJob {
        number: 0,
        name: row.try_get::<_, &str>(2)?.into(),
        attempt: row.try_get::<_, i32>(3)? as u32,
        lane: names.lane_name(row.try_get(4)?).unwrap_or_else(|_| nowhere()),
        priority: code::priority(row.try_get(5)?)?,
        due: Time::from_millis(row.try_get(6)?),
        held: row.try_get(7)?,
        lease,
    })
}

/// What must be locked and read for a batch.
#[derive(Debug, Default)]
struct Needs<'w> {
    runs: BTreeSet<&'w RunKey>,
    /// The range of job keys of each run that is needed.
    jobs: BTreeMap<&'w RunKey, (i64, i64)>,
}

impl<'w> Needs<'w> {
    fn of(works: &'w [Work], chosen: &HashSet<usize>) -> Needs<'w> {
        let mut needs = Needs::default();
        for work in works {
            match work {
                Work::Commit(batch) => {
                    let others = batch.iter().filter(|commit| !chosen.contains(&address(commit)));
                    others.for_each(|commit| needs.commit(commit));
                }
                Work::Append(batch) => batch.iter().for_each(|append| {
                    needs.runs.insert(&append.run);
                    needs.job(&append.run, append.key);
                }),
                Work::Repair(Repair::Row { run, .. } | Repair::Events { run, .. }) => {
                    needs.runs.insert(run);
                }
                Work::Repair(Repair::Jobs { run, add, remove, .. }) => {
                    needs.runs.insert(run);
                    let keys = add.iter().map(|job| job.key).chain(remove.iter().copied());
                    keys.for_each(|key| needs.job(run, key));
                }
                Work::Repair(Repair::Counters { .. }) => {}
            }
        }
        needs
    }

    fn commit(&mut self, commit: &'w Commit) {
        self.runs.insert(&commit.run);
        if commit.others != Others::Leave {
            self.jobs.insert(&commit.run, (i64::MIN, i64::MAX));
            return;
        }
        let keys = commit.leases.iter().map(LeaseUse::key).chain(commit.add.iter().map(|job| job.key));
        keys.for_each(|key| self.job(&commit.run, key));
    }

    fn job(&mut self, run: &'w RunKey, key: JobKey) {
        let key = key.number();
        let (low, high) = self.jobs.entry(run).or_insert((key, key));
        (*low, *high) = ((*low).min(key), (*high).max(key));
    }

    fn tenants(&self) -> Vec<&'w str> {
        self.runs.iter().map(|run| run.tenant.as_str()).collect()
    }

    fn names(&self) -> Vec<&'w str> {
        self.runs.iter().map(|run| run.run.as_str()).collect()
    }

    fn jobs(&self) -> JobRanges<'w> {
        JobRanges {
            tenants: self.jobs.keys().map(|run| run.tenant.as_str()).collect(),
            names: self.jobs.keys().map(|run| run.run.as_str()).collect(),
            low: self.jobs.values().map(|(low, _)| *low).collect(),
            high: self.jobs.values().map(|(_, high)| *high).collect(),
        }
    }
}

struct JobRanges<'w> {
    tenants: Vec<&'w str>,
    names: Vec<&'w str>,
    low: Vec<i64>,
    high: Vec<i64>,
}

type Value<'a> = &'a (dyn tokio_postgres::types::ToSql + Sync);

impl JobRanges<'_> {
    fn given(&self) -> [Value<'_>; 4] {
        [&self.tenants, &self.names, &self.low, &self.high]
    }
}

/// The rows of new runs, a column each.
#[derive(Debug, Default)]
struct StartRows<'w> {
    tenant: Vec<&'w str>,
    run_id: Vec<&'w str>,
    flow: Vec<&'w str>,
    definition: Vec<&'w str>,
    status: Vec<&'static str>,
    counts: [Vec<i32>; 4],
    failure_error: Vec<Option<String>>,
    failure_step: Vec<Option<String>>,
    labels: Vec<Option<String>>,
    idempotency_key: Vec<Option<String>>,
    retry_of: Vec<Option<&'w str>>,
    input_digest: Vec<String>,
    started: Vec<bool>,
    ended: Vec<bool>,
    seq: Vec<i64>,
    state: Vec<&'w [u8]>,
    machine_state: Vec<Option<&'w str>>,
    retain: Vec<String>,
}

impl<'w> StartRows<'w> {
    fn of(starts: &[&'w Commit]) -> StartRows<'w> {
        let mut rows = StartRows::default();
        for start in starts {
            if let Base::New(new) = &start.base {
                rows.add(start, new);
            }
        }
        rows
    }

    fn add(&mut self, start: &'w Commit, new: &'w NewRun) {
        let index = &start.index;
        self.tenant.push(start.run.tenant.as_str());
        self.run_id.push(start.run.run.as_str());
        self.flow.push(&new.flow);
        self.definition.push(&new.definition);
        self.status.push(index.status.as_str());
        let counts = [new.step_count, index.completed_steps, index.failed_steps, index.retries];
        self.counts.iter_mut().zip(counts).for_each(|(column, count)| column.push(count as i32));
        let (error, step) = BatchRun::failure_of(index);
        self.failure_error.push(error);
        self.failure_step.push(step);
        let labels = (!new.labels.is_empty()).then(|| serde_json::json!(new.labels).to_string());
        self.labels.push(labels);
        self.idempotency_key.push(new.idempotency_key.as_deref().map(|key| code::shut(key).into_owned()));
        self.retry_of.push(new.retry_of.as_ref().map(|run| run.as_str()));
        self.input_digest.push(code::shut(&new.input_digest).into_owned());
        self.started.push(start.events.iter().any(|event| event.begins(Time::from_millis(0)).is_some()));
        self.ended.push(start.events.iter().any(|event| event.kind.is_terminal()));
        self.seq.push(start.events.len() as i64);
        self.state.push(&start.state);
        self.machine_state.push(index.state.as_deref());
        self.retain.push(code::retained(new.retain));
    }

    fn given(&self) -> [Value<'_>; 21] {
        let [step_count, completed, failed, retries] = &self.counts;
        [
            &self.tenant,
            &self.run_id,
            &self.flow,
            &self.definition,
            &self.status,
            step_count,
            completed,
            failed,
            retries,
            &self.failure_error,
            &self.failure_step,
            &self.labels,
            &self.idempotency_key,
            &self.retry_of,
            &self.input_digest,
            &self.started,
            &self.ended,
            &self.seq,
            &self.state,
            &self.machine_state,
            &self.retain,
        ]
    }
}
