//! `flowline bench`: how fast this machine runs flows.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::CommandContext;
use crate::bench::{BenchFlow, BenchPlan, BenchResult, Latency, bench, events, hostile, http, part};
use crate::failure::{CliError, Exit, Outcome};
use crate::open::{self, StoreAccess, StoreUrl};
use crate::output;

/// Measure how fast this machine runs flows
///
/// Runs flows of trivial steps on a temporary database, or with --store on a Postgres or Redis server, and measures what the
/// disk or the server can do without Flowline for comparison. Use a release build on a quiet machine, and compare ratios.
/// On a server the runs stay in the store, so give it a separate schema or prefix.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline bench --flow diamond --runs 20000 --in-flight 256 --json")]
pub struct Args {
    /// Flow to run: diamond (4 steps), chain (10) or fanout (22)
    #[arg(long, value_name = "SHAPE", value_parser = shape, default_value = "diamond")]
    flow: BenchFlow,
    /// How many runs to start
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 20_000)]
    runs: u64,
    /// Runs in progress at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000), default_value_t = 256)]
    in_flight: u64,
    /// Payload bytes per run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000), default_value_t = 100)]
    payload: u32,
    /// Processes sharing the store (Postgres and Redis only)
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..=64), default_value_t = 1)]
    instances: u64,
    /// Start this many runs per second at a steady pace, to measure latency at a given load
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// One of several instances: print what it measured
    #[arg(long, hide = true)]
    part: bool,
    /// Measure the HTTP API instead: starting runs with and without HTTP, and listing runs under load
    #[arg(long, conflicts_with_all = ["flow", "instances", "keep", "payload", "rate"])]
    http: bool,
    /// Measure machines instead: --runs events, compared with store commits and steps of flows
    #[arg(long, conflicts_with_all = ["flow", "instances", "keep", "payload", "rate", "http"])]
    events: bool,
    /// Measure a quiet tenant beside a noisy one instead: --runs runs of the quiet one, alone and while the noisy one attacks
    /// on --in-flight connections
    #[arg(long, conflicts_with_all = ["flow", "instances", "keep", "payload", "rate", "http", "events"])]
    hostile: bool,
    /// Directory for the temporary database, on the disk to measure
    #[arg(long, value_name = "DIR", default_value = ".flowline")]
    dir: PathBuf,
    /// Keep the database as this file, on the same disk
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

fn shape(text: &str) -> Result<BenchFlow, String> {
    match text {
        "diamond" => Ok(BenchFlow::Diamond),
        "chain" => Ok(BenchFlow::Chain),
        "fanout" => Ok(BenchFlow::Fanout),
        _ => Err("use diamond, chain or fanout".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=1e6).contains(rate));
    rate.ok_or_else(|| "use a number of runs per second above 0".to_owned())
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    if args.http {
        return over_http(context, &args).await;
    }
    if args.hostile {
        return beside_noise(context, &args).await;
    }
    let question = BenchPlan {
        shape: args.flow,
        runs: args.runs,
        in_flight: args.in_flight,
        dir: args.dir,
        payload: args.payload as usize,
        keep: args.keep,
        server: server(context)?,
        instances: args.instances,
        rate: args.rate,
    };
    if args.events {
        return of_events(context, &question).await;
    }
    if args.part {
        let part = part(&question).await.map_err(|error| CliError::environment(format!("{error:#}")))?;
        output::json(&part)?;
        return Ok(Exit::Fine);
    }
    warn_of_debug();
    let done = Arc::new(AtomicU64::new(0));
    let bar = tokio::spawn(show(done.clone(), question.runs));
    let answer = bench(&question, done).await;
    bar.abort();
    let answer = answer.map_err(|error| CliError::environment(format!("{error:#}")))?;
    context.answer(&answer, || tell(&answer))
}

fn warn_of_debug() {
    if cfg!(debug_assertions) {
        output::note(
            "this is a debug build, so the figures don't mean much; use `cargo run --release -- bench`",
        );
    }
}

async fn over_http(context: &CommandContext, args: &Args) -> Outcome {
    warn_of_debug();
    let store = match server(context)? {
        Some(url) => Some(open::open(&url, StoreAccess::Engine).await?),
        None => None,
    };
    let answer = http::bench(store, &args.dir, args.runs, args.in_flight).await;
    let answer = answer.map_err(|error| CliError::environment(format!("{error:#}")))?;
    if context.json {
        output::json(&answer)?;
        return Ok(Exit::Fine);
    }
    output::line(&format!("{} starts, {} in flight", answer.runs, answer.in_flight))?;
    for (name, value) in [
        ("starts per second", format!("{:.0}", answer.starts_per_second)),
        ("over HTTP", format!("{:.0}", answer.http_starts_per_second)),
        ("HTTP / direct", format!("{:.2}", answer.http_share)),
        ("in a batch of 1000", format!("{:.0}", answer.batch_starts_per_second)),
        ("list of 50, p99", format!("{:.2} ms", answer.list_p99_ms)),
        ("  at half load", format!("{:.2} ms", answer.list_p99_under_load_ms)),
        ("  at full load", format!("{:.2} ms", answer.list_p99_saturated_ms)),
    ] {
        output::line(&format!("  {name:<24}{value}"))?;
    }
    Ok(Exit::Fine)
}

async fn beside_noise(context: &CommandContext, args: &Args) -> Outcome {
    warn_of_debug();
    let answer = hostile::bench(server(context)?, &args.dir, args.runs, args.in_flight).await;
    let answer = answer.map_err(|error| CliError::environment(format!("{error:#}")))?;
    if context.json {
        output::json(&answer)?;
        return Ok(Exit::Fine);
    }
    output::line(&format!("{} runs alone, {0} next to {} noisy connections", args.runs, answer.connections))?;
    let both = |alone: &Latency, beside: &Latency| format!("{:.2} ms / {:.2} ms", alone.p99, beside.p99);
    for (name, value) in [
        ("start, p99", both(&answer.idle.start_ms, &answer.noisy.start_ms)),
        ("  ratio", format!("{:.2}", answer.start_ratio)),
        ("completion, p99", both(&answer.idle.completion_ms, &answer.noisy.completion_ms)),
        ("  ratio", format!("{:.2}", answer.completion_ratio)),
        ("peak memory of the server", format!("{:.0} MB", answer.peak_rss_mb)),
        ("attacks", answer.attacks.to_string()),
        ("  refused, failed", format!("{}, {}", answer.refused, answer.failed)),
        ("runs lost", answer.lost.to_string()),
    ] {
        output::line(&format!("  {name:<28}{value}"))?;
    }
    Ok(Exit::Fine)
}

async fn of_events(context: &CommandContext, question: &BenchPlan) -> Outcome {
    warn_of_debug();
    let answer = events::bench(question).await;
    let answer = answer.map_err(|error| CliError::environment(format!("{error:#}")))?;
    if context.json {
        output::json(&answer)?;
        return Ok(Exit::Fine);
    }
    output::line(&format!("{} events, {} in flight", answer.events, answer.in_flight))?;
    for (name, value) in [
        ("one commit, p50", format!("{:.3} ms", answer.commit_ms.p50)),
        ("accepting an event, p50", format!("{:.3} ms", answer.accept_ms.p50)),
        ("event / commit", format!("{:.2}", answer.accept_per_commit)),
        ("events per second", format!("{:.0}", answer.events_per_second)),
        ("  with an action each", format!("{:.0}", answer.events_with_action_per_second)),
        ("steps per second", format!("{:.0}", answer.steps_per_second)),
        ("events per step", format!("{:.2}", answer.events_per_step)),
    ] {
        output::line(&format!("  {name:<24}{value}"))?;
    }
    Ok(Exit::Fine)
}

/// The store to run on where the settings name a server's.
fn server(context: &CommandContext) -> Result<Option<String>, CliError> {
    let url = &context.settings.store.value;
    Ok(match StoreUrl::read(url)? {
        StoreUrl::File(_) | StoreUrl::Memory => None,
        StoreUrl::Postgres(_) | StoreUrl::Redis(_) => Some(url.clone()),
    })
}

async fn show(done: Arc<AtomicU64>, runs: u64) {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs");
    let bar = ProgressBar::new(runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    loop {
        bar.set_position(done.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn tell(answer: &BenchResult) -> std::io::Result<()> {
    let instances = match answer.instances {
        1 => String::new(),
        count => format!(", {count} instances"),
    };
    output::line(&format!(
        "{}, {} runs, {} in flight{instances}",
        answer.flow, answer.runs, answer.in_flight
    ))?;
    let mut rows = vec![
        ("runs per second", format!("{:.0}", answer.runs_per_second)),
        ("steps per second", format!("{:.0}", answer.steps_per_second)),
        ("latency p50 / p99", format!("{:.2} ms / {:.2} ms", answer.latency_ms.p50, answer.latency_ms.p99)),
        ("commits, per batch", format!("{}, {:.1}", answer.commits, answer.commits_per_batch)),
        ("conflicts", answer.conflicts.to_string()),
        ("bytes per run", answer.bytes_per_run.to_string()),
        ("peak memory", format!("{:.0} MB", answer.peak_rss_mb)),
    ];
    if let Some(raw) = answer.baseline.rows_per_second {
        rows.push(("raw rows per second", format!("{raw:.0}")));
        rows.push(("steps per raw row", format!("{:.3}", answer.steps_per_second / raw)));
    }
    if let Some(raw) = answer.baseline.commits_per_second {
        rows.push(("raw commits per second", format!("{raw:.0}")));
        rows.push(("p50 in raw commits", format!("{:.1}", answer.latency_ms.p50 * raw / 1e3)));
    }
    if answer.baseline.transitions_per_script.or(answer.baseline.transitions_per_transaction).is_some() {
        rows.push(("transitions per second", format!("{:.0}", answer.transitions_per_second)));
    }
    if let Some(raw) = answer.baseline.scripts_per_second {
        rows.push(("raw scripts per second", format!("{raw:.0}")));
    }
    if let Some(ratio) = answer.baseline.transitions_per_script {
        rows.push(("transitions per script", format!("{ratio:.3}")));
    }
    if let Some(raw) = answer.baseline.transactions_per_second {
        rows.push(("pgbench transactions/s", format!("{raw:.0}")));
    }
    if let Some(ratio) = answer.baseline.transitions_per_transaction {
        rows.push(("transitions per pgbench tx", format!("{ratio:.2}")));
    }
    rows.iter().try_for_each(|(name, value)| output::line(&format!("  {name:<24}{value}")))
}
