//! Runs seeds one after the other on one thread. Started by `cargo xtask simulate`.

use std::io::{IsTerminal, Write};
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use flowline_sim::program::SimProgram;
use flowline_sim::{SimulationOptions, simulate};

/// How often the line of progress changes.
const PROGRESS: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    match seeds(std::env::args().skip(1)) {
        Ok(Asked::Many { from, count }) => many(from, count),
        Ok(Asked::One(seed)) => one(seed),
        Err(problem) => {
            eprintln!("{problem}; use --seeds N, --from SEED, or --seed SEED to see the story of one seed");
            ExitCode::from(2)
        }
    }
}

enum Asked {
    Many { from: u64, count: u64 },
    One(u64),
}

fn seeds(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let (mut from, mut count) = (0, 1_000);
    while let Some(argument) = arguments.next() {
        let text = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
        let number: u64 = text.parse().map_err(|_| format!("{text:?} isn't a number"))?;
        match argument.as_str() {
            "--seeds" => count = number,
            "--from" => from = number,
            "--seed" => return Ok(Asked::One(number)),
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok(Asked::Many { from, count })
}

fn many(from: u64, count: u64) -> ExitCode {
    let begin = Instant::now();
    let mut shown = begin;
    let mut failed = Vec::new();
    let mut of_machines = 0u64;
    for seed in from..from.saturating_add(count) {
        // A world that panics is a finding like any other, and must not end the hunt without its seed.
        let judged = catch_unwind(|| {
            let program = SimProgram::random(seed);
            (program.is_of_machine(), simulate(program, &SimulationOptions::default()).violations.is_empty())
        });
        of_machines += u64::from(judged.as_ref().is_ok_and(|(machine, _)| *machine));
        if !judged.as_ref().is_ok_and(|(_, fine)| *fine) {
            failed.push(seed);
            let how = if judged.is_err() { "panics" } else { "breaks an invariant" };
            eprintln!("\rseed {seed} {how}      ");
            if failed.len() == 10 {
                break;
            }
        }
        if shown.elapsed() >= PROGRESS && std::io::stderr().is_terminal() {
            shown = Instant::now();
            eprint!("\r{} of {count} seeds, {} violations ", seed - from + 1, failed.len());
            let _ = std::io::stderr().flush();
        }
    }
    if let Some(seed) = failed.first() {
        tell(*seed);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let done = failed.last().filter(|_| failed.len() == 10).map_or(count, |last| last - from + 1);
    eprint!("\r");
    let rate = done as f64 / seconds;
    let violations = failed.len();
    println!("{done} seeds, {of_machines} of machines, {rate:.0} seeds per second, {violations} violations");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(seed: u64) -> ExitCode {
    if tell(seed) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tells the story of a seed. True where nothing is wrong with it.
fn tell(seed: u64) -> bool {
    let program = SimProgram::random(seed);
    for version in &program.versions {
        println!("flow: {}", version.plan.definition.canonical());
    }
    let simulated = simulate(program, &SimulationOptions { tell: true, ..SimulationOptions::default() });
    simulated.story.iter().for_each(|line| println!("{line}"));
    for violation in &simulated.violations {
        println!("seed {seed} breaks {violation}");
    }
    println!("replay: cargo xtask simulate --seed {seed}");
    simulated.violations.is_empty()
}
