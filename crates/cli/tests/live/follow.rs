//! One client, one server: what comes, what it is called, and how it is taken up again.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::live::http::{Message, Stream, connect, get};
use crate::live::served::Server;
use crate::live::watched::{self, FLOW, act, learn, log, pause_and_resume, start};

async fn serving() -> (TempDir, Server) {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    learn(server.address).await;
    (folder, server)
}

fn data(messages: &[Message]) -> Vec<Value> {
    messages.iter().map(|message| message.data.clone()).collect()
}

#[tokio::test]
async fn a_run_is_followed_from_its_first_event_to_its_end() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let run = start(to, FLOW).await;
    pause_and_resume(to, &run, 3).await;
    let path = format!("/v1/runs/{run}/stream");
    let mut stream = Stream::open(to, &path, "").await;
    assert_eq!(stream.answer.header("cache-control"), Some("no-store"));
    let first = stream.next().await.unwrap();
    pause_and_resume(to, &run, 60).await;
    act(to, &run, "complete").await;
    let mut all = vec![first];
    all.extend(stream.rest().await);
    let end = all.pop().unwrap();
    assert_eq!((&*end.event, &end.data), ("end", &json!({ "runId": run, "status": "completed" })));
    let log = log(to, &run).await;
    assert_eq!(data(&all), log);
    for message in &all {
        assert_eq!((&json!(message.id), &json!(message.event)), (&message.data["id"], &message.data["type"]));
    }
    // Taken up anywhere, it gives the rest; at its end there is nothing to take up.
    for at in [0, 1, 40, all.len() - 2] {
        let mut again = Stream::open(to, &path, &all[at].id).await.rest().await;
        assert_eq!(again.pop().unwrap().event, "end");
        assert_eq!(again, all[at + 1..]);
        let seq = format!("{path}?after={}", at + 1);
        assert_eq!(Stream::open(to, &seq, "").await.rest().await[..again.len()], again);
    }
    let last = &all.last().unwrap().id;
    assert_eq!(get(to, &path, &[("last-event-id", last)]).await.status, 204);
    assert_eq!(get(to, &format!("{path}?after={last}"), &[]).await.status, 204);
    // Only some types, and the end all the same.
    let some = Stream::open(to, &format!("{path}?type=flow.paused"), "").await.rest().await;
    let events: Vec<&str> = some.iter().map(|message| message.event.as_str()).collect();
    assert_eq!(events, [vec!["flow.paused"; 63], vec!["end"]].concat());
}

#[tokio::test]
async fn an_id_that_no_stream_gave_is_refused() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let (run, other) = (start(to, FLOW).await, start(to, FLOW).await);
    pause_and_resume(to, &other, 1).await;
    let id = log(to, &other).await[2]["id"].as_str().unwrap().to_owned();
    for unknown in [id.as_str(), "99", "1-1", "0-0", "x", "-1", "1-x", "99999999999999999999", "é"] {
        for path in [format!("/v1/runs/{run}/stream"), "/v1/stream".to_owned()] {
            let answer = get(to, &path, &[("last-event-id", unknown)]).await;
            assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid")), "{path} {unknown}");
        }
    }
    assert_eq!(get(to, "/v1/stream?from=middle", &[]).await.json()["code"], "bad-parameter");
    assert_eq!(get(to, "/v1/runs/none/stream", &[]).await.json()["code"], "no-such-run");
    assert_eq!(get(to, "/v1/flows/none/stream", &[]).await.json()["code"], "no-such-flow");
}

#[tokio::test]
async fn the_events_of_all_runs_are_filtered_and_taken_up() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let before = start(to, "other").await;
    let mut now = Stream::open(to, "/v1/stream", "").await;
    let run = start(to, FLOW).await;
    pause_and_resume(to, &run, 2).await;
    let other = start(to, "other").await;
    act(to, &run, "complete").await;
    let mut came = Vec::new();
    while came.last().is_none_or(|last: &Message| last.event != "flow.completed") {
        came.push(now.next().await.unwrap());
    }
    let of = |run: &str| -> Vec<Value> {
        data(&came).into_iter().filter(|event| event["runId"] == json!(run)).collect()
    };
    assert_eq!(of(&run), log(to, &run).await);
    assert_eq!(of(&other), log(to, &other).await);
    assert_eq!(of(&before), Vec::<Value>::new(), "what was before is not told");
    // Each message's id leads to the one after it.
    for at in 0..came.len() - 1 {
        let mut again = Stream::open(to, "/v1/stream", &came[at].id).await;
        for message in &came[at + 1..] {
            assert_eq!(again.next().await.as_ref(), Some(message));
        }
    }
    // From the start, and only some.
    for (path, expected) in [
        ("/v1/stream?from=start&flow=other&type=flow.start".to_owned(), vec!["other", "other"]),
        ("/v1/stream?from=start&flow=other,watched&type=flow.start".to_owned(), vec!["other", FLOW, "other"]),
        ("/v1/flows/other/stream?from=start&type=flow.start".to_owned(), vec!["other", "other"]),
        (format!("/v1/flows/{FLOW}/stream?type=flow.completed&from=start"), vec![FLOW]),
    ] {
        let mut some = Stream::open(to, &path, "").await;
        for flow in expected {
            assert_eq!(some.next().await.unwrap().data["flowName"], flow, "{path}");
        }
        let run = start(to, FLOW).await;
        act(to, &run, "complete").await;
        start(to, "other").await;
        let next = some.next().await.unwrap();
        assert!(path.contains(next.data["flowName"].as_str().unwrap()), "{path}: {next:?}");
    }
}

#[tokio::test]
async fn a_stream_that_broke_off_before_its_first_event_misses_none() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let mut stream = Stream::open(to, "/v1/stream", "").await;
    let told = async {
        while stream.last_id.is_empty() {
            stream.read_message().await.unwrap();
        }
    };
    // The id comes with the first words, though no message has come.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), told).await;
    assert_ne!(stream.last_id, "");
    let id = stream.last_id.clone();
    drop(stream);
    let run = start(to, FLOW).await;
    let mut stream = Stream::open(to, "/v1/stream", &id).await;
    assert_eq!(stream.next().await.unwrap().data["runId"], json!(run));
}

#[tokio::test]
async fn a_stream_with_nothing_to_say_shows_that_it_lives() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let run = start(to, FLOW).await;
    let mut of_run = Stream::open(to, &format!("/v1/runs/{run}/stream"), "").await;
    let mut of_flow = Stream::open(to, "/v1/flows/other/stream", "").await;
    assert_eq!(of_run.next().await.unwrap().event, "flow.start");
    let before = of_flow.last_id.clone();
    pause_and_resume(to, &run, 1).await;
    assert_eq!(of_run.next().await.unwrap().event, "flow.paused");
    assert_eq!(of_run.next().await.unwrap().event, "flow.resumed");
    of_run.comment().await;
    of_flow.comment().await;
    // A message of its own does not come, but the id goes past what the filter left out.
    pause_and_resume(to, &run, 1).await;
    of_flow.comment().await;
    of_flow.comment().await;
    assert_ne!(of_flow.last_id, before);
    let other = start(to, "other").await;
    assert_eq!(of_flow.next().await.unwrap().data["runId"], json!(other));
}

#[tokio::test]
async fn another_tenant_sees_nothing() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let run = start(to, FLOW).await;
    let other = [("flowline-tenant", "other")];
    for (path, code) in [
        (format!("/v1/runs/{run}/stream"), "no-such-run"),
        (format!("/v1/flows/{FLOW}/stream"), "no-such-flow"),
    ] {
        let answer = get(to, &path, &other).await;
        assert_eq!((answer.status, &answer.json()["code"]), (404, &json!(code)), "{path}");
    }
    let mut theirs = Stream::over(connect(to).await, "/v1/stream?from=start", &other).await;
    let mut ours = Stream::open(to, "/v1/stream?from=start", "").await;
    act(to, &run, "complete").await;
    while ours.next().await.unwrap().event != "flow.completed" {}
    theirs.comment().await;
    assert_ne!(theirs.last_id, "", "it was read on, and nothing was told");
}

#[tokio::test]
async fn a_server_that_stops_ends_its_streams_cleanly() {
    let (_folder, mut server) = serving().await;
    let to = server.address;
    let run = start(to, FLOW).await;
    let mut of_run = Stream::open(to, &format!("/v1/runs/{run}/stream"), "").await;
    let mut of_all = Stream::open(to, "/v1/stream", "").await;
    assert_eq!(of_run.next().await.unwrap().event, "flow.start");
    let status = tokio::task::spawn_blocking(move || server.stop());
    assert_eq!(of_run.rest().await, []);
    assert_eq!(of_all.rest().await, []);
    assert!(of_run.ended && of_all.ended);
    assert!(status.await.unwrap().success());
}

#[tokio::test]
async fn a_large_log_is_read_in_small_pages_and_comes_whole() {
    let (_folder, server) = serving().await;
    let to = server.address;
    let run = start(to, FLOW).await;
    for number in 0..watched::EVENTS {
        let size = [10, 3_000, 40_000, 900_000][number % 4];
        watched::send(to, &run, number, &json!("x".repeat(size))).await;
    }
    act(to, &run, "complete").await;
    let log = log(to, &run).await;
    let mut all = Stream::open(to, &format!("/v1/runs/{run}/stream"), "").await.rest().await;
    assert_eq!(all.pop().unwrap().event, "end");
    assert!(data(&all) == log, "the log and the stream differ");
    let mut feed = Stream::open(to, "/v1/stream?from=start", "").await;
    for event in log {
        assert!(feed.next().await.unwrap().data == event, "the log and the feed differ");
    }
}
