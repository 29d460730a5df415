//! Bench of the HTTP API: the same starts by the engine's own API and over loopback, in the same run, on one store; and how
//! long a list takes while they come.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use flowline::core::definition::{Format, read};
use flowline::core::{Json, Plan, Tenant};
use flowline::store::Store;
use flowline::{Config, Engine};
use flowline_server::serve::{Door, Origins, Principal, ServerConfig, Serving};
use flowline_sqlite::{Options, SqliteStore};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::bench::latency;

/// A step that nobody takes: only starts are measured.
const FLOW: &str = "flow: bench\nsteps:\n  wait: { worker: nobody }\n";
/// Whatever is compared is measured in turns, so many of each: a machine is seldom the same twice.
const ROUNDS: u64 = 5;
/// Lists that are asked for in a round to know how long one takes.
const LISTS: u64 = 1_000;
/// Until a load is what it will be, and until it is gone.
const SETTLES: Duration = Duration::from_millis(300);
/// Runs in the one batch that is measured.
const BATCH: usize = 1_000;

/// What was measured. The names are a contract.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpBench {
    pub runs: u64,
    pub in_flight: u64,
    pub starts_per_second: f64,
    pub http_starts_per_second: f64,
    pub http_share: f64,
    pub batch_starts_per_second: f64,
    pub list_p99_ms: f64,
    /// While starts come at half the rate that was measured.
    pub list_p99_under_load_ms: f64,
    /// While all connections start as fast as they can, so that everything waits for a processor.
    pub list_p99_saturated_ms: f64,
}

/// Measures on a database of its own, which is removed again, or on a server's.
pub async fn bench(
    store: Option<Arc<dyn Store>>,
    dir: &Path,
    runs: u64,
    in_flight: u64,
) -> anyhow::Result<HttpBench> {
    if let Some(store) = store {
        return measure(store, runs, in_flight).await;
    }
    let folder = dir.join(format!(".flowline-bench-{}", std::process::id()));
    flowline_sqlite::make_folder(&folder)?;
    let store = SqliteStore::open(folder.join("bench.db"), Options::default())?;
    let answer = measure(store, runs, in_flight).await;
    let _ = std::fs::remove_dir_all(&folder);
    answer
}

async fn measure(store: Arc<dyn Store>, runs: u64, in_flight: u64) -> anyhow::Result<HttpBench> {
    let definition =
        read("bench.yaml", FLOW, Format::Yaml).map_err(|wrong| anyhow::anyhow!("{wrong}"))?.definition;
    let config = Config { retention: None, ..Config::default() };
    let engine = Engine::on(store.clone()).config(config).start().await?;
    let plan = engine.register(definition, None).await?;
    let door = Door::Open { anyone: Principal::anyone(Tenant::default()), loopback: true };
    let config = ServerConfig {
        door,
        origins: Origins::default(),
        stuck_after: Duration::from_secs(3600),
        export: None,
        tls: None,
        max_connections: 10_000,
        drain: Duration::ZERO,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = Serving::start(engine.clone(), store, listener, config)?;

    let input = json!({ "order": 1 }).to_string();
    let body = format!("{{\"input\":{input}}}");
    let start = Arc::new(post("/v1/flows/bench/runs", &body));
    let list = Arc::new(b"GET /v1/runs?status=running&limit=50 HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec());

    // Each once before it counts, so that neither has the cold store.
    in_process(&engine, &plan, runs / 10 + 1, in_flight).await?;
    over_http(address, &start, runs / 10 + 1, in_flight).await?;
    let share = runs / ROUNDS + 1;
    let (mut took, mut http_took) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..ROUNDS {
        took += in_process(&engine, &plan, share, in_flight).await?;
        http_took += over_http(address, &start, share, in_flight).await?;
    }
    let per_second = |took: Duration| (share * ROUNDS) as f64 / took.as_secs_f64();
    let (starts_per_second, http_starts_per_second) = (per_second(took), per_second(http_took));

    let items: Vec<serde_json::Value> = (0..BATCH).map(|_| json!({ "flow": "bench" })).collect();
    let batch = post("/v1/runs/batch", &json!({ "runs": items }).to_string());
    let began = Instant::now();
    Connection::open(address).await?.ask(&batch).await?;
    let batch_starts_per_second = BATCH as f64 / began.elapsed().as_secs_f64();

    let pause = Duration::from_secs_f64(2.0 * in_flight as f64 / http_starts_per_second);
    let (mut idle, mut loaded, mut saturated) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        idle.extend(lists(address, &list).await?);
        loaded.extend(under_load(address, &start, &list, in_flight, pause).await?);
        saturated.extend(under_load(address, &start, &list, in_flight, Duration::ZERO).await?);
    }
    serving.close().ended().await;
    engine.stop().await;
    Ok(HttpBench {
        runs,
        in_flight,
        starts_per_second,
        http_starts_per_second,
        http_share: http_starts_per_second / starts_per_second,
        batch_starts_per_second,
        list_p99_ms: latency(&mut idle).p99,
        list_p99_under_load_ms: latency(&mut loaded).p99,
        list_p99_saturated_ms: latency(&mut saturated).p99,
    })
}

/// Starts so many runs by the engine's own API. Gives how long it took.
async fn in_process(
    engine: &Engine,
    plan: &Arc<Plan>,
    runs: u64,
    in_flight: u64,
) -> anyhow::Result<Duration> {
    let left = Arc::new(AtomicU64::new(runs));
    let began = Instant::now();
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let (engine, plan, left) = (engine.clone(), plan.clone(), left.clone());
            tokio::spawn(async move {
                while take(&left) {
                    let input = Json::from(json!({ "order": 1 }));
                    engine.run_plan(plan.clone(), input).await?;
                }
                Ok::<(), flowline::EngineError>(())
            })
        })
        .collect();
    for one in tasks {
        one.await??;
    }
    Ok(began.elapsed())
}

/// How long lists take while others start runs, each connection with this pause between two.
async fn under_load(
    address: std::net::SocketAddr,
    start: &Arc<Vec<u8>>,
    list: &[u8],
    in_flight: u64,
    pause: Duration,
) -> anyhow::Result<Vec<f64>> {
    let left = Arc::new(AtomicU64::new(u64::MAX));
    let load = tokio::spawn(apart(starts(address, start.clone(), left.clone(), in_flight, pause)));
    tokio::time::sleep(SETTLES).await;
    let times = lists(address, list).await;
    left.store(0, Ordering::Relaxed);
    // What is on its way is not to be counted with what comes next.
    load.await??;
    tokio::time::sleep(SETTLES).await;
    times
}

/// Starts so many runs over HTTP. Gives how long it took.
async fn over_http(
    address: std::net::SocketAddr,
    request: &Arc<Vec<u8>>,
    runs: u64,
    in_flight: u64,
) -> anyhow::Result<Duration> {
    let left = Arc::new(AtomicU64::new(runs));
    apart(starts(address, request.clone(), left, in_flight, Duration::ZERO)).await
}

/// Runs a client on a thread and a runtime of its own, where it waits for a processor but not for tasks of the server, like one
/// in another process.
pub async fn apart<T: Send + 'static>(
    client: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(client);
    tokio::task::spawn_blocking(run).await?
}

/// Starts runs until none is left, over connections of their own, each with this pause between two starts. Gives how long it
/// took.
async fn starts(
    address: std::net::SocketAddr,
    request: Arc<Vec<u8>>,
    left: Arc<AtomicU64>,
    in_flight: u64,
    pause: Duration,
) -> anyhow::Result<Duration> {
    let mut connections = Vec::new();
    for _ in 0..in_flight {
        connections.push(Connection::open(address).await?);
    }
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (at, mut connection) in connections.into_iter().enumerate() {
        let (request, left) = (request.clone(), left.clone());
        tasks.spawn(async move {
            // Each at its own time, not all at once.
            let mut next = tokio::time::Instant::now() + pause.mul_f64(at as f64 / in_flight as f64);
            while take(&left) {
                if !pause.is_zero() {
                    tokio::time::sleep_until(next).await;
                    next += pause;
                }
                connection.ask(&request).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(one) = tasks.join_next().await {
        one??;
    }
    Ok(began.elapsed())
}

/// How long lists take, one after the other, in milliseconds.
async fn lists(address: std::net::SocketAddr, request: &[u8]) -> anyhow::Result<Vec<f64>> {
    let request = request.to_vec();
    apart(async move {
        let mut connection = Connection::open(address).await?;
        let mut times = Vec::new();
        for _ in 0..LISTS {
            let began = Instant::now();
            connection.ask(&request).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(times)
    })
    .await
}

fn take(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// A connection that is kept: as little as a client can be, so that the server is what is measured.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(address: std::net::SocketAddr) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: Vec::with_capacity(4096) })
    }

    /// Sends a request and reads its answer, which must be a good one.
    async fn ask(&mut self, request: &[u8]) -> anyhow::Result<()> {
        let (status, body) = self.answer(request).await?;
        ensure!((200..210).contains(&status), "{status}: {}", String::from_utf8_lossy(body));
        Ok(())
    }

    /// Sends a request and reads its answer: status and body.
    pub async fn answer(&mut self, request: &[u8]) -> anyhow::Result<(u16, &[u8])> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        loop {
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("the server closed the connection");
            }
            let Some(head) = self.buffer.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
            let text =
                std::str::from_utf8(&self.buffer[..head]).context("can't read the head of a response")?;
            let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
            let status = status.context("a response has no status")?;
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map_or(Ok(0), str::parse::<usize>)?;
            let whole = head + 4 + length;
            while self.buffer.len() < whole {
                ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "a response ended early");
            }
            return Ok((status, &self.buffer[head + 4..whole]));
        }
    }
}
