//! What remote work costs: from commit to start, and while there is nothing to do. Nothing is asserted; the figures are
//! printed, beside what a bare request takes at the same time.

use std::time::{Duration, Instant};

use flowline_client::Client;
use flowline_client::api::work as wire;
use serde_json::json;

use crate::kit::crowd::{Running, Server};
use crate::kit::place::Here;

const FLOW: &str = "flow: one\nsteps:\n  only: { worker: depot }\n";
const ROUNDS: usize = 300;
const IDLE: Duration = Duration::from_secs(20);

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// `FLOWLINE_FIGURES=1 cargo test -p flowline-cli --test all remote::figures -- --nocapture`; `FLOWLINE_FIGURES_STORE` names another
/// store than a SQLite file.
#[test]
fn figures_of_latency_and_idle_cost() {
    if std::env::var_os("FLOWLINE_FIGURES").is_none() {
        println!(
            "skipped: figures mean something on a quiet machine only; ask for them with FLOWLINE_FIGURES=1"
        );
        return;
    }
    let here = Here::new();
    let store = std::env::var("FLOWLINE_FIGURES_STORE").unwrap_or_else(|_| "sqlite:flowline.db".to_owned());
    let server = Server::start(&here, 0, &store, &["--drain", "1s"]);
    server.learn(FLOW);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(latency(&server));
    idle(&here, &server);
}

async fn latency(server: &Server) {
    let client = Client::new(&server.url()).unwrap();
    let claim = |wait_ms| wire::ClaimRequest {
        worker: "w1".to_owned(),
        queues: vec!["depot".to_owned()],
        limit: 1,
        wait_ms,
        with_state: false,
    };
    let (mut bare, mut start, mut complete) = (Vec::new(), Vec::new(), Vec::new());
    let (mut started, mut committed) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let began = Instant::now();
        client.heartbeat(Vec::new(), Duration::from_secs(5)).await.unwrap();
        bare.push(began.elapsed());
        let waiting = tokio::spawn({
            let (client, claim) = (client.clone(), claim(20_000));
            async move {
                let answer = client.claim(&claim).await.unwrap();
                (Instant::now(), answer.jobs)
            }
        });
        // Long enough to stand in line.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let asked = Instant::now();
        let run = json!({ "input": round });
        client.post::<serde_json::Value>("/v1/flows/one/runs", &run, Duration::ZERO).await.unwrap();
        let answered = Instant::now();
        start.push(answered - asked);
        let (got, jobs) = waiting.await.unwrap();
        started.push(got - asked);
        committed.push(got.saturating_duration_since(answered));
        let outcome = wire::AttemptOutcome {
            lease: jobs[0].lease.clone(),
            complete: Some(wire::Completed {
                result: flowline_client::types::Json::null(),
                emits: Vec::new(),
            }),
            fail: None,
        };
        let began = Instant::now();
        let request = wire::CompleteRequest { outcomes: vec![outcome], claim: None };
        client.complete(&request, Duration::from_secs(5)).await.unwrap();
        complete.push(began.elapsed());
    }
    let bare = median(bare);
    let show = |what: &str, times: Vec<Duration>| {
        let time = median(times);
        println!("{what}: p50 {time:.2?}, {:.1} bare requests", time.as_secs_f64() / bare.as_secs_f64());
    };
    println!("a bare request: p50 {bare:.2?}");
    show("the answer to a start", start);
    show("from the request to start a run to its job at a worker", started);
    show("from the answer to a start to its job at a worker", committed);
    show("a completion", complete);
}

fn idle(here: &Here, server: &Server) {
    let url = server.url();
    let arguments = ["worker", "--server", &url, "--queue", "depot", "--", "true"];
    let busy = |pid| cpu(pid);
    let alone = {
        let before = busy(server.running.id());
        std::thread::sleep(IDLE);
        busy(server.running.id()) - before
    };
    let workers: Vec<Running> =
        (0..8).map(|number| Running::start(here, &format!("idle-{number}"), &arguments)).collect();
    std::thread::sleep(Duration::from_secs(3));
    let before = (busy(server.running.id()), workers.iter().map(|worker| busy(worker.id())).sum::<f64>());
    std::thread::sleep(IDLE);
    let after = (busy(server.running.id()), workers.iter().map(|worker| busy(worker.id())).sum::<f64>());
    let share = |seconds: f64| 100.0 * seconds / IDLE.as_secs_f64();
    println!("an idle server: {:.2} % of a core", share(alone));
    println!(
        "with 8 idle workers: server {:.2} %, workers {:.2} % of a core together",
        share(after.0 - before.0),
        share(after.1 - before.1)
    );
}

/// Seconds of a processor that a process has used.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / 100.0
}
