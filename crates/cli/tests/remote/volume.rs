//! A remote worker can log only so much.

use serde_json::{Value, json};

use crate::kit::crowd::{Running, Server};
use crate::kit::place::Here;

const FLOW: &str = "flow: loud\nsteps:\n  say: { worker: depot }\n";

fn place(flags: &[&str]) -> (Here, Server) {
    let here = Here::new();
    let flags = [&["--drain", "1s"], flags].concat();
    let server = Server::start(&here, 0, "sqlite:flowline.db", &flags);
    server.learn(FLOW);
    (here, server)
}

fn logged(server: &Server, run: &str) -> Vec<Value> {
    let log = server.log(run).into_iter();
    log.filter(|(kind, ..)| kind == "log").map(|(.., data)| data).collect()
}

#[test]
fn a_worker_that_logs_too_much_is_told_to_stop_and_keeps_its_attempt() {
    let (_here, server) = place(&["--max-log", "64KiB", "--max-run-log", "100KiB"]);
    let run = server.begin("loud", &json!(1));
    let request = json!({ "worker": "w1", "queues": ["depot"], "waitMs": 5_000 });
    let lease = server.post("/v1/work/claim", &request).1["jobs"][0]["lease"].clone();
    let append = |from: u64, lines: Value| {
        server.post("/v1/work/append", &json!({ "lease": lease, "fromLine": from, "lines": lines }))
    };
    let line = |bytes: usize| json!({ "log": { "message": "x".repeat(bytes) } });
    assert_eq!(append(0, json!([line(60_000)])).0, 200);
    let before = server.log(&run);
    let set = json!({ "state": { "set": "k", "value": 1 } });
    let (status, answer) = append(1, json!([set, line(6_000)]));
    assert_eq!((status, &answer["code"]), (413, &json!("log-full")), "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("max-log"), "{answer}");
    assert_eq!(server.log(&run), before, "nothing of it was written");
    assert_eq!(append(1, json!([set, { "log": { "message": "cut here" } }])).0, 200);
    assert_eq!(append(3, json!([{ "state": { "delete": "k" } }])).0, 200);
    // Short lines are no way around it.
    let short = (0..100).map(|_| append(4, json!([line(900)])).0).collect::<Vec<_>>();
    assert!(short.iter().filter(|status| **status == 200).count() <= 10, "{short:?}");
    let outcome = json!({ "lease": lease, "complete": { "result": 1 } });
    assert_eq!(server.post("/v1/work/complete", &json!({ "outcomes": [outcome] })).0, 200);
    assert_eq!(server.outcome(&run)["status"], "completed");
}

#[test]
fn a_program_of_a_remote_worker_that_prints_without_end_completes_and_is_cut_once() {
    let (here, server) = place(&["--max-log", "64KiB"]);
    here.write("job.sh", "yes $(printf %0200d 0) | head -n 5000\necho '{\"state\": {\"set\": \"k\", \"value\": 1}}'\necho '{\"result\": 7}'\n");
    let url = server.url();
    let arguments = ["worker", "--server", &url, "--queue", "depot", "--", "sh", "job.sh"];
    let _worker = Running::start(&here, "worker", &arguments);
    let run = server.begin("loud", &json!(1));
    assert_eq!(server.outcome(&run)["status"], "completed");
    let lines = logged(&server, &run);
    let bytes: usize = lines.iter().map(|line| line.to_string().len()).sum();
    assert!(bytes < 70 << 10, "{bytes}");
    let cuts: Vec<&Value> = lines.iter().filter(|line| line["level"] == "warn").collect();
    assert_eq!(cuts.len(), 1, "{cuts:?}");
    assert!(cuts[0]["message"].as_str().unwrap().contains("max-log"), "{cuts:?}");
    assert_eq!(server.log(&run).iter().filter(|(kind, ..)| kind == "state").count(), 1);
}
