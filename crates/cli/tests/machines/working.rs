//! Who does what events ask for: instances that start, stop, fail and die.

use std::process::Command;

use serde_json::{Value, json};

use crate::kit::wait_for;
use crate::machines::site::{Kind, Site};

/// `wait` runs until a file named as its run, with `.go`, is there; `stumble` fails at first; `fall` always.
const JOB: &str = r#"
machine: job
events: { go: , hop: , jump: }
states:
  idle:
    on:
      go: { to: idle, actions: [wait] }
      hop: { to: idle, actions: [stumble] }
      jump: { to: idle, actions: [fall, wait] }
actions:
  wait: { command: [sh, wait.sh] }
  stumble: { command: [sh, stumble.sh], retry: { attempts: 3, delay: 10ms } }
  fall: { command: [sh, -c, "echo no net >&2; exit 7"], retry: { attempts: 2, delay: 10ms }, on_failure: continue }
"#;

const WAIT: &str = r#"
echo "$FLOWLINE_RUN_ID began $FLOWLINE_ATTEMPT" >> ledger
while [ ! -e "$FLOWLINE_RUN_ID.go" ]; do sleep 0.02; done
echo "$FLOWLINE_RUN_ID done $FLOWLINE_ATTEMPT" >> ledger
"#;

fn prepare(site: &Site) {
    site.here.write("job.yaml", JOB);
    site.here.write("wait.sh", WAIT);
    site.here.write("stumble.sh", "[ \"$FLOWLINE_ATTEMPT\" -gt 1 ]\n");
    site.here.write("ledger", "");
}

fn site(kind: Kind, instances: usize) -> Site {
    let site = Site::new(kind, instances);
    prepare(&site);
    site.register(JOB);
    site
}

/// Whether an action of a run has written so.
fn noted(site: &Site, line: &str) -> bool {
    std::fs::read_to_string(site.here.path("ledger")).unwrap().lines().any(|noted| noted == line)
}

pub fn resuming_after_an_interruption_goes_on_where_it_stopped(kind: Kind) {
    let site = site(kind, 1);
    let run = site.begin("job");
    let event = site.send(&run, json!({ "name": "go" }));
    let behind = site.send(&run, json!({ "name": "hop" }));
    wait_for("the action has begun", || noted(&site, &format!("{run} began 1")));
    site.kill(0);
    site.here.write(&format!("{run}.go"), "");
    site.start(0);
    let receipt = site.done(&run, &event);
    assert_eq!((&receipt["status"], &receipt["tries"]), (&json!("completed"), &json!(2)), "{receipt}");
    assert_eq!(site.done(&run, &behind)["status"], "completed", "and so does what was in the inbox");
    let moved = site.log(&run, "state.changed");
    assert_eq!(moved.len(), 3, "each event moved it once: {moved:?}");
}

pub fn parallel_runs_do_not_wait_for_each_other(kind: Kind) {
    let site = site(kind, 2);
    let runs: Vec<String> = (0..6).map(|_| site.begin("job")).collect();
    let events: Vec<String> = runs.iter().map(|run| site.send(run, json!({ "name": "go" }))).collect();
    // All are at work at once, or this waits for ever.
    wait_for("all have begun", || runs.iter().all(|run| noted(&site, &format!("{run} began 1"))));
    assert_eq!(site.get("/v1/receipts?status=processing")["items"].as_array().unwrap().len(), 6);
    for run in &runs {
        site.here.write(&format!("{run}.go"), "");
    }
    for (run, event) in runs.iter().zip(&events) {
        assert_eq!(site.done(run, event)["status"], "completed");
    }
}

/// Asks the binary about a store that nobody serves.
fn ask(site: &Site, words: &[&str]) -> Value {
    site.here.json(0, &[words, &["--store", &site.store]].concat())
}

pub fn a_worker_that_starts_takes_what_waits(kind: Kind) {
    let site = Site::bare(kind);
    prepare(&site);
    let started = ask(&site, &["start", "job.yaml"]);
    let run = started["runId"].as_str().unwrap();
    ask(&site, &["send", run, "hop"]);
    let sent = ask(&site, &["send", run, "hop", "--wait", "10ms"]);
    assert_eq!(sent["receipt"]["status"], "pending", "nobody works");
    let worked = site.here.flowline(&["work", "--until-idle", "--lease", "2s", "--store", &site.store]);
    assert_eq!(worked.exit, 0, "{worked:?}");
    let receipts = ask(&site, &["receipts", "--run", run]);
    let came = |receipt: &Value| (receipt["status"].clone(), receipt["tries"].clone());
    let came: Vec<_> = receipts["items"].as_array().unwrap().iter().map(came).collect();
    assert_eq!(came, [(json!("completed"), json!(1)), (json!("completed"), json!(2))], "{receipts}");
}

pub fn a_worker_that_is_stopped_finishes_or_gives_back(kind: Kind) {
    let site = Site::bare(kind);
    prepare(&site);
    let run = ask(&site, &["start", "job.yaml"])["runId"].as_str().unwrap().to_owned();
    let sent = ask(&site, &["send", &run, "go"]);
    let event = sent["eventId"].as_str().unwrap();
    let work = ["work", "--json", "--drain", "200ms", "--lease", "30s", "--store", &site.store];
    let mut worker = site.here.spawn(&work);
    wait_for("the action has begun", || noted(&site, &format!("{run} began 1")));
    let term = Command::new("kill").args(["-TERM", &worker.id().to_string()]).status();
    assert!(term.unwrap().success() && worker.wait().unwrap().success(), "a signal is no failure");
    let receipt = &ask(&site, &["receipts", "--run", &run])["items"][0];
    assert_eq!(
        (&receipt["status"], &receipt["lockedUntil"]),
        (&json!("processing"), &Value::Null),
        "{receipt}"
    );
    // Given back, so that the next need not wait for the lease.
    site.here.write(&format!("{run}.go"), "");
    assert_eq!(site.here.flowline(&["work", "--until-idle", "--store", &site.store]).exit, 0);
    let receipt = &ask(&site, &["receipts", "--run", &run])["items"][0];
    assert_eq!((&receipt["eventId"], &receipt["status"]), (&json!(event), &json!("completed")), "{receipt}");
    assert!(noted(&site, &format!("{run} done 2")));
}

pub fn errors_are_tried_again_and_then_recorded(kind: Kind) {
    let site = site(kind, 1);
    let run = site.begin("job");
    site.here.write(&format!("{run}.go"), "");
    let stumbled = site.send(&run, json!({ "name": "hop" }));
    let receipt = site.done(&run, &stumbled);
    assert_eq!((&receipt["status"], &receipt["tries"]), (&json!("completed"), &json!(2)), "{receipt}");
    let fallen = site.send(&run, json!({ "name": "jump" }));
    let receipt = site.done(&run, &fallen);
    assert_eq!(receipt["result"]["actionsFailed"], json!(["fall"]), "{receipt}");
    assert_eq!((&receipt["tries"], &receipt["result"]["actionsExecuted"]), (&json!(2), &json!(["wait"])));
    let failures = site.log(&run, "step.failed");
    assert!(failures[0]["error"].as_str().unwrap().contains("no net"), "{failures:?}");
    assert_eq!(site.get(&format!("/v1/runs/{run}"))["status"], "waiting", "the machine goes on");
}

pub fn reclaiming_what_a_dead_worker_held(kind: Kind) {
    let site = site(kind, 2);
    let run = site.begin("job");
    let event = site.send(&run, json!({ "name": "go" }));
    wait_for("the action has begun", || noted(&site, &format!("{run} began 1")));
    let before = site.receipt(&run, &event);
    assert!(before["lockedUntil"].is_string(), "{before}");
    // The instance that took the event runs its action; the other one takes over. A file has no other.
    site.kill(0);
    site.here.write(&format!("{run}.go"), "");
    if kind == Kind::Sqlite {
        site.start(0);
    }
    let other = site.instances() - 1;
    let receipt = site.get_at(other, &format!("/v1/runs/{run}/receipts/{event}?wait=60s"));
    assert_eq!((&receipt["status"], &receipt["tries"]), (&json!("completed"), &json!(2)), "{receipt}");
    assert_ne!(receipt["worker"], before["worker"], "another instance finished it");
    assert!(noted(&site, &format!("{run} done 2")));
}

/// The bank is closed until a file says that it is open.
const CLAIM: &str = r#"
machine: claim
events: [edit, submit, approve]
context: { amount: input.amount }
states:
  draft: { on: { edit: { set: { amount: payload.amount } }, submit: review } }
  review: { on: { approve: { to: paid, actions: [pay] } }, after: { in: 1h, to: draft } }
  paid: { on: { edit: closed } }
  closed: { final: true }
actions:
  pay: { command: [sh, -c, "test -e bank.open"] }
"#;

pub fn a_failed_event_is_tried_again_where_it_failed(kind: Kind) {
    let site = Site::new(kind, 1);
    site.register(CLAIM);
    let run = site.post("/v1/flows/claim/runs", json!({ "input": { "amount": 1 } })).json();
    let run = run["runId"].as_str().unwrap().to_owned();
    let edit = site.send(&run, json!({ "name": "edit", "payload": { "amount": 9 } }));
    site.send(&run, json!({ "name": "submit" }));
    let failed = site.send(&run, json!({ "name": "approve" }));
    assert_eq!(site.done(&run, &failed)["status"], "failed");
    wait_for("the run has failed", || site.get(&format!("/v1/runs/{run}"))["status"] == "failed");
    site.here.write("bank.open", "");
    let retried = site.post(&format!("/v1/runs/{run}/retry"), json!({}));
    assert_eq!(retried.status, 201, "{}", retried.body);
    let new = retried.json()["runId"].as_str().unwrap().to_owned();
    let receipt = site.done(&new, &failed);
    assert_eq!(
        (&receipt["status"], &receipt["result"]["actionsExecuted"]),
        (&json!("completed"), &json!(["pay"])),
        "{receipt}"
    );
    assert_eq!(site.receipt(&new, &edit)["status"], "completed", "it knows what came before");
    let row = site.get(&format!("/v1/runs/{new}"));
    assert_eq!((&row["state"], &row["retryOf"]), (&json!("paid"), &json!(run)), "{row}");
    let due = |run: &str| site.log(run, "timer.set")[0]["at"].clone();
    assert_eq!(due(&new), due(&run), "a timer keeps its time");
    let last = site.send(&new, json!({ "name": "edit" }));
    assert_eq!(site.done(&new, &last)["result"]["currentState"], "closed");
    let result = site.get(&format!("/v1/runs/{new}/result?wait=30s"));
    assert_eq!(result["status"], "completed", "{result}");
    let refused = site.post(&format!("/v1/runs/{new}/retry"), json!({}));
    assert!(
        refused.status == 400 && refused.body.contains("from the start"),
        "{} {}",
        refused.status,
        refused.body
    );
    let finished = json!({ "flow": "claim", "status": "completed" });
    let many = site.post("/v1/runs/bulk", json!({ "action": "retry", "filter": finished })).json();
    assert!(many["items"][0]["error"].to_string().contains("from the start"), "{many}");
    let many = json!({ "action": "retry", "filter": finished, "fromStart": true });
    let many = site.post("/v1/runs/bulk", many).json();
    let again = many["items"][0]["newRunId"].as_str().unwrap();
    assert_eq!(site.get(&format!("/v1/runs/{again}"))["state"], "draft", "{many}");
    let anew = site.post(&format!("/v1/runs/{run}/retry"), json!({ "fromStart": true })).json();
    assert_eq!(anew["state"], "draft", "{anew}");
    let both = site.post(&format!("/v1/runs/{run}/retry"), json!({ "fromStart": true, "from": "pay" }));
    assert_eq!(both.status, 400, "{}", both.body);
}
