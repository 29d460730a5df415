//! The report of `simulate` in words: the most important first, aligned, each line with the seed that shows it.

use std::io;

use flowline_sim::report::{
    FailurePath, How, LostEvent, Root, RunEnding, Sight, SimulationReport, StarvedJoin, StuckState, Twice,
    Wait, Why,
};

use crate::output::{self, BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW};

/// Findings of one kind that are shown.
const SHOWN: usize = 12;

/// Prints a report; `replay` is the command that shows one seed, without its number.
pub fn tell(report: &SimulationReport, replay: &str) -> io::Result<()> {
    let page = Page { seeds: report.seeds().max(1) };
    page.outcomes(report)?;
    page.found(report)?;
    page.steps(report)?;
    page.path(report)?;
    let example = report.failures().first().map(|failure| failure.sight.seed);
    let example = example.or_else(|| report.outcomes().first().map(|outcome| outcome.sight.seed));
    output::line(&format!("\n{DIM}Replay a seed: {replay} --seed {}{RESET}", example.unwrap_or(0)))
}

/// Prints what one seed showed, after its story.
pub fn tell_one(report: &SimulationReport) -> io::Result<()> {
    let page = Page { seeds: 1 };
    for outcome in report.outcomes() {
        let (color, word) = ending(outcome.status);
        output::line(&format!("The run: {color}{word}{RESET}"))?;
    }
    page.found(report)
}

struct Page {
    seeds: u64,
}

impl Page {
    fn share(&self, seeds: u64) -> String {
        format!("{:.1} %", seeds as f64 * 100.0 / self.seeds as f64)
    }

    fn sight(&self, sight: &Sight) -> String {
        let seeds = output::count(sight.seeds, "seed");
        format!("{DIM}{seeds}, {}, seed {}{RESET}", self.share(sight.seeds), sight.seed)
    }

    /// A finding, and below it how often it was seen.
    fn seen(&self, text: String, sight: &Sight) -> String {
        if self.seeds == 1 { text } else { format!("{text}\n      {}", self.sight(sight)) }
    }

    fn found(&self, report: &SimulationReport) -> io::Result<()> {
        self.violations(report)?;
        self.stuck(&report.stuck())?;
        self.lost(&report.lost())?;
        self.joins(&report.joins())?;
        self.failures(&report.failures())?;
        self.waits(&report.waits())?;
        self.twice(&report.twice())
    }

    fn stuck(&self, stuck: &[StuckState]) -> io::Result<()> {
        if stuck.is_empty() {
            return Ok(());
        }
        head("States where a run can get stuck")?;
        let lines = stuck.iter().map(|one| {
            let why = match &one.events[..] {
                [] => "no event leads out of it, and no timer is left".to_owned(),
                events => format!("no condition of {} is true", events.join(", ")),
            };
            let (state, context) = (&one.state, output::clean(&one.context.to_string()).into_owned());
            self.seen(format!("{BOLD}{state}{RESET}: {why} {DIM}with context {context}{RESET}"), &one.sight)
        });
        few(lines.collect())?;
        remedy("add a last transition without `if`, or a timer (`after`) that leaves the state")
    }

    fn lost(&self, lost: &[LostEvent]) -> io::Result<()> {
        if lost.is_empty() {
            return Ok(());
        }
        head("Events that a guard can reject")?;
        let lines = lost.iter().map(|one| {
            let (event, state) = (&one.event, &one.state);
            let context = output::clean(&one.context.to_string()).into_owned();
            self.seen(
                format!(
                    "{BOLD}{event}{RESET} in {state}: no condition is true {DIM}with context {context}{RESET}"
                ),
                &one.sight,
            )
        });
        few(lines.collect())?;
        remedy(
            "the sender gets 202, and the event is rejected later: send with `wait`, or add a transition without `if`",
        )
    }

    fn outcomes(&self, report: &SimulationReport) -> io::Result<()> {
        for outcome in report.outcomes() {
            let (color, word) = ending(outcome.status);
            let (seeds, share) = (outcome.sight.seeds, self.share(outcome.sight.seeds));
            output::line(&format!(
                "  {color}{word:<12}{RESET}  {seeds:>7}  {share:>7}  {DIM}seed {}{RESET}",
                outcome.sight.seed
            ))?;
        }
        Ok(())
    }

    fn violations(&self, report: &SimulationReport) -> io::Result<()> {
        let broken = report.violations();
        if broken.is_empty() {
            return Ok(());
        }
        head("Flowline broke a guarantee: please report this")?;
        let lines = broken
            .iter()
            .map(|one| format!("{RED}seed {}{RESET}: {}", one.seed, output::clean(&one.message)));
        few(lines.collect())
    }

    fn joins(&self, joins: &[StarvedJoin]) -> io::Result<()> {
        if joins.is_empty() {
            return Ok(());
        }
        head("Joins that may never be satisfied")?;
        let lines = joins.iter().map(|join| {
            let because: Vec<String> = join.because.iter().map(because).collect();
            let because =
                if because.is_empty() { String::new() } else { format!(" when {}", because.join(" and ")) };
            let end = match join.run {
                RunEnding::Completed => format!("{YELLOW}the run completes without it{RESET}"),
                RunEnding::Failed => "the run fails".to_owned(),
                RunEnding::Waiting => "the run keeps waiting".to_owned(),
                RunEnding::Cancelled | RunEnding::Unfinished | RunEnding::Unstarted => {
                    "the run hasn't ended".to_owned()
                }
            };
            let (step, missing) = (&join.step, join.missing.join(", "));
            self.seen(format!("{BOLD}{step}{RESET} doesn't get {missing}{because}; {end}"), &join.sight)
        });
        few(lines.collect())?;
        // Only where the run goes on as if nothing had happened is there something to mend.
        let silent = joins.iter().filter(|join| join.run == RunEnding::Completed);
        let failed = silent.flat_map(|join| &join.because).find(|root| root.how == How::Failed);
        match failed {
            Some(Root { of, .. }) => remedy(&format!(
                "wait for \"step:{of}\" instead, which is also satisfied if the step fails, or add an {{any: […]}} alternative to the join"
            )),
            None => Ok(()),
        }
    }

    fn failures(&self, failures: &[FailurePath]) -> io::Result<()> {
        if failures.is_empty() {
            return Ok(());
        }
        head("How runs can fail")?;
        let lines = failures.iter().map(|failure| self.seen(failure.path.join(" → "), &failure.sight));
        few(lines.collect())?;
        if failures.iter().any(|failure| failure.code.as_deref() == Some("lease_lost")) {
            remedy(
                "lease_lost: the process running the step died six times in a row; does the step kill it?",
            )?;
        }
        Ok(())
    }

    fn waits(&self, waits: &[Wait]) -> io::Result<()> {
        if waits.is_empty() {
            return Ok(());
        }
        head("Steps that may wait forever")?;
        let lines = waits.iter().map(|wait| {
            let (step, events) = (&wait.step, wait.events.join(", "));
            self.seen(format!("{BOLD}{step}{RESET} waits until someone sends {events}"), &wait.sight)
        });
        few(lines.collect())?;
        remedy("give the flow a `timeout` if the event might never be sent")
    }

    fn twice(&self, twice: &[Twice]) -> io::Result<()> {
        if twice.is_empty() {
            return Ok(());
        }
        head("Steps and actions that may run twice")?;
        let width = twice.iter().map(|one| one.step.chars().count()).max().unwrap_or(0).min(40);
        let lines = twice.iter().map(|one| {
            let why = match one.why {
                Why::Interrupted => "interrupted after it took effect, then rerun",
                Why::Retried => "took effect, failed, was retried",
            };
            let sight = if self.seeds == 1 { String::new() } else { self.sight(&one.sight) };
            let line = format!("{BOLD}{:<width$}{RESET}  {why:<44}  {sight}", one.step);
            line.trim_end().to_owned()
        });
        few(lines.collect())?;
        remedy(
            "every attempt of a step gets the same idempotencyKey: pass it to anything that mustn't happen twice",
        )
    }

    fn steps(&self, report: &SimulationReport) -> io::Result<()> {
        let never = report.never_run();
        if !never.is_empty() {
            head("Steps and actions that no seed ran")?;
            few(never)?;
        }
        let never = report.never_entered();
        if !never.is_empty() {
            head("States that no seed entered")?;
            few(never)?;
        }
        let guessed = report.guessed();
        if !guessed.is_empty() {
            head("Conditions that generated data couldn't decide")?;
            few(guessed)?;
            remedy(
                "the data was generated; pass --input, or add schemas for the input, emits and event payloads",
            )?;
        }
        Ok(())
    }

    fn path(&self, report: &SimulationReport) -> io::Result<()> {
        let Some(path) = report.longest_path() else { return Ok(()) };
        head("Longest path")?;
        output::line(&format!(
            "  {}: {}",
            output::count(path.steps.len() as u64, "step"),
            arrows(&path.steps)
        ))?;
        let (time, slowest) = (output::duration(path.time), arrows(&path.slowest));
        let open = names(&path.without_timeout);
        match (path.time.is_zero(), path.without_timeout.is_empty()) {
            (_, true) => output::line(&format!("  at most {time}, if every attempt times out: {slowest}")),
            (false, false) => output::line(&format!(
                "  {time} of timeouts and delays on {slowest}, plus however long {open} take (no timeout)"
            )),
            (true, false) => output::line("  unlimited: no step on it has a timeout"),
        }
    }
}

fn ending(status: RunEnding) -> (&'static str, &'static str) {
    match status {
        RunEnding::Completed => (GREEN, "completed"),
        RunEnding::Failed => (RED, "failed"),
        RunEnding::Cancelled => (RED, "cancelled"),
        RunEnding::Waiting => (YELLOW, "left waiting"),
        RunEnding::Unfinished => (YELLOW, "unfinished"),
        RunEnding::Unstarted => (DIM, "not started"),
    }
}

fn because(root: &Root) -> String {
    let of = &root.of;
    match &root.how {
        How::Failed => format!("{of} fails"),
        How::Skipped => format!("the `if` of {of} is false"),
        How::Silent { event } => format!("{of} completes without {event}"),
        How::Stopped => format!("fail_fast stops {of}"),
        How::NeverSent => format!("no one sends {of}"),
        How::CutOff => format!("the run ends before {of} does"),
    }
}

fn arrows(steps: &[String]) -> String {
    match steps {
        [first, second, .., last] if steps.len() > SHOWN => format!("{first} → {second} → … → {last}"),
        _ => steps.join(" → "),
    }
}

fn names(names: &[String]) -> String {
    match names.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(", ")),
        None => names.join(", "),
    }
}

fn head(text: &str) -> io::Result<()> {
    output::line(&format!("\n{BOLD}{text}{RESET}"))
}

fn remedy(text: &str) -> io::Result<()> {
    output::line(&format!("  {CYAN}help{RESET}: {text}"))
}

fn few(lines: Vec<String>) -> io::Result<()> {
    lines.iter().take(SHOWN).try_for_each(|line| output::line(&format!("  {line}")))?;
    match lines.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        Some(more) => output::line(&format!("  {DIM}… and {more} more; --json has them all{RESET}")),
        None => Ok(()),
    }
}
