//! The client's streams, against a real server and through connections that are cut.

use std::net::SocketAddr;
use std::time::Duration;

use flowline_client::types::Status;
use flowline_client::{Client, ClientError, EventStream};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use crate::live::http::PATIENCE;
use crate::live::served::Server;
use crate::live::watched::{FLOW, act, learn, log, pause_and_resume, send, start};

async fn serving() -> (TempDir, Server) {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    learn(server.address).await;
    (folder, server)
}

fn client(address: SocketAddr) -> Client {
    Client::new(&format!("http://{address}")).unwrap()
}

/// A way to the server that is cut each time the server has sent this much.
async fn cutting(server: SocketAddr, after: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move {
                let ((mut from_near, mut to_near), (from_far, mut to_far)) = (near.into_split(), far.split());
                let mut from_far = from_far.take(after);
                tokio::select! {
                    _ = tokio::io::copy(&mut from_near, &mut to_far) => {}
                    _ = tokio::io::copy(&mut from_far, &mut to_near) => {}
                }
            });
        }
    });
    address
}

async fn next(events: &mut EventStream) -> Option<Value> {
    let event = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event comes in time").unwrap();
    event.map(|event| json!(event))
}

async fn rest(events: &mut EventStream) -> Vec<Value> {
    let mut all = Vec::new();
    while let Some(event) = next(events).await {
        all.push(event);
    }
    all
}

#[tokio::test]
async fn the_client_follows_a_run_to_its_end_however_often_it_is_cut_off() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let run = start(to, FLOW).await;
    let cut = cutting(to, 6_000).await;
    let acts = async {
        pause_and_resume(to, &run, 30).await;
        send(to, &run, 1, &json!({ "text": "é\n\nid: 7\n".repeat(200) })).await;
        pause_and_resume(to, &run, 30).await;
        act(to, &run, "complete").await;
    };
    let mut through = client(cut).follow(&run, &[]);
    let (through_cuts, ()) = tokio::join!(rest(&mut through), acts);
    let log = log(to, &run).await;
    assert!(through_cuts == log, "the log and the stream differ");
    assert_eq!(through.status(), Some(Status::Completed));
    // Of an ended run, whole, in part, and nothing.
    let mut whole = client(to).follow(&run, &[]);
    assert!(rest(&mut whole).await == log);
    let mut late =
        client(to).follow(&run, &[("type", "flow.paused")]).after(log[60]["id"].as_str().unwrap()).unwrap();
    assert_eq!(rest(&mut late).await.len(), 30);
    assert_eq!(late.status(), Some(Status::Completed), "told by the end, without the terminal event");
    let mut over = client(to).follow(&run, &[]).after(whole.last_id().unwrap()).unwrap();
    assert_eq!((next(&mut over).await, over.status()), (None, None));
}

#[tokio::test]
async fn the_client_follows_many_runs_and_continues_after_any_event() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let before = start(to, "other").await;
    let cut = cutting(to, 4_000).await;
    let only = [("type", "flow.start,flow.completed")];
    let (mut all, mut flow) = (client(cut).follow_all(&only), client(cut).follow_flow(FLOW, &only));
    // Both are open once nothing comes.
    for events in [&mut all, &mut flow] {
        assert!(tokio::time::timeout(Duration::from_millis(500), events.next()).await.is_err());
    }
    let mut runs = Vec::new();
    for _ in 0..12 {
        runs.push(start(to, FLOW).await);
        pause_and_resume(to, &runs[runs.len() - 1], 2).await;
        act(to, &runs[runs.len() - 1], "complete").await;
    }
    start(to, "other").await;
    let mut ids = Vec::new();
    for events in [&mut all, &mut flow] {
        for run in &runs {
            for kind in ["flow.start", "flow.completed"] {
                let event = next(events).await.unwrap();
                assert_eq!((&event["runId"], &event["type"]), (&json!(run), &json!(kind)));
                ids.push(events.last_id().unwrap().to_owned());
            }
        }
    }
    assert_eq!(next(&mut all).await.unwrap()["flowName"], "other");
    let mut again = client(to).follow_all(&only).after(&ids[8]).unwrap();
    assert_eq!(next(&mut again).await.unwrap()["runId"], json!(runs[4]));
    let mut first = client(to).follow_all(&[("from", "start"), ("flow", "other")]);
    assert_eq!(next(&mut first).await.unwrap()["runId"], json!(before));
}

#[tokio::test]
async fn a_stream_that_the_server_refuses_fails() {
    let (_folder, server) = serving().await;
    let client = client(server.address);
    let run = start(server.address, FLOW).await;
    for (mut events, code) in [
        (client.follow("none", &[]), "no-such-run"),
        (client.follow_flow("none", &[]), "no-such-flow"),
        (client.follow(&run, &[]).after("9-9").unwrap(), "invalid"),
        (client.follow_all(&[]).after("never").unwrap(), "invalid"),
    ] {
        let error = events.next().await.unwrap_err();
        assert!(matches!(&error, ClientError::Refused { code: found, .. } if found == code), "{error}");
    }
    assert!(client.follow_all(&[]).after("a\nb").is_err());
}
