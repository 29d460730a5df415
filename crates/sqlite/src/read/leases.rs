//! Jobs and leases as sweeps and operators see them.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::{RunKey, Tenant, Time};
use flowline_store::{DueTimer, ExpiredLease, JobKey, JobRow, JobState, Lane, QueueRow, Swept};
use rusqlite::params;

use super::Reader;
use super::rows::run_key;
use crate::code;
use crate::fault::Fault;

impl Reader<'_> {
    /// Leases are few (what is running now), so they are looked through; timers are found by index.
    pub(crate) fn sweep(&self, now: Time, limit: usize) -> Result<Swept, Fault> {
        let next = "select (select min(due) from jobs indexed by jobs_timers where held = 0 and key < 0 and due > ?1),
            (select min(expires) from leases where expires > ?1)";
        let next = self.conn.prepare_cached(next)?.query_row([now.millis()], |row| {
            Ok([row.get::<_, Option<i64>>(0)?, row.get(1)?].map(|at| at.map(Time::from_millis)))
        })?;
        Ok(Swept {
            expired: self.expired(now, limit)?,
            timers: self.due_timers(now, limit)?,
            now,
            next_timer: next[0],
            next_lease: next[1],
        })
    }

    fn expired(&self, now: Time, limit: usize) -> Result<Vec<ExpiredLease>, Fault> {
        let mut statement = self.conn.prepare_cached(
            "select t.name, r.run_id, x.key, x.name, x.attempt, x.token, x.worker, x.lines, x.released
             from (select * from leases where expires <= ?1 order by expires, n limit ?2) x
             cross join runs r on r.id = x.run cross join tenants t on t.id = r.tenant order by x.expires, x.n",
        )?;
        let mut rows = statement.query(params![now.millis(), sql_limit(limit)])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(ExpiredLease {
                run: run_key(row, 0)?,
                key: JobKey::from_number(row.get(2)?),
                name: row.get(3)?,
                attempt: row.get(4)?,
                token: code::token(row.get(5)?),
                worker: row.get(6)?,
                lines: row.get(7)?,
                released: row.get(8)?,
            });
        }
        Ok(found)
    }

    fn due_timers(&self, now: Time, limit: usize) -> Result<Vec<DueTimer>, Fault> {
        let mut statement = self.conn.prepare_cached(
            "select t.name, r.run_id, x.key, x.attempt, x.due
             from (select run, key, attempt, due, n from jobs indexed by jobs_timers
                 where held = 0 and key < 0 and due <= ?1 order by due, n limit ?2) x
             cross join runs r on r.id = x.run cross join tenants t on t.id = r.tenant order by x.due, x.n",
        )?;
        let mut rows = statement.query(params![now.millis(), sql_limit(limit)])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let key = JobKey::from_number(row.get(2)?);
            let due = Time::from_millis(row.get(4)?);
            found.push(DueTimer { run: run_key(row, 0)?, key, attempt: row.get(3)?, due });
        }
        Ok(found)
    }

    /// By key: steps by index, then timers by number.
    pub(crate) fn jobs(&self, run: &RunKey) -> Result<Vec<JobRow>, Fault> {
        let Some(id) = self.run(run)? else { return Ok(Vec::new()) };
        let mut statement = self.conn.prepare_cached(
            "select x.key, x.name, x.attempt, l.queue, l.need, x.priority, x.due, x.held, x.worker, x.leased_at,
                x.expires, x.lines, x.released
             from (select key, name, attempt, lane, priority, due, held, null as worker, null as leased_at,
                     null as expires, 0 as lines, 0 as released from jobs where run = ?1
                 union all select key, name, attempt, lane, priority, due, 2, worker, leased_at, expires, lines, released
                     from leases where run = ?1) x
             join lanes l on l.id = x.lane",
        )?;
        let mut rows = statement.query([id])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            found.push(JobRow {
                key: JobKey::from_number(row.get(0)?),
                name: row.get(1)?,
                attempt: row.get(2)?,
                queue: row.get(3)?,
                need: row.get(4)?,
                priority: code::priority(row.get(5)?)?,
                due: Time::from_millis(row.get(6)?),
                state: match row.get::<_, i64>(7)? {
                    0 => JobState::Waiting,
                    1 => JobState::Held,
                    _ => JobState::Leased,
                },
                worker: row.get(8)?,
                leased_at: row.get::<_, Option<i64>>(9)?.map(Time::from_millis),
                expires: row.get::<_, Option<i64>>(10)?.map(Time::from_millis),
                lines: row.get(11)?,
                released: row.get(12)?,
            });
        }
        found.sort_by_key(|job| job.key);
        Ok(found)
    }

    /// Lanes that hold a job, timers left out.
    pub(crate) fn queues(&self, tenant: &Tenant, now: Time) -> Result<Vec<QueueRow>, Fault> {
        let Some(id) = self.tenant(tenant)? else { return Ok(Vec::new()) };
        let mut statement = self.conn.prepare_cached(
            "select l.queue, l.need, x.ready, x.delayed, x.held, x.leased, x.oldest,
                exists (select 1 from paused_queues q where q.tenant = l.tenant and q.queue = l.queue)
             from (select lane, sum(ready) as ready, sum(delayed) as delayed, sum(held) as held,
                     sum(leased) as leased, min(oldest) as oldest
                 from (select lane, held = 0 and due <= ?2 as ready, held = 0 and due > ?2 as delayed, held,
                         0 as leased, iif(held = 0 and due <= ?2, due, null) as oldest from jobs where key >= 0
                     union all select lane, 0, 0, 0, 1, null from leases)
                 group by lane) x
             join lanes l on l.id = x.lane where l.tenant = ?1",
        )?;
        let mut rows = statement.query(params![id, now.millis()])?;
        let mut found = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let lane = Lane { queue: row.get(0)?, need: row.get(1)? };
            let depths = QueueRow {
                queue: lane.queue.clone(),
                need: lane.need.clone(),
                ready: row.get::<_, i64>(2)? as u64,
                delayed: row.get::<_, i64>(3)? as u64,
                held: row.get::<_, i64>(4)? as u64,
                leased: row.get::<_, i64>(5)? as u64,
                oldest: row.get::<_, Option<i64>>(6)?.map(Time::from_millis),
                paused: row.get(7)?,
            };
            found.insert(lane, depths);
        }
        let mut statement = self.conn.prepare_cached("select queue from paused_queues where tenant = ?1")?;
        for queue in statement.query_map([id], |row| row.get::<_, Arc<str>>(0))? {
            let queue = queue?;
            if found.keys().all(|lane: &Lane| lane.queue != queue) {
                found.insert(Lane { queue: queue.clone(), need: "".into() }, QueueRow::paused(queue));
            }
        }
        Ok(found.into_values().collect())
    }
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
