//! `flowline simulate`: what can go wrong with a flow or a machine, found out without running its programs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use flowline::EngineError;
use flowline::core::decide::check_input;
use flowline::core::definition::Definition;
use flowline::core::plan::PlanError;
use flowline::core::{Json, Plan};
use flowline_sim::program::Stub;
use flowline_sim::report::SimulationReport;
use flowline_sim::trial::{Tell, play};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::CommandContext;
use super::start::parse_json;
use crate::definition;
use crate::failure::{CliError, Exit, Outcome};
use crate::{findings, output};

/// Test a flow or a machine against crashes, lost leases, failing steps and slow stores
///
/// Runs the real engine on virtual time and reports what can go wrong. Your programs don't run: each step and action is a
/// stub that takes some time, then succeeds with what it declares under `emits` and `returns`, or fails. A machine gets
/// random events that its current state handles. The same seed always gives the same run. Findings don't change the exit
/// code, unless Flowline itself broke a guarantee.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline simulate order.yaml --seeds 2000\n  flowline simulate order.yaml --seed 17"
)]
pub struct Args {
    /// Definition file: YAML, TOML or JSON
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// How many seeds to run, starting at 0
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 1_000)]
    seeds: u64,
    /// Run only this seed, and show everything that happens
    #[arg(long, value_name = "S", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Input of every run [default: generated from the schema]
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
}

pub fn run(context: &CommandContext, args: Args) -> Outcome {
    let input = args.input.as_deref().map(|text| parse_json(context, "--input", text)).transpose()?;
    let definition = definition::load(&args.file)?.definition;
    if let Some(input) = &input {
        let plan = Plan::build(definition.clone()).map_err(EngineError::from)?;
        check_input(&plan, input, context.settings.limits()).map_err(EngineError::Refused)?;
    }
    let flow = Flow { definition, input };
    match args.seed {
        Some(seed) => one(context, &flow, seed),
        None => many(context, &flow, &args),
    }
}

struct Flow {
    definition: Definition,
    input: Option<Json>,
}

impl Flow {
    fn stub(&self) -> Result<Stub, PlanError> {
        Stub::new(self.definition.clone(), self.input.clone())
    }
}

/// Plays many seeds and reports what they show together.
fn many(context: &CommandContext, flow: &Flow, args: &Args) -> Outcome {
    let begun = Instant::now();
    let report = play_all(flow, args.seeds)?;
    let (name, seconds) = (&flow.definition.flow, begun.elapsed().as_secs_f64());
    if context.json {
        output::json(&summary(name, seconds, &report))?;
    } else {
        output::line(&format!("{name}: {} in {seconds:.1} s", output::count(args.seeds, "seed")))?;
        findings::tell(&report, &format!("flowline simulate {}", args.file.display()))?;
    }
    Ok(exit(&report))
}

/// Plays seeds on all cores, with a bar on a terminal. The report does not depend on which comes in first.
fn play_all(flow: &Flow, seeds: u64) -> Result<SimulationReport, CliError> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {eta} left");
    let bar = ProgressBar::new(seeds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut report = SimulationReport::new(flow.definition.clone());
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        let (done, played) = mpsc::sync_channel(threads * 16);
        for _ in 0..threads {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                let mut stub = flow.stub();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let played = match &mut stub {
                        Ok(stub) => stub.program(seed).map(|program| play(&program, Tell::Nothing)),
                        Err(error) => Err(error.clone()),
                    };
                    if done.send(played).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        for played in played {
            report.add(played.map_err(EngineError::from)?.trial());
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(report)
    })
}

fn summary(flow: &str, seconds: f64, report: &SimulationReport) -> Value {
    json!({
        "flow": flow,
        "seeds": report.seeds(),
        "seconds": seconds,
        "outcomes": report.outcomes(),
        "unsatisfiedJoins": report.joins(),
        "failurePaths": report.failures(),
        "waitsForEver": report.waits(),
        "mayRunTwice": report.twice(),
        "neverRun": report.never_run(),
        "stuckStates": report.stuck(),
        "lostEvents": report.lost(),
        "neverEntered": report.never_entered(),
        "guessedConditions": report.guessed(),
        "longestPath": report.longest_path(),
        "violations": report.violations(),
    })
}

/// Plays one seed and tells all that happened.
fn one(context: &CommandContext, flow: &Flow, seed: u64) -> Outcome {
    let program = flow.stub().and_then(|mut stub| stub.program(seed)).map_err(EngineError::from)?;
    let played = play(&program, Tell::Story);
    let mut report = SimulationReport::new(flow.definition.clone());
    report.add(played.trial());
    if context.json {
        let status = report.outcomes().first().map(|outcome| outcome.status);
        output::json(&json!({
            "flow": flow.definition.flow,
            "seed": seed,
            "status": status,
            "story": played.story,
            "events": played.log,
            "violations": report.violations(),
        }))?;
    } else {
        played.story.iter().try_for_each(|line| output::line(&output::clean(line)))?;
        output::line("")?;
        findings::tell_one(&report)?;
    }
    Ok(exit(&report))
}

fn exit(report: &SimulationReport) -> Exit {
    if report.violations().is_empty() { Exit::Fine } else { Exit::Found }
}
