//! A world: instances, clients and a store, and one loop that makes the next thing happen.
//!
//! Everything waits in one queue, by the time at which it happens and then by the order in which it was asked for. The
//! loop takes the first, sets the clock to its time and does it; whatever that sets off at once is done before the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use fastrand::Rng;
use flowline::attempt::Launch;
use flowline::drive::{Action, Message};
use flowline::plans::Plans;
use flowline::{Config, Role};
use flowline_check::{
    Checker, Effect, Effects, Invariant, Outcome, Reported, Slots, Source, Subject, Violation, Watch,
};
use flowline_core::{RunKey, RunState, Tenant, Time};
use flowline_store::row::Retention;
use flowline_store::{Memory, Token};

use crate::client::Client;
use crate::instance::{Instance, Running};
use crate::mishap::{Mishap, Weather, draw};
use crate::model::{Seen, compare};
use crate::program::{Op, Program};
use crate::shared::{Life, Owner, Place, Shared, TaskId, Ticket, Wake, Work};
use crate::story::Story;
use crate::wire::Wire;
use crate::worker::Worker;

/// How a program is to be simulated.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub checker: Checker,
    /// Whether the story is told.
    pub tell: bool,
    /// Whether anything goes wrong beside what steps do themselves.
    pub faults: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { checker: Checker::default(), tell: false, faults: true }
    }
}

/// What became of a world.
#[derive(Debug)]
pub struct Simulated {
    pub violations: Vec<Violation>,
    pub story: Vec<String>,
    /// The store at the end.
    pub store: Memory,
    /// The runs of the script by number, where they were started.
    pub runs: BTreeMap<usize, RunKey>,
    /// Every time that an attempt acted on the world: run, step, attempt.
    pub acted: Vec<(RunKey, u32, u32)>,
    /// How long it took, by the clock of the world.
    pub took: Duration,
}

/// Where a world is looked at after calm has set in.
const LOOK: Duration = Duration::from_secs(1);
/// No world goes on for longer after calm has set in.
const LONGEST: Duration = Duration::from_secs(1_800);
/// How soon after its lease is over, or it is due, every job must get on.
const BOUND: Duration = Duration::from_secs(2);

struct Task {
    work: Work,
    owner: Owner,
    place: Place,
}

/// The store as it was when it was durable last.
struct Durable {
    memory: Memory,
    watch: Watch,
    effects: Effects,
    operations: usize,
}

pub(crate) struct World {
    shared: Arc<Shared>,
    program: Arc<Program>,
    numbers: BTreeMap<RunKey, usize>,
    client: Client,
    checker: Checker,
    config: Config,
    weather: Weather,
    instances: Vec<Option<Instance>>,
    lives: Vec<u32>,
    tasks: BTreeMap<TaskId, Task>,
    last_task: TaskId,
    durable: Option<Durable>,
    calm: Option<Time>,
    /// When this world ends at the latest.
    horizon: Duration,
}

/// Simulates a program: same program and options, same outcome.
pub fn simulate(program: Program, options: &Options) -> Simulated {
    World::new(program, options).run()
}

impl World {
    fn new(program: Program, options: &Options) -> World {
        let mut rng = Rng::with_seed(crate::program::mix(program.seed, &[77]));
        let instances = rng.usize(1..=4).min(rng.usize(1..=4)) + usize::from(rng.bool());
        let lease = Duration::from_secs([3, 10, 30][rng.usize(0..3)]);
        let slots = [1, 2, 4, 32, 256][rng.usize(0..5)];
        let config = Config { slots, lease, role: Role::Work, ..Config::default() };
        let calm =
            program.script.end().min(Duration::from_secs(60)) + Duration::from_millis(rng.u64(0..20_000));
        let weather = if options.faults { Weather::random(&mut rng) } else { Weather::fair() };
        let mishaps = match options.faults {
            true => draw(&mut rng, instances, lease, calm),
            false => vec![(calm, Mishap::Calm)],
        };
        let story = if options.tell { Story::told() } else { Story::silent() };
        let shared = Shared::new(rng, weather, Watch::new(options.checker), story);
        let program = Arc::new(program);
        let client = Client {
            wire: Wire::new(shared.clone(), "client".into()),
            shared: shared.clone(),
            program: program.clone(),
            plans: Arc::new(Plans::default()),
            tenant: Tenant::default(),
        };
        let numbers = (0..program.script.runs()).map(|number| (client.run(number), number)).collect();
        let mut world = World {
            shared,
            program,
            numbers,
            client,
            checker: options.checker,
            config,
            weather,
            instances: (0..instances).map(|_| None).collect(),
            lives: vec![0; instances],
            tasks: BTreeMap::new(),
            last_task: 0,
            durable: None,
            calm: None,
            horizon: calm + LONGEST,
        };
        for (at, mishap) in mishaps {
            world.shared.lock().wake(at, Wake::Mishap(mishap));
        }
        (0..instances).for_each(|instance| world.start(instance));
        world.tidy_up(calm);
        for timed in world.program.script.ops.clone() {
            let performed = world.client.clone().perform(timed.at, timed.op);
            world.spawn(Owner::Client, Box::pin(performed));
        }
        world
    }

    /// In some worlds old runs go. A run under a key could be started again once it is gone, and its steps would begin
    /// again too, so then only events go.
    fn tidy_up(&mut self, calm: Duration) {
        let mut inner = self.shared.lock();
        if inner.rng.u32(0..8) != 0 {
            return;
        }
        let keys = self
            .program
            .script
            .ops
            .iter()
            .any(|timed| matches!(&timed.op, Op::Start(start) if start.key.is_some()));
        let events = Duration::from_secs(inner.rng.u64(1..=10));
        let runs = if keys { LONGEST * 10 } else { events + Duration::from_secs(inner.rng.u64(1..=20)) };
        let end = calm.as_millis() as u64 + 60_000;
        let mut times: Vec<Duration> =
            (0..8).map(|_| Duration::from_millis(inner.rng.u64(1..=end))).collect();
        times.sort();
        drop(inner);
        let tidied = self.client.clone().tidy_up(times, Retention { events, runs });
        self.spawn(Owner::Client, Box::pin(tidied));
    }

    fn run(mut self) -> Simulated {
        loop {
            let next = self.shared.lock().queue.pop_first();
            let Some(((at, _), wake)) = next else { break };
            self.shared.lock().now = at;
            if at > self.horizon {
                let message = "the world does not come to rest".to_owned();
                let restless = self.violation(None, Invariant::I11, message);
                self.shared.lock().violations.extend(restless);
                break;
            }
            match wake {
                Wake::Task(task) => self.poll(task),
                Wake::Tick { life, generation } => self.tick(life, generation),
                Wake::Mishap(Mishap::Look) if self.is_at_rest() => break,
                Wake::Mishap(mishap) => self.happen(mishap),
            }
            self.settle();
            if !self.shared.lock().violations.is_empty() {
                break;
            }
        }
        self.finish()
    }

    fn finish(self) -> Simulated {
        let mut inner = self.shared.lock();
        if inner.violations.is_empty() {
            let inner = &mut *inner;
            inner.violations.extend(inner.watch.end(&inner.memory));
            inner.violations.extend(inner.history.check(self.checker, &inner.memory));
            inner.violations.extend(inner.effects.check(self.checker, &inner.memory));
            inner.violations.extend(self.compare(&inner.memory));
        }
        for violation in inner.violations.clone() {
            inner.tell(|| "checker".to_owned(), || format!("VIOLATION {violation}"));
        }
        let runs: Vec<RunKey> = self.numbers.keys().cloned().collect();
        let started = inner.memory.load(&runs).into_iter().flatten().map(|run| run.row.key());
        let runs = started.filter_map(|run| Some((*self.numbers.get(&run)?, run))).collect();
        Simulated {
            violations: std::mem::take(&mut inner.violations),
            story: inner.story.lines().to_vec(),
            store: std::mem::take(&mut inner.memory),
            runs,
            acted: std::mem::take(&mut inner.acted),
            took: inner.now,
        }
    }

    /// Holds every run against the model.
    fn compare(&self, memory: &Memory) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (key, number) in &self.numbers {
            let log = Source::events(memory, key, 0);
            if log.is_empty() {
                continue;
            }
            let parent = self.program.script.ops.iter().find_map(|timed| match timed.op {
                Op::Retry { run, into, .. } if into == *number => {
                    Some(Source::events(memory, &self.client.run(run), 0))
                }
                _ => None,
            });
            // Of a run that retention has trimmed nothing can be said.
            let parent = parent.filter(|parent| !parent.is_empty());
            let seen = Seen { log: &log, parent: parent.as_deref(), at_rest: true };
            if let Err(message) = compare(&self.program, *number, seen) {
                violations.extend(self.violation(
                    Some(key),
                    Invariant::I5,
                    format!("not as the model: {message}"),
                ));
            }
        }
        violations
    }

    fn violation(&self, run: Option<&RunKey>, invariant: Invariant, message: String) -> Option<Violation> {
        let (tenant, run_id) = (self.client.tenant.clone(), run.map(|run| run.run.clone()));
        let violation = Violation { tenant, run_id, invariant, message, subject: Subject::Outside };
        (self.checker.without != Some(invariant)).then_some(violation)
    }

    /// Starts a process, unless one runs.
    fn start(&mut self, instance: usize) {
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
        let slots = Slots { queues: BTreeMap::new(), elsewhere: config.slots };
        inner.effects.slots.insert(name, slots);
        drop(inner);
        self.instances[instance] = Some(Instance::start(life, config, wire, rng, now, store_now));
        self.turn(instance);
    }

    /// A process ends, with all that it held in memory. What it has sent may still arrive.
    fn end(&mut self, instance: usize) {
        let Some(dead) = self.instances[instance].take() else { return };
        let of: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.owner == Owner::Life(dead.life))
            .map(|(id, _)| *id)
            .collect();
        of.into_iter().for_each(|task| self.abandon(task));
        let mut inner = self.shared.lock();
        inner.up.retain(|life| *life != dead.life);
        inner.hang_up(dead.life);
        for running in dead.attempts.values() {
            // What a step does to the world can outlive the process that ran it.
            if inner.rng.u32(0..3) == 0 {
                inner.acted.push((running.run.clone(), running.step, running.attempt));
            }
        }
        inner.effects.log.push(Effect::Crashed { worker: dead.name.clone() });
    }

    /// A task is dropped. What it has sent to the store arrives, or is lost with it.
    fn abandon(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.place == Place::Wire && self.shared.lock().rng.bool() {
            task.owner = Owner::Nobody;
        } else {
            self.tasks.remove(&id);
        }
    }

    fn spawn(&mut self, owner: Owner, work: Work) -> TaskId {
        self.last_task += 1;
        let id = self.last_task;
        self.tasks.insert(id, Task { work, owner, place: Place::Home });
        self.poll(id);
        id
    }

    fn poll(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if let Owner::Life(life) = task.owner
            && task.place == Place::Home
            && let Some(stopped) = self.instances[life.instance].as_mut().filter(|instance| instance.paused)
        {
            stopped.late.push(id);
            return;
        }
        {
            let mut inner = self.shared.lock();
            inner.polling = id;
            inner.place = Place::Home;
        }
        let done = task.work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        task.place = self.shared.lock().place;
        if done || task.owner == Owner::Nobody && task.place == Place::Home {
            self.tasks.remove(&id);
        }
    }

    fn tick(&mut self, life: Life, generation: u64) {
        let Some(instance) = &mut self.instances[life.instance] else { return };
        if instance.life == life && instance.generation == generation {
            instance.tick_at = None;
            if !instance.paused {
                self.turn(life.instance);
            }
        }
    }

    /// Does everything that is set off at once.
    fn settle(&mut self) {
        loop {
            let spawned = std::mem::take(&mut self.shared.lock().spawned);
            let mail = std::mem::take(&mut self.shared.lock().mail);
            if spawned.is_empty() && mail.is_empty() {
                return;
            }
            for work in spawned {
                self.spawn(Owner::Nobody, work);
            }
            let mut touched = BTreeSet::new();
            for (life, message) in mail {
                self.deliver(life, message);
                touched.insert(life.instance);
            }
            touched.into_iter().for_each(|instance| self.turn(instance));
        }
    }

    fn deliver(&mut self, life: Life, message: Message<Ticket>) {
        let Some(instance) = &mut self.instances[life.instance] else { return };
        if instance.life != life {
            return;
        }
        if instance.paused {
            return instance.kept.push_back(message);
        }
        let local = instance.local(self.shared.lock().now);
        if let Message::Finished(token, ..) = &message {
            instance.attempts.remove(token);
        }
        instance.driver.handle(message, local);
    }

    /// What the loop of a host does after its mail.
    fn turn(&mut self, at: usize) {
        let now = self.shared.lock().now;
        let Some(instance) = self.instances[at].as_mut().filter(|instance| !instance.paused) else { return };
        let local = instance.local(now);
        instance.driver.tick(local);
        loop {
            let Some(instance) = &mut self.instances[at] else { return };
            let more = instance.driver.pump();
            let actions: Vec<Action<Ticket>> = instance.driver.actions().collect();
            actions.into_iter().for_each(|action| self.carry_out(at, action));
            if !more {
                break;
            }
        }
        let Some(instance) = &mut self.instances[at] else { return };
        if instance.draining && instance.driver.has_stopped() {
            let owner = Owner::Life(instance.life);
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

    fn carry_out(&mut self, at: usize, action: Action<Ticket>) {
        let Some(instance) = &self.instances[at] else { return };
        let (life, wire, plans) = (instance.life, instance.wire.clone(), instance.plans.clone());
        match action {
            Action::Call(call) => {
                let shared = self.shared.clone();
                let asked = async move {
                    if let Some(answer) = call.ask(&wire, &plans).await {
                        shared.lock().mail.push_back((life, Message::Answer(answer)));
                    }
                };
                self.spawn(Owner::Life(life), Box::pin(asked));
            }
            Action::Launch(launch, began) => self.launch(at, launch, began),
            Action::Stop(token) => self.stop(at, token),
            Action::Reply(ticket, outcome) => self.shared.lock().resolve(ticket, Some(outcome)),
            Action::Ended(run, ended) => {
                let name = &instance.name;
                let what = || format!("sees run {} end {}", run.run, ended.status);
                self.shared.lock().tell(|| name.to_string(), what);
            }
            Action::Trouble(_) => {}
        }
    }

    fn launch(&mut self, at: usize, launch: Launch, began: Time) {
        let Some(instance) = &self.instances[at] else { return };
        let (step, attempt, token) = (launch.step, launch.attempt, launch.token);
        let (run, name) = (launch.run.clone(), launch.plan.step(step).name.clone());
        let queue = launch.plan.step(step).queue.clone();
        let act = {
            let mut inner = self.shared.lock();
            let found = inner.memory.load(std::slice::from_ref(&run)).pop().flatten();
            let state = found.and_then(|found| RunState::decode(&launch.plan, &found.state).ok());
            let tries = state.map_or(0, |state| state.step(step).tries);
            inner.tell(
                || instance.name.to_string(),
                || format!("runs {name} attempt {attempt} of run {}", run.run),
            );
            inner.effects.log.push(Effect::Began {
                worker: instance.name.clone(),
                queue: queue.clone(),
                run: run.clone(),
                step: name.clone(),
                attempt,
            });
            let number = self.numbers.get(&run).copied().unwrap_or_default();
            self.program.act(number, step, tries)
        };
        let worker = Worker::new(self.shared.clone(), instance, &launch, began);
        let running = Running { task: 0, run, step, name, attempt, queue };
        let life = instance.life;
        if let Some(instance) = &mut self.instances[at] {
            instance.attempts.insert(token, running);
        }
        let task = self.spawn(Owner::Life(life), Box::pin(worker.play(act)));
        if let Some(instance) = &mut self.instances[at]
            && let Some(running) = instance.attempts.get_mut(&token)
        {
            running.task = task;
        }
    }

    fn stop(&mut self, at: usize, token: Token) {
        let Some(instance) = &mut self.instances[at] else { return };
        let Some(running) = instance.attempts.remove(&token) else { return };
        let mut inner = self.shared.lock();
        inner.tell(
            || instance.name.to_string(),
            || format!("stops {} attempt {} of run {}", running.name, running.attempt, running.run.run),
        );
        inner.effects.log.push(running.ended(&instance.name, Reported::Nothing));
        drop(inner);
        self.abandon(running.task);
    }

    fn happen(&mut self, mishap: Mishap) {
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
                    inner.mail.push_back((life, Message::Stop(drain)));
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
                say(self, None, format!("is away for {time:?}"));
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
    fn go_on(&mut self, at: usize) {
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

    /// The store and all instances crash together; what was not durable is lost, and clients that were told otherwise
    /// were told by a store that promises no more.
    fn roll_back(&mut self) {
        let Some(durable) = self.durable.take() else { return };
        self.shared.lock().tell(
            || "store".to_owned(),
            || "FAULT crashes with all instances, and goes back to its last durable point".to_owned(),
        );
        (0..self.instances.len()).for_each(|at| self.end(at));
        self.tasks.retain(|_, task| task.owner == Owner::Client);
        let mut inner = self.shared.lock();
        inner.memory = durable.memory;
        inner.watch = durable.watch;
        let slots = std::mem::take(&mut inner.effects.slots);
        inner.effects = durable.effects;
        inner.effects.slots.extend(slots);
        let workers: Vec<Arc<str>> = inner.effects.slots.keys().cloned().collect();
        inner.effects.log.extend(workers.into_iter().map(|worker| Effect::Crashed { worker }));
        for operation in inner.history.operations.iter_mut().skip(durable.operations) {
            if operation.outcome == Outcome::Acknowledged {
                operation.outcome = Outcome::Unknown;
            }
        }
        let back = inner.now + Duration::from_millis(inner.rng.u64(1..3_000));
        (0..self.instances.len()).for_each(|at| inner.wake(back, Wake::Mishap(Mishap::Restart(at))));
    }

    /// Nothing goes wrong any more, and all that is paused is resumed.
    fn calm_down(&mut self) {
        for at in 0..self.instances.len() {
            self.go_on(at);
            self.start(at);
        }
        let mut inner = self.shared.lock();
        inner.tell(|| "world".to_owned(), || "faults end".to_owned());
        inner.weather = Weather::fair();
        self.calm = Some(inner.store_now());
        let now = inner.now;
        inner.wake(now + LOOK, Wake::Mishap(Mishap::Look));
        drop(inner);
        self.resume();
    }

    fn look(&mut self) {
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

    fn resume(&mut self) {
        let resumed = self.client.clone().resume_all();
        self.spawn(Owner::Client, Box::pin(resumed));
    }

    fn clients_are_done(&self) -> bool {
        !self.tasks.values().any(|task| task.owner == Owner::Client)
    }

    /// Whether nothing is left to happen: no client at work, no job anywhere.
    fn is_at_rest(&self) -> bool {
        let inner = self.shared.lock();
        self.clients_are_done() && self.numbers.keys().all(|run| inner.memory.jobs(run).is_empty())
    }
}
