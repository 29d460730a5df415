//! `flowline move`: what a store holds arrives whole in another, and goes on there.
//!
//! Needs the servers that `cargo xtask test` starts and names in `FLOWLINE_TEST_…_URL`.

use std::time::{Duration, Instant};

use crate::kit::place::{Here, Said};
use crate::kit::served::Served;
use serde_json::{Value, json};

const REMEMBER: &str = r#"
flow: remember
retain: { events: 9d, runs: 90d }
steps:
  a:
    command:
      - sh
      - -c
      - |
        echo '{"state": {"set": "mine", "value": [1]}}'
        echo '{"state": {"set": "ours", "value": "f", "scope": "flow"}}'
        echo '{"state": {"set": "all", "value": "t", "scope": "tenant"}}'
        echo '{"result": {"ü": "\"x\""}}'
"#;

/// Fails once, and is tried again in an hour; meanwhile a time-out waits too.
const LATER: &str = r#"
flow: later
timeout: 2h
steps:
  a: { command: [sh, -c, 'exit 1'], retry: { attempts: 2, delay: 1h, jitter: false } }
"#;

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set; run the tests with `cargo xtask test`, or start servers with `cargo xtask services start`")
    })
}

fn postgres(name: &str) -> String {
    let url = server("FLOWLINE_TEST_POSTGRES_URL");
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}schema=move_{name}_{}", std::process::id())
}

fn redis(name: &str) -> String {
    format!("{}?prefix=move-{name}-{}", server("FLOWLINE_TEST_REDIS_URL"), std::process::id())
}

fn cluster(name: &str) -> String {
    format!("{}?prefix=move-{name}-{}", server("FLOWLINE_TEST_REDIS_CLUSTER_URL"), std::process::id())
}

/// Moves, again while the source still has a lease that has not run out.
fn moves(here: &Here, from: &str, to: &str) -> Value {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let said = here.flowline(&["move", "--from", from, "--to", to, "--json"]);
        let answer: Value =
            serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        if answer["error"]["code"] != "store-in-use" || Instant::now() > until {
            assert_eq!(said.exit, 0, "{said:?}");
            return answer;
        }
        assert!(said.err.contains("leased until") || said.err.contains("last seen at"), "{said:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// All that the binary says of a store, word for word.
fn said(here: &Here, store: &str, runs: &[String]) -> String {
    let mut commands: Vec<Vec<&str>> = vec![vec!["runs"], vec!["flows"], vec!["queues"]];
    for run in runs {
        commands.push(vec!["show", run]);
        commands.push(vec!["events", run]);
    }
    let answer = |command: Vec<&str>| {
        let said = here.flowline(&[&command[..], &["--store", store, "--json"]].concat());
        assert_eq!(said.exit, 0, "{command:?}: {said:?}");
        format!("{}\n{}", command.join(" "), said.out)
    };
    commands.into_iter().map(answer).collect::<Vec<_>>().join("\n")
}

/// A run that a killed worker leaves behind, its step leased.
fn interrupted(here: &Here) -> String {
    let run = here.start(&["slow.yaml"]);
    let mut worker = here.spawn(&["work", "--lease", "5s"]);
    let until = Instant::now() + Duration::from_secs(30);
    while !here.flowline(&["events", &run]).out.contains("step.started") {
        assert!(Instant::now() < until, "the step does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
    let show = here.json(0, &["show", &run]);
    assert_eq!(show["jobs"][0]["state"], "leased", "{show}");
    run
}

/// Runs of every kind.
fn fill(here: &Here) -> Vec<String> {
    here.write("remember.yaml", REMEMBER);
    here.write("later.yaml", LATER);
    let id = |answer: Value| answer["runId"].as_str().unwrap().to_owned();
    let mut runs = vec![
        id(here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#])),
        id(here.json(1, &["run", "doomed.yaml"])),
        id(here.json(0, &["run", "remember.yaml"])),
        id(here.json(0, &["run", "approve.yaml"])),
        here.start(&["later.yaml"]),
    ];
    here.json(0, &["work", "--until-idle", "--patience", "0s"]);
    runs.push(here.start(&[
        "order.yaml",
        "--input",
        r#"{"total": 2}"#,
        "--delay",
        "1h",
        "--idempotency-key",
        "k 1",
    ]));
    runs.push(here.start(&[
        "order.yaml",
        "--input",
        r#"{"total": 3}"#,
        "--label",
        "who=é ~",
        "--priority",
        "high",
    ]));
    here.json(0, &["pause", &runs[6]]);
    here.json(0, &["queues", "pause", "reports"]);
    runs.push(interrupted(here));
    runs.push(here.start(&["order.yaml", "--input", r#"{"total": 4}"#]));
    runs
}

/// The rows of a file's table of documents: collection, id, body, end.
fn documents(here: &Here, file: &str) -> Vec<(String, String, String, Option<i64>)> {
    let conn = rusqlite::Connection::open(here.path(file)).unwrap();
    let mut rows = conn.prepare("select collection, id, body, expires from documents").unwrap();
    let read = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    read.unwrap().collect::<Result<_, _>>().unwrap()
}

/// More than a page of lines that end in the year 2100, and a token that does not.
fn keep_documents(here: &Here, file: &str) {
    let conn = rusqlite::Connection::open(here.path(file)).unwrap();
    let lines = "with recursive n (n) as (select 1 union all select n + 1 from n where n < 250)
        insert into documents select 'audit:default', printf('%05d {:}', n), json_object('n', n), 4102444800000 from n";
    let token = "insert into documents values ('tokens', '../é', '{\"may\":  [\"ß\"]}', null)";
    for sql in [lines, token] {
        conn.execute(sql, []).unwrap();
    }
}

/// Run, number, event, status, worker, outcome.
type ReceiptRow = (String, i64, String, String, Option<String>, Option<String>);

/// The rows of a file's table of receipts.
fn receipts(here: &Here, file: &str) -> Vec<ReceiptRow> {
    let conn = rusqlite::Connection::open(here.path(file)).unwrap();
    let sql =
        "select run_id, number, event_id, status, worker, outcome from v_receipts order by run_id, number";
    let mut rows = conn.prepare(sql).unwrap();
    let read = |row: &rusqlite::Row<'_>| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
    };
    rows.query_map([], read).unwrap().collect::<Result<_, _>>().unwrap()
}

/// More than a page of the first run's, in every status, and one of another.
fn keep_receipts(here: &Here, file: &str) {
    let conn = rusqlite::Connection::open(here.path(file)).unwrap();
    let sql = "with recursive n (n) as (select 0 union all select n + 1 from n where n < 299)
        insert into receipts (run, number, tenant, event_id, name, sender, status, worker, received_at, started_at,
            completed_at, outcome)
            select (select min(id) from runs) + n / 299, n, 1, 'event ' || n, 'approve', json_object('user', n), n % 4,
                iif(n % 4, 'worker ' || n % 3, null), 1800000000000 + n / 7, iif(n % 4, 1800000000500, null),
                iif(n % 4 > 1, 1800000000900, null), iif(n % 2, json_object('to', n), null) from n";
    conn.execute(sql, []).unwrap();
}

#[test]
fn everything_arrives_in_every_store_and_goes_on_in_the_last() {
    let here = Here::new();
    let runs = fill(&here);
    let first = "sqlite:.flowline/flowline.db";
    keep_documents(&here, ".flowline/flowline.db");
    keep_receipts(&here, ".flowline/flowline.db");
    let before = said(&here, first, &runs);
    let leased = here.json(0, &["show", &runs[7]]);
    let stores =
        [first.to_owned(), postgres("all"), redis("all"), cluster("all"), "sqlite:last.db".to_owned()];
    for pair in stores.windows(2) {
        let answer = moves(&here, &pair[0], &pair[1]);
        assert_eq!(answer["moved"]["runs"], json!(runs.len()), "{answer}");
        assert_eq!(answer["moved"]["values"], json!(3), "{answer}");
        assert_eq!(answer["moved"]["documents"], json!(251), "{answer}");
        assert_eq!(answer["moved"]["receipts"], json!(300), "{answer}");
        assert_eq!(said(&here, &pair[1], &runs), before, "{} differs", pair[1]);
        assert_eq!(here.json(0, &["verify", "--store", &pair[1]])["violations"], json!([]));
        assert_eq!(said(&here, &pair[0], &runs), before, "the source has changed");
    }

    let kept = documents(&here, "last.db");
    assert_eq!((kept.len(), &kept), (251, &documents(&here, ".flowline/flowline.db")));

    let kept = receipts(&here, "last.db");
    assert_eq!((kept.len(), &kept), (300, &receipts(&here, ".flowline/flowline.db")));

    // The same key is the same run, wherever it is.
    let last = ["--store", "sqlite:last.db"];
    let again =
        ["start", "order.yaml", "--input", r#"{"total": 2}"#, "--delay", "1h", "--idempotency-key", "k 1"];
    assert_eq!(here.json(0, &[&again[..], &last].concat())["runId"], json!(runs[5]));
    here.json(0, &[&["resume", &runs[6]][..], &last].concat());
    here.write("go", "");
    here.json(0, &[&["work", "--until-idle", "--patience", "0s"][..], &last].concat());
    let status = |run: &str| here.json(0, &[&["show", run][..], &last].concat());
    for (run, expected) in runs.iter().zip([
        "completed",
        "failed",
        "completed",
        "waiting",
        "waiting",
        "waiting",
        "completed",
        "completed",
        "completed",
    ]) {
        assert_eq!(status(run)["status"], expected, "{}", status(run));
    }
    let attempt = leased["jobs"][0]["attempt"].as_u64().unwrap();
    assert_eq!(status(&runs[7])["steps"][0]["attempts"], attempt + 1, "the lost lease made the next attempt");
    assert_eq!(here.json(0, &[&["verify"][..], &last].concat())["violations"], json!([]));
    assert_eq!(said(&here, first, &runs), before, "the source has changed");
}

#[test]
fn a_target_with_a_store_of_its_own_is_refused_and_left_alone() {
    let here = Here::new();
    let run = here.start(&["order.yaml", "--input", r#"{"total": 1}"#]);
    let first = "sqlite:.flowline/flowline.db";
    for target in ["sqlite:other.db".to_owned(), postgres("taken"), redis("taken")] {
        let other =
            here.json(0, &["start", "slow.yaml", "--store", &target])["runId"].as_str().unwrap().to_owned();
        let before = said(&here, &target, std::slice::from_ref(&other));
        let refused = here.flowline(&["move", "--from", first, "--to", &target]);
        refused.refused(3, &["the target isn't empty", "nothing was moved", "--to"]);
        assert_eq!(said(&here, &target, &[other]), before);
    }
    assert_eq!(here.json(0, &["show", &run])["status"], "running");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let here = Here::new();
    here.start(&["order.yaml", "--input", r#"{"total": 1}"#]);
    let first = "sqlite:.flowline/flowline.db";
    let refused = |from: &str, to: &str| here.flowline(&["move", "--from", from, "--to", to]);
    refused(first, "memory:").refused(2, &["memory:"]);
    refused("memory:", first).refused(2, &["memory:"]);
    refused(first, first).refused(2, &["the same store"]);
    refused(first, "sqlite:./.flowline/flowline.db").refused(2, &["the same store"]);
    refused("sqlite:none.db", "sqlite:new.db").refused(3, &["none.db"]);
    assert!(!here.path("new.db").exists());
    assert_eq!(here.flowline(&["move", "--from", first]).exit, 2);

    // An engine that is at work keeps its file to itself.
    let mut worker = here.spawn(&["work"]);
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let said: Said = refused(first, "sqlite:new.db");
        if said.exit == 3 {
            said.refused(3, &["in use"]);
            break;
        }
        std::fs::remove_file(here.path("new.db")).unwrap();
        assert!(Instant::now() < until, "the worker does not start: {said:?}");
        // One that came while the file was being read was kept away itself.
        if worker.try_wait().unwrap().is_some() {
            worker = here.spawn(&["work"]);
        }
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn a_damaged_source_is_not_moved() {
    let here = Here::new();
    here.start(&["order.yaml", "--input", r#"{"total": 1}"#]);
    let conn = rusqlite::Connection::open(here.path(".flowline/flowline.db")).unwrap();
    assert_eq!(conn.execute("update progress set retries = 9", []).unwrap(), 1);
    drop(conn);
    let refused = here.flowline(&["move", "--from", "sqlite:.flowline/flowline.db", "--to", "sqlite:new.db"]);
    refused.refused(1, &["the source failed verification", "I6", "reconcile --repair"]);
    assert!(!here.path("new.db").exists());
}

#[test]
fn a_move_that_was_killed_leaves_a_target_that_only_the_next_move_opens() {
    let here = Here::new();
    here.json(0, &["bench", "--runs", "300", "--in-flight", "100", "--keep", "bench.db"]);
    let from = "sqlite:bench.db".to_owned();
    let total = here.json(0, &["runs", "--limit", "1", "--store", &from])["total"].clone();
    assert_eq!(total, json!(300));
    for target in ["sqlite:new.db".to_owned(), postgres("killed"), redis("killed")] {
        let mut moving = here.spawn(&["move", "--from", &from, "--to", &target]);
        let until = Instant::now() + Duration::from_secs(120);
        // Nobody else gets in while it is filled.
        while !here.flowline(&["runs", "--store", &target]).err.contains("half moved") {
            assert!(
                Instant::now() < until && moving.try_wait().unwrap().is_none(),
                "{target} was filled too fast"
            );
        }
        moving.kill().unwrap();
        moving.wait().unwrap();
        for command in [&["runs"][..], &["work", "--until-idle"], &["verify"], &["start", "slow.yaml"]] {
            let said = here.flowline(&[command, &["--store", &target]].concat());
            said.refused(3, &["half moved", "repeat"]);
        }
        let doctor = here.json(1, &["doctor", "--store", &target]);
        assert!(doctor.to_string().contains("half moved"), "{doctor}");
        let moved = moves(&here, &from, &target);
        assert_eq!(moved["moved"]["runs"], total);
        assert_eq!(here.json(0, &["runs", "--limit", "1", "--store", &target])["total"], total);
        let verified = here.json(0, &["verify", "--store", &target]);
        assert_eq!((&verified["runs"], &verified["violations"]), (&total, &json!([])), "{verified}");
        here.flowline(&["move", "--from", &from, "--to", &target]).refused(3, &["isn't empty"]);
    }
}

#[test]
fn an_engine_without_work_keeps_a_move_away_until_it_stops_or_its_sign_ends() {
    for (name, store) in
        [("redis", redis("idle")), ("cluster", cluster("idle")), ("postgres", postgres("idle"))]
    {
        let here = Here::new();
        let to = format!("sqlite:{name}.db");
        let missing = here.flowline(&["move", "--from", &store, "--to", &to, "--json"]);
        assert!(missing.out.contains("store-missing"), "{missing:?}");
        let moving = || here.flowline(&["move", "--from", &store, "--to", &to, "--json"]);
        let serve = || {
            let arguments = ["serve", "--listen", "127.0.0.1:0", "--store", &store];
            let served = Served::command(here.folder.path(), &arguments);
            served.unwrap_or_else(|said| panic!("the server did not start: {said}"))
        };
        let served = serve();
        let said = moving();
        let error = serde_json::from_str::<Value>(&said.out).unwrap()["error"].clone();
        assert_eq!((said.exit, error["code"].as_str()), (3, Some("store-in-use")), "{said:?}");
        assert!(
            error["message"].as_str().unwrap().contains("is working on the source, last seen at"),
            "{error}"
        );
        assert!(error["help"].as_str().unwrap().contains("stop every engine"), "{error}");
        // One that was killed is forgotten after a while, one that stops at once.
        if name == "redis" {
            drop(served);
            assert_eq!(moving().exit, 3, "it may still be there");
            moves(&here, &store, &to);
        } else {
            assert!(served.stop().success());
            let said = moving();
            assert_eq!(said.exit, 0, "{said:?}");
        }
        // Nor may one be there where the move goes to.
        let served = serve();
        let said = here.flowline(&["move", "--from", &to, "--to", &store, "--json"]);
        assert!(said.exit == 3 && said.out.contains("is working on the target"), "{said:?}");
        served.stop();
    }
}
