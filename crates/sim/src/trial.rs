//! A simulated program, held against the model; and one seed of a user's flow, made ready for the report.

use flowline_check::Source;
use flowline_core::Event;

use crate::model::{Seen, compare};
use crate::program::{Op, Program};
use crate::report::Trial;
use crate::world::{Options, Simulated, simulate};

/// What came of a seed of a user's flow.
#[derive(Debug)]
pub struct Played {
    pub seed: u64,
    /// The log of its one run; empty where the start never got through.
    pub log: Vec<Event>,
    /// Attempts that acted on the world, in order.
    pub effects: Vec<(String, u32)>,
    /// Who did what, line by line, where it was asked for.
    pub story: Vec<String>,
    pub violation: Option<String>,
    guessed: Vec<String>,
}

impl Played {
    pub fn trial(&self) -> Trial<'_> {
        Trial {
            seed: self.seed,
            log: &self.log,
            effects: &self.effects,
            guessed: &self.guessed,
            violation: self.violation.as_deref(),
        }
    }
}

/// Plays a program with one run.
pub fn play(program: &Program, options: &Options) -> Played {
    let simulated = simulate(program.clone(), options);
    let broken = simulated.violations.first().map(|violation| violation.to_string());
    let violation = broken.or_else(|| agree(program, &simulated).err());
    let name = |step: u32| match program.plan(0) {
        Some(plan) => plan.step(step).name.to_string(),
        None => String::new(),
    };
    let effects = simulated.acted.iter().map(|(_, step, attempt)| (name(*step), *attempt));
    Played {
        seed: program.seed,
        log: simulated.runs.get(&0).map(|run| Source::events(&simulated.store, run, 0)).unwrap_or_default(),
        effects: effects.collect(),
        story: simulated.story,
        violation,
        guessed: program.guesses.iter().map(|guess| name(guess.step)).collect(),
    }
}

/// Whether every run of a simulation that came to rest went as the model says.
pub fn agree(program: &Program, simulated: &Simulated) -> Result<(), String> {
    let log = |number: &usize| -> Option<Vec<Event>> {
        let run = simulated.runs.get(number)?;
        let whole = Source::row(&simulated.store, run).is_some_and(|row| !row.events_trimmed);
        whole.then(|| Source::events(&simulated.store, run, 0))
    };
    for number in simulated.runs.keys() {
        let Some(events) = log(number) else { continue };
        let of = program.script.ops.iter().find_map(|timed| match &timed.op {
            Op::Retry { run, into, .. } if into == number => Some(*run),
            _ => None,
        });
        let parent = of.and_then(|of| log(&of));
        let seen = Seen { log: &events, parent: parent.as_deref(), at_rest: true };
        compare(program, *number, seen).map_err(|problem| format!("model: run {number}: {problem}"))?;
    }
    Ok(())
}
