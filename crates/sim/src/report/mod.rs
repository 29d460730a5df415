//! What many seeds of a user's flow show together: how runs end, which steps may run twice, how runs come to fail, which
//! joins are left unsatisfied and why, what is never run or waits for ever, and the longest path.
//!
//! It reads logs and the ledger of effects alone, keeps the plainest example of each finding with the seed to replay it,
//! and says what can happen, not that it is wrong: a step that may run twice is a fact of life with a remedy.

mod cause;
mod path;
mod states;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use flowline_core::definition::{Definition, Subscribes};
use flowline_core::{Event, EventType, Status};
use serde::Serialize;

use crate::model::{Cut, Observed, StepFate};
use states::StateSights;

pub use cause::{How, Root};
pub use path::LongestPath;
pub(crate) use path::longest_try;
pub use states::{LostEvent, StuckState};

/// One seed, as it went.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    pub seed: u64,
    /// The run's whole log.
    pub log: &'a [Event],
    /// Attempts that acted on the world, by step and attempt, in order.
    pub effects: &'a [(String, u32)],
    /// Steps whose condition this seed had to guess.
    pub guessed: &'a [String],
    /// What broke an invariant.
    pub violation: Option<&'a str>,
}

/// How often something was seen, and the plainest seed that shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Sight {
    pub seeds: u64,
    /// Replays it.
    pub seed: u64,
    #[serde(skip)]
    weight: usize,
}

impl Sight {
    /// Counts one more; keeps the lightest seed, of equals the first. True where this one is kept.
    fn see(&mut self, seed: u64, weight: usize) -> bool {
        let kept = self.seeds == 0 || (weight, seed) < (self.weight, self.seed);
        if kept {
            (self.seed, self.weight) = (seed, weight);
        }
        self.seeds += 1;
        kept
    }
}

/// Everything that the seeds showed. Fill it with [`SimulationReport::add`], then read it.
#[derive(Debug, Clone, Default)]
pub struct SimulationReport {
    flow: Definition,
    seeds: u64,
    outcomes: BTreeMap<RunEnding, Sight>,
    twice: BTreeMap<(String, Why), Sight>,
    failures: BTreeMap<(String, Option<String>), (Sight, Vec<String>)>,
    joins: BTreeMap<Unsatisfied, Sight>,
    waits: BTreeMap<(String, Vec<String>), Sight>,
    ran: BTreeSet<String>,
    guessed: BTreeSet<String>,
    violations: Vec<Violated>,
    states: StateSights,
}

/// How a run ended, or did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnding {
    Completed,
    Failed,
    Cancelled,
    /// For an event from outside that never came.
    Waiting,
    /// Something was still under way when the simulation ended.
    Unfinished,
    /// The client could reach nobody and gave up, or the store lost the start with its latest moments.
    Unstarted,
}

/// Why a step acted more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Its attempt was cut off after it had acted: a crash, a lost lease, an instance that stopped.
    Interrupted,
    /// It had acted, then failed or ran out of time, and was tried again by its policy.
    Retried,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Unsatisfied {
    join: String,
    missing: Vec<String>,
    roots: BTreeSet<Root>,
    ending: RunEnding,
}

#[derive(Debug, Clone, Serialize)]
pub struct Violated {
    pub seed: u64,
    pub message: String,
}

/// A step that acted on the world more than once in a run.
#[derive(Debug, Clone, Serialize)]
pub struct Twice {
    pub step: String,
    pub why: Why,
    #[serde(flatten)]
    pub sight: Sight,
}

/// A way for a run to fail.
#[derive(Debug, Clone, Serialize)]
pub struct FailurePath {
    /// The step whose failure fails the run; none where the run's own time was up.
    pub step: Option<String>,
    pub code: Option<String>,
    /// From the start to the end of the run.
    pub path: Vec<String>,
    #[serde(flatten)]
    pub sight: Sight,
}

/// A join that some of what it waits for never reached.
#[derive(Debug, Clone, Serialize)]
pub struct StarvedJoin {
    pub step: String,
    /// What did not come.
    pub missing: Vec<String>,
    /// What it comes from.
    pub because: Vec<Root>,
    /// How the run ended all the same.
    pub run: RunEnding,
    #[serde(flatten)]
    pub sight: Sight,
}

/// A step that waits for events from outside for as long as nobody sends them.
#[derive(Debug, Clone, Serialize)]
pub struct Wait {
    pub step: String,
    pub events: Vec<String>,
    #[serde(flatten)]
    pub sight: Sight,
}

#[derive(Debug, Clone, Serialize)]
pub struct EndingSight {
    pub status: RunEnding,
    #[serde(flatten)]
    pub sight: Sight,
}

impl SimulationReport {
    pub fn new(flow: Definition) -> SimulationReport {
        SimulationReport { flow, ..SimulationReport::default() }
    }

    /// Takes a seed in.
    pub fn add(&mut self, trial: Trial<'_>) {
        self.seeds += 1;
        self.guessed.extend(trial.guessed.iter().cloned());
        if self.flow.machine.is_some() {
            return match trial.violation {
                Some(message) => self.violated(trial.seed, message.to_owned()),
                None => self.add_machine(trial),
            };
        }
        let read = Observed::of(&self.flow, trial.log);
        let observed = match (trial.violation.map(str::to_owned), read) {
            (None, Ok(observed)) => observed,
            // What such a seed shows says nothing about the flow.
            (Some(message), _) | (None, Err(message)) => {
                return self.violated(trial.seed, message);
            }
        };
        let ending = if trial.log.is_empty() { RunEnding::Unstarted } else { self.ending(&observed) };
        let weight = trial.log.len();
        self.outcomes.entry(ending).or_default().see(trial.seed, weight);
        self.add_ran(trial);
        self.add_twice(trial);
        if ending == RunEnding::Failed {
            self.add_failure(trial, &observed);
        }
        if ending != RunEnding::Unstarted {
            self.add_joins(trial, &observed, ending);
        }
        if ending == RunEnding::Waiting {
            self.add_wait(trial, &observed);
        }
    }

    fn violated(&mut self, seed: u64, message: String) {
        self.violations.push(Violated { seed, message });
        self.violations.sort_by_key(|violated| violated.seed);
    }

    fn add_ran(&mut self, trial: Trial<'_>) {
        let started = trial.log.iter().filter(|event| event.kind == EventType::StepStarted);
        self.ran.extend(started.filter_map(|event| event.step_name.as_deref().map(str::to_owned)));
    }

    pub fn seeds(&self) -> u64 {
        self.seeds
    }

    /// The likeliest first.
    pub fn outcomes(&self) -> Vec<EndingSight> {
        let outcomes = self.outcomes.iter();
        let all = outcomes.map(|(status, sight)| EndingSight { status: *status, sight: sight.clone() });
        by_seeds(all.collect(), |outcome| &outcome.sight)
    }

    /// Interruptions first: no setting of the flow prevents them.
    pub fn twice(&self) -> Vec<Twice> {
        let all = self.twice.iter().map(|((step, why), sight)| Twice {
            step: step.clone(),
            why: *why,
            sight: sight.clone(),
        });
        let mut all = by_seeds(all.collect(), |twice| &twice.sight);
        all.sort_by_key(|twice| twice.why);
        all
    }

    pub fn failures(&self) -> Vec<FailurePath> {
        let all = self.failures.iter().map(|((step, code), (sight, path))| FailurePath {
            step: (!step.is_empty()).then(|| step.clone()),
            code: code.clone(),
            path: path.clone(),
            sight: sight.clone(),
        });
        by_seeds(all.collect(), |failure| &failure.sight)
    }

    /// Runs that complete without the join come first, because no one would notice. A cause that contains a simpler one is
    /// left out.
    pub fn joins(&self) -> Vec<StarvedJoin> {
        let simpler = |one: &Unsatisfied, than: &Unsatisfied| {
            one.join == than.join && one.roots.len() < than.roots.len() && one.roots.is_subset(&than.roots)
        };
        let kept = self.joins.iter().filter(|(join, _)| !self.joins.keys().any(|one| simpler(one, join)));
        let all = kept.map(|(join, sight)| StarvedJoin {
            step: join.join.clone(),
            missing: join.missing.clone(),
            because: join.roots.iter().cloned().collect(),
            run: join.ending,
            sight: sight.clone(),
        });
        let mut all = by_seeds(all.collect(), |join| &join.sight);
        all.sort_by_key(|join| join.run != RunEnding::Completed);
        all
    }

    pub fn waits(&self) -> Vec<Wait> {
        let all = self.waits.iter().map(|((step, events), sight)| Wait {
            step: step.clone(),
            events: events.clone(),
            sight: sight.clone(),
        });
        by_seeds(all.collect(), |wait| &wait.sight)
    }

    /// Steps that no seed ran.
    pub fn never_run(&self) -> Vec<String> {
        let names = self.flow.steps.iter().map(|step| step.name.clone());
        names.filter(|name| !self.ran.contains(name)).collect()
    }

    /// Steps whose condition made-up data could not settle.
    pub fn guessed(&self) -> Vec<String> {
        self.guessed.iter().cloned().collect()
    }

    pub fn violations(&self) -> &[Violated] {
        &self.violations
    }

    /// Of a flow; a machine can go round in circles.
    pub fn longest_path(&self) -> Option<LongestPath> {
        self.flow.machine.is_none().then(|| LongestPath::of(&self.flow))
    }

    fn ending(&self, observed: &Observed) -> RunEnding {
        match observed.status {
            Some(Status::Completed) => RunEnding::Completed,
            Some(Status::Failed) => RunEnding::Failed,
            Some(Status::Cancelled) => RunEnding::Cancelled,
            _ if !cause::awaited(&self.flow, observed).is_empty() => RunEnding::Waiting,
            _ => RunEnding::Unfinished,
        }
    }

    /// A step acted, its attempt ended without a completion, and a later attempt acted again.
    fn add_twice(&mut self, trial: Trial<'_>) {
        for (at, (step, attempt)) in trial.effects.iter().enumerate() {
            let completed = |event: &Event| {
                event.kind == EventType::StepCompleted
                    && event.step_name.as_deref() == Some(step.as_str())
                    && event.attempt == Some(*attempt)
            };
            // What a machine asks for again in another transition is not the same work.
            let over = self.flow.machine.is_some() && trial.log.iter().any(completed);
            if over || !trial.effects[at + 1..].iter().any(|(other, _)| other == step) {
                continue;
            }
            let ended = trial.log.iter().find(|event| {
                event.kind == EventType::StepRetry
                    && event.step_name.as_deref() == Some(step.as_str())
                    && event.attempt == Some(*attempt)
            });
            let own_failure = ended.is_some_and(|event| {
                event.data.as_ref().is_some_and(|data| data.value().get("cause").is_none())
            });
            let why = if own_failure { Why::Retried } else { Why::Interrupted };
            self.twice.entry((step.clone(), why)).or_default().see(trial.seed, trial.log.len());
        }
    }

    fn add_failure(&mut self, trial: Trial<'_>, observed: &Observed) {
        let (step, code) = match cause::fatal_step(&self.flow, observed, trial.log) {
            Some((step, code)) => (step, code),
            None => (String::new(), None),
        };
        let path = match observed.cut {
            Some(Cut::OutOfTime) | None if step.is_empty() => {
                let timeout = self.flow.timeout.map(flowline_core::time::format_duration);
                vec!["start".to_owned(), format!("the run takes longer than {}", timeout.unwrap_or_default())]
            }
            _ => cause::path_to(&self.flow, trial.log, &step, code.as_deref()),
        };
        let weight = path.len() * 1_000 + trial.log.len();
        let (sight, kept) = self.failures.entry((step, code)).or_default();
        if sight.see(trial.seed, weight) {
            *kept = path;
            kept.push("the run fails".to_owned());
        }
    }

    fn add_joins(&mut self, trial: Trial<'_>, observed: &Observed, ending: RunEnding) {
        if observed.cut.is_some() {
            return;
        }
        for step in &self.flow.steps {
            let Some(subscribes) = &step.subscribes else { continue };
            let leaves = subscribes.leaves();
            let waiting = matches!(observed.fate(&step.name), StepFate::Untriggered | StepFate::Stopped)
                || ending == RunEnding::Waiting && !observed.touched.contains(&step.name);
            let some = leaves.iter().any(|leaf| cause::came(&self.flow, observed, leaf));
            if leaves.len() < 2 || !waiting || !some {
                continue;
            }
            let (missing, roots) = cause::missing(&self.flow, observed, trial.log, subscribes);
            let key = Unsatisfied { join: step.name.clone(), missing, roots, ending };
            self.joins.entry(key).or_default().see(trial.seed, trial.log.len());
        }
    }

    fn add_wait(&mut self, trial: Trial<'_>, observed: &Observed) {
        for (step, events) in cause::awaited(&self.flow, observed) {
            self.waits.entry((step, events)).or_default().see(trial.seed, trial.log.len());
        }
    }
}

fn by_seeds<T>(mut all: Vec<T>, sight: impl Fn(&T) -> &Sight) -> Vec<T> {
    all.sort_by_key(|one| std::cmp::Reverse(sight(one).seeds));
    all
}

/// What a leaf of a subscription is called in a file.
pub(crate) fn leaf_name(leaf: &Subscribes) -> String {
    match leaf {
        Subscribes::Event(event) => event.clone(),
        Subscribes::Step(step) => format!("step:{step}"),
        Subscribes::All(_) | Subscribes::Any(_) => String::new(),
    }
}
