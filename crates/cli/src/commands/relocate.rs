//! `flowline move`: carries all that a store holds into another.

use std::time::{Duration, Instant};

use flowline::Plans;
use flowline::internal::engines;
use flowline::relocate::{MoveCounts, MoveError, relocate, survey};
use flowline::store::Store;
use flowline::verify::verify;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::CommandContext;
use crate::failure::{CliError, Exit, Outcome};
use crate::open::{self, StoreAccess, StoreUrl};
use crate::output;

/// Move everything from one store into another, empty one
///
/// Copies definitions, runs with their logs, jobs, timers and key-value state; unfinished runs continue in the new store.
/// Stop every engine on both stores first. The source isn't changed, and both stores are verified. If a move is
/// interrupted, nothing can open the target until you repeat the command, which starts over. Named locks and server
/// settings aren't moved.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline move --from sqlite:.flowline/flowline.db --to \
                        postgres://me:secret@db/flows\n  \
                        flowline move --from redis://cache:6379 --to redis+cluster://a:6379,b:6379")]
pub struct Args {
    /// Store to read from: sqlite:PATH, postgres://…, redis://…, redis+cluster://…
    #[arg(long, value_name = "URL")]
    from: String,
    /// Store to copy into; created if it doesn't exist
    #[arg(long, value_name = "URL")]
    to: String,
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let begun = Instant::now();
    let (from, to) = (StoreUrl::read(&args.from)?, StoreUrl::read(&args.to)?);
    if from == StoreUrl::Memory || to == StoreUrl::Memory {
        return Err(CliError::usage("memory: exists only inside one process, so there's nothing to move")
            .help("name a file or a database server in --from and --to"));
    }
    if same(&from, &to) {
        return Err(CliError::usage("--from and --to name the same store").help("name another store in --to"));
    }
    let source = open::open(&args.from, StoreAccess::Still).await?;
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner.set_message("reading the source");
    let survey = survey(&*source).await?;
    alone(&from, &*source, survey.leased_until).await?;
    unattended(&*source, "source").await?;
    spinner.set_message("verifying the source");
    sound(&*source, "the source").await?;
    // Before it is opened to be filled, which marks it. What else is wrong with it is said then.
    if to.file().is_none()
        && let Ok(target) = open::open(&args.to, StoreAccess::Reader).await
    {
        unattended(&*target, "target").await?;
    }
    let target = open::open(&args.to, StoreAccess::Receive).await?;
    spinner.finish_and_clear();

    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left");
    let bar =
        ProgressBar::new(survey.runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let moved = relocate(&*source, &*target, &survey, &mut |runs| bar.set_position(runs)).await?;
    bar.finish_and_clear();
    let spinner = ProgressBar::new_spinner();
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner.set_message("verifying the target");
    sound(&*target, "the target").await?;
    target.end_filling().await?;
    spinner.finish_and_clear();
    report(context, &args, &moved, begun.elapsed())
}

fn report(context: &CommandContext, args: &Args, moved: &MoveCounts, took: Duration) -> Outcome {
    let (from, to) = (open::shown(&args.from), open::shown(&args.to));
    if context.json {
        let mut summary = json!({ "from": from, "to": to, "seconds": took.as_secs_f64() });
        summary["moved"] = json!(moved);
        output::json(&summary)?;
        return Ok(Exit::Fine);
    }
    let parts = [
        output::count(moved.definitions, "definition"),
        output::count(moved.runs, "run"),
        output::count(moved.events, "event"),
        output::count(moved.jobs, "job"),
        output::count(moved.values, "value"),
        output::count(moved.documents, "document"),
    ];
    output::line(&format!("{from} → {to}: {} in {}", parts.join(", "), output::duration(took)))?;
    output::note(
        "Both stores are verified. Point FLOWLINE_STORE or --store at the new one; the old one is unchanged.",
    );
    Ok(Exit::Fine)
}

/// A file is locked while it is read. Of a server, only its leases tell whether somebody works.
async fn alone(
    from: &StoreUrl,
    source: &dyn Store,
    leased_until: Option<flowline::core::Time>,
) -> Result<(), CliError> {
    let now = source.now().await?;
    match leased_until.filter(|until| from.file().is_none() && *until > now) {
        None => Ok(()),
        Some(until) => Err(CliError::new(
            Exit::Store,
            "store-in-use",
            format!("a step in the source is leased until {}: an engine is working on it, or has just died", output::date(until)),
        )
        .help("stop every engine on both stores (with SIGTERM, so that they release their steps), then repeat the move")),
    }
}

/// An engine without work shows by the sign that it leaves in a store that many share.
async fn unattended(store: &dyn Store, which: &str) -> Result<(), CliError> {
    let engines = engines(store).await?;
    let Some(first) = engines.first() else { return Ok(()) };
    let others = match engines.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (name, seen) = (output::clean(&first.instance), output::date(first.seen_at));
    let message = format!("engine {name}{others} is working on the {which}, last seen at {seen}");
    Err(CliError::new(Exit::Store, "store-in-use", message)
        .help("stop every engine on both stores with SIGTERM, then repeat the move; one that was killed is forgotten after 30 s"))
}

async fn sound(store: &dyn Store, which: &str) -> Result<(), CliError> {
    let report = verify(store, &Plans::default(), None).await?;
    let Some(first) = report.violations.first() else { return Ok(()) };
    let found = output::count(report.violations.len() as u64, "violation");
    let run = first.run_id.as_ref().map_or(String::new(), |run| format!("run {run}: "));
    let message = format!(
        "{which} failed verification: {found}; the first is {} {run}{}",
        first.invariant, first.message
    );
    Err(CliError::new(Exit::Found, "violations", message)
        .help("list them with `flowline verify --all-tenants`, fix the source with `flowline reconcile --repair`, then repeat the move"))
}

fn same(from: &StoreUrl, to: &StoreUrl) -> bool {
    let whole = |place: &StoreUrl| place.file().and_then(|path| path.canonicalize().ok());
    from == to || matches!((whole(from), whole(to)), (Some(from), Some(to)) if from == to)
}

impl From<MoveError> for CliError {
    fn from(error: MoveError) -> CliError {
        let text = error.to_string();
        match error {
            MoveError::Store(error) => error.into(),
            MoveError::NotEmpty => {
                CliError::new(Exit::Store, "target-not-empty", format!("{text}; nothing was moved"))
                    .help("name another file, database, schema (?schema=) or prefix (?prefix=) in --to")
            }
            MoveError::Refused(_) => CliError::new(Exit::Store, "target-in-use", text)
                .help("something else is writing to the target; stop it, then repeat the move"),
            _ => CliError::new(Exit::Store, "moved-meanwhile", text),
        }
    }
}
