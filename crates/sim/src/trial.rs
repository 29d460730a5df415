//! One seed of a user's flow, played and made ready for the report.

use flowline_check::StoreSnapshot;
use flowline_core::Event;

use crate::program::SimProgram;
use crate::report::Trial;
use crate::world::{Aim, SimulationOptions, simulate};

/// Whether to keep what everybody did; without it a seed is quicker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell {
    Nothing,
    Story,
}

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

/// Plays a program with one run; with its story where `tell` says so.
pub fn play(program: &SimProgram, tell: Tell) -> Played {
    let options =
        SimulationOptions { tell: tell == Tell::Story, aim: Aim::Show, ..SimulationOptions::default() };
    let simulated = simulate(program.clone(), &options);
    let name = |step: u32| match program.plan(0) {
        Some(plan) => plan.step(step).name.to_string(),
        None => String::new(),
    };
    let effects = simulated.acted.iter().map(|(_, step, attempt)| (name(*step), *attempt));
    Played {
        seed: program.seed,
        log: simulated
            .runs
            .get(&0)
            .map(|run| StoreSnapshot::events(&simulated.store, run, 0))
            .unwrap_or_default(),
        effects: effects.collect(),
        story: simulated.story,
        violation: simulated.violations.first().map(|violation| violation.to_string()),
        guessed: program.guesses.iter().map(|guess| name(guess.step)).collect(),
    }
}
