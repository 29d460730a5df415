//! Mishaps, calm, and the look at what calm brings.

use std::sync::Arc;
use std::time::Duration;

use flowline::internal::DriverMessage;
use flowline_check::{ClientReply, Effect};

use super::{BOUND, Durable, LONGEST, LOOK, World};
use crate::mishap::{Mishap, Weather};
use crate::shared::{TaskOwner, Wake};

impl World {
    pub(super) fn happen(&mut self, mishap: Mishap) {
        let named =
            |world: &World, at: usize| world.instances[at].as_ref().map(|instance| instance.name.clone());
        let say = |world: &World, who: Option<Arc<str>>, what: String| {
            let who = who.map_or_else(|| "store".to_owned(), |who| who.to_string());
            world.shared.lock().tell(|| who, || format!("FAULT {what}"));
        };
        match mishap {
            Mishap::Crash(at) => {
                if let Some(name) = named(self, at) {
                    say(self, Some(name), "crashes".to_owned());
                    self.end(at);
                }
            }
            Mishap::Restart(at) => self.start(at),
            Mishap::Pause(at, pause) => {
                if let Some(instance) = self.instances[at].as_mut().filter(|instance| !instance.paused) {
                    instance.paused = true;
                    let name = instance.name.clone();
                    say(self, Some(name), format!("is stopped for {pause:?}"));
                    let mut inner = self.shared.lock();
                    let until = inner.now + pause;
                    inner.wake(until, Wake::Mishap(Mishap::Continue(at)));
                }
            }
            Mishap::Continue(at) => self.go_on(at),
            Mishap::Drain(at, drain) => {
                if let Some(instance) = self.instances[at].as_mut().filter(|instance| !instance.draining) {
                    instance.draining = true;
                    let (name, life) = (instance.name.clone(), instance.life);
                    say(self, Some(name), format!("is told to stop within {drain:?}"));
                    let mut inner = self.shared.lock();
                    inner.up.retain(|up| *up != life);
                    inner.mail.push_back((life, DriverMessage::Stop(drain)));
                }
            }
            Mishap::StoreClock(by) => {
                say(self, None, format!("the clock jumps by {by} ms"));
                self.shared.lock().store_ahead += by;
            }
            Mishap::LocalClock(at, by) => {
                if let Some(instance) = &mut self.instances[at] {
                    instance.jump(by);
                    say(self, named(self, at), format!("its clock jumps ahead by {by:?}"));
                    self.turn(at);
                }
            }
            Mishap::Away(time) => {
                say(self, None, format!("is unreachable for {time:?}"));
                let mut inner = self.shared.lock();
                inner.weather = Weather::away();
                let until = inner.now + time;
                inner.wake(until, Wake::Mishap(Mishap::Back));
            }
            Mishap::Back => {
                if self.calm.is_none() {
                    self.shared.lock().weather = self.weather;
                }
            }
            Mishap::Durable => {
                let inner = self.shared.lock();
                self.durable = Some(Durable {
                    memory: inner.memory.clone(),
                    watch: inner.watch.clone(),
                    effects: inner.effects.clone(),
                    operations: inner.history.operations.len(),
                });
            }
            Mishap::RollBack => self.roll_back(),
            Mishap::Calm => self.calm_down(),
            Mishap::Look => {
                self.look();
                let mut inner = self.shared.lock();
                let next = inner.now + LOOK;
                inner.wake(next, Wake::Mishap(Mishap::Look));
            }
        }
    }

    /// A stopped process runs on: what has come meanwhile comes now.
    pub(super) fn go_on(&mut self, at: usize) {
        let Some(instance) = self.instances[at].as_mut().filter(|instance| instance.paused) else { return };
        instance.paused = false;
        let (life, kept) = (instance.life, std::mem::take(&mut instance.kept));
        let late = std::mem::take(&mut instance.late);
        let mut inner = self.shared.lock();
        inner.tell(|| instance.name.to_string(), || "runs on".to_owned());
        inner.mail.extend(kept.into_iter().map(|message| (life, message)));
        let now = inner.now;
        late.into_iter().for_each(|task| inner.wake(now, Wake::Task(task)));
        drop(inner);
        self.turn(at);
    }

    /// The store and all instances crash together, and what wasn't durable is lost, whatever clients were told.
    pub(super) fn roll_back(&mut self) {
        let Some(durable) = self.durable.take() else { return };
        self.shared.lock().tell(
            || "store".to_owned(),
            || "FAULT crashes with all instances, and goes back to its last durable point".to_owned(),
        );
        (0..self.instances.len()).for_each(|at| self.end(at));
        self.tasks.retain(|_, task| task.owner == TaskOwner::Client);
        let mut inner = self.shared.lock();
        inner.went_back = Some(inner.now);
        inner.memory = durable.memory;
        inner.watch = durable.watch;
        let slots = std::mem::take(&mut inner.effects.slots);
        inner.effects = durable.effects;
        inner.effects.slots.extend(slots);
        let workers: Vec<Arc<str>> = inner.effects.slots.keys().cloned().collect();
        inner.effects.log.extend(workers.into_iter().map(|worker| Effect::Crashed { worker }));
        for operation in inner.history.operations.iter_mut().skip(durable.operations) {
            if operation.outcome != ClientReply::Refused {
                operation.outcome = ClientReply::Unknown;
            }
        }
        let back = inner.now + Duration::from_millis(inner.rng.u64(1..3_000));
        (0..self.instances.len()).for_each(|at| inner.wake(back, Wake::Mishap(Mishap::Restart(at))));
    }

    /// Nothing goes wrong any more, and all that is paused is resumed.
    pub(super) fn calm_down(&mut self) {
        for at in 0..self.instances.len() {
            self.go_on(at);
            // One that drains takes nothing on: where it is the only one, everything would wait for it.
            if self.instances[at].as_ref().is_some_and(|instance| instance.draining) {
                self.end(at);
            }
            self.start(at);
        }
        let mut inner = self.shared.lock();
        inner.tell(|| "world".to_owned(), || "faults end".to_owned());
        inner.weather = Weather::fair();
        // Calls that were sent before are as slow as they were.
        self.calm = Some(inner.store_now() + self.weather.longest_call());
        let now = inner.now;
        inner.wake(now + LOOK, Wake::Mishap(Mishap::Look));
        drop(inner);
        self.resume();
    }

    pub(super) fn look(&mut self) {
        let Some(calm) = self.calm else { return };
        let mut inner = self.shared.lock();
        let now = inner.store_now();
        // Where there are few slots, a job waits for one for as long as the attempts before it take.
        let bound = if self.config.slots < 32 { BOUND + LONGEST / 2 } else { BOUND };
        let calm = calm + self.config.lease;
        let violations = inner.watch.progress(now, calm, bound);
        inner.judge(violations);
        drop(inner);
        if self.clients_are_done() {
            // Somebody may have paused something late.
            self.resume();
        }
    }

    pub(super) fn resume(&mut self) {
        let resumed = self.client.clone().resume_all();
        self.spawn(TaskOwner::Client, Box::pin(resumed));
    }

    pub(super) fn clients_are_done(&self) -> bool {
        !self.tasks.values().any(|task| task.owner == TaskOwner::Client)
    }

    /// Whether nothing is left to happen: no client at work, no job anywhere.
    pub(super) fn is_at_rest(&self) -> bool {
        let inner = self.shared.lock();
        self.clients_are_done() && self.numbers.keys().all(|run| inner.memory.jobs(run).is_empty())
    }
}
