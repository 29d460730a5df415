//! Processes and tasks: what the loop of a host does, step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use flowline::Config;
use flowline::internal::{Attempt, DriverMessage, DriverOrder, Launch};
use flowline_check::{AttemptReport, Effect, WorkerSlots};
use flowline_core::{RunState, Time};
use flowline_store::Token;

use super::{Task, World};
use crate::instance::{RunningAttempt, SimInstance, ended};
use crate::mishap::Mishap;
use crate::shared::{BoxedFuture, FutureId, Life, TaskOwner, Ticket, WaitPlace, Wake};
use crate::wire::Wire;
use crate::worker::SimulatedWorker;

impl World {
    /// Starts a process, unless one runs.
    pub(super) fn start(&mut self, instance: usize) {
        if self.instances[instance].is_some() {
            return;
        }
        self.lives[instance] += 1;
        let life = Life { instance, number: self.lives[instance] };
        let name: Arc<str> = format!("{}{}", (b'a' + instance as u8) as char, life.number).into();
        let config = Config { instance: name.clone(), ..self.config.clone() };
        let wire = Wire::new(self.shared.clone(), name.clone());
        let mut inner = self.shared.lock();
        let rng = inner.rng.fork();
        let (now, store_now) = (inner.now, inner.store_now());
        inner.tell(|| name.to_string(), || "starts".to_owned());
        inner.up.push(life);
        let slots = WorkerSlots { queues: BTreeMap::new(), elsewhere: config.slots };
        inner.effects.slots.insert(name, slots);
        drop(inner);
        self.instances[instance] = Some(SimInstance::start(life, config, wire, rng, now, store_now));
        self.turn(instance);
    }

    /// A process ends, with all that it held in memory. What it has sent may still arrive.
    pub(super) fn end(&mut self, instance: usize) {
        let Some(dead) = self.instances[instance].take() else { return };
        let of: Vec<FutureId> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.owner == TaskOwner::Life(dead.life))
            .map(|(id, _)| *id)
            .collect();
        of.into_iter().for_each(|task| self.abandon(task));
        let mut inner = self.shared.lock();
        inner.up.retain(|life| *life != dead.life);
        inner.hang_up(dead.life);
        for running in dead.attempts.values() {
            // What a step does to the world can outlive the process that ran it.
            if inner.rng.u32(0..3) == 0 {
                let Attempt { run, step, number, .. } = &running.attempt;
                inner.acted.push((run.clone(), *step, *number));
            }
        }
        inner.effects.log.push(Effect::Crashed { worker: dead.name.clone() });
    }

    /// A task is dropped. What it has sent to the store arrives, or is lost with it.
    pub(super) fn abandon(&mut self, id: FutureId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.place == WaitPlace::Wire && self.shared.lock().rng.bool() {
            task.owner = TaskOwner::Nobody;
        } else {
            self.tasks.remove(&id);
        }
    }

    pub(super) fn spawn(&mut self, owner: TaskOwner, work: BoxedFuture) -> FutureId {
        self.last_task += 1;
        let id = self.last_task;
        self.tasks.insert(id, Task { work, owner, place: WaitPlace::Home });
        self.poll(id);
        id
    }

    pub(super) fn poll(&mut self, id: FutureId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if let TaskOwner::Life(life) = task.owner
            && task.place == WaitPlace::Home
            && let Some(stopped) = self.instances[life.instance].as_mut().filter(|instance| instance.paused)
        {
            stopped.late.push(id);
            return;
        }
        {
            let mut inner = self.shared.lock();
            inner.polling = id;
            inner.place = WaitPlace::Home;
        }
        let done = task.work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        task.place = self.shared.lock().place;
        if done || task.owner == TaskOwner::Nobody && task.place == WaitPlace::Home {
            self.tasks.remove(&id);
        }
    }

    pub(super) fn tick(&mut self, life: Life, generation: u64) {
        let Some(instance) = &mut self.instances[life.instance] else { return };
        if instance.life == life && instance.generation == generation {
            instance.tick_at = None;
            if !instance.paused {
                self.turn(life.instance);
            }
        }
    }

    /// Does everything that is set off at once.
    pub(super) fn settle(&mut self) {
        loop {
            let spawned = std::mem::take(&mut self.shared.lock().spawned);
            let mail = std::mem::take(&mut self.shared.lock().mail);
            if spawned.is_empty() && mail.is_empty() {
                return;
            }
            for work in spawned {
                self.spawn(TaskOwner::Nobody, work);
            }
            let mut touched = BTreeSet::new();
            for (life, message) in mail {
                self.deliver(life, message);
                touched.insert(life.instance);
            }
            touched.into_iter().for_each(|instance| self.turn(instance));
        }
    }

    pub(super) fn deliver(&mut self, life: Life, message: DriverMessage<Ticket>) {
        let Some(instance) = &mut self.instances[life.instance] else { return };
        if instance.life != life {
            return;
        }
        if instance.paused {
            return instance.kept.push_back(message);
        }
        let local = instance.local(self.shared.lock().now);
        if let DriverMessage::Finished(token, ..) = &message {
            instance.attempts.remove(token);
        }
        instance.driver.handle(message, local);
    }

    /// What the loop of a host does after its mail.
    pub(super) fn turn(&mut self, at: usize) {
        let now = self.shared.lock().now;
        let Some(instance) = self.instances[at].as_mut().filter(|instance| !instance.paused) else { return };
        let local = instance.local(now);
        instance.driver.tick(local);
        loop {
            let Some(instance) = &mut self.instances[at] else { return };
            let more = instance.driver.pump();
            let actions: Vec<DriverOrder<Ticket>> = instance.driver.actions().collect();
            actions.into_iter().for_each(|action| self.carry_out(at, action));
            if !more {
                break;
            }
        }
        let Some(instance) = &mut self.instances[at] else { return };
        if instance.draining && instance.driver.has_stopped() {
            let owner = TaskOwner::Life(instance.life);
            if !self.tasks.values().any(|task| task.owner == owner) {
                let mut inner = self.shared.lock();
                inner.tell(|| instance.name.to_string(), || "has drained and ends".to_owned());
                let back = now + Duration::from_millis(inner.rng.u64(1..2_000));
                inner.wake(back, Wake::Mishap(Mishap::Restart(at)));
                drop(inner);
                return self.end(at);
            }
        }
        let next = instance.world(instance.driver.next_tick()).max(now);
        if instance.tick_at != Some(next) {
            instance.tick_at = Some(next);
            instance.generation += 1;
            let (life, generation) = (instance.life, instance.generation);
            self.shared.lock().wake(next, Wake::Tick { life, generation });
        }
    }

    pub(super) fn carry_out(&mut self, at: usize, action: DriverOrder<Ticket>) {
        let Some(instance) = &self.instances[at] else { return };
        let (life, wire, plans) = (instance.life, instance.wire.clone(), instance.plans.clone());
        match action {
            DriverOrder::Call(call) => {
                let shared = self.shared.clone();
                let asked = async move {
                    if let Some(answer) = call.ask(&wire, &plans).await {
                        shared.lock().mail.push_back((life, DriverMessage::Answer(answer)));
                    }
                };
                self.spawn(TaskOwner::Life(life), Box::pin(asked));
            }
            DriverOrder::Decide(costly) => {
                let shared = self.shared.clone();
                let decided = async move {
                    shared.lock().mail.push_back((life, DriverMessage::Decided(costly.decide())));
                };
                self.spawn(TaskOwner::Life(life), Box::pin(decided));
            }
            DriverOrder::Launch(launch, began) => self.launch(at, launch, began),
            DriverOrder::Stop(token) => self.stop(at, token),
            DriverOrder::Reply(ticket, outcome) => self.shared.lock().resolve(ticket, Some(outcome)),
            DriverOrder::Ended(run, ended) => {
                let name = &instance.name;
                let what = || format!("sees run {} end {}", run.run, ended.status);
                self.shared.lock().tell(|| name.to_string(), what);
            }
            // No remote worker waits in a simulated instance.
            DriverOrder::HandOff(_) | DriverOrder::Trouble(_) => {}
        }
    }

    pub(super) fn launch(&mut self, at: usize, launch: Launch, began: Time) {
        let Some(instance) = &self.instances[at] else { return };
        let Attempt { run, plan, step, number, transition, token, .. } = launch.attempt.clone();
        let name = launch.attempt.name().clone();
        let act = {
            let mut inner = self.shared.lock();
            let found = inner.memory.load(std::slice::from_ref(&run)).pop().flatten();
            let state = found.and_then(|found| RunState::decode(&plan, &found.state).ok());
            let tries = state.map_or(0, |state| state.step(step).tries);
            inner.tell(
                || instance.name.to_string(),
                || format!("runs {name} attempt {number} of run {}", run.run),
            );
            inner.effects.log.push(Effect::Began {
                worker: instance.name.clone(),
                queue: launch.attempt.queue().clone(),
                run: run.clone(),
                step: name,
                attempt: number,
                input: Some(launch.input.clone()),
            });
            let of = self.numbers.get(&run).copied().unwrap_or_default();
            match transition {
                Some(transition) => self.program.act_in(of, transition, step, tries),
                None => self.program.act(of, step, tries),
            }
        };
        let worker = SimulatedWorker::new(self.shared.clone(), instance, &launch, began);
        let running = RunningAttempt { task: 0, attempt: launch.attempt };
        let life = instance.life;
        if let Some(instance) = &mut self.instances[at] {
            instance.attempts.insert(token, running);
        }
        let task = self.spawn(TaskOwner::Life(life), Box::pin(worker.play(act)));
        if let Some(instance) = &mut self.instances[at]
            && let Some(running) = instance.attempts.get_mut(&token)
        {
            running.task = task;
        }
    }

    pub(super) fn stop(&mut self, at: usize, token: Token) {
        let Some(instance) = &mut self.instances[at] else { return };
        let Some(running) = instance.attempts.remove(&token) else { return };
        let attempt = &running.attempt;
        let mut inner = self.shared.lock();
        inner.tell(
            || instance.name.to_string(),
            || format!("stops {} attempt {} of run {}", attempt.name(), attempt.number, attempt.run.run),
        );
        inner.effects.log.push(ended(attempt, &instance.name, AttemptReport::Nothing));
        drop(inner);
        self.abandon(running.task);
    }
}
