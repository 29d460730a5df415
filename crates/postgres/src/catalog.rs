//! Definitions, queues, locks, counters, health.

use std::sync::Arc;

use flowline_core::{RunKey, Tenant, Time};
use flowline_store::row::Pause;
use flowline_store::{
    Acquired, Counter, Health, JobKey, JobRow, JobState, LockProof, LockRequest, LockRow, QueueRow, Renewal,
    StoredDefinition,
};

use crate::code;
use crate::fault::PgFault;
use crate::grants;
use crate::schema;
use crate::session::{Session, SqlParams};
use crate::target::ServerTarget;

/// True where the hash was new. The newest row of a flow is its latest: a known hash keeps its place.
pub(crate) async fn put_definition(
    session: &Session,
    definition: &StoredDefinition,
) -> Result<bool, PgFault> {
    let sql = "insert into definitions (tenant, flow_name, hash, body, origin, created_at)
        values ($1, $2, $3, $4, $5, now_ms())
        on conflict (tenant, hash) do update set origin = excluded.origin returning xmax = 0";
    let origin = definition.origin.as_deref().map(code::shut);
    let (tenant, flow, hash) = (definition.tenant.as_str(), &*definition.flow, &*definition.hash);
    let row = session.query_one(sql, &[&tenant, &flow, &hash, &definition.body, &origin]).await?;
    Ok(row.try_get(0)?)
}

/// False where the flow has no such definition.
pub(crate) async fn set_latest(
    session: &Session,
    tenant: &Tenant,
    flow: &str,
    hash: Option<&str>,
) -> Result<bool, PgFault> {
    let (tenant, flow) = (tenant.as_str(), code::shut(flow));
    let changed = match hash {
        Some(hash) => {
            let sql = "update definitions set turn = nextval('definition_turns')
                where tenant = $1 and flow_name = $2 and hash = $3";
            session.execute(sql, &[&tenant, &flow, &code::shut(hash)]).await?
        }
        None => {
            let sql = "update definitions set turn = null where tenant = $1 and flow_name = $2";
            session.execute(sql, &[&tenant, &flow]).await?
        }
    };
    Ok(changed > 0)
}

pub(crate) async fn definition(
    session: &Session,
    tenant: &Tenant,
    hash: &str,
) -> Result<Option<StoredDefinition>, PgFault> {
    let hash = code::shut(hash);
    Ok(defined(session, tenant, "d.hash = $2", &[&tenant.as_str(), &hash]).await?.pop())
}

pub(crate) async fn latest(
    session: &Session,
    tenant: &Tenant,
    flow: &str,
) -> Result<Option<StoredDefinition>, PgFault> {
    let flow = code::shut(flow);
    let last = "d.flow_name = $2 and d.turn is not null order by d.turn desc limit 1";
    Ok(defined(session, tenant, last, &[&tenant.as_str(), &flow]).await?.pop())
}

pub(crate) async fn definitions(
    session: &Session,
    tenant: &Tenant,
) -> Result<Vec<StoredDefinition>, PgFault> {
    let all = "true order by d.flow_name collate \"C\", d.id desc";
    defined(session, tenant, all, &[&tenant.as_str()]).await
}

async fn defined(
    session: &Session,
    tenant: &Tenant,
    wheres: &str,
    given: SqlParams<'_>,
) -> Result<Vec<StoredDefinition>, PgFault> {
    let sql = format!(
        "select d.flow_name, d.hash, d.body, d.origin, d.created_at, d.turn is not null and not exists
             (select 1 from definitions n where n.tenant = d.tenant and n.flow_name = d.flow_name and n.turn > d.turn)
         from definitions d where d.tenant = $1 and {wheres}"
    );
    let mut found = Vec::new();
    for row in session.query(&sql, given).await? {
        found.push(StoredDefinition {
            tenant: tenant.clone(),
            flow: row.try_get::<_, &str>(0)?.into(),
            hash: row.try_get::<_, &str>(1)?.into(),
            body: row.try_get(2)?,
            origin: row.try_get::<_, Option<&str>>(3)?.map(code::open),
            created_at: Time::from_millis(row.try_get(4)?),
            latest: row.try_get(5)?,
        });
    }
    Ok(found)
}

pub(crate) async fn queues(session: &Session, tenant: &Tenant) -> Result<Vec<QueueRow>, PgFault> {
    let sql = "select l.queue, l.need, count(*) filter (where j.token is null and not j.held and j.due <= now_ms()),
            count(*) filter (where j.token is null and not j.held and j.due > now_ms()),
            count(*) filter (where j.token is null and j.held), count(*) filter (where j.token is not null),
            min(j.due) filter (where j.token is null and not j.held and j.due <= now_ms()),
            bool_or(p.queue is not null)
        from jobs j join lanes l on l.id = j.lane
            left join paused_queues p on p.tenant = l.tenant and p.queue = l.queue
        where l.tenant = $1 and j.key >= 0 group by l.queue, l.need";
    let mut found = Vec::new();
    for row in session.query(sql, &[&tenant.as_str()]).await? {
        let count = |at: usize| row.try_get::<_, i64>(at).map(|n| n as u64);
        found.push(QueueRow {
            queue: code::open(row.try_get(0)?).into(),
            need: code::open(row.try_get(1)?).into(),
            ready: count(2)?,
            delayed: count(3)?,
            held: count(4)?,
            leased: count(5)?,
            oldest: row.try_get::<_, Option<i64>>(6)?.map(Time::from_millis),
            paused: row.try_get(7)?,
        });
    }
    let paused = "select queue from paused_queues where tenant = $1";
    for row in session.query(paused, &[&tenant.as_str()]).await? {
        let queue = code::open(row.try_get(0)?);
        if found.iter().all(|row| *row.queue != *queue) {
            found.push(QueueRow::paused(queue.into()));
        }
    }
    found.sort_by(|a, b| (&a.queue, &a.need).cmp(&(&b.queue, &b.need)));
    Ok(found)
}

pub(crate) async fn pause_queue(
    session: &Session,
    tenant: &Tenant,
    queue: &str,
    pause: Pause,
) -> Result<(), PgFault> {
    let sql = match pause {
        Pause::Paused => "insert into paused_queues (tenant, queue) values ($1, $2) on conflict do nothing",
        Pause::Open => "delete from paused_queues where tenant = $1 and queue = $2",
    };
    session.execute(sql, &[&tenant.as_str(), &code::shut(queue)]).await.map(drop)
}

pub(crate) async fn counters(session: &Session) -> Result<Vec<Counter>, PgFault> {
    // Both in one moment: a run of a machine is in either, and what no state has is left for flows.
    let sql = "with by_state as (
            select tenant, flow_name, status, state, sum(n)::bigint as n from state_counters
            group by tenant, flow_name, status, state),
        counted as (
            select tenant, flow_name, status, null as state, n from run_counters
            union all select tenant, flow_name, status, null, -n from by_state
            union all select tenant, flow_name, status, state, n from by_state)
        select tenant, flow_name, status, sum(n)::bigint, state from counted
        group by tenant, flow_name, status, state having sum(n) > 0";
    let mut found = Vec::new();
    for row in session.query(sql, &[]).await? {
        found.push(Counter {
            tenant: code::tenant(row.try_get(0)?)?,
            flow_name: row.try_get::<_, &str>(1)?.into(),
            status: code::status(row.try_get(2)?)?,
            state: row.try_get::<_, Option<&str>>(4)?.map(Arc::from),
            count: row.try_get::<_, i64>(3)? as u64,
        });
    }
    found.sort();
    Ok(found)
}

pub(crate) async fn jobs(session: &Session, run: &RunKey) -> Result<Vec<JobRow>, PgFault> {
    let sql =
        "select j.key, j.name, j.attempt, l.queue, l.need, j.priority, j.due, j.held, j.token is not null,
            j.worker, j.leased_at, j.expires, j.lines, j.released
        from flow_runs r join jobs j on j.run = r.id join lanes l on l.id = j.lane
        where r.tenant || '/' || r.run_id = $1::text || '/' || $2::text";
    let mut found = Vec::new();
    for row in session.query(sql, &[&run.tenant.as_str(), &run.run.as_str()]).await? {
        let time = |at: usize| row.try_get::<_, Option<i64>>(at).map(|ms| ms.map(Time::from_millis));
        found.push(JobRow {
            key: JobKey::from_number(row.try_get(0)?),
            name: code::open(row.try_get(1)?).into(),
            attempt: row.try_get::<_, i32>(2)? as u32,
            queue: code::open(row.try_get(3)?).into(),
            need: code::open(row.try_get(4)?).into(),
            priority: code::priority(row.try_get(5)?)?,
            due: Time::from_millis(row.try_get(6)?),
            state: match (row.try_get(8)?, row.try_get(7)?) {
                (true, _) => JobState::Leased,
                (false, true) => JobState::Held,
                (false, false) => JobState::Waiting,
            },
            worker: row.try_get::<_, Option<&str>>(9)?.map(|worker| code::open(worker).into()),
            leased_at: time(10)?,
            expires: time(11)?,
            lines: row.try_get::<_, i32>(12)? as u32,
            released: row.try_get(13)?,
        });
    }
    found.sort_by_key(|job: &JobRow| job.key);
    Ok(found)
}

pub(crate) async fn acquire_lock(session: &Session, request: &LockRequest) -> Result<Acquired, PgFault> {
    // Whoever finds it held writes nothing. Taken where it is free, kept by who has it: the one statement that writes
    // decides. What it does not write went to another in the meantime.
    let look = "select owner, until from locks
        where tenant = $1 and name = $2 and token <> $3 and until > now_ms()";
    let take = "with grant_at as (
            insert into cells as c values ('last_lock', now_ms())
            on conflict (name) do update set value = greatest(excluded.value, c.value + 1) returning value)
        insert into locks as l (tenant, name, owner, token, since, until)
        select $1, $2, $3, $4, value, now_ms() + $5 from grant_at
        on conflict (tenant, name) do update set owner = excluded.owner, token = excluded.token,
            since = case when l.until > now_ms() then l.since else excluded.since end, until = excluded.until
        where l.until <= now_ms() or l.token = excluded.token returning since, until";
    let (tenant, name) = (request.tenant.as_str(), code::shut(&request.name));
    let (owner, token) = (code::shut(&request.owner), code::token_bytes(request.token));
    let ttl = i64::try_from(request.ttl.as_millis()).unwrap_or(i64::MAX / 4);
    loop {
        if let Some(row) = session.query_opt(look, &[&tenant, &name, &token]).await? {
            let until = Time::from_millis(row.try_get(1)?);
            return Ok(Acquired::Held { owner: code::open(row.try_get(0)?), until });
        }
        let given: SqlParams<'_> = &[&tenant, &name, &owner, &token, &ttl];
        if let Some(row) = session.query_opt(take, given).await? {
            let time = |column| row.try_get(column).map(Time::from_millis);
            return Ok(Acquired::Granted { since: time(0)?, until: time(1)? });
        }
    }
}

pub(crate) async fn renew_lock(
    session: &Session,
    lock: &LockProof,
    renewal: Renewal,
) -> Result<Option<Time>, PgFault> {
    let (tenant, name, token) = (lock.tenant.as_str(), code::shut(&lock.name), code::token_bytes(lock.token));
    let row = match renewal {
        Renewal::Extend(ttl) => {
            let sql = "update locks set until = now_ms() + $4
                where tenant = $1 and name = $2 and token = $3 and until > now_ms() returning until";
            let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 4);
            session.query_opt(sql, &[&tenant, &name, &token, &ttl]).await?
        }
        Renewal::Release => {
            let sql = "delete from locks where tenant = $1 and name = $2 and token = $3 and until > now_ms()
                returning now_ms()";
            session.query_opt(sql, &[&tenant, &name, &token]).await?
        }
    };
    Ok(row.map(|row| row.try_get(0)).transpose()?.map(Time::from_millis))
}

pub(crate) async fn locks(session: &Session, tenant: &Tenant) -> Result<Vec<LockRow>, PgFault> {
    let sql = "select name, owner, since, until from locks where tenant = $1 and until > now_ms()";
    let mut found = Vec::new();
    for row in session.query(sql, &[&tenant.as_str()]).await? {
        found.push(LockRow {
            name: code::open(row.try_get(0)?),
            owner: code::open(row.try_get(1)?),
            since: Time::from_millis(row.try_get(2)?),
            until: Time::from_millis(row.try_get(3)?),
        });
    }
    found.sort_by(|a: &LockRow, b| a.name.cmp(&b.name));
    Ok(found)
}

pub(crate) async fn check(session: &Session, target: &ServerTarget) -> Result<Health, PgFault> {
    let sql = "select current_setting('server_version'), current_setting('fsync') = 'on',
            current_setting('synchronous_commit'), current_setting('full_page_writes') = 'on',
            (select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
                where c.relnamespace = to_regnamespace(current_schema()) and c.relkind = 'r')";
    let row = session.query_one(sql, &[]).await?;
    let (fsync, synchronous): (bool, &str) = (row.try_get(1)?, row.try_get(2)?);
    let mut problems = Vec::new();
    if !fsync {
        problems.push(
            "fsync is off: a crash of the server's machine can destroy the database; turn it on".to_owned(),
        );
    }
    if !row.try_get::<_, bool>(3)? {
        problems.push("full_page_writes is off: a crash can tear pages; turn it on".to_owned());
    }
    let durability = match synchronous {
        _ if !fsync => {
            "an acknowledged commit survives only a crash of the server process (fsync=off)".to_owned()
        }
        "off" => {
            "a crash of the server may lose the last commits, but never part of one (synchronous_commit=off)"
                .to_owned()
        }
        word => format!(
            "an acknowledged commit survives a crash of the server's machine (synchronous_commit={word})"
        ),
    };
    let format = schema::format(session, target).await?;
    Ok(Health {
        kind: "postgres",
        version: row.try_get(0)?,
        format: format.unwrap_or(0),
        bytes: Some(row.try_get::<_, i64>(4)? as u64),
        durability,
        unwritable: grants::lacking(session, target, format).await?,
        problems,
    })
}
