//! A world: instances, clients and a store, and one loop that makes the next thing happen.
//!
//! Everything waits in one queue, ordered by time and then by the order of the requests. The loop takes the first entry, sets
//! the clock to its time and carries it out, with everything that follows immediately.

mod happen;
mod neighbour;
mod process;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use flowline::{Config, InstanceRole, Plans};
use flowline_check::{Checker, Effects, Invariant, StoreSnapshot, Subject, Violation, Watch};
use flowline_core::{RunKey, RunState, Tenant, Time};
use flowline_store::Memory;
use flowline_store::row::Retention;

use crate::client::SimulatedClient;
use crate::instance::SimInstance;
use crate::mishap::{LATEST_COPY, Mishap, Weather, draw, leaps, stop_and_go};
use crate::model::{ObservedRun, compare};
use crate::program::{ClientOp, SimProgram, is_sluggish};
use crate::shared::{BoxedFuture, FutureId, SharedWorld, TaskOwner, WaitPlace, Wake};
use crate::story::Story;
use crate::wire::Wire;

/// How a program is to be simulated.
#[derive(Debug, Clone, Copy)]
pub struct SimulationOptions {
    pub checker: Checker,
    /// Whether the story is told.
    pub tell: bool,
    /// Whether anything goes wrong beside what steps do themselves.
    pub faults: bool,
    pub aim: Aim,
}

/// What a simulation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// To find our mistakes: retention removes runs, the store goes back in time, and the world continues after faults end.
    Prove,
    /// To show what can happen to a flow: nothing that was stored is lost, and the world ends when its runs are done.
    Show,
}

impl Default for SimulationOptions {
    fn default() -> SimulationOptions {
        SimulationOptions { checker: Checker::default(), tell: false, faults: true, aim: Aim::Prove }
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
/// How long a user's machine is watched after its last event: its timers may come back for ever.
const WATCHED: Duration = Duration::from_secs(130);
/// How soon after its lease is over, or it is due, every job must get on.
const BOUND: Duration = Duration::from_secs(2);

struct Task {
    work: BoxedFuture,
    owner: TaskOwner,
    place: WaitPlace,
}

/// The store as it was when it was durable last.
struct Durable {
    memory: Memory,
    watch: Watch,
    effects: Effects,
    operations: usize,
}

pub(crate) struct World {
    shared: Arc<SharedWorld>,
    program: Arc<SimProgram>,
    numbers: BTreeMap<RunKey, usize>,
    client: SimulatedClient,
    checker: Checker,
    config: Config,
    weather: Weather,
    instances: Vec<Option<SimInstance>>,
    lives: Vec<u32>,
    tasks: BTreeMap<FutureId, Task>,
    last_task: FutureId,
    durable: Option<Durable>,
    calm: Option<Time>,
    /// When this world ends at the latest.
    horizon: Duration,
}

/// Simulates a program: same program and options, same outcome.
pub fn simulate(program: SimProgram, options: &SimulationOptions) -> Simulated {
    World::new(program, options).run()
}

impl World {
    fn new(program: SimProgram, options: &SimulationOptions) -> World {
        let mut rng = Rng::with_seed(crate::program::mix(program.seed, &[77]));
        let instances = rng.usize(1..=4).min(rng.usize(1..=4)) + usize::from(rng.bool());
        let lease = Duration::from_secs([3, 10, 30][rng.usize(0..3)]);
        let slots = [1, 2, 4, 32, 256][rng.usize(0..5)];
        let tenant = Some(Tenant::default());
        let config = Config { slots, lease, role: InstanceRole::Work, tenant, ..Config::default() };
        let calm =
            program.script.end().min(Duration::from_secs(60)) + Duration::from_millis(rng.u64(0..20_000));
        // Faults must have a moment of their own, or they would begin after their end.
        let calm = calm.max(Duration::from_millis(1));
        let mut weather = if options.faults { Weather::random(&mut rng) } else { Weather::fair() };
        if options.faults && is_sluggish(program.seed) {
            weather = weather.sluggish();
        }
        let mut mishaps = match options.faults {
            true => draw(&mut rng, instances, lease, calm),
            false => vec![(calm, Mishap::Calm)],
        };
        if options.faults && program.seed % 5 == 3 {
            mishaps.extend(stop_and_go(program.seed, instances, lease, calm));
        }
        if options.faults && program.is_of_machine() {
            mishaps.extend(leaps(program.seed, calm));
        }
        let shared = SharedWorld::new(rng, weather, Watch::new(options.checker), Story::new(options.tell));
        let horizon = match program.is_toy() {
            true => program.script.end().max(calm) + WATCHED,
            false => calm + LONGEST,
        };
        let program = Arc::new(program);
        let client = SimulatedClient {
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
            horizon,
        };
        world.move_neighbour_in();
        for (at, mishap) in mishaps {
            if options.aim == Aim::Prove || mishap != Mishap::RollBack {
                world.shared.lock().wake(at, Wake::Mishap(mishap));
            }
        }
        (0..instances).for_each(|instance| world.start(instance));
        match options.aim {
            Aim::Prove => world.tidy_up(calm),
            Aim::Show => world.shared.lock().wake(LOOK, Wake::Mishap(Mishap::Look)),
        }
        for timed in world.program.script.ops.clone() {
            let performed = world.client.clone().perform(timed.at, timed.op);
            world.spawn(TaskOwner::Client, Box::pin(performed));
        }
        world
    }

    /// Applies retention in some worlds. With keys, only events are removed: a removed run could be started again.
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
            .any(|timed| matches!(&timed.op, ClientOp::Start(start) if start.key.is_some()));
        let events = Duration::from_secs(inner.rng.u64(1..=10));
        // Nor may a start be on its way, or come again, when its run is gone.
        let least = events.max(self.weather.longest_call() + LATEST_COPY);
        let runs = if keys { LONGEST * 10 } else { least + Duration::from_secs(inner.rng.u64(1..=20)) };
        let end = calm.as_millis() as u64 + 60_000;
        let mut times: Vec<Duration> =
            (0..8).map(|_| Duration::from_millis(inner.rng.u64(1..=end))).collect();
        times.sort();
        drop(inner);
        let tidied = self.client.clone().tidy_up(times, Retention { events, runs });
        self.spawn(TaskOwner::Client, Box::pin(tidied));
    }

    fn run(mut self) -> Simulated {
        loop {
            let next = self.shared.lock().queue.pop_first();
            let Some(((at, _), wake)) = next else { break };
            self.shared.lock().now = at;
            if at > self.horizon && self.program.is_toy() {
                break;
            }
            if at > self.horizon {
                let message = "the world never becomes quiet".to_owned();
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
            inner.violations.extend(self.fold_again(&inner.memory));
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
        for (key, number) in self.numbers.iter().filter(|_| !self.program.is_toy()) {
            let log = StoreSnapshot::events(memory, key, 0);
            if log.is_empty() {
                continue;
            }
            let parent = self.program.script.ops.iter().find_map(|timed| match timed.op {
                ClientOp::Retry { run, into, .. } if into == *number => {
                    Some(StoreSnapshot::events(memory, &self.client.run(run), 0))
                }
                _ => None,
            });
            // Of a run that retention has trimmed nothing can be said.
            let parent = parent.filter(|parent| !parent.is_empty());
            let receipts = StoreSnapshot::receipts(memory, key);
            let seen =
                ObservedRun { log: &log, receipts: &receipts, parent: parent.as_deref(), at_rest: true };
            if let Err(message) = compare(&self.program, *number, seen) {
                violations.extend(self.violation(
                    Some(key),
                    Invariant::I5,
                    format!("differs from the model: {message}"),
                ));
            }
        }
        violations
    }

    /// The state that is stored beside each log is the fold of that log.
    fn fold_again(&self, memory: &Memory) -> Vec<Violation> {
        let mut violations = Vec::new();
        for (key, number) in &self.numbers {
            let stored = memory.load(std::slice::from_ref(key)).pop().flatten();
            let (Some(stored), Some(plan)) = (stored, self.program.plan(*number)) else { continue };
            let log = StoreSnapshot::events(memory, key, 0);
            let folded = RunState::fold(plan, &log).map(|state| state.encode());
            if !log.is_empty() && folded.as_ref() != Ok(&stored.state) {
                let message = "the stored run state doesn't match the log".to_owned();
                violations.extend(self.violation(Some(key), Invariant::I12, message));
            }
        }
        violations
    }

    fn violation(&self, run: Option<&RunKey>, invariant: Invariant, message: String) -> Option<Violation> {
        let (tenant, run_id) = (self.client.tenant.clone(), run.map(|run| run.run.clone()));
        let violation = Violation { tenant, run_id, invariant, message, subject: Subject::Outside };
        (self.checker.without != Some(invariant)).then_some(violation)
    }
}
