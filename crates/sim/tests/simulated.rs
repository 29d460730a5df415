//! Random programs under the simulator's faults, held against the model.

use flowline_sim::program::Program;
use flowline_sim::trial::agree;
use flowline_sim::{Options, simulate};

/// Programs that are simulated; another number can be given in the environment.
const SEEDS: u64 = 150;

/// Seeds that showed a mistake once, with what it was.
const REGRESSIONS: &[(u64, &str)] = &[(
    1_465,
    "an emit_now whose commit met a lost answer while its engine drained failed the step with lease_lost",
)];

/// The problem of a seed, as the checker or the model tells it.
fn problem(seed: u64) -> Option<String> {
    let program = Program::random(seed);
    let simulated = simulate(program.clone(), &Options::default());
    let broken = simulated.violations.first().map(|violation| violation.to_string());
    broken.or_else(|| agree(&program, &simulated).err()).map(|problem| format!("seed {seed}: {problem}"))
}

#[test]
fn seeds_that_once_went_wrong_stay_right() {
    let wrong: Vec<String> = REGRESSIONS.iter().filter_map(|(seed, _)| problem(*seed)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn simulated_runs_go_as_the_model_says() {
    let seeds =
        std::env::var("FLOWLINE_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let wrong: Vec<String> = (0..seeds).filter_map(problem).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
