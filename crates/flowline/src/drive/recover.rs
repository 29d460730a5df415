//! Recovery: extends the leases of running attempts, and turns expired ones into inputs of their runs.

use flowline_core::event::{EventType, NewEvent};
use flowline_core::{DecideInput, RunKey, json};
use flowline_store::{ExpiredLease, Extend, JobKey, LeaseUse, StoreError, Swept};

use super::{Ahead, Driver, Reply, SWEEP, StoreCall};
use crate::attempt::{Attempt, started_data};
use crate::ledger::{InputEntry, timer_input};
use crate::remote::UNACKNOWLEDGED;
use crate::remote::lease::remote_holder;

impl<R> Driver<R> {
    pub(super) fn sweep(&mut self) {
        self.sweeping = true;
        self.sweep_saw = self.changes;
        self.call(StoreCall::Sweep(SWEEP));
    }

    pub(super) fn swept(&mut self, result: Result<Swept, StoreError>) {
        self.sweeping = false;
        self.next_sweep = self.now + self.config.sweep;
        let swept = match result {
            Ok(swept) => swept,
            Err(error) => return self.tell_trouble(Some(error)),
        };
        // Whoever has nothing to commit would not hear of it otherwise; whoever has, hears more of it there.
        if self.told_trouble.is_some() && self.ledger.is_idle() {
            self.tell_trouble(None);
        }
        self.adjust(swept.now);
        self.ahead = (self.sweep_saw == self.changes)
            .then_some(Ahead { timer: swept.next_timer, lease: swept.next_lease });
        let next = swept.next();
        for timer in swept.timers {
            let lease = LeaseUse::Due { key: timer.key, attempt: timer.attempt };
            let entry = InputEntry::new(timer_input(&timer), Vec::new(), Some(lease), Reply::None);
            self.ledger.offer(timer.run, entry);
        }
        let mut left_alone = false;
        for lease in swept.expired {
            if self.attempts.contains_key(&lease.token) {
                // This very instance was stopped for longer than the lease. Nobody took the attempt over, so it goes on.
                self.next_heartbeat = self.now;
                left_alone = true;
                continue;
            }
            self.note_expired(&lease);
            let (run, entry) = recover(lease);
            self.ledger.offer(run, entry);
        }
        // What was left alone is still due, and no reason to look again at once.
        if let Some(next) = next.filter(|_| !left_alone) {
            self.next_sweep = self.next_sweep.min(self.clock.local(next));
        }
    }

    pub(super) fn heartbeat(&mut self) {
        self.next_heartbeat = self.now + self.config.lease / 3;
        let leases: Vec<Extend> = self.attempts.values().map(Attempt::lease).collect();
        if !leases.is_empty() {
            self.call(StoreCall::Extend(leases, self.config.lease));
        }
    }
}

/// A lease that ran out becomes an input of its run. What the attempt did not get to write is written for it. A remote
/// worker that never spoke of its assignment did not begin: that is no loss, and the log has no `step.started` of it.
fn recover<R>(lease: ExpiredLease) -> (RunKey, InputEntry<Reply<R>>) {
    let attempt = lease.attempt;
    let remote = remote_holder(&lease.worker);
    let unheard = remote.is_some() && lease.lines == 0 && (lease.released || attempt < UNACKNOWLEDGED);
    let mut lines = Vec::new();
    if lease.lines == 0 && !unheard {
        let (worker, instance) = remote.unwrap_or((&lease.worker, &lease.worker));
        let data = started_data(&json::string(worker), &json::string(instance), None);
        lines.push(NewEvent::step(EventType::StepStarted, &lease.name, attempt, Some(data)));
    }
    let step = match lease.key {
        JobKey::Step(step) => step,
        JobKey::Timer(_) => u32::MAX,
    };
    let input = DecideInput::LeaseLost { step, attempt, released: lease.released || unheard };
    let expired = LeaseUse::Expired { key: lease.key, attempt, token: lease.token, lines: lease.lines };
    (lease.run, InputEntry::new(input, lines, Some(expired), Reply::None))
}
