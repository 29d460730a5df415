//! A short simulation on every test run. `cargo xtask simulate` does the long ones.

use flowline_sim::program::SimProgram;
use flowline_sim::{Simulated, SimulationOptions, simulate};

/// Seeds that showed a mistake once, with what it was. Each must stay fine.
const REGRESSIONS: &[(u64, &str)] = &[
    (2, "a claim and a hand-over filled the same slot"),
    (
        1_465,
        "an emit_now whose commit met a lost answer while its engine drained failed the step with lease_lost",
    ),
    (4_337, "events that were trimmed before the clock went back were said to be gone too soon"),
    (7_641, "an outcome that waited for the store was decided on nothing when its run was started once more"),
    (90_791, "a start that its schema refuses was looked up for ever"),
    (125_540, "a failure whose answer was lost was said to be refused, and was in the log"),
    (667_375, "a delayed attempt's start and the loss of its lease were written by one commit"),
    (930_334, "a step was told that its lease is gone when another's failure met its job just claimed"),
    (475_881, "a client took the word of a store for a promise that had gone back before it arrived"),
    (590_187, "a drain that outlived the faults kept the only instance from its jobs"),
    (15_750, "a resume was answered from memory by an instance that had not seen the pause"),
    (29, "a delayed start of a machine was taken that could never begin, and waited for ever"),
    (30, "actions that waited for each other from the first were asked for and never told of"),
    (
        85,
        "the completion of an action, its answer lost, was said to be refused once the action was asked for again",
    ),
    (541, "an event whose commit was carried out twice was taken in twice under one id"),
];

fn told(seed: u64) -> Simulated {
    simulate(SimProgram::random(seed), &SimulationOptions { tell: true, ..SimulationOptions::default() })
}

fn assert_fine(seed: u64) {
    if simulate(SimProgram::random(seed), &SimulationOptions::default()).violations.is_empty() {
        return;
    }
    let story = told(seed).story.join("\n");
    panic!("seed {seed} breaks an invariant; replay it with `cargo xtask simulate --seed {seed}`\n{story}");
}

#[test]
fn a_few_hundred_worlds_keep_every_invariant() {
    (0..300).for_each(assert_fine);
}

#[test]
fn seeds_that_once_failed_stay_fine() {
    REGRESSIONS.iter().for_each(|(seed, _)| assert_fine(*seed));
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    for seed in 0..40 {
        assert_eq!(told(seed).story, told(seed).story, "seed {seed}");
    }
}

#[test]
fn a_story_that_is_told_is_the_one_that_happened() {
    for seed in 0..40 {
        let silent = simulate(SimProgram::random(seed), &SimulationOptions::default());
        assert_eq!(silent.took, told(seed).took, "seed {seed}");
    }
}

#[test]
fn a_world_without_faults_has_none_in_its_story() {
    for seed in 0..40 {
        let calm = SimulationOptions { tell: true, faults: false, ..SimulationOptions::default() };
        let simulated = simulate(SimProgram::random(seed), &calm);
        assert_eq!(simulated.violations, [], "seed {seed}");
        assert!(!simulated.story.iter().any(|line| line.contains("FAULT")), "seed {seed}");
    }
}
