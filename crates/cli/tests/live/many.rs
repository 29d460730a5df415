//! Many clients at once, those that read and those that do not.

use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::live::http::{Stream, connect, write};
use crate::live::served::Server;
use crate::live::watched::{self, FLOW, act, learn, log, pause_and_resume, send, start};

/// How many connections this process may hold: a thousand, or what the system allows.
pub fn clients() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let clients = 1_000.min(usize::try_from(files / 2).unwrap_or(1_000));
    if clients < 1_000 {
        println!("only {clients} clients: the system allows {files} open files");
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_clients_on_one_run_receive_every_event_in_order() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let to = server.address;
    learn(to).await;
    let run = start(to, FLOW).await;
    pause_and_resume(to, &run, 5).await;
    let path = format!("/v1/runs/{run}/stream");
    let follow = |_| {
        let path = path.clone();
        tokio::spawn(async move { Stream::open(to, &path, "").await.rest().await })
    };
    let count = clients();
    let all: Vec<_> = (0..count).map(follow).collect();
    let began = Instant::now();
    pause_and_resume(to, &run, 100).await;
    act(to, &run, "complete").await;
    let told = began.elapsed();
    let log = log(to, &run).await;
    for client in all {
        let mut messages = client.await.unwrap();
        assert_eq!(messages.pop().unwrap().event, "end");
        let events: Vec<_> = messages.into_iter().map(|message| message.data).collect();
        assert!(events == log, "{} of {} events, or not in order", events.len(), log.len());
    }
    let all_had = began.elapsed();
    println!(
        "{count} clients had all of {} events {all_had:?} after the first; they were made in {told:?}",
        log.len()
    );
}

#[tokio::test]
async fn a_client_that_never_reads_is_cut_and_slows_nobody() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let to = server.address;
    learn(to).await;
    let run = start(to, FLOW).await;
    let path = format!("/v1/runs/{run}/stream");
    let mut deaf = connect(to).await;
    write(&mut deaf, &format!("GET {path}"), &[], None).await;
    let mut reader = Stream::open(to, &path, "").await;
    let began = Instant::now();
    for number in 0..watched::EVENTS {
        send(to, &run, number, &json!("x".repeat(900_000))).await;
        while reader.next().await.unwrap().event != "emit" {}
    }
    println!("36 MB beside a client that never reads: {:?}", began.elapsed());
    let cut = until_cut(deaf.get_ref()).await;
    println!("it was cut after {cut:?}");
    act(to, &run, "complete").await;
    assert_eq!(reader.rest().await.pop().unwrap().event, "end");
}

/// Waits until the other side has closed a connection that is not read. What it sent stays, so the end is not seen by
/// reading: but writing to a connection that is gone fails.
async fn until_cut(stream: &TcpStream) -> Duration {
    let began = Instant::now();
    while stream.try_write(b"\r\n").is_ok_and(|_| true) {
        assert!(began.elapsed() < Duration::from_secs(120), "it is never cut");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    began.elapsed()
}

/// Each of them has asked for more than the system takes for it, and reads nothing.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn clients_that_never_read_cost_at_most_64_kib_each() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let to = server.address;
    learn(to).await;
    let (small, large) = (start(to, FLOW).await, start(to, FLOW).await);
    for number in 0..watched::EVENTS {
        send(to, &large, number, &json!("x".repeat(300_000))).await;
    }
    for number in 0..watched::EVENTS {
        send(to, &small, number, &json!("x".repeat(1_000))).await;
    }
    // What the first ones need is not what each one costs.
    for _ in 0..20 {
        Stream::open(to, "/v1/stream?from=start", "").await.next().await.unwrap();
    }
    let count = clients();
    for paths in [
        [format!("/v1/runs/{small}/stream"), "/v1/stream".to_owned()],
        [format!("/v1/runs/{large}/stream"), "/v1/stream?from=start".to_owned()],
    ] {
        let before = server.memory();
        let mut deaf = Vec::new();
        for number in 0..count {
            let mut wire = connect(to).await;
            write(&mut wire, &format!("GET {}", paths[number % 2]), &[], None).await;
            deaf.push(wire);
        }
        // Events go on meanwhile, and somebody hears them.
        let mut reader = Stream::open(to, "/v1/stream", "").await;
        pause_and_resume(to, &small, 50).await;
        for _ in 0..100 {
            reader.next().await.unwrap();
        }
        let each = settled(&server).await.saturating_sub(before) / count as u64;
        println!("{count} clients of {paths:?} that never read cost {each} bytes each");
        assert!(each <= 64 * 1024, "{each} bytes each");
    }
}

/// The memory of a server once it grows no more.
async fn settled(server: &Server) -> u64 {
    let mut memory = server.memory();
    loop {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = server.memory();
        if now <= memory + memory / 100 {
            return now;
        }
        memory = now;
    }
}
