//! Who works on what: claim, renew, sweep. Each is a short statement; none locks a run.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use flowline_core::{RunKey, Tenant, Time};
use flowline_store::rotate::{self, FreeSlots};
use flowline_store::{
    Claim, Claimed, DueTimer, ExpiredLease, Extend, Extended, Gone, JobKey, Lane, LeasedJob, Renewal, Swept,
    Token,
};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::code;
use crate::fault::PgFault;
use crate::floor::{FloorKey, Floors};
use crate::session::Session;

/// How often a claim asks again when others took what it had seen.
const ROUNDS: usize = 4;

/// The lane that the last claim of this instance served last: the next one begins after it.
#[derive(Debug, Default)]
pub(crate) struct Rotation(Mutex<Option<(Tenant, Lane)>>);

/// A lane that a claim serves, and how many of its jobs are due.
struct Served {
    id: i32,
    name: (Tenant, Lane),
    ready: usize,
}

impl Rotation {
    /// Leases due jobs, one of each lane in turn.
    pub(crate) async fn claim(
        &self,
        session: &Session,
        floors: &Floors,
        claim: &Claim,
    ) -> Result<Claimed, PgFault> {
        let mut jobs: Vec<LeasedJob> = Vec::new();
        let (mut now, mut next_due) = (Time::default(), None);
        for round in 0..ROUNDS {
            let left = &claim.tokens[jobs.len()..];
            let seen = served(session, floors, claim, left.len()).await?;
            if round == 0 {
                next_due = seen.next_due;
            }
            now = seen.now;
            let turns = self.turns(seen.lanes, claim, &jobs, left.len());
            let wanted = turns.len();
            if wanted == 0 {
                break;
            }
            let got = lease(session, &seen.from, claim, &turns, left, now).await?;
            let short = got.len() < wanted;
            jobs.extend(got);
            if !short {
                break;
            }
        }
        Ok(Claimed { jobs, next_due, now })
    }

    /// Whose turn it is, job by job.
    fn turns(&self, mut lanes: Vec<Served>, claim: &Claim, got: &[LeasedJob], left: usize) -> Vec<Turn> {
        lanes.sort_by(|a, b| a.name.cmp(&b.name));
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rotate::begin_after(&mut lanes, last.as_ref(), |lane| &lane.name);
        let mut free = FreeSlots::new(claim);
        for job in got {
            let slots = free.of(&job.lane.queue);
            *slots = slots.saturating_sub(1);
        }
        let mut turns = Vec::new();
        let take = |lane: &mut Served| {
            if lane.ready == 0 {
                return Ok::<_, Infallible>(false);
            }
            lane.ready -= 1;
            *last = Some(lane.name.clone());
            turns.push(Turn { lane: lane.id, name: lane.name.1.clone() });
            Ok(true)
        };
        let Ok(()) = free.deal(lanes, left, |lane| &lane.name.1.queue, take);
        turns
    }
}

struct Turn {
    lane: i32,
    name: Lane,
}

struct Seen {
    lanes: Vec<Served>,
    next_due: Option<Time>,
    now: Time,
    /// From where on it was looked.
    from: Ready,
}

/// The floors of ready jobs, a column each.
#[derive(Debug, Default)]
struct Ready {
    lanes: Vec<i32>,
    priorities: Vec<i16>,
    dues: Vec<i64>,
}

impl Ready {
    fn of(floors: &HashMap<FloorKey, i64>) -> Ready {
        let mut ready = Ready::default();
        for (place, due) in floors {
            if let FloorKey::Ready { lane, priority } = *place {
                ready.lanes.push(lane);
                ready.priorities.push(priority);
                ready.dues.push(*due);
            }
        }
        ready
    }
}

/// Counts, up to the limit, what is due in every lane that the claim serves, each priority by itself: however many jobs
/// are delayed, none of them is looked at. A floor that lies above the present is one of before a clock was set back.
const SERVED: &str = "
    select l.id, l.tenant, l.queue, l.need, m.ms, m.rewinds, l.priority, l.n, l.first, l.ahead
    from (select now_ms() as ms, case when is_called then last_value else 0 end as rewinds from job_rewinds) m left join (
        select l.*, p.priority, due.n, due.first, ahead.due as ahead
        from lanes l cross join unnest('{0, 1, 2, 3}'::smallint[]) p(priority)
            left join unnest($4::int[], $5::smallint[], $6::bigint[]) f(lane, priority, due)
                on f.lane = l.id and f.priority = p.priority
            cross join lateral (select count(*) as n, min(d.due) as first from (
                select j.due from jobs j where j.lane = l.id and j.priority = p.priority
                    and j.due >= case when f.due <= now_ms() then f.due else '-9223372036854775808'::bigint end
                    and j.due <= now_ms() and j.token is null and not j.held and j.key >= 0
                order by j.due limit $3) d) due
            left join lateral (select j.due from jobs j where j.lane = l.id and j.priority = p.priority
                and j.due > now_ms() and j.token is null and not j.held and j.key >= 0
                order by j.due limit 1) ahead on true) l
        on l.need = any($1) and ($2::text is null or l.tenant = $2)
        and not exists (select 1 from paused_queues p where p.tenant = l.tenant and p.queue = l.queue)";

async fn served(session: &Session, floors: &Floors, claim: &Claim, limit: usize) -> Result<Seen, PgFault> {
    let needs: Vec<_> = claim.needs.iter().map(|need| code::shut(need)).collect();
    let tenant = claim.tenant.as_ref().map(Tenant::as_str);
    let limit = limit.max(1) as i64;
    let (from, rows) = loop {
        let look = floors.begin();
        let from = Ready::of(&look.floors);
        let given: [&(dyn ToSql + Sync); 6] =
            [&needs, &tenant, &limit, &from.lanes, &from.priorities, &from.dues];
        let rows = session.query(SERVED, &given).await?;
        let rewinds = rows.first().map_or(Ok(0), |row| row.try_get(5))?;
        if !floors.missed(&look, rewinds) {
            break (from, rows);
        }
    };
    let mut seen = Seen { lanes: Vec::new(), next_due: None, now: Time::default(), from };
    for row in rows {
        seen.now = Time::from_millis(row.try_get(4)?);
        let Some(id) = row.try_get::<_, Option<i32>>(0)? else { continue };
        let priority = row.try_get(6)?;
        floors.raise(FloorKey::Ready { lane: id, priority }, row.try_get(8)?, seen.now);
        let lane =
            Lane { queue: code::open(row.try_get(2)?).into(), need: code::open(row.try_get(3)?).into() };
        if claim.free_in(&lane.queue) == 0 {
            continue;
        }
        let due = row.try_get::<_, Option<i64>>(9)?.map(Time::from_millis);
        seen.next_due = seen.next_due.into_iter().chain(due).min();
        let ready = row.try_get::<_, i64>(7)? as usize;
        match seen.lanes.iter_mut().find(|known| known.id == id) {
            Some(known) => known.ready += ready,
            None => seen.lanes.push(Served { id, name: (code::tenant(row.try_get(1)?)?, lane), ready }),
        }
    }
    Ok(seen)
}

/// Takes the first jobs of each lane that nobody else is taking, the most urgent first.
const LEASE: &str = "
    with picked as materialized (
        select u.at, x.* from unnest($1::int[], $2::int[]) with ordinality u(lane, take, at) cross join lateral (
            select j.* from unnest('{3, 2, 1, 0}'::smallint[]) p(priority)
                left join unnest($7::int[], $8::smallint[], $9::bigint[]) f(lane, priority, due)
                    on f.lane = u.lane and f.priority = p.priority
                cross join lateral (
                select j.run, j.key, j.priority, j.due, j.n from jobs j
                where j.lane = u.lane and j.priority = p.priority
                    and j.due >= case when f.due <= $3 then f.due else '-9223372036854775808'::bigint end and j.due <= $3
                    and j.token is null and not j.held and j.key >= 0
                order by j.due, j.n limit u.take for update skip locked) j
            limit u.take) x),
    numbered as (select *, row_number() over (order by at, priority desc, due, n) as k from picked)
    update jobs j set token = ($4::bytea[])[p.k::int], worker = $5, leased_at = $3, expires = $6, lines = 0,
        released = false
    from numbered p join flow_runs r on r.id = p.run
    where j.run = p.run and j.key = p.key and j.token is null
    returning p.k, r.tenant, r.run_id, j.key, j.name, j.attempt, j.lane, j.token, j.due";

async fn lease(
    session: &Session,
    from: &Ready,
    claim: &Claim,
    turns: &[Turn],
    tokens: &[Token],
    now: Time,
) -> Result<Vec<LeasedJob>, PgFault> {
    let mut takes: BTreeMap<i32, i32> = BTreeMap::new();
    let mut names: HashMap<i32, Lane> = HashMap::new();
    for turn in turns {
        *takes.entry(turn.lane).or_default() += 1;
        names.insert(turn.lane, turn.name.clone());
    }
    let (lanes, takes): (Vec<i32>, Vec<i32>) = takes.into_iter().unzip();
    let bytes: Vec<Vec<u8>> = tokens.iter().copied().map(code::token_bytes).collect();
    let expires = now + claim.ttl;
    let worker = code::shut(&claim.worker);
    let (now, until) = (now.millis(), expires.millis());
    let given: [&(dyn ToSql + Sync); 9] =
        [&lanes, &takes, &now, &bytes, &worker, &until, &from.lanes, &from.priorities, &from.dues];
    let rows = session.query(LEASE, &given).await?;
    let mut found: Vec<(i64, LeasedJob)> = Vec::with_capacity(rows.len());
    for row in &rows {
        let lane: i32 = row.try_get(6)?;
        let job = LeasedJob {
            run: run_key(row, 1)?,
            key: JobKey::from_number(row.try_get(3)?),
            name: code::open(row.try_get(4)?).into(),
            attempt: row.try_get::<_, i32>(5)? as u32,
            lane: names
                .get(&lane)
                .cloned()
                .ok_or_else(|| PgFault::damaged("a lane that wasn't requested"))?,
            due: Time::from_millis(row.try_get(8)?),
            token: code::token(row.try_get(7)?)?,
            expires,
        };
        found.push((row.try_get(0)?, job));
    }
    found.sort_by_key(|(at, _)| *at);
    Ok(found.into_iter().map(|(_, job)| job).collect())
}

pub(crate) fn run_key(row: &Row, at: usize) -> Result<RunKey, PgFault> {
    Ok(RunKey::new(code::tenant(row.try_get(at)?)?, code::run_id(row.try_get(at + 1)?)?))
}

/// Locks the leases of $1 to $4 that are held, in one order for everyone.
macro_rules! renew_sql {
    ($set:literal) => {
        concat!(
            "with held as materialized (
                select u.at, j.run, j.key from unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[])
                        with ordinality u(tenant, run_id, key, token, at)
                    join flow_runs r on r.tenant || '/' || r.run_id = u.tenant || '/' || u.run_id
                    join jobs j on j.run = r.id and j.key = u.key and j.token = u.token and not j.released
                order by j.run, j.key for update of j)
            update jobs j set ",
            $set,
            " from held h where j.run = h.run and j.key = h.key returning h.at"
        )
    };
}

/// Which of these runs have ended.
const ENDED: &str = "
    select u.at from unnest($1::text[], $2::text[]) with ordinality u(tenant, run_id, at)
        join flow_runs r on r.tenant || '/' || r.run_id = u.tenant || '/' || u.run_id
    where r.status in ('completed', 'failed', 'cancelled')";

pub(crate) async fn renew(
    session: &Session,
    leases: &[Extend],
    renewal: Renewal,
) -> Result<Vec<Extended>, PgFault> {
    let Columns { tenants, runs, keys, tokens } = Columns::of(leases);
    let mut answers = vec![Extended::Gone(Gone::Lost); leases.len()];
    let held = match renewal {
        Renewal::Extend(ttl) => {
            let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 4);
            let extend = renew_sql!("expires = now_ms() + $5");
            session.query(extend, &[&tenants, &runs, &keys, &tokens, &ttl]).await?
        }
        Renewal::Release => {
            let release = renew_sql!("released = true, expires = least(j.expires, now_ms())");
            session.query(release, &[&tenants, &runs, &keys, &tokens]).await?
        }
    };
    for row in &held {
        answers[row.try_get::<_, i64>(0)? as usize - 1] = Extended::Held;
    }
    if held.len() < leases.len() {
        // A row is updated once, however often it's named.
        for at in 0..leases.len() {
            let mut alike = leases.iter().zip(&answers).filter(|(lease, _)| **lease == leases[at]);
            if alike.any(|(_, answer)| *answer == Extended::Held) {
                answers[at] = Extended::Held;
            }
        }
        for row in session.query(ENDED, &[&tenants, &runs]).await? {
            let answer = &mut answers[row.try_get::<_, i64>(0)? as usize - 1];
            if *answer != Extended::Held {
                *answer = Extended::Gone(Gone::RunEnded);
            }
        }
    }
    Ok(answers)
}

struct Columns<'a> {
    tenants: Vec<&'a str>,
    runs: Vec<&'a str>,
    keys: Vec<i64>,
    tokens: Vec<Vec<u8>>,
}

impl<'a> Columns<'a> {
    fn of(leases: &'a [Extend]) -> Columns<'a> {
        Columns {
            tenants: leases.iter().map(|lease| lease.run.tenant.as_str()).collect(),
            runs: leases.iter().map(|lease| lease.run.run.as_str()).collect(),
            keys: leases.iter().map(|lease| lease.key.number()).collect(),
            tokens: leases.iter().map(|lease| code::token_bytes(lease.token)).collect(),
        }
    }
}

const NEXT: &str = "
    select now_ms(),
        (select due from jobs where token is null and not held and key < 0 and due > now_ms() order by due limit 1),
        (select expires from jobs where token is not null and expires > now_ms() order by expires limit 1),
        case when is_called then last_value else 0 end from job_rewinds";

const EXPIRED: &str = "
    select r.tenant, r.run_id, j.key, j.name, j.attempt, j.token, j.worker, j.lines, j.released, j.expires
    from jobs j join flow_runs r on r.id = j.run
    where j.token is not null and j.expires >= $3 and j.expires <= $1 order by j.expires, j.n limit $2";

const TIMERS: &str = "
    select r.tenant, r.run_id, j.key, j.attempt, j.due from jobs j join flow_runs r on r.id = j.run
    where j.token is null and not j.held and j.key < 0 and j.due >= $3 and j.due <= $1
    order by j.due, j.n limit $2";

pub(crate) async fn sweep(session: &Session, floors: &Floors, limit: usize) -> Result<Swept, PgFault> {
    let row = session.query_one(NEXT, &[]).await?;
    let now = Time::from_millis(row.try_get(0)?);
    let ahead = |at| Ok::<_, PgFault>(row.try_get::<_, Option<i64>>(at)?.map(Time::from_millis));
    let mut swept = Swept { now, next_timer: ahead(1)?, next_lease: ahead(2)?, ..Swept::default() };
    // Announcements of before are heeded here; those that come now, by the next sweep.
    floors.missed(&floors.begin(), row.try_get(3)?);
    let known = floors.begin().floors;
    let from = |place| known.get(&place).copied().filter(|floor| *floor <= now.millis()).unwrap_or(i64::MIN);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    // Who asks for nothing finds nothing, which says nothing.
    let raise = |place, first| {
        if limit > 0 {
            floors.raise(place, first, now)
        }
    };
    let given: [&(dyn ToSql + Sync); 3] = [&now.millis(), &limit, &from(FloorKey::Leases)];
    let mut first = None;
    for row in session.query(EXPIRED, &given).await? {
        first = first.or(Some(row.try_get(9)?));
        swept.expired.push(ExpiredLease {
            run: run_key(&row, 0)?,
            key: JobKey::from_number(row.try_get(2)?),
            name: code::open(row.try_get(3)?).into(),
            attempt: row.try_get::<_, i32>(4)? as u32,
            token: code::token(row.try_get(5)?)?,
            worker: code::open(row.try_get::<_, Option<&str>>(6)?.unwrap_or_default()).into(),
            lines: row.try_get::<_, i32>(7)? as u32,
            released: row.try_get(8)?,
        });
    }
    raise(FloorKey::Leases, first);
    let given: [&(dyn ToSql + Sync); 3] = [&now.millis(), &limit, &from(FloorKey::Timers)];
    for row in session.query(TIMERS, &given).await? {
        swept.timers.push(DueTimer {
            run: run_key(&row, 0)?,
            key: JobKey::from_number(row.try_get(2)?),
            attempt: row.try_get::<_, i32>(3)? as u32,
            due: Time::from_millis(row.try_get(4)?),
        });
    }
    raise(FloorKey::Timers, swept.timers.first().map(|timer| timer.due.millis()));
    Ok(swept)
}
