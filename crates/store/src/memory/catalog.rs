//! Definitions, key-value state, queues, and what operators ask for.

use std::ops::Bound;
use std::sync::Arc;

use flowline_core::{RunKey, Tenant, Time};

use super::rows::{LaneJobs, Memory};
use crate::job::{JobKey, JobRow, JobState};
use crate::row::{Counter, CounterKey, Health, Pause, QueueRow, StoredDefinition};
use crate::rule::StoredJob;

impl Memory {
    pub fn put_definition(&mut self, now: Time, definition: StoredDefinition) -> bool {
        let key = (definition.tenant.clone(), definition.hash.clone());
        if let Some((_, known)) = self.definitions.get_mut(&key) {
            known.origin = definition.origin;
            return false;
        }
        let of_flow = self.definitions.values_mut().map(|(_, known)| known);
        for known in
            of_flow.filter(|known| known.tenant == definition.tenant && known.flow == definition.flow)
        {
            known.latest = false;
        }
        self.last_definition += 1;
        let stored = StoredDefinition { created_at: now, latest: true, ..definition };
        self.definitions.insert(key, (self.last_definition, stored));
        true
    }

    pub fn set_latest(&mut self, tenant: &Tenant, flow: &str, hash: Option<&str>) -> bool {
        let all = self.definitions.values_mut().map(|(_, known)| known);
        let mut of_flow: Vec<_> =
            all.filter(|known| known.tenant == *tenant && &*known.flow == flow).collect();
        let found = of_flow.iter().any(|known| hash.is_none_or(|hash| &*known.hash == hash));
        if found {
            of_flow.iter_mut().for_each(|known| known.latest = Some(&*known.hash) == hash);
        }
        found
    }

    pub fn definition(&self, tenant: &Tenant, hash: &str) -> Option<StoredDefinition> {
        self.definitions.get(&(tenant.clone(), hash.into())).map(|(_, definition)| definition.clone())
    }

    pub fn definitions(&self, tenant: &Tenant) -> Vec<StoredDefinition> {
        let mut found: Vec<_> =
            self.definitions.values().filter(|(_, known)| known.tenant == *tenant).collect();
        found.sort_by(|(a, x), (b, y)| x.flow.cmp(&y.flow).then(b.cmp(a)));
        found.into_iter().map(|(_, definition)| definition.clone()).collect()
    }

    /// Lanes that hold a job, timers left out, and paused queues.
    pub fn queues(&self, now: Time, tenant: &Tenant) -> Vec<QueueRow> {
        let lanes = self.lanes.iter().filter(|(key, _)| key.tenant == *tenant);
        let row = |queue: &Arc<str>, need: &Arc<str>, jobs: &LaneJobs| {
            let due = (Bound::Unbounded, Bound::Included((now, u64::MAX)));
            let ready: u64 = jobs.waiting.iter().map(|waiting| waiting.range(due).count() as u64).sum();
            let waiting: u64 = jobs.waiting.iter().map(|waiting| waiting.len() as u64).sum();
            let firsts = jobs.waiting.iter().filter_map(|waiting| waiting.keys().next());
            QueueRow {
                queue: queue.clone(),
                need: need.clone(),
                ready,
                delayed: waiting - ready,
                held: jobs.held,
                leased: jobs.leased,
                oldest: firsts.map(|(due, _)| *due).min().filter(|due| *due <= now),
                paused: self.paused.contains(&(tenant.clone(), queue.clone())),
            }
        };
        let mut rows: Vec<QueueRow> =
            lanes.map(|(key, jobs)| row(&key.lane.queue, &key.lane.need, jobs)).collect();
        let paused = self.paused.iter().filter(|(owner, _)| owner == tenant).map(|(_, queue)| queue);
        let empty: Vec<_> = paused.filter(|queue| rows.iter().all(|row| row.queue != **queue)).collect();
        rows.extend(empty.into_iter().cloned().map(QueueRow::paused));
        rows.sort_by(|a, b| (&a.queue, &a.need).cmp(&(&b.queue, &b.need)));
        rows
    }

    pub fn pause_queue(&mut self, tenant: &Tenant, queue: &str, pause: Pause) {
        let key = (tenant.clone(), queue.into());
        match pause {
            Pause::Paused => self.paused.insert(key),
            Pause::Open => self.paused.remove(&key),
        };
    }

    pub fn counters(&self) -> Vec<Counter> {
        let counter = |((tenant, flow, status, state), count): (&CounterKey, &u64)| Counter {
            tenant: tenant.clone(),
            flow_name: flow.clone(),
            status: *status,
            state: state.clone(),
            count: *count,
        };
        self.counters.iter().map(counter).collect()
    }

    /// By key: steps by index, then timers by number.
    pub fn jobs(&self, run: &RunKey) -> Vec<JobRow> {
        self.jobs_of(run).iter().map(|(key, job)| job_row(*key, job)).collect()
    }

    pub fn check(&self) -> Health {
        Health {
            kind: "memory",
            version: env!("CARGO_PKG_VERSION").to_owned(),
            format: 1,
            bytes: None,
            durability: "everything is lost when the process ends".to_owned(),
            unwritable: None,
            problems: Vec::new(),
        }
    }
}

fn job_row(key: JobKey, job: &StoredJob) -> JobRow {
    let lease = job.lease.as_ref();
    JobRow {
        key,
        name: job.name.clone(),
        attempt: job.attempt,
        queue: job.lane.queue.clone(),
        need: job.lane.need.clone(),
        priority: job.priority,
        due: job.due,
        state: match (lease, job.held) {
            (Some(_), _) => JobState::Leased,
            (None, true) => JobState::Held,
            (None, false) => JobState::Waiting,
        },
        worker: lease.map(|lease| lease.worker.clone()),
        leased_at: lease.map(|lease| lease.leased_at),
        expires: lease.map(|lease| lease.expires),
        lines: lease.map_or(0, |lease| lease.lines),
        released: lease.is_some_and(|lease| lease.released),
    }
}
