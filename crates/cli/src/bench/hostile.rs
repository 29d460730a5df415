//! Bench of a quiet tenant beside a noisy one. The noisy one does all that is known to be costly, in a loop on many
//! connections: schemas and patterns that explode, expressions that take as long as they may and longer, programs that print
//! without end. The quiet one starts small runs and waits for them, alone and beside the noise, on the same server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::http::{Connection, apart};
use super::{Folder, Latency, latency};

/// Pause of the quiet tenant between two runs.
const PAUSE: Duration = Duration::from_millis(5);
/// Before the noise is at its height.
const SETTLES: Duration = Duration::from_secs(2);
/// How long a noisy program may print.
const PRINTS: &str = "2s";
/// How long the server is given to end what the noise has left behind.
const PATIENCE: Duration = Duration::from_secs(300);

/// What was measured. The names are a contract.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostileBench {
    pub connections: u64,
    pub idle: QuietTenant,
    pub noisy: QuietTenant,
    /// p99 beside the noise for p99 without it.
    pub start_ratio: f64,
    pub completion_ratio: f64,
    /// Of the server, in all this time.
    pub peak_rss_mb: f64,
    /// Requests of the noisy tenant that were answered: with success, with a refusal, with an error of the server.
    pub attacks: u64,
    pub refused: u64,
    pub failed: u64,
    /// Runs of either tenant that were acknowledged and aren't there or didn't end, or are there and weren't acknowledged.
    pub lost: u64,
}

/// How long runs of the quiet tenant took, in milliseconds.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuietTenant {
    pub runs: u64,
    /// From the request until it's acknowledged.
    pub start_ms: Latency,
    /// From the request until the run has ended.
    pub completion_ms: Latency,
}

/// Measures `runs` runs of the quiet tenant without noise, then as many with it.
pub async fn bench(
    store: Option<String>,
    dir: &Path,
    runs: u64,
    connections: u64,
) -> anyhow::Result<HostileBench> {
    let folder = Folder(dir.join(format!(".flowline-bench-{}", std::process::id())));
    flowline_sqlite::make_folder(&folder.0)?;
    let url = store.unwrap_or_else(|| format!("sqlite:{}", folder.0.join("bench.db").display()));
    let (quiet, noisy) = (token(&url, "quiet")?, token(&url, "noisy")?);
    let server = BenchServer::start(&url)?;
    let address = server.address;
    let definition = json!({ "flow": "quiet", "steps": { "work": { "worker": "quiet" } } });
    let mut connection = Connection::open(address).await?;
    good(connection.answer(&request("POST", "/v1/flows", &quiet, Some(&definition))).await?)?;
    let attacks = attacks(&mut connection, &noisy).await?;

    let over = Arc::new(AtomicBool::new(false));
    let worker = tokio::spawn(apart(work(address, quiet.clone(), over.clone())));
    // Once before it counts, so that the store isn't cold.
    apart(quiet_runs(address, quiet.clone(), runs / 10 + 1)).await?;
    let idle = apart(quiet_runs(address, quiet.clone(), runs)).await?;
    let counts = Arc::new(NoiseCounts::default());
    let noise = noise(address, noisy.clone(), Arc::new(attacks), connections, over.clone(), counts.clone());
    let noise = tokio::spawn(apart(noise));
    tokio::time::sleep(SETTLES).await;
    let beside = apart(quiet_runs(address, quiet.clone(), runs)).await;
    over.store(true, Ordering::Relaxed);
    noise.await??;
    worker.await??;
    let beside = beside?;

    // The first one was idle for longer than the server keeps it.
    let mut connection = Connection::open(address).await?;
    let mut lost = 0;
    let quiet_started = 2 * runs + runs / 10 + 1;
    for (token, started) in [(&quiet, quiet_started), (&noisy, counts.started.load(Ordering::Relaxed))] {
        let ended = settled(&mut connection, token).await?;
        lost += ended.abs_diff(started);
    }
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Ok(HostileBench {
        connections,
        start_ratio: beside.start_ms.p99 / idle.start_ms.p99,
        completion_ratio: beside.completion_ms.p99 / idle.completion_ms.p99,
        idle,
        noisy: beside,
        peak_rss_mb: super::peak_rss_mb(server.process.id()),
        attacks: count(&counts.answered),
        refused: count(&counts.refused),
        failed: count(&counts.failed),
        lost,
    })
}

fn token(url: &str, tenant: &str) -> anyhow::Result<String> {
    let made = Command::new(std::env::current_exe()?)
        .args(["token", "create", "--store", url, "--tenant", tenant, "--subject", tenant])
        .args(["--scope", "admin", "--json"])
        .output()?;
    ensure!(made.status.success(), "can't create a token: {}", String::from_utf8_lossy(&made.stderr));
    let made: Value = serde_json::from_slice(&made.stdout)?;
    Ok(made["token"].as_str().context("the response has no token")?.to_owned())
}

/// A server in a process of its own, which ends with this.
struct BenchServer {
    process: Child,
    address: SocketAddr,
}

impl BenchServer {
    fn start(url: &str) -> anyhow::Result<BenchServer> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([
                "serve",
                "--store",
                url,
                "--listen",
                "127.0.0.1:0",
                "--auth",
                "tokens",
                "--allow-commands",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut said = BufReader::new(process.stderr.take().context("a pipe")?);
        let mut line = String::new();
        let address = loop {
            line.clear();
            ensure!(said.read_line(&mut line)? > 0, "the server exited immediately");
            // The line may be JSON.
            let at = line.split_once(" on http://").and_then(|(_, at)| at.trim_end().split('"').next());
            if let Some(address) = at.and_then(|at| at.parse().ok()) {
                break address;
            }
        };
        // What it says from now on is of no interest, but must be read.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Ok(BenchServer { process, address })
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn request(method: &str, path: &str, token: &str, body: Option<&Value>) -> Vec<u8> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n");
    format!("{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn good((status, body): (u16, &[u8])) -> anyhow::Result<Value> {
    ensure!((200..210).contains(&status), "{status}: {}", String::from_utf8_lossy(body));
    Ok(if body.is_empty() { Value::Null } else { serde_json::from_slice(body)? })
}

/// Starts runs one after the other and waits for each.
async fn quiet_runs(address: SocketAddr, token: String, runs: u64) -> anyhow::Result<QuietTenant> {
    let mut connection = Connection::open(address).await?;
    let start = request("POST", "/v1/flows/quiet/runs", &token, Some(&json!({ "input": 1 })));
    let (mut starts, mut completions) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        let began = Instant::now();
        let run = good(connection.answer(&start).await?)?["runId"]
            .as_str()
            .context("the response has no run id")?
            .to_owned();
        starts.push(began.elapsed().as_secs_f64() * 1e3);
        let result = request("GET", &format!("/v1/runs/{run}/result?wait=30s"), &token, None);
        let result = good(connection.answer(&result).await?)?;
        ensure!(result["status"] == "completed", "a run of the quiet tenant is {}", result["status"]);
        completions.push(began.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(QuietTenant { runs, start_ms: latency(&mut starts), completion_ms: latency(&mut completions) })
}

/// The worker of the quiet tenant.
async fn work(address: SocketAddr, token: String, over: Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut connection = Connection::open(address).await?;
    let claim = json!({ "worker": "quiet", "queues": ["quiet"], "waitMs": 1000 });
    let claim = request("POST", "/v1/work/claim", &token, Some(&claim));
    while !over.load(Ordering::Relaxed) {
        let claimed = good(connection.answer(&claim).await?)?;
        for job in claimed["jobs"].as_array().into_iter().flatten() {
            let outcome = json!({ "outcomes": [{ "lease": job["lease"], "complete": { "result": 1 } }] });
            let complete = request("POST", "/v1/work/complete", &token, Some(&outcome));
            good(connection.answer(&complete).await?)?;
        }
    }
    Ok(())
}

/// One request of the noisy tenant, and whether it starts a run.
struct Attack {
    request: Vec<u8>,
    starts: bool,
}

#[derive(Debug, Default)]
struct NoiseCounts {
    answered: AtomicU64,
    started: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// Registers what the attacks need, and says what they are.
async fn attacks(connection: &mut Connection, token: &str) -> anyhow::Result<Vec<Attack>> {
    let mut attacks = Vec::new();
    let patterns = |count: usize, pattern: &dyn Fn(usize) -> String| {
        let of = |at: usize| (format!("p{at}"), json!({ "pattern": pattern(at) }));
        let properties: serde_json::Map<String, Value> = (0..count).map(of).collect();
        json!({ "flow": "bomb", "input": { "properties": properties }, "steps": { "a": { "worker": "q" } } })
    };
    // More than may be, and as much as may be.
    let many = patterns(1_300, &|at| format!("^(\\w{{1,50}}[\\p{{L}}a{at}]){{50}}$"));
    let large = patterns(100, &|at| format!("^\\w{{1,8}}a{at}$"));
    for bomb in [many, large] {
        attacks.push(Attack {
            request: request("POST", "/v1/flows/validate", token, Some(&bomb)),
            starts: false,
        });
    }
    let nested = "input.l.all(a, input.l.all(b, input.l.all(c, input.l.all(d, a + b + c + d >= 0))))";
    let grows = format!("({}).size() > 0", vec!["input.s"; 200].join("+"));
    let list = |count: usize| json!({ "l": (0..count).collect::<Vec<_>>() });
    let step = |condition: &str| json!({ "worker": "noisy", "if": condition });
    let four: serde_json::Map<String, Value> =
        (0..4).map(|at| (format!("s{at}"), step(&format!("!({nested})")))).collect();
    for (flow, more, input) in [
        ("doubling", json!({ "input": doubling(21), "steps": { "a": step("false") } }), json!(1)),
        ("doubled", json!({ "input": doubling(15), "steps": { "a": step("false") } }), json!("x")),
        ("nested", json!({ "steps": { "a": step(nested) } }), list(55)),
        ("nearly", json!({ "steps": four }), list(16)),
        ("grows", json!({ "steps": { "a": step(&grows) } }), json!({ "s": "x".repeat(1_000_000) })),
        ("prints", json!({ "steps": { "a": { "command": ["yes"], "timeout": PRINTS } } }), json!(1)),
    ] {
        let mut definition = more;
        definition["flow"] = json!(flow);
        good(connection.answer(&request("POST", "/v1/flows", token, Some(&definition))).await?)?;
        let path = format!("/v1/flows/{flow}/runs");
        let request = request("POST", &path, token, Some(&json!({ "input": input })));
        attacks.push(Attack { request, starts: true });
    }
    Ok(attacks)
}

/// Two alternatives that lead to two alternatives each, and so on.
fn doubling(levels: usize) -> Value {
    let mut defs = serde_json::Map::new();
    for level in 0..levels {
        let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
        defs.insert(format!("d{level}"), json!({ "anyOf": [next, next] }));
    }
    defs.insert(format!("d{levels}"), json!({ "type": "string" }));
    json!({ "$defs": defs, "$ref": "#/$defs/d0" })
}

/// All attacks in turn on each connection, until it's over.
async fn noise(
    address: SocketAddr,
    token: String,
    attacks: Arc<Vec<Attack>>,
    connections: u64,
    over: Arc<AtomicBool>,
    counts: Arc<NoiseCounts>,
) -> anyhow::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for at in 0..connections as usize {
        let (attacks, over, counts) = (attacks.clone(), over.clone(), counts.clone());
        let mut connection = Connection::open(address).await?;
        tasks.spawn(async move {
            for attack in attacks.iter().cycle().skip(at % attacks.len()) {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let (status, _) = connection.answer(&attack.request).await?;
                counts.answered.fetch_add(1, Ordering::Relaxed);
                let count = match status {
                    200..300 if attack.starts => &counts.started,
                    200..300 => continue,
                    400..500 => &counts.refused,
                    _ => &counts.failed,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    drop(token);
    while let Some(one) = tasks.join_next().await {
        one??;
    }
    Ok(())
}

/// How many runs of a tenant have ended, once none is under way.
async fn settled(connection: &mut Connection, token: &str) -> anyhow::Result<u64> {
    let total = |status: &str| {
        let path = format!("/v1/runs?limit=1{status}");
        request("GET", &path, token, None)
    };
    let until = Instant::now() + PATIENCE;
    loop {
        let mut under_way = 0;
        for status in ["running", "waiting"] {
            let found = good(connection.answer(&total(&format!("&status={status}"))).await?)?;
            under_way += found["total"].as_u64().unwrap_or_default();
        }
        let all = good(connection.answer(&total("")).await?)?["total"].as_u64().unwrap_or_default();
        if under_way == 0 || Instant::now() > until {
            return Ok(all - under_way);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
