//! Seats: let a commit lease a new job directly to a waiting remote worker, which saves the claim, a durable write.
//!
//! A worker takes a seat while it waits. A commit reserves the oldest seat for the job's queue, and once it has landed,
//! the job goes to the worker in that seat. If the worker has left, the lease is given back; if this process dies, the
//! lease expires like any that nobody acknowledged. A seat takes one job; the worker's next claim finds the others.
//!
//! Seats are only a shortcut. Waiting workers also look into the store, where they find what other instances commit.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flowline_core::Tenant;
use flowline_store::{Extend, Handoff, Token};
use tokio::sync::oneshot;

use super::lease::holder;
use super::{ACKNOWLEDGE, locked};
use crate::ledger::HandedOff;

#[derive(Debug, Clone, Default)]
pub(crate) struct Seats(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    last: u64,
    /// By tenant and queue, those who sit there, the first to come first.
    rows: HashMap<(Tenant, Arc<str>), BTreeSet<u64>>,
    sitting: HashMap<u64, Sitting>,
    /// Those that a commit on its way has promised a job.
    reserved: HashMap<Token, oneshot::Sender<HandedOff>>,
}

#[derive(Debug)]
struct Sitting {
    worker: Arc<str>,
    tenant: Tenant,
    queues: Arc<[Arc<str>]>,
    tell: oneshot::Sender<HandedOff>,
}

/// A place to wait, until it's dropped.
#[derive(Debug)]
pub(super) struct WorkerSeat {
    seats: Seats,
    number: u64,
}

impl Seats {
    /// Takes a seat. The receiver fails if the commit that had reserved it didn't land: take another seat.
    pub(super) fn sit(
        &self,
        worker: &str,
        tenant: &Tenant,
        queues: &Arc<[Arc<str>]>,
    ) -> (WorkerSeat, oneshot::Receiver<HandedOff>) {
        let (tell, told) = oneshot::channel();
        let mut taken = self.lock();
        taken.last += 1;
        let number = taken.last;
        let (worker, tenant, queues) = (worker.into(), tenant.clone(), queues.clone());
        taken.sitting.insert(number, Sitting { worker, tenant, queues, tell });
        taken.offer(number);
        drop(taken);
        (WorkerSeat { seats: self.clone(), number }, told)
    }

    /// Reserves a seat for a job of this queue, and says how the commit leases it.
    pub(crate) fn reserve(
        &self,
        tenant: &Tenant,
        queue: &Arc<str>,
        instance: &str,
        lease: Duration,
        token: impl FnOnce() -> Token,
    ) -> Option<Handoff> {
        let mut taken = self.lock();
        if taken.sitting.is_empty() {
            return None;
        }
        let number = *taken.rows.get(&(tenant.clone(), queue.clone()))?.first()?;
        let Sitting { worker, tell, .. } = taken.leave(number)?;
        let token = token();
        taken.reserved.insert(token, tell);
        Some(Handoff { token, ttl: ACKNOWLEDGE.min(lease), worker: holder(&worker, instance) })
    }

    /// The commit didn't land, or the store didn't lease the job.
    pub(crate) fn cancel(&self, token: Token) {
        drop(self.lock().reserved.remove(&token));
    }

    /// Hands the job to the worker in the seat. Returns its lease if the worker has left.
    pub(crate) fn hand_off(&self, handed: HandedOff) -> Result<(), Extend> {
        let reserved = self.lock().reserved.remove(&handed.attempt.token);
        let unheard = match reserved {
            Some(tell) => tell.send(handed).err(),
            None => Some(handed),
        };
        unheard.map_or(Ok(()), |handed| Err(handed.attempt.lease()))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        locked(&self.0)
    }
}

impl Taken {
    /// Lets commits reserve a seat.
    fn offer(&mut self, number: u64) {
        let Some(Sitting { tenant, queues, .. }) = self.sitting.get(&number) else { return };
        for queue in queues.iter() {
            self.rows.entry((tenant.clone(), queue.clone())).or_default().insert(number);
        }
    }

    /// Keeps commits from reserving it. False if one already has.
    fn withhold(&mut self, number: u64) -> bool {
        let Some(Sitting { tenant, queues, .. }) = self.sitting.get(&number) else { return false };
        for queue in queues.iter() {
            let row = (tenant.clone(), queue.clone());
            if let Some(numbers) = self.rows.get_mut(&row) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.rows.remove(&row);
                }
            }
        }
        true
    }

    fn leave(&mut self, number: u64) -> Option<Sitting> {
        self.withhold(number);
        self.sitting.remove(&number)
    }
}

impl WorkerSeat {
    /// Keeps commits from reserving it, before a look into the store: what that finds would be too much for a worker that a
    /// commit has a job for. Where one has, this does not end: whoever waits for it waits for the job too, and hears of that.
    pub(super) async fn withhold(&self) {
        if !self.seats.lock().withhold(self.number) {
            std::future::pending::<()>().await;
        }
    }

    /// Lets commits reserve it again, after a look that found nothing.
    pub(super) fn offer(&self) {
        self.seats.lock().offer(self.number);
    }
}

impl Drop for WorkerSeat {
    fn drop(&mut self) {
        self.seats.lock().leave(self.number);
    }
}
