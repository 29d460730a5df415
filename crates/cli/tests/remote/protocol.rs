//! Claims about the protocol that a fixture cannot make: time, processes, several parties.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use flowline::core::Time;
use flowline::store::Clock;
use serde_json::{Value, json};

use crate::kit::crowd::Server;
use crate::kit::place::Here;
use crate::kit::wait_for;

const FLOW: &str = "
flow: parcel
steps:
  pack: { worker: depot, returns: packed }
  send: { worker: depot, subscribes: [packed] }
";

fn place(lease: &str) -> (Here, Server) {
    let here = Here::new();
    let server = Server::start(&here, 0, "sqlite:flowline.db", &["--lease", lease, "--drain", "1s"]);
    server.learn(FLOW);
    (here, server)
}

fn claim(server: &Server, worker: &str, wait_ms: u64) -> Value {
    let request = json!({ "worker": worker, "queues": ["depot"], "waitMs": wait_ms });
    let (status, answer) = server.post("/v1/work/claim", &request);
    assert_eq!(status, 200, "{answer}");
    answer["jobs"].get(0).cloned().unwrap_or(Value::Null)
}

fn beat(server: &Server, job: &Value) -> Value {
    let (status, answer) = server.post("/v1/work/heartbeat", &json!({ "leases": [job["lease"]] }));
    assert_eq!(status, 200, "{answer}");
    answer["leases"][0]["state"].clone()
}

fn complete(server: &Server, job: &Value, result: Value) -> (u16, Value) {
    let outcome = json!({ "lease": job["lease"], "complete": { "result": result } });
    server.post("/v1/work/complete", &json!({ "outcomes": [outcome] }))
}

#[test]
fn a_worker_that_is_paused_beyond_its_lease_gets_409_and_its_late_result_changes_nothing() {
    let (_here, server) = place("1s");
    let run = server.begin("parcel", &json!(1));
    let paused = claim(&server, "w1", 5_000);
    assert_eq!(beat(&server, &paused), "held");
    // It says nothing for longer than its lease, and another gets the next attempt.
    let taken = claim(&server, "w2", 20_000);
    assert_eq!((&taken["stepName"], &taken["attempt"]), (&json!("pack"), &json!(2)));
    let before = server.log(&run);
    let (status, answer) = complete(&server, &paused, json!("late"));
    assert_eq!((status, &answer["code"]), (409, &json!("stale-lease")), "{answer}");
    assert_eq!(beat(&server, &paused), "lost");
    let line = json!({ "lease": paused["lease"], "lines": [{ "log": { "message": "late" } }] });
    assert_eq!(server.post("/v1/work/append", &line).0, 409);
    let emit = json!({ "lease": paused["lease"], "name": "packed", "payload": 1 });
    assert_eq!(server.post("/v1/work/emit", &emit).0, 409);
    assert_eq!(server.log(&run), before);
    assert_eq!(complete(&server, &taken, json!("in time")).0, 200);
    let send = claim(&server, "w2", 5_000);
    assert_eq!(send["input"], json!({ "packed": "in time" }));
    assert_eq!(complete(&server, &send, Value::Null).0, 200);
    assert_eq!(server.outcome(&run)["status"], "completed");
    assert_eq!(complete(&server, &paused, json!("later still")).0, 409);
}

#[test]
fn a_lease_that_expires_is_logged_with_the_name_of_its_flow() {
    let here = Here::new();
    let flags = ["--lease", "1s", "--log-format", "json"];
    let mut server = Server::start(&here, 0, "sqlite:flowline.db", &flags);
    server.learn(FLOW);
    let run = server.begin("parcel", &json!(1));
    assert_eq!(beat(&server, &claim(&server, "w1", 5_000)), "held");
    // Whoever finds the lease expired has never heard of the run.
    server.running.kill(&here);
    let mut expired = None;
    wait_for("the expired lease is logged", || {
        let log = std::fs::read_to_string(here.path("server-0")).unwrap();
        let lines = log.lines().filter(|line| line.contains("lease expired"));
        expired = lines.map(|line| serde_json::from_str::<Value>(line).unwrap()).next();
        expired.is_some()
    });
    let line = expired.unwrap().to_string();
    assert!(line.contains(&run) && line.contains("\"flowName\":\"parcel\""), "{line}");
}

#[test]
fn a_job_has_to_be_acknowledged_within_five_seconds_and_within_its_lease() {
    for (lease, lease_ms, acknowledge_ms) in [("2s", 2_000, 2_000), ("30s", 30_000, 5_000)] {
        let (_here, server) = place(lease);
        server.begin("parcel", &json!(1));
        let asked = json!({ "worker": "w1", "queues": ["depot"], "waitMs": 5_000 });
        let (_, answer) = server.post("/v1/work/claim", &asked);
        let times = &answer["times"];
        assert_eq!((&times["leaseMs"], &times["acknowledgeMs"]), (&json!(lease_ms), &json!(acknowledge_ms)));
        let expires = answer["jobs"][0]["expires"].as_str().and_then(Time::parse).unwrap();
        assert!(expires <= Clock::system().now() + Duration::from_millis(acknowledge_ms), "{answer}");
    }
}

#[test]
fn a_claim_waits_for_work_and_says_so_when_there_was_none() {
    let (_here, server) = place("5s");
    let began = Instant::now();
    assert_eq!(claim(&server, "w1", 300), Value::Null);
    assert!(began.elapsed() >= Duration::from_millis(300));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| claim(&server, "w1", 20_000));
        thread::sleep(Duration::from_millis(100));
        server.begin("parcel", &json!(1));
        assert_eq!(waiting.join().unwrap()["stepName"], "pack");
    });
}

#[test]
fn a_worker_that_hangs_up_takes_no_job_with_it() {
    let (_here, server) = place("5s");
    let request = json!({ "worker": "gone", "queues": ["depot"] }).to_string();
    let head = "POST /v1/work/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    for _ in 0..5 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        write!(stream, "{head}content-length: {}\r\n\r\n{request}", request.len()).unwrap();
        thread::sleep(Duration::from_millis(30));
    }
    // All have hung up; the server finds out by itself.
    thread::sleep(Duration::from_millis(200));
    let run = server.begin("parcel", &json!(1));
    let job = claim(&server, "w1", 20_000);
    assert_eq!(job["attempt"], 1, "{:?}", server.log(&run));
}

#[test]
fn outcomes_go_together_and_bring_the_next_jobs() {
    let (_here, server) = place("5s");
    let runs: Vec<String> = (0..3).map(|n| server.begin("parcel", &json!(n))).collect();
    let request = json!({ "worker": "w1", "queues": ["depot"], "limit": 10, "waitMs": 5_000 });
    let (_, first) = server.post("/v1/work/claim", &request);
    let jobs = first["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 3);
    let mut outcomes: Vec<Value> =
        jobs.iter().map(|job| json!({ "lease": job["lease"], "complete": {} })).collect();
    outcomes.push(json!({ "lease": "nonsense", "complete": {} }));
    let (status, answer) =
        server.post("/v1/work/complete", &json!({ "outcomes": outcomes, "claim": request }));
    assert_eq!(status, 200, "{answer}");
    let statuses: Vec<_> =
        answer["results"].as_array().unwrap().iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, [200, 200, 200, 409]);
    let next = answer["jobs"].as_array().unwrap();
    assert_eq!(next.len(), 3);
    assert!(next.iter().all(|job| job["stepName"] == "send"));
    let outcomes: Vec<Value> =
        next.iter().map(|job| json!({ "lease": job["lease"], "complete": {} })).collect();
    assert_eq!(server.post("/v1/work/complete", &json!({ "outcomes": outcomes })).0, 200);
    for run in runs {
        assert_eq!(server.outcome(&run)["status"], "completed");
    }
}

#[test]
fn a_server_that_stops_sends_waiting_workers_away() {
    let (_here, mut server) = place("5s");
    let port = server.port;
    let waiting = thread::spawn(move || {
        let request = json!({ "worker": "w1", "queues": ["depot"] }).to_string();
        let head = "POST /v1/work/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(stream, "{head}content-length: {}\r\n\r\n{request}", request.len()).unwrap();
        let mut answer = String::new();
        let _ = std::io::Read::read_to_string(&mut stream, &mut answer);
        answer
    });
    thread::sleep(Duration::from_millis(200));
    server.running.signal("TERM");
    assert_eq!(server.running.wait(), Some(0));
    let answer = waiting.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"jobs\":[]"), "{answer}");
}

#[test]
fn a_worker_that_stops_gives_back_what_it_cannot_finish() {
    let (here, server) = place("5s");
    here.write("slow.sh", "echo began >> began; sleep 60");
    here.write("quick.sh", "true");
    let run = server.begin("parcel", &json!(1));
    let url = server.url();
    let flags = ["worker", "--server", &url, "--queue", "depot", "--drain", "0s"];
    let mut slow =
        crate::kit::crowd::Running::start(&here, "slow", &[&flags[..], &["--", "sh", "slow.sh"]].concat());
    wait_for("the slow worker has begun", || here.path("began").exists());
    slow.signal("TERM");
    assert_eq!(slow.wait(), Some(0), "{}", std::fs::read_to_string(here.path("slow")).unwrap());
    let _quick =
        crate::kit::crowd::Running::start(&here, "quick", &[&flags[..], &["--", "sh", "quick.sh"]].concat());
    assert_eq!(server.outcome(&run)["status"], "completed");
    let retries: Vec<Value> = server
        .log(&run)
        .into_iter()
        .filter(|(kind, ..)| kind == "step.retry")
        .map(|(.., data)| data)
        .collect();
    assert_eq!(retries.len(), 1);
    assert_eq!(retries[0]["cause"], "released");
}

#[test]
fn a_server_that_dies_takes_no_attempt_with_it() {
    let (here, mut server) = place("20s");
    let run = server.begin("parcel", &json!(1));
    let job = claim(&server, "w1", 5_000);
    assert_eq!(beat(&server, &job), "held");
    server.running.kill(&here);
    wait_for("the server is back", || TcpStream::connect(("127.0.0.1", server.port)).is_ok());
    assert_eq!(beat(&server, &job), "held");
    assert_eq!(complete(&server, &job, json!(1)).0, 200);
    let attempts = server.log(&run).into_iter().filter(|(kind, ..)| kind == "step.started").count();
    assert_eq!(attempts, 1);
}

#[test]
fn workers_hold_locks_for_their_attempts_and_take_turns() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use flowline_client::{Client, JobError, Worker};

    let (_here, server) = place("30s");
    let runs: Vec<String> = (0..4).map(|n| server.begin("parcel", &json!(n))).collect();
    let (inside, turns) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let client = Client::new(&server.url()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for n in 0..2 {
        let (inside, turns, mut stopped) = (inside.clone(), turns.clone(), stopped.clone());
        let worker = Worker::new(client.clone()).name(&format!("w{n}")).queue("depot").slots(2);
        let worker = worker.handler(move |job| {
            let (inside, turns) = (inside.clone(), turns.clone());
            async move {
                let lock = job.lock("scales").acquire().await.map_err(JobError::new)?;
                let alone = inside.fetch_add(1, Ordering::SeqCst) == 0;
                let held = job.lock("scales").try_acquire().await.unwrap_err();
                assert!(held.is_held(), "{held}");
                inside.fetch_sub(1, Ordering::SeqCst);
                turns.fetch_add(u32::from(alone && lock.is_held()), Ordering::SeqCst);
                lock.release().await.map_err(JobError::new)?;
                Ok(json!({}))
            }
        });
        let until = async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        runtime.spawn(worker.until(until).run());
    }
    for run in &runs {
        assert_eq!(server.outcome(run)["status"], "completed");
    }
    assert_eq!(turns.load(Ordering::SeqCst), 8);
    stop.send(true).unwrap();
}

#[test]
fn a_worker_in_rust_emits_json_as_it_is_and_events_without_a_payload() {
    use flowline_client::types::Json;
    use flowline_client::{Client, Worker};

    const DIGITS: &str = "{\"n\":1.00000000000000000001}";
    let (_here, server) = place("30s");
    server.learn(
        "flow: emits\nsteps:\n  say: { worker: depot, emits: [raw, bare, now, early] }\n  \
         hear: { worker: depot, subscribes: [raw, bare, now, early] }\n",
    );
    let run = server.begin("emits", &json!(null));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(Client::new(&server.url()).unwrap()).queue("depot").handler(|job| async move {
        if &*job.assignment().step_name == "say" {
            job.emit_json_now("now", Json::parse(DIGITS).unwrap()).await?;
            job.emit_json_now("early", Json::nothing()).await?;
            job.emit_json("raw", Json::parse(DIGITS).unwrap());
            job.emit_json("bare", Json::nothing());
        }
        Ok(job.input().clone())
    });
    let until = async move {
        let _ = stopped.await;
    };
    let working = runtime.spawn(worker.until(until).run());
    let row = server.outcome(&run);
    assert_eq!(row["status"], "completed", "{row}");
    let heard = row["result"]["hear"].as_object().unwrap();
    assert_eq!(heard.keys().collect::<Vec<_>>(), ["now", "raw"], "one without a payload leaves no key");
    let (_, text) = server.text(&format!("/v1/runs/{run}/events?type=emit"));
    for name in ["now", "raw"] {
        assert!(
            text.contains(&format!("{{\"name\":\"{name}\",\"payload\":{DIGITS}")),
            "no digit is lost: {text}"
        );
    }
    for name in ["early", "bare"] {
        assert!(text.contains(&format!("\"data\":{{\"name\":\"{name}\"}}")), "{text}");
    }
    stop.send(()).unwrap();
    runtime.block_on(working).unwrap().unwrap();
}
