//! Finds runs that have made no progress for a while, and the reason, as far as their jobs show it.
//!
//! No store indexes the date of a run's last event, so runs are checked one by one: those that are running or waiting
//! and were created long enough ago, newest first, at most [`LOOKED_AT`] per status and tenant. A run that's paused, or
//! waits on purpose (for an external event or a delay), isn't stuck.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flowline_core::{Status, Tenant, Time};
use flowline_store::query::WantTotal;
use flowline_store::{EventQuery, JobKey, JobRow, JobState, RunQuery, RunRow, Store, StoreError};

/// Runs of one status and tenant that are looked at: each costs two small questions to the store.
pub const LOOKED_AT: usize = 200;

/// Why a run isn't progressing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A step is running and its lease is extended: it's slow, or its code hangs.
    Working,
    /// A job is due and nobody claims it: no worker serves its queue, or all are busy.
    Unclaimed,
    /// A job is due in a queue that is paused.
    QueuePaused,
    /// A lease expired and nobody has noticed: no engine works on this store.
    LeaseExpired,
    /// It should have a job but has none: `flowline reconcile --repair` fixes that.
    NoJob,
}

impl Reason {
    pub const ALL: [Reason; 5] =
        [Reason::Working, Reason::Unclaimed, Reason::QueuePaused, Reason::LeaseExpired, Reason::NoJob];

    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Working => "working",
            Reason::Unclaimed => "unclaimed",
            Reason::QueuePaused => "queue_paused",
            Reason::LeaseExpired => "lease_expired",
            Reason::NoJob => "no_job",
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stuck {
    pub runs: BTreeMap<Reason, u64>,
    /// Whether there were more than were looked at: then the numbers are lower bounds.
    pub capped: bool,
}

/// Looks for runs of these tenants that have made no progress for `after`.
pub async fn stuck(store: &dyn Store, tenants: &[Tenant], after: Duration) -> Result<Stuck, StoreError> {
    let mut found = Stuck::default();
    let now = store.now().await?;
    for tenant in tenants {
        let queues = store.queues(tenant).await?;
        let paused = queues.into_iter().filter(|row| row.paused).map(|row| row.queue).collect();
        for status in [Status::Running, Status::Waiting] {
            let query = RunQuery {
                status: Some(status),
                until: Some(now.before(after)),
                limit: LOOKED_AT,
                total: WantTotal::No,
                ..RunQuery::of(tenant.clone())
            };
            let page = store.runs(query).await?;
            found.capped |= page.next.is_some();
            for row in &page.items {
                if let Some(reason) = look(store, row, &paused, now, after).await? {
                    *found.runs.entry(reason).or_default() += 1;
                }
            }
        }
    }
    Ok(found)
}

async fn look(
    store: &dyn Store,
    row: &RunRow,
    paused: &BTreeSet<Arc<str>>,
    now: Time,
    after: Duration,
) -> Result<Option<Reason>, StoreError> {
    let last = EventQuery { after: row.events.saturating_sub(1), limit: 1, ..EventQuery::default() };
    let last = store.events(&row.key(), last).await?.events.pop().map_or(row.created_at, |event| event.ts);
    if now.since(last) < after {
        return Ok(None);
    }
    let mut jobs = store.jobs(&row.key()).await?;
    jobs.retain(|job| matches!(job.key, JobKey::Step(_)));
    Ok(reason(row.status, &jobs, paused, now, after))
}

/// Why a run with these jobs has stopped; `None` if it hasn't, or waits on purpose.
fn reason(
    status: Status,
    jobs: &[JobRow],
    paused: &BTreeSet<Arc<str>>,
    now: Time,
    after: Duration,
) -> Option<Reason> {
    let of = |job: &JobRow| match job.state {
        JobState::Leased if job.expires.is_some_and(|expires| expires <= now) => Some(Reason::LeaseExpired),
        JobState::Leased => Some(Reason::Working),
        JobState::Waiting if now.since(job.due) < after => None,
        JobState::Waiting if paused.contains(&job.queue) => Some(Reason::QueuePaused),
        JobState::Waiting => Some(Reason::Unclaimed),
        JobState::Held => None,
    };
    match jobs {
        [] => (status == Status::Running).then_some(Reason::NoJob),
        // One step at work is why the others wait; otherwise what stops the first is told.
        jobs => jobs.iter().filter_map(of).min(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline_core::definition::Priority;

    const AFTER: Duration = Duration::from_secs(900);
    const NOW: Time = Time::from_millis(10_000_000);

    fn job(state: JobState, due_ago: u64, expires_in: Option<i64>) -> JobRow {
        JobRow {
            key: JobKey::Step(0),
            name: "a".into(),
            attempt: 1,
            queue: "q".into(),
            need: "command".into(),
            priority: Priority::Normal,
            due: NOW.before(Duration::from_secs(due_ago)),
            state,
            worker: None,
            leased_at: None,
            expires: expires_in.map(|by| Time::from_millis(NOW.millis() + by)),
            lines: 0,
            released: false,
        }
    }

    fn told(status: Status, jobs: &[JobRow], paused: &[&str]) -> Option<Reason> {
        reason(status, jobs, &paused.iter().map(|name| Arc::from(*name)).collect(), NOW, AFTER)
    }

    #[test]
    fn jobs_tell_why_a_run_is_stuck() {
        let ready = job(JobState::Waiting, 1_000, None);
        assert_eq!(told(Status::Running, std::slice::from_ref(&ready), &[]), Some(Reason::Unclaimed));
        assert_eq!(told(Status::Running, std::slice::from_ref(&ready), &["q"]), Some(Reason::QueuePaused));
        let dead = job(JobState::Leased, 1_000, Some(-1));
        assert_eq!(told(Status::Running, &[dead], &[]), Some(Reason::LeaseExpired));
        let at_work = job(JobState::Leased, 1_000, Some(1));
        assert_eq!(told(Status::Running, &[ready, at_work], &[]), Some(Reason::Working));
        assert_eq!(told(Status::Running, &[], &[]), Some(Reason::NoJob));
    }

    #[test]
    fn a_run_that_waits_on_purpose_is_not_stuck() {
        assert_eq!(told(Status::Waiting, &[], &[]), None);
        assert_eq!(told(Status::Waiting, &[job(JobState::Waiting, 10, None)], &[]), None);
        assert_eq!(
            told(Status::Waiting, &[job(JobState::Waiting, 1_000, None)], &[]),
            Some(Reason::Unclaimed)
        );
    }
}
