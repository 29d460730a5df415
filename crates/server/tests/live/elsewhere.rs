//! Two servers on one store: what one writes the other tells, and a client may go from one to the other.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{Message, Stream};
use crate::served::Server;
use crate::server::{Kind, Place};
use crate::watched::{FLOW, act, learn, log, pause_and_resume, start};

struct Two {
    _folder: TempDir,
    servers: [Server; 2],
}

async fn two(kind: Kind) -> Two {
    let folder = TempDir::new().unwrap();
    let place = Place::shared(kind);
    let serve = || Server::start(folder.path(), &["--store", &place.url]);
    let servers = [serve(), serve()];
    learn(servers[0].address).await;
    Two { _folder: folder, servers }
}

/// Follows by turns on both servers, coming back with the last id after every few messages, until one of this type.
async fn wander(two: &Two, path: &str, last_id: &str, until: &str) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::new();
    let mut last_id = last_id.to_owned();
    for turn in 0.. {
        let mut stream = Stream::open(two.servers[turn % 2].address, path, &last_id).await;
        for _ in 0..1 + turn * 7 % 5 {
            let message = stream.next().await.unwrap();
            let done = message.event == until;
            last_id.clone_from(&message.id);
            all.push(message);
            if done {
                return all;
            }
        }
    }
    all
}

async fn a_client_that_goes_from_one_instance_to_the_other_misses_none(kind: Kind) {
    let two = two(kind).await;
    let [here, there] = [two.servers[0].address, two.servers[1].address];
    let run = start(here, FLOW).await;
    let path = format!("/v1/runs/{run}/stream");
    // Somebody stays all the time, so that tails are shared and go on.
    let mut stays = Stream::open(there, "/v1/stream", "").await;
    let mut first = Stream::open(here, "/v1/stream", "").await;
    let write = async {
        for turn in 0..40 {
            pause_and_resume(if turn % 3 == 0 { there } else { here }, &run, 1).await;
        }
        act(there, &run, "complete").await;
    };
    let follow_all = async {
        let began = first.next().await.unwrap();
        let mut all = vec![began.clone()];
        all.extend(wander(&two, "/v1/stream", &began.id, "flow.completed").await);
        all
    };
    let ((), of_run, of_all) = tokio::join!(write, wander(&two, &path, "", "flow.completed"), follow_all);
    let data = |messages: Vec<Message>| messages.into_iter().map(|m| m.data).collect::<Vec<Value>>();
    let log = log(here, &run).await;
    assert_eq!(log.len(), 82);
    assert_eq!(data(of_run), log);
    assert_eq!(data(of_all), log[1..]);
    // What the other process wrote was told here as well.
    let mut stayed = Vec::new();
    while stayed.len() < log.len() - 1 {
        stayed.push(stays.next().await.unwrap().data);
    }
    assert_eq!(stayed, log[1..]);
    assert_eq!(stayed.last().unwrap()["type"], json!("flow.completed"));
}

#[tokio::test]
async fn on_redis_a_client_that_goes_from_one_instance_to_the_other_misses_none() {
    a_client_that_goes_from_one_instance_to_the_other_misses_none(Kind::Redis).await;
}

#[tokio::test]
async fn on_postgres_a_client_that_goes_from_one_instance_to_the_other_misses_none() {
    a_client_that_goes_from_one_instance_to_the_other_misses_none(Kind::Postgres).await;
}
