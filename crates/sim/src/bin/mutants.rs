//! Hunts the planted bugs. Started by `cargo xtask mutants`, which turns the feature on.

use std::process::ExitCode;

use flowline_check::{Checker, Invariant};
use flowline_core::planted::Bug;
use flowline_sim::mutants::{CaughtBy, Hunt, hunt_all};

struct Asked {
    seeds: u64,
    bugs: Vec<Bug>,
    without: Option<Invariant>,
    needed: bool,
}

fn main() -> ExitCode {
    let asked = match read(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(problem) => {
            eprintln!("{problem}; use --seeds N, --bug NAME, --without INVARIANT or --needed");
            return ExitCode::from(2);
        }
    };
    // A bug may trip an assertion of the engine's own; that it does is told in the table.
    std::panic::set_hook(Box::new(|_| {}));
    if asked.needed { needed(&asked) } else { table(&asked) }
}

fn read(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked { seeds: 10_000, bugs: Bug::ALL.to_vec(), without: None, needed: false };
    while let Some(argument) = arguments.next() {
        if argument == "--needed" {
            asked.needed = true;
            continue;
        }
        let text = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--seeds" => asked.seeds = text.parse().map_err(|_| format!("{text:?} isn't a number"))?,
            "--bug" => {
                asked.bugs.retain(|bug| bug.name() == text);
                if asked.bugs.is_empty() {
                    return Err(format!("there is no planted bug {text:?}"));
                }
            }
            "--without" => {
                let invariant = Invariant::parse(&text);
                asked.without = Some(invariant.ok_or_else(|| format!("{text:?} isn't an invariant"))?);
            }
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok(asked)
}

fn hunt(asked: &Asked, questions: &[(Bug, Checker)]) -> Vec<Hunt> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    hunt_all(questions, asked.seeds, threads, &|hunt| eprintln!("{hunt}"))
}

/// Every bug, and how many seeds it took to catch it.
fn table(asked: &Asked) -> ExitCode {
    let checker = Checker { without: asked.without };
    let questions: Vec<_> = asked.bugs.iter().map(|bug| (*bug, checker)).collect();
    let hunts = hunt(asked, &questions);
    println!("{:<21} seeds  by     what is wrong", "bug");
    hunts.iter().for_each(|hunt| println!("{hunt}"));
    let escaped: Vec<&str> =
        hunts.iter().filter(|hunt| hunt.caught.is_none()).map(|hunt| hunt.bug.name()).collect();
    let of = asked.without.map_or(String::new(), |invariant| format!(" without {invariant}"));
    println!(
        "{} of {} bugs caught{of} within {} seeds each",
        hunts.len() - escaped.len(),
        hunts.len(),
        asked.seeds
    );
    if escaped.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("not caught: {}", escaped.join(", "));
    ExitCode::FAILURE
}

/// Every invariant, and the bugs that only it catches.
fn needed(asked: &Asked) -> ExitCode {
    let questions: Vec<_> = asked.bugs.iter().map(|bug| (*bug, Checker::default())).collect();
    let hunts = hunt(asked, &questions);
    let without: Vec<(Bug, Checker)> = hunts
        .iter()
        .filter_map(|hunt| match hunt.caught {
            Some((_, CaughtBy::Invariant(invariant))) => {
                Some((hunt.bug, Checker { without: Some(invariant) }))
            }
            _ => None,
        })
        .collect();
    let again = hunt(asked, &without);
    for invariant in Invariant::ALL {
        let of = |(question, hunt): &(&(Bug, Checker), &Hunt)| {
            question.1.without == Some(*invariant) && hunt.caught.is_none()
        };
        let only: Vec<&str> =
            without.iter().zip(&again).filter(of).map(|(_, hunt)| hunt.bug.name()).collect();
        let what = if only.is_empty() { "-".to_owned() } else { only.join(", ") };
        println!("without {invariant:<4} ({}) escape: {what}", invariant.name());
    }
    ExitCode::SUCCESS
}
