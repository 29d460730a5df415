//! Many runs at once, long logs, and stores that were damaged by hand: what holds, and what is mended.

use std::time::Duration;

use crate::kit::place::Here;
use flowline::core::Status;
use flowline::store::query::Total;
use flowline::store::{EventQuery, RunQuery};
use flowline::verify::verify;
use flowline::{Config, Engine, Flow, InstanceRole, Level, Plans, Step, StepError};
use rusqlite::{Connection, params};
use serde_json::{Value, json};

const RUNS: u64 = 10_000;

fn pair() -> Flow {
    Flow::new("pair")
        .step("first", async |_: Step, input: Value| Ok::<_, StepError>(input))
        .returns("done")
        .step("second", async |_: Step, input: Value| Ok::<_, StepError>(input["done"].clone()))
        .subscribes(["done"])
        .build()
        .unwrap()
}

async fn count(engine: &Engine, status: Status) -> Option<Total> {
    let query = RunQuery { status: Some(status), limit: 1, ..RunQuery::of(engine.tenant().clone()) };
    engine.store().runs(query).await.unwrap().total
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_runs_in_flight_all_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flowline.db");
    let flow = pair();
    let config = Config { role: InstanceRole::Operate, ..Config::default() };
    let starter = Engine::open(&path).config(config).flow(&flow).start().await.unwrap();
    let mut starts = tokio::task::JoinSet::new();
    for number in 0..RUNS {
        let request = starter.run(&flow, number);
        starts.spawn(async move { request.await.map(|_| ()) });
    }
    while let Some(started) = starts.join_next().await {
        started.unwrap().unwrap();
    }
    assert_eq!(count(&starter, Status::Running).await, Some(Total::Exact(RUNS)), "all are in flight at once");
    starter.stop().await;
    drop(starter);

    let engine = Engine::open(&path).flow(&flow).slots(64).start().await.unwrap();
    engine.until_idle(Duration::ZERO).await;
    assert_eq!(count(&engine, Status::Completed).await, Some(Total::Exact(RUNS)));
    assert_eq!(count(&engine, Status::Running).await, Some(Total::Exact(0)));
    let report = verify(engine.store(), &Plans::default(), None).await.unwrap();
    assert_eq!((report.runs, report.violations), (RUNS, vec![]));
    // start, two steps started and completed, one emit, the end
    assert_eq!(report.events, RUNS * 7);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_a_hundred_thousand_events_is_read_by_pages_of_a_thousand() {
    const LINES: u64 = 100_000;
    let here = Here::new();
    std::fs::create_dir(here.path(".flowline")).unwrap();
    let talk = async |step: Step, _: Value| {
        for line in 0..LINES {
            step.log(Level::Info, format!("line {line}"));
        }
        Ok::<_, StepError>(())
    };
    let flow = Flow::new("talk").step("talk", talk).build().unwrap();
    let engine = Engine::open(here.path(".flowline/flowline.db")).flow(&flow).start().await.unwrap();
    let run = engine.run(&flow, Value::Null).await.unwrap();
    assert_eq!(run.wait().await.unwrap().status, Status::Completed);
    // start, started, the lines, completed, the end
    let total = LINES + 4;
    let mut seen = 0;
    loop {
        let query = EventQuery { after: seen, limit: 1_000, ..EventQuery::default() };
        let page = engine.store().events(run.key(), query).await.unwrap();
        assert_eq!(page.events.len() as u64, 1_000.min(total - seen));
        for event in &page.events {
            seen += 1;
            assert_eq!(event.seq, seen);
            if (3..total - 1).contains(&seen) {
                let data = event.data.as_ref().unwrap().get();
                assert!(data.contains(&format!("\"line {}\"", seen - 3)), "{seen}: {data}");
            }
        }
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, total);
    let id = run.id().to_string();
    engine.stop().await;
    drop((run, engine));
    // The same from another process, anywhere in the log.
    for (after, first, last) in [
        (0, "flow.start", "line 997"),
        (50_000, "line 49998", "line 50997"),
        (total - 1_000, "line 99002", "flow.completed"),
    ] {
        let said =
            here.flowline(&["events", &id, "--json", "--after", &after.to_string(), "--limit", "1000"]);
        let lines: Vec<&str> = said.out.lines().collect();
        assert_eq!(lines.len(), 1_000, "{}", said.err);
        assert!(lines[0].contains(first) && lines[999].contains(last), "{} … {}", lines[0], lines[999]);
    }
    assert_eq!(here.json(0, &["verify"])["events"], total);
}

/// A place with a run of two steps of which the first is done, one that completed and one that failed.
fn damaged(sql: &str) -> (Here, String) {
    let here = Here::new();
    here.json(0, &["run", "order.yaml", "--input", r#"{"total": 1}"#]);
    here.json(1, &["run", "doomed.yaml"]);
    let run = here.json(0, &["run", "approve.yaml"])["runId"].as_str().unwrap().to_owned();
    here.json(0, &["send", &run, "approval.given", "--payload", "{}"]);
    assert_eq!(here.json(0, &["verify"])["violations"], json!([]));
    let conn = Connection::open(here.path(".flowline/flowline.db")).unwrap();
    conn.execute_batch(sql).unwrap();
    assert!(conn.total_changes() > 0, "nothing was damaged: {sql}");
    (here, run)
}

/// Reports, mends, and verifies; what was found.
fn mended(here: &Here) -> Vec<String> {
    let before = here.json(1, &["verify"]);
    let reported = here.json(1, &["reconcile"]);
    let messages = |findings: &Value| -> Vec<String> {
        let findings = findings.as_array().unwrap().iter();
        findings.map(|finding| finding["message"].as_str().unwrap().to_owned()).collect()
    };
    let found = messages(&reported["findings"]);
    assert_eq!(messages(&before["violations"]), found);
    assert!(reported["findings"].as_array().unwrap().iter().all(|finding| finding["repaired"] == false));
    assert_eq!(here.json(1, &["verify"]), before, "a report changes nothing");
    let repaired = here.json(0, &["reconcile", "--repair"]);
    assert!(
        repaired["findings"].as_array().unwrap().iter().all(|done| done["repaired"] == true),
        "{repaired}"
    );
    // What a counter says may have changed with the rows by the time that it is mended.
    let mended = messages(&repaired["findings"]);
    for finding in found.iter().filter(|finding| !finding.starts_with("the counter")) {
        assert!(mended.contains(finding), "{finding}: {repaired}");
    }
    assert_eq!(here.json(0, &["verify"])["violations"], json!([]));
    assert_eq!(here.json(0, &["reconcile", "--repair"])["findings"], json!([]), "nothing is left to mend");
    found
}

/// Works off what is left; every run then has ended, each with one terminal event.
fn go_on(here: &Here, run: &str) {
    here.json(0, &["work", "--until-idle"]);
    assert_eq!(here.json(0, &["show", run])["status"], "completed");
    for row in here.json(0, &["runs", "--all"])["items"].as_array().unwrap() {
        let said = here.flowline(&["events", row["runId"].as_str().unwrap(), "--json"]);
        let ends =
            ["flow.completed", "flow.failed", "flow.cancelled"].map(|end| format!("\"type\":\"{end}\""));
        let count =
            said.out.lines().filter(|line| ends.iter().any(|end| line.contains(end.as_str()))).count();
        assert_eq!(count, 1, "{}", said.out);
    }
    assert_eq!(here.json(0, &["verify"])["violations"], json!([]));
}

#[track_caller]
fn contains(found: &[String], text: &str) {
    assert!(found.iter().any(|message| message.contains(text)), "{text:?} is not in {found:?}");
}

#[test]
fn a_damaged_row_is_found_and_mended() {
    let (here, run) = damaged(
        "update progress set status = 3, completed_at = 5, started_at = 4, completed_steps = 7, retries = 9 where run = 3",
    );
    let found = mended(&here);
    for field in ["status", "completedAt", "startedAt", "completedSteps", "retries"] {
        contains(&found, field);
    }
    assert_eq!(here.json(0, &["runs", "--status", "completed"])["total"], 1);
    go_on(&here, &run);
}

#[test]
fn a_damaged_state_is_found_and_mended() {
    let (here, run) =
        damaged("update progress set state = (select state from progress where run = 1) where run = 3");
    contains(&mended(&here), "the stored run state doesn't match the log");
    go_on(&here, &run);
    let (here, run) = damaged("update progress set state = x'00ff00ff' where run = 3");
    contains(&mended(&here), "the stored run state doesn't match the log");
    go_on(&here, &run);
}

#[test]
fn a_damaged_row_of_a_failed_run_keeps_why_it_failed() {
    let (here, run) =
        damaged("update progress set status = 0, completed_at = null, failure_error = 'x' where run = 2");
    contains(&mended(&here), "failure");
    let row = here.json(0, &["runs", "--status", "failed"])["items"][0].clone();
    assert_eq!(row["failure"]["step"], "a", "{row}");
    assert!(row["failure"]["error"].as_str().unwrap().contains("no luck"), "{row}");
    go_on(&here, &run);
}

#[test]
fn a_wrong_counter_is_found_and_mended() {
    for sql in [
        "update counters set n = 41 where status = 3",
        "delete from counters where status = 4",
        "insert into counters (flow, status, state, n) values (1, 2, '', 7)",
    ] {
        let (here, run) = damaged(sql);
        contains(&mended(&here), "counter of flow");
        let total = |status: &str| here.json(0, &["runs", "--status", status])["total"].clone();
        assert_eq!((total("completed"), total("failed"), total("paused")), (json!(1), json!(1), json!(0)));
        go_on(&here, &run);
    }
}

#[test]
fn a_missing_terminal_event_is_found_and_written_again() {
    for (id, status) in [(1, "completed"), (2, "failed")] {
        let (here, run) = damaged(&format!(
            "update log set events = json_remove(events, '$[#-1]'), count = count - 1
                 where n = (select max(n) from log where run = {id});
             delete from log where count = 0;"
        ));
        contains(&mended(&here), "status");
        assert_eq!(here.json(0, &["runs", "--status", status])["total"], 1);
        go_on(&here, &run);
    }
}

#[test]
fn a_missing_job_is_found_and_made_again() {
    let (here, run) = damaged("delete from jobs where run = 3");
    assert_eq!(here.json(0, &["work", "--until-idle"])["steps"]["completed"], 0, "nobody knows of the job");
    contains(&mended(&here), "has no job");
    go_on(&here, &run);
}

#[test]
fn a_job_that_is_left_over_is_found_and_taken_away() {
    let (here, run) = damaged(
        "insert into jobs (run, key, name, attempt, lane, priority, due, held, n)
             select 1, 0, 'charge', 1, lane, priority, due, held, n + 100 from jobs where run = 3;",
    );
    contains(&mended(&here), "left over");
    go_on(&here, &run);
}

#[test]
fn damage_in_a_log_is_reported_and_left_alone() {
    let (here, _) = damaged(
        "update log set events = json_remove(events, '$[' || (3 - first_seq) || ']'), count = count - 1
             where run = 1 and 3 between first_seq and first_seq + count - 1",
    );
    let found = here.json(1, &["reconcile"]);
    let repaired = here.json(1, &["reconcile", "--repair"]);
    for answer in [&found, &repaired] {
        let findings = answer["findings"].as_array().unwrap();
        assert!(
            !findings.is_empty() && findings.iter().any(|finding| finding["repaired"] == false),
            "{answer}"
        );
    }
    let conn = Connection::open(here.path(".flowline/flowline.db")).unwrap();
    let left: i64 =
        conn.query_row("select sum(count) from log where run = ?1", params![1], |row| row.get(0)).unwrap();
    assert_eq!(left, 7, "nothing was made up");
}
