//! Requests that read are served on threads of their own, whatever else their connection asks for, behind TLS too.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::live::http::{Answer, Wire, answer, connect, get};
use crate::live::served::Server;
use crate::live::tls::{connect_safely, make_certificate};
use crate::live::watched::{FLOW, learn, start};

/// A connection that is kept for the next request.
struct Kept<W = BufReader<TcpStream>>(W);

impl Kept {
    async fn open(to: SocketAddr) -> Kept {
        Kept(connect(to).await)
    }
}

impl<W: Wire> Kept<W> {
    async fn ask(&mut self, line: &str, body: &str) -> Answer {
        let length = body.len();
        let request = format!(
            "{line} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.0.write_all(request.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
        answer(&mut self.0).await.unwrap()
    }
}

#[tokio::test]
async fn a_connection_reads_and_writes_in_turn_whatever_it_began_with() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    learn(server.address).await;
    for began in ["GET /v1/runs", "HEAD /livez", &format!("POST /v1/flows/{FLOW}/runs")] {
        let mut kept = Kept::open(server.address).await;
        if began.starts_with("HEAD") {
            // An answer to this has a length and no body.
            let request = format!("{began} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            kept.0.write_all(request.as_bytes()).await.unwrap();
            assert_eq!(crate::live::http::head(&mut kept.0).await.unwrap().status, 200);
        } else {
            assert!(matches!(kept.ask(began, "").await.status, 200 | 201), "{began}");
        }
        let run = kept.ask(&format!("POST /v1/flows/{FLOW}/runs"), r#"{"labels": {"a": "b"}}"#).await;
        assert_eq!(run.status, 201, "{began}: {run:?}");
        let run = run.json()["runId"].clone();
        let listed = kept.ask("GET /v1/runs?limit=1", "").await.json();
        assert_eq!(listed["items"][0]["runId"], run, "{began}");
        let ended = kept.ask(&format!("POST /v1/runs/{}/cancel", run.as_str().unwrap()), "").await;
        assert_eq!(ended.json()["status"], json!("cancelled"), "{began}");
    }
}

/// How often threads of this name went to sleep, which each does between two requests.
#[cfg(target_os = "linux")]
fn sleeps(server: &Server, name: &str) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let slept = threads.map(|thread| {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default();
        let of = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)).map(str::trim);
        match of("Name:") == Some(name) {
            true => of("voluntary_ctxt_switches:").unwrap().parse().unwrap(),
            false => 0,
        }
    });
    slept.sum()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn lists_are_served_on_threads_for_that_whatever_their_connection_began_with() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    learn(server.address).await;
    start(server.address, FLOW).await;
    lists_wake_readers(&server, Kept::open(server.address).await).await;
    let mut writes = Kept::open(server.address).await;
    assert_eq!(writes.ask("POST /v1/verify", "").await.status, 200);
    lists_wake_readers(&server, writes).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn lists_are_served_on_threads_for_that_behind_tls() {
    let folder = TempDir::new().unwrap();
    make_certificate(folder.path());
    let server = Server::start(folder.path(), &["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let mut kept = Kept(connect_safely(&server, folder.path()).await);
    let flow = json!({ "flow": FLOW, "steps": { "never": { "worker": "nobody" } } }).to_string();
    assert_eq!(kept.ask("POST /v1/flows", &flow).await.status, 201);
    assert_eq!(kept.ask(&format!("POST /v1/flows/{FLOW}/runs"), "").await.status, 201);
    lists_wake_readers(&server, kept).await;
}

/// Lists the one run over and over. On a busy machine a thread often sees the next request before it goes to sleep, so one
/// round of several has to show who served them.
#[cfg(target_os = "linux")]
async fn lists_wake_readers(server: &Server, mut kept: Kept<impl Wire>) {
    const TIMES: u64 = 300;
    const ROUNDS: u64 = 10;
    let (reads, rest) = ("flowline-reads", "tokio-rt-worker");
    let mut woken = Vec::new();
    for _ in 0..ROUNDS {
        let before = (sleeps(server, reads), sleeps(server, rest));
        for _ in 0..TIMES {
            assert_eq!(kept.ask("GET /v1/runs", "").await.json()["total"], json!(1));
        }
        woken.push((sleeps(server, reads) - before.0, sleeps(server, rest) - before.1));
        if woken.last().is_some_and(|(reads, rest)| *reads > 4 * rest) {
            return;
        }
    }
    panic!("{TIMES} lists woke readers and others this often, round by round: {woken:?}");
}

#[tokio::test]
async fn who_has_said_nothing_or_nothing_more_is_not_waited_for_at_the_end() {
    let folder = TempDir::new().unwrap();
    let mut server = Server::start(folder.path(), &["--drain", "60s"]);
    learn(server.address).await;
    let silent: Vec<_> = [connect(server.address).await, connect(server.address).await].into();
    let (mut read, mut written) = (Kept::open(server.address).await, Kept::open(server.address).await);
    assert_eq!(read.ask("GET /v1/runs", "").await.status, 200);
    assert_eq!(written.ask(&format!("POST /v1/flows/{FLOW}/runs"), "").await.status, 201);
    assert_eq!(get(server.address, "/readyz", &[]).await.status, 200);
    let began = Instant::now();
    assert!(server.stop().success());
    assert!(began.elapsed() < Duration::from_secs(60), "it waited until the end of its drain");
    drop((silent, read, written));
}
