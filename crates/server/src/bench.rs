//! Bench: how fast this machine runs flows, beside what its disk gives without Flowline, measured in the same run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use flowline::core::Json;
use flowline::{Config, Engine, Flow, Step, StepError};
use flowline_sqlite::{Options, SqliteStore};
use serde::Serialize;
use serde_json::json;

/// The shape of the flow that is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
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
pub struct Question {
    pub shape: Shape,
    pub runs: u64,
    pub in_flight: u64,
    /// Where the database is made, in a folder of its own that is removed again.
    pub dir: PathBuf,
    /// Bytes of payload that each run carries.
    pub payload: usize,
    /// Where the database is put afterwards, to look at; it is removed otherwise.
    pub keep: Option<PathBuf>,
}

/// What was measured. The names are a contract.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    pub flow: &'static str,
    pub runs: u64,
    pub steps: u64,
    pub in_flight: u64,
    pub seconds: f64,
    pub runs_per_second: f64,
    pub steps_per_second: f64,
    pub commits: u64,
    pub commits_per_batch: f64,
    pub latency_ms: Latency,
    pub conflicts: u64,
    pub bytes_per_run: u64,
    pub peak_rss_mb: f64,
    pub baseline: Baseline,
}

#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

/// What the disk gives without Flowline: the mean of a measure before the runs and one after.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Baseline {
    /// Raw inserted rows per second, 256 to a synced transaction.
    pub rows_per_second: f64,
    /// Raw synced transactions of one row per second.
    pub commits_per_second: f64,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Shape::Diamond => "diamond",
            Shape::Chain => "chain",
            Shape::Fanout => "fanout",
        }
    }

    fn steps(self) -> u64 {
        match self {
            Shape::Diamond => 4,
            Shape::Chain => CHAIN as u64,
            Shape::Fanout => WIDTH as u64 + 2,
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
            Shape::Diamond => flow
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
            Shape::Chain => (1..CHAIN).fold(flow.step("s0", step()).returns("s0.done"), |flow, n| {
                let flow =
                    flow.step(&format!("s{n}"), step()).subscribes([format!("s{}.done", n - 1).as_str()]);
                if n + 1 < CHAIN { flow.returns(&format!("s{n}.done")) } else { flow }
            }),
            Shape::Fanout => {
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
pub async fn bench(question: &Question, tell: Arc<AtomicU64>) -> anyhow::Result<Answer> {
    std::fs::create_dir_all(&question.dir)?;
    // Before and after: a disk that others use too is seldom the same twice.
    let before = flowline_sqlite::baseline(&question.dir)?;
    let folder = question.dir.join(format!(".flowline-bench-{}", std::process::id()));
    let measured = measure(question, &folder, tell).await;
    if let (Some(keep), Ok(_)) = (&question.keep, &measured) {
        std::fs::rename(folder.join("bench.db"), keep)?;
    }
    let _ = std::fs::remove_dir_all(&folder);
    let mut answer = measured?;
    let after = flowline_sqlite::baseline(&question.dir)?;
    answer.baseline = Baseline {
        rows_per_second: (before.rows_per_second + after.rows_per_second) / 2.0,
        commits_per_second: (before.commits_per_second + after.commits_per_second) / 2.0,
    };
    Ok(answer)
}

async fn measure(question: &Question, folder: &Path, tell: Arc<AtomicU64>) -> anyhow::Result<Answer> {
    let input = Json::from(json!({ "text": "x".repeat(question.payload) }));
    let flow = question.shape.flow(&input)?;
    let database = folder.join("bench.db");
    let store = SqliteStore::open(&database, Options::default())?;
    let slots = (question.in_flight as usize).saturating_mul(WIDTH).clamp(64, 4096);
    let config = Config { slots, retention: None, ..Config::default() };
    let engine = Engine::on(store).config(config).flow(&flow).start().await?;
    let before = bytes_in(&database);
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let clients: Vec<_> = (0..question.in_flight.min(question.runs))
        .map(|_| {
            let (engine, flow, input) = (engine.clone(), flow.clone(), input.clone());
            let (next, tell, runs) = (next.clone(), tell.clone(), question.runs);
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while next.fetch_add(1, Ordering::Relaxed) < runs {
                    let began = Instant::now();
                    let outcome = engine.run(&flow, &input).await?.wait().await?;
                    anyhow::ensure!(
                        outcome.status == flowline::core::Status::Completed,
                        "a run ended {}",
                        outcome.status
                    );
                    latencies.push(began.elapsed());
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
    let seconds = began.elapsed().as_secs_f64();
    engine.stop().await;
    latencies.sort_unstable();
    let at = |percent: usize| {
        let rank = (latencies.len() * percent).div_ceil(100).max(1);
        latencies.get(rank - 1).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    let steps = question.runs * question.shape.steps();
    let conflicts = engine.meters().conflicts.load(Ordering::Relaxed);
    let commits = engine.meters().commits.load(Ordering::Relaxed);
    let batches = engine.meters().batches.load(Ordering::Relaxed).max(1);
    // A file that is closed has its write-ahead log copied back: only then does its size tell.
    drop(engine);
    let written = bytes_in(&database);
    Ok(Answer {
        flow: question.shape.name(),
        runs: question.runs,
        steps,
        in_flight: question.in_flight,
        seconds,
        runs_per_second: question.runs as f64 / seconds,
        steps_per_second: steps as f64 / seconds,
        commits,
        commits_per_batch: commits as f64 / batches as f64,
        latency_ms: Latency { p50: at(50), p99: at(99) },
        conflicts,
        bytes_per_run: written.saturating_sub(before) / question.runs.max(1),
        peak_rss_mb: peak_rss_mb(),
        baseline: Baseline { rows_per_second: 0.0, commits_per_second: 0.0 },
    })
}

/// Bytes of a database and of its write-ahead log, which holds what is not in the database yet.
fn bytes_in(database: &Path) -> u64 {
    let wal = database.with_extension("db-wal");
    [database, &wal].iter().filter_map(|path| Some(std::fs::metadata(path).ok()?.len())).sum()
}

/// The most memory that this process has held, from the kernel; 0 where it does not say.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kb = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kb.unwrap_or(0.0) / 1024.0
}
