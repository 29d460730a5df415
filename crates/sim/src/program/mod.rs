//! Programs for the simulator: a flow or a machine, what its steps do, and what clients do to its runs.
//!
//! A program follows from its seed alone. What a step does depends on the run, the step and how many of its tries have
//! failed so far, and not on which attempts were lost with their leases: so a model can say beforehand what becomes of
//! a run however often it is disturbed. Nothing here touches the engine; [`crate::model`] predicts, the simulator plays.

mod act;
mod flow;
mod machine;
mod sample;
mod script;
mod stub;
mod toy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use flowline_core::definition::Retain;
use flowline_core::{Definition, Json, Plan};

pub use act::{Doing, ScriptedAttempt, ScriptedOutcome};
pub use flow::{Condition, Version};
pub use machine::{Guard, Made, MadeTransition, Term};
pub use script::{ClientOp, ClientScript, ScriptedStart, Timed};
pub use stub::{Guess, Stub};
pub use toy::Play;
pub(crate) use toy::users_of;

/// A flow with the behaviour of its steps and of its clients.
#[derive(Debug, Clone)]
pub struct SimProgram {
    pub seed: u64,
    /// The definitions of the flow, oldest first. A start names one by its place here.
    pub versions: Vec<Version>,
    pub script: ClientScript,
    /// Conditions of a user's flow that made-up data could not settle.
    pub guesses: Vec<Guess>,
    temper: Temper,
    /// What events carry, where it is not made up on the spot.
    payloads: Arc<BTreeMap<String, Json>>,
    /// A machine of the user's, whose events are chosen while it is played.
    toy: Option<Arc<toy::Toy>>,
}

/// The draw that makes a seed's program a machine. Chosen so that seeds that once failed still make the same flow.
const MACHINES: u64 = 47;

/// Whether the world of a seed has a slow store, so that inputs of a run wait and are decided together. None of the seeds
/// that once failed is among them.
pub(crate) fn is_sluggish(seed: u64) -> bool {
    seed % 7 == 5
}

/// Longer than any world lasts.
const KEPT: Duration = Duration::from_secs(86_400);

/// How the steps of a program behave on the whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Temper {
    /// How likely a try fails, in percent.
    failing: u32,
    /// A step that fails in every try, if it comes to it.
    doomed: Option<u32>,
    manners: Manners,
    /// How long a try takes at most, unless it outlasts its time-out.
    slowest: Duration,
}

/// What steps do beside ending.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Manners {
    /// Nothing; a step that declares several emits publishes at least one of them.
    Plain,
    /// Log lines, changes of state, `emit_now`; any choice of the declared emits.
    Lively,
    /// The same, and every step that can publishes something before it ends.
    Hasty,
    /// Also what no step may: undeclared emits, payloads against their schema.
    Unruly,
}

impl SimProgram {
    /// The random program of a seed: of a machine in a third of them.
    pub fn random(seed: u64) -> SimProgram {
        let machine = mix(seed, &[MACHINES]).is_multiple_of(3);
        let mut rng = Rng::with_seed(mix(seed, &[if machine { 4 } else { 0 }]));
        let mut versions = if machine { machine::versions(&mut rng) } else { flow::versions(&mut rng) };
        retain(&mut Rng::with_seed(mix(seed, &[7])), &mut versions);
        let mut temper = Temper {
            failing: pick(&mut rng, &[0, 5, 15, 15, 40]),
            doomed: None,
            manners: if one_in(&mut rng, 4) { Manners::Unruly } else { Manners::Lively },
            slowest: Duration::from_millis(pick(&mut rng, &[200, 2_000, 2_000, 15_000])),
        };
        let mut script = match machine {
            true => script::of_machines(&mut rng, &versions),
            false => script::random(&mut rng, &versions),
        };
        if is_sluggish(seed) {
            temper.manners = Manners::Hasty;
            script.cut_short(&mut Rng::with_seed(mix(seed, &[5])));
        }
        SimProgram::new(seed, versions, script, temper)
    }

    /// One run of a flow in which everything succeeds at once, except that `doomed` fails whenever it is tried.
    #[cfg(test)]
    pub(crate) fn calm(
        definition: flowline_core::Definition,
        doomed: Option<&str>,
        input: Json,
    ) -> SimProgram {
        let plan = Arc::new(Plan::build(definition).unwrap());
        let doomed = doomed.map(|step| plan.step_index(step).unwrap());
        let says = |step: &flowline_core::definition::StepDefinition| {
            step.condition.as_ref().map(|condition| Condition::Given(condition == "true"))
        };
        let conditions = plan.definition.steps.iter().map(says).collect();
        let script = ClientScript::of(vec![Timed::only_start(input)]);
        let temper =
            Temper { failing: 0, doomed, manners: Manners::Plain, slowest: Duration::from_millis(10) };
        SimProgram::new(0, vec![Version { plan, conditions, machine: None }], script, temper)
    }

    fn new(seed: u64, versions: Vec<Version>, script: ClientScript, temper: Temper) -> SimProgram {
        SimProgram {
            seed,
            versions,
            script,
            guesses: Vec::new(),
            temper,
            payloads: Arc::default(),
            toy: None,
        }
    }

    /// The plan that a run of the script is pinned to; `None` where no start makes that run.
    pub fn plan(&self, run: usize) -> Option<&Arc<Plan>> {
        self.version(run).map(|version| &version.plan)
    }

    pub fn version(&self, run: usize) -> Option<&Version> {
        self.versions.get(self.script.version_of(run)?)
    }

    /// Whether its runs are those of a machine.
    pub fn is_of_machine(&self) -> bool {
        self.versions.iter().any(|version| version.plan.machine.is_some())
    }

    /// Whether a run that repeats one of a machine begins anew; the others are tried again in place.
    pub fn retries_from_start(&self, into: usize) -> bool {
        self.is_of_machine() && mix(self.seed, &[8, into as u64]).is_multiple_of(4)
    }

    /// Whether it plays a machine of the user's, whose expressions no model knows and whose timers may come back for ever.
    pub fn is_toy(&self) -> bool {
        self.toy.is_some()
    }

    /// What a step does in a run, after this many failed tries (attempts lost with their lease do not count).
    pub fn act(&self, run: usize, step: u32, tries: u32) -> ScriptedAttempt {
        self.acts(run, step, mix(self.seed, &[1, run as u64, u64::from(step), u64::from(tries)]))
    }

    /// The same of an action that this transition of a machine asked for.
    pub fn act_in(&self, run: usize, transition: u32, action: u32, tries: u32) -> ScriptedAttempt {
        let of = [3, run as u64, u64::from(action), u64::from(tries), u64::from(transition)];
        self.acts(run, action, mix(self.seed, &of))
    }

    fn acts(&self, run: usize, step: u32, seed: u64) -> ScriptedAttempt {
        match self.plan(run) {
            Some(plan) => act::Making {
                rng: Rng::with_seed(seed),
                temper: self.temper,
                payloads: &self.payloads,
                plan,
                step,
            }
            .act(),
            None => ScriptedAttempt::nothing(),
        }
    }
}

/// The number that every payload of an event carries as `n`: whoever emits it first, conditions see the same.
pub fn weight(event: &str) -> i64 {
    (event.bytes().fold(7u64, |sum, byte| mix(sum, &[u64::from(byte)])) % 4) as i64
}

/// One number from several; small differences in make large ones out.
pub(crate) fn mix(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(seed, |sum, part| {
        let mut z =
            sum.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(part.wrapping_mul(0xff51_afd7_ed55_8ccd));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Gives some definitions a `retain`. Drawn separately, so that the rest of the program stays the same. It never removes a
/// run earlier than the world's policy, because a start may still be on its way.
fn retain(rng: &mut Rng, versions: &mut [Version]) {
    for version in versions {
        if !one_in(rng, 3) {
            continue;
        }
        let events = (!one_in(rng, 4)).then(|| Duration::from_secs(rng.u64(1..=60)));
        let runs = (events.is_none() || one_in(rng, 2)).then_some(KEPT);
        let definition =
            Definition { retain: Some(Retain { events, runs }), ..version.plan.definition.clone() };
        match Plan::build(definition) {
            Ok(plan) => version.plan = Arc::new(plan),
            Err(error) => unreachable!("it was planned before: {error}"),
        }
    }
}

pub(crate) fn one_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(0..n) == 0
}

pub(crate) fn percent(rng: &mut Rng, of: u32) -> bool {
    rng.u32(0..100) < of
}

pub(crate) fn pick<T: Clone>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(0..of.len())].clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_program_every_time() {
        for seed in 0..200 {
            let (one, two) = (SimProgram::random(seed), SimProgram::random(seed));
            let shown = |program: &SimProgram| {
                let flows: Vec<String> =
                    program.versions.iter().map(|version| version.plan.definition.canonical()).collect();
                format!("{flows:?} {:?} {:?}", program.script, program.act(0, 0, 1))
            };
            assert_eq!(shown(&one), shown(&two));
        }
    }

    /// But for what stores still hold from before it was refused, and what a guard that cannot be worked out reads.
    #[test]
    fn every_random_definition_passes_the_check_of_files() {
        for seed in 0..500 {
            for version in SimProgram::random(seed).versions {
                let Err(mut found) = version.plan.definition.validate() else { continue };
                found.items.retain(|item| !matches!(item.code, "crossed-after" | "unknown-context-key"));
                assert!(!found.has_errors(), "seed {seed}: {}", found.render(false));
            }
        }
    }

    /// Every part is in ten definitions or more, and every operation in a script.
    #[track_caller]
    fn have(all: &[SimProgram], parts: &str, operations: &[&str]) {
        let definitions: Vec<String> =
            all.iter().flat_map(|program| &program.versions).map(|v| v.plan.definition.canonical()).collect();
        for part in parts.split(' ') {
            let having = definitions.iter().filter(|text| text.contains(part)).count();
            assert!(having >= 10, "only {having} of {} have {part}", definitions.len());
        }
        let script = format!("{:?}", all.iter().map(|program| &program.script).collect::<Vec<_>>());
        for part in operations {
            assert!(script.contains(part), "no script has {part}");
        }
    }

    #[test]
    fn a_good_share_of_programs_are_machines_with_all_that_machines_can_have() {
        let all: Vec<SimProgram> =
            (0..900).map(SimProgram::random).filter(SimProgram::is_of_machine).collect();
        assert!((250..350).contains(&all.len()), "{} of 900", all.len());
        let parts = r#""if" "role" "set" "entry" "exit" "in":" "at" "skip" "restart" on_error continue "final":"failed" "retry" "timeout" context.missing"#;
        have(&all, parts, &["fresh: true", "\"boss\"", "Pause", "Cancel", "Retry", "delay: 1", "key: Some"]);
    }

    #[test]
    fn programs_differ_in_all_that_flows_can_have() {
        let all: Vec<SimProgram> = (0..500).map(SimProgram::random).collect();
        let parts = r#""any" step: "if" "only" "except" "timeout" continue fail_fast accepts priority queue returns backoff"#;
        let operations =
            ["Send", "Pause", "Resume", "Cancel", "Complete", "Fail", "Retry", "key: Some", "version: 1"];
        have(&all, parts, &operations);
    }
}
