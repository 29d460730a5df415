//! Who works on what: claim, renew.

use flowline_core::definition::Priority;
use flowline_core::{Tenant, Time};
use flowline_store::rotate::{self, FreeSlots};
use flowline_store::rule::StoredLease;
use flowline_store::{Claim, Claimed, Extend, Extended, JobKey, Lane, LeasedJob, Renewal, Token};
use rusqlite::{OptionalExtension, Statement};

use super::Writer;
use crate::code;
use crate::fault::Fault;
use crate::names::LaneAt;

type Served = ((Tenant, Lane), LaneAt);

impl Writer<'_> {
    /// Leases due jobs, one of each lane in turn.
    pub(crate) fn claim(&mut self, claim: &Claim) -> Result<Claimed, Fault> {
        let now = self.clock.now();
        let mut lanes = self.served(claim);
        rotate::begin_after(&mut lanes, self.last_lane.as_ref(), |(name, _)| name);
        let (mut tokens, mut jobs) = (claim.tokens.iter(), Vec::new());
        let take = |(name, at): &mut &Served| {
            let Some((id, key)) = self.first_due(at.lane, now)? else { return Ok(false) };
            let Some(token) = tokens.next() else { return Ok(false) };
            self.last_lane = Some(name.clone());
            jobs.push(self.lease(id, key, *token, claim, now)?);
            Ok::<_, Fault>(true)
        };
        FreeSlots::new(claim).deal(&lanes, claim.tokens.len(), |((_, lane), _)| &lane.queue, take)?;
        let mut next_due: Option<Time> = None;
        for (_, at) in &lanes {
            let due = self.next_due(at.lane, now)?;
            next_due = next_due.into_iter().chain(due).min();
        }
        Ok(Claimed { jobs, next_due, now })
    }

    pub(crate) fn renew(&mut self, leases: &[Extend], renewal: Renewal) -> Result<Vec<Extended>, Fault> {
        let now = self.clock.now();
        let mut answers = Vec::with_capacity(leases.len());
        for held in leases {
            let found = self.find(&held.run)?;
            let lease = found.and_then(|id| self.live.get_mut(id)).and_then(|run| run.held_by(held));
            let (Some(id), Some(lease)) = (found, lease) else {
                let run = found.and_then(|id| self.live.get(id));
                answers.push(Extended::gone(run.map(|run| run.status)));
                continue;
            };
            lease.renew(now, renewal);
            let (expires, released) = (lease.expires.millis(), lease.released);
            self.sql.set_expiry.execute((id, held.key.number(), expires, released))?;
            answers.push(Extended::Held);
        }
        Ok(answers)
    }

    /// The lanes of a claim, by name.
    fn served(&self, claim: &Claim) -> Vec<Served> {
        let serves = |(tenant, lane): &(Tenant, Lane), at: &LaneAt| {
            claim.tenant.as_ref().is_none_or(|wanted| wanted == tenant)
                && claim.needs.contains(&lane.need)
                && claim.free_in(&lane.queue) > 0
                && !self.names.is_paused(at.tenant, &lane.queue)
        };
        let all = self.names.lane_order.iter().filter(|(name, at)| serves(name, at));
        all.map(|(name, at)| (name.clone(), *at)).collect()
    }

    fn lease(
        &mut self,
        id: i64,
        key: JobKey,
        token: Token,
        claim: &Claim,
        now: Time,
    ) -> Result<LeasedJob, Fault> {
        self.recall(id)?;
        let run = self.run(id)?;
        let name = run.key.clone();
        let mut job = run.jobs.remove(&key).ok_or_else(|| Fault::damaged("a claimed job isn't cached"))?;
        let lease = StoredLease::new(token, &claim.worker, now, claim.ttl);
        let expires = lease.expires;
        job.lease = Some(lease);
        self.sql.delete_job.execute((id, key.number()))?;
        self.insert_job(id, key, &job)?;
        let leased = LeasedJob {
            run: name,
            key,
            name: job.name.clone(),
            attempt: job.attempt,
            lane: self.names.lane_name(job.lane)?.clone(),
            due: job.due,
            token,
            expires,
        };
        self.run(id)?.jobs.insert(key, job);
        Ok(leased)
    }

    /// The most urgent of the jobs that are due; among equals the one due first, then the one added first.
    fn first_due(&mut self, lane: i64, now: Time) -> Result<Option<(i64, JobKey)>, Fault> {
        for priority in Priority::ALL.into_iter().rev() {
            let of = (lane, code::priority_number(priority), now.millis());
            let first = self.sql.first_due.query_row(of, |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)));
            if let Some((run, key)) = first.optional()? {
                return Ok(Some((run, JobKey::from_number(key))));
            }
        }
        Ok(None)
    }

    fn next_due(&mut self, lane: i64, now: Time) -> Result<Option<Time>, Fault> {
        let next = |sql: &mut Statement<'_>, priority: Priority| {
            let of = (lane, code::priority_number(priority), now.millis());
            sql.query_row(of, |row| row.get(0)).optional()
        };
        let mut soonest = None;
        for priority in Priority::ALL {
            let due = next(&mut self.sql.next_due, priority)?.map(Time::from_millis);
            soonest = soonest.into_iter().chain(due).min();
        }
        Ok(soonest)
    }
}
