//! Seats: let a commit lease new jobs directly to a remote worker, which saves the claim, a durable write.
//!
//! A worker takes a seat while it waits, and while its reports are committed, for as many jobs as it has room for. A commit
//! reserves room in the oldest seat for the job's queue, and once it has landed, the job goes to the worker in that seat. If
//! the worker has left, the lease is given back; if this process dies, the lease expires like any that nobody acknowledged.
//!
//! Seats are only a shortcut. Waiting workers also look into the store, where they find what other instances commit.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flowline_core::Tenant;
use flowline_store::{Extend, Handoff, Store, Token};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};

use super::lease::holder;
use super::{ACKNOWLEDGE, locked};
use crate::ledger::HandedOff;

/// How long a worker with jobs to start waits for more that commits on their way have reserved room for.
const MORE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Default)]
pub(crate) struct Seats(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    last: u64,
    /// By tenant and queue, the seats that commits may use, the first to be taken first.
    rows: HashMap<(Tenant, Arc<str>), BTreeSet<u64>>,
    sitting: HashMap<u64, Sitting>,
    /// Room that a commit on its way has reserved.
    reserved: HashMap<Token, (u64, mpsc::UnboundedSender<HandedOff>)>,
}

#[derive(Debug)]
struct Sitting {
    worker: Arc<str>,
    tenant: Tenant,
    queues: Arc<[Arc<str>]>,
    tell: mpsc::UnboundedSender<HandedOff>,
    /// For how many jobs there is room.
    room: usize,
    /// How many of them commits have reserved.
    promised: usize,
    /// Whether commits may use it.
    open: bool,
    /// Told when room that was reserved is not used after all.
    freed: Arc<Notify>,
}

/// A place to wait, until it's dropped.
#[derive(Debug)]
pub(super) struct WorkerSeat {
    seats: Seats,
    number: u64,
    freed: Arc<Notify>,
}

/// The jobs that commits hand to a seat. What was not heard when it's dropped is given back.
pub(super) struct HandedJobs {
    told: mpsc::UnboundedReceiver<HandedOff>,
    heard: Vec<HandedOff>,
    store: Arc<dyn Store>,
}

impl Seats {
    /// Takes a seat for a worker with room for so many jobs.
    pub(super) fn sit(
        &self,
        worker: &str,
        tenant: &Tenant,
        queues: &Arc<[Arc<str>]>,
        room: usize,
        store: Arc<dyn Store>,
    ) -> (WorkerSeat, HandedJobs) {
        let (tell, told) = mpsc::unbounded_channel();
        let freed = Arc::new(Notify::new());
        let mut taken = self.lock();
        taken.last += 1;
        let number = taken.last;
        let (worker, tenant, queues) = (worker.into(), tenant.clone(), queues.clone());
        let sitting =
            Sitting { worker, tenant, queues, tell, room, promised: 0, open: true, freed: freed.clone() };
        taken.sitting.insert(number, sitting);
        taken.list(number);
        drop(taken);
        (WorkerSeat { seats: self.clone(), number, freed }, HandedJobs { told, heard: Vec::new(), store })
    }

    /// Reserves room for a job of this queue, and says how the commit leases it.
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
        let sitting = taken.sitting.get_mut(&number)?;
        sitting.promised += 1;
        let is_full = sitting.promised >= sitting.room;
        let (worker, tell, token) = (holder(&sitting.worker, instance), sitting.tell.clone(), token());
        if is_full {
            taken.unlist(number);
        }
        taken.reserved.insert(token, (number, tell));
        Some(Handoff { token, ttl: ACKNOWLEDGE.min(lease), worker })
    }

    /// The commit didn't land, or the store didn't lease the job.
    pub(crate) fn cancel(&self, token: Token) {
        let mut taken = self.lock();
        let Some((number, _)) = taken.reserved.remove(&token) else { return };
        if let Some(sitting) = taken.sitting.get_mut(&number) {
            sitting.promised -= 1;
            sitting.freed.notify_one();
            taken.list(number);
        }
    }

    /// Hands the job to the worker in the seat. Returns its lease if the worker has left.
    pub(crate) fn hand_off(&self, handed: HandedOff) -> Result<(), Extend> {
        let reserved = self.lock().reserved.remove(&handed.attempt.token);
        let unheard = match reserved {
            Some((_, tell)) => tell.send(handed).err().map(|unheard| unheard.0),
            None => Some(handed),
        };
        unheard.map_or(Ok(()), |handed| Err(handed.attempt.lease()))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        locked(&self.0)
    }
}

impl Taken {
    /// Lets commits use a seat that is open and has room.
    fn list(&mut self, number: u64) {
        let Some(sitting) = self.sitting.get(&number) else { return };
        if !sitting.open || sitting.promised >= sitting.room {
            return;
        }
        for queue in sitting.queues.iter() {
            self.rows.entry((sitting.tenant.clone(), queue.clone())).or_default().insert(number);
        }
    }

    fn unlist(&mut self, number: u64) {
        let Some(Sitting { tenant, queues, .. }) = self.sitting.get(&number) else { return };
        for queue in queues.iter() {
            let row = (tenant.clone(), queue.clone());
            if let Some(numbers) = self.rows.get_mut(&row) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.rows.remove(&row);
                }
            }
        }
    }
}

impl WorkerSeat {
    /// Keeps commits from using it, before a look into the store: jobs from both would be too many for the worker. If a
    /// commit on its way has reserved room, this waits until that commit fails; if it lands, [`HandedJobs::first`] ends the
    /// wait.
    pub(super) async fn withhold(&self) {
        loop {
            {
                let mut taken = self.seats.lock();
                taken.unlist(self.number);
                let Some(sitting) = taken.sitting.get_mut(&self.number) else { return };
                sitting.open = false;
                if sitting.promised == 0 {
                    return;
                }
            }
            self.freed.notified().await;
        }
    }

    /// Lets commits use it again, after a look that found nothing.
    pub(super) fn offer(&self) {
        let mut taken = self.seats.lock();
        if let Some(sitting) = taken.sitting.get_mut(&self.number) {
            sitting.open = true;
            taken.list(self.number);
        }
    }
}

impl Drop for WorkerSeat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        taken.unlist(self.number);
        taken.sitting.remove(&self.number);
    }
}

impl HandedJobs {
    /// Waits for the first job, as long as the seat is there.
    pub(super) async fn first(&mut self) {
        match self.told.recv().await {
            Some(handed) => self.heard.push(handed),
            None => std::future::pending().await,
        }
    }

    /// All of them, once the seat is left, with those that commits on their way have reserved room for.
    pub(super) async fn all(mut self) -> Vec<HandedOff> {
        let by = Instant::now() + MORE;
        while let Ok(Some(handed)) = timeout_at(by, self.told.recv()).await {
            self.heard.push(handed);
        }
        std::mem::take(&mut self.heard)
    }
}

impl Drop for HandedJobs {
    fn drop(&mut self) {
        self.told.close();
        while let Ok(handed) = self.told.try_recv() {
            self.heard.push(handed);
        }
        let unheard: Vec<Extend> = self.heard.drain(..).map(|handed| handed.attempt.lease()).collect();
        if !unheard.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let store = self.store.clone();
            // Where this fails they expire like any that nobody acknowledged.
            runtime.spawn(async move {
                let _ = store.release(unheard).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline_store::{Clock, MemoryStore};

    fn reserve(seats: &Seats, queue: &str, token: u128) -> bool {
        let lease = Duration::from_secs(30);
        seats.reserve(&Tenant::default(), &queue.into(), "here", lease, || Token(token)).is_some()
    }

    fn sit(seats: &Seats, room: usize) -> (WorkerSeat, HandedJobs) {
        let queues: Arc<[Arc<str>]> = Arc::new(["a".into(), "b".into()]);
        seats.sit("w", &Tenant::default(), &queues, room, Arc::new(MemoryStore::new(Clock::system())))
    }

    #[tokio::test]
    async fn commits_reserve_as_much_room_as_a_seat_has_and_get_back_what_they_do_not_use() {
        let seats = Seats::default();
        assert!(!reserve(&seats, "a", 1), "nobody sits there");
        let (seat, jobs) = sit(&seats, 2);
        assert!(reserve(&seats, "a", 1) && reserve(&seats, "b", 2) && !reserve(&seats, "a", 3));
        assert!(!reserve(&seats, "c", 3), "it serves other queues");
        seats.cancel(Token(1));
        assert!(reserve(&seats, "b", 4) && !reserve(&seats, "b", 5));
        drop(seat);
        seats.cancel(Token(2));
        assert!(!reserve(&seats, "a", 6), "the worker has left");
        seats.cancel(Token(4));
        assert!(jobs.all().await.is_empty(), "nothing was handed over, and nothing is waited for");
    }

    #[tokio::test]
    async fn a_seat_without_room_takes_nothing() {
        let seats = Seats::default();
        let _seat = sit(&seats, 0);
        assert!(!reserve(&seats, "a", 1));
    }

    #[tokio::test]
    async fn a_look_waits_for_what_is_reserved_and_keeps_more_from_being_so() {
        let seats = Seats::default();
        let (seat, _jobs) = sit(&seats, 2);
        assert!(reserve(&seats, "a", 1));
        let moment = Duration::from_millis(20);
        assert!(tokio::time::timeout(moment, seat.withhold()).await.is_err(), "a commit has a job for it");
        assert!(!reserve(&seats, "a", 2), "a look is about to begin");
        seats.cancel(Token(1));
        seat.withhold().await;
        assert!(!reserve(&seats, "a", 3));
        seat.offer();
        assert!(reserve(&seats, "a", 4));
    }
}
