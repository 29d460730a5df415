//! Bench: how fast this machine runs flows, beside what its disk or server gives without Flowline, measured in the same
//! run. Several instances are processes of their own that share the store; what they measured is put together.

mod base;
pub mod events;
pub mod hostile;
pub mod http;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowline::core::Json;
use flowline::store::Store;
use flowline::{Config, Engine, Flow, Step, StepError};
use flowline_sqlite::{Options, SqliteStore};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::open::{StoreAccess, open};

/// The shape of the flow that is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchFlow {
    /// a → b, c → d
    Diamond,
    /// Ten steps in a row.
    Chain,
    /// One step, twenty beside each other, one that joins them.
    Fanout,
}

const CHAIN: usize = 10;
const WIDTH: usize = 20;

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchPlan {
    pub shape: BenchFlow,
    pub runs: u64,
    pub in_flight: u64,
    /// Where the database is made, in a folder of its own that is removed again.
    pub dir: PathBuf,
    /// Bytes of payload that each run carries.
    pub payload: usize,
    /// Where the database is put afterwards, to look at; it is removed otherwise.
    pub keep: Option<PathBuf>,
    /// The URL of a server's store to run on, instead of a database of its own.
    pub server: Option<String>,
    /// Processes that share the store.
    pub instances: u64,
    /// Starts per second, evenly; as many as are done where there is none.
    pub rate: Option<f64>,
}

/// What was measured. The names are a contract.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchResult {
    pub flow: &'static str,
    pub runs: u64,
    pub steps: u64,
    pub in_flight: u64,
    pub instances: u64,
    pub seconds: f64,
    pub runs_per_second: f64,
    pub steps_per_second: f64,
    /// Starts and outcomes of steps that were made durable, however many went in one commit.
    pub transitions_per_second: f64,
    pub commits: u64,
    pub commits_per_batch: f64,
    pub latency_ms: Latency,
    pub conflicts: u64,
    pub bytes_per_run: u64,
    pub peak_rss_mb: f64,
    pub baseline: BenchBaseline,
}

#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

/// What the disk or the server gives without Flowline: the mean of a measure before the runs and one after. What was not
/// measured is left out.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchBaseline {
    /// Raw inserted rows per second, 256 to a synced transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_per_second: Option<f64>,
    /// Raw synced transactions of one row per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commits_per_second: Option<f64>,
    /// Scripts of one SET per second, 16 pipelined, by `redis-benchmark`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scripts_per_second: Option<f64>,
    /// Flowline's transitions for each of those scripts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transitions_per_script: Option<f64>,
    /// Transactions of `pgbench -N` per second, with 16 clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transactions_per_second: Option<f64>,
    /// Flowline's transitions for each of those transactions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transitions_per_transaction: Option<f64>,
}

/// What one instance measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BenchPart {
    seconds: f64,
    commits: u64,
    batches: u64,
    conflicts: u64,
    peak_rss_mb: f64,
    /// Of each run, in milliseconds.
    latencies: Vec<f64>,
}

impl BenchFlow {
    fn name(self) -> &'static str {
        match self {
            BenchFlow::Diamond => "diamond",
            BenchFlow::Chain => "chain",
            BenchFlow::Fanout => "fanout",
        }
    }

    fn steps(self) -> u64 {
        match self {
            BenchFlow::Diamond => 4,
            BenchFlow::Chain => CHAIN as u64,
            BenchFlow::Fanout => WIDTH as u64 + 2,
        }
    }

    fn flow(self, payload: &Json) -> Result<Flow, flowline::EngineError> {
        // Each step passes on a payload of the size asked for; what it does itself is as little as can be.
        let step = || {
            let payload = payload.clone();
            move |_: Step, _: Json| std::future::ready(Ok::<Json, StepError>(payload.clone()))
        };
        let flow = Flow::new(self.name());
        match self {
            BenchFlow::Diamond => flow
                .step("a", step())
                .returns("a.done")
                .step("b", step())
                .subscribes(["a.done"])
                .returns("b.done")
                .step("c", step())
                .subscribes(["a.done"])
                .returns("c.done")
                .step("d", step())
                .subscribes(["b.done", "c.done"]),
            BenchFlow::Chain => (1..CHAIN).fold(flow.step("s0", step()).returns("s0.done"), |flow, n| {
                let flow =
                    flow.step(&format!("s{n}"), step()).subscribes([format!("s{}.done", n - 1).as_str()]);
                if n + 1 < CHAIN { flow.returns(&format!("s{n}.done")) } else { flow }
            }),
            BenchFlow::Fanout => {
                let flow = flow.step("split", step()).returns("split.done");
                let flow = (0..WIDTH).fold(flow, |flow, n| {
                    flow.step(&format!("w{n}"), step())
                        .subscribes(["split.done"])
                        .returns(&format!("w{n}.done"))
                });
                let all: Vec<String> = (0..WIDTH).map(|n| format!("w{n}.done")).collect();
                flow.step("join", step()).subscribes(all.iter().map(String::as_str))
            }
        }
        .build()
    }
}

/// Runs the flows and measures. `tell` hears of runs that ended, for a progress bar.
pub async fn bench(question: &BenchPlan, tell: Arc<AtomicU64>) -> anyhow::Result<BenchResult> {
    match &question.server {
        Some(url) => on_server(question, url, tell).await,
        None => on_disk(question, tell).await,
    }
}

async fn on_disk(question: &BenchPlan, tell: Arc<AtomicU64>) -> anyhow::Result<BenchResult> {
    anyhow::ensure!(
        question.instances == 1,
        "a SQLite file supports one engine at a time; for several instances, use a server: --store redis://…"
    );
    flowline_sqlite::make_folder(&question.dir)?;
    // Before and after: a disk that others use too is seldom the same twice.
    let before = flowline_sqlite::baseline(&question.dir)?;
    let folder = question.dir.join(format!(".flowline-bench-{}", std::process::id()));
    let measured = in_file(question, &folder, tell).await;
    if let (Some(keep), Ok(_)) = (&question.keep, &measured) {
        std::fs::rename(folder.join("bench.db"), keep)?;
    }
    let _ = std::fs::remove_dir_all(&folder);
    let (part, bytes) = measured?;
    let after = flowline_sqlite::baseline(&question.dir)?;
    let baseline = BenchBaseline {
        rows_per_second: Some((before.rows_per_second + after.rows_per_second) / 2.0),
        commits_per_second: Some((before.commits_per_second + after.commits_per_second) / 2.0),
        ..BenchBaseline::default()
    };
    Ok(answer(question, part, bytes, baseline))
}

async fn in_file(
    question: &BenchPlan,
    folder: &Path,
    tell: Arc<AtomicU64>,
) -> anyhow::Result<(BenchPart, u64)> {
    let database = folder.join("bench.db");
    let store = SqliteStore::open(&database, Options::default())?;
    let before = bytes_in(&database);
    let part = measure(question, store, tell).await?;
    // A file that is closed has its write-ahead log copied back: only then does its size tell.
    Ok((part, bytes_in(&database).saturating_sub(before)))
}

async fn on_server(question: &BenchPlan, url: &str, tell: Arc<AtomicU64>) -> anyhow::Result<BenchResult> {
    let store = open(url, StoreAccess::Engine).await.map_err(|failure| anyhow::anyhow!(failure.message))?;
    let before = raw(question, url).await;
    let bytes_before = store.check().await?.bytes.unwrap_or(0);
    let part = match question.instances {
        1 => measure(question, store.clone(), tell).await?,
        _ => in_processes(question, url).await?,
    };
    let bytes = store.check().await?.bytes.unwrap_or(0).saturating_sub(bytes_before);
    let after = raw(question, url).await;
    let mean = |before: Option<f64>, after| before.zip(after).map(|(before, after)| (before + after) / 2.0);
    let baseline = BenchBaseline {
        scripts_per_second: mean(before.scripts_per_second, after.scripts_per_second),
        transactions_per_second: mean(before.transactions_per_second, after.transactions_per_second),
        ..BenchBaseline::default()
    };
    Ok(answer(question, part, bytes, baseline))
}

/// What the server gives at this moment; of no interest where it is not asked for all that it gives.
async fn raw(question: &BenchPlan, url: &str) -> BenchBaseline {
    if question.rate.is_some() {
        return BenchBaseline::default();
    }
    BenchBaseline {
        scripts_per_second: base::scripts_per_second(url).await,
        transactions_per_second: base::transactions_per_second(url).await,
        ..BenchBaseline::default()
    }
}

/// The share of one instance of several: what [`in_processes`] starts.
pub async fn part(question: &BenchPlan) -> anyhow::Result<BenchPart> {
    let url = question.server.as_deref().unwrap_or_default();
    let store = open(url, StoreAccess::Engine).await.map_err(|failure| anyhow::anyhow!(failure.message))?;
    measure(question, store, Arc::default()).await
}

/// As many processes of this binary as asked for, each with its share of the runs.
async fn in_processes(question: &BenchPlan, url: &str) -> anyhow::Result<BenchPart> {
    let share = |whole: u64, n: u64| whole / question.instances + u64::from(n < whole % question.instances);
    let mut processes = Vec::new();
    for n in 0..question.instances {
        let mut command = tokio::process::Command::new(std::env::current_exe()?);
        command.args(["bench", "--part", "--store", url, "--flow", question.shape.name()]);
        command.args(["--runs", &share(question.runs, n).max(1).to_string()]);
        command.args(["--in-flight", &share(question.in_flight, n).max(1).to_string()]);
        command.args(["--payload", &question.payload.to_string()]);
        if let Some(rate) = question.rate {
            command.args(["--rate", &(rate / question.instances as f64).to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        processes.push(tokio::spawn(async move { command.output().await }));
    }
    let mut whole = BenchPart::default();
    for process in processes {
        let output = process.await??;
        anyhow::ensure!(output.status.success(), "an instance failed ({})", output.status);
        let part: BenchPart = serde_json::from_slice(&output.stdout)?;
        // They ran side by side: the longest time is that of all.
        whole.seconds = whole.seconds.max(part.seconds);
        whole.commits += part.commits;
        whole.batches += part.batches;
        whole.conflicts += part.conflicts;
        whole.peak_rss_mb += part.peak_rss_mb;
        whole.latencies.extend(part.latencies);
    }
    Ok(whole)
}

pub async fn measure(
    question: &BenchPlan,
    store: Arc<dyn Store>,
    tell: Arc<AtomicU64>,
) -> anyhow::Result<BenchPart> {
    let input = Json::from(json!({ "text": "x".repeat(question.payload) }));
    let flow = question.shape.flow(&input)?;
    let slots = (question.in_flight as usize).saturating_mul(WIDTH).clamp(64, 4096);
    let config = Config { slots, retention: None, ..Config::default() };
    let engine = Engine::on(store).config(config).flow(&flow).start().await?;
    let next = Arc::new(AtomicU64::new(0));
    let from = Instant::now();
    let clients: Vec<_> = (0..question.in_flight.min(question.runs))
        .map(|_| {
            let (engine, flow, input) = (engine.clone(), flow.clone(), input.clone());
            let (next, tell, runs, rate) = (next.clone(), tell.clone(), question.runs, question.rate);
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= runs {
                        break;
                    }
                    let mut began = Instant::now();
                    if let Some(rate) = rate {
                        // Counted from when it should have begun: waiting for a place is part of it.
                        began = from + Duration::from_secs_f64(number as f64 / rate);
                        tokio::time::sleep_until(began.into()).await;
                    }
                    let outcome = engine.run(&flow, &input).await?.wait().await?;
                    anyhow::ensure!(
                        outcome.status == flowline::core::Status::Completed,
                        "a run ended {}",
                        outcome.status
                    );
                    latencies.push(began.elapsed().as_secs_f64() * 1e3);
                    tell.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, anyhow::Error>(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::with_capacity(question.runs as usize);
    for client in clients {
        latencies.extend(client.await??);
    }
    let seconds = from.elapsed().as_secs_f64();
    engine.stop().await;
    let meters = engine.meters();
    Ok(BenchPart {
        seconds,
        commits: meters.commits.load(Ordering::Relaxed),
        batches: meters.batches.load(Ordering::Relaxed),
        conflicts: meters.conflicts.load(Ordering::Relaxed),
        peak_rss_mb: peak_rss_mb(std::process::id()),
        latencies,
    })
}

impl BenchPart {
    pub fn steps_per_second(&self, shape: BenchFlow) -> f64 {
        (self.latencies.len() as u64 * shape.steps()) as f64 / self.seconds
    }
}

/// The percentiles of these times.
pub fn latency(times: &mut [f64]) -> Latency {
    times.sort_unstable_by(f64::total_cmp);
    let at = |percent: usize| {
        let rank = (times.len() * percent).div_ceil(100).max(1);
        times.get(rank - 1).copied().unwrap_or(0.0)
    };
    Latency { p50: at(50), p99: at(99) }
}

/// A database of its own, removed with the folder that comes with it; or the server's store.
pub async fn own_store(question: &BenchPlan) -> anyhow::Result<(Arc<dyn Store>, Option<Folder>)> {
    if let Some(url) = &question.server {
        let store =
            open(url, StoreAccess::Engine).await.map_err(|failure| anyhow::anyhow!(failure.message))?;
        return Ok((store, None));
    }
    let folder = Folder(question.dir.join(format!(".flowline-bench-{}", std::process::id())));
    flowline_sqlite::make_folder(&folder.0)?;
    let store = SqliteStore::open(folder.0.join("bench.db"), Options::default())?;
    Ok((store, Some(folder)))
}

/// A folder that goes with this.
pub struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn answer(question: &BenchPlan, mut part: BenchPart, bytes: u64, mut baseline: BenchBaseline) -> BenchResult {
    let latency_ms = latency(&mut part.latencies);
    let runs = part.latencies.len() as u64;
    let steps = runs * question.shape.steps();
    let transitions_per_second = (runs + steps) as f64 / part.seconds;
    let per = |raw: Option<f64>| raw.map(|raw| transitions_per_second / raw);
    baseline.transitions_per_script = per(baseline.scripts_per_second);
    baseline.transitions_per_transaction = per(baseline.transactions_per_second);
    BenchResult {
        flow: question.shape.name(),
        runs,
        steps,
        in_flight: question.in_flight,
        instances: question.instances,
        seconds: part.seconds,
        runs_per_second: runs as f64 / part.seconds,
        steps_per_second: part.steps_per_second(question.shape),
        transitions_per_second,
        commits: part.commits,
        commits_per_batch: part.commits as f64 / part.batches.max(1) as f64,
        latency_ms,
        conflicts: part.conflicts,
        bytes_per_run: bytes / runs.max(1),
        peak_rss_mb: part.peak_rss_mb,
        baseline,
    }
}

/// Bytes of a database and of its write-ahead log, which holds what is not in the database yet.
fn bytes_in(database: &Path) -> u64 {
    let wal = database.with_extension("db-wal");
    [database, &wal].iter().filter_map(|path| Some(std::fs::metadata(path).ok()?.len())).sum()
}

/// The most memory that a process has held, from the kernel; 0 where it does not say.
fn peak_rss_mb(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kb = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kb.unwrap_or(0.0) / 1024.0
}
