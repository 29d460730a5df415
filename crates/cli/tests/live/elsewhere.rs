//! Two servers on one store: what one writes the other tells, and a client may go from one to the other.

use serde_json::Value;
use tempfile::TempDir;

use crate::kit::server::{Kind, Place};
use crate::live::http::{Message, Stream};
use crate::live::served::Server;
use crate::live::watched::{FLOW, act, learn, log, pause_and_resume, start};

/// Events of each run after its first: so many pauses and resumes, and its end.
const PAUSES: usize = 25;
const AFTER_THE_FIRST: usize = 2 * PAUSES + 1;

struct Two {
    _folder: TempDir,
    servers: [Server; 2],
}

async fn two(url: &str) -> Two {
    let folder = TempDir::new().unwrap();
    let serve = || Server::start(folder.path(), &["--store", url]);
    let servers = [serve(), serve()];
    learn(servers[0].address).await;
    Two { _folder: folder, servers }
}

impl Two {
    /// Follows by turns on both servers, coming back with the last id after every few messages, until there are so many.
    async fn wander(&self, path: &str, last_id: &str, count: usize) -> Vec<Value> {
        let mut all = Vec::new();
        let mut last_id = last_id.to_owned();
        let mut turn = 0;
        while all.len() < count {
            let mut stream = Stream::open(self.servers[turn % 2].address, path, &last_id).await;
            for _ in 0..(1 + turn * 7 % 5).min(count - all.len()) {
                let Message { id, data, .. } = stream.next().await.unwrap();
                last_id = id;
                all.push(data);
            }
            turn += 1;
        }
        all
    }

    async fn write(&self, run: &str, turn: usize) {
        for pause in turn..turn + PAUSES {
            pause_and_resume(self.servers[usize::from(pause % 3 == 0)].address, run, 1).await;
        }
        act(self.servers[1].address, run, "complete").await;
    }
}

/// The feed has what each run's log has after its first event, in the order of each.
fn assert_told(feed: &[Value], logs: &[Vec<Value>]) {
    assert_eq!(feed.len(), logs.len() * AFTER_THE_FIRST);
    for log in logs {
        let of_run = feed.iter().filter(|event| event["runId"] == log[0]["runId"]);
        assert_eq!(of_run.collect::<Vec<_>>(), log[1..].iter().collect::<Vec<_>>());
    }
}

async fn a_client_that_goes_from_one_instance_to_the_other_misses_none(url: &str) {
    let two = two(url).await;
    let [here, there] = [two.servers[0].address, two.servers[1].address];
    let runs = [start(here, FLOW).await, start(there, FLOW).await, start(here, FLOW).await];
    let path = format!("/v1/runs/{}/stream", runs[0]);
    // Somebody stays all the time, so that tails are shared and go on.
    let mut stays = Stream::open(there, "/v1/stream", "").await;
    let mut first = Stream::open(here, "/v1/stream", "").await;
    let follow_all = async {
        let Message { id, data, .. } = first.next().await.unwrap();
        let mut all = vec![data];
        all.extend(two.wander("/v1/stream", &id, runs.len() * AFTER_THE_FIRST - 1).await);
        all
    };
    let ((), (), (), of_run, of_all) = tokio::join!(
        two.write(&runs[0], 0),
        two.write(&runs[1], 1),
        two.write(&runs[2], 2),
        two.wander(&path, "", 1 + AFTER_THE_FIRST),
        follow_all,
    );
    let logs = [log(here, &runs[0]).await, log(here, &runs[1]).await, log(there, &runs[2]).await];
    assert_eq!(of_run, logs[0]);
    assert_told(&of_all, &logs);
    // What the other process wrote was told here as well.
    let mut stayed = Vec::new();
    while stayed.len() < of_all.len() {
        stayed.push(stays.next().await.unwrap().data);
    }
    assert_told(&stayed, &logs);
}

#[tokio::test]
async fn on_redis_a_client_that_goes_from_one_instance_to_the_other_misses_none() {
    let place = Place::shared(Kind::Redis);
    a_client_that_goes_from_one_instance_to_the_other_misses_none(&place.url).await;
}

/// Cursors have a place in each shard there, and two readers seldom have the same ones.
#[tokio::test]
async fn on_redis_cluster_a_client_that_goes_from_one_instance_to_the_other_misses_none() {
    let cluster = std::env::var("FLOWLINE_TEST_REDIS_CLUSTER_URL").expect("`cargo xtask test` sets it");
    let url = format!("{cluster}?prefix=live_{}", std::process::id());
    a_client_that_goes_from_one_instance_to_the_other_misses_none(&url).await;
}

#[tokio::test]
async fn on_postgres_a_client_that_goes_from_one_instance_to_the_other_misses_none() {
    let place = Place::shared(Kind::Postgres);
    a_client_that_goes_from_one_instance_to_the_other_misses_none(&place.url).await;
}
