//! `flowline stats`: how many runs there were, how they ended and how long they took.

use std::time::Duration;

use flowline::stats::{NO_WIDTH, Percentiles, Stats, Summary};

use super::CommandContext;
use crate::failure::Outcome;
use crate::operator::StatsQuestion;
use crate::output;

/// Show run counts by status, and durations
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline stats --since 24h --bucket 1h\n  flowline stats --flow fulfil-order --steps"
)]
pub struct Args {
    /// Only runs of this flow
    #[arg(long, value_name = "FLOW")]
    flow: Option<String>,
    /// Only runs created in the last DURATION, such as 24h
    #[arg(long, value_name = "DURATION", value_parser = flowline_server::filter::duration)]
    since: Option<Duration>,
    /// Width of the time buckets
    #[arg(long, value_name = "DURATION", value_parser = bucket, default_value = "1h")]
    bucket: Duration,
    /// Also show durations of steps, computed from the logs of the newest runs
    #[arg(long)]
    steps: bool,
}

fn bucket(text: &str) -> Result<Duration, String> {
    let width = flowline_server::filter::duration(text)?;
    if width < Duration::from_millis(1) { Err(NO_WIDTH.to_owned()) } else { Ok(width) }
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    let Args { flow, since, bucket, steps } = args;
    let stats = context.operator()?.stats(&StatsQuestion { flow, since, bucket, steps }).await?;
    context.answer(&stats, || tell(&stats))
}

const HEAD: [&str; 9] =
    ["", "runs", "running", "waiting", "completed", "failed", "success", "p50", "p95 / p99"];

fn tell(stats: &Stats) -> std::io::Result<()> {
    let flows = stats.flows.iter().map(|(flow, summary)| cells(flow, &summary.summary));
    output::table(&HEAD, flows.chain([cells("all", &stats.total)]).collect())?;
    let states = stats.flows.iter().flat_map(|(flow, summary)| {
        summary
            .by_state
            .iter()
            .map(move |(state, runs)| vec![flow.to_string(), state.to_string(), runs.to_string()])
    });
    let states: Vec<Vec<String>> = states.collect();
    if !states.is_empty() {
        output::line("")?;
        output::table(&["machine", "state", "runs"], states)?;
    }
    if stats.buckets.len() > 1 {
        output::line("")?;
        let buckets = stats.buckets.iter().map(|bucket| cells(&output::date(bucket.start), &bucket.summary));
        output::table(&HEAD, buckets.collect())?;
    }
    if !stats.steps.is_empty() {
        output::line("")?;
        let rows = stats.steps.iter().map(|(step, summary)| {
            let [completed, retried, failed] =
                [summary.completed, summary.retried, summary.failed].map(|n| n.to_string());
            let [p50, tail] = times(&summary.duration_ms);
            vec![step.clone(), completed, retried, failed, p50, tail]
        });
        output::table(&["step", "completed", "retried", "failed", "p50", "p95 / p99"], rows.collect())?;
    }
    if stats.steps_sampled {
        output::note("step figures cover the newest runs only");
    }
    Ok(())
}

fn cells(name: &str, summary: &Summary) -> Vec<String> {
    use flowline::core::Status::{Completed, Failed, Running, Waiting};
    let count = |status| summary.by_status.get(&status).copied().unwrap_or(0).to_string();
    let success = summary.success_rate.map_or(String::new(), |rate| format!("{:.1} %", rate * 100.0));
    let [p50, tail] = times(&summary.duration_ms);
    vec![
        name.to_owned(),
        summary.runs.to_string(),
        count(Running),
        count(Waiting),
        count(Completed),
        count(Failed),
        success,
        p50,
        tail,
    ]
}

fn times(percentiles: &Percentiles) -> [String; 2] {
    let show = |ms: Option<u64>| ms.map_or(String::new(), output::millis);
    let tail = match percentiles.p95 {
        Some(_) => format!("{} / {}", show(percentiles.p95), show(percentiles.p99)),
        None => String::new(),
    };
    [show(percentiles.p50), tail]
}
