//! Clients that mean no good: each is refused with the right status, and others are served meanwhile.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::live::http::{Answer, answer, connect, get, post};
use crate::live::many::clients;
use crate::live::served::Server;
use crate::live::watched::{FLOW, learn, start};

/// Sends these bytes, then a part again and again, until there is an answer.
async fn say(to: SocketAddr, first: String, part: &str, times: usize) -> std::io::Result<Answer> {
    let (reader, mut writer) = tokio::io::split(connect(to).await.into_inner());
    let write = async {
        // What the server no longer listens to is not our concern.
        if writer.write_all(first.as_bytes()).await.is_ok() {
            for _ in 0..times {
                if writer.write_all(part.as_bytes()).await.is_err() {
                    break;
                }
            }
        }
        std::future::pending::<()>().await;
    };
    let mut wire = tokio::io::join(tokio::io::BufReader::new(reader), tokio::io::empty());
    tokio::select! {
        answer = answer(&mut wire) => answer,
        () = write => unreachable!("it waits for the answer"),
    }
}

fn post_head(headers: &str) -> String {
    format!(
        "POST /v1/flows/{FLOW}/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\r\n\r\n"
    )
}

pub async fn huge_body(to: SocketAddr) -> Answer {
    let head = post_head("content-length: 104857600");
    say(to, head, &"x".repeat(1 << 20), 100).await.unwrap()
}

pub async fn endless_body(to: SocketAddr) -> Answer {
    let part = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    say(to, post_head("transfer-encoding: chunked"), &part, 1_600).await.unwrap()
}

pub async fn deep_json(to: SocketAddr) -> Answer {
    let body = format!("{{\"input\": {}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    say(to, post_head(&format!("content-length: {}", body.len())), &body, 1).await.unwrap()
}

#[tokio::test]
async fn what_is_too_large_or_makes_no_sense_is_refused_with_the_right_status() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let to = server.address;
    learn(to).await;
    let problem = |answer: Answer, status: u16, code: &str| {
        assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)), "{answer:?}");
    };
    problem(huge_body(to).await, 413, "too-large");
    problem(endless_body(to).await, 413, "too-large");
    problem(deep_json(to).await, 400, "bad-body");
    let garbage = say(to, post_head("transfer-encoding: chunked"), "not a chunk\r\n", 3).await.unwrap();
    problem(garbage, 400, "bad-request");
    // Refused before there is a request to speak of.
    let bomb = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx-bomb: {}\r\n\r\n", "x".repeat(100_000));
    assert_eq!(say(to, bomb, "", 0).await.unwrap().status, 431);
    let many: String = (0..1_000).map(|n| format!("x-{n}: {n}\r\n")).collect();
    let many = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\n{many}\r\n");
    assert_eq!(say(to, many, "", 0).await.unwrap().status, 431);
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(100_000));
    assert!(matches!(say(to, long, "", 0).await.unwrap().status, 414 | 431));
    assert_eq!(say(to, "not HTTP at all\r\n\r\n".to_owned(), "", 0).await.unwrap().status, 400);
    assert_eq!(get(to, "/livez", &[]).await.status, 200);
}

/// A thousand connections that say nothing, some that send a byte a second, and bodies that are too large, all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_requests_go_on_beside_hostile_ones() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let to = server.address;
    learn(to).await;
    let idle = healthy(to).await;
    let silent: Vec<_> = (0..clients()).map(|_| tokio::spawn(say_slowly(to, ""))).collect();
    let slow: Vec<_> = (0..100).map(|_| tokio::spawn(say_slowly(to, "GET /livez HTTP/1.1\r\nx: "))).collect();
    let flood = |attack: fn(SocketAddr) -> std::pin::Pin<Box<dyn Future<Output = Answer> + Send>>| {
        tokio::spawn(async move {
            loop {
                assert!(matches!(attack(to).await.status, 400 | 413));
                // So that this machine is not busy with making attacks alone.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    };
    let floods = [
        flood(|to| Box::pin(huge_body(to))),
        flood(|to| Box::pin(endless_body(to))),
        flood(|to| Box::pin(deep_json(to))),
    ];
    let beside = healthy(to).await;
    println!("healthy requests, p50 and p99: idle {idle:?}, beside hostile ones {beside:?}");
    for flood in floods {
        assert!(!flood.is_finished(), "it was refused each time");
        flood.abort();
    }
    // None of the others is kept.
    let mut longest = Duration::ZERO;
    for connection in silent.into_iter().chain(slow) {
        longest = longest.max(connection.await.unwrap());
    }
    println!("the last that would not say what it wants was cut after {longest:?}");
    let body = say(to, post_head("content-length: 10"), "x", 1).await.unwrap();
    assert_eq!((body.status, &body.json()["code"]), (408, &json!("request-timeout")));
}

/// Sends a byte a second after these, until the other side has had enough; how long that took.
pub async fn say_slowly(to: SocketAddr, first: &str) -> Duration {
    let mut wire = connect(to).await.into_inner();
    let began = Instant::now();
    wire.write_all(first.as_bytes()).await.unwrap();
    let mut answer = [0; 256];
    loop {
        let wait = tokio::time::timeout(Duration::from_secs(1), wire.read(&mut answer)).await;
        if matches!(wait, Ok(Ok(0) | Err(_))) {
            return began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_secs(120), "it is never cut");
        if !first.is_empty() {
            let _ = wire.write_all(b"x").await;
        }
    }
}

/// How long good requests take, each on a connection of its own: the median, and what one in a hundred exceeds.
async fn healthy(to: SocketAddr) -> (Duration, Duration) {
    let mut times = Vec::new();
    for number in 0..400 {
        let began = Instant::now();
        match number % 4 {
            0 => assert_ne!(start(to, FLOW).await, ""),
            1 => assert_eq!(post(to, "/v1/flows/validate", &json!({})).await.status, 200),
            _ => assert_eq!(get(to, "/v1/runs?limit=10", &[]).await.status, 200),
        }
        times.push(began.elapsed());
    }
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}
